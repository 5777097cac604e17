//! How a client's connection ends, from either side.

/// The moment at which a client's connection is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum When {
    /// The connection is not closed: the client may send commands.
    #[default]
    Later,
    /// The connection is closed when all commands that were taken are answered. No further command is taken.
    Answered,
    /// The connection is closed as soon as the replies that have come are written.
    Written,
}

/// The way in which a client's connection is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum How {
    #[default]
    AtOnce,
    /// The client's further input is discarded first, so that the client can read the error.
    Lingering,
}

/// The state of a client's end. The end of a client only advances to later states.
#[derive(Default)]
pub(super) struct End {
    when: When,
    how: How,
    /// Whether the client has closed its sending side, and all its input was read.
    pub(super) eof: bool,
}

impl End {
    pub(super) fn comes(&mut self, when: When, how: How) {
        self.when = self.when.max(when);
        self.how = self.how.max(how);
    }

    /// Whether no further command is taken.
    pub(super) fn has_come(&self) -> bool {
        self.when > When::Later
    }

    /// Whether the connection of a client that has read everything is closed now. `answered`: whether all commands that
    /// were taken are answered.
    pub(super) fn is_due(&self, answered: bool) -> bool {
        match self.when {
            When::Later => false,
            When::Answered => answered,
            When::Written => true,
        }
    }

    /// Whether further input must be discarded first, so that the client can read the reason.
    pub(super) fn lingers(&self) -> bool {
        self.how == How::Lingering && !self.eof
    }
}
