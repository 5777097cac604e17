//! The stores that are compared, behind one trait. Each write is durable before its answer; reads copy the value out, as
//! a server does that sends it.

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

/// Memory that each rival may use for its own cache of what is on the disk.
const CACHE_BYTES: u64 = 1 << 30;

/// A store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// The packet store; values are copied in.
    Packet,
    /// RocksDB of the system.
    #[cfg(feature = "rocksdb")]
    Rocksdb,
    /// LMDB, by crate heed.
    Lmdb,
    /// redb.
    Redb,
    /// fjall.
    Fjall,
}

impl Engine {
    /// As on the command line.
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

    /// How it makes a write durable, and what else matters.
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

/// How much will be stored.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Keys.
    pub keys: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
}

/// What the benchmark does with a store.
pub trait Store {
    /// Writes these keys and values, and returns when all of them are durable.
    ///
    /// # Errors
    /// Of the store.
    fn put(&mut self, group: &[(Vec<u8>, Vec<u8>)]) -> anyhow::Result<()>;

    /// Copies a value into `value`; whether there is one.
    ///
    /// # Errors
    /// Of the store.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> anyhow::Result<bool>;

    /// Copies up to `count` values from this key on into `value`, one after the other; how many.
    ///
    /// # Errors
    /// Of the store.
    fn scan(&mut self, from: &[u8], count: usize, value: &mut Vec<u8>) -> anyhow::Result<usize>;
}

/// Opens a store in a folder, which is empty when it is `new`.
///
/// # Errors
/// Of the store.
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
