//! READ: how fresh must the store be for these keys? HIT and MISS: the head's answer (`docs/spec/reads.md`).
//!
//! ```text
//!           24        32    40      48        56   64
//! ReadKeys  | session | size |      | request |    |    |   payload: the hashes of the keys; flags: KEPT, REPLICAS
//! Hit       | session |     | order | request |    |    |   payload: that of the update
//! Miss      | session | version | need | request | replicas |    |   flag: BEHIND
//! ```
//! Stamp of HIT and MISS: the head. Their epoch is the one that the store's record must name.

use super::view;

/// Keys that one READ can ask about. One that names none asks about all of them.
pub const READ_KEYS_MAX: usize = 8;
/// Bytes of a hash in the payload of a READ.
const HASH_BYTES: usize = 8;

view! {
    /// How fresh must the store be for the keys whose hashes are the payload?
    ReadKeys = Read {
        /// The session.
        session: session,
        /// Largest update that its client's path carries, if that is less than the head has told
        /// ([`FragmentSize::from_wire`](crate::FragmentSize::from_wire)).
        size: seq,
        /// Its id, rising within the session; the answer repeats it.
        request: request,
    }
    flags {
        /// A HIT may show what the store has applied already, as long as the log has it.
        kept: KEPT,
        /// A MISS may say what a replica of the store must have applied.
        replicas: REPLICAS,
    }
}

view! {
    /// The newest update that may concern the key, as its client sent it: the payload is the update's.
    Hit = Hit {
        /// The session.
        session: session,
        /// The update's order.
        order: order,
        /// Of the READ.
        request: request,
    }
}

view! {
    /// The store must have applied everything up to `need`.
    Miss = Miss {
        /// The session.
        session: session,
        /// Of the head's index: another one when something that changed state without an order is not outstanding any
        /// more.
        version: seq,
        /// Order up to which the store must have applied, in this epoch.
        need: order,
        /// Of the READ.
        request: request,
        /// What a replica of the store must have applied that is read from instead; 0: none may be.
        replicas: key_hash,
    }
    flags {
        /// Nothing with the order `replicas` has been admitted yet.
        behind: BEHIND,
    }
}

/// The payload of a READ about these keys.
///
/// # Panics
/// If there are more than [`READ_KEYS_MAX`].
#[must_use]
pub fn write_hashes(hashes: &[u64]) -> Vec<u8> {
    assert!(hashes.len() <= READ_KEYS_MAX, "a READ is about few keys");
    hashes.iter().flat_map(|hash| hash.to_be_bytes()).collect()
}

/// The hashes in the payload of a READ, in its order. `None` if it is not one: too many, half of one, or 0, which is
/// no hash.
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
