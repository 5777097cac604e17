//! The name of a store that fronts can reach directly (`docs/spec/wire.md` §6).
//!
//! In its answer to each barrier, a server names the store that it uses. A front compares this name with the Redis to
//! which its own connections lead, because an address may later belong to another process, and after a failover the old
//! store may still run. So a name states the address, the process, the key of the records, and the last load by which a
//! server claimed the records. It may also say that fronts can read from the store.
//!
//! ```text
//! redis://127.0.0.1:6379/?run_id=9f…e1&records=pmnet:{0}&owner=31…07-1&reads=direct
//! ```

use core::fmt;
use std::net::SocketAddr;

/// Longest part of a name, in bytes. The bound limits the memory that a name can take at its reader.
pub const STORE_NAME_PART_BYTES_MAX: usize = 128;

/// Last part of a name if fronts may read from the store.
const READS: &str = "&reads=direct";

/// Identifies the store of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreName {
    /// Address at which the store listens, as the server sees it.
    pub address: SocketAddr,
    /// Run id of the store's process. Each start has another run id.
    pub run_id: String,
    /// Key of the hash with the server's records.
    pub records: String,
    /// Value of that hash's field `owner`, which changes with each load by a server. It is empty if the server only
    /// reads, because the store takes no writes now.
    pub owner: String,
    /// Whether fronts may read directly: a plain read from the store shows only durable data (reads.md §3).
    pub reads: bool,
}

/// Error: the text is not the name of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a store")]
pub struct StoreNameError;

impl StoreName {
    /// Reads a name.
    ///
    /// # Errors
    /// [`StoreNameError`] if a part is missing or too long, or if the text does not have the canonical form.
    pub fn parse(text: &[u8]) -> Result<StoreName, StoreNameError> {
        let read = || {
            let text = core::str::from_utf8(text).ok()?;
            let rest = text.strip_prefix("redis://")?;
            let (address, rest) = rest.split_once("/?run_id=")?;
            let (run_id, rest) = rest.split_once("&records=")?;
            let (records, owner) = rest.split_once("&owner=")?;
            let readable = owner.strip_suffix(READS);
            let (owner, reads) = (readable.unwrap_or(owner), readable.is_some());
            let parts_fit = [run_id, records, owner].iter().all(|part| is_part(part));
            let name = StoreName {
                address: address.parse().ok()?,
                run_id: run_id.to_owned(),
                records: records.to_owned(),
                owner: owner.to_owned(),
                reads,
            };
            (parts_fit && !run_id.is_empty() && !records.is_empty()).then_some(name)
        };
        // Each name has only one text. This check refuses numbers that are written in another way.
        read()
            .filter(|name| name.to_string().as_bytes() == text)
            .ok_or(StoreNameError)
    }

    /// Returns whether both names belong to the same process, so that connections lead to the same data. The owners may
    /// differ, because a server may have loaded the records again.
    #[must_use]
    pub fn same_process(&self, other: &StoreName) -> bool {
        self.run_id == other.run_id
    }
}

fn is_part(part: &str) -> bool {
    part.len() <= STORE_NAME_PART_BYTES_MAX
        && part
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'&')
}

impl fmt::Display for StoreName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreName {
            address,
            run_id,
            records,
            owner,
            reads,
        } = self;
        let reads = if *reads { READS } else { "" };
        write!(
            f,
            "redis://{address}/?run_id={run_id}&records={records}&owner={owner}{reads}"
        )
    }
}
