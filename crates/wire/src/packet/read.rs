//! READ: a client asks up to which order the store must have applied the log before it reads these keys. HIT and MISS:
//! the head's answer (`docs/spec/reads.md`).
//!
//! ```text
//!           24        32    40      48        56   64
//! ReadKeys  | session | size |      | request |    |    |   payload: the hashes of the keys; flags: KEPT, REPLICAS
//! Hit       | session |     | order | request |    |    |   payload: that of the update
//! Miss      | session | version | need | request | replicas |    |   flag: BEHIND
//! ```
//! HIT and MISS carry the stamp of the head. The store's record must name the epoch of this stamp.

use super::view;

/// Maximum number of keys of one READ. A READ without keys asks about all keys.
pub const READ_KEYS_MAX: usize = 8;
/// Bytes of a hash in the payload of a READ.
const HASH_BYTES: usize = 8;

view! {
    /// Asks up to which order the store must have applied the log before the client may read the keys whose hashes are
    /// the payload.
    ReadKeys = Read {
        /// The session.
        session: session,
        /// Size of the largest update that the client's path carries, if it is below the size that the head has stated
        /// ([`FragmentSize::from_wire`](crate::FragmentSize::from_wire)).
        size: seq,
        /// Id of the READ, rising within the session; the answer repeats it.
        request: request,
    }
    flags {
        /// A HIT may contain an update that the store has already applied and whose entry the log still holds.
        kept: KEPT,
        /// A MISS may state the order that a replica of the store must have applied.
        replicas: REPLICAS,
    }
}

view! {
    /// The newest update that may concern the key. The payload is the update's, as its client sent it.
    Hit = Hit {
        /// The session.
        session: session,
        /// The update's order.
        order: order,
        /// Id of the READ.
        request: request,
    }
}

view! {
    /// The store must have applied all orders up to `need`.
    Miss = Miss {
        /// The session.
        session: session,
        /// Version of the head's index. It changes when a request that changes state without an order stops being
        /// outstanding.
        version: seq,
        /// Order up to which the store must have applied the log, in this epoch.
        need: order,
        /// Id of the READ.
        request: request,
        /// Order that a replica of the store must have applied to be read from; 0: no replica may be read.
        replicas: key_hash,
    }
    flags {
        /// The head has not admitted the order `replicas` yet.
        behind: BEHIND,
    }
}

/// Returns the payload of a READ about these keys.
///
/// # Panics
/// If there are more than [`READ_KEYS_MAX`] hashes.
#[must_use]
pub fn write_hashes(hashes: &[u64]) -> Vec<u8> {
    assert!(hashes.len() <= READ_KEYS_MAX, "a READ is about few keys");
    hashes.iter().flat_map(|hash| hash.to_be_bytes()).collect()
}

/// Returns the hashes in the payload of a READ, in its order. Returns `None` for a bad payload: too many hashes, an
/// incomplete hash, or 0, which is no hash.
#[must_use]
pub fn read_hashes(payload: &[u8]) -> Option<impl ExactSizeIterator<Item = u64> + Clone> {
    let (hashes, rest) = payload.as_chunks::<HASH_BYTES>();
    let fits = rest.is_empty() && hashes.len() <= READ_KEYS_MAX;
    let hashes = hashes.iter().map(|bytes| u64::from_be_bytes(*bytes));
    (fits && hashes.clone().all(|hash| hash != 0)).then_some(hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_come_back_and_nothing_else_is_taken_for_them() {
        for count in 0..=READ_KEYS_MAX {
            let hashes: Vec<u64> = (1..).take(count).collect();
            let payload = write_hashes(&hashes);
            let read = read_hashes(&payload).expect("written just now");
            assert_eq!(read.collect::<Vec<_>>(), hashes);
        }
        let refused: [&[u8]; 4] = [&[1; 7], &[1; 9], &[0; 8], &[1; 8 * (READ_KEYS_MAX + 1)]];
        for payload in refused {
            assert!(read_hashes(payload).is_none(), "{} bytes", payload.len());
        }
    }
}
