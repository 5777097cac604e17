//! The ledger: it derives from a history the contents that each key must have.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;

use super::series::{CounterSeries, ListSeries, LockSeries, SetSeries};
use crate::load::{Op, Outcome, Record};

/// Longest line of a history file, in bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// The reason why a history cannot be checked.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file cannot be read.
    #[error("cannot read the history: {0}")]
    Io(#[from] std::io::Error),
    /// A line does not have the documented form of a record.
    #[error("line {0} of the history is not a record: {1}")]
    Line(u64, String),
    /// The operation does not belong to the checked workload.
    #[error("{op} of {key:?} with value {value:?} is not part of the checked workload")]
    NotChecked {
        /// The name of the operation.
        op: &'static str,
        /// The key of the operation.
        key: String,
        /// The value of the operation.
        value: String,
    },
}

/// The contents that the database must have after a history.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub(super) sets: BTreeMap<String, SetSeries>,
    pub(super) lists: BTreeMap<String, ListSeries>,
    pub(super) counters: BTreeMap<String, CounterSeries>,
    pub(super) locks: BTreeMap<String, LockSeries>,
    /// Number of acknowledged operations so far.
    pub acknowledged: u64,
    /// Number of refused operations so far.
    pub failed: u64,
    /// Number of operations of unknown outcome so far.
    pub unknown: u64,
}

impl Ledger {
    /// Returns an empty ledger.
    #[must_use]
    pub fn new() -> Ledger {
        Ledger::default()
    }

    /// Returns the part of the ledger about these keys, without the counts. The part is for set-ups
    /// with several databases, each of which has some of the keys.
    #[must_use]
    pub fn part(&self, is_in: impl Fn(&str) -> bool) -> Ledger {
        fn part<T: Clone>(
            map: &BTreeMap<String, T>,
            is_in: impl Fn(&str) -> bool,
        ) -> BTreeMap<String, T> {
            let own = map.iter().filter(|(key, _)| is_in(key));
            own.map(|(key, series)| (key.clone(), series.clone()))
                .collect()
        }
        Ledger {
            sets: part(&self.sets, &is_in),
            lists: part(&self.lists, &is_in),
            counters: part(&self.counters, &is_in),
            locks: part(&self.locks, &is_in),
            ..Ledger::default()
        }
    }

    /// Returns all keys of the ledger.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        let (sets, lists) = (self.sets.keys(), self.lists.keys());
        sets.chain(lists)
            .chain(self.counters.keys())
            .chain(self.locks.keys())
    }

    /// Reads a history file.
    ///
    /// # Errors
    /// Fails if the file cannot be read or checked: [`LedgerError`].
    pub fn read(path: &Path) -> Result<Ledger, LedgerError> {
        let mut ledger = Ledger::new();
        let mut file = std::io::BufReader::new(std::fs::File::open(path)?);
        let mut line = String::new();
        for number in 1.. {
            line.clear();
            let mut limited = std::io::Read::take(&mut file, LINE_BYTES_MAX);
            if limited.read_line(&mut line)? == 0 {
                break;
            }
            let record: Record = serde_json::from_str(&line)
                .map_err(|error| LedgerError::Line(number, error.to_string()))?;
            ledger.add(&record)?;
        }
        Ok(ledger)
    }

    /// Adds an operation that has ended. The operations of one client must be added in the order in
    /// which the client issued them.
    ///
    /// # Errors
    /// Fails if the operation does not belong to the checked workload: [`LedgerError::NotChecked`].
    pub fn add(&mut self, record: &Record) -> Result<(), LedgerError> {
        let outcome = record.outcome;
        let number = || {
            record
                .value
                .parse::<u64>()
                .ok()
                .filter(|number| *number > 0)
                .ok_or_else(|| not_checked(record))
        };
        match record.op {
            Op::Set => entry(&mut self.sets, &record.key).add(number()?, outcome),
            Op::Rpush => entry(&mut self.lists, &record.key).add(number()?, outcome),
            Op::Incr => {
                let reply = record.reply.as_deref().and_then(|text| text.parse().ok());
                entry(&mut self.counters, &record.key).add(reply, outcome);
            }
            Op::Setnx => {
                let won = record.reply.as_deref() == Some("OK");
                entry(&mut self.locks, &record.key).add(number()?, won, outcome);
            }
            Op::Get | Op::Lpush | Op::Mset | Op::Ping => return Err(not_checked(record)),
        }
        match outcome {
            Outcome::Ok => self.acknowledged += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::Unknown => self.unknown += 1,
        }
        Ok(())
    }
}

fn entry<'a, T: Default>(map: &'a mut BTreeMap<String, T>, key: &str) -> &'a mut T {
    // A key that is new needs two look-ups. A known key needs no allocation.
    if !map.contains_key(key) {
        map.insert(key.to_owned(), T::default());
    }
    map.get_mut(key).expect("just inserted")
}

fn not_checked(record: &Record) -> LedgerError {
    LedgerError::NotChecked {
        op: record.op.name(),
        key: record.key.clone(),
        value: record.value.clone(),
    }
}
