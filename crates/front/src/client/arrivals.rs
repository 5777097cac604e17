//! When the bytes of a client's input arrived: a command's time runs from then on.

use std::collections::VecDeque;

use crate::upstream::Time;

/// Most arrival times that are remembered. Further bytes count as arrived with the last ones.
const MOMENTS_MAX: usize = 64;
/// Bytes that arrive within this part of a command's time count as arrived together.
const PARTS_PER_TIMEOUT: Time = 16;

/// When the bytes of an input came, oldest first.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Notes that this many bytes came at this time.
    moments: VecDeque<(usize, Time)>,
    /// All of them together.
    bytes: usize,
}

impl Arrivals {
    /// The input has `len` bytes now. `timeout`: a command's time.
    pub(super) fn note(&mut self, len: usize, now: Time, timeout: Time) {
        let more = len.saturating_sub(self.bytes);
        if more == 0 {
            return;
        }
        self.bytes = len;
        let full = self.moments.len() >= MOMENTS_MAX;
        match self.moments.back_mut() {
            Some((bytes, at)) if now < at.saturating_add(timeout / PARTS_PER_TIMEOUT) => {
                *bytes += more;
            }
            Some((bytes, at)) if full => {
                *bytes += more;
                *at = now;
            }
            _ => self.moments.push_back((more, now)),
        }
    }

    /// `count` bytes were taken from the head of the input.
    pub(super) fn take(&mut self, mut count: usize) {
        self.bytes = self.bytes.saturating_sub(count);
        while let Some((bytes, _)) = self.moments.front_mut() {
            if *bytes > count {
                *bytes -= count;
                return;
            }
            count -= *bytes;
            self.moments.pop_front();
        }
    }

    /// When the byte at the head of the input came.
    pub(super) fn oldest(&self) -> Option<Time> {
        self.moments.front().map(|(_, at)| *at)
    }

    /// The input has no whole command: what is there counts as arrived with its rest.
    pub(super) fn await_rest(&mut self) {
        *self = Arrivals::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Time = 1600;

    #[test]
    fn bytes_are_as_old_as_their_burst() {
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.oldest(), None);
        arrivals.note(10, 0, TIMEOUT);
        arrivals.note(20, 99, TIMEOUT);
        arrivals.note(25, 100, TIMEOUT);
        arrivals.note(25, 500, TIMEOUT);
        for (count, oldest) in [(19, Some(0)), (1, Some(100)), (4, Some(100)), (1, None)] {
            arrivals.take(count);
            assert_eq!(arrivals.oldest(), oldest);
        }
        arrivals.note(5, 700, TIMEOUT);
        assert_eq!(arrivals.oldest(), Some(700));
        // What is a part of a command waits for the rest.
        arrivals.await_rest();
        arrivals.note(6, 9000, TIMEOUT);
        assert_eq!(arrivals.oldest(), Some(9000));
    }

    #[test]
    fn drops_without_end_are_bounded_and_never_count_as_older_than_they_are() {
        let mut arrivals = Arrivals::default();
        for count in 1..1000 {
            arrivals.note(count, Time::try_from(count).unwrap() * 100, TIMEOUT);
        }
        assert_eq!(arrivals.moments.len(), MOMENTS_MAX);
        for byte in 1..1000 {
            let at = arrivals.oldest().unwrap();
            assert!(at >= byte * 100, "{byte}: {at}");
            arrivals.take(1);
        }
        assert_eq!(arrivals.oldest(), None);
    }
}
