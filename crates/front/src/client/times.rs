//! When the time of a connection's commands begins ([`super::deadline`]).

use crate::upstream::Time;

#[derive(Default)]
pub(super) struct Times {
    /// When a command was last answered; 0 since one had no answer in time.
    pub(super) answered: Time,
    /// When the time of the command began that is being taken.
    pub(super) begun: Time,
    /// A passed command has made way for what is behind it, at a time still to be looked up.
    pub(super) made_way: bool,
    /// The client took too few replies for more to be taken from it.
    pub(super) paused: bool,
}

impl Times {
    /// Commands are taken again. What they have waited until `now` does not count if they waited for a command that
    /// blocked, or for the client, which is `congested` no more.
    pub(super) fn resume(&mut self, congested: bool, now: Time) {
        if std::mem::take(&mut self.made_way) || (self.paused && !congested) {
            self.answered = now;
        }
    }

    /// A command is taken that has `arrived` then.
    pub(super) fn begin(&mut self, arrived: Time) {
        self.begun = arrived.max(self.answered);
    }
}
