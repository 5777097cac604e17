//! The reasons why a client's next command is not taken yet.

use super::context::Later;
use super::shared::Subscribing;

/// The event that the next command waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum On {
    #[default]
    Nothing,
    /// It depends on the outcome of the last call.
    Outcome,
    /// Some slots are reads that are to be submitted again.
    Repeats,
}

/// A command whose result depends on subscribers. Turns are not in order of arrival, so all other clients have one turn first. Then it
/// waits for the changes of subscriptions that were begun ([`Subscribing`], numbered by `shell/subscribing.rs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Behind {
    /// It has not been asked.
    #[default]
    Unknown,
    /// Others have their turn first.
    Others,
    /// It waits for the changes of subscriptions up to this number.
    Changes(u64),
    /// Nothing, in this turn.
    Nothing,
}

/// All reasons why the next command is not taken yet.
#[derive(Debug, Default)]
pub(super) struct Hold {
    on: On,
    behind: Behind,
    /// There is a pause.
    paused: bool,
}

impl Hold {
    /// Lets the next command wait for the outcome of the last call, or for an answer of the front.
    pub(super) fn for_outcome(&mut self) {
        self.on = On::Outcome;
    }

    /// Lets the next command wait until the reads that are to be submitted again are.
    pub(super) fn for_repeats(&mut self) {
        self.on = On::Repeats;
    }

    /// Lets the next command go on.
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

    /// Whether nothing is known of the changes of subscriptions that were begun before the next command.
    pub(super) fn asks_others(&self) -> bool {
        self.behind == Behind::Unknown
    }

    /// Lets the next command wait for the changes of subscriptions that were begun before it.
    ///
    /// # Errors
    /// [`Later`]: it waits.
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

    /// Ends a turn: the changes of other clients are known for one turn only.
    pub(super) fn end_turn(&mut self) {
        if self.behind == Behind::Nothing {
            self.behind = Behind::Unknown;
        }
    }
}
