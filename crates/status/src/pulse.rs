//! Decides whether a loop is alive.

use std::time::{Duration, Instant};

/// Time after which a loop counts as stuck, if it neither sleeps nor begins another turn.
pub const SILENCE_MAX: Duration = Duration::from_secs(1);

/// Decides from a loop's pulse whether the loop is alive. The pulse is a number that changes in each turn. The pulse is
/// odd while the loop waits for work.
#[derive(Debug)]
pub struct Alive {
    seen: u64,
    since: Instant,
}

impl Alive {
    /// Makes the state of a loop that begins now.
    #[must_use]
    pub const fn new(now: Instant) -> Alive {
        Alive {
            seen: 0,
            since: now,
        }
    }

    /// Notes the present pulse. Returns for how long the loop has been in its present turn; zero if the loop waits for
    /// work.
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
