//! Adaptive spinning: when a loop polls without sleeping, and when it yields its core to other threads.
//!
//! After activity a loop polls without blocking for a while, since waking a sleeping thread costs more than the packet
//! for which it waits. Between two polls it yields the core, because the answering peer may need it. If other programs
//! want the core too, a yield is expensive: at each hop it gives the core away for a whole time slice (milliseconds). A
//! thread that has slept gets the core sooner: it has used less than its share of the time, so the scheduler lets it
//! run as soon as it is woken. So a loop that returns late from a yield *rests*: it blocks for a while instead. If the
//! core is still wanted afterwards, the next rest is twice as long.

use crate::Clock;
use pmnet_proto::Time;
use pmnet_proto::time::{MICROSECOND, MILLISECOND, Nanos};

/// Interval at which a loop that never blocks looks for a stop.
const LOOK_AROUND: Nanos = 5 * MILLISECOND;
/// If a yield takes longer than this, the core went to a program with work of its own. Such a program keeps the core
/// for a slice of 1.4 ms or more. A pmnet peer has nearly always finished a burst earlier.
const WANTED: Nanos = MILLISECOND;
/// Length of the first rest. It is short, because a single late yield may come from a program that ran once.
const REST_MIN: Nanos = 4 * MILLISECOND;
/// Length of the longest rest. After each rest, one yield may cost a slice, which is less than 1 % of this time.
const REST_MAX: Nanos = 512 * MILLISECOND;

/// Decides when a loop polls again at once, and when it blocks.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    limit: Nanos,
    last_activity: Time,
    last_look: Time,
    rest: Rest,
}

impl Spin {
    /// Returns a value with which a loop spins for up to `micros` microseconds after the last activity; 0: the loop
    /// never spins.
    #[must_use]
    pub const fn new(micros: u64) -> Spin {
        Spin {
            limit: micros.saturating_mul(MICROSECOND),
            last_activity: Time(0),
            last_look: Time(0),
            rest: Rest {
                length: 0,
                until: Time(0),
            },
        }
    }
    /// Notes activity.
    pub const fn active(&mut self, now: Time) {
        self.last_activity = now;
    }
    /// Returns whether a loop that does not block should now look for events without waiting.
    pub const fn look_around(&mut self, now: Time) -> bool {
        let due = now.since(self.last_look) >= LOOK_AROUND;
        if due {
            self.last_look = now;
        }
        due
    }
    /// Returns whether the loop should poll once more instead of blocking.
    #[must_use]
    pub fn is_on(&self, now: Time) -> bool {
        now.since(self.last_activity) < self.limit && !self.rest.lasts(now)
    }
    /// Yields the core to a thread that waits for it. If the yield took long, this begins a rest. Call it after a poll
    /// that found nothing.
    pub fn yield_core(&mut self, clock: &Clock) {
        let before = clock.now();
        std::thread::yield_now();
        let now = clock.now();
        self.rest.yielded(now, now.since(before));
    }
    /// Returns [`Spin::is_on`], and yields the core if it is true.
    pub fn again(&mut self, now: Time, clock: &Clock) -> bool {
        let again = self.is_on(now);
        if again {
            self.yield_core(clock);
        }
        again
    }
}

/// A time during which a loop blocks although it would otherwise spin.
#[derive(Clone, Copy, Debug)]
struct Rest {
    /// Length of the last rest; 0: there was none.
    length: Nanos,
    until: Time,
}

impl Rest {
    fn lasts(&self, now: Time) -> bool {
        now < self.until
    }

    /// Notes that a yield ended `now` and took this long. If a long yield follows soon after a rest, other programs
    /// have wanted the core all the time.
    fn yielded(&mut self, now: Time, took: Nanos) {
        if took < WANTED {
            return;
        }
        let soon = now.since(self.until) < self.length + took;
        self.length = if soon {
            (2 * self.length).clamp(REST_MIN, REST_MAX)
        } else {
            REST_MIN
        };
        self.until = now + self.length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: Rest = Rest {
        length: 0,
        until: Time(0),
    };
    const SLICE: Nanos = 4 * MILLISECOND;

    #[test]
    fn short_yields_are_no_reason_to_rest() {
        let mut rest = REST;
        for turn in 1..100_000 {
            rest.yielded(Time(turn * 10 * MICROSECOND), WANTED - 1);
            assert!(!rest.lasts(Time(turn * 10 * MICROSECOND)));
        }
    }

    #[test]
    fn where_the_core_is_always_wanted_one_percent_of_the_time_is_lost() {
        let mut rest = REST;
        let (mut now, mut lost) = (0, 0);
        while now < 60_000 * MILLISECOND {
            if rest.lasts(Time(now)) {
                now = rest.until.0;
            } else {
                now += SLICE;
                lost += SLICE;
                rest.yielded(Time(now), SLICE);
            }
        }
        assert!(lost * 100 < now, "{lost} of {now} ns");
    }

    #[test]
    fn one_late_yield_now_and_then_costs_little() {
        let mut rest = REST;
        let second = 1_000 * MILLISECOND;
        for second in (1..60).map(|nth| nth * second) {
            rest.yielded(Time(second), SLICE);
            assert_eq!(rest.until, Time(second) + REST_MIN);
        }
    }

    #[test]
    fn a_loop_rests_where_another_program_wants_its_core() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        use std::sync::atomic::{AtomicBool, Ordering};
        let is_over = AtomicBool::new(false);
        let allowed = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
        let mut one = CpuSet::new();
        one.set(first.unwrap());
        let here = || sched_setaffinity(None, &one).unwrap();
        let rested = std::thread::scope(|scope| {
            scope.spawn(|| {
                here();
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let looped = scope.spawn(|| {
                here();
                let clock = Clock::start();
                let mut spin = Spin::new(50);
                let end = clock.now() + 10_000 * MILLISECOND;
                while clock.now() < end {
                    let now = clock.now();
                    spin.active(now);
                    if !spin.again(now, &clock) {
                        return true;
                    }
                }
                false
            });
            let rested = looped.join().unwrap();
            is_over.store(true, Ordering::Relaxed);
            rested
        });
        assert!(rested);
    }

    #[test]
    fn a_loop_that_rests_blocks_and_spins_again_afterwards() {
        let mut spin = Spin::new(50);
        let at = |millis: u64| Time(millis * MILLISECOND);
        spin.active(at(10));
        assert!(spin.is_on(at(10)));
        spin.rest.yielded(at(10), SLICE);
        let end = at(10) + REST_MIN;
        spin.active(Time(end.0 - 1));
        assert!(!spin.is_on(Time(end.0 - 1)));
        assert!(spin.is_on(end));
    }
}
