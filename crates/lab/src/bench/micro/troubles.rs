//! Irregularities of updates that do not make the measurement wrong.

use std::fmt;

use serde::Serialize;

/// Resends and the like. None of them makes a measurement wrong; all of them are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Troubles {
    /// Updates that were sent again, 10 ms after the last time.
    pub resends: u64,
    /// Updates that the device had no room for, for the moment.
    pub not_logged: u64,
    /// Updates that came out of turn, because one before was lost.
    pub nacks: u64,
    /// Datagrams that the kernel did not take.
    pub not_sent: u64,
    /// Answers that came a second time.
    pub stale: u64,
}

impl Troubles {
    /// Both together.
    pub const fn add(&mut self, other: &Troubles) {
        self.resends += other.resends;
        self.not_logged += other.not_logged;
        self.nacks += other.nacks;
        self.not_sent += other.not_sent;
        self.stale += other.stale;
    }

    /// Whether there was none.
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
