//! One session of a client: its window of updates, its bypass, and its fallback.

mod pump;

use super::bypass::Transfer;
use super::{
    Binding, CallId, ClientConfig, Closed, Context, Event, Outcome, Refused, SessionHandle,
};
use crate::Time;
use crate::keys::Seal;
use crate::rto::Rto;
use crate::time::earliest;
use bytes::Bytes;
use pmnet_wire::packet::{
    Ack, Identity, LetGo, Nack, NotLogged, OpenReply, Pong, Response, is_mark,
};
use pmnet_wire::{
    FRAGMENTS_MAX, Flags, FragmentSize, FrontKey, Header, Kind, MESSAGE_BYTES_MAX, Packet,
    Payloads, SessionKeys, command,
};
use std::collections::VecDeque;

/// The request of a call.
#[derive(Debug)]
pub(super) enum Work {
    Update {
        payload: Bytes,
        key_hash: u64,
    },
    Bypass {
        payload: Bytes,
        key_hash: u64,
        read_only: bool,
    },
    End,
}

#[derive(Debug)]
struct Call {
    id: CallId,
    work: Work,
    deadline: Time,
}

/// An update whose fragments have seqs.
#[derive(Debug)]
struct Update {
    call: Option<CallId>,
    first_seq: u64,
    last_seq: u64,
    payload: Bytes,
    key_hash: u64,
    deadline: Time,
    kind: Kind,
    /// Size of the update's fragments. The size stays the same while the update is under way, because a seq always
    /// names the same bytes.
    size: FragmentSize,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Time,
    again: bool,
}

#[derive(Debug)]
struct Bypass {
    /// The caller's call; `None`: the bypass is a fence that the session itself sends ([`Direct::doubtful`]).
    call: Option<CallId>,
    request: u64,
    read_only: bool,
    key_hash: u64,
    deadline: Time,
    /// Time at which the head last reported that an update before the bypass is missing.
    nacked: Option<Time>,
    transfer: Transfer,
}

#[derive(Debug)]
struct Fallback {
    first_seq: u64,
    last_seq: u64,
    key_hash: u64,
    transfer: Transfer,
}

impl Fallback {
    fn of(update: &Update, size: FragmentSize) -> Fallback {
        Fallback {
            first_seq: update.first_seq,
            last_seq: update.last_seq,
            key_hash: update.key_hash,
            transfer: Transfer::new(update.payload.clone(), size),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Opening { last_sent: Option<Time> },
    Open,
    Closed,
}

/// Updates that have seqs.
#[derive(Debug)]
struct Logged {
    updates: VecDeque<Update>,
    /// For each seq in `acked + 1 .. next_seq`, the time at which the seq was last sent; `None`: not sent yet.
    sent: VecDeque<Option<Sent>>,
    /// Last committed seq, as the newest ack of `acked_epoch` stated it.
    acked: u64,
    acked_epoch: u32,
    /// Last seq that a NIC has acknowledged; 0: none.
    acked_by_nic: u64,
    /// Last seq that is known to be applied. Later seqs may be applied, too.
    applied: u64,
    /// The next seq to assign to an update (`next_seq`), and the next seq to send (`next_send`).
    next_seq: u64,
    next_send: u64,
    /// Seq that the last NACK has asked for, and the NACK's time.
    nacked: Option<(u64, Time)>,
    /// Number of timeouts since the last progress (`stalled`), and whether the session must ask the head for its last
    /// seq (`asks`).
    stalled: u32,
    asks: bool,
}

/// The window of updates that may be in flight.
#[derive(Debug)]
struct Window {
    size: u32,
    /// Window size up to which the window doubles with each round trip.
    threshold: u32,
    /// Number of entries that the head can take, as its last packet stated it.
    credit: u64,
    /// The store is short of space, so the head takes no updates. Updates without a seq are sent as bypasses.
    short: bool,
}

/// Requests that go directly to the server, one at a time.
#[derive(Debug)]
struct Direct {
    bypass: Option<Bypass>,
    next_request: u64,
    /// A bypass that changes state has an unknown outcome, and the store has recorded no later request of this session.
    /// A restarted server would still execute a late copy of this bypass, even after a later read.
    doubtful: bool,
    fallback: Option<Fallback>,
    /// The server has applied all updates up to this seq, the last of them as a fallback. The head may not know that
    /// they are applied.
    fallback_upto: u64,
    /// The head does not know `fallback_upto`, so the server must send its confirmation through the head again.
    repair: bool,
}

/// One session of the client.
#[derive(Debug)]
pub(super) struct Session {
    handle: SessionHandle,
    token: u64,
    /// Keys of the session, if the client has a key, and the front's key from which they are derived.
    keys: Option<SessionKeys>,
    front: Option<FrontKey>,
    id: u64,
    state: State,
    /// Calls that have no seq or request id yet.
    queue: VecDeque<Call>,
    /// No deadline of a call lies before this time.
    earliest_deadline: Option<Time>,
    /// The END of the session was submitted.
    ending: bool,
    /// Since the client got another key, a deadline of a call in this session has passed. Perhaps no head has the key
    /// of this session any more.
    unheard: bool,
    log: Logged,
    window: Window,
    direct: Direct,
    update_rto: Rto,
    bypass_rto: Rto,
    last_sent: Time,
    /// The head has refused the session because it had too many sessions.
    crowded: bool,
    /// The session is in the list of sessions to pump.
    dirty: bool,
    pub(super) timer: Option<Time>,
}

/// Largest number of bytes of a message besides a value of 16 MiB: preamble, command name, key, RESP framing.
const MESSAGE_OVERHEAD_BYTES: usize = command::PREAMBLE_LEN + 16 * 1024;
const _: () = assert!(
    FragmentSize::MIN.count(MESSAGE_BYTES_MAX + MESSAGE_OVERHEAD_BYTES) <= FRAGMENTS_MAX as usize
);

/// Number of timeouts of a large packet after which the packet counts as too large for the path to the head.
const LOST_AFTER: u32 = 6;
/// Failure text of a call that could not be sent because the device has no place for its session.
pub const CROWDED: &str =
    "deadline passed before the call could be sent: the device has no room for another session";

const WINDOW_INITIAL: u32 = 32;
const WINDOW_MIN: u32 = 2;

/// Returns the keys of a session with this token; `None`: the client has no key.
fn keys_of(token: u64, config: &ClientConfig) -> Option<SessionKeys> {
    let front = config.keys.as_ref()?;
    Some(front.session(config.shard, token))
}

impl Session {
    pub(super) fn new(
        handle: SessionHandle,
        token: u64,
        now: Time,
        config: &ClientConfig,
    ) -> Session {
        Session {
            handle,
            token,
            keys: keys_of(token, config),
            front: config.keys,
            id: 0,
            state: State::Opening { last_sent: None },
            queue: VecDeque::new(),
            earliest_deadline: None,
            ending: false,
            unheard: false,
            log: Logged {
                updates: VecDeque::new(),
                sent: VecDeque::new(),
                acked: 0,
                acked_epoch: 0,
                acked_by_nic: 0,
                applied: 0,
                next_seq: 1,
                next_send: 1,
                nacked: None,
                stalled: 0,
                asks: false,
            },
            window: Window {
                size: WINDOW_INITIAL.min(config.window_max),
                threshold: config.window_max,
                credit: u64::MAX,
                short: false,
            },
            direct: Direct {
                bypass: None,
                next_request: 1,
                doubtful: false,
                fallback: None,
                fallback_upto: 0,
                repair: false,
            },
            update_rto: Rto::new(config.update_timeout_floor, config.timeout_ceiling),
            bypass_rto: Rto::new(config.bypass_timeout_floor, config.timeout_ceiling),
            last_sent: now,
            crowded: false,
            dirty: true,
            timer: None,
        }
    }

    pub(super) const fn id(&self) -> u64 {
        self.id
    }
    pub(super) const fn token(&self) -> u64 {
        self.token
    }
    pub(super) const fn keys(&self) -> Option<&SessionKeys> {
        self.keys.as_ref()
    }
    /// The seal of packets that the session sends.
    pub(super) fn seal(&self) -> Seal {
        Seal::of(self.keys.map(|keys| keys.to_head))
    }
    pub(super) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }
    /// Marks the session as listed for the next pump. Returns true if the caller must add it to the list.
    pub(super) fn mark_dirty(&mut self) -> bool {
        !std::mem::replace(&mut self.dirty, true)
    }

    pub(super) fn submit(
        &mut self,
        id: CallId,
        work: Work,
        deadline: Time,
        config: &ClientConfig,
    ) -> Result<(), Refused> {
        if self.ending || self.is_closed() {
            return Err(Refused::Closed);
        }
        // If a request has an unknown outcome, a fence in its own session must settle it first. This is possible only
        // if heads still answer the session.
        let settles = self.direct.doubtful && !self.unheard;
        if self.has_another_key(config) && !settles && !matches!(work, Work::End) {
            return Err(Refused::Busy);
        }
        match &work {
            Work::Update { payload, .. } | Work::Bypass { payload, .. } => {
                if payload.len() > MESSAGE_BYTES_MAX + MESSAGE_OVERHEAD_BYTES {
                    return Err(Refused::TooLarge);
                }
                if self.queue.len() + self.log.updates.len() >= config.queue_max {
                    return Err(Refused::Busy);
                }
            }
            Work::End => self.ending = true,
        }
        self.queue.push_back(Call { id, work, deadline });
        self.earliest_deadline = earliest(self.earliest_deadline, Some(deadline));
        Ok(())
    }

    /// Whether the session's key differs from the front's present key. If it differs, the session takes no more calls,
    /// and ends when no call is under way. Marks are exempt.
    pub(super) fn has_another_key(&self, config: &ClientConfig) -> bool {
        self.has_another_front(config) && !is_mark(self.token)
    }

    /// Whether the session's key differs from the front's present key. In contrast to [`Session::has_another_key`],
    /// marks count.
    pub(super) fn has_another_front(&self, config: &ClientConfig) -> bool {
        self.front != config.keys
    }

    /// The client has another key. A session that is not open yet sends its OPEN again with the new key, because no
    /// head answers an OPEN with a wrong key.
    pub(super) fn rekey(&mut self, config: &ClientConfig) {
        if matches!(self.state, State::Opening { .. }) && self.has_another_key(config) {
            self.front = config.keys;
            self.keys = keys_of(self.token, config);
            self.state = State::Opening { last_sent: None };
        }
    }

    /// Ends the session with an END that is sealed with the session's old key.
    pub(super) fn retire(&mut self, deadline: Time, config: &ClientConfig) {
        // The session is open and its queue is empty, so the END is accepted.
        let _ = self.submit(CallId(u64::MAX), Work::End, deadline, config);
    }

    /// Whether the session must be dropped without an END. This is so if the client has another key, all calls have
    /// their outcomes, and perhaps no head has the session's key any more. An END might then never be answered.
    pub(super) fn is_forsaken(&self) -> bool {
        let mut updates = self.log.updates.iter();
        let waits = |call: Option<CallId>| call.is_some();
        let under_way = self.ending
            || !self.queue.is_empty()
            || updates.any(|update| waits(update.call))
            || self.direct.bypass.iter().any(|bypass| waits(bypass.call));
        let unanswered = !self.log.updates.is_empty() && !self.direct.doubtful;
        !under_way && (self.unheard || unanswered)
    }

    /// Whether the session could end now: no call is under way, and none of its requests has an unknown outcome.
    pub(super) fn is_idle(&self) -> bool {
        !self.ending
            && !self.direct.doubtful
            && self.queue.is_empty()
            && self.log.updates.is_empty()
            && self.direct.fallback.is_none()
            && !self.waits_for_chain()
    }

    // ---- inputs ----

    /// Processes an OPEN-REPLY. Returns true if the packet has just opened the session.
    pub(super) fn on_open_reply(
        &mut self,
        now: Time,
        header: &Header,
        context: &mut Context<'_>,
    ) -> bool {
        let reply = OpenReply::read(header);
        if self.state == State::Open && reply.session == self.id {
            self.window.short = reply.short;
        }
        let State::Opening { last_sent } = self.state else {
            return false;
        };
        if !self.enough_copies(reply.copies, context) || reply.session == 0 {
            return false;
        }
        if let Some(at) = last_sent {
            self.update_rto.sample(now.since(at));
        }
        self.id = reply.session;
        self.state = State::Open;
        self.window.short = reply.short;
        self.log.acked_epoch = header.epoch;
        true
    }

    fn enough_copies(&mut self, copies: u8, context: &mut Context<'_>) -> bool {
        let enough = copies >= context.config.copies_min;
        if !enough {
            self.close(Closed::TooFewCopies { have: copies }, context);
        }
        enough
    }

    pub(super) fn on_ack(&mut self, now: Time, header: &Header, context: &mut Context<'_>) {
        self.on_ack_of(now, Ack::read(header), header.epoch, context);
    }

    fn on_ack_of(&mut self, now: Time, ack: Ack, epoch: u32, context: &mut Context<'_>) {
        if ack.seq >= self.log.next_seq {
            context.counters.unexpected += 1;
            return;
        }
        if !self.enough_copies(ack.copies, context) {
            return;
        }
        self.window.credit = ack.room;
        self.window.short = ack.short;
        self.log.acked_epoch = self.log.acked_epoch.max(epoch);
        self.log.applied = self.log.applied.max(ack.applied.min(ack.seq));
        if ack.seq <= self.log.acked {
            return;
        }
        let newly = u32::try_from(ack.seq - self.log.acked).unwrap_or(u32::MAX);
        let row = usize::try_from(ack.seq - self.log.acked - 1).expect("within the window");
        if let Some(Some(sent)) = self.log.sent.get(row) {
            if sent.again {
                self.update_rto.progress();
            } else {
                self.update_rto.sample(now.since(sent.at));
            }
        }
        let growth = if self.window.size < self.window.threshold {
            newly
        } else {
            newly.div_ceil(self.window.size.max(1))
        };
        self.window.size = self
            .window
            .size
            .saturating_add(growth)
            .min(context.config.window_max);
        self.committed_upto(ack.seq, ack.copies, context);
    }

    /// Returns the facts that a connection by RDMA needs about the session.
    pub(super) fn binding(&self) -> Binding {
        Binding {
            acknowledged: self.log.acked,
            whose: Identity {
                token: self.token,
                front: self.front.map(|front| front.id()),
            },
            key: self.front,
        }
    }

    /// A NIC has all updates up to `seq`. Its acknowledgement counts as an ACK with one copy. Unlike an ACK, it says
    /// nothing about room in the log and space in the store.
    pub(super) fn on_taken_by_nic(
        &mut self,
        now: Time,
        seq: u64,
        epoch: u32,
        context: &mut Context<'_>,
    ) {
        let ack = Ack {
            session: self.id,
            seq,
            copies: 1,
            committed: 0,
            room: self.window.credit,
            applied: self.log.applied,
            short: self.window.short,
        };
        self.log.acked_by_nic = self.log.acked_by_nic.max(seq);
        self.on_ack_of(now, ack, epoch, context);
    }

    fn committed_upto(&mut self, seq: u64, copies: u8, context: &mut Context<'_>) {
        self.log.stalled = 0;
        while self.log.acked < seq {
            self.log.sent.pop_front();
            self.log.acked += 1;
        }
        self.log.next_send = self.log.next_send.max(seq + 1);
        while self
            .log
            .updates
            .front()
            .is_some_and(|update| update.last_seq <= seq)
        {
            let Some(update) = self.log.updates.pop_front() else {
                break;
            };
            if let Some(call) = update.call {
                let outcome = Outcome::Committed { copies };
                context.events.push_back(Event::Done {
                    session: self.handle,
                    call,
                    outcome,
                });
            }
            if update.kind == Kind::End {
                self.close(Closed::Ended, context);
                return;
            }
        }
        if self
            .direct
            .fallback
            .as_ref()
            .is_some_and(|fallback| fallback.last_seq <= seq)
        {
            self.direct.fallback = None;
        }
    }

    pub(super) fn on_nack(&mut self, now: Time, header: &Header, context: &mut Context<'_>) {
        let Nack {
            expected, refused, ..
        } = Nack::read(header);
        if expected == 0 || expected > self.log.next_seq {
            context.counters.unexpected += 1;
            return;
        }
        if expected <= self.direct.fallback_upto {
            self.direct.repair = true;
            return;
        }
        if expected <= self.log.acked {
            // The NACK asks for an acknowledged update. If its epoch is later than the last ack's, the chain has really
            // lost the update. In the epoch of the last ack, the NACK of a device that acknowledges by itself can only
            // be an old packet. If a NIC has acknowledged the update and the device misses it, another host's packet
            // took its place, because this client leaves no gap on a connection (verbs.md §9).
            if header.epoch > self.log.acked_epoch || expected <= self.log.acked_by_nic {
                self.close(
                    Closed::DataLoss {
                        from: expected,
                        to: self.log.acked,
                    },
                    context,
                );
            }
            return;
        }
        let guard = (self.update_rto.smoothed() / 2).min(context.config.update_timeout_floor);
        if self
            .log
            .nacked
            .is_some_and(|(seq, at)| seq == expected && now.since(at) < guard)
        {
            return;
        }
        self.log.nacked = Some((expected, now));
        if self
            .direct
            .fallback
            .as_ref()
            .is_some_and(|fallback| expected < fallback.first_seq)
        {
            self.direct.fallback = None;
        }
        if expected < self.log.next_seq {
            self.resend_from(expected, context);
        }
        if refused != 0
            && let Some(bypass) = &mut self.direct.bypass
            && bypass.request == refused
            && bypass
                .nacked
                .is_none_or(|at| now.since(at) >= self.update_rto.smoothed())
        {
            // The head may refuse each fragment of a long bypass. The client reacts to one refusal in each round trip.
            bypass.nacked = Some(now);
            bypass.transfer.retry();
        }
    }

    fn resend_from(&mut self, seq: u64, context: &mut Context<'_>) {
        let seq = seq.max(self.log.acked + 1);
        if seq < self.log.next_send {
            context.counters.resent += self.log.next_send - seq;
            self.log.next_send = seq;
        }
    }

    /// The device does not know the session, or no longer knows it. If the packet has the epoch of the last ack, the
    /// session has expired after all its acknowledged updates. If its epoch is later, an operator may have declared the
    /// log lost: then every update counts as lost that is not known to be applied.
    pub(super) fn on_unknown(&mut self, header: &Header, context: &mut Context<'_>) {
        let later = header.epoch > self.log.acked_epoch;
        let Nack { expected, why, .. } = Nack::read(header);
        // A head that has ended the session on its own knew the session and its last seq.
        let let_go = LetGo::from_byte(why).filter(|_| !later || expected > self.log.acked);
        let lost = later && self.log.applied < self.log.acked;
        let reason = if let Some(why) = let_go.filter(|_| !self.ending) {
            Closed::LetGo(why)
        } else if lost && let_go.is_none() {
            Closed::DataLoss {
                from: self.log.applied + 1,
                to: self.log.acked,
            }
        } else if self.ending {
            Closed::Ended
        } else {
            Closed::Refused
        };
        self.close(reason, context);
    }

    pub(super) fn on_not_logged(&mut self, now: Time, header: &Header, context: &mut Context<'_>) {
        let NotLogged {
            session,
            seq,
            room,
            why,
            short,
            full,
            ..
        } = NotLogged::read(header);
        if session == 0 && full {
            // No call of the session was sent, and waiting would not help: an operator or a client must delete data.
            self.close(Closed::StoreFull, context);
            return;
        }
        let opening = matches!(self.state, State::Opening { .. });
        if session == 0 && why == NotLogged::OTHER_PAYLOADS && opening {
            self.close(Closed::OtherPayloads(Payloads::from_wire(room)), context);
            return;
        }
        if session == 0 {
            self.crowded = why == NotLogged::CROWDED;
            context.counters.crowded += u64::from(self.crowded);
            // The OPEN was not logged, so it is sent again after a pause.
            self.update_rto.back_off();
            if let State::Opening { last_sent } = &mut self.state {
                *last_sent = Some(now);
            }
            return;
        }
        self.window.short = short;
        if self.direct.fallback.is_some() {
            return;
        }
        let Some(update) = self
            .log
            .updates
            .iter()
            .find(|update| (update.first_seq..=update.last_seq).contains(&seq))
        else {
            return;
        };
        if update.kind == Kind::End {
            // The log has no room for the END, which is sent again later.
            self.update_rto.back_off();
            return;
        }
        context.counters.fallbacks += 1;
        self.direct.fallback = Some(Fallback::of(update, context.size));
    }

    /// Returns the number of payload bytes of the oldest unacknowledged packet.
    fn oldest_bytes(&self) -> usize {
        let Some(update) = self.log.updates.front() else {
            return 0;
        };
        let index = (self.log.acked + 1).saturating_sub(update.first_seq);
        let start = usize::try_from(index).expect("bounded") * update.size.bytes();
        let rest = update.payload.len().saturating_sub(start);
        rest.min(update.size.bytes())
    }

    /// Whether a PONG shows that the path to the head loses large packets: the head answers small packets, but lacks
    /// the oldest unacknowledged packet, which is large and was sent several times.
    pub(super) fn loses_large(&self, pong: &Header) -> bool {
        let expected = Pong::read(pong).expected;
        self.direct.fallback.is_none()
            && self.log.stalled >= LOST_AFTER
            && expected == self.log.acked + 1
            && self.oldest_bytes() > FragmentSize::MIN.bytes()
    }

    /// Sends the oldest update to the server as a fallback in small packets. The update cannot be cut into other
    /// fragments, because a seq always names the same bytes.
    pub(super) fn fall_back_in_small(&mut self, context: &mut Context<'_>) {
        if let Some(update) = self.log.updates.front() {
            context.counters.fallbacks += 1;
            self.direct.fallback = Some(Fallback::of(update, FragmentSize::MIN));
        }
    }

    pub(super) fn on_response(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        context: &mut Context<'_>,
    ) {
        let header = &packet.header;
        if header.flags.has(Flags::FALLBACK) {
            self.on_fallback_response(now, packet, context);
            return;
        }
        let Some(bypass) = &mut self.direct.bypass else {
            return;
        };
        if Response::read(header).request != bypass.request {
            return;
        }
        if let Some(reply) = bypass.transfer.on_response(packet) {
            if let (Some(at), false) = (bypass.transfer.last_sent, bypass.transfer.resent) {
                self.bypass_rto.sample(now.since(at));
            } else {
                self.bypass_rto.progress();
            }
            let (call, read_only) = (bypass.call, bypass.read_only);
            self.direct.bypass = None;
            self.direct.doubtful &= read_only;
            let Some(call) = call else {
                return;
            };
            let outcome = Outcome::Reply(reply);
            context.events.push_back(Event::Done {
                session: self.handle,
                call,
                outcome,
            });
        }
    }

    fn on_fallback_response(&mut self, _now: Time, packet: &Packet<'_>, context: &mut Context<'_>) {
        let seq = packet.header.seq;
        if seq <= self.direct.fallback_upto {
            self.direct.repair = false;
        }
        let Some(fallback) = &mut self.direct.fallback else {
            return;
        };
        if seq != fallback.last_seq || fallback.transfer.on_response(packet).is_none() {
            return;
        }
        self.direct.fallback = None;
        self.direct.fallback_upto = seq;
        self.bypass_rto.progress();
        self.committed_upto(seq, 0, context);
    }

    // ---- time ----

    pub(super) fn on_timer(&mut self, now: Time, context: &mut Context<'_>) {
        if self
            .earliest_deadline
            .is_some_and(|deadline| now >= deadline)
        {
            self.expire(now, context);
        }
        if self.is_closed() {
            return;
        }
        if let State::Opening {
            last_sent: Some(at),
        } = self.state
            && now >= at + self.update_rto.timeout()
        {
            self.update_rto.back_off();
            self.state = State::Opening { last_sent: None };
        }
        if self.direct.fallback.is_none()
            && let Some(Some(oldest)) = self.log.sent.front()
            && now >= oldest.at + self.update_rto.timeout()
        {
            self.update_rto.back_off();
            self.log.stalled += 1;
            // With keys, a head that does not know the session answers only a PING.
            self.log.asks = self.keys.is_some() || self.oldest_bytes() > FragmentSize::MIN.bytes();
            self.window.threshold = (self.window.size / 2).max(WINDOW_MIN);
            self.window.size = self.window.threshold;
            self.resend_from(self.log.acked + 1, context);
        }
        let timeout = self.bypass_rto.timeout();
        let mut late = false;
        if let Some(transfer) = self.transfer()
            && transfer.due(timeout).is_some_and(|due| now >= due)
        {
            transfer.retry();
            late = true;
        }
        if late {
            self.log.asks |= self.keys.is_some();
            self.bypass_rto.back_off();
        }
    }

    /// Whether a request is under way that the chain has not finished.
    pub(super) fn waits_for_chain(&self) -> bool {
        matches!(self.state, State::Opening { .. })
            || self.log.next_seq - 1 != self.log.acked
            || self.direct.bypass.is_some()
            || self.direct.repair
    }

    /// Makes the next pump send all unanswered packets again, with new timeouts.
    pub(super) fn head_changed(&mut self) {
        self.update_rto.progress();
        self.bypass_rto.progress();
        if let State::Opening { last_sent } = &mut self.state {
            *last_sent = None;
        }
        self.log.next_send = self.log.acked + 1;
        let fallback = self.direct.fallback.as_mut().map(|it| &mut it.transfer);
        let bypass = self.direct.bypass.as_mut().map(|it| &mut it.transfer);
        if let Some(transfer) = fallback.or(bypass)
            && transfer.last_sent.is_some()
        {
            transfer.retry();
        }
    }

    /// Returns the transfer that may be sent to the server now: the fallback, if there is one, or else the bypass, once
    /// every earlier update was sent.
    fn transfer(&mut self) -> Option<&mut Transfer> {
        let ready = self.all_sent();
        match &mut self.direct.fallback {
            Some(fallback) => Some(&mut fallback.transfer),
            None => self
                .direct
                .bypass
                .as_mut()
                .filter(|_| ready)
                .map(|bypass| &mut bypass.transfer),
        }
    }

    /// Whether every update has been sent. If a bypass were sent before an earlier update, the head would refuse each
    /// of its fragments.
    fn all_sent(&self) -> bool {
        self.log.next_send == self.log.next_seq
    }

    /// Ends every call whose deadline has passed.
    fn expire(&mut self, now: Time, context: &mut Context<'_>) {
        let handle = self.handle;
        let unsent = if self.crowded && matches!(self.state, State::Opening { .. }) {
            CROWDED
        } else {
            "deadline passed before the call could be sent"
        };
        let mut end_expired = false;
        let is_left = self.has_another_key(context.config);
        let unheard = &mut self.unheard;
        self.queue.retain(|call| {
            if now < call.deadline {
                return true;
            }
            *unheard |= is_left;
            if matches!(call.work, Work::End) {
                end_expired = true;
            } else {
                let outcome = Outcome::Failed(unsent);
                context.events.push_back(Event::Done {
                    session: handle,
                    call: call.id,
                    outcome,
                });
            }
            false
        });
        for update in &mut self.log.updates {
            if now >= update.deadline {
                if let Some(call) = update.call.take() {
                    self.unheard |= is_left;
                    context.events.push_back(Event::Done {
                        session: handle,
                        call,
                        outcome: Outcome::Unknown,
                    });
                }
                end_expired |= update.kind == Kind::End;
            }
        }
        if self
            .direct
            .bypass
            .as_ref()
            .is_some_and(|bypass| now >= bypass.deadline)
            && let Some(bypass) = self.direct.bypass.take()
        {
            self.unheard |= is_left;
            let outcome = if bypass.read_only {
                Outcome::Failed("deadline passed before the server answered")
            } else {
                self.direct.doubtful = true;
                Outcome::Unknown
            };
            if let Some(call) = bypass.call {
                context.events.push_back(Event::Done {
                    session: handle,
                    call,
                    outcome,
                });
            }
        }
        let open_updates = self
            .log
            .updates
            .iter()
            .filter(|update| update.call.is_some() || update.kind == Kind::End);
        self.earliest_deadline = open_updates
            .map(|update| update.deadline)
            .chain(self.queue.iter().map(|call| call.deadline))
            .chain(self.direct.bypass.iter().map(|bypass| bypass.deadline))
            .min();
        if end_expired {
            // The deadline of the END has passed. The head ends the session later, because the session is silent.
            self.close(Closed::Ended, context);
        }
    }

    /// Closes the session locally. Every call under way gets its outcome.
    pub(super) fn close(&mut self, reason: Closed, context: &mut Context<'_>) {
        let session = self.handle;
        let begun = self
            .log
            .updates
            .drain(..)
            .filter_map(|update| update.call)
            .chain(self.direct.bypass.take().and_then(|bypass| bypass.call))
            .map(|call| (call, Outcome::Unknown));
        let why = reason.failure();
        let waiting = self
            .queue
            .drain(..)
            .filter(|call| !matches!(call.work, Work::End))
            .map(|call| (call.id, Outcome::Failed(why)));
        for (call, outcome) in begun.chain(waiting) {
            context.events.push_back(Event::Done {
                session,
                call,
                outcome,
            });
        }
        context
            .events
            .push_back(Event::SessionClosed { session, reason });
        self.state = State::Closed;
    }

    /// Returns the time when [`Session::on_timer`] must be called; `None`: no timer is set.
    pub(super) fn next_timer(&mut self, config: &ClientConfig) -> Option<Time> {
        let update_timeout = self.update_rto.timeout();
        let bypass_timeout = self.bypass_rto.timeout();
        let mut next = match self.state {
            State::Opening { last_sent } => last_sent.map(|at| at + update_timeout),
            State::Open => Some(self.last_sent + config.ping_every),
            State::Closed => return None,
        };
        if self.direct.fallback.is_none()
            && let Some(Some(oldest)) = self.log.sent.front()
        {
            next = earliest(next, Some(oldest.at + update_timeout));
        }
        next = earliest(next, self.earliest_deadline);
        earliest(
            next,
            self.transfer()
                .and_then(|transfer| transfer.due(bypass_timeout)),
        )
    }
}
