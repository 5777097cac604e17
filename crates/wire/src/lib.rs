//! Every packet of the pmnet protocol: checked views, owned forms and the payload languages.
//!
//! Purpose: the one place that knows what bytes on the wire mean (`docs/spec/wire.md`).
//! Invariants: parsing never panics and never allocates by a length it has not checked;
//! emitting what was parsed gives the same bytes. This crate does no IO and reads no clock.

pub mod command;
mod escape;
mod fragment_size;
pub mod guard;
pub mod header;
pub mod item;
pub mod key;
pub mod packet;
mod payloads;
pub mod program;
pub mod promise;
pub mod record;
pub mod slots;
pub mod store_name;

pub use escape::percent_decode;
pub use fragment_size::FragmentSize;
pub use header::{Flags, HEADER_LEN, Header, Kind, MAGIC, Packet, Place, Reject, raw};
pub use key::{
    ClusterKey, DoorKeys, FrontId, FrontKey, KEY_BYTES, Life, MacKey, RdmaKeys, SessionKeys,
};
pub use payloads::Payloads;
pub use store_name::{StoreName, StoreNameError};

/// First UDP port reserved for pmnet (PMNet paper §IV-A, see protocol.md §8; wire.md).
pub const PORT_FIRST: u16 = 51_000;
/// Last UDP port reserved for pmnet.
pub const PORT_LAST: u16 = 51_999;

/// Most payload bytes of one packet. It fits a 1500-byte Ethernet MTU with IPv6 and the pmnet header, rounded down to a
/// cache line: 1500 − 40 (IPv6) − 8 (UDP) − 88 = 1364 → 1344. No hop sends or accepts more. The size that a sender uses
/// depends on the path ([`FragmentSize`]).
pub const FRAGMENT_BYTES: usize = 1344;
/// Number of payload bytes that fit every path, with the MTU that IPv6 guarantees: 1280 − 40 − 8 − 88. Packets that are
/// sent before the shard's size is known carry at most this many.
pub const FRAGMENT_BYTES_MIN: usize = 1144;

/// Largest datagram that any hop sends or accepts, in bytes (header and payload).
pub const DATAGRAM_BYTES_MAX: usize = HEADER_LEN + FRAGMENT_BYTES;

/// Largest value in an update or bypass, in bytes; name, key and preamble are additional (protocol.md §11).
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Most fragments of one message: `MESSAGE_BYTES_MAX`, with the rest of the command, in the smallest fragments.
pub const FRAGMENTS_MAX: u16 = 15_000;

/// Longest reply of a store, in bytes, which is the content of [`FRAGMENTS_MAX`] fragments of the smallest size.
pub const REPLY_BYTES_MAX: usize = FRAGMENTS_MAX as usize * FRAGMENT_BYTES_MIN;

/// CRC32C (Castagnoli) of `bytes`.
#[must_use]
pub fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}
