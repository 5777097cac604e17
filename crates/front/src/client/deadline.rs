//! A connection's deadlines, other than those of its calls.
//!
//! The time of a command begins when the front has read it or, if it waits behind others of its
//! client, when the one before it was answered; so a pipeline may be long. Once a command had no
//! answer in time, later commands that have waited as long fail with it and are not sent: their
//! times do not add up. Time spent waiting for a command that blocks, or for a client that does not
//! read its replies, is not counted ([`super::arrivals`]).
//!
//! A passed command has a deadline until it is sent and, unless it blocks, until it is answered. A
//! blocking command, a subscriber and a monitor may wait for as long as the store is alive: until the
//! store's process has answered nobody for one command's time. A client that goes away does not
//! wait at all.

use super::back::passage::{Passage, Stage};
use super::{Connection, Shared};
use crate::upstream::Time;
use pmnet_resp::reply;
use pmnet_wire::StoreName;

/// How long a client that has closed its sending side, and may be gone, still waits for an answer, in
/// nanoseconds.
pub const HALF_CLOSED_TIMEOUT: Time = 1_000_000_000;

impl Connection {
    /// Whether [`Connection::look`] has to be called now and then.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.passing.is_under_way()
            || self.waits_on_store()
            || self.rights.waits()
            || self.waits_for_tracking()
            || self.asks_store()
    }

    /// Whether something is waited for that the store may send much later.
    #[must_use]
    pub fn waits_on_store(&self) -> bool {
        let blocked = |passage: &Passage| passage.blocks && passage.stage == Stage::Sent;
        self.mode.monitors()
            || self.passing.subscriptions() > 0
            || self.passing.passage.as_ref().is_some_and(blocked)
    }

    /// Ends what has waited for too long. `shared.alive` says when the store last gave a sign of life;
    /// `pardon`: this process could not have noticed one. Returns whether anything has changed.
    pub fn look(&mut self, shared: &Shared, pardon: bool) -> bool {
        if self.passing.is_under_way()
            && let Some(since) = self.end.closed_since(shared.now)
            && shared.now >= since.saturating_add(HALF_CLOSED_TIMEOUT)
        {
            self.abandon();
            return true;
        }
        if self.rights.waits() && self.rights_are_overdue(shared) {
            return true;
        }
        if self.tracking_is_overdue(shared) {
            return true;
        }
        let busy = shared.busy.error(shared.now);
        let refused = busy.is_some_and(|error| self.refuse_reads(error));
        let waits = self.waits_on_store();
        let mut overdue = self.passing.passage.as_ref().is_some_and(|passage| {
            let open_end = passage.blocks && passage.stage == Stage::Sent;
            // A call has its own deadline, and who waits at an embedded store has no other.
            let embedded =
                passage.waits.is_some() || matches!(passage.stage, Stage::Embedded(Some(_)));
            !open_end
                && !embedded
                && !passage.is_just_answered()
                && shared.now >= passage.begun.saturating_add(shared.call_timeout)
        });
        overdue |= self.passing.is_silent(shared, pardon) && waits;
        if overdue {
            self.expire();
        }
        overdue || refused
    }

    /// The time is over for the passed command, or for a silent store.
    pub(super) fn expire(&mut self) {
        let sent = self
            .passing
            .direct
            .as_ref()
            .is_some_and(|direct| direct.used);
        let text = match &self.passing.passage {
            Some(passage) if passage.is_answered() => {
                return self.unconfirmed("the pmnet server did not confirm it in time");
            }
            Some(passage) if passage.stage != Stage::Sent => {
                return self.give_up(reply::error(
                    "ERR pmnet: deadline passed before the store could be asked; the command was not executed",
                ));
            }
            Some(_) if !sent => {
                "ERR pmnet: deadline passed, the store takes no commands; the command was not executed"
            }
            Some(_) => {
                "ERR pmnet: outcome unknown (deadline passed, the store does not answer); the command may or may not \
                 have taken effect"
            }
            None => return self.direct_lost("the store does not answer"),
        };
        self.fail_passage(reply::error(text));
    }

    /// The server now uses the store with this name. What waits for another store ends as if its
    /// connection were lost. An idle connection with state on it (a watch) fails when it is used.
    /// Returns whether anything has changed.
    pub fn store_named(&mut self, name: &StoreName) -> bool {
        let other = self
            .passing
            .direct
            .as_ref()
            .and_then(|direct| direct.found.as_ref())
            .is_some_and(|found| found.run_id != name.run_id);
        if other && self.waits_on_store() {
            self.direct_lost("the pmnet server uses another Redis now");
            return true;
        }
        let idle = !self.passing.is_under_way() && !self.stateful();
        if other && idle {
            self.passing.drop_direct();
        }
        other && idle
    }
}
