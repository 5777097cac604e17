//! The compared stores, behind one trait. A write returns when it is durable. A read copies the
//! value, as a server does before it sends a value.

mod fjall;
mod lmdb;
pub mod packet;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocks;

use std::path::Path;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::plan::Place;

/// Memory in bytes that each compared store may use for its own cache of the disk.
const CACHE_BYTES: u64 = 1 << 30;

/// The stores that can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// The packet store. Values are copied into it.
    Packet,
    /// RocksDB, from the library that is installed on the system.
    #[cfg(feature = "rocksdb")]
    Rocksdb,
    /// LMDB, through the crate `heed`.
    Lmdb,
    /// The Rust store redb.
    Redb,
    /// The Rust store fjall.
    Fjall,
}

impl Engine {
    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Packet => "packet",
            #[cfg(feature = "rocksdb")]
            Engine::Rocksdb => "rocksdb",
            Engine::Lmdb => "lmdb",
            Engine::Redb => "redb",
            Engine::Fjall => "fjall",
        }
    }

    /// Returns a sentence about how the store makes a write durable, and other important
    /// properties.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Engine::Packet => {
                "the packet store, in this process; one transaction (two persists) for each write or group; values are copied \
                 in, with a CRC32C; a step of packing follows when it is due, and counts as part of the write"
            }
            #[cfg(feature = "rocksdb")]
            Engine::Rocksdb => {
                "RocksDB of the system, WriteOptions::sync, no compression, 1 GiB of block cache, 10 bits of bloom filter a key"
            }
            Engine::Lmdb => {
                "LMDB (heed), one synced transaction for each write or group; it has no checksums"
            }
            Engine::Redb => "redb, Durability::Immediate, 1 GiB of cache",
            Engine::Fjall => {
                "fjall, PersistMode::SyncData for each write or group, no compression, 1 GiB of cache"
            }
        }
    }
}

/// The amount of data to store.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Number of keys.
    pub keys: u64,
    /// Size of each value in bytes.
    pub value_bytes: usize,
}

/// The operations that the benchmark needs of a store.
pub trait Store {
    /// Writes these keys and values, and returns when all of them are durable.
    ///
    /// # Errors
    /// The store fails.
    fn put(&mut self, group: &[(Vec<u8>, Vec<u8>)]) -> anyhow::Result<()>;

    /// Copies a value into `value`. Returns whether the key exists.
    ///
    /// # Errors
    /// The store fails.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> anyhow::Result<bool>;

    /// Copies up to `count` values from this key on into `value`, one after the other. Returns
    /// their number.
    ///
    /// # Errors
    /// The store fails.
    fn scan(&mut self, from: &[u8], count: usize, value: &mut Vec<u8>) -> anyhow::Result<usize>;
}

/// Opens a store in a folder. If `new`, the folder is empty, and the store is created.
///
/// # Errors
/// The store fails.
pub fn open(
    engine: Engine,
    folder: &Path,
    place: Place,
    size: Size,
    new: bool,
) -> anyhow::Result<Box<dyn Store>> {
    Ok(match engine {
        Engine::Packet => Box::new(packet::open(folder, place, size, new)?),
        #[cfg(feature = "rocksdb")]
        Engine::Rocksdb => Box::new(rocks::Rocks::open(folder)?),
        Engine::Lmdb => Box::new(lmdb::Lmdb::open(folder, size)?),
        Engine::Redb => Box::new(redb::Redb::open(folder)?),
        Engine::Fjall => Box::new(fjall::Fjall::open(folder)?),
    })
}
