//! The front's mark: tells the head that something may change the store which passes no device (`docs/spec/reads.md` §5).
//!
//! While a mark is open, the head answers no READ with an update of its log, which what is passed through may have
//! overtaken. There is one for all clients: opened before the first of them passes something that may change the store, and
//! ended some time after the last.
//!
//! The head ends a session that it has not heard of for long. So the mark is confirmed now and then, by a barrier of
//! its own session; and if that does not succeed in time, or the mark is closed, everything that is passed under it ends.

use bytes::Bytes;
use pmnet_wire::command::barrier;

use super::Front;
use crate::upstream::{Call, CallId, Calls, Outcome, SessionHandle, Time, Upstream};

/// How often it is looked whether the mark is still needed, in nanoseconds.
const LOOK_EVERY: Time = 500_000_000;
/// How long it is kept when no client needs it, in nanoseconds: a client that passes one command often passes another.
const KEPT: Time = 1_000_000_000;
/// How long it is kept after something that was passed had no answer, in nanoseconds: the store may still find it in
/// its socket.
const KEPT_UNANSWERED: Time = 60_000_000_000;
/// How often it is confirmed, in nanoseconds.
const CONFIRM_EVERY: Time = 60_000_000_000;
/// How old the last confirmation may be, in nanoseconds. Half of the time after which a head ends a silent session.
const CONFIRMED_FOR: Time = 300_000_000_000;

/// The mark.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// A client needs one.
    pub(super) wanted: bool,
    session: Option<SessionHandle>,
    /// Until when it is kept at least.
    kept_until: Time,
    /// When it was last known to be open.
    confirmed: Time,
    /// The question whether it is, and when it was asked.
    asked: Option<(CallId, Time)>,
    asked_last: Time,
    /// When to look next; `None`: there is no mark.
    pub(super) next_look: Option<Time>,
}

/// The facts that decide whether the mark is still needed.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The mark is open.
    open: bool,
    /// Something is passed under it.
    needed: bool,
    /// Something that was passed under it had no answer.
    unanswered: bool,
}

/// What has to be done about the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Confirm,
    End,
    /// It may be closed, without our having heard of it.
    Lost,
}

impl Marks {
    /// It is being opened, in this session.
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

    /// Returns what there is to do now.
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

    /// A call of its session ended.
    fn done(&mut self, call: CallId, outcome: &Outcome) {
        if let Some((_, asked)) = self.asked.take_if(|(asked, _)| *asked == call)
            && let Outcome::Reply(_) = outcome
        {
            self.confirmed = self.confirmed.max(asked);
        }
    }

    /// A client goes: what it passed may have had no answer.
    pub(super) fn note_unanswered(&mut self, now: Time) {
        let kept = now.saturating_add(KEPT_UNANSWERED);
        self.kept_until = self.kept_until.max(kept);
    }
}

impl<U: Upstream> Front<U> {
    /// Opens the mark if a client needs it, looks after it, and ends it.
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
            // The next look asks again.
            Err(error) => tracing::debug!(%error, "the mark cannot be confirmed now"),
        }
    }

    /// Every device knows of the mark now: the clients that wait for it go on.
    pub(super) fn marked(&mut self, session: SessionHandle) {
        if self.marks.session != Some(session) {
            return;
        }
        self.marks.confirmed = self.shared.now;
        self.shared.mark_open = true;
        self.clients
            .enqueue_if(|client| client.connection.needs_mark());
    }

    /// Takes an outcome of the mark's session, if it is that.
    pub(super) fn mark_done(&mut self, session: SessionHandle, call: CallId, outcome: &Outcome) {
        if self.marks.session == Some(session) {
            self.marks.done(call, outcome);
        }
    }

    /// The session may be the mark's, and has closed.
    pub(super) fn mark_closed(&mut self, session: SessionHandle) {
        if self.marks.session == Some(session) {
            tracing::debug!("the mark was closed: what is passed through ends");
            self.lose_mark();
        }
    }

    /// The front ends, and all its clients are gone. A mark that is still needed then is ended by the head, when it hears
    /// no more of it.
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

    /// Nothing may go on, or be begun, as if there were a mark.
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
        // One that nobody answers is not waited for when nobody needs it any more.
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
