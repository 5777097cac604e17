//! Typed access to the data table, for reading and for writing.

use redb::{ReadableTable, Table};

/// Bytes of the database number in front of a key.
const DATABASE_BYTES: usize = 4;
/// Bytes of the expiry in front of a value.
const EXPIRY_BYTES: usize = 8;

/// Why the file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Input or output failed; nothing of the transaction happened.
    #[error("{0}")]
    Storage(String),
    /// The file's content is not what was written.
    #[error("the file is damaged: {0}")]
    Corrupted(String),
}

impl<E: Into<redb::Error>> From<E> for Fault {
    fn from(error: E) -> Fault {
        match error.into() {
            redb::Error::Corrupted(text) => Fault::Corrupted(text),
            other => Fault::Storage(other.to_string()),
        }
    }
}

/// A value and when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Milliseconds since 1970; 0: never.
    pub expiry: u64,
    /// The bytes.
    pub value: Vec<u8>,
}

/// The strings of all databases.
pub trait Data {
    /// The live value of a key at time `now` (ms since 1970).
    fn get(&self, database: u32, key: &[u8], now: u64) -> Result<Option<Stored>, Fault>;
    /// Writes a value.
    fn put(&mut self, database: u32, key: &[u8], stored: &Stored) -> Result<(), Fault>;
    /// Removes a key.
    fn remove(&mut self, database: u32, key: &[u8]) -> Result<(), Fault>;
    /// How many live keys a database has.
    fn count(&self, database: u32, now: u64) -> Result<u64, Fault>;
    /// Empties one database, or all.
    fn clear(&mut self, database: Option<u32>) -> Result<(), Fault>;
}

/// Inside a write transaction.
pub struct WriteData<'t> {
    /// The table.
    pub table: Table<'t, &'static [u8], &'static [u8]>,
}

/// Inside a read transaction. Its writing methods fail: the caller refuses such commands before.
pub struct ReadData {
    /// The table.
    pub table: redb::ReadOnlyTable<&'static [u8], &'static [u8]>,
}

fn full_key(database: u32, key: &[u8]) -> Vec<u8> {
    [&database.to_be_bytes(), key].concat()
}

fn decode(bytes: &[u8]) -> Result<(u64, &[u8]), Fault> {
    let (expiry, value) = bytes
        .split_first_chunk::<EXPIRY_BYTES>()
        .ok_or_else(|| Fault::Corrupted("a value is shorter than its expiry".into()))?;
    Ok((u64::from_be_bytes(*expiry), value))
}

fn live(expiry: u64, now: u64) -> bool {
    expiry == 0 || expiry > now
}

fn get(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    database: u32,
    key: &[u8],
    now: u64,
) -> Result<Option<Stored>, Fault> {
    let Some(found) = table.get(full_key(database, key).as_slice())? else {
        return Ok(None);
    };
    let (expiry, value) = decode(found.value())?;
    Ok(live(expiry, now).then(|| Stored {
        expiry,
        value: value.to_vec(),
    }))
}

fn count(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    database: u32,
    now: u64,
) -> Result<u64, Fault> {
    let mut count = 0;
    for entry in table.range(database.to_be_bytes().as_slice()..)? {
        let (key, value) = entry?;
        if key.value().get(..DATABASE_BYTES) != Some(&database.to_be_bytes()) {
            break;
        }
        count += u64::from(live(decode(value.value())?.0, now));
    }
    Ok(count)
}

impl Data for WriteData<'_> {
    fn get(&self, database: u32, key: &[u8], now: u64) -> Result<Option<Stored>, Fault> {
        get(&self.table, database, key, now)
    }
    fn put(&mut self, database: u32, key: &[u8], stored: &Stored) -> Result<(), Fault> {
        let value = [&stored.expiry.to_be_bytes(), stored.value.as_slice()].concat();
        self.table
            .insert(full_key(database, key).as_slice(), value.as_slice())?;
        Ok(())
    }
    fn remove(&mut self, database: u32, key: &[u8]) -> Result<(), Fault> {
        self.table.remove(full_key(database, key).as_slice())?;
        Ok(())
    }
    fn count(&self, database: u32, now: u64) -> Result<u64, Fault> {
        count(&self.table, database, now)
    }
    fn clear(&mut self, database: Option<u32>) -> Result<(), Fault> {
        self.table.retain(|key, _| {
            database
                .is_some_and(|database| key.get(..DATABASE_BYTES) != Some(&database.to_be_bytes()))
        })?;
        Ok(())
    }
}

const READING: &str = "a read tried to write";

impl Data for ReadData {
    fn get(&self, database: u32, key: &[u8], now: u64) -> Result<Option<Stored>, Fault> {
        get(&self.table, database, key, now)
    }
    fn put(&mut self, _: u32, _: &[u8], _: &Stored) -> Result<(), Fault> {
        unreachable!("{READING}")
    }
    fn remove(&mut self, _: u32, _: &[u8]) -> Result<(), Fault> {
        unreachable!("{READING}")
    }
    fn count(&self, database: u32, now: u64) -> Result<u64, Fault> {
        count(&self.table, database, now)
    }
    fn clear(&mut self, _: Option<u32>) -> Result<(), Fault> {
        unreachable!("{READING}")
    }
}
