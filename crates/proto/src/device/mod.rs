//! The device machine: head or follower of a chain (`docs/spec/protocol.md` §2, §4).
//!
//! Decides, packet by packet, what is appended, forwarded and acknowledged. It never sees the log:
//! the node appends what [`Verdict::Append`] says, makes it durable, and reports it with
//! [`Device::persisted`]. Nothing is forwarded or acknowledged before that call.
//!
//! Cursors, always `applied ≤ committed ≤ last` and `persisted ≤ last`:
//! `last` (admitted) ≥ `persisted` (durable here) ≥ forwarded ≥ … ; `committed` = durable in every
//! device of the chain.

mod admission;
mod fast_path;
mod lease;
mod let_go;
mod link;
mod reads;
mod recover;
mod release;
mod session;
mod shares;

use fast_path::Ledger;
pub use fast_path::{ChainState, HopWork, SessionState};
pub use reads::{Bucket, ReadState};
pub use recover::{Recovery, Served};

use crate::keys::{self, ClusterKeys, DeviceKeys, HopKeys, Seal, Strangers, Unserved, Verified};
use crate::rules::{Rule, Rules};
use crate::time::{MILLISECOND, Nanos, SECOND, earliest};
use crate::{Outbox, Peer, Random, Time};
use core::num::NonZeroU64;
use let_go::Leaving;
use link::Link;
use pmnet_wire::packet::{EntryKind, Identity, StaleEpoch, Stamp};
use pmnet_wire::record::{DurableRow, Member};
use pmnet_wire::{
    ClusterKey, FragmentSize, FrontId, HEADER_LEN, Header, Kind, Life, Packet, Payloads,
    SessionKeys,
};
use reads::Reads;
use recover::{Recovering, Relayed};
use rustc_hash::FxHashMap;
use session::Session;
use shares::Shares;
use std::collections::VecDeque;

/// The one that acknowledges an update of a client first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledger {
    /// The device, when its log has it: it may refuse the update before.
    Device,
    /// A NIC, before the device has seen it (`docs/spec/verbs.md`): the update cannot be refused any more, only kept waiting.
    Nic,
}

/// Settings of a device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Device id, unique in the shard, not 0.
    pub id: u32,
    /// Shard.
    pub shard: u32,
    /// The next hop: the next device, or the server.
    pub next: Peer,
    /// Sessions, at most.
    pub sessions_max: usize,
    /// Entries of one session that may be in the log unapplied.
    pub session_entries_max: u64,
    /// A session that says nothing for this long is ended.
    pub session_idle: Nanos,
    /// One that says nothing for this long may be ended if there are as many sessions as there may be. A client that lives says something more
    /// than twice as often.
    pub session_quiet: Nanos,
    /// Shortest retransmission timeout towards the next hop.
    pub link_timeout_floor: Nanos,
    /// Longest retransmission timeout towards the next hop.
    pub link_timeout_ceiling: Nanos,
    /// Entries in flight towards the next hop, at most.
    pub link_window_max: u64,
    /// Entries that this device can take in at once (told to the hop before).
    pub receive_window: u64,
    /// How long the last device lets a few durable entries wait for more before it sends them to the
    /// server, if no bypass waits for them. Their clients have been acknowledged already.
    pub server_linger: Nanos,
    /// The server reads the log of this device, the tail, directly. So it is sent only the last of its
    /// new entries, and what it asks for.
    pub server_reads_log: bool,
    /// Buckets of the index that answers READs, rounded up to a power of two, 24 bytes each; 0: READs are not answered.
    pub read_buckets: usize,
    /// The one that acknowledges updates first.
    pub acknowledger: Acknowledger,
    /// It answers only while it has a lease ([`Device::renewed`], `docs/spec/protocol.md` §14).
    pub leased: bool,
    /// What the operator states: [`Member::SHRINK`], [`Member::DECLARE_LOSS`], [`Member::JOIN`].
    pub flags: u32,
    /// The epoch that these statements are about, if whoever makes them knows it: a controller does (§14). Otherwise the
    /// server's first refusal says.
    pub word_epoch: Option<u32>,
    /// No larger fragments, whatever the paths carry.
    pub size_max: FragmentSize,
    /// Its keys; `None`: tokens.
    pub keys: Option<DeviceKeys>,
    /// The rules that hold: all of them, outside of the simulator.
    pub rules: Rules,
}

impl DeviceConfig {
    /// Defaults for this device.
    #[must_use]
    pub const fn new(id: u32, shard: u32, next: Peer) -> DeviceConfig {
        DeviceConfig {
            id,
            shard,
            next,
            sessions_max: 65_536,
            session_entries_max: u64::MAX,
            session_idle: 600 * SECOND,
            session_quiet: 150 * SECOND,
            link_timeout_floor: 10 * MILLISECOND,
            link_timeout_ceiling: 200 * MILLISECOND,
            link_window_max: 4096,
            receive_window: 1024,
            server_linger: 8 * MILLISECOND,
            server_reads_log: false,
            read_buckets: 65_536,
            acknowledger: Acknowledger::Device,
            leased: false,
            flags: 0,
            word_epoch: None,
            size_max: FragmentSize::MAX,
            keys: None,
            rules: Rules::ALL,
        }
    }
}

/// What the device's log says of itself after its recovery.
#[derive(Clone, Copy, Debug)]
pub struct LogState {
    /// Identity of the log.
    pub log_uuid: u128,
    /// Incarnation, already raised durably for this start.
    pub incarnation: u32,
    /// The last incarnation that the log was marked to serve in.
    pub served: u32,
    /// Epoch as last persisted.
    pub epoch: u32,
    /// Highest order in the log, all of it durable.
    pub last: u64,
    /// Orders that the log knows to be applied.
    pub applied: u64,
}

/// Free space in the log.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Entries that can be appended.
    pub entries: u64,
    /// Entries of the whole log.
    pub entries_max: u64,
    /// Bytes of the largest frame that fits for certain.
    pub frame_bytes: u64,
    /// Bytes of all frames that the log can hold; the largest number: it counts entries only.
    pub bytes_max: u64,
}

impl Room {
    fn fits(&self, payload: &[u8]) -> bool {
        let frame = u64::try_from(HEADER_LEN + payload.len()).unwrap_or(u64::MAX);
        self.entries > 0 && self.frame_bytes >= frame
    }
    /// The same in the unit in which shares count.
    const fn blocks_max(&self) -> u64 {
        self.bytes_max / shares::BLOCK
    }
    /// At 80 % no new session is admitted (protocol.md §4).
    const fn admits_sessions(&self) -> bool {
        self.entries > self.entries_max / 5
    }
}

/// What the node must do with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing more.
    Done,
    /// Append this header with the packet's payload; its `order` is the next of the log.
    Append(Header),
    /// Answer a READ: send this header, so sealed, with the payload of the entry that it names, if that is no larger than this.
    Hit(Peer, Header, FragmentSize, Seal),
    /// The server's answer is complete: bring the log to this state, then call [`Device::serve`].
    Resume(Recovery),
    /// This device is no member and is to join: mark its log to serve and erase it, durably, then call
    /// [`Device::erased`].
    Erase,
    /// The shard must stop; the text says why and what to do.
    Stop(String),
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counted events of a device, by reason.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$doc])* pub $name: u64),* }
        impl Counters {
            /// Every counter with its name.
            #[must_use]
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counters! {
    /// Updates admitted by this head, or appends taken by this follower.
    admitted,
    /// Duplicates answered again.
    duplicates,
    /// NACKs sent.
    nacks,
    /// NOT_LOGGED sent.
    not_logged,
    /// Bypasses stamped or passed on.
    bypasses,
    /// Responses passed back.
    responses,
    /// READs answered with an update.
    read_hits,
    /// READs answered with what the store must have applied.
    read_misses,
    /// Entries sent to the next hop, also again.
    forwarded,
    /// Ranges that the next hop asked for again.
    retransmissions,
    /// Acknowledgement packets to clients.
    acks,
    /// Answers to clients that were made and not sent: the lease was over.
    silenced,
    /// Dropped: not ready to serve.
    not_ready,
    /// Dropped: wrong shard.
    wrong_shard,
    /// Dropped: wrong token.
    wrong_token,
    /// Dropped: nobody with the right key has sealed it, or it was changed.
    forged,
    /// Dropped: a packet of a session that is not known, which therefore cannot be verified.
    unknown_key,
    /// Dropped: sealed for another hop than this one.
    misled,
    /// Dropped unverified: of another epoch, and more of them came in one burst than are verified.
    other_epoch,
    /// Of processes with keys if this device has none, and the other way about.
    other_mode,
    /// Dropped: a kind that this role does not take from this sender.
    unexpected,
    /// Dropped and answered: the sender's epoch is lower.
    stale_epoch,
    /// Dropped: nowhere to send it.
    no_route,
    /// Sessions ended because they said nothing for too long.
    expired_sessions,
    /// Sessions ended because they were silent when there was no room for another one.
    crowded_out_sessions,
    /// Sessions ended because their client was started again.
    succeeded_sessions,
    /// OPENs refused because there were as many sessions as there may be.
    crowded_opens,
    /// Updates refused because their front had its share of the log, and others needed room.
    over_share,
    /// OPENs refused because their front had its share of the log or of the sessions, and others needed room.
    over_share_opens,
    /// Sessions ended because their front had more than its share, and another front found no place.
    over_share_sessions,
    /// OPENs refused because the server would skip their sessions' updates.
    other_payloads,
}

impl Counters {
    /// Packets that were dropped because of what they said or who sent them. If it moved, the last one was.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.not_ready
            + self.wrong_shard
            + self.wrong_token
            + self.forged
            + self.unknown_key
            + self.misled
            + self.other_epoch
            + self.unexpected
            + self.stale_epoch
            + self.no_route
    }
}

/// A packet of this shard. With keys the right sender has sealed it, and its tag is the token that it would have without keys.
#[derive(Debug)]
pub struct Genuine<'a> {
    packet: Packet<'a>,
    /// Seal of answers to it.
    answers: Seal,
}

#[derive(Clone, Copy, Debug)]
struct IndexRow {
    session: u64,
    seq: u64,
    payload_crc: u32,
    entry: EntryKind,
    /// Row of its front, and its size ([`Shares`]).
    share: u8,
    blocks: u8,
}

/// The device's log, as RECOVER names it.
#[derive(Debug)]
struct OwnLog {
    log_uuid: u128,
    incarnation: u32,
    /// The last incarnation that the log was marked to serve in.
    served: u32,
    /// Epoch in which the operator's order is valid, once the server has said it.
    word_epoch: u32,
}

/// The chain as the server named it last.
#[derive(Debug, Default)]
struct OwnChain {
    members: Vec<Member>,
    /// Place of this device; 0 is the head.
    position: usize,
    shard_token: u64,
    /// Its keys with the hops beside it, if it has keys.
    keys: Option<HopKeys>,
    /// Entries up to here were stored before it served with these keys: they are sealed anew when they are sent.
    stored_before: u64,
    /// Of fragments.
    size: FragmentSize,
}

/// What the log says when it is folded over the server's session table.
#[derive(Debug, Default)]
struct Table {
    sessions: FxHashMap<u64, Session>,
    /// Sessions that are not used yet.
    opening: FxHashMap<Identity, u64>,
    /// One row for each order in `applied + 1 ..= last`.
    index: VecDeque<IndexRow>,
    /// What each front has of both, and of the log.
    shares: Shares,
}

/// How far the log is: `applied ≤ committed ≤ last` and `persisted ≤ last`.
#[derive(Debug)]
struct Cursors {
    last: u64,
    persisted: u64,
    committed: u64,
    applied: u64,
}

/// What is to be sent at the end of the burst.
#[derive(Debug, Default)]
struct Owed {
    /// To the hop before: how far this device is durable.
    tell_durable: bool,
    /// To the hop before: how far the server has applied.
    tell_applied: bool,
    /// Number of the burst, from 1 ([`Session::nacked_in`]).
    burst: u64,
    /// Packets of another epoch that may be verified in this burst.
    strangers: Strangers,
}

#[derive(Debug)]
enum Phase {
    Recovering(Recovering),
    Serving(Serving),
    Stopped,
}

/// What is there only while the device serves.
#[derive(Debug)]
struct Serving {
    /// What the devices behind this one hold, nearest first.
    downstream: Vec<DurableRow>,
    /// Sessions whose clients are owed an acknowledgement at the end of the burst.
    touched: Vec<u64>,
    /// When to look for idle sessions.
    next_expiry: Option<Time>,
    /// The gap that was asked for last, and when.
    retrans_guard: Option<(u64, Time)>,
}

impl Phase {
    /// # Panics
    /// If the device does not serve: the caller has looked.
    fn serving(&mut self) -> &mut Serving {
        match self {
            Phase::Serving(serving) => serving,
            other => panic!("only a device in service does this: {other:?}"),
        }
    }
}

/// One device of one shard.
#[derive(Debug)]
pub struct Device {
    config: DeviceConfig,
    random: Random,
    log: OwnLog,
    epoch: u32,
    phase: Phase,
    chain: OwnChain,
    /// Kinds of payloads that the server takes, as it has said in this epoch.
    takes: Payloads,
    table: Table,
    cursors: Cursors,
    reads: Reads,
    link: Link,
    /// Where the hop before was last heard from.
    predecessor: Option<Peer>,
    relayed: VecDeque<Relayed>,
    /// A new head forms over this one: it admits nothing more.
    joining: bool,
    /// The store has said that it is short of room: a head admits no updates.
    short: bool,
    /// It has also said that no session is to begin.
    full: bool,
    /// Largest fragments that its paths to the hops beside it carry.
    path: FragmentSize,
    /// Large packets to the next hop were lost without a word.
    loses_large: bool,
    /// Somebody else may append to its log while this device asks.
    goes_on: bool,
    /// The last [`Device::probe`].
    probe: Option<recover::Probe>,
    /// Seal of answers to the packet that is being taken in.
    answers: Seal,
    /// [`ClusterKeys::print`] of its keys.
    print: Option<NonZeroU64>,
    /// The last front that named itself and has no key here, and how many packets such fronts have sent ([`Device::unserved`]).
    unserved: Option<(FrontId, u64)>,
    owed: Owed,
    leaving: Leaving,
    /// When its lease is over, by its own clock; `None`: it has had none in this life.
    deadline: Option<Time>,
    /// What the fast path beside this machine knows, if there is one.
    fast_path: Option<Ledger>,
    /// What the operator must do first, in the server's words.
    waits_for: Option<String>,
    counters: Counters,
}

/// A gap is asked for again after this long, if it is still the same.
const RETRANS_GUARD: Nanos = MILLISECOND;
/// Recovery replies that can be on their way back through this device.
const RELAYED_MAX: usize = 32;

impl Device {
    /// A device that has recovered its log and now asks the server for its state.
    #[must_use]
    pub fn new(config: DeviceConfig, log: LogState, mut random: Random, now: Time) -> Device {
        assert!(config.id != 0, "device id 0 is reserved");
        let link = Link::new(&config, log.applied);
        let (word_epoch, size_max) = (config.word_epoch.unwrap_or(0), config.size_max);
        let phase = Phase::Recovering(Recovering::new(random.next_nonzero(), now));
        let print = config.keys.as_ref().map(|keys| keys.cluster.print());
        Device {
            config,
            random,
            log: OwnLog {
                log_uuid: log.log_uuid,
                incarnation: log.incarnation,
                served: log.served,
                word_epoch,
            },
            epoch: log.epoch,
            phase,
            chain: OwnChain::default(),
            takes: Payloads::NOT_SAID,
            table: Table::default(),
            cursors: Cursors {
                last: log.last,
                persisted: log.last,
                committed: log.applied,
                applied: log.applied,
            },
            reads: Reads::default(),
            link,
            predecessor: None,
            relayed: VecDeque::new(),
            joining: false,
            short: false,
            full: false,
            path: size_max,
            loses_large: false,
            goes_on: false,
            probe: None,
            answers: Seal::Token,
            print,
            unserved: None,
            owed: Owed {
                burst: 1,
                ..Owed::default()
            },
            leaving: Leaving::default(),
            deadline: None,
            fast_path: None,
            waits_for: None,
            counters: Counters::default(),
        }
    }

    /// Whether the device serves its epoch.
    #[must_use]
    pub const fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Serving(_))
    }
    /// Whether this device is the head of its chain.
    #[must_use]
    pub const fn is_head(&self) -> bool {
        self.is_serving() && self.chain.position == 0
    }
    /// Devices of the chain (R); 0 while recovering.
    #[must_use]
    pub fn copies(&self) -> u8 {
        u8::try_from(self.chain.members.len()).unwrap_or(u8::MAX)
    }
    /// Device ids of the chain, head first.
    pub fn chain(&self) -> impl Iterator<Item = u32> {
        self.chain.members.iter().map(|member| member.device)
    }
    /// Epoch that the device serves, or last served.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }
    /// `(last, persisted, committed, applied)`.
    #[must_use]
    pub const fn cursors(&self) -> (u64, u64, u64, u64) {
        let Cursors {
            last,
            persisted,
            committed,
            applied,
        } = self.cursors;
        (last, persisted, committed, applied)
    }
    /// Highest order that was sent to the next hop.
    #[must_use]
    pub const fn forwarded(&self) -> u64 {
        self.link.sent()
    }
    /// Last admitted seq of a session, if it is known.
    #[must_use]
    pub fn admitted(&self, session: u64) -> Option<u64> {
        self.table
            .sessions
            .get(&session)
            .map(|session| session.last)
    }
    /// What the server wants the operator to do before this device may serve, if it said so.
    #[must_use]
    pub fn waits_for(&self) -> Option<&str> {
        self.waits_for.as_deref()
    }
    /// The last front that is not served, why not, and how many packets such fronts have sent. Nobody has verified these: it is a hint for people.
    #[must_use]
    pub fn unserved(&self) -> Option<(FrontId, Unserved, u64)> {
        let (keys, (id, packets)) = (self.config.keys.as_ref()?, self.unserved?);
        Some((id, keys.cluster.why_not(id), packets))
    }

    /// Fingerprints of the cluster keys that it accepts.
    pub fn fingerprints(&self) -> impl Iterator<Item = u32> {
        let keys = self.config.keys.iter();
        keys.flat_map(|keys| keys.cluster.accepted().map(ClusterKey::fingerprint))
    }

    /// Whether packets are sealed with keys.
    #[must_use]
    pub const fn has_keys(&self) -> bool {
        self.config.keys.is_some()
    }
    /// Open sessions.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.table.sessions.len()
    }
    /// Counters since the start.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Takes in one packet.
    pub fn receive(
        &mut self,
        now: Time,
        from: Peer,
        packet: &Packet<'_>,
        room: Room,
        out: &mut Outbox,
    ) -> Verdict {
        match self.check(packet) {
            Some(genuine) => self.receive_genuine(now, from, &genuine, room, out),
            None => Verdict::Done,
        }
    }

    /// The first part of [`Device::receive`]: whether the packet is for this shard and, with keys, whether the right sender has sealed it. `None`: it is
    /// counted, and to be dropped. Until this is known nothing may be done for its sake: no fast path held, no READ handed up.
    pub fn check<'a>(&mut self, packet: &Packet<'a>) -> Option<Genuine<'a>> {
        let header = &packet.header;
        if matches!(self.phase, Phase::Stopped) {
            return None;
        }
        if header.shard != self.config.shard {
            self.counters.wrong_shard += 1;
            return None;
        }
        if keys::is_of_the_other_mode(self.has_keys(), packet) {
            self.counters.other_mode += 1;
        }
        let (tag, answers) = if self.has_keys() {
            self.verify(packet)?
        } else {
            (header.tag, Seal::Token)
        };
        let header = Header { tag, ..*header };
        let payload = packet.payload;
        Some(Genuine {
            packet: Packet { header, payload },
            answers,
        })
    }

    /// The second part: takes it in.
    pub fn receive_genuine(
        &mut self,
        now: Time,
        from: Peer,
        genuine: &Genuine<'_>,
        room: Room,
        out: &mut Outbox,
    ) -> Verdict {
        self.answers = genuine.answers;
        self.take_in(now, from, &genuine.packet, room, out)
    }

    /// Verifies that the packet comes unchanged from a sender that may send it. Returns the token that it would have without keys, and the seal of
    /// answers to it; `None`: it is counted, and to be dropped.
    fn verify(&mut self, packet: &Packet<'_>) -> Option<(u64, Seal)> {
        let header = &packet.header;
        let DeviceKeys { cluster, next } = self.config.keys.as_ref()?;
        let (shard, own) = (self.config.shard, self.config.id);
        let verified = match header.kind {
            Kind::Recover => keys::verify_recover(cluster, own, packet),
            Kind::RecoverReply => {
                Verified::of(cluster.verify(packet, |key| key.asking(shard, *next)))
            }
            _ if !self.is_serving() => {
                self.counters.not_ready += 1;
                return None;
            }
            _ if keys::is_of_a_client(header) => return self.verify_client(packet),
            _ if header.epoch == self.epoch => {
                let keys = self.chain.keys.as_ref();
                Verified::of(keys.is_some_and(|keys| keys.verify(packet)))
            }
            _ if !self.owed.strangers.admit() => Verified::Unknown,
            _ => Verified::of(keys::verify_in_another_epoch(
                cluster,
                self.chain.shard_token,
                &self.chain.members,
                packet,
            )),
        };
        match verified.under(self.config.rules) {
            // Epoch 0 is that of a server without a record of the chain, which knows no token.
            Verified::Yes if header.epoch == 0 => return Some((0, self.hop_seal())),
            Verified::Yes => return Some((self.chain.shard_token, self.hop_seal())),
            Verified::No => self.counters.forged += 1,
            Verified::ForAnother => self.counters.misled += 1,
            Verified::Unknown => self.counters.other_epoch += 1,
        }
        None
    }

    /// The same for a packet of a client: of a session that is known, or whose payload carries token and front.
    fn verify_client(&mut self, packet: &Packet<'_>) -> Option<(u64, Seal)> {
        let header = &packet.header;
        let known = self.table.sessions.get(&header.session);
        let said = match header.kind {
            Kind::Open | Kind::Ping => Identity::read(packet.payload),
            _ => None,
        };
        let front = said.map_or_else(|| known?.front, |said| said.front);
        let derived = || self.session_keys(said?);
        let (token, keys) = match (header.kind, known) {
            (Kind::Ping, Some(known)) if said != Some(known.identity()) => {
                // The same number and token say nothing if the front is another one.
                (0, derived())
            }
            (Kind::Open, _) | (Kind::Ping, None) => (said.map_or(0, |said| said.token), derived()),
            (_, Some(known)) => (known.token, known.keys),
            (_, None) => (0, None),
        };
        let Some(keys) = keys else {
            self.counters.unknown_key += 1;
            if let Some(front) = front {
                let (_, packets) = self.unserved.unwrap_or((front, 0));
                self.unserved = Some((front, packets + 1));
            }
            return None;
        };
        if !keys::sealed(&keys.to_head, packet, self.config.rules) {
            self.counters.forged += 1;
            return None;
        }
        Some((token, Seal::Key(keys.to_client)))
    }

    /// The keys of a session, if this device has keys, and the session's front has one of this cluster.
    fn session_keys(&self, identity: Identity) -> Option<SessionKeys> {
        let keys = self.config.keys.as_ref()?;
        keys.cluster.session(self.config.shard, identity)
    }

    /// **From now on other keys of the cluster** (keys.md §7): a change takes several steps, so what was sealed before can be verified by the
    /// hops beside. Entries that were stored before are sealed anew when they are sent. A session keeps its keys until it ends, unless its front is
    /// refused now, or the key from which they follow is forgotten: then its packets are dropped, and it ends by its silence. What it was acknowledged
    /// is in the log, and is applied. A device without keys stays so.
    pub fn rekey(&mut self, cluster: ClusterKeys) {
        let Some(keys) = &mut self.config.keys else {
            return;
        };
        keys.cluster = cluster;
        let cluster = &keys.cluster;
        self.print = Some(cluster.print());
        let mut unserved = Vec::new();
        for (id, session) in &mut self.table.sessions {
            let is_served = session.front.is_some_and(|id| cluster.serves(id));
            if !is_served && session.keys.take().is_some() {
                unserved.push(*id);
            }
        }
        let chain = &mut self.chain;
        if chain.keys.is_some() {
            let life = Life {
                shard: self.config.shard,
                token: chain.shard_token,
            };
            let keys = HopKeys::new(cluster, life, self.epoch, &chain.members, chain.position);
            chain.keys = Some(keys);
            chain.stored_before = self.cursors.last;
        }
        for id in unserved {
            self.note_change(id);
        }
        self.tell_chain();
    }

    /// The token of an OPEN as answers to it say it beside their tag: 0 without keys, since the tag is the token.
    const fn token_beside_tag(&self, token: u64) -> u64 {
        if self.has_keys() { token } else { 0 }
    }

    /// The seal of packets that this device sends to other hops.
    fn hop_seal(&self) -> Seal {
        Seal::of(self.chain.keys.as_ref().map(|keys| keys.own))
    }

    /// The seal of RECOVER and its replies.
    fn asking_seal(&self) -> Seal {
        let keys = self.config.keys.as_ref();
        let key = |keys: &DeviceKeys| {
            let present = &keys.cluster.present;
            present.asking(self.config.shard, self.config.id)
        };
        Seal::of(keys.map(key))
    }

    /// Takes in a packet whose tag is a token.
    fn take_in(
        &mut self,
        now: Time,
        from: Peer,
        packet: &Packet<'_>,
        room: Room,
        out: &mut Outbox,
    ) -> Verdict {
        let header = &packet.header;
        match header.kind {
            Kind::Recover => {
                self.relay_recover(now, from, packet, out);
                return Verdict::Done;
            }
            Kind::RecoverReply => return self.on_recover_reply(now, from, packet, out),
            _ if !self.is_serving() => {
                self.counters.not_ready += 1;
                return Verdict::Done;
            }
            Kind::Open | Kind::Update | Kind::End => {
                return self.on_client_entry(now, from, packet, room, out);
            }
            // A server without a chain record knows no token: its store was emptied, or is another.
            Kind::StaleEpoch
                if header.tag != self.chain.shard_token && from == self.config.next =>
            {
                self.probe(now, out);
            }
            // Not by its token: a client that has seen the shard's token can draw the same for its session.
            Kind::Bypass if keys::is_of_a_client(header) => {
                self.on_client_bypass(now, from, packet, out)
            }
            Kind::Read => return self.on_read(now, from, packet, out),
            Kind::Ping if header.session != 0 => self.on_client_ping(now, from, header, out),
            _ => {
                if let Some(verdict) = self.check_hop(now, from, header, out) {
                    return verdict;
                }
                match header.kind {
                    Kind::Append => return self.on_append(now, from, packet, room, out),
                    Kind::Bypass => self.pass_bypass(from, packet, out),
                    Kind::Ping => {
                        self.predecessor = Some(from);
                        self.owed.tell_durable = true;
                        self.owed.tell_applied = true;
                    }
                    Kind::Durable => return self.on_durable(now, packet),
                    Kind::Applied => return self.on_applied(now, header, out),
                    Kind::Retrans => self.on_retrans(now, header, out),
                    Kind::Response | Kind::Nack | Kind::NotLogged => {
                        self.on_server_answer(packet, out)
                    }
                    Kind::StaleEpoch => {}
                    _ => self.counters.unexpected += 1,
                }
            }
        }
        Verdict::Done
    }

    /// Checks what every packet between hops must satisfy: token, epoch, direction.
    fn check_hop(
        &mut self,
        now: Time,
        from: Peer,
        header: &Header,
        out: &mut Outbox,
    ) -> Option<Verdict> {
        if header.tag != self.chain.shard_token && self.config.rules.hold(Rule::Token) {
            self.counters.wrong_token += 1;
            return Some(Verdict::Done);
        }
        if header.epoch > self.epoch {
            self.recover_again(now);
            return Some(Verdict::Done);
        }
        if header.epoch < self.epoch && self.config.rules.hold(Rule::Epoch) {
            self.counters.stale_epoch += 1;
            if header.kind != Kind::StaleEpoch {
                let stale = StaleEpoch {}.header(&self.stamp());
                out.seal(self.hop_seal(), from, &stale, &[]);
            }
            return Some(Verdict::Done);
        }
        let upstream = keys::goes_to_the_server(header.kind);
        if upstream == (from == self.config.next) || (upstream && self.chain.position == 0) {
            self.counters.unexpected += 1;
            return Some(Verdict::Done);
        }
        None
    }

    /// Tells the device the largest fragments that its paths to the hops beside it carry. If that is less than the shard's size, the server is asked to begin an epoch
    /// with a smaller one (protocol.md §7).
    pub fn set_path(&mut self, now: Time, size: FragmentSize, out: &mut Outbox) {
        self.path = if self.loses_large {
            FragmentSize::MIN
        } else {
            size.min(self.config.size_max)
        };
        if self.is_serving() && self.path < self.chain.size {
            self.probe(now, out);
        }
    }

    /// The size of the shard's fragments, as far as this device knows.
    #[must_use]
    pub fn fragment_size(&self) -> FragmentSize {
        self.chain.size.min(self.path)
    }

    /// The next hop, and the one before it, if it is known.
    #[must_use]
    pub fn hops(&self) -> (Peer, Option<Peer>) {
        let relayed = self.relayed.back().map(|one| one.from);
        (self.config.next, self.predecessor.or(relayed))
    }

    /// Where the hop before was last heard from.
    #[must_use]
    pub const fn hop_before(&self) -> Option<Peer> {
        self.predecessor
    }

    /// The stamp of packets that this device sends to other hops.
    #[must_use]
    pub const fn stamp(&self) -> Stamp {
        Stamp {
            shard: self.config.shard,
            epoch: self.epoch,
            device: self.config.id,
            incarnation: self.log.incarnation,
            tag: self.chain.shard_token,
        }
    }

    fn row(&self, order: u64) -> Option<&IndexRow> {
        let at = order.checked_sub(self.cursors.applied + 1)?;
        self.table.index.get(usize::try_from(at).ok()?)
    }

    /// Runs timers that are due.
    pub fn tick(&mut self, now: Time, out: &mut Outbox) {
        match &self.phase {
            Phase::Recovering(_) => self.tick_recovery(now, out),
            Phase::Serving(_) => {
                self.tick_link(now, out);
                self.tick_expiry(now);
            }
            Phase::Stopped => {}
        }
    }

    /// When [`Device::tick`] must be called at the latest.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        match &self.phase {
            Phase::Recovering(recovering) => Some(recovering.due()),
            // It is past: the next burst is to come at once.
            Phase::Serving(_) if self.leaving.goes_on() => Some(Time(0)),
            Phase::Serving(serving) => {
                let linger = self.link.lingers_until(self.config.server_linger);
                earliest(
                    earliest(
                        self.link.due(self.cursors.applied < self.cursors.last),
                        linger,
                    ),
                    serving.next_expiry,
                )
            }
            Phase::Stopped => None,
        }
    }

    /// Who this device is, as RECOVER tells it.
    fn member(&self) -> Member {
        Member {
            device: self.config.id,
            incarnation: self.log.incarnation,
            log_uuid: self.log.log_uuid,
            tail: self.cursors.last,
            applied: self.cursors.applied,
            flags: if self.is_serving() || self.goes_on {
                self.config.flags | Member::SERVING
            } else {
                self.config.flags
            },
            word_epoch: self.log.word_epoch,
            served: self.log.served,
            size: self.path,
        }
    }
}
