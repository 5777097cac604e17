//! Replies that clients do not read: how many are held, and what is done about those who read nothing.
//!
//! A client may write all of its commands before it reads the first reply. So commands are taken from it while it
//! reads nothing, up to a bound for each client and one for all together. Above the bound nothing more is
//! taken from it; if it reads, that is all that happens. If it has sent more and reads nothing for
//! [`PATIENCE`], its connection ends with an error. When all together have too much unread, nothing is taken from those who
//! have left anything unread, and after [`PATIENCE_WITH_ALL`] the one with most that reads nothing is closed.

use super::Front;
use super::client::Client;
use crate::upstream::{Time, Upstream};

/// For how long a client may read nothing while the front waits for it, in nanoseconds.
const PATIENCE: Time = 1_000_000_000;
/// For how long all together must have too much unread until a client is closed, in nanoseconds: a client that read something
/// just before has its time, too, so that the one with most goes first.
const PATIENCE_WITH_ALL: Time = 2 * PATIENCE;
/// How often the log speaks of clients that were closed, in nanoseconds.
const SAY_EVERY: Time = 10_000_000_000;
/// All together have too much unread until this part of the bound, in eighths, is reached again.
const RELIEVED_EIGHTHS: usize = 7;

/// Of one client.
#[derive(Default)]
pub(super) struct Unread {
    /// Bytes that are counted for it.
    bytes: usize,
    /// When it last took something, or had nothing to take.
    took: Time,
}

/// Of all clients together.
pub(super) struct UnreadOfAll {
    bytes: usize,
    bytes_max: usize,
    /// Since when there is too much.
    over_since: Time,
    /// When the log may speak of it again.
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

    /// Whether there is too much, if there was until now or not.
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

    /// Whether it has sent more than is taken from it before it reads, and does not read.
    pub(super) fn is_stuck(&self, now: Time) -> bool {
        self.reads_nothing(now) && self.connection.held_up()
    }
}

impl<U: Upstream> Front<U> {
    /// Notes that a client was written to. Before that, `held` bytes waited for it.
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
            // Not one that has nothing left to read, and only sends.
            client.took(now);
        }
        if client.connection.congested() {
            self.vigil.attend(now);
        }
        self.note_relief();
    }

    /// A client is gone, and what it left unread.
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

    /// While all together have too much unread: the client with most that reads nothing. It is to be closed.
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

    /// Counts a connection that ends because of what is unread, and says so now and then.
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
