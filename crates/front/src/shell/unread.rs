//! Replies that clients do not read: their total size, and the treatment of clients that read nothing.
//!
//! A client may write all its commands before it reads the first reply. So the front takes commands from a client that
//! reads nothing. One bound limits the client's unread bytes, another bound the unread bytes of all clients. Above the
//! client's bound, the front takes no further commands from the client until the client reads. If the client has sent
//! more commands and reads nothing for [`PATIENCE`], the front ends its connection with an error. If all clients
//! together have too many unread bytes, the front takes no further commands from clients that have unread bytes. If all
//! clients together still have too many unread bytes after [`PATIENCE_WITH_ALL`], the front closes the client with the
//! most unread bytes among those that read nothing.

use super::Front;
use super::client::Client;
use crate::upstream::{Time, Upstream};

/// The longest time for which a client may read nothing while the front waits for the client, in nanoseconds.
const PATIENCE: Time = 1_000_000_000;
/// If all clients together leave too many bytes unread for this time, in nanoseconds, one client is closed. This time
/// exceeds [`PATIENCE`], so that a client that read something shortly before can be found to read nothing, too. So the
/// client with the most unread bytes is closed first.
const PATIENCE_WITH_ALL: Time = 2 * PATIENCE;
/// Interval of the log messages about clients that were closed, in nanoseconds.
const SAY_EVERY: Time = 10_000_000_000;
/// Once the unread bytes have exceeded their bound, they count as too many until they fall to this many eighths of the
/// bound.
const RELIEVED_EIGHTHS: usize = 7;

/// Unread output of one client.
#[derive(Default)]
pub(super) struct Unread {
    /// Unread bytes of this client that are included in the sum for all clients.
    bytes: usize,
    /// The time when the client last read something, or last had nothing to read.
    took: Time,
}

/// Unread output of all clients together.
pub(super) struct UnreadOfAll {
    bytes: usize,
    bytes_max: usize,
    /// The time since which the unread bytes of all clients together have exceeded their bound.
    over_since: Time,
    /// Earliest time of the next log message about closed clients.
    say_after: Time,
}

impl UnreadOfAll {
    pub(super) fn new(bytes_max: usize) -> UnreadOfAll {
        UnreadOfAll {
            bytes: 0,
            bytes_max,
            over_since: 0,
            say_after: 0,
        }
    }

    pub(super) const fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Whether all clients together have too many unread bytes. `was_over`: the result of the previous call. If the
    /// result was true, a lower bound counts.
    fn is_over(&self, was_over: bool) -> bool {
        let bound = if was_over {
            self.bytes_max / 8 * RELIEVED_EIGHTHS
        } else {
            self.bytes_max
        };
        self.bytes > bound
    }
}

impl Client {
    fn reads_nothing(&self, now: Time) -> bool {
        self.unread.bytes > 0 && now >= self.unread.took.saturating_add(PATIENCE)
    }

    /// Whether the client reads nothing, and has sent commands that the front takes only after the client reads.
    pub(super) fn is_stuck(&self, now: Time) -> bool {
        self.reads_nothing(now) && self.connection.held_up()
    }
}

impl<U: Upstream> Front<U> {
    /// Notes that a client was written to. `held`: the number of bytes that waited for the client before the write.
    pub(super) fn note_unread(&mut self, index: usize, held: usize) {
        let now = self.shared.now;
        let Some(client) = self.clients.get_mut(index) else {
            return;
        };
        let left = client.connection.held();
        self.unread.bytes = self.unread.bytes - client.unread.bytes + left;
        client.unread.bytes = left;
        if left < held || left == 0 {
            client.unread.took = now;
        }
        if left < held {
            // If a client only sends and has nothing left to read, its time is not prolonged.
            client.took(now);
        }
        if client.connection.congested() {
            self.vigil.attend(now);
        }
        self.note_relief();
    }

    /// Removes the unread bytes of a client that was closed.
    pub(super) fn forget_unread(&mut self, unread: &Unread) {
        self.unread.bytes -= unread.bytes;
        self.note_relief();
    }

    fn note_relief(&mut self) {
        let was_over = self.shared.unread_over;
        self.shared.unread_over = self.unread.is_over(was_over);
        if self.shared.unread_over && !was_over {
            self.unread.over_since = self.shared.now;
            self.vigil.attend(self.shared.now);
        } else if was_over && !self.shared.unread_over {
            self.clients
                .enqueue_if(|client| client.connection.congested());
        }
    }

    /// Ends the connection of a client that does not read, after an error.
    pub(super) fn end_unread(&mut self, index: usize) {
        let limit = self.shared.unread_client_max;
        let Some(client) = self.clients.get_mut(index) else {
            return;
        };
        client.connection.end_unread(limit);
        client.linger(self.shared.now);
        self.say_closed(index);
        self.enqueue(index);
        self.mark_dirty(index);
    }

    /// If all clients together have too many unread bytes, returns the client that must be closed. The returned client
    /// has the most unread bytes of all clients that read nothing.
    pub(super) fn worst_reader(&mut self) -> Option<usize> {
        let now = self.shared.now;
        let patient_until = self.unread.over_since.saturating_add(PATIENCE_WITH_ALL);
        if !self.shared.unread_over || now < patient_until {
            return None;
        }
        let clients = self.clients.iter();
        let most = clients
            .filter(|(_, client)| client.reads_nothing(now))
            .max_by_key(|(_, client)| client.unread.bytes);
        let index = most?.0;
        self.say_closed(index);
        Some(index)
    }

    /// Counts a connection that ends because of unread output, and logs such connections from time to time.
    fn say_closed(&mut self, index: usize) {
        self.shared.counters.closed_unread += 1;
        let now = self.shared.now;
        if now < self.unread.say_after {
            return;
        }
        self.unread.say_after = now.saturating_add(SAY_EVERY);
        if let Some(client) = self.clients.get(index) {
            tracing::warn!(
                client = client.connection.peer(),
                unread_bytes = client.unread.bytes,
                of_all_bytes = self.unread.bytes,
                closed_unread = self.shared.counters.closed_unread,
                "PM3307 closing a client that does not read its replies (--unread-max, --unread-total-max); this is said every {} s \
                 at most, closed_unread counts them all",
                SAY_EVERY / 1_000_000_000
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_ends_a_little_below_where_it_begins() {
        let mut all = UnreadOfAll::new(80);
        for (bytes, was_over, over) in [
            (80, false, false),
            (81, false, true),
            (71, true, true),
            (70, true, false),
        ] {
            all.bytes = bytes;
            assert_eq!(all.is_over(was_over), over, "{bytes}");
        }
    }
}
