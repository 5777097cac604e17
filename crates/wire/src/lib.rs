//! Every packet of the pmnet protocol: checked views of packets, headers and records, and the languages of payloads.
//!
//! Purpose: only this crate knows the meaning of bytes on the wire (`docs/spec/wire.md`). Invariants: parsing never
//! panics, and never allocates by an unchecked length. If a parsed packet is emitted, the bytes are the same. This
//! crate does no IO and reads no clock.

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

/// Maximum number of payload bytes of one packet. No hop sends or accepts more. Such a packet fits an Ethernet MTU of
/// 1500 bytes with IPv6 and the pmnet header; the number is rounded down to a cache line: 1500 − 40 (IPv6) − 8 (UDP) −
/// 88 = 1364 → 1344. A sender may use a smaller size, which depends on the path ([`FragmentSize`]).
pub const FRAGMENT_BYTES: usize = 1344;
/// Maximum number of payload bytes that fit every path, by the MTU that IPv6 guarantees: 1280 − 40 − 8 − 88. Until a
/// sender knows the shard's size, its packets carry at most this number.
pub const FRAGMENT_BYTES_MIN: usize = 1144;

/// Largest datagram that any hop sends or accepts, in bytes (header and payload).
pub const DATAGRAM_BYTES_MAX: usize = HEADER_LEN + FRAGMENT_BYTES;

/// Largest value in an update or bypass, in bytes; the command's name, the key and the preamble are not counted
/// (protocol.md §11).
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Maximum number of fragments of one message: enough for a value of `MESSAGE_BYTES_MAX` and the rest of the command in
/// the smallest fragments.
pub const FRAGMENTS_MAX: u16 = 15_000;

/// Longest reply of a store, in bytes: as much as [`FRAGMENTS_MAX`] fragments of the smallest size carry.
pub const REPLY_BYTES_MAX: usize = FRAGMENTS_MAX as usize * FRAGMENT_BYTES_MIN;

/// Returns the CRC32C (Castagnoli) of `bytes`.
#[must_use]
pub fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}
