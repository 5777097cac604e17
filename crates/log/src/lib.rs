//! The ordered log: a ring of 64-byte entries indexed by order, and the frames they point to, in a ring or in
//! packet buffers, on a replaceable medium (`docs/spec/ordered-log.md`, `docs/spec/recovery.md`).
//!
//! Purpose: keep admitted packets in order, make them durable one burst at a time, and return them after a crash
//! exactly as they were, or report that they are damaged.
//!
//! Invariants: `applied ≤ durable ≤ last`. Every order that was reported durable survives the failures that the medium
//! survives. The log returns only what was appended. The log of another device or shard, or a damaged log, is never
//! written.
//!
//! This crate does no IO, reads no clock, draws no random numbers, and knows nothing of packets or networks. It reaches
//! the medium only through [`Media`].

mod buffers;
mod decide;
mod entry;
mod error;
mod frames;
mod held;
mod layout;
mod log;
mod media;
mod repair;
mod scan;
pub mod slots;
mod superblock;

pub use decide::{DAMAGED_ORDERS_LISTED_MAX, Decision, Slot, Summary, decide};
pub use entry::{Entry, FRAME_LEN_MAX, HEADER_LEN_MAX, InvalidSlot, NewEntry, Payloads, frame_at};
pub use error::{Full, LogError, WHEN_DAMAGED};
pub use held::Held;
pub use layout::{
    BLOCK_BYTES, BUFFER_BYTES, BUFFERS_MIN, BadParameters, ENTRIES_MAX, ENTRIES_MIN, ENTRY_BYTES,
    FRAME_ALIGN, FRAME_RING_BYTES_MAX, FRAME_RING_BYTES_MIN, FrameSpace, Identity, Parameters,
};
pub use log::{Log, Room, Tail};
pub use media::{Media, MediaError};
pub use scan::{Expected, FINDINGS_MAX, Finding, Report, Scan};
pub use superblock::{CopyState, FORMAT_VERSION, Heading, enlarged, format, heading, parameters};
