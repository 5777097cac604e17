//! Measures for how long a loop has heard nothing. The loop publishes when it last heard something, by its own clock;
//! only changes of that time count here.

use std::time::{Duration, Instant};

/// The last word that was noted, and the time at which it was first seen.
#[derive(Debug, Default)]
pub struct Silence(Option<(u64, Instant)>);

impl Silence {
    /// Notes when the loop last heard something; 0: it waits for no other process. Returns the time since this changed. It is too
    /// short by the distance of two calls at most.
    pub fn note(&mut self, heard: u64, now: Instant) -> Duration {
        match self.0 {
            Some((before, since)) if before == heard && heard != 0 => now.duration_since(since),
            _ => {
                self.0 = Some((heard, now));
                Duration::ZERO
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_ends_the_silence() {
        let (mut silence, begin) = (Silence::default(), Instant::now());
        let at = |millis| begin + Duration::from_millis(millis);
        assert_eq!(silence.note(5, at(0)), Duration::ZERO);
        assert_eq!(silence.note(5, at(1500)), Duration::from_millis(1500));
        assert_eq!(silence.note(6, at(2000)), Duration::ZERO);
        assert_eq!(silence.note(6, at(2100)), Duration::from_millis(100));
        // The loop has ended, and waits for no other process.
        assert_eq!(silence.note(0, at(3000)), Duration::ZERO);
        assert_eq!(silence.note(0, at(9000)), Duration::ZERO);
    }
}
