//! How stores reach persistent memory: the cache lines of some ranges are flushed, then one fence follows
//! (`docs/spec/ordered-log.md` §2).
//!
//! Invariants: a persist flushes every line that its ranges touch, in order, and no other line. It flushes a line once,
//! even if two neighbouring ranges share it. One fence comes last. The loop is separate from the instructions, so that
//! a test can use a memory that forgets unflushed stores.

use std::ops::Range;

/// Size of a cache line of x86-64 in bytes. One flush writes one line back. An unflushed line may be lost as a whole.
pub const LINE: usize = 64;

/// The instructions of a persist.
pub trait Flush {
    /// Begins to write back the line at `offset` of the image; `offset` is a multiple of [`LINE`].
    fn line(&mut self, offset: usize);

    /// Waits until all flushed stores are in the part of the memory that keeps its contents when power fails.
    fn fence(&mut self);
}

/// Flushes the lines of `ranges`; one fence follows. Empty ranges are skipped.
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
