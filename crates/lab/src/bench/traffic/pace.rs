//! The durations of a run, and its result.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;

/// Time after which a run fails if no traffic arrives.
const ARRIVE_MAX: Duration = Duration::from_secs(10);
/// Interval at which a run checks whether it must end.
const LOOK: Duration = Duration::from_millis(20);

/// The durations of one run.
#[derive(Clone, Copy, Debug)]
pub struct Pace<'a> {
    /// Duration of the warm-up.
    pub warmup: Duration,
    /// Duration of the measurement.
    pub duration: Duration,
    /// If this flag is set, the run ends early with an error.
    pub stop: &'a AtomicBool,
}

/// The result of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// The figure, in the unit of its workload.
    pub figure: f64,
    /// Number of bytes that arrived and were checked in the measured time.
    pub bytes: u64,
    /// Datagrams sent per second; `None` for workloads without datagrams.
    pub sent: Option<f64>,
    /// 99th percentile of round trips in microseconds.
    pub p99_us: Option<f64>,
    /// Number of updates that were acknowledged during the traffic; `None` if no client sent
    /// updates.
    pub acknowledged: Option<u64>,
}

impl Pace<'_> {
    /// Returns the increase of each counter during the measured time, and this time in seconds. If
    /// a counter has not risen by the planned end, the measurement continues until the counter
    /// rises, because on a busy machine a thread may wait long for its core.
    ///
    /// # Errors
    /// Fails if the run is interrupted, or if a counter does not rise for `ARRIVE_MAX`.
    pub fn measure<const N: usize>(
        &self,
        counters: impl Fn() -> [u64; N],
    ) -> anyhow::Result<([u64; N], f64)> {
        self.wait(self.warmup)?;
        let (before, began) = (counters(), Instant::now());
        let mut time = self.duration;
        loop {
            self.wait(time)?;
            let (after, elapsed) = (counters(), began.elapsed());
            let mut risen = after;
            for (after, before) in risen.iter_mut().zip(before) {
                *after = after.saturating_sub(before);
            }
            if risen.iter().all(|risen| *risen > 0) {
                return Ok((risen, elapsed.as_secs_f64()));
            }
            ensure!(
                elapsed < self.duration + ARRIVE_MAX,
                "nothing arrived for {} s",
                ARRIVE_MAX.as_secs()
            );
            time = LOOK;
        }
    }

    fn wait(&self, time: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        loop {
            ensure!(!self.stop.load(Ordering::Relaxed), "interrupted");
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK));
        }
    }
}

/// Returns the rate for a count, per second.
pub fn rate(count: u64, seconds: f64) -> f64 {
    // The conversion is exact for counts up to 2^53. No count is larger.
    let high = u32::try_from(count >> 32).unwrap_or(u32::MAX);
    let low = u32::try_from(count & 0xffff_ffff).unwrap_or(u32::MAX);
    (f64::from(high) * 4_294_967_296.0 + f64::from(low)) / seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn only_what_rises_while_it_is_measured_counts() {
        let stop = AtomicBool::new(false);
        let pace = Pace {
            warmup: Duration::from_millis(1),
            duration: Duration::from_millis(1),
            stop: &stop,
        };
        let looks = AtomicU64::new(0);
        let counters = || {
            let look = looks.fetch_add(1, Ordering::Relaxed);
            // In this example the second counter does not rise at first.
            [100 + 7 * look, 5 + look / 3]
        };
        let (risen, seconds) = pace.measure(counters).unwrap();
        assert_eq!(risen, [21, 1]);
        assert!(seconds >= 0.001);
        stop.store(true, Ordering::Relaxed);
        let error = pace.measure(counters).unwrap_err();
        assert!(error.to_string().contains("interrupted"));
    }

    #[test]
    fn rates_of_large_counts_are_exact() {
        assert!((rate(3, 2.0) - 1.5).abs() < f64::EPSILON);
        assert!((rate(3 << 40, 1.0) - 3_298_534_883_328.0).abs() < f64::EPSILON);
    }
}
