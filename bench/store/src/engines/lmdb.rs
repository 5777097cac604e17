//! LMDB as a compared store.

use std::ops::Bound;
use std::path::Path;

use heed::types::Bytes;
use heed::{Database, Env, EnvOpenOptions, WithoutTls};

use super::{Size, Store};

/// Size of a page in bytes, and minimum space of a record.
const PAGE_BYTES: u64 = 4096;
/// Maximum number of pages that are reserved in the address space for each record, for overflow
/// pages, copies and free pages.
const PAGES_PER_RECORD: u64 = 6;
/// Minimum size of the mapped address space, in bytes.
const MAP_BYTES_MIN: u64 = 1 << 30;

/// An open LMDB environment with its unnamed database.
pub struct Lmdb {
    env: Env<WithoutTls>,
    database: Database<Bytes, Bytes>,
}

impl Lmdb {
    #[allow(unsafe_code)]
    pub(super) fn open(folder: &Path, size: Size) -> anyhow::Result<Lmdb> {
        let map_bytes = (size.keys * PAGES_PER_RECORD * PAGE_BYTES).max(MAP_BYTES_MIN);
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(usize::try_from(map_bytes)?);
        // SAFETY: the folder belongs to this run; no other process opens or changes the file while
        // it is mapped.
        let env = unsafe { options.open(folder)? };
        let mut transaction = env.write_txn()?;
        let database = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Lmdb { env, database })
    }
}

impl Store for Lmdb {
    fn put(&mut self, group: &[(Vec<u8>, Vec<u8>)]) -> anyhow::Result<()> {
        let mut transaction = self.env.write_txn()?;
        for (key, value) in group {
            self.database.put(&mut transaction, key, value)?;
        }
        Ok(transaction.commit()?)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> anyhow::Result<bool> {
        value.clear();
        let transaction = self.env.read_txn()?;
        let found = self.database.get(&transaction, key)?;
        Ok(found.is_some_and(|found| {
            value.extend_from_slice(found);
            true
        }))
    }

    fn scan(&mut self, from: &[u8], count: usize, value: &mut Vec<u8>) -> anyhow::Result<usize> {
        value.clear();
        let transaction = self.env.read_txn()?;
        let mut found = 0;
        let range = (Bound::Included(from), Bound::Unbounded);
        for record in self.database.range(&transaction, &range)?.take(count) {
            value.extend_from_slice(record?.1);
            found += 1;
        }
        Ok(found)
    }
}
