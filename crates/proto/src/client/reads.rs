//! READs of a client, all of them in one session of its own (`docs/spec/reads.md` §2).
//!
//! Invariants: every READ is answered once, at the latest when its time is up. A READ has no effect, so it is sent again
//! as it is, also in another session.

use super::CallId;
use crate::keys::Seal;
use crate::time::{MILLISECOND, Nanos, SECOND, earliest};
use crate::{Outbox, Peer, Time};
use bytes::Bytes;
use pmnet_wire::packet::{Hit, Miss, READ_KEYS_MAX, ReadKeys, Stamp, write_hashes};
use pmnet_wire::{FragmentSize, Kind, Packet};
use std::collections::VecDeque;

/// How long a READ is asked again. Beyond it, to ask the server is the faster way.
pub const READ_TIMEOUT: Nanos = 20 * MILLISECOND;
/// A READ without an answer is sent again after this long.
const AGAIN_AFTER: Nanos = 4 * MILLISECOND;
/// After a READ that nobody answered, no other is sent for so long: the head may not know what it is.
const PAUSE: Nanos = SECOND;
/// Without a READ for so long, the session is ended.
const IDLE: Nanos = 45 * SECOND;
/// The session is ended and begun anew, so that there are entries behind what was answered, not more often than this.
const ANEW_EVERY: Nanos = 100 * MILLISECOND;
/// READs under way at once, at most.
const READS_MAX: usize = 4096;

/// How a READ was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadAnswer {
    /// The newest update that may concern the key, as its client sent it.
    Hit {
        /// Epoch of the head.
        epoch: u32,
        /// The update's order.
        order: u64,
        /// The update's payload.
        payload: Bytes,
    },
    /// A store may be read from whose record names this epoch, and that has applied everything up to `need`.
    Miss {
        /// Epoch of the head.
        epoch: u32,
        /// The order.
        need: u64,
        /// Of the head's index. As long as it is the same in one epoch, nothing that changed state without an order has
        /// been answered.
        version: u64,
        /// What a replica of the store must have applied that is read from instead; 0: none may be (reads.md §11).
        replicas: u64,
    },
    /// No answer in time.
    None,
}

#[derive(Debug)]
struct Asked {
    request: u64,
    call: CallId,
    payload: Vec<u8>,
    replicas: bool,
    deadline: Time,
    last_sent: Option<Time>,
}

/// Which updates a HIT may show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hits {
    /// Those that are applied, too.
    pub(super) kept: bool,
    /// No larger ones.
    pub(super) size: FragmentSize,
}

/// Result of [`Reads::flush`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// No READ was sent again.
    Quiet,
    /// A READ without an answer was sent again.
    Again,
}

/// The READs under way, oldest first.
#[derive(Debug, Default)]
pub(super) struct Reads {
    asked: VecDeque<Asked>,
    last_request: u64,
    /// Nothing is asked before this.
    paused_until: Time,
    /// No READ is due before this.
    next: Option<Time>,
    /// When something was asked last, while there is a session for it.
    used: Option<Time>,
    /// The session is to be begun anew.
    anew: bool,
    /// Not before this.
    anew_after: Time,
}

impl Reads {
    /// Whether another one may be asked.
    pub(super) fn may_ask(&self, now: Time) -> bool {
        now >= self.paused_until && self.asked.len() < READS_MAX
    }

    pub(super) fn ask(
        &mut self,
        now: Time,
        call: CallId,
        hashes: &[u64],
        replicas: bool,
        deadline: Time,
    ) {
        let hashes = if hashes.len() > READ_KEYS_MAX {
            &[]
        } else {
            hashes
        };
        self.last_request += 1;
        self.asked.push_back(Asked {
            request: self.last_request,
            call,
            payload: write_hashes(hashes),
            replicas,
            deadline: deadline.min(now + READ_TIMEOUT),
            last_sent: None,
        });
        self.next = Some(now);
        self.used = Some(now);
    }

    /// Whether the session is to end: nothing has been asked for long, or replicas of the store need an entry behind what was
    /// answered. True once.
    pub(super) fn is_over(&mut self, now: Time) -> bool {
        let idle = self.used.is_some_and(|used| now >= used + IDLE);
        let over = self.asked.is_empty() && (idle || self.anew);
        if over {
            self.used = None;
            self.anew = false;
            self.anew_after = now + ANEW_EVERY;
        }
        over
    }

    /// The answer to one of them, if it is.
    pub(super) fn answered(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
    ) -> Option<(CallId, ReadAnswer)> {
        let header = &packet.header;
        let (request, answer) = if header.kind == Kind::Hit {
            let hit = Hit::read(header);
            let payload = Bytes::copy_from_slice(packet.payload);
            let (epoch, order) = (header.epoch, hit.order);
            (
                hit.request,
                ReadAnswer::Hit {
                    epoch,
                    order,
                    payload,
                },
            )
        } else {
            let miss = Miss::read(header);
            let answer = ReadAnswer::Miss {
                epoch: header.epoch,
                need: miss.need,
                version: miss.version,
                replicas: miss.replicas,
            };
            self.anew |= miss.behind && now >= self.anew_after;
            (miss.request, answer)
        };
        let at = self
            .asked
            .binary_search_by_key(&request, |asked| asked.request);
        let asked = self.asked.remove(at.ok()?)?;
        Some((asked.call, answer))
    }

    /// Gives up the READs whose time is up, and sends those that are due if there is a session. Returns whether one was sent again.
    pub(super) fn flush(
        &mut self,
        now: Time,
        session: Option<(u64, Stamp, Seal)>,
        hits: Hits,
        head: Peer,
        out: &mut Outbox,
        mut given_up: impl FnMut(CallId),
    ) -> Flushed {
        if self.asked.is_empty() {
            self.next = None;
        }
        let mut flushed = Flushed::Quiet;
        if self.next.is_none_or(|next| now < next) {
            return flushed;
        }
        let asked_before = self.asked.len();
        self.asked.retain(|asked| {
            let in_time = now < asked.deadline;
            if !in_time {
                given_up(asked.call);
            }
            in_time
        });
        if self.asked.len() < asked_before {
            self.paused_until = now + PAUSE;
        }
        self.next = None;
        for asked in &mut self.asked {
            if let Some((session, stamp, seal)) = &session
                && asked.last_sent.is_none_or(|at| now >= at + AGAIN_AFTER)
            {
                let read = ReadKeys {
                    session: *session,
                    size: hits.size.on_wire(),
                    request: asked.request,
                    kept: hits.kept,
                    replicas: asked.replicas,
                };
                out.seal(*seal, head, &read.header(stamp), &asked.payload);
                if asked.last_sent.replace(now).is_some() {
                    flushed = Flushed::Again;
                }
            }
            // Without a session nothing is sent: only its end is due.
            let again = session.and(asked.last_sent).map(|at| at + AGAIN_AFTER);
            self.next = earliest(self.next, earliest(again, Some(asked.deadline)));
        }
        flushed
    }

    /// The session is open, or another one: what waits for it is due.
    pub(super) fn session_changed(&mut self, now: Time) {
        for asked in &mut self.asked {
            asked.last_sent = None;
        }
        if !self.asked.is_empty() {
            self.next = Some(now);
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        let idle = self.used.filter(|_| self.asked.is_empty());
        let over = idle.map(|used| if self.anew { used } else { used + IDLE });
        earliest(self.next, over)
    }
}
