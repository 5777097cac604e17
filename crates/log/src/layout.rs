//! Offsets in the image (`docs/spec/ordered-log.md` §3).
//!
//! ```text
//! 0          4096       8192                    8192 + entries·64        + frame_bytes
//! +----------+----------+-----------------------+------------------------+
//! | super 0  | super 1  | metadata ring         | frame space            |
//! +----------+----------+-----------------------+------------------------+
//! ```
//! All numbers on the medium are little-endian. This module computes offsets and nothing else.

use std::ops::Range;

/// Size of a block in bytes: superblocks occupy whole blocks, and file media write whole blocks.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes of an entry of the metadata ring: one cache line.
pub const ENTRY_BYTES: usize = 64;
/// Alignment of every frame in the frame ring, in bytes: one cache line.
pub const FRAME_ALIGN: usize = 64;
/// Minimum number of entries of a log: one block of metadata.
pub const ENTRIES_MIN: u64 = 64;
/// Maximum number of entries of a log (4 GiB of metadata).
pub const ENTRIES_MAX: u64 = 1 << 26;
/// Smallest frame ring, in bytes.
pub const FRAME_RING_BYTES_MIN: u64 = 4096;
/// Largest frame ring, in bytes. Lines of 64 bytes in it are addressed by 32-bit numbers.
pub const FRAME_RING_BYTES_MAX: u64 = 1 << 38;

/// Possible sizes of a packet buffer, in bytes: those that AF_XDP accepts.
pub const BUFFER_BYTES: [u32; 2] = [2048, 4096];
/// Minimum number of packet buffers of a log.
pub const BUFFERS_MIN: u64 = 16;

const BLOCK_BYTES_U64: u64 = 4096;
const METADATA_OFFSET: usize = 2 * BLOCK_BYTES;

/// Identity of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// A random number from the creation of the log; part of every checksum.
    pub log_uuid: u128,
    /// Device id (protocol.md §1).
    pub device: u32,
    /// Shard number (protocol.md §1).
    pub shard: u32,
}

/// The division of the frame space, fixed when a log is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSpace {
    /// A ring: frames follow each other in order (`docs/spec/ordered-log.md` §4).
    Ring,
    /// Packet buffers of this many bytes, 2048 or 4096. The network decides in which buffer a frame lies
    /// (`docs/spec/ordered-log.md` §11).
    Buffers(u32),
}

/// Size of a log, fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Slots of the metadata ring: a power of two from [`ENTRIES_MIN`] to [`ENTRIES_MAX`].
    pub entries: u64,
    /// Bytes of the frame space: a multiple of 4096 from [`FRAME_RING_BYTES_MIN`] (packet buffers: [`BUFFERS_MIN`] of
    /// them) to [`FRAME_RING_BYTES_MAX`].
    pub frame_bytes: u64,
    /// Kind of the frame space.
    pub space: FrameSpace,
}

/// The parameters break a bound of `docs/spec/ordered-log.md` §3; the text names the bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad log parameters: {0}")]
pub struct BadParameters(String);

impl std::fmt::Display for Parameters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} entries and {} frame bytes",
            self.entries, self.frame_bytes
        )?;
        match self.space {
            FrameSpace::Ring => Ok(()),
            FrameSpace::Buffers(bytes) => write!(f, " in packet buffers of {bytes}"),
        }
    }
}

impl Parameters {
    /// Returns the parameters of a log whose frame space is a ring.
    #[must_use]
    pub const fn ring(entries: u64, frame_bytes: u64) -> Parameters {
        Parameters {
            entries,
            frame_bytes,
            space: FrameSpace::Ring,
        }
    }

    /// Returns the parameters of a log whose frame space is packet buffers of `buffer_bytes` bytes.
    #[must_use]
    pub const fn buffers(entries: u64, frame_bytes: u64, buffer_bytes: u32) -> Parameters {
        Parameters {
            entries,
            frame_bytes,
            space: FrameSpace::Buffers(buffer_bytes),
        }
    }

    /// Checks the bounds.
    ///
    /// # Errors
    /// [`BadParameters`], which names the broken bound.
    pub fn validate(&self) -> Result<(), BadParameters> {
        let bad = |why: String| Err(BadParameters(why));
        if !self.entries.is_power_of_two() || !(ENTRIES_MIN..=ENTRIES_MAX).contains(&self.entries) {
            return bad(format!(
                "{} entries: must be a power of two from {ENTRIES_MIN} to {ENTRIES_MAX}",
                self.entries
            ));
        }
        if !self.frame_bytes.is_multiple_of(BLOCK_BYTES_U64)
            || !(FRAME_RING_BYTES_MIN..=FRAME_RING_BYTES_MAX).contains(&self.frame_bytes)
        {
            return bad(format!(
                "{} frame bytes: must be a multiple of 4096 from {FRAME_RING_BYTES_MIN} to {FRAME_RING_BYTES_MAX}",
                self.frame_bytes
            ));
        }
        let FrameSpace::Buffers(bytes) = self.space else {
            return Ok(());
        };
        if !BUFFER_BYTES.contains(&bytes) {
            return bad(format!("buffers of {bytes} bytes: must be 2048 or 4096"));
        }
        let buffers = self.frame_bytes / u64::from(bytes);
        if !(BUFFERS_MIN..=u64::from(u32::MAX)).contains(&buffers) {
            return bad(format!(
                "{} frame bytes are {buffers} buffers of {bytes} bytes: at least {BUFFERS_MIN} are needed",
                self.frame_bytes
            ));
        }
        Ok(())
    }

    /// Returns the range of the frame space in the image, in bytes; it begins at a multiple of 4096.
    #[must_use]
    pub fn frame_space(&self) -> Range<usize> {
        let start = self.frames_offset();
        start..start + to_usize(self.frame_bytes)
    }

    /// Returns the length of the whole image in bytes: superblocks, metadata ring, frame space. The length is a
    /// multiple of 4096 for parameters that [`Parameters::validate`] accepts.
    #[must_use]
    pub fn image_bytes(&self) -> usize {
        self.frames_offset()
            .saturating_add(to_usize(self.frame_bytes))
    }

    /// Returns the offset of the metadata ring, in bytes.
    pub(crate) const fn metadata_offset(&self) -> usize {
        METADATA_OFFSET
    }

    /// Returns the offset of the frame space in bytes, which is the end of the metadata ring.
    pub(crate) fn frames_offset(&self) -> usize {
        METADATA_OFFSET.saturating_add(to_usize(self.entries).saturating_mul(ENTRY_BYTES))
    }

    /// Returns the slot of an order.
    pub(crate) const fn slot(&self, order: u64) -> u64 {
        order & (self.entries - 1)
    }

    /// Returns the lap of the metadata ring in which an order lies. The lap is part of the entry's checksum.
    pub(crate) const fn generation(&self, order: u64) -> u64 {
        order / self.entries
    }

    /// Returns the offset of a slot in the image, in bytes.
    pub(crate) fn slot_offset(&self, slot: u64) -> usize {
        METADATA_OFFSET + to_usize(slot) * ENTRY_BYTES
    }

    /// Returns the ranges in the image of the slots of `first ..= last`: one range, or two ranges if the ring wraps
    /// between them.
    pub(crate) fn metadata_ranges(
        &self,
        first: u64,
        last: u64,
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        let (start, count) = (
            self.slot_offset(self.slot(first)),
            to_usize(last - first + 1) * ENTRY_BYTES,
        );
        let end = self.frames_offset();
        let before_end = count.min(end - start);
        let base = self.metadata_offset();
        [start..start + before_end, base..base + (count - before_end)]
            .into_iter()
            .filter(|range| !range.is_empty())
    }
}

/// Converts `u64` to `usize`, for numbers below the length of an image in memory.
pub(crate) fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("an image offset fits the address space")
}

/// Converts `usize` to `u64`, which cannot fail on any platform that Rust supports.
pub(crate) fn to_u64(value: usize) -> u64 {
    u64::try_from(value).expect("usize is at most 64 bits")
}

/// Copies `N` bytes at `at`. Callers pass offsets inside fixed-size arrays.
pub(crate) fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice has N bytes")
}
