//! Stores of a pmnet server: Redis or Valkey, the packet store, and a store that keeps no data.
//!
//! Purpose: implementations of [`pmnet_server::Store`]. Each store applies update payloads (`docs/spec/wire.md` §6) in
//! order and writes the protocol's records in the same atomic durable step (protocol.md §2 rules 6–8). Invariants: a
//! record and its effect become visible together. A malformed payload is rejected and counted, and never causes a
//! panic. This crate knows nothing of packets, sessions or orders.

mod embedded;
mod null;
mod packet;
mod redis;
pub mod rows;
mod types;

pub use null::NullStore;
pub use packet::{
    Backup, GrowError, Grown, PacketStore, RegionAddress, RegionStore, back_up_packet_store,
    grow_packet_store, mend_packet_store, names_in_packet_store,
};
pub use redis::promote::{Progress, Promotion};
pub use redis::{RedisStore, StoreSync};
pub use types::Names;

use bytes::Bytes;
use pmnet_server::Store;
pub use pmnet_tls::Secret;
pub(crate) use pmnet_wire::REPLY_BYTES_MAX;

/// The reason why a store could not be opened, with advice for the operator.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// pmnet does not know the scheme of the address.
    #[error(
        "PM2120 unknown store {url:?}: use redis://HOST:PORT, rediss://HOST:PORT, redis+sentinel://HOST:PORT,…/NAME, redis+cluster://HOST:PORT,…/SLOTS, packet:PATH or null:"
    )]
    Scheme {
        /// The address as given, without credentials.
        url: String,
    },
    /// The URL has the right scheme, but a part of it is wrong.
    #[error("PM2121 store address: {why}")]
    Url {
        /// The reason why the part is wrong.
        why: String,
    },
    /// The system gave no random numbers for the server's name, and two processes must not have the same name.
    #[error(
        "PM2122 the operating system gives no random numbers, which a server's name in its store is made of: {why}"
    )]
    Random {
        /// The error of the system.
        why: String,
    },
    /// The packet store cannot use this path.
    #[error("PM2400 store packet:{path}: {why}")]
    Packet {
        /// Path as given.
        path: String,
        /// The reason, with advice.
        why: String,
    },
    /// The address names a file of redb, a store that pmnet no longer has.
    #[error(
        "PM2402 store kv:{path}: pmnet has no kv: any more, packet:PATH takes its place. The file is left as it is: an earlier pmnet \
         serves it, and clients can copy its keys from there"
    )]
    Kv {
        /// Path as given.
        path: String,
    },
}

/// Opens the store that `url` names, for one shard.
///
/// `redis://[[user]:password@]host[:port][?wait_replicas=N]` is connected only in [`Store::load`]. So it is no error
/// here if the Redis server does not run yet. `redis+sentinel://…/NAME` means the master that Sentinels name.
/// `redis+cluster://…/SLOTS` means the master of a Redis Cluster that serves these slots. `rediss…` uses TLS.
/// `packet:PATH[?size=BYTES]` opens or creates the file. `null:` keeps the records in memory and forgets the effects.
///
/// # Errors
/// [`OpenError`].
pub fn open(url: &str, shard: u32) -> Result<Box<dyn Store>, OpenError> {
    open_with(url, &Passwords::default(), None, shard)
}

/// Passwords that are given outside the URL.
#[derive(Clone, Default)]
pub struct Passwords {
    /// Password for Redis. If the password is replaced later, later connections use the new password.
    pub store: Option<Secret>,
    /// Password for Redis's Sentinels. This password may be replaced later, too.
    pub sentinel: Option<Secret>,
}

/// Opens the store like [`open`]. For Redis, `passwords` take the place of a password in `url`, and `sync` says which
/// writes wait for Redis's sync.
///
/// # Errors
/// [`OpenError`].
pub fn open_with(
    url: &str,
    passwords: &Passwords,
    sync: Option<StoreSync>,
    shard: u32,
) -> Result<Box<dyn Store>, OpenError> {
    Ok(match named(url, passwords, sync, shard)? {
        Named::Redis(store) => store,
        Named::Packet(place) => Box::new(PacketStore::open_at(place)?),
        Named::Null => Box::new(NullStore::new()),
    })
}

/// Checks the arguments of [`open_with`]. Opens and creates no file, and connects to no Redis.
///
/// # Errors
/// [`OpenError`], as from [`open_with`].
pub fn check(
    url: &str,
    passwords: &Passwords,
    sync: Option<StoreSync>,
    shard: u32,
) -> Result<(), OpenError> {
    named(url, passwords, sync, shard).map(drop)
}

/// The store that an address names. A packet store is not open yet.
enum Named {
    Redis(Box<RedisStore>),
    Packet(packet::Place),
    Null,
}

fn named(
    url: &str,
    passwords: &Passwords,
    sync: Option<StoreSync>,
    shard: u32,
) -> Result<Named, OpenError> {
    if let Some(url) = redis::RedisUrl::read(url, passwords)? {
        let store = RedisStore::new(url, shard, sync.unwrap_or_default())?;
        return Ok(Named::Redis(Box::new(store)));
    }
    if passwords.store.is_some() || passwords.sentinel.is_some() {
        return Err(OpenError::Url {
            why: "only Redis has a password".into(),
        });
    }
    if sync.is_some() {
        return Err(OpenError::Url {
            why: "--store-sync is about Redis's AOF: this store syncs by itself".into(),
        });
    }
    if let Some(path) = url.strip_prefix("kv:") {
        return Err(OpenError::Kv { path: path.into() });
    }
    if let Some(address) = url.strip_prefix("packet:") {
        return Ok(Named::Packet(packet::Place::parse(address, shard)?));
    }
    if url == "null:" {
        return Ok(Named::Null);
    }
    let shown = url.rsplit_once('@').map_or(url, |(_, place)| place);
    Err(OpenError::Scheme {
        url: shown.to_owned(),
    })
}

/// Reply to a malformed payload.
pub(crate) fn malformed_reply(error: pmnet_wire::command::CommandError) -> bytes::Bytes {
    pmnet_resp::reply::error(&format!("ERR pmnet: malformed request: {error}"))
}

/// Reply and record that take the place of a reply which is longer than the server can pass on ([`REPLY_BYTES_MAX`]).
/// Each load reads all records, so the record of such a request does not keep the long reply, either.
pub(crate) const REPLY_TOO_LONG: &[u8] = b"-ERR pmnet: the reply is larger than 16 MiB\r\n";

/// Longest head of the reply to a pack, in bytes.
pub(crate) const PACK_HEADER_BYTES_MAX: usize = 16;

/// Returns the reply to a state-changing request in the form in which this record keeps it.
pub(crate) fn bounded_reply(reply: Bytes, record: &[u8]) -> Bytes {
    if reply.len() <= REPLY_BYTES_MAX {
        return reply;
    }
    warn_too_long(record);
    Bytes::from_static(REPLY_TOO_LONG)
}

/// Logs that the reply of this record was too long.
pub(crate) fn warn_too_long(record: &[u8]) {
    tracing::warn!(
        record = %record.escape_ascii(),
        "PM2216 the reply to a request is longer than a reply may be: an error is kept and answered in its place"
    );
}
