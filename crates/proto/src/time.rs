//! Time as an argument: nanoseconds since an arbitrary start, monotonic, given by the caller.

use std::ops::Add;

/// A time, in nanoseconds since the caller's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// A length of time in nanoseconds.
pub type Nanos = u64;

/// One microsecond.
pub const MICROSECOND: Nanos = 1_000;
/// One millisecond.
pub const MILLISECOND: Nanos = 1_000_000;
/// One second.
pub const SECOND: Nanos = 1_000_000_000;

impl Time {
    /// Returns the nanoseconds from `earlier` to `self`; 0 if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Time) -> Nanos {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Nanos> for Time {
    type Output = Time;
    fn add(self, nanos: Nanos) -> Time {
        Time(self.0.saturating_add(nanos))
    }
}

/// Returns the earlier time of two optional times.
#[must_use]
pub fn earliest(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
