//! The objects that a client may use in its turn, and the reasons why a command waits for another turn.

use super::Shared;
use super::face::{Face, Pending};
use super::output::Wishes;
use super::settings::Selected;
use crate::upstream::{Calls, Time};

/// The network, and the state that all connections of the front share, while a client takes its turn.
pub(super) struct Env<'a> {
    pub(super) up: &'a mut dyn Calls,
    pub(super) shared: &'a mut Shared,
}

/// The network, the front's state and the client's commands, as far as [`Back`](super::back::Back) may use them.
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
    /// Returns the context that gives the back access to this client and to the front.
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

/// Why a command stays in the input for now.
#[derive(Debug)]
pub(super) enum Later {
    /// The endpoint refused a call.
    Busy,
    /// A pack or batch has no outcome yet. Parts of the pack or batch may have to be sent again before any later
    /// command.
    Outstanding,
    /// The rights of the command's client are not known.
    Rights,
    /// The command must follow changes of subscriptions of other clients that are under way.
    /// [`Connection::advance`](super::Connection::advance) asks the front to wake the client.
    Subscriptions,
    /// The command must follow such changes, and there may be changes that the front has not seen yet.
    OthersFirst,
    /// Clients are paused (CLIENT PAUSE).
    Paused,
    /// Redis does not report changed keys now (CLIENT TRACKING).
    Tracking,
}
