//! Offsets in the image (`docs/spec/packet-store.md` §2).
//!
//! ```text
//! 0         4096      8192       12288      16384              16384 + lines·64
//! +---------+---------+----------+----------+------------------+-----------------------+
//! | super 0 | super 1 | commit 0 | commit 1 | table of lines   | frames                |
//! +---------+---------+----------+----------+------------------+-----------------------+
//! ```
//! In a region that a log shares, the log's head lies between the table and the frames (`docs/spec/packet-store.md`
//! §11). All numbers on the medium are little-endian. This module only computes offsets and sizes.

use std::ops::Range;

use pmnet_log::{ENTRIES_MAX, ENTRIES_MIN, Parameters};

use crate::error::OpenError;

/// Size of a block in bytes. Superblocks and commit records occupy whole blocks, and file media write whole blocks.
pub const BLOCK_BYTES: usize = 4096;
/// Size of a line in bytes: one cache line.
pub const LINE_BYTES: usize = 64;
/// Sizes that a frame may have, in bytes. Packet buffers have the same sizes.
pub const FRAME_BYTES: [u32; 2] = [2048, 4096];
/// The number of lines is a multiple of this number, so that the lines fill whole blocks.
const LINES_UNIT: u32 = 64;
/// Minimum number of lines of a store.
pub const LINES_MIN: u32 = 128;
/// Maximum number of lines of a store (64 GiB of lines).
pub const LINES_MAX: u32 = 1 << 30;
/// Minimum number of frames of a store.
pub const FRAMES_MIN: u32 = 32;
/// Maximum number of frames of a store.
pub const FRAMES_MAX: u32 = 1 << 30;
/// A store of which only the size is given gets one line for this many bytes of frames.
const FRAME_BYTES_PER_LINE: u64 = 256;

const COMMITS: usize = 2 * BLOCK_BYTES;
const TABLE: usize = 4 * BLOCK_BYTES;

/// The size of a store, which is fixed when the store is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of lines: a multiple of 64 from [`LINES_MIN`] to [`LINES_MAX`]. Each record takes one line for each frame
    /// in which a part of the record lies.
    pub lines: u32,
    /// Number of frames, from [`FRAMES_MIN`] to [`FRAMES_MAX`]; an even number if frames have 2048 bytes.
    pub frames: u32,
    /// Size of a frame in bytes, one of [`FRAME_BYTES`].
    pub frame_bytes: u32,
    /// Number of entries of the log that has its packet buffers in the frames; 0: there is no log.
    pub log_entries: u32,
}

impl Geometry {
    /// Returns the largest store that fits into `bytes`, with one line for every 256 bytes of frames.
    ///
    /// # Errors
    /// [`OpenError::Geometry`] if `bytes` is too small or too large.
    pub fn for_size(bytes: u64, frame_bytes: u32) -> Result<Geometry, OpenError> {
        let wrong = || OpenError::Geometry {
            why: format!("{bytes} bytes are too few or too many"),
        };
        let room = bytes.checked_sub(to_u64(TABLE)).ok_or_else(wrong)?;
        let pairs = room / (FRAME_BYTES_PER_LINE + to_u64(LINE_BYTES));
        let unit = u64::from(LINES_UNIT);
        let lines = pairs / unit * unit;
        let frames = (room - lines * to_u64(LINE_BYTES)) / u64::from(frame_bytes.max(1));
        let geometry = Geometry {
            lines: u32::try_from(lines).map_err(|_| wrong())?,
            frames: u32::try_from(frames / 2 * 2).map_err(|_| wrong())?,
            frame_bytes,
            log_entries: 0,
        };
        geometry.validate()?;
        Ok(geometry)
    }

    /// Returns the largest store with this many lines that fits into `bytes`.
    ///
    /// # Errors
    /// [`OpenError::Geometry`] if no store can have this size.
    pub fn with_lines(bytes: u64, frame_bytes: u32, lines: u32) -> Result<Geometry, OpenError> {
        let before = to_u64(TABLE) + u64::from(lines) * to_u64(LINE_BYTES);
        let frames = bytes.saturating_sub(before) / u64::from(frame_bytes.max(1));
        let geometry = Geometry {
            lines,
            frames: u32::try_from(frames / 2 * 2).unwrap_or(u32::MAX),
            frame_bytes,
            log_entries: 0,
        };
        geometry.validate()?;
        Ok(geometry)
    }

    /// Checks whether a store can have this size.
    ///
    /// # Errors
    /// [`OpenError::Geometry`] with the reason why no store can have it.
    pub fn validate(&self) -> Result<(), OpenError> {
        let wrong = |why: String| Err(OpenError::Geometry { why });
        if !(LINES_MIN..=LINES_MAX).contains(&self.lines) || !self.lines.is_multiple_of(LINES_UNIT)
        {
            return wrong(format!(
                "{} lines: a multiple of {LINES_UNIT} from {LINES_MIN} to {LINES_MAX} is possible",
                self.lines
            ));
        }
        if !FRAME_BYTES.contains(&self.frame_bytes) {
            return wrong(format!(
                "frames of {} bytes: 2048 and 4096 are possible",
                self.frame_bytes
            ));
        }
        let blocks = (u64::from(self.frames) * u64::from(self.frame_bytes))
            .is_multiple_of(to_u64(BLOCK_BYTES));
        if !(FRAMES_MIN..=FRAMES_MAX).contains(&self.frames) || !blocks {
            return wrong(format!(
                "{} frames: whole blocks of {BLOCK_BYTES} bytes, from {FRAMES_MIN} to {FRAMES_MAX} frames, are possible",
                self.frames
            ));
        }
        let entries = u64::from(self.log_entries);
        if self.log_entries != 0
            && !(self.log_entries.is_power_of_two()
                && (ENTRIES_MIN..=ENTRIES_MAX).contains(&entries))
        {
            return wrong(format!(
                "a log of {entries} entries: a power of two from {ENTRIES_MIN} to {ENTRIES_MAX} is possible"
            ));
        }
        Ok(())
    }

    /// Returns the parameters of the log that has its packet buffers in the frames.
    pub(crate) fn log(&self) -> Option<Parameters> {
        (self.log_entries != 0).then(|| {
            let bytes = u64::from(self.frames) * u64::from(self.frame_bytes);
            Parameters::buffers(u64::from(self.log_entries), bytes, self.frame_bytes)
        })
    }

    /// Returns the length of the whole image in bytes.
    #[must_use]
    pub fn image_bytes(&self) -> usize {
        self.frame_offset(self.frames)
    }

    /// Returns the range of a line in the image.
    pub(crate) fn line(&self, slot: u32) -> Range<usize> {
        debug_assert!(slot < self.lines, "slots are checked when they come in");
        let start = TABLE + index(slot) * LINE_BYTES;
        start..start + LINE_BYTES
    }

    /// Returns the range of all lines in the image.
    pub(crate) fn table(&self) -> Range<usize> {
        TABLE..TABLE + index(self.lines) * LINE_BYTES
    }

    /// Returns the offset of a frame in the image.
    pub(crate) fn frame_offset(&self, frame: u32) -> usize {
        let head = self.log().map_or(0, |log| log.frame_space().start);
        self.table().end + head + index(frame) * self.frame_len()
    }

    /// Returns the size of a frame in bytes.
    pub(crate) fn frame_len(&self) -> usize {
        index(self.frame_bytes)
    }
}

/// Returns the range in the image of the commit record that this commit uses.
pub(crate) fn commit_record(commit: u64) -> Range<usize> {
    let start = if commit.is_multiple_of(2) {
        COMMITS
    } else {
        COMMITS + BLOCK_BYTES
    };
    start..start + LINE_BYTES
}

/// Converts a number of 32 bits to an index.
pub(crate) fn index(number: u32) -> usize {
    usize::try_from(number).expect("u32 fits usize")
}

/// Converts a length to a number of 64 bits.
pub(crate) fn to_u64(number: usize) -> u64 {
    u64::try_from(number).expect("usize is at most 64 bits")
}

/// Returns `N` bytes at a fixed offset.
pub(crate) fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("a fixed place inside")
}

/// Returns the range extended to whole cache lines, because a medium flushes whole cache lines.
pub(crate) fn whole_lines(range: Range<usize>) -> Range<usize> {
    range.start / LINE_BYTES * LINE_BYTES..range.end.next_multiple_of(LINE_BYTES)
}

/// Returns whether every byte is zero. The function compares 64 bytes at a time, because images have gigabytes.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_gives_a_store_that_fits_into_it() {
        for (bytes, frame_bytes) in [
            (1 << 20, 2048),
            (1 << 20, 4096),
            (1 << 30, 4096),
            (5_000_000, 2048),
        ] {
            let geometry = Geometry::for_size(bytes, frame_bytes).unwrap();
            let taken = to_u64(geometry.image_bytes());
            assert!(
                taken <= bytes && taken > bytes * 9 / 10,
                "{bytes}: {geometry:?}"
            );
            assert!(taken.is_multiple_of(4096));
        }
        for (bytes, frame_bytes) in [
            (0, 4096),
            (100_000, 4096),
            (u64::MAX, 4096),
            (1 << 30, 1000),
            (1 << 30, 0),
        ] {
            assert!(
                Geometry::for_size(bytes, frame_bytes).is_err(),
                "{bytes} {frame_bytes}"
            );
        }
    }
}
