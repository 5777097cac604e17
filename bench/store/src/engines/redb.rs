//! redb as a compared store.

use std::path::Path;

use redb::{Builder, Database, Durability, TableDefinition};

use super::{CACHE_BYTES, Store};

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

/// An open redb database.
pub struct Redb(Database);

impl Redb {
    pub(super) fn open(folder: &Path) -> anyhow::Result<Redb> {
        let mut builder = Builder::new();
        builder.set_cache_size(usize::try_from(CACHE_BYTES)?);
        let database = builder.create(folder.join("store"))?;
        let transaction = database.begin_write()?;
        transaction.open_table(TABLE)?;
        transaction.commit()?;
        Ok(Redb(database))
    }
}

impl Store for Redb {
    fn put(&mut self, group: &[(Vec<u8>, Vec<u8>)]) -> anyhow::Result<()> {
        let mut transaction = self.0.begin_write()?;
        transaction.set_durability(Durability::Immediate);
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in group {
                table.insert(&key[..], &value[..])?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> anyhow::Result<bool> {
        value.clear();
        let table = self.0.begin_read()?.open_table(TABLE)?;
        let found = table.get(key)?;
        Ok(found.is_some_and(|found| {
            value.extend_from_slice(found.value());
            true
        }))
    }

    fn scan(&mut self, from: &[u8], count: usize, value: &mut Vec<u8>) -> anyhow::Result<usize> {
        value.clear();
        let table = self.0.begin_read()?.open_table(TABLE)?;
        let mut found = 0;
        for record in table.range(from..)?.take(count) {
            value.extend_from_slice(record?.1.value());
            found += 1;
        }
        Ok(found)
    }
}
