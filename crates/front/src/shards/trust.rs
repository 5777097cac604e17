//! Whether a client may do anything at all, as far as the router knows: it has no users, and asks the front of the first shard.

use bytes::Bytes;

use crate::client::input::Sender;

/// Whether a client may be answered without a front's being asked, and may send large commands.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Every client may do everything.
    Anyone,
    /// It has logged in, or need not.
    Known,
    /// A front has to be asked.
    Unknown,
    /// A front is being asked.
    Asked,
    /// It may not do anything: its command gets this.
    Refused(Bytes),
}

impl Trust {
    /// It has logged in, or need not.
    pub(super) fn learn(&mut self) {
        if *self != Trust::Anyone {
            *self = Trust::Known;
        }
    }

    /// As if freshly connected.
    pub(super) fn reset(&mut self) {
        if *self != Trust::Anyone {
            *self = Trust::Unknown;
        }
    }

    /// Takes what its command gets if it may do nothing.
    pub(super) fn take_refusal(&mut self) -> Option<Bytes> {
        let Trust::Refused(error) = self else {
            return None;
        };
        let error = std::mem::take(error);
        *self = Trust::Unknown;
        Some(error)
    }

    /// The kind of client whose limits apply.
    pub(super) fn sender(&self) -> Sender {
        match self {
            Trust::Anyone | Trust::Known => Sender::Known,
            _ => Sender::Stranger,
        }
    }
}
