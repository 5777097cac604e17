//! A medium that measures how long its persists take.

use std::ops::Range;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use pmnet_log::{Media, MediaError};

/// A medium, and the total time and number of its persists.
pub struct Watched<M> {
    medium: M,
    persisting: Duration,
    persists: u32,
}

impl<M> Watched<M> {
    pub fn new(medium: M) -> Watched<M> {
        Watched {
            medium,
            persisting: Duration::ZERO,
            persists: 0,
        }
    }

    /// Returns the total time and the number of persists so far.
    pub const fn so_far(&self) -> (Duration, u32) {
        (self.persisting, self.persists)
    }
}

impl<M: Media> Media for Watched<M> {
    fn bytes(&self) -> &[u8] {
        self.medium.bytes()
    }

    fn part(&self, range: Range<usize>) -> &[u8] {
        self.medium.part(range)
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.medium.store(offset, bytes);
    }

    fn persist_start(&mut self, ranges: &[Range<usize>]) -> Result<(), MediaError> {
        let started = Instant::now();
        let result = self.medium.persist_start(ranges);
        self.persisting += started.elapsed();
        self.persists += 1;
        result
    }

    fn persist_poll(&mut self, wait: bool) -> Result<bool, MediaError> {
        self.medium.persist_poll(wait)
    }

    fn wakeup_fd(&self) -> Option<RawFd> {
        self.medium.wakeup_fd()
    }

    fn survives(&self) -> &'static str {
        self.medium.survives()
    }

    fn name(&self) -> &'static str {
        self.medium.name()
    }
}
