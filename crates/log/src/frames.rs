//! Allocation in the frame ring: contiguous, in order, 64-byte aligned, skipping to the start when
//! a frame does not fit before the end (`docs/spec/ordered-log.md` §4).
//!
//! Pure arithmetic on byte offsets; this module never sees the bytes. The caller passes `oldest`, the offset of the
//! oldest frame that must not be overwritten (`None`: there is no such frame).

use std::ops::Range;

use crate::buffers::Buffers;

/// Allocator of a frame space, by its kind.
#[derive(Debug)]
pub(crate) enum Frames {
    /// Frames follow each other.
    Ring(FrameRing),
    /// Each frame is in the packet buffer into which the network received it.
    Buffers(Buffers),
}

/// Place of the next frame in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameRing {
    size: usize,
    /// Offset of the end of the newest frame.
    head: usize,
    /// End of the last frame before the allocator last skipped to the start.
    lap_end: usize,
}

impl FrameRing {
    /// Returns a ring of `size` bytes whose newest frame ends at `head`.
    pub(crate) fn new(size: usize, head: usize) -> FrameRing {
        FrameRing {
            size,
            head,
            lap_end: 0,
        }
    }

    /// Allocates `bytes` (a multiple of 64). Returns the offset, or `None` if too little is free.
    pub(crate) fn allocate(&mut self, oldest: Option<usize>, bytes: usize) -> Option<usize> {
        let at = match oldest {
            None => (bytes <= self.size).then_some(0)?,
            Some(oldest) if self.head > oldest => {
                if self.size - self.head >= bytes {
                    self.head
                } else if bytes <= oldest {
                    self.lap_end = self.head;
                    0
                } else {
                    return None;
                }
            }
            // The newest frame is one lap later than the oldest frame. If the two offsets are equal, no byte is free.
            Some(oldest) => (bytes <= oldest - self.head).then_some(self.head)?,
        };
        self.head = at + bytes;
        Some(at)
    }

    /// Allocates `bytes` at the head of an empty ring. Recovery uses this function to place the oldest frame, which may
    /// begin anywhere.
    pub(crate) fn first(&mut self, bytes: usize) -> Option<usize> {
        let at = self.head;
        (bytes <= self.size - at).then_some(())?;
        self.head = at + bytes;
        Some(at)
    }

    /// Notes a frame that the fast path has placed by the rule of [`FrameRing::allocate`].
    pub(crate) fn follow(&mut self, at: usize, bytes: usize) {
        if at < self.head {
            self.lap_end = self.head;
        }
        self.head = at + bytes;
    }

    /// Returns the largest number of bytes that `allocate` would give now.
    pub(crate) fn largest(&self, oldest: Option<usize>) -> usize {
        match oldest {
            None => self.size,
            Some(oldest) if self.head > oldest => oldest.max(self.size - self.head),
            Some(oldest) => oldest - self.head,
        }
    }

    /// Returns the number of bytes from the frame at `oldest` up to `end`, with bytes that were skipped. `end`: start
    /// of another frame, or the head.
    pub(crate) fn distance(&self, oldest: usize, end: usize) -> usize {
        if end > oldest {
            end - oldest
        } else {
            self.size - oldest + end
        }
    }

    /// Returns the offset of the end of the newest frame.
    pub(crate) const fn head(&self) -> usize {
        self.head
    }

    /// Returns the bytes of all frames from the frame at `first` to the newest frame: one range, or two ranges if the
    /// allocator skipped to the start between them.
    pub(crate) fn since(&self, first: usize) -> [Range<usize>; 2] {
        if first < self.head {
            [first..self.head, 0..0]
        } else {
            [first..self.lap_end, 0..self.head]
        }
    }

    /// Returns these ranges as ranges of an image in which the ring begins at `base`.
    pub(crate) fn image_ranges(
        &self,
        base: usize,
        first: usize,
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        debug_assert!(first < self.size, "a frame begins inside the ring");
        self.since(first)
            .map(|range| base + range.start..base + range.end)
            .into_iter()
            .filter(|range| !range.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_to_the_start_and_never_overwrites() {
        let mut ring = FrameRing::new(256, 0);
        assert_eq!(ring.allocate(None, 128), Some(0));
        assert_eq!(ring.allocate(Some(0), 64), Some(128));
        // 64 bytes are free before the end of the ring, and no bytes before the oldest frame.
        assert_eq!(ring.allocate(Some(0), 128), None);
        // The oldest frame has been released: the new frame skips to the start, and the 64 bytes at the end stay unused
        // in this lap.
        assert_eq!(ring.allocate(Some(128), 128), Some(0));
        assert_eq!(ring.since(128), [128..192, 0..128]);
        assert_eq!(ring.largest(Some(128)), 0);
        assert_eq!(ring.allocate(Some(128), 64), None);
        assert_eq!(ring.distance(128, ring.head()), 256);
        assert_eq!(ring.allocate(None, 256), Some(0));
        assert_eq!(ring.allocate(None, 320), None);
    }

    #[test]
    fn exactly_full_is_not_empty() {
        let mut ring = FrameRing::new(128, 0);
        assert_eq!(ring.allocate(None, 128), Some(0));
        assert_eq!(ring.head(), 128);
        assert_eq!(ring.allocate(Some(0), 64), None);
        assert_eq!(ring.largest(Some(0)), 0);
    }
}
