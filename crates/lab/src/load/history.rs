//! Histories: each operation with its outcome, as JSON lines in the format of
//! [`pmnet_history::Record`].

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
pub use pmnet_history::Outcome;
use serde::{Deserialize, Serialize};

/// Number of bytes that are buffered before they are written to the history file.
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
    /// All operations of this type.
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

    /// The operation's name in mixes, histories and summaries.
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

    /// Returns whether the operation may change data.
    #[must_use]
    pub fn writes(self) -> bool {
        !matches!(self, Op::Get | Op::Ping)
    }

    /// Returns the operation with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Op> {
        Op::ALL.into_iter().find(|op| op.name() == name)
    }
}

/// One operation of a history. [`pmnet_history::Record`] describes the fields and the file format.
pub type Record = pmnet_history::Record<Op>;

/// A history file that is being written.
#[derive(Debug)]
pub struct HistoryFile {
    path: PathBuf,
    file: std::io::BufWriter<std::fs::File>,
}

impl HistoryFile {
    /// Creates the file. If the file exists, empties it.
    ///
    /// # Errors
    /// Fails if the file system fails; the error has the path.
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
    /// Fails if the file system fails; the error has the path.
    pub fn write<O: Serialize>(&mut self, record: &pmnet_history::Record<O>) -> anyhow::Result<()> {
        serde_json::to_writer(&mut self.file, record)
            .map_err(std::io::Error::from)
            .and_then(|()| self.file.write_all(b"\n"))
            .with_context(|| format!("cannot write the history {}", self.path.display()))
    }

    /// Writes the bytes that are still buffered.
    ///
    /// # Errors
    /// Fails if the file system fails; the error has the path.
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
    fn a_line_is_read_back_also_by_the_checkers() {
        for op in Op::ALL {
            let record = Record {
                client: 3,
                op,
                key: "k".into(),
                value: "3".into(),
                reply: None,
                invoke_ns: 1,
                return_ns: 2,
                outcome: Outcome::Unknown,
            };
            let line = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
            let read = pmnet_history::read_records(line.as_bytes()).unwrap();
            assert_eq!(serde_json::to_string(&read[0]).unwrap(), line);
        }
    }
}
