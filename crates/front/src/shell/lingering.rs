//! A client that still sends after an error that ends its connection.
//!
//! Closing a socket with unread input resets it, and a client that is still sending would find that in place of the error that
//! says why. So what it sends is thrown away for a while.

use crate::upstream::Time;

/// Most bytes that are read and thrown away: what Redis itself would take as one argument.
const BYTES_MAX: usize = 512 * 1024 * 1024;
/// How long a client may go on, in nanoseconds.
const TIMEOUT: Time = 10_000_000_000;

/// The bytes and the time that are left to such a client.
pub(crate) struct Lingering {
    left: usize,
    until: Time,
}

impl Lingering {
    /// From now on what the client sends is thrown away.
    pub(crate) fn begin(now: Time) -> Lingering {
        Lingering {
            left: BYTES_MAX,
            until: now.saturating_add(TIMEOUT),
        }
    }

    /// The client has taken some of what there is for it: its time begins anew.
    pub(super) fn prolong(&mut self, now: Time) {
        self.until = now.saturating_add(TIMEOUT);
    }

    /// Counts bytes that were thrown away; `None` if these are too many.
    pub(crate) fn throw_away(&mut self, count: usize) -> Option<()> {
        self.left = self.left.checked_sub(count)?;
        Some(())
    }

    /// Whether its time is over.
    pub(crate) fn is_over(&self, now: Time) -> bool {
        now >= self.until
    }
}
