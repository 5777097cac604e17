//! The client machine: many sessions over one address (`docs/spec/protocol.md` §3).
//!
//! Invariants: a session's calls take effect in the order submitted; every call gets exactly one
//! outcome, by its deadline; an update is resent under the same (session, seq) until it commits,
//! even after its caller was told `Unknown`; nothing that follows a bypass is sent before the
//! bypass has its reply. May not: read a clock, draw randomness of its own, block.

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
use pmnet_wire::packet::{NotLogged, OpenReply, Pong, Stamp, is_mark};
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
    /// Further addresses where it may be, now or after a change of the chain: those of the chain's other devices, of the same
    /// address family.
    pub others: Vec<Peer>,
    /// Shard that the head serves.
    pub shard: u32,
    /// Update packets in flight a session, at most.
    pub window_max: u32,
    /// Calls waiting a session, at most; beyond it calls are refused as `Busy`.
    pub queue_max: usize,
    /// Sessions, at most.
    pub sessions_max: usize,
    /// Shortest retransmission timeout of updates.
    pub update_timeout_floor: Nanos,
    /// Shortest retransmission timeout of bypasses, whose reply waits for the server's disk.
    pub bypass_timeout_floor: Nanos,
    /// Longest retransmission timeout.
    pub timeout_ceiling: Nanos,
    /// Acknowledgements by fewer devices than this close the session.
    pub copies_min: u8,
    /// An idle session sends a ping this often, so that it does not expire.
    pub ping_every: Nanos,
    /// A name that no other process can have at the same time, and which start of the process with that name this is (a later one has a higher
    /// number): the head ends the sessions of earlier ones. 0: it has no such name.
    pub name: (u64, u64),
    /// Kind of the payloads of all calls. A shard whose server takes others begins no session.
    pub payloads: Payloads,
    /// A HIT may show what the store has applied already, as long as the log has it: right only if nobody else writes to
    /// the store (reads.md §2).
    pub kept: bool,
    /// No larger fragments, whatever the paths carry.
    pub size_max: FragmentSize,
    /// The key of this front; `None`: tokens.
    pub keys: Option<FrontKey>,
    /// The rules that hold: all of them, outside of the simulator.
    pub rules: Rules,
}

impl ClientConfig {
    /// Defaults for this head.
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

    /// Where the head may be.
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

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The update is durable in this many devices; 0: at the server itself (the log was full).
    Committed {
        /// Devices that hold it.
        copies: u8,
    },
    /// The reply to a bypass.
    Reply(Bytes),
    /// It has not taken effect and never will.
    Failed(&'static str),
    /// The deadline passed, or the session broke: it takes effect at most once, or not at all.
    Unknown,
}

/// Why a call was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The session's queue is full: wait for an outcome, then try again.
    #[error("too many calls are waiting in this session")]
    Busy,
    /// Larger than 16 MiB.
    #[error("larger than the {MESSAGE_BYTES_MAX} bytes of one message")]
    TooLarge,
    /// The session ended or never was.
    #[error("the session is closed")]
    Closed,
    /// Too many sessions.
    #[error("too many sessions")]
    Sessions,
}

/// Why a session closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Its caller ended it.
    Ended,
    /// The device does not know it (it expired, or its chain was declared lost).
    Refused,
    /// The device has ended it by itself; nothing that was acknowledged is lost.
    LetGo(LetGo),
    /// Acknowledged updates `from ..= to` are gone (protocol.md §3, DATA_LOSS).
    DataLoss {
        /// First lost seq.
        from: u64,
        /// Last lost seq.
        to: u64,
    },
    /// The chain holds fewer copies than demanded.
    TooFewCopies {
        /// Copies that the ack named.
        have: u8,
    },
    /// It could not begin: the room of the store is needed by the existing sessions.
    StoreFull,
    /// It could not begin: the server takes these payloads, and would skip those of this client.
    OtherPayloads(Payloads),
}

/// The failure of the calls of such a session.
const STORE_FULL: &str = "the store is full, and what room it has is for the clients that are there: no further one is served. Delete \
     keys through one of those, let some of them end, or make the store larger (pmnet store grow)";

/// The failure of the calls of a session of another kind.
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
    /// Why a call of such a session that was not sent has no effect.
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

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call ended.
    Done {
        /// Its session.
        session: SessionHandle,
        /// The call.
        call: CallId,
        /// How.
        outcome: Outcome,
    },
    /// A READ was answered, or nobody answered in time.
    Read {
        /// The READ.
        call: CallId,
        /// How.
        answer: ReadAnswer,
    },
    /// A mark is open: every device of the chain holds it ([`Client::open_mark`]).
    Marked {
        /// The session.
        session: SessionHandle,
    },
    /// A session closed; all its calls have had their outcomes.
    SessionClosed {
        /// The session.
        session: SessionHandle,
        /// Why.
        reason: Closed,
    },
}

/// Packets that a client dropped, by reason, and what it resent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Malformed, damaged or foreign.
    pub rejected: u64,
    /// Wrong token, session, shard or sender.
    pub unexpected: u64,
    /// Not sealed with the session's key, or changed.
    pub forged: u64,
    /// From a lower epoch than seen before.
    pub stale_epoch: u64,
    /// Update packets sent again.
    pub resent: u64,
    /// Updates that took the fallback because the log was full.
    pub fallbacks: u64,
    /// OPENs for which the device had no room, because there were as many sessions as it takes.
    pub crowded: u64,
}

/// Many sessions over one address.
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
    /// Those that are being ended.
    retired: Vec<SessionHandle>,
    dirty: Vec<SessionHandle>,
    events: VecDeque<Event>,
    counters: ClientCounters,
    /// Large packets are lost, and the caller has not been told yet.
    large_lost: bool,
    next_handle: u32,
    next_call: u64,
}

/// What a session's handlers may touch besides the session itself.
struct Context<'a> {
    config: &'a ClientConfig,
    head: Peer,
    /// The head is looked for.
    searches: bool,
    epoch: u32,
    /// Of the fragments of what begins now, and of replies.
    size: FragmentSize,
    events: &'a mut VecDeque<Event>,
    counters: &'a mut ClientCounters,
}

impl Client {
    /// A client without sessions. `random` gives tokens: seed it from the operating system.
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

    /// Begins a session. It can be used at once; its calls wait for the open-reply.
    ///
    /// # Errors
    /// [`Refused::Sessions`].
    pub fn open(&mut self, now: Time) -> Result<SessionHandle, Refused> {
        self.open_with(now, false)
    }

    /// Begins a *mark*: a session that says, for as long as it is open, that something may change the store which passes no
    /// device (`docs/spec/reads.md` §5). It counts from [`Event::Marked`] on. Whoever passes something through
    /// ends it only when nothing of that is under way.
    ///
    /// # Errors
    /// [`Refused::Sessions`].
    pub fn open_mark(&mut self, now: Time) -> Result<SessionHandle, Refused> {
        self.open_with(now, true)
    }

    /// Asks the head how fresh the store must be for the keys with these hashes; for none of them, or more than
    /// [`READ_KEYS_MAX`](pmnet_wire::packet::READ_KEYS_MAX): for all keys. Answered by [`Event::Read`], after
    /// [`READ_TIMEOUT`] at the latest. `replicas`: the answer may say what a replica of the store must have applied. What the caller has sent before must have been answered, and be committed.
    ///
    /// # Errors
    /// [`Refused::Busy`]: too many, or nobody has answered READs lately. [`Refused::Sessions`].
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
        // Odd is a mark, and 0 no token.
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

    /// Submits a nilext update; acknowledged as soon as the chain holds it.
    ///
    /// # Errors
    /// [`Refused`].
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

    /// Submits a bypass; answered by the server after everything submitted before it.
    ///
    /// # Errors
    /// [`Refused`].
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

    /// Ends a session after everything submitted before.
    pub fn end(&mut self, session: SessionHandle, deadline: Time) {
        // A session that is gone has ended already.
        let _ = self.submit(session, session::Work::End, deadline);
    }

    /// **From now on another key** (keys.md §7): new sessions begin with it. Those that are not open yet go on with it. The open ones end as soon as nothing of them is under way,
    /// and take no new calls meanwhile ([`Refused::Busy`]). One whose calls end at their deadlines is left without a word: perhaps no head has its key any more. A mark keeps its key until its caller ends it. A client without a key stays so.
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
        // One that is not open yet goes on with the new key.
        let has_another_key = |reader: &SessionHandle| {
            let session = self.sessions.get(reader);
            session.is_some_and(|session| session.has_another_key(&self.config))
        };
        if let Some(reader) = self.reader.take_if(|reader| has_another_key(reader)) {
            self.retired.push(reader);
            // READs that are under way are asked again when it is open.
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
        // One that takes no more calls may have to end.
        if session.mark_dirty() {
            self.dirty.push(handle);
        }
        submitted?;
        self.next_call += 1;
        Ok(call)
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Client::flush`] must be called again at the latest.
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

    /// Sessions that are open or opening.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Sessions that go on with another key than the present one (keys.md §7): they end as soon as nothing of them is under way.
    #[must_use]
    pub fn sessions_of_other_keys(&self) -> usize {
        let sessions = self.sessions.values();
        sessions
            .filter(|session| session.has_another_front(&self.config))
            .count()
    }

    /// What it was set up with.
    #[must_use]
    pub const fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// Counters since the start.
    #[must_use]
    pub const fn counters(&self) -> ClientCounters {
        self.counters
    }

    /// Takes in one datagram.
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

    /// The token of the OPEN that a packet without a session answers.
    fn token_of_open(&self, header: &Header) -> u64 {
        match (&self.config.keys, header.kind) {
            (None, _) => header.tag,
            (Some(_), Kind::NotLogged) => NotLogged::read(header).token,
            (Some(_), _) => OpenReply::read(header).token,
        }
    }

    /// Somebody else is the head, or the chain is another one: it may not have what was sent before, and need not wait for
    /// the timeouts of every session.
    fn head_changed(&mut self, now: Time) {
        for (handle, session) in &mut self.sessions {
            session.head_changed();
            if session.mark_dirty() {
                self.dirty.push(*handle);
            }
        }
        self.reads.session_changed(now);
    }

    /// A NIC has acknowledged everything of this session up to `seq`, in this epoch of a chain of one device: that is a copy
    /// (`docs/spec/verbs.md` §1).
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

    /// Lets a session do something, if it exists, and takes note of what that has changed.
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

    /// The last seq of this session that is acknowledged, if the session is open.
    #[must_use]
    pub fn acknowledged(&self, session: u64) -> Option<u64> {
        let handle = self.by_id.get(&session)?;
        self.sessions.get(handle).map(Session::acknowledged)
    }

    /// Sends again, at the next flush, all that is not acknowledged, of each session from the first such update on: it may be gone with the
    /// connection that carried it.
    pub fn connection_changed(&mut self, now: Time) {
        self.head_changed(now);
    }

    /// The head has refused a connection (RDMA, verbs.md §4) because of the epoch: it is asked for the present one by a datagram. Packets of
    /// a session that sends by connections alone would never ask.
    pub const fn doubt_epoch(&mut self) {
        self.size.doubt();
    }

    /// The highest epoch that was heard of; 0: none yet.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Where the client sends to.
    #[must_use]
    pub fn head(&self) -> Peer {
        self.heads.current()
    }

    /// From now on the head is at one of these addresses, in a new shard at the first; nothing changes if there are none. Who is taken for
    /// the head still is, if it is among them. What is under way is sent again, there too, when its timer is due (protocol §14).
    pub fn look_among(&mut self, peers: &[Peer]) {
        if !peers.is_empty() {
            self.heads.look_among(peers.iter().copied());
        }
    }

    /// Tells the client the largest fragments that its own paths to the devices carry. New messages are cut by it, and replies asked for.
    /// Messages under way keep their fragments, since these may be in the log.
    pub fn set_path(&mut self, size: FragmentSize) {
        self.size.set_path(size.min(self.config.size_max));
    }

    /// Where the head may be.
    pub fn heads(&self) -> impl Iterator<Item = Peer> + '_ {
        self.heads.all()
    }

    /// The size of fragments that the shard and the client's own paths carry.
    #[must_use]
    pub fn fragment_size(&self) -> FragmentSize {
        self.size.of_fragments(self.config.rules)
    }

    /// Whether it has turned out since the last call that large packets do not arrive at the head, and small ones do: from then on it sends small
    /// ones only.
    pub const fn take_large_lost(&mut self) -> bool {
        std::mem::replace(&mut self.large_lost, false)
    }

    /// Asks for the shard's size, which may be another one in each epoch: by the PING of an open session.
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

    /// Asks at all addresses who the head is, if that is due: by the PING of an open session, or by the OPEN of one that is not
    /// open yet.
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

    /// Runs timers that are due and writes everything that may be sent now into `out`.
    pub fn flush(&mut self, now: Time, out: &mut Outbox) {
        let sent_before = out.len();
        let mut requests = false;
        self.ask_for_head(now, out);
        self.ask_for_size(now, out);
        if self.reads.is_over(now)
            && let Some(reader) = self.reader.take()
        {
            self.retired.push(reader);
            self.end(reader, now + self.config.ping_every);
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
        // With keys only a PING is answered by a head that does not know the session.
        if flushed == Flushed::Again
            && self.config.keys.is_some()
            && let Some(reader) = self.reader.and_then(|handle| self.sessions.get(&handle))
        {
            reader.ask(&self.config, self.epoch, head, false, out);
        }
    }

    /// The session of the READs closed: nobody is told, and the next READ opens another.
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
