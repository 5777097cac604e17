//! fjall as a compared store.

use std::path::Path;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{CACHE_BYTES, Store};

/// An open fjall database with one keyspace.
pub struct Fjall {
    database: Database,
    records: Keyspace,
}

impl Fjall {
    pub(super) fn open(folder: &Path) -> anyhow::Result<Fjall> {
        let database = Database::builder(folder).cache_size(CACHE_BYTES).open()?;
        let records = database.keyspace("records", KeyspaceCreateOptions::default)?;
        Ok(Fjall { database, records })
    }
}

impl Store for Fjall {
    fn put(&mut self, group: &[(Vec<u8>, Vec<u8>)]) -> anyhow::Result<()> {
        if let [(key, value)] = group {
            self.records.insert(&key[..], &value[..])?;
            return Ok(self.database.persist(PersistMode::SyncData)?);
        }
        let mut batch = self
            .database
            .batch()
            .durability(Some(PersistMode::SyncData));
        for (key, value) in group {
            batch.insert(&self.records, &key[..], &value[..]);
        }
        Ok(batch.commit()?)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> anyhow::Result<bool> {
        value.clear();
        let found = self.records.get(key)?;
        Ok(found.is_some_and(|found| {
            value.extend_from_slice(&found);
            true
        }))
    }

    fn scan(&mut self, from: &[u8], count: usize, value: &mut Vec<u8>) -> anyhow::Result<usize> {
        value.clear();
        let mut found = 0;
        for record in self.records.range(from..).take(count) {
            value.extend_from_slice(&record.value()?);
            found += 1;
        }
        Ok(found)
    }
}
