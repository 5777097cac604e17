//! How a connection ends, from either side.

use bytes::Bytes;

use crate::upstream::Time;

/// The state of a connection's end.
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
    /// Acknowledged updates are lost: the next command gets this error, and the connection ends.
    Lost(Bytes),
    /// No further command is taken. The connection is closed once everything is answered and written.
    Ends,
    /// No further command is taken, and the connection is closed as after `Ends`, although the client may still be
    /// sending.
    CutOff,
}

/// Whether the client sends further commands.
#[derive(Default)]
enum Sends {
    #[default]
    On,
    /// The client has closed its sending side. `read`: the front has received everything that the client had sent.
    /// `since`: the time when the front first saw, while the client waited, that the client had closed its sending
    /// side.
    Closed { read: bool, since: Option<Time> },
}

/// Whether all bytes of a client that has closed its sending side were received. The client may have disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Read,
    MayFollow,
}

impl End {
    /// Whether no further command is taken.
    pub(super) fn ends(&self) -> bool {
        matches!(self.front, Takes::Ends | Takes::CutOff)
    }

    pub(super) fn end(&mut self) {
        if !self.ends() {
            self.front = Takes::Ends;
        }
    }

    /// Ends the connection, after an error that states the reason.
    pub(super) fn cut_off(&mut self) {
        self.front = Takes::CutOff;
    }

    /// Whether the connection ends with an error, and the client may not have sent everything yet.
    pub(super) fn is_cut_off(&self) -> bool {
        matches!(self.front, Takes::CutOff) && !self.eof()
    }

    /// Makes this error the reply to the next command. The connection ends after that command.
    pub(super) fn lose(&mut self, error: Bytes) {
        if !self.ends() {
            self.front = Takes::Lost(error);
        }
    }

    /// If the connection ends because acknowledged updates were lost, returns the error for the next command.
    pub(super) fn take_loss(&mut self) -> Option<Bytes> {
        let Takes::Lost(error) = &mut self.front else {
            return None;
        };
        let error = std::mem::take(error);
        self.cut_off();
        Some(error)
    }

    /// Whether the client has closed its sending side and all its bytes were received.
    pub(super) fn eof(&self) -> bool {
        matches!(self.client, Sends::Closed { read: true, .. })
    }

    /// Whether the client has closed its sending side. Some of the client's bytes may not have been received yet.
    pub(super) fn closed(&self) -> bool {
        matches!(self.client, Sends::Closed { .. })
    }

    /// Must be called for a client that waits. Returns the time when the front first saw that the client had closed its
    /// sending side, or `None` if the client has not closed it.
    pub(super) fn closed_since(&mut self, now: Time) -> Option<Time> {
        match &mut self.client {
            Sends::On => None,
            Sends::Closed { since, .. } => Some(*since.get_or_insert(now)),
        }
    }

    /// Notes that the client has closed its sending side.
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
