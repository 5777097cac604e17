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

use crate::embedded::{Rejections, cursors, keyspace};
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
            cursors: cursors()?,
        })
    }

    /// Runs `work` over both tables in one durable transaction; an error leaves no trace.
    fn write<T>(
        &mut self,
        work: impl FnOnce(&mut Keyspace<'_>, &mut redb::Table<'_, &[u8], &[u8]>) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
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

    /// Runs `work`; if the file fails it is closed until the next `load`.
    fn with<T>(
        &mut self,
        work: impl FnOnce(&Database, &mut Cursors) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        let shown = self.path.display();
        let Some(database) = &self.database else {
            return Err(StoreError::Retry(format!(
                "kv:{shown}: closed after an error: load first"
            )));
        };
        work(database, &mut self.cursors).map_err(|fault| {
            self.database = None;
            let text = format!("kv:{shown}: {fault}");
            match fault {
                Fault::Corrupted(_) => StoreError::Fatal(text),
                Fault::Storage(_) | Fault::Full => StoreError::Retry(text),
            }
        })
    }
}

impl Store for KvStore {
    fn load(&mut self) -> Result<Vec<(RecordKey, Bytes)>, StoreError> {
        if self.database.is_none() {
            let opened = file::open(&self.path, self.shard);
            self.database = Some(opened.map_err(|error| StoreError::Retry(error.to_string()))?);
        }
        self.with(|database, _| {
            let transaction = database.begin_read()?;
            let table = transaction.open_table(RECORDS)?;
            let mut found = Vec::new();
            for entry in table.iter()? {
                let (key, value) = entry?;
                found.push((key.value().to_vec(), Bytes::copy_from_slice(value.value())));
            }
            Ok(found)
        })
    }

    fn apply(&mut self, batch: &Batch) -> Result<u64, StoreError> {
        let rejected = self.write(|keys, records| {
            let rejected = embedded::apply(keys, batch)?;
            for (key, value) in &batch.records {
                match value {
                    Some(value) => drop(records.insert(key.as_slice(), &value[..])?),
                    None => drop(records.remove(key.as_slice())?),
                }
            }
            Ok(rejected)
        })?;
        self.rejected.note(&rejected);
        Ok(u64::try_from(rejected.len()).unwrap_or(u64::MAX))
    }

    fn execute(
        &mut self,
        requests: &[Request],
        replies: &mut Vec<Bytes>,
    ) -> Result<(), StoreError> {
        if requests.iter().all(|request| request.record.is_none()) {
            let done: Vec<Bytes> = self.with(|database, cursors| {
                let transaction = database.begin_read()?;
                let mut rows = ReadRows {
                    table: transaction.open_table(ROWS)?,
                };
                let mut keys = keyspace(&mut rows, cursors)?;
                requests
                    .iter()
                    .map(|request| embedded::answer(&mut keys, request))
                    .collect()
            })?;
            replies.extend(done);
            return Ok(());
        }
        let done = self.write(|keys, records| {
            let mut done = Vec::with_capacity(requests.len());
            for request in requests {
                let mut reply = embedded::answer(keys, request)?;
                if let Some((key, prefix)) = &request.record {
                    reply = crate::bounded_reply(reply, key);
                    records.insert(key.as_slice(), [&prefix[..], &reply].concat().as_slice())?;
                }
                done.push(reply);
            }
            Ok(done)
        })?;
        replies.extend(done);
        Ok(())
    }

    fn durability(&self) -> String {
        format!(
            "kv:{}: synced to the file before every reply: survives power loss",
            self.path.display()
        )
    }
}
