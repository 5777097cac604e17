//! Retransmission timeout as in RFC 6298, with a configurable floor and a ceiling.

use crate::time::{MILLISECOND, Nanos};

/// Estimator of the retransmission timeout of one path.
#[derive(Clone, Debug)]
pub struct Rto {
    smoothed: Option<Nanos>,
    variation: Nanos,
    floor: Nanos,
    ceiling: Nanos,
    backoff: u32,
}

/// Timeout before the first measurement.
const INITIAL: Nanos = 50 * MILLISECOND;

impl Rto {
    /// Returns an estimator without a measurement.
    #[must_use]
    pub const fn new(floor: Nanos, ceiling: Nanos) -> Rto {
        Rto {
            smoothed: None,
            variation: 0,
            floor,
            ceiling,
            backoff: 0,
        }
    }

    /// Adds a measured round-trip time. By Karn's rule, the caller measures only packets that were sent once.
    pub fn sample(&mut self, rtt: Nanos) {
        self.backoff = 0;
        match self.smoothed {
            None => {
                self.smoothed = Some(rtt);
                self.variation = rtt / 2;
            }
            Some(smoothed) => {
                self.variation = (self.variation / 4) * 3 + smoothed.abs_diff(rtt) / 4;
                self.smoothed = Some(smoothed / 8 * 7 + rtt / 8);
            }
        }
    }

    /// Ends the doubling of timeouts, because the path made progress.
    pub const fn progress(&mut self) {
        self.backoff = 0;
    }

    /// Doubles the next timeout, because the timer has expired.
    pub fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(16);
    }

    /// Returns the present timeout.
    #[must_use]
    pub fn timeout(&self) -> Nanos {
        let base = self.smoothed.map_or(INITIAL, |smoothed| {
            smoothed + (4 * self.variation).max(MILLISECOND / 4)
        });
        base.max(self.floor)
            .saturating_mul(1 << self.backoff)
            .min(self.ceiling)
    }

    /// Returns the smoothed round-trip time; before the first measurement, a guess.
    #[must_use]
    pub fn smoothed(&self) -> Nanos {
        self.smoothed.unwrap_or(INITIAL)
    }
}
