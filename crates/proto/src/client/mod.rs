//! The client machine: many sessions over one address (`docs/spec/protocol.md` §3).
//!
//! Invariants: a session's calls take effect in the order submitted. Every call gets exactly one outcome, by its
//! deadline. An update is resent under the same (session, seq) until it commits, even after its caller was told
//! `Unknown`. Calls that follow a bypass are sent only after the bypass has its reply. This module must not read a
//! clock, block, or draw randomness except from the given generator.

mod bypass;
mod heads;
mod reads;
mod session;
mod size;

use crate::keys;
use crate::rules::Rules;
use crate::time::{MILLISECOND, Nanos, SECOND, earliest};
use crate::{Outbox, Peer, Random, Time};
pub(crate) use bypass::TRANSFER_WINDOW;
use bytes::Bytes;
use core::fmt;
pub use heads::HEAD_SILENCE;
use heads::Heads;
pub use pmnet_wire::packet::LetGo;
use pmnet_wire::packet::{Identity, NotLogged, OpenReply, Pong, Stamp, is_mark};
use pmnet_wire::{
    Flags, FragmentSize, FrontKey, Header, Kind, MESSAGE_BYTES_MAX, Packet, Payloads,
};
use reads::{Flushed, Hits, Reads};
pub use reads::{READ_TIMEOUT, ReadAnswer};
use rustc_hash::FxHashMap;
pub use session::CROWDED;
use session::Session;
use size::Size;
use std::collections::{BTreeSet, VecDeque};

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Address of the head device.
    pub head: Peer,
    /// Addresses of the chain's other devices. Each of them may be the head now, or after a change of the chain. All
    /// are of the same address family.
    pub others: Vec<Peer>,
    /// Shard that the head serves.
    pub shard: u32,
    /// Maximum number of update packets of one session that may be in flight.
    pub window_max: u32,
    /// Maximum number of waiting calls of one session; further calls are refused as `Busy`.
    pub queue_max: usize,
    /// Maximum number of sessions.
    pub sessions_max: usize,
    /// Shortest retransmission timeout of updates.
    pub update_timeout_floor: Nanos,
    /// Shortest retransmission timeout of bypasses. The server replies to a bypass only after a write to its disk.
    pub bypass_timeout_floor: Nanos,
    /// Longest retransmission timeout.
    pub timeout_ceiling: Nanos,
    /// Smallest number of devices that must hold an update: an acknowledgement by fewer devices closes the session.
    pub copies_min: u8,
    /// Interval of an idle session's pings, which keep it from expiring.
    pub ping_every: Nanos,
    /// Name of the client, which only one process can have at a time, and number of the process's start under this
    /// name. A later start has a higher number, and the head ends the sessions of earlier starts. Name 0: no name.
    pub name: (u64, u64),
    /// Kind of the payloads of all calls. A shard whose server takes other payloads begins no session for this client.
    pub payloads: Payloads,
    /// A HIT may show an update that the store has already applied, if the log still has the update. This is correct
    /// only if no other program writes to the store (reads.md §2).
    pub kept: bool,
    /// Upper bound of the fragment size, even if the paths carry larger fragments.
    pub size_max: FragmentSize,
    /// The key of this front; `None`: packets carry tokens instead of MACs.
    pub keys: Option<FrontKey>,
    /// The rules that hold: all of them, except in the simulator.
    pub rules: Rules,
}

impl ClientConfig {
    /// Returns the default settings for this head.
    #[must_use]
    pub const fn new(head: Peer) -> ClientConfig {
        ClientConfig {
            head,
            others: Vec::new(),
            shard: 0,
            window_max: 256,
            queue_max: 4096,
            sessions_max: 65_536,
            update_timeout_floor: 4 * MILLISECOND,
            bypass_timeout_floor: 20 * MILLISECOND,
            timeout_ceiling: SECOND / 2,
            copies_min: 1,
            ping_every: 60 * SECOND,
            name: (0, 0),
            payloads: Payloads::NOT_SAID,
            kept: false,
            size_max: FragmentSize::MAX,
            keys: None,
            rules: Rules::ALL,
        }
    }

    /// Returns the addresses that may be the head's.
    pub fn heads(&self) -> impl Iterator<Item = Peer> {
        std::iter::once(self.head).chain(self.others.iter().copied())
    }
}

/// Local name of a session; never reused by one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionHandle(pub u32);

/// Local name of a call; never reused by one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// Facts about a session that a connection by RDMA needs (`docs/spec/verbs.md` §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Last acknowledged seq.
    pub acknowledged: u64,
    /// Token of the session, and its front.
    pub whose: Identity,
    /// Key of the session's front, if the client has keys.
    pub key: Option<FrontKey>,
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The update is durable in `copies` devices, or in the store.
    Committed {
        /// Number of devices that hold the update; 0: the log was full, and the store has applied the update.
        copies: u8,
    },
    /// The reply to a bypass.
    Reply(Bytes),
    /// The call has not taken effect and never will.
    Failed(&'static str),
    /// The deadline passed, or the session closed. The call has taken effect, or may still take effect, at most once.
    Unknown,
}

/// Why a call was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The session's queue is full: wait for an outcome, then try again.
    #[error("too many calls are waiting in this session")]
    Busy,
    /// The payload is larger than 16 MiB.
    #[error("larger than the {MESSAGE_BYTES_MAX} bytes of one message")]
    TooLarge,
    /// The session has ended, or does not exist.
    #[error("the session is closed")]
    Closed,
    /// There are too many sessions.
    #[error("too many sessions")]
    Sessions,
}

/// Why a session closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The session's caller ended the session.
    Ended,
    /// The device does not know the session: it has expired, or the loss of its chain was declared.
    Refused,
    /// The device has ended the session on its own. No acknowledged update is lost.
    LetGo(LetGo),
    /// The acknowledged updates `from ..= to` are lost (protocol.md §3, DATA_LOSS).
    DataLoss {
        /// First lost seq.
        from: u64,
        /// Last lost seq.
        to: u64,
    },
    /// The chain has fewer devices than the client demands.
    TooFewCopies {
        /// Number of copies in the ack.
        have: u8,
    },
    /// The session could not begin: the store has little space left, and the existing sessions need it.
    StoreFull,
    /// The session could not begin: the server takes payloads of this kind, and would skip the payloads of this client.
    OtherPayloads(Payloads),
}

/// The failure text of calls whose session cannot begin because the store is full.
const STORE_FULL: &str = "the store is full, and what room it has is for the clients that are there: no further one is served. Delete \
     keys through one of those, let some of them end, or make the store larger (pmnet store grow)";

/// Returns the failure text of calls whose session cannot begin because the server takes another kind of payloads.
const fn other_payloads(taken: Payloads) -> &'static str {
    match taken {
        Payloads::COMMANDS => {
            "the server of this shard has a store of commands, such as a Redis, and would skip the updates of a program: no session is begun. \
             Give the devices of a shard with the program as its server"
        }
        Payloads::PROGRAM => {
            "the server of this shard is a program of its own, and would skip commands: no session is begun. Give the devices of a shard with a \
             store of commands, such as a Redis"
        }
        _ => {
            "the server of this shard takes updates of another kind, and would skip these: no session is begun. Give the devices of another shard"
        }
    }
}

impl Closed {
    /// Returns the failure text of a call that was not sent before its session closed, and so has no effect.
    pub(crate) const fn failure(self) -> &'static str {
        match self {
            Closed::StoreFull => STORE_FULL,
            Closed::OtherPayloads(taken) => other_payloads(taken),
            _ => "the session closed before the call was sent",
        }
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Closed::Ended => f.write_str("it was ended"),
            Closed::Refused => f.write_str("the device does not know it any more"),
            Closed::LetGo(LetGo::Silent) => {
                f.write_str("the device has ended it: it had heard nothing of it for too long")
            }
            Closed::LetGo(LetGo::Crowded) => f.write_str(
                "the device has ended it: it had no room for another session, and had heard nothing of this one for long",
            ),
            Closed::LetGo(LetGo::Succeeded) => f.write_str(
                "the device has ended it: another process has begun under the name of this one",
            ),
            Closed::LetGo(LetGo::OverShare) => f.write_str(
                "the device has ended it: this front had more sessions than its share, and another front needed a place",
            ),
            Closed::DataLoss { from, to } => write!(
                f,
                "DATA_LOSS: acknowledged updates {from} to {to} of this session are gone"
            ),
            Closed::TooFewCopies { have } => write!(
                f,
                "the chain keeps {have} copies, which is fewer than demanded"
            ),
            Closed::StoreFull | Closed::OtherPayloads(_) => f.write_str(self.failure()),
        }
    }
}

/// An event for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call ended.
    Done {
        /// Session of the call.
        session: SessionHandle,
        /// The call that ended.
        call: CallId,
        /// Outcome of the call.
        outcome: Outcome,
    },
    /// A READ was answered, or no device answered in time.
    Read {
        /// The READ's call.
        call: CallId,
        /// The answer to the READ.
        answer: ReadAnswer,
    },
    /// A mark is open: every device of the chain holds it ([`Client::open_mark`]).
    Marked {
        /// The mark's session.
        session: SessionHandle,
    },
    /// A session closed. All its calls have their outcomes.
    SessionClosed {
        /// The session that closed.
        session: SessionHandle,
        /// The reason why the session closed.
        reason: Closed,
    },
}

/// Counters of packets that a client dropped, by reason, and of packets that it sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Dropped: malformed, damaged, or not of this protocol.
    pub rejected: u64,
    /// Dropped: wrong token, session, shard or sender.
    pub unexpected: u64,
    /// Dropped: not sealed with the session's key, or changed after sealing.
    pub forged: u64,
    /// Dropped: from a lower epoch than an earlier packet.
    pub stale_epoch: u64,
    /// Update packets sent again.
    pub resent: u64,
    /// Updates that took the fallback because the log was full.
    pub fallbacks: u64,
    /// OPENs that the device refused because its session table was full.
    pub crowded: u64,
}

/// A client: many sessions to one head.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    heads: Heads,
    random: Random,
    epoch: u32,
    size: Size,
    sessions: FxHashMap<SessionHandle, Session>,
    by_id: FxHashMap<u64, SessionHandle>,
    by_token: FxHashMap<u64, SessionHandle>,
    timers: BTreeSet<(Time, SessionHandle)>,
    reads: Reads,
    /// The session of the READs.
    reader: Option<SessionHandle>,
    /// Sessions of READs that were replaced and have not ended yet.
    retired: Vec<SessionHandle>,
    dirty: Vec<SessionHandle>,
    events: VecDeque<Event>,
    counters: ClientCounters,
    /// Large packets are lost in the network, and the caller has not been told yet.
    large_lost: bool,
    next_handle: u32,
    next_call: u64,
}

/// The parts of the client that a session's handlers may use besides the session.
struct Context<'a> {
    config: &'a ClientConfig,
    head: Peer,
    /// The client searches for the head.
    searches: bool,
    epoch: u32,
    /// Size of fragments for new messages and for replies.
    size: FragmentSize,
    events: &'a mut VecDeque<Event>,
    counters: &'a mut ClientCounters,
}

impl Client {
    /// Returns a client without sessions. `random` generates tokens: seed it from the operating system.
    #[must_use]
    pub fn new(config: ClientConfig, random: Random) -> Client {
        Client {
            heads: Heads::new(config.heads()),
            size: Size::new(config.size_max),
            config,
            random,
            epoch: 0,
            sessions: FxHashMap::default(),
            by_id: FxHashMap::default(),
            by_token: FxHashMap::default(),
            timers: BTreeSet::new(),
            reads: Reads::default(),
            reader: None,
            retired: Vec::new(),
            dirty: Vec::new(),
            events: VecDeque::new(),
            counters: ClientCounters::default(),
            large_lost: false,
            next_handle: 0,
            next_call: 0,
        }
    }

    /// Begins a session. The session accepts calls at once; the calls wait until the OPEN is committed.
    ///
    /// # Errors
    /// [`Refused::Sessions`], if there are too many sessions.
    pub fn open(&mut self, now: Time) -> Result<SessionHandle, Refused> {
        self.open_with(now, false)
    }

    /// Begins a *mark*: a session whose existence says that operations which pass no device may change the store
    /// (`docs/spec/reads.md` §5). The mark is in force from [`Event::Marked`] on. The caller must not end the mark
    /// before every operation under the mark is over.
    ///
    /// # Errors
    /// [`Refused::Sessions`], if there are too many sessions.
    pub fn open_mark(&mut self, now: Time) -> Result<SessionHandle, Refused> {
        self.open_with(now, true)
    }

    /// Asks the head how fresh the store must be for the keys with these hashes. With no hash, or with more than
    /// [`READ_KEYS_MAX`](pmnet_wire::packet::READ_KEYS_MAX), the question is about all keys. [`Event::Read`] brings the
    /// answer, after [`READ_TIMEOUT`] at the latest. `replicas`: the answer may also state the order that a replica of
    /// the store must have applied. All earlier calls of the caller must be answered and committed.
    ///
    /// # Errors
    /// [`Refused::Busy`]: too many READs are under way, or a READ was not answered recently. [`Refused::Sessions`]:
    /// there are too many sessions.
    pub fn read(
        &mut self,
        now: Time,
        hashes: &[u64],
        replicas: bool,
        deadline: Time,
    ) -> Result<CallId, Refused> {
        if !self.reads.may_ask(now) {
            return Err(Refused::Busy);
        }
        if self.reader.is_none() {
            self.reader = Some(self.open(now)?);
        }
        let call = CallId(self.next_call);
        self.next_call += 1;
        self.reads.ask(now, call, hashes, replicas, deadline);
        Ok(call)
    }

    fn open_with(&mut self, now: Time, mark: bool) -> Result<SessionHandle, Refused> {
        if self.sessions.len() >= self.config.sessions_max {
            return Err(Refused::Sessions);
        }
        let handle = SessionHandle(self.next_handle);
        self.next_handle += 1;
        // A mark has an odd token, every other session an even token. 0 is no token.
        let token = loop {
            let token = self.random.next_u64() & !1 | u64::from(mark);
            if token != 0 {
                break token;
            }
        };
        self.sessions
            .insert(handle, Session::new(handle, token, now, &self.config));
        self.by_token.insert(token, handle);
        self.dirty.push(handle);
        Ok(handle)
    }

    /// Submits a nilext update. The update is acknowledged as soon as the chain holds it.
    ///
    /// # Errors
    /// [`Refused`], if the update is not accepted.
    pub fn update(
        &mut self,
        session: SessionHandle,
        payload: Bytes,
        key_hash: u64,
        deadline: Time,
    ) -> Result<CallId, Refused> {
        self.submit(
            session,
            session::Work::Update { payload, key_hash },
            deadline,
        )
    }

    /// Submits a bypass. The server answers the bypass after all earlier calls of the session.
    ///
    /// # Errors
    /// [`Refused`], if the bypass is not accepted.
    pub fn bypass(
        &mut self,
        session: SessionHandle,
        payload: Bytes,
        key_hash: u64,
        read_only: bool,
        deadline: Time,
    ) -> Result<CallId, Refused> {
        self.submit(
            session,
            session::Work::Bypass {
                payload,
                key_hash,
                read_only,
            },
            deadline,
        )
    }

    /// Ends a session after all calls that were submitted before.
    pub fn end(&mut self, session: SessionHandle, deadline: Time) {
        // If the session no longer exists, it has already ended.
        let _ = self.submit(session, session::Work::End, deadline);
    }

    /// Ends the session of the READs, if there is one. The next READ opens another session.
    pub fn end_reads(&mut self, now: Time) {
        if let Some(reader) = self.reader.take() {
            self.retired.push(reader);
            self.end(reader, now + self.config.ping_every);
        }
    }

    /// Sets another key (keys.md §7). New sessions, and those that are not open yet, use the new key. An open session
    /// takes no new calls ([`Refused::Busy`]), and ends as soon as none of its calls is under way. If a call ends at
    /// its deadline, perhaps no head has the old key any more: then the client drops the session without an END. A mark
    /// keeps its key until its caller ends it. A client without a key ignores this call.
    pub fn rekey(&mut self, now: Time, key: FrontKey) {
        if self.config.keys.is_none_or(|present| present == key) {
            return;
        }
        self.config.keys = Some(key);
        for (handle, session) in &mut self.sessions {
            session.rekey(&self.config);
            if session.mark_dirty() {
                self.dirty.push(*handle);
            }
        }
        // A session of READs that is not open yet already has the new key.
        let has_another_key = |reader: &SessionHandle| {
            let session = self.sessions.get(reader);
            session.is_some_and(|session| session.has_another_key(&self.config))
        };
        if let Some(reader) = self.reader.take_if(|reader| has_another_key(reader)) {
            self.retired.push(reader);
            // READs under way are sent again when the new session is open.
            self.reader = self.open(now).ok();
        }
    }

    fn submit(
        &mut self,
        handle: SessionHandle,
        work: session::Work,
        deadline: Time,
    ) -> Result<CallId, Refused> {
        let session = self.sessions.get_mut(&handle).ok_or(Refused::Closed)?;
        let call = CallId(self.next_call);
        let submitted = session.submit(call, work, deadline, &self.config);
        // A session with the old key takes no more calls, so it may have to end now.
        if session.mark_dirty() {
            self.dirty.push(handle);
        }
        submitted?;
        self.next_call += 1;
        Ok(call)
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the time when [`Client::flush`] must be called again at the latest.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        let session = self.timers.first().map(|(time, _)| *time);
        let own = earliest(self.reads.next_timeout(), self.heads.next_timeout());
        let size = self.size.next_timeout(self.epoch);
        earliest(
            session,
            earliest(own, size.filter(|_| !self.by_id.is_empty())),
        )
    }

    /// Returns the number of sessions that are open or opening.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the number of sessions that do not have the present key (keys.md §7). Such a session ends as soon as
    /// none of its calls is under way.
    #[must_use]
    pub fn sessions_of_other_keys(&self) -> usize {
        let sessions = self.sessions.values();
        sessions
            .filter(|session| session.has_another_front(&self.config))
            .count()
    }

    /// Returns the settings.
    #[must_use]
    pub const fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// Returns the counters since the start.
    #[must_use]
    pub const fn counters(&self) -> ClientCounters {
        self.counters
    }

    /// Processes one datagram.
    pub fn receive(&mut self, now: Time, from: Peer, datagram: &[u8]) {
        let packet = match Packet::parse(datagram) {
            Ok(packet) => packet,
            Err(_) => {
                self.counters.rejected += 1;
                return;
            }
        };
        let header = &packet.header;
        let handle = match header.kind {
            Kind::OpenReply => self.by_token.get(&self.token_of_open(header)),
            Kind::NotLogged if header.session == 0 => {
                self.by_token.get(&self.token_of_open(header))
            }
            Kind::Ack
            | Kind::Nack
            | Kind::NotLogged
            | Kind::Response
            | Kind::Hit
            | Kind::Miss
            | Kind::Pong => self.by_id.get(&header.session),
            _ => None,
        };
        let Some(&handle) = handle else {
            self.counters.unexpected += 1;
            return;
        };
        let Some(mut session) = self.sessions.get_mut(&handle) else {
            return;
        };
        let verified = match session.keys() {
            None => header.tag == session.token(),
            Some(keys) if keys::sealed(&keys.to_client, &packet, self.config.rules) => true,
            Some(_) => {
                self.counters.forged += 1;
                return;
            }
        };
        if !verified || header.shard != self.config.shard || !self.heads.knows(from) {
            self.counters.unexpected += 1;
            return;
        }
        if header.epoch < self.epoch {
            self.counters.stale_epoch += 1;
            return;
        }
        let later = self.epoch != 0 && header.epoch > self.epoch;
        self.epoch = header.epoch;
        match header.kind {
            Kind::OpenReply => self.size.told(self.epoch, OpenReply::read(header).size),
            Kind::Pong => self.size.told(self.epoch, Pong::read(header).size),
            _ => {}
        }
        if self.heads.answered(from, header.kind) | later {
            self.head_changed(now);
            session = self.sessions.get_mut(&handle).expect("looked up above");
        }
        let mut context = Context {
            config: &self.config,
            head: self.heads.current(),
            searches: self.heads.searches(),
            epoch: self.epoch,
            size: self.size.of_fragments(self.config.rules),
            events: &mut self.events,
            counters: &mut self.counters,
        };
        match header.kind {
            Kind::OpenReply if session.on_open_reply(now, header, &mut context) => {
                self.by_id.insert(header.session, handle);
                if is_mark(session.token()) {
                    let session = handle;
                    self.events.push_back(Event::Marked { session });
                }
                if self.reader == Some(handle) {
                    self.reads.session_changed(now);
                }
            }
            Kind::Hit | Kind::Miss if self.reader == Some(handle) => {
                if let Some((call, answer)) = self.reads.answered(now, &packet) {
                    self.events.push_back(Event::Read { call, answer });
                }
                return;
            }
            Kind::Ack => session.on_ack(now, header, &mut context),
            Kind::Nack if header.flags.has(Flags::UNKNOWN_SESSION) => {
                session.on_unknown(header, &mut context)
            }
            Kind::Nack => session.on_nack(now, header, &mut context),
            Kind::NotLogged => session.on_not_logged(now, header, &mut context),
            Kind::Pong if session.loses_large(header) => {
                session.fall_back_in_small(&mut context);
                self.large_lost |= self.size.lose();
            }
            Kind::Response => session.on_response(now, &packet, &mut context),
            _ => {}
        }
        if session.is_closed() {
            self.forget(handle);
        } else if session.mark_dirty() {
            self.dirty.push(handle);
        }
    }

    /// Returns the token of the OPEN that this packet answers. The packet names no session.
    fn token_of_open(&self, header: &Header) -> u64 {
        match (&self.config.keys, header.kind) {
            (None, _) => header.tag,
            (Some(_), Kind::NotLogged) => NotLogged::read(header).token,
            (Some(_), _) => OpenReply::read(header).token,
        }
    }

    /// Another device is the head, or the chain has another epoch. The chain may lack packets that the client has
    /// already sent. So all sessions send their unanswered packets again, without waiting for timeouts.
    fn head_changed(&mut self, now: Time) {
        for (handle, session) in &mut self.sessions {
            session.head_changed();
            if session.mark_dirty() {
                self.dirty.push(*handle);
            }
        }
        self.reads.session_changed(now);
    }

    /// A NIC has acknowledged all updates of this session up to `seq`. The chain has one device and this epoch. The
    /// NIC's acknowledgement counts as one copy (`docs/spec/verbs.md` §1).
    pub fn taken_by_nic(&mut self, now: Time, session: u64, seq: u64, epoch: u32) {
        if epoch != self.epoch {
            return;
        }
        if let Some(&handle) = self.by_id.get(&session) {
            self.with_session(handle, |session, context| {
                session.on_taken_by_nic(now, seq, epoch, context);
            });
        }
    }

    /// Calls `act` for a session, if the session exists. Then forgets a closed session, and lists any other session for
    /// the next flush.
    fn with_session(
        &mut self,
        handle: SessionHandle,
        act: impl FnOnce(&mut Session, &mut Context<'_>),
    ) {
        let Some(session) = self.sessions.get_mut(&handle) else {
            return;
        };
        let mut context = Context {
            config: &self.config,
            head: self.heads.current(),
            searches: self.heads.searches(),
            epoch: self.epoch,
            size: self.size.of_fragments(self.config.rules),
            events: &mut self.events,
            counters: &mut self.counters,
        };
        act(session, &mut context);
        if session.is_closed() {
            self.forget(handle);
        } else if session.mark_dirty() {
            self.dirty.push(handle);
        }
    }

    /// Returns the facts that a connection by RDMA needs about this session; `None`: the session is not open.
    #[must_use]
    pub fn binding(&self, session: u64) -> Option<Binding> {
        let handle = self.by_id.get(&session)?;
        self.sessions.get(handle).map(Session::binding)
    }

    /// Notes that a connection broke, perhaps with packets that it carried. The next flush sends all unacknowledged
    /// packets of each session again, beginning with the first unacknowledged update.
    pub fn connection_changed(&mut self, now: Time) {
        self.head_changed(now);
    }

    /// The head has refused an RDMA connection because of the epoch (verbs.md §4). The client now asks for the present
    /// epoch by a datagram, because a session that sends only over RDMA connections would never learn the epoch.
    pub const fn doubt_epoch(&mut self) {
        self.size.doubt();
    }

    /// Returns the highest epoch that the client has seen; 0: none yet.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the address to which the client sends.
    #[must_use]
    pub fn head(&self) -> Peer {
        self.heads.current()
    }

    /// Replaces the addresses of the devices. In a new shard the head has the first address. An empty list changes
    /// nothing. The client keeps sending to the present head if the new list has its address. When the timer of an
    /// unanswered packet is due, the packet is also sent to the new addresses (protocol §14).
    pub fn look_among(&mut self, peers: &[Peer]) {
        if !peers.is_empty() {
            self.heads.look_among(peers.iter().copied());
        }
    }

    /// Tells the client the largest fragments that its own paths to the devices carry. New messages and requested
    /// replies use this size. Messages under way keep their fragment size, because some of their fragments may be in
    /// the log.
    pub fn set_path(&mut self, size: FragmentSize) {
        self.size.set_path(size.min(self.config.size_max));
    }

    /// Returns the addresses that may be the head's.
    pub fn heads(&self) -> impl Iterator<Item = Peer> + '_ {
        self.heads.all()
    }

    /// Returns the size of fragments that both the shard and the client's own paths carry.
    #[must_use]
    pub fn fragment_size(&self) -> FragmentSize {
        self.size.of_fragments(self.config.rules)
    }

    /// Whether, since the last call, the client has found that the network delivers only small packets to the head. The
    /// client then sends only small packets.
    pub const fn take_large_lost(&mut self) -> bool {
        std::mem::replace(&mut self.large_lost, false)
    }

    /// Asks for the shard's size of fragments, which may change with each epoch. The client asks with the PING of an
    /// open session.
    fn ask_for_size(&mut self, now: Time, out: &mut Outbox) {
        if !self.size.is_due(now, self.epoch) {
            return;
        }
        let open = self.by_id.values().next();
        if let Some(session) = open.and_then(|handle| self.sessions.get(handle)) {
            self.size.asked(now);
            session.ask(&self.config, self.epoch, self.heads.current(), false, out);
        }
    }

    /// Asks all addresses for the head, if this is due: by the PING of an open session, or else by the OPEN of a
    /// session that is not open yet.
    fn ask_for_head(&mut self, now: Time, out: &mut Outbox) {
        if !self.heads.is_due(now) {
            return;
        }
        let given_up =
            self.heads.is_answered() && !self.sessions.values().any(Session::waits_for_chain);
        let open = self.by_id.values().next();
        let any = open.or_else(|| self.sessions.keys().next());
        match any.and_then(|handle| self.sessions.get(handle)) {
            Some(session) if !given_up => {
                for (peer, searches) in self.heads.ask(now) {
                    session.ask(&self.config, self.epoch, peer, searches, out);
                }
            }
            _ => self.heads.rest(),
        }
    }

    /// Runs timers that are due, and writes all packets that may be sent now into `out`.
    pub fn flush(&mut self, now: Time, out: &mut Outbox) {
        let sent_before = out.len();
        let mut requests = false;
        self.ask_for_head(now, out);
        self.ask_for_size(now, out);
        if self.reads.is_over(now) {
            self.end_reads(now);
        }
        while let Some(&(time, handle)) = self.timers.first() {
            if time > now {
                break;
            }
            self.timers.pop_first();
            self.with_session(handle, |session, context| {
                session.timer = None;
                session.on_timer(now, context);
            });
        }
        for handle in std::mem::take(&mut self.dirty) {
            let Some(session) = self.sessions.get_mut(&handle) else {
                continue;
            };
            let mut context = Context {
                config: &self.config,
                head: self.heads.current(),
                searches: self.heads.searches(),
                epoch: self.epoch,
                size: self.size.of_fragments(self.config.rules),
                events: &mut self.events,
                counters: &mut self.counters,
            };
            if session.has_another_key(context.config) {
                if session.is_idle() {
                    session.retire(now + context.config.ping_every, context.config);
                } else if session.is_forsaken() {
                    session.close(Closed::Ended, &mut context);
                    self.forget(handle);
                    continue;
                }
            }
            requests |= session.pump(now, out, &mut context);
            if session.is_closed() {
                self.forget(handle);
                continue;
            }
            if let Some(next) = session.next_timer(&self.config)
                && session.timer.is_none_or(|armed| next < armed)
            {
                if let Some(armed) = session.timer {
                    self.timers.remove(&(armed, handle));
                }
                session.timer = Some(next);
                self.timers.insert((next, handle));
            }
        }
        self.flush_reads(now, out);
        if out.len() != sent_before {
            self.heads.sent(now, requests);
        }
    }

    /// Sends the READs that are due.
    fn flush_reads(&mut self, now: Time, out: &mut Outbox) {
        let reader = self
            .reader
            .and_then(|handle| self.sessions.get(&handle))
            .filter(|session| session.id() != 0);
        let session = reader.map(|session| {
            let stamp = Stamp {
                shard: self.config.shard,
                epoch: self.epoch,
                tag: session.token(),
                ..Stamp::default()
            };
            (session.id(), stamp, session.seal())
        });
        let head = self.heads.current();
        let events = &mut self.events;
        let hits = Hits {
            kept: self.config.kept,
            size: self.size.of_hits(),
        };
        let flushed = self.reads.flush(now, session, hits, head, out, |call| {
            let answer = ReadAnswer::None;
            events.push_back(Event::Read { call, answer });
        });
        // With keys, a head that does not know the session answers only a PING.
        if flushed == Flushed::Again
            && self.config.keys.is_some()
            && let Some(reader) = self.reader.and_then(|handle| self.sessions.get(&handle))
        {
            reader.ask(&self.config, self.epoch, head, false, out);
        }
    }

    /// The session of the READs has closed. The caller gets no event, and the next READ opens another session.
    fn reader_closed(&mut self, handle: SessionHandle) {
        let told = |event: &Event| matches!(event, Event::SessionClosed { session, .. } if *session == handle);
        if self.events.back().is_some_and(told) {
            self.events.pop_back();
        }
        self.reader = self.reader.filter(|reader| *reader != handle);
        self.retired.retain(|retired| *retired != handle);
    }

    fn forget(&mut self, handle: SessionHandle) {
        if self.reader == Some(handle) || self.retired.contains(&handle) {
            self.reader_closed(handle);
        }
        if let Some(session) = self.sessions.remove(&handle) {
            self.by_id.remove(&session.id());
            self.by_token.remove(&session.token());
            if let Some(armed) = session.timer {
                self.timers.remove(&(armed, handle));
            }
        }
    }
}
