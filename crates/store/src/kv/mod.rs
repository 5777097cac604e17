//! The embedded store: the data types of Redis in one file (redb), durable at every commit.
//!
//! For running pmnet without Redis. Each `apply`, and each `execute` with a state-changing request,
//! is one write transaction over rows and records; redb syncs it before `commit` returns, and a
//! crash leaves either all of it or nothing. Commands and replies are those of `crate::types`.
//! Not here: scripts, streams, pass-through connections.

mod file;
mod rows;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use pmnet_server::{Batch, RecordKey, Request, Store, StoreError};
use redb::{Database, Durability, ReadableTable, TableDefinition};

use crate::embedded::{Counted, Rejections, TIDIED_KEYS, cursors, keyspace};
use crate::rows::Fault;
use crate::types::{Cursors, Keyspace, SWEPT_ROWS};
use crate::{OpenError, embedded};
use rows::{ReadRows, WriteRows};

/// Rows: key → kind (one byte) ++ expiry (u64 big endian, ms since 1970, 0: none) ++ value.
const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
/// The protocol's records.
const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

/// See the module's text.
pub struct KvStore {
    /// `None` after a failure of the file: redb then refuses everything until it is opened again,
    /// which `load` does.
    database: Option<Database>,
    path: PathBuf,
    shard: u32,
    rejected: Rejections,
    /// Requests that were refused.
    refused: Counted,
    /// Iterations of clients.
    cursors: Cursors,
}

impl KvStore {
    /// Opens the file, or creates it (not its directory).
    ///
    /// # Errors
    /// [`OpenError::Kv`] when it is in use, is something else, belongs to another shard, or cannot be read or made.
    pub fn open(path: &Path, shard: u32) -> Result<KvStore, OpenError> {
        let database = file::open(path, shard)?;
        Ok(KvStore {
            database: Some(database),
            path: path.to_owned(),
            shard,
            rejected: Rejections::default(),
            refused: Counted::default(),
            cursors: cursors()?,
        })
    }

    /// Runs `work` over both tables in one durable transaction; an error leaves no trace.
    fn write<T>(
        &mut self,
        work: impl FnOnce(&mut Keyspace<'_>, &mut redb::Table<'_, &[u8], &[u8]>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.with(|database, cursors| {
            let mut transaction = database.begin_write()?;
            transaction.set_durability(Durability::Immediate);
            let result = {
                let mut rows = WriteRows {
                    table: transaction.open_table(ROWS)?,
                };
                let mut keys = keyspace(&mut rows, cursors)?;
                let mut records = transaction.open_table(RECORDS)?;
                let result = work(&mut keys, &mut records)?;
                keys.sweep(SWEPT_ROWS)?;
                result
            };
            transaction.commit()?;
            Ok(result)
        })
    }

    /// Runs `work` over the rows, in a transaction that only reads.
    fn read<T>(
        &mut self,
        work: impl FnOnce(&mut Keyspace<'_>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.with(|database, cursors| {
            let transaction = database.begin_read()?;
            let mut rows = ReadRows {
                table: transaction.open_table(ROWS)?,
            };
            work(&mut keyspace(&mut rows, cursors)?)
        })
    }

    fn with<T>(
        &mut self,
        work: impl FnOnce(&Database, &mut Cursors) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let Some(database) = &self.database else {
            return Err(Fault::Storage("closed after an error: load first".into()));
        };
        work(database, &mut self.cursors)
    }

    /// The error for the server; the file is closed until the next `load`.
    fn failed(&mut self, fault: Fault) -> StoreError {
        self.database = None;
        let text = format!("kv:{}: {fault}", self.path.display());
        match fault {
            Fault::Corrupted(_) => StoreError::Fatal(text),
            Fault::Storage(_) | Fault::Full | Fault::ReplyTooLong => StoreError::Retry(text),
        }
    }

    /// Executes requests in one transaction.
    fn execute_once(&mut self, requests: &[Request]) -> Result<Vec<Bytes>, Fault> {
        self.write(|keys, records| {
            let answers = requests.iter().map(|request| {
                let reply = embedded::answer(keys, request)?;
                keep(records, request, &reply)?;
                Ok(reply)
            });
            answers.collect()
        })
    }

    /// One request in a transaction of its own. If its reply would be too long, it has no effect. Of a pack, only the first part is
    /// executed then.
    fn execute_alone(&mut self, request: &Request) -> Result<Bytes, StoreError> {
        let fault = match self.execute_once(std::slice::from_ref(request)) {
            Ok(mut replies) => return Ok(replies.remove(0)),
            Err(fault @ Fault::ReplyTooLong) => fault,
            Err(fault) => return Err(self.failed(fault)),
        };
        if let Some(first) = embedded::first_part(request) {
            return self.execute_alone(&first);
        }
        let reply = embedded::refusal(request, &embedded::told(&fault).unwrap_or_default());
        if let Some(total) = self.refused.one_more() {
            tracing::warn!(store = %self.path.display(), total, "a request was refused: {fault}");
        }
        let kept = self.write(|_, records| keep(records, request, &reply));
        kept.map_err(|fault| self.failed(fault))?;
        Ok(reply)
    }
}

/// Keeps the reply to a request in its record.
fn keep(
    records: &mut redb::Table<'_, &[u8], &[u8]>,
    request: &Request,
    reply: &[u8],
) -> Result<(), Fault> {
    if let Some((key, prefix)) = &request.record {
        records.insert(key.as_slice(), [&prefix[..], reply].concat().as_slice())?;
    }
    Ok(())
}

impl Store for KvStore {
    fn load(&mut self) -> Result<Vec<(RecordKey, Bytes)>, StoreError> {
        if self.database.is_none() {
            let opened = file::open(&self.path, self.shard);
            self.database = Some(opened.map_err(|error| StoreError::Retry(error.to_string()))?);
        }
        let loaded = self.with(|database, _| {
            let transaction = database.begin_read()?;
            let table = transaction.open_table(RECORDS)?;
            let mut found = Vec::new();
            for entry in table.iter()? {
                let (key, value) = entry?;
                found.push((key.value().to_vec(), Bytes::copy_from_slice(value.value())));
            }
            Ok(found)
        });
        loaded.map_err(|fault| self.failed(fault))
    }

    fn apply(&mut self, batch: &Batch) -> Result<u64, StoreError> {
        let applied = self.write(|keys, records| {
            let rejected = embedded::apply(keys, batch)?;
            for (key, value) in &batch.records {
                match value {
                    Some(value) => drop(records.insert(key.as_slice(), &value[..])?),
                    None => drop(records.remove(key.as_slice())?),
                }
            }
            Ok(rejected)
        });
        let rejected = applied.map_err(|fault| self.failed(fault))?;
        self.rejected.note(&rejected);
        Ok(u64::try_from(rejected.len()).unwrap_or(u64::MAX))
    }

    fn execute(
        &mut self,
        requests: &[Request],
        replies: &mut Vec<Bytes>,
    ) -> Result<(), StoreError> {
        let only_reads = requests.iter().all(|request| request.record.is_none());
        let done = if only_reads {
            self.read(|keys| {
                let answers = requests.iter();
                answers
                    .map(|request| embedded::answer(keys, request))
                    .collect()
            })
        } else {
            self.execute_once(requests)
        };
        match done {
            Ok(done) => {
                replies.extend::<Vec<Bytes>>(done);
                return Ok(());
            }
            Err(Fault::ReplyTooLong) => {}
            Err(fault) => return Err(self.failed(fault)),
        }
        for request in requests {
            let reply = self.execute_alone(request)?;
            replies.push(reply);
        }
        Ok(())
    }

    fn tidies(&self) -> bool {
        true
    }

    fn tidy(&mut self) -> Result<bool, StoreError> {
        let before = self.cursors.reclaimed.clone();
        let due = self.read(|keys| keys.has_garbage(TIDIED_KEYS));
        let done = due.and_then(|due| {
            if due {
                self.cursors.reclaimed = before;
                self.write(|keys, _| keys.reclaim(TIDIED_KEYS))?;
            }
            Ok(due)
        });
        done.map_err(|fault| self.failed(fault))
    }

    fn durability(&self) -> String {
        format!(
            "kv:{}: synced to the file before every reply: survives power loss",
            self.path.display()
        )
    }
}
