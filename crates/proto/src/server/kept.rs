//! Long replies to bypasses that change state, and the bound of their bytes (`docs/spec/protocol.md` §2, more on rule
//! 8).
//!
//! Copies of an executed bypass may still arrive. So the server keeps, for each session, the reply to its last bypass
//! that changes state, in memory and on record. Short replies take little space. If all long replies together exceed
//! the bound, the server drops the oldest long replies of the front whose replies take most bytes. A bypass whose reply
//! is dropped stays on record as executed; only the text of its reply is replaced.

use super::{Effects, InFlight, Server, Session, Work, records};
use bytes::Bytes;
use pmnet_wire::{FRAGMENT_BYTES, FrontId};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// The text that replaces a dropped reply.
const LET_GO: &[u8] = b"-ERR pmnet: applied, its reply was too long to be kept\r\n";

/// Long replies of the sessions of one front.
#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    /// The sessions by the numbers of their replies, so in the order in which they got the replies.
    order: BTreeMap<u64, u64>,
}

/// All sessions with long replies.
#[derive(Debug, Default)]
pub(super) struct Kept {
    fronts: FxHashMap<Option<FrontId>, Held>,
    bytes: usize,
    /// Number of the last long reply.
    next: u64,
    /// Sessions whose reply was dropped in memory, but is still on record.
    to_write: BTreeSet<u64>,
}

impl Kept {
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Replaces a session's reply by a new reply.
    pub(super) fn give(&mut self, id: u64, session: &mut Session, request: u64, reply: Bytes) {
        self.take(session);
        if reply.len() > FRAGMENT_BYTES {
            let held = self.fronts.entry(session.front).or_default();
            held.bytes += reply.len();
            self.bytes += reply.len();
            self.next += 1;
            held.order.insert(self.next, id);
            session.kept_at = self.next;
        }
        session.reply = Some((request, reply));
    }

    /// Removes a session's reply from the counts, because the session ends or gets another reply.
    pub(super) fn take(&mut self, session: &mut Session) {
        let at = std::mem::take(&mut session.kept_at);
        let Some(held) = self.fronts.get_mut(&session.front).filter(|_| at > 0) else {
            return;
        };
        let bytes = session.reply.as_ref().map_or(0, |(_, reply)| reply.len());
        held.order.remove(&at);
        held.bytes -= bytes;
        self.bytes -= bytes;
        if held.order.is_empty() {
            self.fronts.remove(&session.front);
        }
    }

    /// Returns the session with the oldest long reply of the front whose long replies take most bytes.
    fn oldest_of_the_largest(&self) -> Option<u64> {
        let fronts = self.fronts.iter();
        let (_, held) = fronts.max_by_key(|(front, held)| (held.bytes, **front))?;
        held.order.values().next().copied()
    }
}

impl Server {
    /// Drops long replies until the rest is within the bound.
    pub(super) fn bound_kept(&mut self) {
        while self.kept.bytes > self.config.kept_bytes_max
            && let Some(id) = self.kept.oldest_of_the_largest()
        {
            let Some(session) = self.sessions.get_mut(&id) else {
                return;
            };
            let request = session.confirmed().1;
            self.kept
                .give(id, session, request, Bytes::from_static(LET_GO));
            self.kept.to_write.insert(id);
            self.counters.replies_let_go += 1;
            // The operator is told at the first, second, fourth, eighth… dropped reply.
            if self.counters.replies_let_go.is_power_of_two() {
                let front = session.front.map_or_else(
                    || "no front has a key".to_owned(),
                    |front| format!("of front {:016x}, which kept most", front.get()),
                );
                self.notice(format!(
                    "PM2609 more long replies of commands that change something are kept for repetitions than fit in {} bytes: {} were let go \\
                     so far, the last one {front}. If its client asks for it again, it hears that the command was applied",
                    self.config.kept_bytes_max, self.counters.replies_let_go
                ));
            }
        }
    }

    /// Returns the work that replaces the dropped replies in the records; `None`: there is nothing to replace.
    pub(super) fn shorten_records(&mut self) -> Option<Work> {
        let ids = std::mem::take(&mut self.kept.to_write);
        let changes = ids.into_iter().filter_map(|id| {
            let (request, reply) = self.sessions.get(&id)?.reply.as_ref()?;
            let value = [&records::reply_prefix(*request)[..], reply].concat();
            (reply == LET_GO).then(|| (records::reply_key(id), Some(value.into())))
        });
        let effects = Effects {
            records: changes.collect(),
            ..Effects::default()
        };
        if effects.records.is_empty() {
            return None;
        }
        self.in_flight = InFlight::Shorten;
        Some(Work::Apply(effects))
    }
}
