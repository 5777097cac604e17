//! Histories: what each operation was and how it ended, as JSON lines.
//!
//! One object a line, written when the operation ends, so ordered by return time:
//!
//! | field | meaning |
//! |---|---|
//! | `client` | number of the logical client; a client issues its operations in order. After an unknown outcome its connection is given up and goes on under a new number |
//! | `op` | `set`, `get`, `incr`, `lpush`, `rpush`, `mset`, `setnx`, `ping` |
//! | `key` | the key (the first one of an `mset`) |
//! | `value` | what was written (empty for `get`, `incr`, `ping`; left out where it is filler) |
//! | `reply` | what came back: the text of a status, bulk or integer, `null` for nil, the text of an error |
//! | `invoke_ns` | when it was sent, or was due in open loop; `CLOCK_MONOTONIC`, ns |
//! | `return_ns` | when the outcome was known; for `unknown` when the client gave up |
//! | `outcome` | `ok`; `failed`: the server said that it did not happen; `unknown`: it may or may not have happened, at most once |

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// Bytes buffered before a write to the history file.
const BUFFER_BYTES: usize = 256 * 1024;

/// An operation of the load generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// `SET key value`
    Set,
    /// `GET key`
    Get,
    /// `INCR key`
    Incr,
    /// `LPUSH key value`
    Lpush,
    /// `RPUSH key value`
    Rpush,
    /// `MSET` of ten keys
    Mset,
    /// `SET key value NX`
    Setnx,
    /// `PING`
    Ping,
}

impl Op {
    /// Every operation.
    pub const ALL: [Op; 8] = [
        Op::Set,
        Op::Get,
        Op::Incr,
        Op::Lpush,
        Op::Rpush,
        Op::Mset,
        Op::Setnx,
        Op::Ping,
    ];

    /// Its name in mixes, histories and summaries.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Op::Set => "set",
            Op::Get => "get",
            Op::Incr => "incr",
            Op::Lpush => "lpush",
            Op::Rpush => "rpush",
            Op::Mset => "mset",
            Op::Setnx => "setnx",
            Op::Ping => "ping",
        }
    }

    /// The operation of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Op> {
        Op::ALL.into_iter().find(|op| op.name() == name)
    }
}

/// How an operation ended (`docs/spec/protocol.md` §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Acknowledged.
    Ok,
    /// Refused: it did not happen and will not.
    Failed,
    /// It may or may not have happened, at most once.
    Unknown,
}

/// One operation of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Logical client.
    pub client: u64,
    /// What was done.
    pub op: Op,
    /// To which key.
    pub key: String,
    /// With which value.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// What came back.
    #[serde(default)]
    pub reply: Option<String>,
    /// Sent, or due in open loop (ns, `CLOCK_MONOTONIC`).
    pub invoke_ns: u64,
    /// Outcome known (ns, `CLOCK_MONOTONIC`).
    pub return_ns: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// A history being written.
#[derive(Debug)]
pub struct HistoryFile {
    path: PathBuf,
    file: std::io::BufWriter<std::fs::File>,
}

impl HistoryFile {
    /// Creates (or empties) the file.
    ///
    /// # Errors
    /// Whatever the file system says, with the path.
    pub fn create(path: &Path) -> anyhow::Result<HistoryFile> {
        let file = std::fs::File::create(path)
            .with_context(|| format!("cannot write the history {}", path.display()))?;
        Ok(HistoryFile {
            path: path.to_owned(),
            file: std::io::BufWriter::with_capacity(BUFFER_BYTES, file),
        })
    }

    /// Appends one operation.
    ///
    /// # Errors
    /// Whatever the file system says, with the path.
    pub fn write(&mut self, record: &Record) -> anyhow::Result<()> {
        serde_json::to_writer(&mut self.file, record)
            .map_err(std::io::Error::from)
            .and_then(|()| self.file.write_all(b"\n"))
            .with_context(|| format!("cannot write the history {}", self.path.display()))
    }

    /// Writes out what is still buffered.
    ///
    /// # Errors
    /// Whatever the file system says, with the path.
    pub fn finish(mut self) -> anyhow::Result<()> {
        self.file
            .flush()
            .with_context(|| format!("cannot write the history {}", self.path.display()))
    }
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
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
    }
}
