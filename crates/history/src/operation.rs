//! The checker's input: operations with their arguments and replies.

use crate::record::{Op, Outcome, Record};

/// The effect of an operation on its key, and its reply. If there was no reply ([`Operation::returned`] is
/// `None`), the reply in this value is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes this value to a register.
    Set(String),
    /// Reads the key. The value is what the read found; `None`: the key did not exist.
    Get(Option<String>),
    /// Adds one to a counter. The value is the counter's new value; 0 if it is unknown.
    Incr(i64),
    /// Takes a lock under a token.
    Lock {
        /// The token, which names this attempt.
        token: String,
        /// Whether the lock was free, and is now held under this token.
        taken: bool,
    },
    /// Frees a lock if it is held under this token.
    Release {
        /// The token of the attempt that may have taken the lock.
        token: String,
        /// Whether the lock was held under this token, and is now free.
        released: bool,
    },
}

/// One operation on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Number of the client, which only texts show.
    pub client: u64,
    /// The key.
    pub key: String,
    /// The effect and the reply.
    pub action: Action,
    /// Time of the call, in ticks of the history's clock (ns).
    pub invoked: u64,
    /// Time of the return. `None`: the operation never returned, or its reply did not say whether it took effect. Such
    /// an operation may take effect at any time after its call, or never.
    pub returned: Option<u64>,
}

impl Operation {
    /// Whether the operation is known to have changed nothing.
    pub(crate) fn is_read_only(&self) -> bool {
        self.returned.is_some()
            && matches!(
                self.action,
                Action::Get(_)
                    | Action::Lock { taken: false, .. }
                    | Action::Release {
                        released: false,
                        ..
                    }
            )
    }
}

/// Why records cannot be turned into operations of the models.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    /// None of the models has this operation.
    #[error(
        "{op:?} of {key:?}: only set, get, incr, setnx and release can be checked for linearizability"
    )]
    NoModel {
        /// The operation.
        op: Op,
        /// The operation's key.
        key: String,
    },
    /// This operation cannot have this reply.
    #[error("{op:?} of {key:?} was answered with {reply:?}, which it cannot be")]
    Reply {
        /// The operation.
        op: Op,
        /// The operation's key.
        key: String,
        /// The reply.
        reply: Option<String>,
    },
    /// The operation returned before it was called.
    #[error("{op:?} of {key:?} returned before it was called")]
    Time {
        /// The operation.
        op: Op,
        /// The operation's key.
        key: String,
    },
}

/// Turns records into operations. Refused operations are left out, because they have no effect. Operations of
/// unknown outcome never return.
///
/// # Errors
/// [`OperationError`] if a record is not an operation of a model.
pub fn operations(records: &[Record]) -> Result<Vec<Operation>, OperationError> {
    records
        .iter()
        .filter(|record| record.outcome != Outcome::Failed)
        .map(operation)
        .collect()
}

fn operation(record: &Record) -> Result<Operation, OperationError> {
    let (op, key) = (record.op, record.key.clone());
    let known = record.outcome == Outcome::Ok;
    let reply = record.reply.as_deref();
    let token = record.value.clone();
    let action = match (op, reply) {
        (Op::Set, Some("OK")) => Action::Set(token),
        (Op::Set, _) if !known => Action::Set(token),
        (Op::Get, reply) => Action::Get(reply.map(str::to_owned)),
        (Op::Incr, _) if !known => Action::Incr(0),
        (Op::Incr, Some(text)) if text.parse::<i64>().is_ok() => {
            Action::Incr(text.parse().unwrap_or(0))
        }
        (Op::Setnx, Some("OK")) => Action::Lock { token, taken: true },
        (Op::Setnx, reply) if !known || reply.is_none() => Action::Lock {
            token,
            taken: false,
        },
        (Op::Release, Some("1")) => Action::Release {
            token,
            released: true,
        },
        (Op::Release, reply) if !known || reply == Some("0") => Action::Release {
            token,
            released: false,
        },
        (Op::Lpush | Op::Rpush | Op::Mset | Op::Ping, _) => {
            return Err(OperationError::NoModel { op, key });
        }
        _ => {
            let reply = record.reply.clone();
            return Err(OperationError::Reply { op, key, reply });
        }
    };
    if record.return_ns < record.invoke_ns {
        return Err(OperationError::Time { op, key });
    }
    Ok(Operation {
        client: record.client,
        key,
        action,
        invoked: record.invoke_ns,
        returned: known.then_some(record.return_ns),
    })
}
