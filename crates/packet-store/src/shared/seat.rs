//! One medium for a log and a store. Whichever of the two works holds the medium.

use std::ops::Range;
use std::os::fd::RawFd;

use pmnet_log::{Media, MediaError};

/// A holder of the medium. The seat is empty while the other seat holds the medium. The seat's owner sees the image
/// from byte `start` on.
///
/// # Panics
/// Every method panics while the other seat holds the medium. [`Shared`](super::Shared) moves the medium between the
/// seats.
#[derive(Debug)]
pub struct Seat<M> {
    medium: Option<Box<M>>,
    start: usize,
}

impl<M: Media> Seat<M> {
    pub(super) fn new(medium: Box<M>, start: usize) -> Seat<M> {
        Seat {
            medium: Some(medium),
            start,
        }
    }

    pub(super) fn take(&mut self) -> Box<M> {
        self.medium.take().expect("the medium is here")
    }

    /// Exchanges the contents of both seats.
    pub(super) fn swap(&mut self, other: &mut Seat<M>) {
        std::mem::swap(&mut self.medium, &mut other.medium);
    }

    /// Returns the medium. Its image is the whole region.
    #[must_use]
    pub fn medium(&self) -> &M {
        self.medium.as_ref().expect("the medium is here")
    }

    fn medium_mut(&mut self) -> &mut M {
        self.medium.as_mut().expect("the medium is here")
    }

    fn moved(&self, range: Range<usize>) -> Range<usize> {
        range.start + self.start..range.end + self.start
    }
}

impl<M: Media> Media for Seat<M> {
    fn bytes(&self) -> &[u8] {
        &self.medium().bytes()[self.start..]
    }
    fn part(&self, range: Range<usize>) -> &[u8] {
        self.medium().part(self.moved(range))
    }
    fn store(&mut self, offset: usize, bytes: &[u8]) {
        let start = self.start;
        self.medium_mut().store(start + offset, bytes);
    }
    fn persist_start(&mut self, ranges: &[Range<usize>]) -> Result<(), MediaError> {
        if self.start == 0 {
            return self.medium_mut().persist_start(ranges);
        }
        let moved: Vec<_> = ranges
            .iter()
            .map(|range| self.moved(range.clone()))
            .collect();
        self.medium_mut().persist_start(&moved)
    }
    fn persist_poll(&mut self, wait: bool) -> Result<bool, MediaError> {
        self.medium_mut().persist_poll(wait)
    }
    fn wakeup_fd(&self) -> Option<RawFd> {
        self.medium().wakeup_fd()
    }
    fn survives(&self) -> &'static str {
        self.medium().survives()
    }
    fn name(&self) -> &'static str {
        self.medium().name()
    }
}
