//! The front's mark. The mark tells the head that commands which pass no device may change the store
//! (`docs/spec/reads.md` §5).
//!
//! While a mark is open, the head answers no READ with an update of its log, because a passed command may have changed
//! the key since. One mark serves all clients. The front opens the mark before the first client passes a command that
//! may change the store, and ends it some time after the last such command.
//!
//! The head ends a session that has been silent for long. So the front confirms the mark from time to time,
//! by a barrier in the mark's session. If the confirmation does not succeed in time, or the mark is closed, all
//! commands that pass under the mark end.

use bytes::Bytes;
use pmnet_wire::command::barrier;

use super::Front;
use crate::upstream::{Call, CallId, Calls, Outcome, SessionHandle, Time, Upstream};

/// Interval of the checks whether the mark is still needed, in nanoseconds.
const LOOK_EVERY: Time = 500_000_000;
/// Time for which the mark is kept when no client needs it, in nanoseconds. A client that passes one command often
/// passes another.
const KEPT: Time = 1_000_000_000;
/// Time for which the mark is kept after a passed command got no answer, in nanoseconds. Redis may still have to read
/// the command from its socket.
const KEPT_UNANSWERED: Time = 60_000_000_000;
/// Interval of the confirmations of an open mark, in nanoseconds.
const CONFIRM_EVERY: Time = 60_000_000_000;
/// Largest age of the last confirmation, in nanoseconds. If the last confirmation is older, the mark counts as lost.
/// This age is half of the time after which a head ends a silent session.
const CONFIRMED_FOR: Time = 300_000_000_000;

/// The state of the mark.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Whether a client needs the mark.
    pub(super) wanted: bool,
    session: Option<SessionHandle>,
    /// The mark is kept at least until this time.
    kept_until: Time,
    /// The time when the mark was last known to be open.
    confirmed: Time,
    /// The call of the present confirmation, and the time of its submission.
    asked: Option<(CallId, Time)>,
    asked_last: Time,
    /// Time of the next check; `None`: there is no mark.
    pub(super) next_look: Option<Time>,
}

/// The facts that decide whether the mark is still needed.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Whether the mark is open.
    open: bool,
    /// Whether a command passes under the mark.
    needed: bool,
    /// Whether a command that passed under the mark got no answer.
    unanswered: bool,
}

/// The next action for the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Confirm,
    End,
    /// The head may have closed the mark without the front's knowledge.
    Lost,
}

impl Marks {
    /// Notes that the mark is being opened in this session.
    fn opening(&mut self, session: SessionHandle, now: Time) {
        *self = Marks {
            session: Some(session),
            kept_until: now.saturating_add(KEPT),
            confirmed: now,
            asked_last: now,
            next_look: Some(now.saturating_add(LOOK_EVERY)),
            ..Marks::default()
        };
    }

    /// Checks the mark. Returns what the front must do now.
    fn look(&mut self, now: Time, seen: Seen) -> Due {
        self.next_look = self.session.map(|_| now.saturating_add(LOOK_EVERY));
        if seen.needed {
            self.kept_until = self.kept_until.max(now.saturating_add(KEPT));
        }
        if seen.unanswered {
            self.note_unanswered(now);
        }
        if seen.open && now >= self.confirmed.saturating_add(CONFIRMED_FOR) {
            Due::Lost
        } else if now >= self.kept_until {
            Due::End
        } else if seen.open
            && self.asked.is_none()
            && now >= self.asked_last.saturating_add(CONFIRM_EVERY)
        {
            Due::Confirm
        } else {
            Due::Nothing
        }
    }

    /// Notes that a call of the mark's session has ended.
    fn done(&mut self, call: CallId, outcome: &Outcome) {
        if let Some((_, asked)) = self.asked.take_if(|(asked, _)| *asked == call)
            && let Outcome::Reply(_) = outcome
        {
            self.confirmed = self.confirmed.max(asked);
        }
    }

    /// Notes that a command of a client that disconnects may have got no answer.
    pub(super) fn note_unanswered(&mut self, now: Time) {
        let kept = now.saturating_add(KEPT_UNANSWERED);
        self.kept_until = self.kept_until.max(kept);
    }
}

impl<U: Upstream> Front<U> {
    /// Opens, confirms and ends the mark, as needed.
    pub(super) fn keep_marks(&mut self) {
        let now = self.shared.now;
        if std::mem::take(&mut self.marks.wanted) && self.marks.session.is_none() {
            match self.up.open_mark(now) {
                Ok(session) => self.marks.opening(session, now),
                Err(error) => {
                    tracing::debug!(%error, "no mark can be opened now");
                    self.marks.wanted = true;
                }
            }
        }
        if self.marks.next_look.is_none_or(|look| now < look) {
            return;
        }
        let mut seen = Seen {
            open: self.shared.mark_open,
            needed: false,
            unanswered: false,
        };
        for (_, client) in self.clients.iter_mut() {
            seen.needed |= client.connection.needs_mark();
            seen.unanswered |= client.connection.take_unanswered();
        }
        match self.marks.look(now, seen) {
            Due::Nothing => {}
            Due::Confirm => self.confirm_mark(),
            Due::End => {
                if let Some(session) = self.marks.session {
                    self.up.end(now, session);
                }
                self.forget_mark();
            }
            Due::Lost => {
                tracing::warn!("PM3208 nothing was heard of the mark: what is passed through ends");
                let session = self.marks.session;
                self.lose_mark();
                if let Some(session) = session {
                    self.up.end(now, session);
                }
            }
        }
    }

    fn confirm_mark(&mut self) {
        let now = self.shared.now;
        let Some(session) = self.marks.session else {
            return;
        };
        let deadline = now.saturating_add(self.shared.call_timeout);
        let payload = Bytes::from(barrier());
        let call = Call::question(&payload, deadline);
        match self.up.submit(now, session, call) {
            Ok(call) => {
                self.marks.asked = Some((call, now));
                self.marks.asked_last = now;
            }
            // The next check asks for the confirmation again.
            Err(error) => tracing::debug!(%error, "the mark cannot be confirmed now"),
        }
    }

    /// Notes that every device knows of the mark: the clients that wait for it continue.
    pub(super) fn marked(&mut self, session: SessionHandle) {
        if self.marks.session != Some(session) {
            return;
        }
        self.marks.confirmed = self.shared.now;
        self.shared.mark_open = true;
        self.clients
            .enqueue_if(|client| client.connection.needs_mark());
    }

    /// If the call belongs to the mark's session, takes the outcome of the call.
    pub(super) fn mark_done(&mut self, session: SessionHandle, call: CallId, outcome: &Outcome) {
        if self.marks.session == Some(session) {
            self.marks.done(call, outcome);
        }
    }

    /// If the mark's session was closed, notes that the mark is lost.
    pub(super) fn mark_closed(&mut self, session: SessionHandle) {
        if self.marks.session == Some(session) {
            tracing::debug!("the mark was closed: what is passed through ends");
            self.lose_mark();
        }
    }

    /// Leaves the mark when the front ends and all clients are closed. If a command still needs the mark then, the head
    /// ends the mark after a long silence.
    pub(super) fn leave_marks(&mut self) {
        let now = self.shared.now;
        if let Some(session) = self.marks.session
            && self.marks.kept_until <= now.saturating_add(KEPT)
        {
            self.up.end(now, session);
        }
    }

    fn forget_mark(&mut self) {
        self.marks = Marks {
            wanted: self.marks.wanted,
            ..Marks::default()
        };
        self.shared.mark_open = false;
    }

    /// Ends all commands that pass under the mark. No such command may begin without a new mark.
    fn lose_mark(&mut self) {
        self.forget_mark();
        for index in self.clients.indices() {
            if let Some(client) = self.clients.get_mut(index)
                && client.connection.mark_lost()
            {
                self.take_outputs(index);
                self.enqueue(index);
                self.mark_dirty(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Time = 1_000_000_000;

    const IDLE: Seen = Seen {
        open: true,
        needed: false,
        unanswered: false,
    };
    const NEEDED: Seen = Seen {
        needed: true,
        ..IDLE
    };
    const UNANSWERED: Seen = Seen {
        unanswered: true,
        ..IDLE
    };

    fn open(now: Time) -> Marks {
        let mut marks = Marks::default();
        marks.opening(SessionHandle(1), now);
        marks
    }

    #[test]
    fn a_mark_ends_a_while_after_the_last_who_needs_it() {
        let mut marks = open(0);
        for second in 0..10 {
            assert_eq!(marks.look(second * SECOND, NEEDED), Due::Nothing);
        }
        let last = 9 * SECOND;
        assert_eq!(marks.look(last + KEPT - 1, IDLE), Due::Nothing);
        assert_eq!(marks.look(last + KEPT, IDLE), Due::End);
        // If no client needs the mark, the mark ends even if its opening was not confirmed.
        let mut opening = Marks::default();
        opening.opening(SessionHandle(1), 0);
        assert_eq!(
            opening.look(
                KEPT,
                Seen {
                    open: false,
                    ..IDLE
                }
            ),
            Due::End
        );
    }

    #[test]
    fn a_mark_is_kept_for_what_had_no_answer() {
        let mut marks = open(0);
        assert_eq!(marks.look(SECOND / 2, UNANSWERED), Due::Nothing);
        let end = SECOND / 2 + KEPT_UNANSWERED;
        marks.asked_last = end;
        assert_eq!(marks.look(end - 1, IDLE), Due::Nothing);
        assert_eq!(marks.look(end, IDLE), Due::End);
    }

    #[test]
    fn a_mark_is_confirmed_and_lost_if_that_does_not_succeed() {
        let mut marks = open(0);
        assert_eq!(marks.look(CONFIRM_EVERY - 1, NEEDED), Due::Nothing);
        assert_eq!(marks.look(CONFIRM_EVERY, NEEDED), Due::Confirm);
        marks.asked = Some((CallId(7), CONFIRM_EVERY));
        marks.asked_last = CONFIRM_EVERY;
        assert_eq!(marks.look(3 * CONFIRM_EVERY, NEEDED), Due::Nothing);
        marks.done(CallId(6), &Outcome::Reply(Bytes::new()));
        assert_eq!(marks.confirmed, 0, "another call");
        marks.done(CallId(7), &Outcome::Reply(Bytes::new()));
        assert_eq!(marks.confirmed, CONFIRM_EVERY, "as of when it was asked");
        let lost = CONFIRM_EVERY + CONFIRMED_FOR;
        assert_eq!(marks.look(lost - 1, NEEDED), Due::Confirm);
        marks.asked = Some((CallId(8), lost - 1));
        marks.done(CallId(8), &Outcome::Failed("no answer"));
        assert_eq!(marks.confirmed, CONFIRM_EVERY);
        assert_eq!(marks.look(lost, NEEDED), Due::Lost);
    }
}
