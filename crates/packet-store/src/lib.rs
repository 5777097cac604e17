//! The packet store: a durable ordered map whose records are packets (`docs/spec/packet-store.md`).
//!
//! Purpose: the buffer into which the network put a packet becomes the stored record. Other data is copied into frames.
//! A line of 64 bytes describes a record, and one commit record makes a whole transaction durable. All other state is
//! derived from the lines and the commit record. Invariants: records that a commit counts are never overwritten. A
//! value with a wrong checksum is never returned.
//!
//! This crate knows nothing of networks, protocols, files or clocks. The crate accesses a medium only through the trait
//! [`Media`](pmnet_log::Media).
//!
//! ```
//! # use pmnet_packet_store::{Geometry, Identity, Meta, Room, Scan, format};
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("store");
//! let geometry = Geometry::for_size(1 << 20, 4096)?;
//! let identity = Identity { uuid: 0x5eed, shard: 0 };
//! let mut medium = pmnet_media::create(&path, pmnet_media::Kind::Dram, geometry.image_bytes())?;
//! format(&mut medium, &identity, &geometry)?;
//! let mut store = Scan::open(medium, Some(0))?.repair()?;
//! let mut transaction = store.transaction();
//! transaction.put(b"greeting", b"hello", Meta::default(), Room::Ordinary)?;
//! transaction.commit()?;
//! let record = store.get(b"greeting")?.ok_or("no record")?;
//! assert_eq!(record.value(&mut Vec::new()), b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod commit;
mod error;
mod frames;
mod geometry;
mod grow;
mod keys;
mod line;
mod medium;
mod pack;
mod prefix;
mod range;
mod reader;
mod record;
mod scan;
mod shared;
mod store;
mod superblock;
mod transaction;

pub use commit::Commit;
pub use error::{DAMAGES_LISTED_MAX, Damage, Error, Loss, OpenError};
pub use frames::Room;
pub use geometry::{
    BLOCK_BYTES, FRAME_BYTES, FRAMES_MAX, FRAMES_MIN, Geometry, LINE_BYTES, LINES_MAX, LINES_MIN,
};
pub use line::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use prefix::Prefix;
pub use range::Range;
pub use record::{Meta, Record};
pub use scan::Scan;
pub use shared::{COPIED_BYTES_MAX, Change, Reading, Seat, Shared, SharedError, format_shared};
pub use store::{PacketStore, Snapshot, Stat};
pub use superblock::{FORMAT_VERSION, Identity, format};
pub use transaction::{InPlace, Packet, Transaction};
