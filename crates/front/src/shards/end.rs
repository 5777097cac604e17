//! How a client comes to its end, from either side.

/// When a client is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum When {
    /// Not for now: it may send commands.
    #[default]
    Later,
    /// When everything that was taken is answered. No further command is taken.
    Answered,
    /// As soon as the replies that are here have left.
    Written,
}

/// How a client is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum How {
    #[default]
    AtOnce,
    /// Its further input is thrown away first, so that it can read the error.
    Lingering,
}

/// How far a client's end has come. It never goes back.
#[derive(Default)]
pub(super) struct End {
    when: When,
    how: How,
    /// The client sends no more, and everything that it has sent was read.
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

    /// Whether a client that has read everything is closed now. `answered`: everything that was taken is answered.
    pub(super) fn is_due(&self, answered: bool) -> bool {
        match self.when {
            When::Later => false,
            When::Answered => answered,
            When::Written => true,
        }
    }

    /// Whether it may still have to read why, while it sends.
    pub(super) fn lingers(&self) -> bool {
        self.how == How::Lingering && !self.eof
    }
}
