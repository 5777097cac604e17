//! Counters and times of a front, which an observer gets once a turn. Without an observer the counters and times are
//! not computed.

use crate::client::Counters;
use crate::upstream::{Time, Upstream, UpstreamCounters};

use super::{Class, Front};

/// The state at the end of a turn of [`Front::run_observed`].
pub struct FrontTurn<'a> {
    /// Numbers of events since the start of the front.
    pub counters: Counters,
    /// Numbers of the endpoint's events since the start of the front.
    pub upstream: UpstreamCounters,
    /// Number of connected clients.
    pub clients: usize,
    /// Number of clients that have ever connected.
    pub clients_ever: u64,
    /// Number of sessions of clients.
    pub sessions: usize,
    /// Number of copies that the last commit named; 0: there was no commit yet.
    pub copies: u8,
    /// Time for which calls have been outstanding without any answer, in nanoseconds.
    pub unanswered: Time,
    /// Class and duration, in nanoseconds, of each call that has ended in this turn.
    pub took: &'a mut dyn Iterator<Item = (Class, Time)>,
}

/// Time of silence after which devices are asked again, and interval of these questions, in nanoseconds.
const ASK_AGAIN: Time = 1_000_000_000;

impl<U: Upstream> Front<U> {
    /// Asks devices again that do not answer.
    pub(super) fn ask_again(&mut self) {
        let now = self.shared.now;
        if self.next_asking_again().is_some_and(|due| due <= now) {
            self.ask_again_at = now.saturating_add(ASK_AGAIN);
            self.ask_store_name();
        }
    }

    /// Returns the time of the next question to devices that do not answer; `None`: the devices answer, or there is no
    /// observer.
    pub(super) fn next_asking_again(&self) -> Option<Time> {
        let since = self.up.unanswered_since();
        let since = since.filter(|_| self.up.times_calls())?;
        Some(since.saturating_add(ASK_AGAIN).max(self.ask_again_at))
    }

    /// Returns the numbers of events since the start of the front.
    pub(super) fn counters(&self) -> Counters {
        Counters {
            failed_logins: self.shared.users.failed_logins(),
            ..self.shared.counters
        }
    }

    /// Shows the turn to `observe`.
    pub(super) fn observed(&mut self, observe: &mut impl FnMut(&mut FrontTurn<'_>)) {
        let counters = self.counters();
        let now = self.shared.now;
        let unanswered = self
            .up
            .unanswered_since()
            .map_or(0, |since| now.saturating_sub(since));
        let (upstream, copies) = (self.up.counters(), self.up.copies());
        observe(&mut FrontTurn {
            counters,
            upstream,
            clients: self.clients.count(),
            clients_ever: self.clients_ever,
            sessions: self.sessions.len(),
            copies,
            unanswered,
            took: &mut self.up.take_took(),
        });
    }
}
