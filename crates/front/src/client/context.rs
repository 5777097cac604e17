//! The access that a client has in its turn, and the reasons why a command waits for another turn.

use super::Shared;
use super::face::{Face, Pending};
use super::output::Wishes;
use super::settings::Selected;
use crate::upstream::{Calls, Time};

/// The network, and what all connections of the front have in common, while a client takes its turn.
pub(super) struct Env<'a> {
    pub(super) up: &'a mut dyn Calls,
    pub(super) shared: &'a mut Shared,
}

/// The access that the back has to the network, to the front, and to its client's commands.
pub(super) struct Context<'a> {
    pub(super) up: &'a mut dyn Calls,
    pub(super) shared: &'a mut Shared,
    pub(super) pending: &'a mut Pending,
    pub(super) wishes: &'a mut Wishes,
    pub(super) selected: Selected,
}

impl Context<'_> {
    /// Returns the deadline of the command that is being taken.
    pub(super) fn deadline(&self) -> Time {
        self.shared.deadline(self.pending.times.begun())
    }
}

impl Face {
    /// Returns the access that the back has to this client and to the front.
    pub(super) fn context<'a>(&'a mut self, env: &'a mut Env<'_>) -> Context<'a> {
        Context {
            up: env.up,
            shared: env.shared,
            pending: &mut self.pending,
            wishes: &mut self.wishes,
            selected: self.settings.selected,
        }
    }
}

/// Why a command stays where it is for now.
#[derive(Debug)]
pub(super) enum Later {
    /// The endpoint refused a call.
    Busy,
    /// A pack or batch has no outcome yet: parts of it may have to be sent again before anything later.
    Outstanding,
    /// It is not known what its client may do.
    Rights,
    /// It is to come after changes of subscriptions of other clients that are under way. `advance` asks to be woken.
    Subscriptions,
    /// The same, and there may be changes that the front has not looked at yet.
    OthersFirst,
    /// There is a pause (CLIENT PAUSE).
    Paused,
    /// Redis does not tell of changed keys now (CLIENT TRACKING).
    Tracking,
}
