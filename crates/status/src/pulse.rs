//! Whether a loop turns.

use std::time::{Duration, Instant};

/// A loop that neither sleeps nor begins another turn within this time does not live.
pub const SILENCE_MAX: Duration = Duration::from_secs(1);

/// Whether a loop lives, by its pulse: a word that is odd while the loop waits for something to do, and another one in each turn.
#[derive(Debug)]
pub struct Alive {
    seen: u64,
    since: Instant,
}

impl Alive {
    /// Returns the state of a loop that begins now.
    #[must_use]
    pub const fn new(now: Instant) -> Alive {
        Alive {
            seen: 0,
            since: now,
        }
    }

    /// Looks at the pulse. Returns for how long the loop has been in the same turn; zero if it waits for something to do.
    pub fn look(&mut self, pulse: u64, now: Instant) -> Duration {
        if pulse != self.seen || !pulse.is_multiple_of(2) {
            (self.seen, self.since) = (pulse, now);
        }
        now.duration_since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_lives_that_turns_or_waits() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut alive = Alive::new(begin);
        assert_eq!(alive.look(2, at(5)), Duration::ZERO, "another turn");
        assert_eq!(
            alive.look(2, at(8)),
            Duration::from_secs(3),
            "the same turn"
        );
        assert_eq!(alive.look(3, at(9)), Duration::ZERO, "it waits");
        assert_eq!(alive.look(3, at(99)), Duration::ZERO, "it still waits");
        assert_eq!(alive.look(4, at(100)), Duration::ZERO);
        assert_eq!(alive.look(4, at(101)), SILENCE_MAX);
    }
}
