//! The embedded store: strings with expiry in one file (redb), durable at every commit.
//!
//! For running pmnet without Redis. Each `apply`, and each `execute` with a state-changing request,
//! is one write transaction over data and records; redb syncs it before `commit` returns, and a
//! crash leaves either all of it or nothing. Commands and replies are those of Redis 7, for the
//! commands of `commands::TABLE` only.
//! Not here: other types, scripts, pass-through connections, reclaiming of expired keys that nobody
//! touches again. DBSIZE reads the whole table.

mod commands;
mod data;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use pmnet_resp::{reply, write_header};
use pmnet_server::{Batch, RecordKey, Request, Store, StoreError};
use pmnet_wire::command::{Commands, Form, Protocol};
use redb::{Database, DatabaseError, Durability, ReadableTable, StorageError, TableDefinition};

use crate::OpenError;
use commands::{Context, execaborted};
use data::{Fault, ReadData, WriteData};

/// Data: database (u32, big endian) ++ key → expiry (u64 big endian, ms since 1970, 0: none) ++ value.
const DATA: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("data");
/// The protocol's records.
const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");
/// What this file is.
const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
/// Value of `format` in [`META`]; another number is another layout.
const FORMAT: &str = "pmnet-kv 1";

/// See the module's text.
pub struct KvStore {
    /// `None` after a failure of the file: redb then refuses everything until it is opened again,
    /// which `load` does.
    database: Option<Database>,
    path: PathBuf,
    shard: u32,
    rejected: u64,
}

impl KvStore {
    /// Opens the file, or creates it (not its directory).
    ///
    /// # Errors
    /// [`OpenError::Kv`] when it is in use, is something else, belongs to another shard, or cannot be read or made.
    pub fn open(path: &Path, shard: u32) -> Result<KvStore, OpenError> {
        let database = open_database(path, shard)?;
        Ok(KvStore {
            database: Some(database),
            path: path.to_owned(),
            shard,
            rejected: 0,
        })
    }

    fn reject(&mut self, why: &str) {
        self.rejected += 1;
        // Logged less and less often, so that a flood of them does not flood the log.
        if self.rejected.is_power_of_two() {
            tracing::warn!(
                total = self.rejected,
                why,
                "an update was rejected and has no effect"
            );
        }
    }

    /// Runs `work` over both tables in one durable transaction; an error leaves no trace.
    fn write<T>(
        &mut self,
        work: impl FnOnce(&mut WriteData<'_>, &mut redb::Table<'_, &[u8], &[u8]>) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        self.with(|database| {
            let mut transaction = database.begin_write()?;
            transaction.set_durability(Durability::Immediate);
            let result = {
                let mut data = WriteData {
                    table: transaction.open_table(DATA)?,
                };
                let mut records = transaction.open_table(RECORDS)?;
                work(&mut data, &mut records)?
            };
            transaction.commit()?;
            Ok(result)
        })
    }

    /// Runs `work`; if the file fails it is closed until the next `load`.
    fn with<T>(
        &mut self,
        work: impl FnOnce(&Database) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        let shown = self.path.display();
        let Some(database) = &self.database else {
            return Err(StoreError::Retry(format!(
                "kv:{shown}: closed after an error: load first"
            )));
        };
        work(database).map_err(|fault| {
            self.database = None;
            let text = format!("kv:{shown}: {fault}");
            match fault {
                Fault::Corrupted(_) => StoreError::Fatal(text),
                Fault::Storage(_) => StoreError::Retry(text),
            }
        })
    }
}

fn open_database(path: &Path, shard: u32) -> Result<Database, OpenError> {
    let shown = path.display().to_string();
    let wrong = |why: String| OpenError::Kv {
        path: shown.clone(),
        why,
    };
    if path.as_os_str().is_empty() {
        return Err(wrong("the path is missing: kv:PATH".into()));
    }
    if path.is_dir() {
        return Err(wrong("this is a directory: name a file in it".into()));
    }
    if let Some(parent) = path.parent()
        && !parent.as_os_str().is_empty()
        && !parent.is_dir()
    {
        return Err(wrong(format!(
            "the directory {} does not exist: create it first",
            parent.display()
        )));
    }
    let database = Database::create(path).map_err(|error| {
        wrong(match error {
            DatabaseError::DatabaseAlreadyOpen => {
                "in use by another process (a second pmnet server?): stop that one first".into()
            }
            DatabaseError::Storage(StorageError::Io(error))
                if error.kind() != ErrorKind::InvalidData =>
            {
                error.to_string()
            }
            other => format!("not a pmnet store, or damaged; it was left as it is ({other})"),
        })
    })?;
    identify(&database, shard).map_err(wrong)?;
    Ok(database)
}

/// Marks a new file as ours, or checks that it is.
fn identify(database: &Database, shard: u32) -> Result<(), String> {
    let run = || -> Result<Result<(), String>, Fault> {
        let transaction = database.begin_write()?;
        let fresh = transaction.list_tables()?.next().is_none();
        let verdict = {
            let shard = shard.to_string();
            if fresh {
                let mut meta = transaction.open_table(META)?;
                meta.insert("format", FORMAT)?;
                meta.insert("shard", shard.as_str())?;
                transaction.open_table(DATA)?;
                transaction.open_table(RECORDS)?;
                Ok(())
            } else {
                check_meta(&transaction, &shard)?
            }
        };
        match verdict {
            Ok(()) if fresh => transaction.commit()?,
            _ => transaction.abort()?,
        }
        Ok(verdict)
    };
    run().map_err(|fault| fault.to_string())?
}

fn check_meta(
    transaction: &redb::WriteTransaction,
    shard: &str,
) -> Result<Result<(), String>, Fault> {
    let foreign = || Err("a redb file of another program; it was left as it is".to_owned());
    let mut names = transaction.list_tables()?;
    if !names.any(|table| redb::TableHandle::name(&table) == "meta") {
        return Ok(foreign());
    }
    let Ok(meta) = transaction.open_table(META) else {
        return Ok(foreign());
    };
    let format = meta.get("format")?.map(|v| v.value().to_owned());
    let owner = meta.get("shard")?.map(|v| v.value().to_owned());
    Ok(match (format.as_deref(), owner.as_deref()) {
        (Some(FORMAT), Some(owner)) if owner == shard => Ok(()),
        (Some(FORMAT), owner) => Err(format!(
            "it belongs to shard {}, not {shard}: give each shard its own file",
            owner.unwrap_or("?")
        )),
        (Some(format), _) if format.starts_with("pmnet-kv ") => Err(format!(
            "written by another version of pmnet (format {format:?}, this one reads {FORMAT:?})"
        )),
        _ => return Ok(foreign()),
    })
}

fn now() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Store for KvStore {
    fn load(&mut self) -> Result<Vec<(RecordKey, Bytes)>, StoreError> {
        if self.database.is_none() {
            let opened = open_database(&self.path, self.shard);
            self.database = Some(opened.map_err(|error| StoreError::Retry(error.to_string()))?);
        }
        self.with(|database| {
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
        let now = now();
        let rejected = self.write(|data, records| {
            let mut rejected: Vec<String> = Vec::new();
            for payload in &batch.effects {
                match Commands::parse(payload) {
                    Ok(commands) if commands.count > 0 => {
                        let mut first_error = None;
                        for reply in run_all(data, &commands, now)? {
                            if first_error.is_none() && reply.starts_with(b"-") {
                                first_error =
                                    Some(String::from_utf8_lossy(&reply).trim_end().to_owned());
                            }
                        }
                        rejected.extend(first_error);
                    }
                    Ok(_) => rejected.push("an update without a command".into()),
                    Err(error) => rejected.push(error.to_string()),
                }
            }
            for (key, value) in &batch.records {
                match value {
                    Some(value) => drop(records.insert(key.as_slice(), &value[..])?),
                    None => drop(records.remove(key.as_slice())?),
                }
            }
            Ok(rejected)
        })?;
        for why in &rejected {
            self.reject(why);
        }
        Ok(u64::try_from(rejected.len()).unwrap_or(u64::MAX))
    }

    fn execute(
        &mut self,
        requests: &[Request],
        replies: &mut Vec<Bytes>,
    ) -> Result<(), StoreError> {
        let now = now();
        if requests.iter().all(|request| request.record.is_none()) {
            let done: Vec<Bytes> = self.with(|database| {
                let transaction = database.begin_read()?;
                let mut data = ReadData {
                    table: transaction.open_table(DATA)?,
                };
                requests
                    .iter()
                    .map(|request| answer(&mut data, request, now))
                    .collect()
            })?;
            replies.extend(done);
            return Ok(());
        }
        let done = self.write(|data, records| {
            let mut done = Vec::with_capacity(requests.len());
            for request in requests {
                let mut reply = answer(data, request, now)?;
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

fn answer(data: &mut impl data::Data, request: &Request, now: u64) -> Result<Bytes, Fault> {
    let commands = match Commands::parse(&request.payload) {
        Ok(commands) => commands,
        Err(error) => return Ok(crate::malformed_reply(error)),
    };
    match commands.form {
        Form::Barrier => return Ok(reply::OK),
        Form::StoreAddress => return Ok(Bytes::from_static(crate::NO_ADDRESS)),
        Form::Single | Form::Pipeline | Form::Transaction => {}
    }
    if request.record.is_none()
        && let Some(error) = commands
            .iter()
            .find_map(|mut a| commands::refuse_as_read(a.next()?))
    {
        return Ok(error);
    }
    let replies = run_all(data, &commands, now)?;
    let mut whole = Vec::new();
    if commands.form == Form::Transaction && replies.len() == commands.count {
        write_header(&mut whole, commands.count);
    }
    for reply in replies {
        whole.extend_from_slice(&reply);
    }
    Ok(whole.into())
}

/// The reply of each command; of a transaction that Redis would not have queued, one error.
fn run_all(
    data: &mut impl data::Data,
    commands: &Commands<'_>,
    now: u64,
) -> Result<Vec<Bytes>, Fault> {
    let context = Context {
        database: commands.database,
        resp3: commands.protocol == Protocol::Resp3,
        now,
    };
    if commands.form == Form::Transaction
        && let Some(error) = execaborted(commands)
    {
        return Ok(vec![error]);
    }
    commands
        .iter()
        .map(|arguments| commands::run(data, &context, &arguments.collect::<Vec<_>>()))
        .collect()
}
