//! The kinds of errors, and the kind of each error.

use pmnet_client::{Closed, Refused, SessionError};
use pmnet_server::program::{ProgramError, RowsError};

/// The kind of an error. The number of a kind is that of the constant in libpmnet (`PMNET_E_…` of
/// `pmnet.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Kind {
    /// An argument is invalid.
    Argument = -1,
    /// The handle is invalid: its object was closed, or was never opened.
    Handle = -2,
    /// Another thread is using the object at this moment.
    Thread = -3,
    /// The object was opened in another process, before a fork.
    Fork = -4,
    /// The operating system refused a socket, memory or a thread.
    System = -5,
    /// Too many calls are under way.
    Full = -6,
    /// A payload or a reply is longer than 16 MiB, or all rows together are too long for one blob.
    Length = -7,
    /// The session is closed.
    Closed = -8,
    /// Acknowledged updates are lost.
    DataLoss = -9,
    /// Fewer devices hold the updates than the program requires.
    Copies = -10,
    /// The call has no effect, and will never have one.
    Failed = -11,
    /// The call takes effect at most once, or not at all.
    Unknown = -12,
    /// The server refused the request.
    Refused = -13,
    /// A read was requested while other calls of the session were in flight.
    Pending = -14,
    /// No device answered a read in time.
    NoAnswer = -15,
    /// The stored rows are damaged, or come from different moments.
    Rows = -16,
    /// The stored rows belong to another shard.
    Shard = -17,
    /// The batch was confirmed before, or is not the present batch.
    Order = -18,
    /// A reply is missing, was given twice, or was given for an update.
    Reply = -19,
    /// The server has ended.
    Stopped = -20,
    /// The library has a bug.
    Bug = -21,
}

/// The reason why a call failed: its kind, and a text.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The kind of the error.
    pub kind: Kind,
    /// The text for the user.
    pub text: String,
}

impl Fault {
    /// Makes a fault of this kind with this text.
    pub fn new(kind: Kind, text: impl ToString) -> Fault {
        Fault {
            kind,
            text: text.to_string(),
        }
    }

    /// Makes a fault of the kind [`Kind::Argument`].
    pub fn argument(text: impl ToString) -> Fault {
        Fault::new(Kind::Argument, text)
    }
}

impl From<SessionError> for Fault {
    fn from(error: SessionError) -> Fault {
        let kind = match &error {
            SessionError::Io(_) => Kind::System,
            SessionError::Refused(Refused::Busy | Refused::Sessions) => Kind::Full,
            SessionError::Refused(Refused::TooLarge) => Kind::Length,
            SessionError::Closed(Closed::DataLoss { .. }) => Kind::DataLoss,
            SessionError::Closed(Closed::TooFewCopies { .. }) => Kind::Copies,
            SessionError::Closed(Closed::OtherPayloads(_)) => Kind::Refused,
            SessionError::Closed(_) | SessionError::Refused(Refused::Closed) => Kind::Closed,
            SessionError::Failed(_) => Kind::Failed,
            SessionError::Unknown | SessionError::Interrupted => Kind::Unknown,
            SessionError::NotClean => Kind::Pending,
            SessionError::NoAnswer => Kind::NoAnswer,
        };
        Fault::new(kind, error)
    }
}

impl From<ProgramError> for Fault {
    fn from(error: ProgramError) -> Fault {
        let kind = match &error {
            ProgramError::Rows(RowsError::OtherShard { .. }) => Kind::Shard,
            ProgramError::Rows(_) => Kind::Rows,
            ProgramError::Io(_) => Kind::System,
            ProgramError::Stopped(_) => Kind::Stopped,
            ProgramError::Unconfirmed(_)
            | ProgramError::NoBatch
            | ProgramError::Twice(_)
            | ProgramError::Order { .. }
            | ProgramError::RowsTaken
            | ProgramError::RowsNotTaken(_) => Kind::Order,
            ProgramError::NoItem(_) => Kind::Argument,
            ProgramError::NoReplyWanted(_)
            | ProgramError::RepliedTwice(_)
            | ProgramError::NoReply(_) => Kind::Reply,
            ProgramError::ReplyTooLong(_) | ProgramError::BlobTooLong => Kind::Length,
        };
        Fault::new(kind, error)
    }
}
