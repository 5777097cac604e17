//! The only clock of the tools: `CLOCK_MONOTONIC`, in nanoseconds.
//!
//! All processes of one machine share this clock, so histories of several load generators can be
//! compared. The clock never goes backwards, and a jump of the wall clock does not change it.

use std::time::Duration;

/// Returns the present time of the monotonic clock, in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Converts a duration to nanoseconds. Durations of more than 585 years become the maximum.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
