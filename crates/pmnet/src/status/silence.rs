//! Measures for how long a loop has received nothing. The loop publishes the time of its last reception, by its own
//! clock. This module only observes when that value changes.

use std::time::{Duration, Instant};

/// The time of reception that the loop published last, and the moment at which this value was first seen.
#[derive(Debug, Default)]
pub struct Silence(Option<(u64, Instant)>);

impl Silence {
    /// Notes the time of the loop's last reception; 0: the loop waits for no other process. Returns for how long this
    /// value has been unchanged. The result is too short by at most the distance of two calls.
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
        // The loop has ended, so it waits for no other process.
        assert_eq!(silence.note(0, at(3000)), Duration::ZERO);
        assert_eq!(silence.note(0, at(9000)), Duration::ZERO);
    }
}
