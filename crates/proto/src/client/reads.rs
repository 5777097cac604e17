//! READs of a client. All READs are sent in one session of their own (`docs/spec/reads.md` §2).
//!
//! Invariants: every READ gets one answer, at its deadline at the latest. A READ has no effect, so it can be sent again
//! unchanged, also in another session.

use super::CallId;
use crate::keys::Seal;
use crate::time::{MILLISECOND, Nanos, SECOND, earliest};
use crate::{Outbox, Peer, Time};
use bytes::Bytes;
use pmnet_wire::packet::{Hit, Miss, READ_KEYS_MAX, ReadKeys, Stamp, write_hashes};
use pmnet_wire::{FragmentSize, Kind, Packet};
use std::collections::VecDeque;

/// Longest time for which a READ is repeated. After this time, a question to the server is faster.
pub const READ_TIMEOUT: Nanos = 20 * MILLISECOND;
/// A READ without an answer is sent again after this long.
const AGAIN_AFTER: Nanos = 4 * MILLISECOND;
/// Pause after a READ without an answer: an older head may not know packets of this kind.
const PAUSE: Nanos = SECOND;
/// Time without a READ after which the session of the READs is ended.
const IDLE: Nanos = 45 * SECOND;
/// Shortest time between two replacements of the session of the READs. A replacement adds an END and an OPEN to the
/// log. A replica that has applied these entries also has the effects of requests that were answered before.
const ANEW_EVERY: Nanos = 100 * MILLISECOND;
/// Maximum number of READs under way.
const READS_MAX: usize = 4096;

/// The answer to a READ.
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
    /// The client may read from a store that has applied all orders up to `need` and whose record names this epoch.
    Miss {
        /// Epoch of the head.
        epoch: u32,
        /// Order that the store must have applied.
        need: u64,
        /// Version of the head's index. If two MISSes of one epoch have the same version, no request that changed state
        /// without an order was answered between them.
        version: u64,
        /// Order that a replica of the store must have applied to be read from; 0: no replica may be read (reads.md
        /// §11).
        replicas: u64,
    },
    /// No device answered before the READ's deadline.
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

/// The updates that a HIT may show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hits {
    /// A HIT may also show applied updates.
    pub(super) kept: bool,
    /// Size of the largest update that a HIT may show.
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
    /// No READ is sent before this time.
    paused_until: Time,
    /// No READ is due before this time.
    next: Option<Time>,
    /// Time of the last READ; `None`: there is no session.
    used: Option<Time>,
    /// The session must be replaced by a new session.
    anew: bool,
    /// Earliest time at which the session may be replaced.
    anew_after: Time,
}

impl Reads {
    /// Whether another READ may be submitted.
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

    /// Whether the session must end. Causes: there was no READ for [`IDLE`], or a replica of the store can be read only
    /// after an entry that follows an answered request. Each cause is reported once.
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

    /// Processes a packet. Returns the READ that the packet answers, if there is one.
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

    /// Ends the READs whose deadline has passed, and sends the READs that are due, if there is a session. Returns
    /// whether a READ was sent again.
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
            // Without a session no READ is sent, so only the READ's deadline is due.
            let again = session.and(asked.last_sent).map(|at| at + AGAIN_AFTER);
            self.next = earliest(self.next, earliest(again, Some(asked.deadline)));
        }
        flushed
    }

    /// The session is open, or was replaced: all waiting READs are due.
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
