//! How stores reach persistent memory: the lines of some ranges, then one fence
//! (`docs/spec/ordered-log.md` §2).
//!
//! Invariants: a persist flushes every line that its ranges touch, in order, a line of two neighbouring ranges
//! once, and no other line; its fence comes last, and there is one. The loop is apart from the instructions, so
//! that a test can put a memory in their place that forgets what was not flushed.

use std::ops::Range;

/// Bytes of a cache line of x86-64: what one flush writes back, and what is lost as a whole without one.
pub const LINE: usize = 64;

/// The instructions of a persist.
pub trait Flush {
    /// Begins to write back the line at `offset` of the image, a multiple of [`LINE`].
    fn line(&mut self, offset: usize);

    /// Returns when everything that was stored and flushed before is in the memory's power-fail domain.
    fn fence(&mut self);
}

/// Flushes the lines of `ranges`, then fences once. Empty ranges are skipped.
pub fn persist(ranges: &[Range<usize>], flush: &mut impl Flush) {
    let mut last = None;
    for range in ranges.iter().filter(|range| !range.is_empty()) {
        for offset in (range.start / LINE * LINE..range.end).step_by(LINE) {
            if last != Some(offset) {
                flush.line(offset);
            }
            last = Some(offset);
        }
    }
    flush.fence();
}
