//! The router's knowledge about a client's rights. The router has no users of its own: it asks the front of the first
//! shard.

use bytes::Bytes;

use crate::client::input::Sender;

/// Whether the router may answer a client without asking a front, and whether the client may send large
/// commands.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Every client may do everything.
    Anyone,
    /// The client has logged in, or need not log in.
    Known,
    /// A front must be asked.
    Unknown,
    /// A front has been asked, and has not answered.
    Asked,
    /// The client is not allowed to run commands. Its command gets this error.
    Refused(Bytes),
}

impl Trust {
    /// Notes that the client has logged in, or need not log in.
    pub(super) fn learn(&mut self) {
        if *self != Trust::Anyone {
            *self = Trust::Known;
        }
    }

    /// Sets the state back to that of a new connection.
    pub(super) fn reset(&mut self) {
        if *self != Trust::Anyone {
            *self = Trust::Unknown;
        }
    }

    /// If the client is not allowed to run commands, takes the error for its command.
    pub(super) fn take_refusal(&mut self) -> Option<Bytes> {
        let Trust::Refused(error) = self else {
            return None;
        };
        let error = std::mem::take(error);
        *self = Trust::Unknown;
        Some(error)
    }

    /// Returns the kind of client whose input limits apply.
    pub(super) fn sender(&self) -> Sender {
        match self {
            Trust::Anyone | Trust::Known => Sender::Known,
            _ => Sender::Stranger,
        }
    }
}
