//! Bypasses: each waits for its barrier, is executed once, and is answered as often as the client sends it
//! (`docs/spec/protocol.md` §2 rule 8, §4 fallback).

use super::judge::{Asked, Judgement, What, judge};
use super::records;
use super::{InFlight, Server, Source, Work};
use crate::client::TRANSFER_WINDOW;
use crate::rules::Rule;
use crate::time::earliest;
use crate::{Outbox, Peer, Time};
use bytes::Bytes;
use pmnet_wire::packet::{Bypass, Fragment, Nack};
use pmnet_wire::record::Member;
use pmnet_wire::record::shard_size;
use pmnet_wire::{FRAGMENT_BYTES, FragmentSize, Header, Packet, REPLY_BYTES_MAX};

/// One request for the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// The whole payload.
    pub payload: Bytes,
    /// Session of the request, and its place in the order.
    pub source: Source,
    /// `Some((key, prefix))`: in one step with the request's effects, the store sets the record `key` to `prefix ++
    /// reply`. `None`: the request changes nothing.
    pub record: Option<(Vec<u8>, Bytes)>,
}

/// A bypass in the waiting room. There is at most one for each session.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) asked: Asked,
    from: Peer,
    parts: Vec<Option<Bytes>>,
    contiguous: usize,
    pub(super) bytes: usize,
    /// Time at which a new fragment of the bypass last arrived.
    pub(super) touched: Time,
    /// Deadline of the caller, as the bypass's packets state it; `None`: no deadline.
    deadline: Option<Time>,
}

impl Waiting {
    pub(super) fn is_complete(&self) -> bool {
        self.contiguous == self.parts.len()
    }
    /// Returns the bytes of the bypass if it is incomplete; otherwise 0. A bypass of one fragment is complete at once.
    pub(super) fn partial_bytes(&self) -> usize {
        if self.parts.len() > 1 && !self.is_complete() {
            self.bytes
        } else {
            0
        }
    }
    pub(super) fn is_late(&self, now: Time) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }
    fn is_empty(&self) -> bool {
        self.parts.iter().flatten().all(|part| part.is_empty())
    }
    fn payload(&self) -> Bytes {
        match &self.parts[..] {
            [Some(only)] => only.clone(),
            parts => parts
                .iter()
                .flatten()
                .flat_map(|part| part.iter().copied())
                .collect::<Vec<u8>>()
                .into(),
        }
    }
}

/// A request that the store is executing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Executing {
    session: u64,
    request: u64,
    read_only: bool,
}

/// A long reply to a read, kept until its client has fetched it.
#[derive(Debug)]
pub(super) struct Recent {
    session: u64,
    request: u64,
    reply: Bytes,
}

/// Maximum number of long replies that are kept.
const RECENT_MAX: usize = 1024;
/// Returns the reply; if it is too long to send, an error text. An earlier process of this server may have stored such
/// a long reply.
pub(super) fn bounded(reply: Bytes) -> Bytes {
    if reply.len() > REPLY_BYTES_MAX {
        Bytes::from_static(b"-ERR pmnet: the reply is larger than 16 MiB\r\n")
    } else {
        reply
    }
}

/// Number of further fragments without a gap after which the server sends a PROGRESS.
const PROGRESS_EVERY: usize = 8;

impl Server {
    pub(super) fn on_bypass(
        &mut self,
        now: Time,
        from: Peer,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) {
        let header = packet.header;
        if !self.is_of_this_head(&header) {
            self.counters.dropped += 1;
            return;
        }
        let Bypass {
            session: id,
            fragment,
            left,
            more,
            ..
        } = Bypass::read(&header);
        let asked = Asked::read(&header);
        if more {
            self.send_more(from, &asked, fragment, out);
            return;
        }
        if let What::Execute { request, .. } = asked.what
            && let Some(session) = self.sessions.get_mut(&id)
        {
            if request < session.highest_request {
                self.counters.dropped += 1;
                return;
            }
            session.highest_request = request;
        }
        let count = usize::from(fragment.count);
        let replace = match self.room.waiting.get(&id) {
            None => true,
            Some(waiting) => {
                let (fallback, number) = asked.identity();
                let (waiting_fallback, waiting_number) = waiting.asked.identity();
                if fallback == waiting_fallback && number < waiting_number {
                    self.counters.dropped += 1;
                    return;
                }
                (fallback, number) != (waiting_fallback, waiting_number)
                    || waiting.parts.len() != count
            }
        };
        let places = if replace {
            self.room.forget(id);
            // The list of fragments takes memory before the fragments arrive, so its bytes count too.
            count * size_of::<Option<Bytes>>()
        } else {
            0
        };
        let has = |waiting: &Waiting| waiting.parts[usize::from(fragment.index)].is_some();
        let duplicate = self.room.waiting.get(&id).is_some_and(has);
        if !duplicate && !self.make_room(now, id, places + packet.payload.len(), count > 1) {
            return;
        }
        if replace {
            let waiting = Waiting {
                asked,
                from,
                parts: vec![None; count],
                contiguous: 0,
                bytes: 0,
                touched: now,
                deadline: None,
            };
            self.room.waiting.insert(id, waiting);
        }
        let Some(waiting) = self.room.waiting.get_mut(&id) else {
            return;
        };
        self.room.ready.remove(&(waiting.asked.barrier, id));
        // The client may send a bypass several times, and each copy gets a stamp. Each of these stamps is a correct
        // barrier, and A can reach each of them, because all are of the head's present incarnation and epoch (`clear`).
        // The lowest stamp is the barrier. If the newest stamp were the barrier, a client that repeats its request
        // during a slow batch would wait as long as updates arrive.
        let barrier = waiting.asked.barrier.min(asked.barrier);
        waiting.asked = Asked { barrier, ..asked };
        waiting.from = from;
        // Each packet of the bypass states the time left until the same deadline. Computed from a packet's arrival, the
        // deadline is late by the packet's time in the network, so the earliest result counts.
        let told = left.nanos().map(|nanos| now + nanos);
        waiting.deadline = earliest(waiting.deadline, told);
        if !duplicate {
            let (slot, added) = (usize::from(fragment.index), places + packet.payload.len());
            waiting.parts[slot] = Some(Bytes::copy_from_slice(packet.payload));
            waiting.touched = now;
            self.room.partial_bytes -= waiting.partial_bytes();
            waiting.bytes += added;
            self.room.bytes += added;
            while waiting
                .parts
                .get(waiting.contiguous)
                .is_some_and(Option::is_some)
            {
                waiting.contiguous += 1;
            }
            self.room.partial_bytes += waiting.partial_bytes();
        }
        if waiting.is_complete() {
            self.room.ready.insert((barrier, id));
        }
        let progress = count > 1
            && (duplicate
                || waiting.contiguous.is_multiple_of(PROGRESS_EVERY)
                || waiting.is_complete());
        if progress {
            let received =
                u64::try_from(waiting.contiguous).expect("bounded by the fragment count");
            let answer = asked.progress(received).header(&self.stamp());
            out.seal(self.seal(), from, &answer, &[]);
        }
    }

    /// Whether this packet was stamped by the head of the chain record, in the incarnation in which that head serves. A
    /// restarted head does not know which bypasses it stamped before. If such a bypass were executed now, its effect
    /// would come after updates that the head has already shown (reads.md §4). The client sends the bypass again.
    fn is_of_this_head(&self, stamped: &Header) -> bool {
        let head = self.chain.as_ref().and_then(|chain| chain.members.first());
        let mine = |head: &Member| {
            (head.device, head.incarnation) == (stamped.device, stamped.incarnation)
        };
        head.is_some_and(mine)
    }

    /// Returns the sessions whose bypass is complete and has reached its barrier.
    fn reached(&self) -> impl Iterator<Item = u64> {
        let barrier_holds = self.config.rules.hold(Rule::Barrier);
        self.room
            .ready
            .iter()
            .take_while(move |(barrier, _)| *barrier <= self.entries.applied || !barrier_holds)
            .map(|(_, id)| *id)
    }

    /// Returns the sessions whose requests come next, and whether the store may execute only one of them. Every second
    /// turn belongs to the sessions whose last execution failed, one session a turn, in rotation.
    fn next_reached(&mut self) -> (Vec<u64>, bool) {
        let (suspects, mut others): (Vec<u64>, Vec<u64>) = self
            .reached()
            .partition(|id| self.turns.suspects.contains(id));
        let alone = !suspects.is_empty() && (others.is_empty() || !self.turns.suspect_went);
        self.turns.suspect_went = alone;
        if !alone {
            others.truncate(self.config.execute_max);
            return (others, false);
        }
        let (again, first): (Vec<u64>, Vec<u64>) = suspects
            .into_iter()
            .partition(|id| *id <= self.turns.last_suspect);
        ([first, again].concat(), true)
    }

    /// Returns the judgement on the bypass of this session, whose barrier must be reached.
    fn judged(&self, id: u64, now: Time) -> Judgement {
        let waiting = &self.room.waiting[&id];
        judge(
            &waiting.asked,
            waiting.is_empty(),
            waiting.is_late(now),
            self.sessions.get(&id),
            self.config.rules,
        )
    }

    /// Returns the next work for bypasses that have reached their barrier: one fallback, or several other bypasses
    /// ([`ServerConfig::execute_max`](super::ServerConfig::execute_max)).
    pub(super) fn next_execution(&mut self, now: Time) -> Option<Work> {
        let (reached, alone) = self.next_reached();
        let mut batch = Vec::new();
        let mut sessions = Vec::new();
        for id in reached {
            let (request, read_only) = match self.judged(id, now) {
                Judgement::Execute { request, read_only } => (request, read_only),
                Judgement::Apply { last_seq } if batch.is_empty() => {
                    let payload = self.room.waiting[&id].payload();
                    let (effects, change) = self.fallback_effects(id, last_seq, payload);
                    self.in_flight = InFlight::Fallback {
                        session: id,
                        seq: last_seq,
                        change,
                    };
                    return Some(Work::Apply(effects));
                }
                Judgement::Apply { .. } => break,
                // [`Server::answer_waiting`] answers this bypass without the store.
                _ => continue,
            };
            let payload = self.room.waiting[&id].payload();
            let record =
                (!read_only).then(|| (records::reply_key(id), records::reply_prefix(request)));
            let source = Source {
                session: id,
                number: request,
                order: self.entries.applied,
            };
            batch.push(Execution {
                payload,
                source,
                record,
            });
            sessions.push(Executing {
                session: id,
                request,
                read_only,
            });
            if alone {
                self.turns.last_suspect = id;
                break;
            }
        }
        if batch.is_empty() {
            return None;
        }
        self.in_flight = InFlight::Execute(sessions);
        Some(Work::Execute(batch))
    }

    /// Answers bypasses that do not need the store: repeated bypasses, bypasses of unknown sessions, and bypasses that
    /// can no longer be executed. Forgets bypasses whose deadlines have passed.
    pub fn answer_waiting(&mut self, now: Time, out: &mut Outbox) {
        if !self.loaded {
            return;
        }
        let reached: Vec<u64> = self.reached().collect();
        let busy = match &self.in_flight {
            InFlight::Execute(sessions) => {
                sessions.iter().map(|executing| executing.session).collect()
            }
            InFlight::Fallback { session, .. } => vec![*session],
            _ => Vec::new(),
        };
        for id in reached {
            if busy.contains(&id) {
                continue;
            }
            let judgement = self.judged(id, now);
            let waiting = &self.room.waiting[&id];
            let (asked, from) = (waiting.asked, waiting.from);
            match judgement {
                Judgement::Execute { .. } | Judgement::Apply { .. } => {}
                Judgement::Confirm => self.answer_fallback(id, asked.last_seq, out),
                Judgement::GivenUp => {
                    self.counters.expired += 1;
                    self.room.forget(id);
                }
                Judgement::Overtaken => {
                    self.counters.dropped += 1;
                    self.room.forget(id);
                }
                Judgement::UnknownSession => {
                    self.room.forget(id);
                    let nack = Nack {
                        session: id,
                        expected: 0,
                        refused: asked.number(),
                        why: 0,
                        unknown_session: true,
                    };
                    out.seal(self.seal(), from, &nack.header(&self.stamp()), &[]);
                }
                Judgement::Expect(expected) => {
                    self.room.forget(id);
                    let nack = Nack {
                        session: id,
                        expected,
                        refused: asked.refused(),
                        why: 0,
                        unknown_session: false,
                    };
                    out.seal(self.seal(), from, &nack.header(&self.stamp()), &[]);
                }
                Judgement::Repeat => {
                    let session = self.sessions.get(&id).expect("judged by its reply");
                    let reply = session.reply_to(&asked).expect("judged by it").clone();
                    self.counters.answered_again += 1;
                    self.room.forget(id);
                    self.send_reply(from, &asked, &reply, 0, out);
                }
            }
        }
    }

    pub(super) fn answer_fallback(&mut self, id: u64, seq: u64, out: &mut Outbox) {
        if let Some(waiting) = self.room.waiting.get(&id)
            && waiting.asked.identity() == (true, seq)
        {
            let (asked, from) = (waiting.asked, waiting.from);
            self.room.forget(id);
            let confirmation = asked.response(self.entries.applied, 0, Fragment::WHOLE);
            let confirmation = confirmation.header(&self.stamp());
            out.seal(self.seal(), from, &confirmation, &[]);
        }
    }

    /// The store has executed the first `replies.len()` requests of the work.
    pub fn executed(&mut self, replies: Vec<Bytes>, out: &mut Outbox) {
        let InFlight::Execute(sessions) = std::mem::replace(&mut self.in_flight, InFlight::Nothing)
        else {
            panic!("no execution was under way")
        };
        let (answered, rest) = sessions.split_at(replies.len().min(sessions.len()));
        self.unanswered(rest);
        for (
            Executing {
                session: id,
                request,
                read_only,
            },
            reply,
        ) in answered.iter().copied().zip(replies)
        {
            self.counters.executed += 1;
            self.turns.suspects.remove(&id);
            let reply = bounded(reply);
            // Meanwhile the client may have given up this request and sent another request.
            let waiting = self
                .room
                .waiting
                .get(&id)
                .filter(|waiting| waiting.asked.identity() == (false, request));
            let asked = waiting.map(|waiting| (waiting.asked, waiting.from));
            let size = asked.map_or(FragmentSize::MIN, |(asked, _)| self.size_for(&asked));
            if read_only && reply.len() > size.bytes() {
                self.keep_recent(id, request, reply.clone());
            }
            if let Some(session) = self.sessions.get_mut(&id) {
                // The bypass may have arrived before its session was known.
                session.highest_request = session.highest_request.max(request);
                if !read_only {
                    self.kept.give(id, session, request, reply.clone());
                } else if reply.starts_with(b"-") && reply.len() <= FRAGMENT_BYTES {
                    // The request may have been a script that was killed, and must not be executed again.
                    session.failed_read = Some((request, reply.clone()));
                }
            }
            if let Some((asked, from)) = asked {
                self.room.forget(id);
                self.send_reply(from, &asked, &reply, 0, out);
            }
        }
        self.bound_kept();
    }

    /// The store has not answered these requests. One of them may be the cause, so from now on each is executed alone.
    /// The server forgets the requests: a request that takes longer than the adaptor's timeout, or that kills the
    /// store, would otherwise be repeated and occupy the shard for ever. A client that still wants the reply sends its
    /// request again.
    pub(super) fn unanswered(&mut self, executing: &[Executing]) {
        for failed in executing {
            self.turns.suspects.insert(failed.session);
            let waits = self.room.waiting.get(&failed.session);
            if (failed.read_only || self.config.rules.hold(Rule::ForgetFailed))
                && waits.is_some_and(|waiting| waiting.asked.identity() == (false, failed.request))
            {
                self.room.forget(failed.session);
            }
        }
    }

    fn keep_recent(&mut self, session: u64, request: u64, reply: Bytes) {
        if let Some(at) = self
            .replies
            .recent
            .iter()
            .position(|recent| recent.session == session)
            && let Some(old) = self.replies.recent.remove(at)
        {
            self.replies.bytes -= old.reply.len();
        }
        self.replies.bytes += reply.len();
        self.replies.recent.push_back(Recent {
            session,
            request,
            reply,
        });
        while self.replies.bytes > self.config.replies_bytes_max
            || self.replies.recent.len() > RECENT_MAX
        {
            let Some(old) = self.replies.recent.pop_front() else {
                break;
            };
            self.replies.bytes -= old.reply.len();
        }
    }

    /// Sends the next fragments of a long reply to a client that fetches them.
    fn send_more(&mut self, from: Peer, asked: &Asked, wanted: Fragment, out: &mut Outbox) {
        let Some(session) = self.sessions.get(&asked.session) else {
            return;
        };
        let stored = session
            .reply
            .iter()
            .find(|(request, _)| *request == asked.number())
            .map(|(_, reply)| reply);
        let recent = || {
            let mine = |recent: &&Recent| {
                (recent.session, recent.request) == (asked.session, asked.number())
            };
            self.replies
                .recent
                .iter()
                .find(mine)
                .map(|recent| &recent.reply)
        };
        let Some(reply) = stored.or_else(recent).cloned() else {
            return;
        };
        // If the fragments that the client has are of another size, the server sends the reply from its start.
        let count = self.size_for(asked).count(reply.len());
        let first = if count == usize::from(wanted.count) {
            usize::from(wanted.index)
        } else {
            0
        };
        self.send_reply(from, asked, &reply, first, out);
    }

    /// Returns the largest fragments for the path to the client: the smallest of the shard's size, the client's size
    /// and the size of the server's own path.
    fn size_for(&self, asked: &Asked) -> FragmentSize {
        let members = self.chain.as_ref().map_or(&[][..], |chain| &chain.members);
        asked.size.min(shard_size(members)).min(self.path)
    }

    fn send_reply(
        &mut self,
        to: Peer,
        asked: &Asked,
        reply: &Bytes,
        first: usize,
        out: &mut Outbox,
    ) {
        let size = self.size_for(asked);
        let count = size.count(reply.len());
        let whole = if count > 1 {
            u64::from(pmnet_wire::crc(reply))
        } else {
            0
        };
        for index in first..count.min(first + usize::from(TRANSFER_WINDOW)) {
            let start = index * size.bytes();
            let end = (start + size.bytes()).min(reply.len());
            let fragment = Fragment {
                index: u16::try_from(index).expect("checked when executed"),
                count: u16::try_from(count).expect("checked when executed"),
            };
            let answer = asked.response(self.entries.applied, whole, fragment);
            let header = answer.header(&self.stamp());
            out.seal(self.seal(), to, &header, &reply[start..end]);
        }
    }
}
