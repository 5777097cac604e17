//! `trait Media`: every store, flush and fence of a log goes through this interface (`docs/spec/ordered-log.md` §2).
//!
//! When a persist is complete, each range that it covers is durable, with the contents of the persist's start or with
//! newer contents. A medium does not promise any order between two stores without a completed persist between them. A
//! store may also become durable before it is persisted. The atomic unit is an aligned store of 8 bytes.

use std::io;
use std::ops::Range;
use std::os::fd::RawFd;

/// A memory image with persistence.
pub trait Media: Send {
    /// Returns the image as the CPU sees it: with every store so far, durable or not.
    fn bytes(&self) -> &[u8];

    /// Returns a part of the image. A running log reads only through this method, because another component may be
    /// storing into other parts of the same memory at the same time (a NIC into packet buffers).
    ///
    /// # Panics
    /// If the range is not inside the image.
    fn part(&self, range: Range<usize>) -> &[u8] {
        &self.bytes()[range]
    }

    /// Stores `bytes` at `offset` of the image; not durable yet.
    ///
    /// # Panics
    /// If the range is not inside the image. The log never does this.
    fn store(&mut self, offset: usize, bytes: &[u8]);

    /// Begins to make the listed byte ranges durable, all of them as one persist.
    ///
    /// # Errors
    /// [`MediaError`]. After an error it is unknown which bytes of the ranges are durable, and the medium refuses every
    /// later persist.
    ///
    /// # Panics
    /// If a persist is in flight already.
    fn persist_start(&mut self, ranges: &[Range<usize>]) -> Result<(), MediaError>;

    /// Returns true if the persist in flight is complete, or if no persist is in flight. With `wait` the call blocks
    /// until the persist is complete, but not longer than the medium's own deadline.
    ///
    /// # Errors
    /// [`MediaError`], among them [`MediaError::Stalled`] when the deadline has passed.
    fn persist_poll(&mut self, wait: bool) -> Result<bool, MediaError>;

    /// Returns a file descriptor that becomes readable when `persist_poll` has work; `None` if the medium's persists
    /// are complete when `persist_start` returns.
    fn wakeup_fd(&self) -> Option<RawFd>;

    /// Returns a text with the failures that an acknowledgement survives if it rests on this medium alone.
    fn survives(&self) -> &'static str;

    /// Returns a short name for status and metrics: "file", "dram", …
    fn name(&self) -> &'static str;
}

/// Reason why a medium could not make something durable.
#[derive(Debug, thiserror::Error)]
pub enum MediaError {
    /// The operating system returned an error.
    #[error("{what}: {source}")]
    Io {
        /// The attempted operation with its path, and advice.
        what: String,
        /// Error of the system.
        source: io::Error,
    },
    /// A persist did not complete in time.
    #[error(
        "PM1214 the medium did not complete a persist within {seconds} s: check the disk, then restart the device"
    )]
    Stalled {
        /// Deadline that passed, in seconds.
        seconds: u64,
    },
    /// The image was opened for reading only.
    #[error("the log was opened read-only; nothing was written")]
    ReadOnly,
    /// An earlier persist failed, so the contents of the medium are unknown until it is scanned again.
    #[error(
        "PM1215 an earlier persist failed, so the log accepts no more: repair the medium, then restart the device"
    )]
    Failed,
}

macro_rules! delegate {
    () => {
        fn bytes(&self) -> &[u8] {
            (**self).bytes()
        }
        fn part(&self, range: Range<usize>) -> &[u8] {
            (**self).part(range)
        }
        fn store(&mut self, offset: usize, bytes: &[u8]) {
            (**self).store(offset, bytes);
        }
        fn persist_start(&mut self, ranges: &[Range<usize>]) -> Result<(), MediaError> {
            (**self).persist_start(ranges)
        }
        fn persist_poll(&mut self, wait: bool) -> Result<bool, MediaError> {
            (**self).persist_poll(wait)
        }
        fn wakeup_fd(&self) -> Option<RawFd> {
            (**self).wakeup_fd()
        }
        fn survives(&self) -> &'static str {
            (**self).survives()
        }
        fn name(&self) -> &'static str {
            (**self).name()
        }
    };
}

impl<M: Media + ?Sized> Media for Box<M> {
    delegate!();
}

impl<M: Media + ?Sized> Media for &mut M {
    delegate!();
}

/// Persists `ranges` and waits until they are durable (slow path: superblocks, repair).
pub(crate) fn persist_now<M: Media>(
    media: &mut M,
    ranges: &[Range<usize>],
) -> Result<(), MediaError> {
    media.persist_start(ranges)?;
    if media.persist_poll(true)? {
        Ok(())
    } else {
        Err(MediaError::Failed)
    }
}
