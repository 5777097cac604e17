//! The pulse of a loop, which shows other threads whether the loop still runs.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A word that one loop writes: odd while the loop waits, even while it works, and different in each turn. So a reader
/// can tell whether the loop still runs, and the loop needs no clock.
#[derive(Debug)]
pub struct Pulse(AtomicU64);

impl Default for Pulse {
    /// Returns the pulse of a loop that has not begun, which counts as waiting.
    fn default() -> Pulse {
        Pulse(AtomicU64::new(1))
    }
}

impl Pulse {
    /// Notes that the loop is about to wait in the system, or that it has ended.
    #[inline]
    pub fn rests(&self) {
        self.0.store(self.0.load(Relaxed) | 1, Relaxed);
    }

    /// Calls `wait`, which waits in the system, and then begins a turn.
    #[inline]
    pub fn rests_for<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.rests();
        let waited = wait();
        self.works();
        waited
    }

    /// Notes that the loop begins a turn.
    #[inline]
    pub fn works(&self) {
        self.0.store((self.0.load(Relaxed) | 1) + 1, Relaxed);
    }

    /// Returns the word.
    #[must_use]
    pub fn word(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::Pulse;

    #[test]
    fn it_is_odd_while_the_loop_waits_and_another_one_in_each_turn() {
        let pulse = Pulse::default();
        let mut seen = vec![pulse.word()];
        assert_eq!(seen, [1], "it has not begun");
        for rests in [true, false, true] {
            if rests {
                pulse.rests();
                assert!(!pulse.word().is_multiple_of(2));
            }
            pulse.works();
            assert!(pulse.word().is_multiple_of(2));
            assert!(!seen.contains(&pulse.word()));
            seen.push(pulse.word());
        }
    }
}
