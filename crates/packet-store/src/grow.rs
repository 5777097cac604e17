//! Copies a store, or a region, into a larger image (`docs/spec/packet-store.md` §13).
//!
//! In the copy, every line keeps its slot, every frame its number, and every log entry its slot. Their contents do not
//! change. So all checksums stay valid, including those of log entries that the store has not applied yet. Only the
//! offsets and the superblocks differ. Invariant: until the copy is whole and durable, nothing in the copy marks it as
//! a store.

use std::ops::Range;
use std::os::fd::RawFd;

use pmnet_log::{Decision, LogError, Media, MediaError};

use crate::error::OpenError;
use crate::geometry::{BLOCK_BYTES, FRAMES_MAX, Geometry, LINE_BYTES, LINES_MAX, is_zero, to_u64};
use crate::medium::persist_now;
use crate::scan::Scan;
use crate::shared::largest;
use crate::superblock;

/// Number of bytes that are copied and persisted in one step.
const PIECE: usize = 4 << 20;
/// A larger store has at least one line for this many bytes of frames.
const FRAME_BYTES_PER_LINE: u64 = 256;

/// A read-only view of an image that has another owner.
struct View<'a>(&'a [u8]);

impl Media for View<'_> {
    fn bytes(&self) -> &[u8] {
        self.0
    }
    fn store(&mut self, _: usize, _: &[u8]) {
        unreachable!("a scan stores nothing")
    }
    fn persist_start(&mut self, _: &[Range<usize>]) -> Result<(), MediaError> {
        Err(MediaError::ReadOnly)
    }
    fn persist_poll(&mut self, _: bool) -> Result<bool, MediaError> {
        Err(MediaError::ReadOnly)
    }
    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }
    fn survives(&self) -> &'static str {
        "nothing"
    }
    fn name(&self) -> &'static str {
        "view"
    }
}

impl Geometry {
    /// Returns the geometry of a larger image for this store or region, which fits into `size` bytes. The number of
    /// lines for each frame does not decrease, and there is at least one line for every 256 bytes of frames. The log
    /// keeps its number of entries.
    ///
    /// # Errors
    /// [`OpenError::Geometry`]: the size is not larger than the present size, or is too large.
    pub fn grown(&self, size: u64) -> Result<Geometry, OpenError> {
        let wrong = |why: String| OpenError::Geometry { why };
        let frame = u64::from(self.frame_bytes);
        let old_frames = u64::from(self.frames);
        let least = old_frames * frame / FRAME_BYTES_PER_LINE;
        let old_lines = u64::from(self.lines).max(least);
        let grown = if self.log_entries == 0 {
            let before = to_u64(self.table().start);
            let room = size.saturating_sub(before);
            let unit = u128::from(old_frames * frame + old_lines * to_u64(LINE_BYTES));
            let frames = u128::from(room) * u128::from(old_frames) / unit;
            let frames = u64::try_from(frames).unwrap_or(u64::MAX) / 2 * 2;
            let lines = (room - frames * frame) / to_u64(LINE_BYTES) / 64 * 64;
            Geometry {
                lines: u32::try_from(lines).unwrap_or(u32::MAX),
                frames: u32::try_from(frames).unwrap_or(u32::MAX),
                ..*self
            }
        } else {
            let of = |frames: u32| {
                let lines = u64::from(frames) * old_lines / old_frames;
                let geometry = Geometry {
                    lines: u32::try_from(lines.next_multiple_of(64)).unwrap_or(u32::MAX),
                    frames,
                    ..*self
                };
                geometry.validate().map(|()| geometry)
            };
            match largest(size, self.frame_bytes, of) {
                Err(error) if size / 2 > to_u64(self.image_bytes()) => return Err(error),
                // If the size is too small, the check below reports it.
                other => other.unwrap_or(*self),
            }
        };
        if grown.frames <= self.frames || grown.lines < self.lines {
            let now = to_u64(self.image_bytes());
            return Err(wrong(format!(
                "{size} bytes are not more than the {now} that it has: give a larger size"
            )));
        }
        if grown.frames > FRAMES_MAX || grown.lines > LINES_MAX {
            return Err(wrong(format!(
                "{size} bytes are more than a store can have: give a smaller size"
            )));
        }
        grown.validate()?;
        if let Some(log) = grown.log() {
            log.validate().map_err(|error| wrong(error.to_string()))?;
        }
        Ok(grown)
    }
}

impl<M: Media> Scan<M> {
    /// Returns what recovery decides about the log in the same region; `None`: the region has no log.
    #[must_use]
    pub fn log_decision(&self) -> Option<Result<Decision, LogError>> {
        self.geometry().log()?;
        let image = &self.media().bytes()[self.geometry().table().end..];
        Some(pmnet_log::Scan::open(View(image), None).map(|scan| scan.decide()))
    }

    /// Copies the image durably to `target`, as an image of the size `to` ([`Geometry::grown`]). After each piece,
    /// `progress` is called with the number of copied bytes and their total. If `progress` returns an error, the
    /// copying ends with this error.
    ///
    /// A crash at any moment leaves a target without a superblock, or a target with the complete copy.
    ///
    /// # Errors
    /// [`OpenError::Damaged`], [`OpenError::Truncated`] (the target is too small), [`OpenError::NotBlank`] (the place
    /// of its superblocks is not blank), [`OpenError::Media`], and the errors of `progress`.
    pub fn copy_to<N: Media, E: From<OpenError>>(
        &self,
        target: &mut N,
        to: &Geometry,
        progress: &mut dyn FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(loss) = self.loss() {
            return Err(OpenError::Damaged(Box::new(loss)).into());
        }
        let (image, needed) = (target.bytes().len(), to.image_bytes());
        if image < needed {
            return Err(OpenError::Truncated { image, needed }.into());
        }
        if !is_zero(&target.bytes()[..2 * BLOCK_BYTES]) {
            return Err(OpenError::NotBlank.into());
        }
        let from = self.geometry();
        let source = self.media().bytes();
        let commits_and_lines = 2 * BLOCK_BYTES..from.table().end;
        let head_at = to.table().end;
        let frames = from.frame_offset(0)..from.image_bytes();
        let total = to_u64(from.image_bytes() + (head_at - from.table().end));
        let mut done = 0;
        let mut put = |target: &mut N, at: usize, bytes: &[u8]| -> Result<(), E> {
            for (number, piece) in bytes.chunks(PIECE).enumerate() {
                let start = at + number * PIECE;
                target.store(start, piece);
                let place = start..start + piece.len();
                persist_now(target, &[place]).map_err(OpenError::Media)?;
                done += to_u64(piece.len());
                progress(done, total)?;
            }
            Ok(())
        };
        let start = commits_and_lines.start;
        put(target, start, &source[commits_and_lines])?;
        let zeros = vec![0; PIECE];
        let mut at = from.table().end;
        while at < head_at {
            let end = head_at.min(at + PIECE);
            put(target, at, &zeros[..end - at])?;
            at = end;
        }
        if from.log().is_some() {
            let head = &source[from.table().end..frames.start];
            let bytes = u64::from(to.frames) * u64::from(to.frame_bytes);
            let copies = pmnet_log::enlarged(head, bytes);
            put(target, head_at, &copies.concat())?;
            put(target, head_at + 2 * BLOCK_BYTES, &head[2 * BLOCK_BYTES..])?;
        }
        put(target, to.frame_offset(0), &source[frames])?;
        superblock::write(target, self.identity(), to)?;
        progress(total, total)
    }
}

#[cfg(test)]
#[path = "grow_tests.rs"]
mod tests;
