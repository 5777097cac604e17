//! The times when the deadlines of a connection's commands begin to run ([`super::back::passing`]).

use crate::upstream::Time;

#[derive(Default)]
pub(super) struct Times {
    /// The time when a command was last answered; 0 after a command had no answer in time.
    answered: Time,
    /// The time when the deadline of the present command began to run.
    begun: Time,
    /// Whether a passed command is over, and the commands after it continue. The deadlines of these later commands
    /// begin to run when `resume` is called.
    made_way: bool,
    /// Whether no command is taken because the client left too many replies unread.
    paused: bool,
}

impl Times {
    /// Takes commands again. Until `now` the deadlines of these commands do not run if the commands waited for a
    /// command that blocked, or for a client that was congested. `congested`: whether the client is still congested.
    pub(super) fn resume(&mut self, congested: bool, now: Time) {
        if std::mem::take(&mut self.made_way) || (self.paused && !congested) {
            self.answered = now;
        }
    }

    /// Notes that no further commands are taken for now. `congested`: whether the reason is that the client reads too
    /// little.
    pub(super) fn pause(&mut self, congested: bool) {
        self.paused = congested;
    }

    /// Begins the deadline of a command that arrived at `arrived` and is taken now.
    pub(super) fn begin(&mut self, arrived: Time) {
        self.begun = self.since(arrived);
    }

    /// Returns the time when the deadline of the present command began to run.
    pub(super) fn begun(&self) -> Time {
        self.begun
    }

    /// Returns the time when the deadline of a command that arrived at `arrived` begins to run. The deadline does not
    /// begin before the last answer, because the command waited for that answer.
    pub(super) fn since(&self, arrived: Time) -> Time {
        arrived.max(self.answered)
    }

    /// Sets the time when the deadline of the present command began to run. Returns the previous value.
    pub(super) fn replace_begun(&mut self, begun: Time) -> Time {
        std::mem::replace(&mut self.begun, begun)
    }

    /// Returns the time when a command was last answered in time.
    pub(super) fn answered(&self) -> Time {
        self.answered
    }

    /// Notes that a command was answered at `now`.
    pub(super) fn answer(&mut self, now: Time) {
        self.answered = now;
    }

    /// Notes that a command had no answer in time. Later commands that have waited just as long must not wait for a
    /// further whole deadline.
    pub(super) fn fail(&mut self) {
        self.answered = 0;
    }

    /// Notes that a passed command is over. Later commands have waited for this command, not for the store.
    pub(super) fn make_way(&mut self) {
        self.made_way = true;
    }

    /// Notes that a passed command has failed. If the command `blocked`, later commands have waited for this command,
    /// not for the store.
    pub(super) fn give_up(&mut self, blocked: bool) {
        self.made_way = blocked;
        self.fail();
    }
}
