//! RocksDB as a compared store.

use std::path::Path;

use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Direction, IteratorMode, Options, WriteBatch,
    WriteOptions,
};

use super::{CACHE_BYTES, Store};

/// Bits of the bloom filter for each key, as the manual of RocksDB advises.
const FILTER_BITS: f64 = 10.0;

/// An open RocksDB database.
pub struct Rocks {
    db: DB,
    synced: WriteOptions,
}

impl Rocks {
    pub(super) fn open(folder: &Path) -> anyhow::Result<Rocks> {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(&Cache::new_lru_cache(usize::try_from(CACHE_BYTES)?)?);
        blocks.set_bloom_filter(FILTER_BITS, false);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_compression_type(DBCompressionType::None);
        options.set_block_based_table_factory(&blocks);
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        Ok(Rocks {
            db: DB::open(&options, folder)?,
            synced,
        })
    }
}

impl Store for Rocks {
    fn put(&mut self, group: &[(Vec<u8>, Vec<u8>)]) -> anyhow::Result<()> {
        if let [(key, value)] = group {
            return Ok(self.db.put_opt(key, value, &self.synced)?);
        }
        let mut batch = WriteBatch::default();
        for (key, value) in group {
            batch.put(key, value);
        }
        Ok(self.db.write_opt(batch, &self.synced)?)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> anyhow::Result<bool> {
        value.clear();
        let found = self.db.get_pinned(key)?;
        Ok(found.is_some_and(|found| {
            value.extend_from_slice(&found);
            true
        }))
    }

    fn scan(&mut self, from: &[u8], count: usize, value: &mut Vec<u8>) -> anyhow::Result<usize> {
        value.clear();
        let mut found = 0;
        let mode = IteratorMode::From(from, Direction::Forward);
        for record in self.db.iterator(mode).take(count) {
            value.extend_from_slice(&record?.1);
            found += 1;
        }
        Ok(found)
    }
}
