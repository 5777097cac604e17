//! The file: whose it is, of which format, and how the format before becomes this one.
//!
//! | format | rows |
//! |---|---|
//! | `pmnet-kv 1` | table `data`, strings only: database (u32) ++ key → expiry (u64) ++ value |
//! | `pmnet-kv 2` | table `rows`: see `docs/spec/embedded-store.md` |

use std::io::ErrorKind;
use std::path::Path;

use redb::{
    Database, DatabaseError, ReadableTable, StorageError, TableDefinition, WriteTransaction,
};

use super::rows::WriteRows;
use super::{RECORDS, ROWS};
use crate::OpenError;
use crate::rows::{Fault, Rows};
use crate::types::string_row;

/// What this file is.
const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
/// Value of `format` in [`META`]; another number is another layout.
const FORMAT: &str = "pmnet-kv 2";
/// The format before, which is converted.
const OLD_FORMAT: &str = "pmnet-kv 1";
/// Data of the format before.
const OLD_DATA: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("data");

/// Opens the file, or makes it, for this shard.
///
/// # Errors
/// [`OpenError::Kv`].
pub fn open(path: &Path, shard: u32) -> Result<Database, OpenError> {
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

/// What a file is to this shard.
enum Found {
    /// A new file.
    Fresh,
    /// One of this format.
    Current,
    /// One of the format before.
    Old,
    /// Something that must be left alone, and why.
    Foreign(String),
}

/// Marks a new file as ours, converts an old one, and checks that any other is of this format.
fn identify(database: &Database, shard: u32) -> Result<(), String> {
    let run = || -> Result<Result<(), String>, Fault> {
        let transaction = database.begin_write()?;
        let shard = shard.to_string();
        match look(&transaction, &shard)? {
            Found::Fresh => {
                let mut meta = transaction.open_table(META)?;
                meta.insert("format", FORMAT)?;
                meta.insert("shard", shard.as_str())?;
                drop(meta);
                transaction.open_table(ROWS)?;
                transaction.open_table(RECORDS)?;
            }
            Found::Old => convert(&transaction)?,
            Found::Current => {
                transaction.abort()?;
                return Ok(Ok(()));
            }
            Found::Foreign(why) => {
                transaction.abort()?;
                return Ok(Err(why));
            }
        }
        transaction.commit()?;
        Ok(Ok(()))
    };
    run().map_err(|fault| fault.to_string())?
}

fn look(transaction: &WriteTransaction, shard: &str) -> Result<Found, Fault> {
    let foreign = || Found::Foreign("a redb file of another program; it was left as it is".into());
    let names: Vec<String> = transaction
        .list_tables()?
        .map(|table| redb::TableHandle::name(&table).to_owned())
        .collect();
    if names.is_empty() {
        return Ok(Found::Fresh);
    }
    if !names.iter().any(|name| name == "meta") {
        return Ok(foreign());
    }
    let Ok(meta) = transaction.open_table(META) else {
        return Ok(foreign());
    };
    let format = meta.get("format")?.map(|v| v.value().to_owned());
    let owner = meta.get("shard")?.map(|v| v.value().to_owned());
    Ok(match (format.as_deref(), owner.as_deref()) {
        (Some(FORMAT), Some(owner)) if owner == shard => Found::Current,
        (Some(OLD_FORMAT), Some(owner)) if owner == shard => Found::Old,
        (Some(FORMAT | OLD_FORMAT), owner) => Found::Foreign(format!(
            "it belongs to shard {}, not {shard}: give each shard its own file",
            owner.unwrap_or("?")
        )),
        (Some(format), _) if format.starts_with("pmnet-kv ") => Found::Foreign(format!(
            "written by another version of pmnet (format {format:?}, this one reads {FORMAT:?})"
        )),
        _ => foreign(),
    })
}

/// Makes rows of the data of the format before, in the transaction that also writes the new format's name.
fn convert(transaction: &WriteTransaction) -> Result<(), Fault> {
    let damaged = || Fault::Corrupted("an entry of the old format is too short".into());
    {
        let old = transaction.open_table(OLD_DATA)?;
        let mut rows = WriteRows {
            table: transaction.open_table(ROWS)?,
        };
        for entry in old.iter()? {
            let (key, value) = entry?;
            let (database, key) = key.value().split_first_chunk().ok_or_else(damaged)?;
            let (expiry, value) = value.value().split_first_chunk().ok_or_else(damaged)?;
            let (key, kind) = string_row(u32::from_be_bytes(*database), key);
            rows.put(&key, kind, u64::from_be_bytes(*expiry), value)?;
        }
        let mut meta = transaction.open_table(META)?;
        meta.insert("format", FORMAT)?;
    }
    transaction.delete_table(OLD_DATA)?;
    Ok(())
}
