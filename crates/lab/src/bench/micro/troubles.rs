//! Irregularities of updates that do not invalidate the measurement.

use std::fmt;

use serde::Serialize;

/// Numbers of resends and other irregularities. The report shows all irregularities, and no irregularity invalidates a
/// measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Troubles {
    /// Number of updates that were sent again after 10 ms without an answer.
    pub resends: u64,
    /// Number of updates for which the log of the device had no space.
    pub not_logged: u64,
    /// Number of updates that arrived out of order, because an earlier update was lost.
    pub nacks: u64,
    /// Number of datagrams that the kernel did not accept for sending.
    pub not_sent: u64,
    /// Number of answers that were received before, or belong to an earlier fragment.
    pub stale: u64,
}

impl Troubles {
    /// Adds the numbers of another count.
    pub const fn add(&mut self, other: &Troubles) {
        self.resends += other.resends;
        self.not_logged += other.not_logged;
        self.nacks += other.nacks;
        self.not_sent += other.not_sent;
        self.stale += other.stale;
    }

    /// Returns whether there was no irregularity.
    pub fn none(&self) -> bool {
        *self == Troubles::default()
    }
}

impl fmt::Display for Troubles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (self.resends, "sent again after 10 ms"),
            (self.not_logged, "refused for want of room"),
            (self.nacks, "out of turn"),
            (self.not_sent, "not taken by the kernel"),
            (self.stale, "answered twice"),
        ];
        let mut first = true;
        for (count, what) in all.iter().filter(|(count, _)| *count > 0) {
            write!(f, "{}{count} {what}", if first { "" } else { ", " })?;
            first = false;
        }
        Ok(())
    }
}
