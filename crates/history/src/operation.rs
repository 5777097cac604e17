//! What the checker works on: operations with what they asked and what they were told.

use crate::record::{Op, Outcome, Record};

/// What an operation did to its key, and what it was told. Where it was told nothing
/// ([`Operation::returned`] is `None`) the reply is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes a register.
    Set(String),
    /// Reads; `None`: the key is not there.
    Get(Option<String>),
    /// Adds one to a counter; the new value (0 where it is not known).
    Incr(i64),
    /// Takes a lock under a token.
    Lock {
        /// Name of the attempt.
        token: String,
        /// It was free, and is now held under this token.
        taken: bool,
    },
    /// Frees a lock if it is held under this token.
    Release {
        /// Name of the attempt that may have taken it.
        token: String,
        /// It was, and is now free.
        released: bool,
    },
}

/// One operation on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Who did it; for people only.
    pub client: u64,
    /// To which key.
    pub key: String,
    /// What, and what it was told.
    pub action: Action,
    /// When it was called, in ticks of the history's clock (ns).
    pub invoked: u64,
    /// When it returned; `None`: it never did, or not with an answer that says whether it took
    /// effect. It may then take effect at any time after its call, or never.
    pub returned: Option<u64>,
}

impl Operation {
    /// It is known to have changed nothing.
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

/// Why records are not operations of the models.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    /// There is no model for this operation.
    #[error(
        "{op:?} of {key:?}: only set, get, incr, setnx and release can be checked for linearizability"
    )]
    NoModel {
        /// The operation.
        op: Op,
        /// Its key.
        key: String,
    },
    /// An answer that the operation cannot have.
    #[error("{op:?} of {key:?} was answered with {reply:?}, which it cannot be")]
    Reply {
        /// The operation.
        op: Op,
        /// Its key.
        key: String,
        /// What came back.
        reply: Option<String>,
    },
    /// It returned before it was called.
    #[error("{op:?} of {key:?} returned before it was called")]
    Time {
        /// The operation.
        op: Op,
        /// Its key.
        key: String,
    },
}

/// Turns records into operations: refused ones are left out (they have no effect), those of
/// unknown outcome never return.
///
/// # Errors
/// [`OperationError`].
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
