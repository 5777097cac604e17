//! Measures the waiting time of the oldest entry that is not applied. The loop that appends entries needs no clock for
//! this.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Maximum number of marks. If there are more, every second mark is dropped. The lag is then less exact, but never too
/// short.
const MARKS_MAX: usize = 512;

/// The highest orders at some earlier moments.
#[derive(Debug, Default)]
pub struct Lag {
    /// Each mark has the highest order, and the time at which it was read. Orders and times increase.
    marks: VecDeque<(u64, Instant)>,
}

impl Lag {
    /// Notes the highest order and the highest applied order at this moment.
    pub fn note(&mut self, last: u64, applied: u64, now: Instant) {
        while self
            .marks
            .get(1)
            .is_some_and(|(order, _)| *order <= applied)
        {
            self.marks.pop_front();
        }
        // The log has been erased or replaced, so the marks are no longer valid.
        if self.marks.back().is_some_and(|(order, _)| *order > last) {
            self.marks.clear();
        }
        match self.marks.back_mut() {
            // If several moments have the same order, only the last of them counts, because the next order came later.
            Some((order, at)) if *order == last => *at = now,
            _ => self.marks.push_back((last, now)),
        }
        if self.marks.len() > MARKS_MAX {
            let mut nth = 0;
            self.marks.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
        }
    }

    /// Returns the waiting time of the order that follows `applied`. The result may be too long by the distance of two
    /// marks. Zero: no entry is waiting.
    pub fn oldest(&self, last: u64, applied: u64, now: Instant) -> Duration {
        if applied >= last {
            return Duration::ZERO;
        }
        let before = self.marks.iter().rev().find(|(order, _)| *order <= applied);
        let since = before.or_else(|| self.marks.front());
        since.map_or(Duration::ZERO, |(_, at)| now.duration_since(*at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lag_is_that_of_the_oldest_order_that_is_not_applied() {
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let mut lag = Lag::default();
        for step in 0..=20_u64 {
            lag.note(step * 10, 0, at(step * 250));
        }
        let oldest = |lag: &Lag, applied| lag.oldest(200, applied, at(5000)).as_millis();
        assert_eq!(oldest(&lag, 0), 5000);
        assert_eq!(
            oldest(&lag, 9),
            5000,
            "order 10 may be as old as the mark before it"
        );
        assert_eq!(oldest(&lag, 10), 4750);
        assert_eq!(oldest(&lag, 195), 250);
        assert_eq!(oldest(&lag, 200), 0);
        lag.note(200, 100, at(6000));
        assert!(lag.marks.len() < 15, "{:?}", lag.marks.len());
        assert_eq!(lag.oldest(200, 100, at(6000)).as_millis(), 3500);
    }

    #[test]
    fn an_idle_log_has_no_lag_when_an_order_comes() {
        let begin = Instant::now();
        let mut lag = Lag::default();
        for second in 0..100 {
            lag.note(7, 7, begin + Duration::from_secs(second));
        }
        let now = begin + Duration::from_secs(100);
        assert_eq!(lag.oldest(8, 7, now), Duration::from_secs(1));
        assert_eq!(lag.marks.len(), 1);
    }

    #[test]
    fn marks_are_bounded_and_an_erased_log_begins_anew() {
        let begin = Instant::now();
        let mut lag = Lag::default();
        for step in 0..100_000 {
            lag.note(step, 0, begin + Duration::from_millis(step));
            assert!(lag.marks.len() <= MARKS_MAX);
        }
        let now = begin + Duration::from_secs(100);
        assert_eq!(lag.oldest(99_999, 0, now), Duration::from_secs(100));
        assert!(
            lag.oldest(99_999, 50_000, now) >= Duration::from_secs(50) - Duration::from_millis(1)
        );
        lag.note(3, 0, now);
        assert_eq!(lag.marks.len(), 1);
    }
}
