//! How a connection comes to its end, from either side.

use bytes::Bytes;

use crate::upstream::Time;

/// How far its end has come.
#[derive(Default)]
pub(super) struct End {
    front: Takes,
    client: Sends,
}

/// Whether the front takes further commands.
#[derive(Default)]
enum Takes {
    #[default]
    All,
    /// Updates that were acknowledged are lost: this is the answer to the next command, and the end.
    Lost(Bytes),
    /// No further command is taken; close once everything is answered and written.
    Ends,
    /// The same, although the client may still be sending.
    CutOff,
}

/// Whether the client sends further commands.
#[derive(Default)]
enum Sends {
    #[default]
    On,
    /// It has closed its sending side. `read`: all that it sent before was received. `since`: when that was first seen
    /// while it waited.
    Closed { read: bool, since: Option<Time> },
}

/// Whether all was received that a client had sent when it closed its sending side, and perhaps is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Read,
    MayFollow,
}

impl End {
    /// No further command is taken.
    pub(super) fn ends(&self) -> bool {
        matches!(self.front, Takes::Ends | Takes::CutOff)
    }

    pub(super) fn end(&mut self) {
        if !self.ends() {
            self.front = Takes::Ends;
        }
    }

    /// Ends the connection, after an error that says why.
    pub(super) fn cut_off(&mut self) {
        self.front = Takes::CutOff;
    }

    /// Whether the connection ends with an error, and the client may not have sent everything yet.
    pub(super) fn is_cut_off(&self) -> bool {
        matches!(self.front, Takes::CutOff) && !self.eof()
    }

    /// The next command has this answer, and is the last.
    pub(super) fn lose(&mut self, error: Bytes) {
        if !self.ends() {
            self.front = Takes::Lost(error);
        }
    }

    /// The answer to the command that is next, if it is the last because of a loss.
    pub(super) fn take_loss(&mut self) -> Option<Bytes> {
        let Takes::Lost(error) = &mut self.front else {
            return None;
        };
        let error = std::mem::take(error);
        self.cut_off();
        Some(error)
    }

    /// The client will send no more.
    pub(super) fn eof(&self) -> bool {
        matches!(self.client, Sends::Closed { read: true, .. })
    }

    /// The same, but something that it sent before may still have to be read.
    pub(super) fn closed(&self) -> bool {
        matches!(self.client, Sends::Closed { .. })
    }

    /// Since when the client, which waits, has been seen closed; `None` if it is not.
    pub(super) fn closed_since(&mut self, now: Time) -> Option<Time> {
        match &mut self.client {
            Sends::On => None,
            Sends::Closed { since, .. } => Some(*since.get_or_insert(now)),
        }
    }

    /// The client will send no more.
    pub(super) fn close(&mut self, sent: Sent) {
        let all_read = sent == Sent::Read;
        match &mut self.client {
            Sends::Closed { read, .. } => *read |= all_read,
            on @ Sends::On => {
                *on = Sends::Closed {
                    read: all_read,
                    since: None,
                };
            }
        }
    }
}
