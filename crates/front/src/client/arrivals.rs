//! The times when the bytes of a client's input arrived. The deadline of a command counts from the arrival of the
//! command's bytes.

use std::collections::VecDeque;

use crate::upstream::Time;

/// Maximum number of arrival times that are kept. Once this many times are kept, further bytes count as arrived at the
/// last of these times.
const MOMENTS_MAX: usize = 64;
/// Bytes that arrive within `timeout / PARTS_PER_TIMEOUT` count as arrived together.
const PARTS_PER_TIMEOUT: Time = 16;

/// Arrival times of the bytes in an input, oldest first.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Each entry: a number of bytes, and the time at which they arrived.
    moments: VecDeque<(usize, Time)>,
    /// Sum of the bytes in `moments`.
    bytes: usize,
}

impl Arrivals {
    /// Notes that the input has `len` bytes now. `timeout`: the time within which a command must be answered.
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

    /// Notes that `count` bytes were taken from the head of the input.
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

    /// Returns the time when the byte at the head of the input arrived.
    pub(super) fn oldest(&self) -> Option<Time> {
        self.moments.front().map(|(_, at)| *at)
    }

    /// Notes that the input has no whole command: the bytes of the input count as arrived when the rest of the command
    /// arrives.
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
        // The bytes of an incomplete command wait for the rest of the command.
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
