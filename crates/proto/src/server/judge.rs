//! Judges a bypass whose barrier is reached, in a pure function (`docs/spec/protocol.md` §2 "Late and early bypasses",
//! §4 "Fallback").
//!
//! The code that executes, and the code that answers without the store, both call [`judge`]. So each bypass is either
//! executed or answered, and never both.

use super::Session;
use crate::rules::{Rule, Rules};
use bytes::Bytes;
use pmnet_wire::packet::{Bypass, Fallback, Fragment, Progress, Response};
use pmnet_wire::{FRAGMENTS_MAX, Flags, FragmentSize, Header};

/// The request of a bypass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The server must execute the payload.
    Execute { request: u64, read_only: bool },
    /// The server must apply an update for which the log had no room.
    FallBack { first_seq: u64 },
}

/// The fields of a bypass besides its payload, as its last packet states them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) session: u64,
    /// Last seq that the session had used when it sent the bypass; for a fallback, the last seq of its update.
    pub(super) last_seq: u64,
    pub(super) barrier: u64,
    pub(super) what: What,
    /// Size of the largest fragments of a reply that the client can receive.
    pub(super) size: FragmentSize,
}

impl Asked {
    pub(super) const fn read(header: &Header) -> Asked {
        if header.flags.has(Flags::FALLBACK) {
            let fallback = Fallback::read(header);
            Asked {
                session: fallback.session,
                last_seq: fallback.last_seq,
                barrier: fallback.barrier,
                what: What::FallBack {
                    first_seq: fallback.first_seq,
                },
                size: FragmentSize::MAX,
            }
        } else {
            let bypass = Bypass::read(header);
            Asked {
                session: bypass.session,
                last_seq: bypass.last_seq,
                barrier: bypass.barrier,
                what: What::Execute {
                    request: bypass.request,
                    read_only: bypass.read_only,
                },
                size: FragmentSize::of_flags(header.flags),
            }
        }
    }

    pub(super) const fn is_fallback(&self) -> bool {
        matches!(self.what, What::FallBack { .. })
    }

    /// Returns the number that an answer carries to name the bypass: the request id; for a fallback, its first seq.
    pub(super) const fn number(&self) -> u64 {
        match self.what {
            What::Execute { request, .. } => request,
            What::FallBack { first_seq } => first_seq,
        }
    }

    /// Returns the number that a NACK carries to name the bypass: the request id; for a fallback, 0.
    pub(super) const fn refused(&self) -> u64 {
        match self.what {
            What::Execute { request, .. } => request,
            What::FallBack { .. } => 0,
        }
    }

    /// Returns the identity that is equal in all packets of one bypass: whether it is a fallback, and its last seq (a
    /// fallback) or request id (otherwise).
    pub(super) const fn identity(&self) -> (bool, u64) {
        match self.what {
            What::Execute { request, .. } => (false, request),
            What::FallBack { .. } => (true, self.last_seq),
        }
    }

    /// Returns the header fields of one fragment of the answer. `applied`: A of the server.
    pub(super) const fn response(
        &self,
        applied: u64,
        reply_crc: u64,
        fragment: Fragment,
    ) -> Response {
        Response {
            session: self.session,
            seq: self.last_seq,
            applied,
            request: self.number(),
            reply_crc,
            fragment,
            fallback: self.is_fallback(),
        }
    }

    /// Returns a PROGRESS: `received` fragments have arrived without a gap.
    pub(super) const fn progress(&self, received: u64) -> Progress {
        Progress {
            session: self.session,
            seq: self.last_seq,
            received,
            request: self.number(),
            fallback: self.is_fallback(),
        }
    }
}

/// The judgement on a bypass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// The store must execute the bypass.
    Execute { request: u64, read_only: bool },
    /// The store must apply the update that falls back. The session continues after `last_seq`.
    Apply { last_seq: u64 },
    /// The caller's deadline has passed, so the bypass is forgotten.
    GivenUp,
    /// The session does not exist. The client is told that the session does not exist.
    UnknownSession,
    /// The update that falls back is already applied. The client is told that the update is applied.
    Confirm,
    /// The bypass was executed, and its reply is sent again. Of reads, the server stores only replies that are errors.
    Repeat,
    /// The session has continued without this bypass, after its caller's deadline. If the bypass were executed now, it
    /// would take effect after later requests of the session.
    Overtaken,
    /// Earlier updates of the session are missing, so the client is told to continue with this seq. Cause: the head
    /// that stamped the bypass was lost together with updates that were not durable yet, and other updates got their
    /// orders.
    Expect(u64),
}

/// Judges a bypass by the server's knowledge of its session. `empty`: the bypass has no payload. `late`: its caller's
/// deadline has passed.
pub(super) fn judge(
    asked: &Asked,
    empty: bool,
    late: bool,
    session: Option<&Session>,
    rules: Rules,
) -> Judgement {
    if late && rules.hold(Rule::Deadline) {
        return Judgement::GivenUp;
    }
    let Some(session) = session else {
        return Judgement::UnknownSession;
    };
    let (last_seq, applied) = (asked.last_seq, session.last_seq);
    match asked.what {
        What::FallBack { first_seq } => {
            if last_seq <= applied && rules.hold(Rule::FallbackIdentity) {
                return Judgement::Confirm;
            }
            // A fallback may cover at most as many seqs as an update can have fragments. Otherwise a client could skip
            // seqs.
            let too_many = last_seq.saturating_sub(first_seq) >= u64::from(FRAGMENTS_MAX);
            if first_seq > applied + 1 || empty || first_seq > last_seq || too_many {
                return Judgement::Expect(applied + 1);
            }
            Judgement::Apply { last_seq }
        }
        What::Execute { request, read_only } => {
            let stored = session.reply.as_ref().map(|(stored, _)| *stored);
            let stored = stored.filter(|_| !read_only && rules.hold(Rule::RequestId));
            let in_order = rules.hold(Rule::LastSeq);
            let failed = read_only && session.reply_to(asked).is_some();
            if stored == Some(request) || failed {
                Judgement::Repeat
            } else if (last_seq < applied && in_order)
                || stored.is_some_and(|stored| stored > request)
            {
                Judgement::Overtaken
            } else if last_seq > applied && in_order {
                Judgement::Expect(applied + 1)
            } else {
                Judgement::Execute { request, read_only }
            }
        }
    }
}

impl Session {
    /// Returns the stored reply to this bypass, if there is one.
    pub(super) fn reply_to(&self, asked: &Asked) -> Option<&Bytes> {
        let What::Execute { request, read_only } = asked.what else {
            return None;
        };
        let kept = if read_only {
            &self.failed_read
        } else {
            &self.reply
        };
        let kept = kept.as_ref().filter(|(of, _)| *of == request);
        kept.map(|(_, reply)| reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules::ALL;

    /// A session whose last applied seq is 5, with the reply to request 7.
    fn session() -> Session {
        Session {
            last_seq: 5,
            reply: Some((7, Bytes::from_static(b"+OK"))),
            failed_read: Some((4, Bytes::from_static(b"-ERR"))),
            ..Session::default()
        }
    }

    fn asked(last_seq: u64, what: What) -> Asked {
        Asked {
            session: 1,
            last_seq,
            barrier: 0,
            what,
            size: FragmentSize::MAX,
        }
    }

    fn executes(last_seq: u64, request: u64, read_only: bool) -> Judgement {
        let asked = asked(last_seq, What::Execute { request, read_only });
        judge(&asked, false, false, Some(&session()), RULES)
    }

    fn falls_back(first_seq: u64, last_seq: u64, empty: bool) -> Judgement {
        let asked = asked(last_seq, What::FallBack { first_seq });
        judge(&asked, empty, false, Some(&session()), RULES)
    }

    #[test]
    fn a_bypass_is_executed_at_its_place_and_once() {
        for read_only in [false, true] {
            let request = 8;
            let right = Judgement::Execute { request, read_only };
            assert_eq!(executes(5, request, read_only), right);
            assert_eq!(executes(4, request, read_only), Judgement::Overtaken);
            assert_eq!(executes(6, request, read_only), Judgement::Expect(6));
        }
        // An executed bypass is answered, even if its session has continued.
        for last_seq in 4..=6 {
            assert_eq!(executes(last_seq, 7, false), Judgement::Repeat);
        }
        assert_eq!(executes(5, 6, false), Judgement::Overtaken);
        // A read leaves no stored reply, and may be executed again.
        let again = Judgement::Execute {
            request: 6,
            read_only: true,
        };
        assert_eq!(executes(5, 6, true), again);
        // A failed read must not be executed again: it may have been a script that was killed.
        assert_eq!(executes(5, 4, true), Judgement::Repeat);
        assert_eq!(executes(5, 4, false), Judgement::Overtaken);
    }

    #[test]
    fn an_update_that_falls_back_is_applied_once_and_behind_those_before_it() {
        assert_eq!(falls_back(6, 6, false), Judgement::Apply { last_seq: 6 });
        assert_eq!(falls_back(4, 9, false), Judgement::Apply { last_seq: 9 });
        assert_eq!(falls_back(3, 5, false), Judgement::Confirm);
        assert_eq!(falls_back(5, 5, true), Judgement::Confirm);
        for (first, last, empty) in [(7, 7, false), (6, 6, true), (8, 7, false)] {
            assert_eq!(falls_back(first, last, empty), Judgement::Expect(6));
        }
        let most = u64::from(FRAGMENTS_MAX);
        let whole = Judgement::Apply { last_seq: 5 + most };
        assert_eq!(falls_back(6, 5 + most, false), whole);
        assert_eq!(falls_back(6, 6 + most, false), Judgement::Expect(6));
    }

    #[test]
    fn who_gave_up_or_has_no_session_is_told_first() {
        for what in [
            What::FallBack { first_seq: 6 },
            What::Execute {
                request: 7,
                read_only: false,
            },
        ] {
            let asked = asked(6, what);
            let late = judge(&asked, false, true, None, RULES);
            assert_eq!(late, Judgement::GivenUp);
            let unknown = judge(&asked, false, false, None, RULES);
            assert_eq!(unknown, Judgement::UnknownSession);
        }
    }
}
