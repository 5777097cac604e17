//! The format in which histories are stored: JSON lines.
//!
//! A file has one JSON object on each line. An object is written when its operation ends, so the objects are ordered by
//! return time:
//!
//! | field | meaning |
//! |---|---|
//! | `client` | number of the logical client; a client issues its operations in order. After an unknown outcome it continues under a new number |
//! | `op` | `set`, `get`, `incr`, `setnx`, `release` (delete if the value is still this one), `lpush`, `rpush`, `mset`, `ping` |
//! | `key` | the key (the first one of an `mset`) |
//! | `value` | the written value, or the token of a lock (empty for `get`, `incr`, `ping`; left out if it is filler) |
//! | `reply` | the reply: the text of a status, bulk or integer, `null` for nil, the text of an error |
//! | `invoke_ns` | when the operation was sent, or was due in open loop; ns of one monotonic clock |
//! | `return_ns` | when the outcome was known; for `unknown` when the client gave up |
//! | `outcome` | `ok`; `failed`: the server said that the operation did not happen; `unknown`: it may or may not happen, at most once, at any time from the call on |

use std::io::BufRead;

use serde::{Deserialize, Serialize};

/// Longest line of a history, in bytes.
pub const LINE_BYTES_MAX: u64 = 1 << 20;

/// An operation of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// The command `SET key value`.
    Set,
    /// The command `GET key`.
    Get,
    /// The command `INCR key`.
    Incr,
    /// The command `SET key value NX`, which takes a lock with this token.
    Setnx,
    /// Deletes the key if its value is still this token: releases a lock. The reply is 1 or 0.
    Release,
    /// The command `LPUSH key value`.
    Lpush,
    /// The command `RPUSH key value`.
    Rpush,
    /// The command `MSET`.
    Mset,
    /// The command `PING`.
    Ping,
}

/// How an operation has ended (`docs/spec/protocol.md` §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The operation was acknowledged.
    Ok,
    /// The operation was refused: it has not happened and will never happen.
    Failed,
    /// It is unknown whether the operation has happened. If it has happened, it has happened once.
    Unknown,
}

/// One operation of a history. `O` is the type of operations that the writer of the history uses. The names of its
/// operations must be names of [`Op`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record<O = Op> {
    /// Number of the logical client.
    pub client: u64,
    /// The operation.
    pub op: O,
    /// The key.
    pub key: String,
    /// The value that was written, or the token.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// The reply as text.
    #[serde(default)]
    pub reply: Option<String>,
    /// Time at which the operation was sent (ns, `CLOCK_MONOTONIC`). In open loop: the time at which the operation was
    /// due.
    pub invoke_ns: u64,
    /// Time at which the outcome became known (ns, `CLOCK_MONOTONIC`).
    pub return_ns: u64,
    /// The outcome.
    pub outcome: Outcome,
}

/// Why a history cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The source could not be read.
    #[error("cannot read the history: {0}")]
    Io(#[from] std::io::Error),
    /// The line with this number is not a record in the documented format.
    #[error("line {0} of the history is not a record: {1}")]
    Line(u64, String),
}

/// Reads the records of a history, one from each line.
///
/// # Errors
/// [`ReadError`], with the number of the line. A line longer than [`LINE_BYTES_MAX`] is an error, too.
pub fn read_records(mut source: impl BufRead) -> Result<Vec<Record>, ReadError> {
    let mut records = Vec::new();
    let mut line = String::new();
    for number in 1.. {
        line.clear();
        let mut limited = std::io::Read::take(&mut source, LINE_BYTES_MAX);
        if limited.read_line(&mut line)? == 0 {
            break;
        }
        let record = serde_json::from_str(&line)
            .map_err(|error| ReadError::Line(number, error.to_string()))?;
        records.push(record);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_as_documented() {
        let record = Record {
            client: 3,
            op: Op::Setnx,
            key: "lock:1".into(),
            value: "3".into(),
            reply: None,
            invoke_ns: 1,
            return_ns: 2,
            outcome: Outcome::Unknown,
        };
        let line = serde_json::to_string(&record).unwrap();
        assert_eq!(
            line,
            r#"{"client":3,"op":"setnx","key":"lock:1","value":"3","reply":null,"invoke_ns":1,"return_ns":2,"outcome":"unknown"}"#
        );
        let two = format!("{line}\n{line}");
        assert_eq!(
            read_records(two.as_bytes()).unwrap(),
            [record.clone(), record]
        );
    }

    #[test]
    fn a_bad_line_is_named() {
        let error = read_records(&b"{\"client\":1}\n"[..]).unwrap_err();
        assert!(error.to_string().starts_with("line 1 "), "{error}");
    }
}
