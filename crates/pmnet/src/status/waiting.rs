//! For how long a front has waited for its devices. The Redis front and the memcached front share this module.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pmnet_status::{Look, Metric, Sample, Value};

/// The time without an answer of the devices, and the limits for it.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Number of copies without which the front acknowledges nothing.
    wanted: u8,
    /// Time without an answer of the head, in nanoseconds, after which the front is not ready.
    deadline: AtomicU64,
    /// Present time without an answer of the devices, in nanoseconds.
    unanswered: AtomicU64,
}

impl Waiting {
    pub(super) fn new(wanted: u8, deadline: Duration) -> Waiting {
        let waiting = Waiting {
            wanted,
            deadline: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
        };
        waiting.set_deadline(deadline);
        waiting
    }

    /// Sets the time limit of each command, from now on.
    pub(super) fn set_deadline(&self, deadline: Duration) {
        let nanos = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        self.deadline.store(nanos, Relaxed);
    }

    /// Publishes the time without an answer of the devices, in nanoseconds.
    pub(super) fn turn(&self, unanswered: u64) {
        self.unanswered.store(unanswered, Relaxed);
    }

    /// Adds both metrics. If the devices have not answered for too long, also adds this as a reason why the front is
    /// not ready.
    pub(super) fn look(&self, copies_wanted: Metric, unanswered: Metric, look: &mut Look) {
        let silence = Duration::from_nanos(self.unanswered.load(Relaxed));
        look.samples.extend([
            Sample::new(copies_wanted, Value::Count(u64::from(self.wanted))),
            Sample::new(unanswered, Value::Number(silence.as_secs_f64())),
        ]);
        look.reasons.extend(silent(
            silence,
            Duration::from_nanos(self.deadline.load(Relaxed)),
        ));
    }
}

/// Returns the reason why a front is not ready; `None` if the devices have answered recently.
fn silent(unanswered: Duration, deadline: Duration) -> Option<String> {
    (unanswered >= deadline).then(|| {
        format!(
            "nothing has come back from the devices for {:.1} s, and a command may take {:.1} s",
            unanswered.as_secs_f64(),
            deadline.as_secs_f64()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_is_ready_until_nothing_has_come_back_for_the_time_of_a_command() {
        let seconds = Duration::from_secs;
        assert_eq!(silent(seconds(0), seconds(10)), None);
        assert_eq!(silent(seconds(9), seconds(10)), None);
        assert!(
            silent(seconds(10), seconds(10))
                .unwrap()
                .contains("for 10.0 s")
        );
    }
}
