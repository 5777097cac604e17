//! The reasons why a client's next command is not taken yet.

use super::context::Later;
use super::shared::Subscribing;

/// The event that the next command waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum On {
    #[default]
    Nothing,
    /// The outcome of the client's last call.
    Outcome,
    /// The submission of the reads that must be submitted again.
    Repeats,
}

/// The event for which a command waits if its result depends on subscribers. Clients do not take turns in the order in
/// which their commands arrived. Therefore all other clients get one turn before the command continues. After these
/// turns the command waits for the changes of subscriptions that have begun by then ([`Subscribing`], numbered by
/// `shell/subscribing.rs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Behind {
    /// The event is not known yet, because the other clients have not had their turn.
    #[default]
    Unknown,
    /// The end of one turn of each other client.
    Others,
    /// The end of all changes of subscriptions up to this number.
    Changes(u64),
    /// In this turn the command waits for no event.
    Nothing,
}

/// All reasons why the next command is not taken yet.
#[derive(Debug, Default)]
pub(super) struct Hold {
    on: On,
    behind: Behind,
    /// Whether the clients are paused.
    paused: bool,
}

impl Hold {
    /// Makes the next command wait for the outcome of the last call, or for an answer of the front.
    pub(super) fn for_outcome(&mut self) {
        self.on = On::Outcome;
    }

    /// Makes the next command wait until all reads that must be submitted again have been submitted.
    pub(super) fn for_repeats(&mut self) {
        self.on = On::Repeats;
    }

    /// Lets the next command continue.
    pub(super) fn release(&mut self) {
        self.on = On::Nothing;
    }

    pub(super) fn is_for_outcome(&self) -> bool {
        self.on == On::Outcome
    }

    pub(super) fn is_for_repeats(&self) -> bool {
        self.on == On::Repeats
    }

    /// Whether a pause holds the next command back.
    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(super) fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Whether it is unknown which changes of subscriptions began before the next command.
    pub(super) fn asks_others(&self) -> bool {
        self.behind == Behind::Unknown
    }

    /// Makes the next command wait for the changes of subscriptions that began before it.
    ///
    /// # Errors
    /// [`Later`]: the command waits.
    pub(super) fn come_behind(&mut self, changes: &Subscribing) -> Result<(), Later> {
        let count = match self.behind {
            Behind::Nothing => return Ok(()),
            Behind::Unknown => {
                self.behind = Behind::Others;
                return Err(Later::OthersFirst);
            }
            Behind::Others => changes.begun(),
            Behind::Changes(count) => count,
        };
        if !changes.are_over(count) {
            self.behind = Behind::Changes(count);
            return Err(Later::Subscriptions);
        }
        self.behind = Behind::Nothing;
        Ok(())
    }

    /// Ends a turn. The knowledge about changes of other clients is valid for one turn only.
    pub(super) fn end_turn(&mut self) {
        if self.behind == Behind::Nothing {
            self.behind = Behind::Unknown;
        }
    }
}
