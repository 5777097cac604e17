//! A client that continues to send after an error that ended its connection.
//!
//! If a socket with unread input is closed, its connection is reset, and a client that is still sending might
//! not see the error. So the client's input is read and discarded for some time.

use crate::upstream::Time;

/// Maximum number of bytes that are discarded: the longest argument that Redis itself accepts.
const BYTES_MAX: usize = 512 * 1024 * 1024;
/// The longest time for which a client may continue to send, in nanoseconds.
const TIMEOUT: Time = 10_000_000_000;

/// The number of bytes and the time for which a lingering client may still send.
pub(crate) struct Lingering {
    left: usize,
    until: Time,
}

impl Lingering {
    /// Begins the time in which the client's input is discarded.
    pub(crate) fn begin(now: Time) -> Lingering {
        Lingering {
            left: BYTES_MAX,
            until: now.saturating_add(TIMEOUT),
        }
    }

    /// Restarts the time, because the client has read some of its output.
    pub(super) fn prolong(&mut self, now: Time) {
        self.until = now.saturating_add(TIMEOUT);
    }

    /// Counts discarded bytes; returns `None` if there are too many.
    pub(crate) fn throw_away(&mut self, count: usize) -> Option<()> {
        self.left = self.left.checked_sub(count)?;
        Some(())
    }

    /// Whether the client's time is over.
    pub(crate) fn is_over(&self, now: Time) -> bool {
        now >= self.until
    }
}
