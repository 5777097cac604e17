//! The device machine: head or follower of a chain (`docs/spec/protocol.md` §2, §4).
//!
//! The machine decides, packet by packet, what is appended, forwarded and acknowledged. The machine never sees the log:
//! the node appends the entry of [`Verdict::Append`], makes it durable, and reports its order with
//! [`Device::persisted`]. Before that call the entry is neither forwarded nor acknowledged.
//!
//! The cursors are orders: up to `last` entries are admitted, up to `persisted` they are durable in this device, up to
//! `committed` durable in every device of the chain, up to `applied` applied by the store. Always `applied ≤ committed
//! ≤ last` and `persisted ≤ last`. An entry is forwarded after it is persisted.

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

/// The component whose acknowledgement of an update reaches the client first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledger {
    /// The device, when its log has the update. Before that the device may refuse the update.
    Device,
    /// A NIC, before the device has seen the update (`docs/spec/verbs.md`): the device cannot refuse the update any
    /// more, and can only delay it.
    Nic,
}

/// Settings of a device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Device id, unique in the shard, not 0.
    pub id: u32,
    /// Number of the shard.
    pub shard: u32,
    /// The next hop: the next device, or the server.
    pub next: Peer,
    /// Maximum number of sessions.
    pub sessions_max: usize,
    /// Maximum number of unapplied entries of one session in the log.
    pub session_entries_max: u64,
    /// Length of a session's silence after which the head ends the session.
    pub session_idle: Nanos,
    /// Length of a session's silence after which the head may end the session if the table is full. A client that still
    /// runs sends more than two packets in this time.
    pub session_quiet: Nanos,
    /// Shortest retransmission timeout towards the next hop.
    pub link_timeout_floor: Nanos,
    /// Longest retransmission timeout towards the next hop.
    pub link_timeout_ceiling: Nanos,
    /// Maximum number of entries in flight towards the next hop.
    pub link_window_max: u64,
    /// Number of entries that this device can take at once. The device tells this number to the previous hop.
    pub receive_window: u64,
    /// Longest time for which the last device holds durable entries to collect more of them, before it sends them to
    /// the server. If a bypass waits for the entries, they are sent at once. The clients of these entries are already
    /// acknowledged.
    pub server_linger: Nanos,
    /// The server reads the log of this device, the tail, directly. So the device sends only the last of its new
    /// entries, and entries that the server asks for.
    pub server_reads_log: bool,
    /// Number of buckets of the index for READs, rounded up to a power of two; a bucket has 24 bytes. 0: READs are not
    /// answered.
    pub read_buckets: usize,
    /// The component whose acknowledgement of an update reaches the client first.
    pub acknowledger: Acknowledger,
    /// The device answers only while it has a lease ([`Device::renewed`], `docs/spec/protocol.md` §14).
    pub leased: bool,
    /// The operator's statements: [`Member::SHRINK`], [`Member::DECLARE_LOSS`], [`Member::JOIN`].
    pub flags: u32,
    /// The epoch in which the operator's statements count, if the caller knows this epoch, as a controller does (§14).
    /// `None`: the statements count in the epoch that the server's first refusal states.
    pub word_epoch: Option<u32>,
    /// Upper bound of the fragment size, even if the paths carry larger fragments.
    pub size_max: FragmentSize,
    /// Keys of the device; `None`: packets carry tokens instead of MACs.
    pub keys: Option<DeviceKeys>,
    /// The rules that hold: all of them, except in the simulator.
    pub rules: Rules,
}

impl DeviceConfig {
    /// Returns the default settings for this device.
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

/// State of the device's log after its recovery.
#[derive(Clone, Copy, Debug)]
pub struct LogState {
    /// Identity of the log.
    pub log_uuid: u128,
    /// Incarnation of this start. It is already durable in the log.
    pub incarnation: u32,
    /// Last incarnation in which the log was marked to serve.
    pub served: u32,
    /// Epoch that was last persisted.
    pub epoch: u32,
    /// Highest order in the log, all of it durable.
    pub last: u64,
    /// Last order that the log knows to be applied.
    pub applied: u64,
}

/// Free space in the log.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Number of entries that can still be appended.
    pub entries: u64,
    /// Capacity of the log in entries.
    pub entries_max: u64,
    /// Size in bytes of the largest frame that certainly fits.
    pub frame_bytes: u64,
    /// Capacity of the log in bytes of frames. `u64::MAX`: only the number of entries is limited.
    pub bytes_max: u64,
}

impl Room {
    fn fits(&self, payload: &[u8]) -> bool {
        let frame = u64::try_from(HEADER_LEN + payload.len()).unwrap_or(u64::MAX);
        self.entries > 0 && self.frame_bytes >= frame
    }
    /// Returns the capacity in blocks, the unit in which shares are counted.
    const fn blocks_max(&self) -> u64 {
        self.bytes_max / shares::BLOCK
    }
    /// Whether new sessions are admitted: the log is less than 80 % full (protocol.md §4).
    const fn admits_sessions(&self) -> bool {
        self.entries > self.entries_max / 5
    }
}

/// The action that the node must take for a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The node has nothing to do.
    Done,
    /// Append this header with the packet's payload. The header's `order` is the next order of the log.
    Append(Header),
    /// Answer a READ by a HIT: send this header, under this seal, with the payload of the entry that the header names.
    /// If the payload is larger than this size, send [`Device::miss_instead`].
    Hit(Peer, Header, FragmentSize, Seal),
    /// The server's answer is complete: bring the log to this state, then call [`Device::serve`].
    Resume(Recovery),
    /// This device is no member, and must join: mark its log to serve and erase it, durably, then call
    /// [`Device::erased`].
    Erase,
    /// The shard must stop. The text says why, and what the operator must do.
    Stop(String),
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of a device, by reason.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$doc])* pub $name: u64),* }
        impl Counters {
            /// Returns every counter with its name.
            #[must_use]
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counters! {
    /// Entries that this head admitted or this follower took.
    admitted,
    /// Repeated packets that were answered again.
    duplicates,
    /// NACKs sent.
    nacks,
    /// NOT_LOGGED sent.
    not_logged,
    /// Bypasses that were stamped or passed on.
    bypasses,
    /// Answers of the server that were passed back.
    responses,
    /// READs that were answered with a HIT.
    read_hits,
    /// READs that were answered with a MISS.
    read_misses,
    /// Entries that were sent to the next hop, repeats included.
    forwarded,
    /// Ranges of orders that the next hop asked for again.
    retransmissions,
    /// Acknowledgement packets to clients.
    acks,
    /// Answers to clients that were withdrawn, because the lease was over.
    silenced,
    /// Dropped: the device did not serve yet, or could not serve this client.
    not_ready,
    /// Dropped: the packet has another shard.
    wrong_shard,
    /// Dropped: the packet has a wrong token.
    wrong_token,
    /// Dropped: the packet was not sealed with the right key, or was changed.
    forged,
    /// Dropped: the packet's session is unknown, so it cannot be verified.
    unknown_key,
    /// Dropped: the packet was sealed for another hop.
    misled,
    /// Dropped unverified: the packet has another epoch, and the burst had more such packets than are verified.
    other_epoch,
    /// Packets of processes that use keys although this device has none, or the reverse.
    other_mode,
    /// Dropped: this role does not accept this kind from this sender.
    unexpected,
    /// Dropped and answered: the sender's epoch is lower.
    stale_epoch,
    /// Dropped: the address to which the packet should be passed is unknown.
    no_route,
    /// Sessions that were ended because of their silence.
    expired_sessions,
    /// Silent sessions that were ended because the table was full.
    crowded_out_sessions,
    /// Sessions that were ended because their client was started again.
    succeeded_sessions,
    /// OPENs that were refused because the table was full.
    crowded_opens,
    /// Updates that were refused because their front had its share of the log and other fronts needed room.
    over_share,
    /// OPENs that were refused because their front had its share of the log or of the table and other fronts needed
    /// room.
    over_share_opens,
    /// Sessions that were ended because their front had more than its share and another front found no place.
    over_share_sessions,
    /// OPENs that were refused because the server takes another kind of payloads, and would skip their sessions'
    /// updates.
    other_payloads,
}

impl Counters {
    /// Returns the number of packets that were dropped because of their content or sender. A caller compares the
    /// numbers before and after a packet to see whether the packet was dropped.
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

/// A packet of this shard. With keys, the right sender has sealed the packet, and the packet's tag is replaced by the
/// token that it would have without keys.
#[derive(Debug)]
pub struct Genuine<'a> {
    packet: Packet<'a>,
    /// Seal of answers to the packet.
    answers: Seal,
}

#[derive(Clone, Copy, Debug)]
struct IndexRow {
    session: u64,
    seq: u64,
    payload_crc: u32,
    entry: EntryKind,
    /// Row of the entry's front (`share`), and size of the entry in blocks (`blocks`), as in [`Shares`].
    share: u8,
    blocks: u8,
}

/// The device's log as RECOVER describes it.
#[derive(Debug)]
struct OwnLog {
    log_uuid: u128,
    incarnation: u32,
    /// Last incarnation in which the log was marked to serve.
    served: u32,
    /// Epoch in which the operator's statements count; 0: the server has not stated it yet.
    word_epoch: u32,
}

/// The chain as the server last stated it.
#[derive(Debug, Default)]
struct OwnChain {
    members: Vec<Member>,
    /// Position of this device; 0 is the head.
    position: usize,
    shard_token: u64,
    /// Keys with the neighbour hops, if the device has keys.
    keys: Option<HopKeys>,
    /// Entries up to this order were stored before the device had the present keys, so they are sealed again when they
    /// are sent.
    stored_before: u64,
    /// Size of the shard's fragments.
    size: FragmentSize,
}

/// The session table, with its index: the server's table, into which the entries of the log are folded.
#[derive(Debug, Default)]
struct Table {
    sessions: FxHashMap<u64, Session>,
    /// Ids of sessions that have begun but were not used yet, by token and front.
    opening: FxHashMap<Identity, u64>,
    /// One row for each order in `applied + 1 ..= last`.
    index: VecDeque<IndexRow>,
    /// For each front, its numbers of sessions and entries, and its bytes in the log.
    shares: Shares,
}

/// Positions in the log: `applied ≤ committed ≤ last` and `persisted ≤ last`.
#[derive(Debug)]
struct Cursors {
    last: u64,
    persisted: u64,
    committed: u64,
    applied: u64,
}

/// Packets that must be sent at the end of the burst.
#[derive(Debug, Default)]
struct Owed {
    /// The previous hop must be sent a DURABLE with this device's durable order.
    tell_durable: bool,
    /// The previous hop must be sent an APPLIED with the server's applied order.
    tell_applied: bool,
    /// Number of the burst, from 1 ([`Session::nacked_in`]).
    burst: u64,
    /// Number of packets of another epoch that may still be verified in this burst.
    strangers: Strangers,
}

#[derive(Debug)]
enum Phase {
    Recovering(Recovering),
    Serving(Serving),
    Stopped,
}

/// State of a device that serves.
#[derive(Debug)]
struct Serving {
    /// Durable orders of the following devices, nearest first.
    downstream: Vec<DurableRow>,
    /// Sessions whose clients must be sent an acknowledgement at the end of the burst.
    touched: Vec<u64>,
    /// Time of the next search for idle sessions.
    next_expiry: Option<Time>,
    /// First missing order of the gap that was last asked for, and the time of the question.
    retrans_guard: Option<(u64, Time)>,
}

impl Phase {
    /// # Panics
    /// If the device does not serve. The caller must have checked that the device serves.
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
    /// Kinds of payloads that the server takes, as it has stated in this epoch.
    takes: Payloads,
    table: Table,
    cursors: Cursors,
    reads: Reads,
    link: Link,
    /// Address from which the previous hop sent its last packet.
    predecessor: Option<Peer>,
    relayed: VecDeque<Relayed>,
    /// A device before this one is becoming the head, so this device admits nothing more.
    joining: bool,
    /// The store has reported that it is short of space. A head then admits no updates.
    short: bool,
    /// The device's log does not survive the end of the process ([`Device::endanger`]).
    endangered: bool,
    /// The store has also reported that no session may begin.
    full: bool,
    /// Largest fragments that the paths to the neighbour hops carry.
    path: FragmentSize,
    /// The path to the next hop has lost large packets without an error.
    loses_large: bool,
    /// A fast path may append to the log while this device recovers ([`Device::log_goes_on`]).
    goes_on: bool,
    /// The last question of [`Device::probe`].
    probe: Option<recover::Probe>,
    /// Seal of answers to the packet that is being handled.
    answers: Seal,
    /// Fingerprint of the cluster's keys ([`ClusterKeys::print`]); `None`: no keys.
    print: Option<NonZeroU64>,
    /// The last front without a valid key that has sent a packet, and the number of packets of all such fronts
    /// ([`Device::unserved`]).
    unserved: Option<(FrontId, u64)>,
    owed: Owed,
    leaving: Leaving,
    /// End of the lease, by this device's clock; `None`: the device has had no lease since its start.
    deadline: Option<Time>,
    /// The state that the fast path was told; `None`: there is no fast path.
    fast_path: Option<Ledger>,
    /// The action that the operator must take before the device can serve, in the server's words.
    waits_for: Option<String>,
    counters: Counters,
}

/// Shortest time between two questions for the same gap.
const RETRANS_GUARD: Nanos = MILLISECOND;
/// Maximum number of RECOVERs of other devices that this device remembers, so that it can pass back the replies.
const RELAYED_MAX: usize = 32;

impl Device {
    /// Returns a device that has recovered its log. As its next step it sends a RECOVER to the server.
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
            endangered: false,
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
    /// Returns the number of devices of the chain (R); 0 while recovering.
    #[must_use]
    pub fn copies(&self) -> u8 {
        u8::try_from(self.chain.members.len()).unwrap_or(u8::MAX)
    }
    /// Returns the ids of the chain's devices, head first.
    pub fn chain(&self) -> impl Iterator<Item = u32> {
        self.chain.members.iter().map(|member| member.device)
    }
    /// Returns the epoch in which the device serves or last served.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }
    /// Returns `(last, persisted, committed, applied)`.
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
    /// Returns the highest order that was sent to the next hop.
    #[must_use]
    pub const fn forwarded(&self) -> u64 {
        self.link.sent()
    }
    /// Returns the last admitted seq of a session, if the session is known.
    #[must_use]
    pub fn admitted(&self, session: u64) -> Option<u64> {
        self.table
            .sessions
            .get(&session)
            .map(|session| session.last)
    }
    /// Returns the server's text that says what the operator must do before this device may serve, if there is such a
    /// text.
    #[must_use]
    pub fn waits_for(&self) -> Option<&str> {
        self.waits_for.as_deref()
    }
    /// Returns the last front without a valid key that has sent a packet, the reason why it is not served, and the
    /// number of packets of all such fronts. The packets are not verified, so the result is only a hint for operators.
    #[must_use]
    pub fn unserved(&self) -> Option<(FrontId, Unserved, u64)> {
        let (keys, (id, packets)) = (self.config.keys.as_ref()?, self.unserved?);
        Some((id, keys.cluster.why_not(id), packets))
    }

    /// Returns the fingerprints of the cluster keys that the device accepts.
    pub fn fingerprints(&self) -> impl Iterator<Item = u32> {
        let keys = self.config.keys.iter();
        keys.flat_map(|keys| keys.cluster.accepted().map(ClusterKey::fingerprint))
    }

    /// Returns the cluster's keys, if this device has keys.
    #[must_use]
    pub fn cluster_keys(&self) -> Option<&ClusterKeys> {
        self.config.keys.as_ref().map(|keys| &keys.cluster)
    }

    /// Whether packets are sealed with keys.
    #[must_use]
    pub const fn has_keys(&self) -> bool {
        self.config.keys.is_some()
    }
    /// Returns the number of open sessions.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.table.sessions.len()
    }
    /// The log's file is gone, so what the log holds is lost when the process ends. From now on the chain admits no
    /// updates, as if the store were short of space: clients send them to the server, and none is acknowledged before
    /// the store has it. Entries of the log are passed on as before.
    pub fn endanger(&mut self) {
        (self.endangered, self.short) = (true, true);
        self.owed.tell_durable = true;
    }

    /// Returns whether [`Device::endanger`] was called.
    #[must_use]
    pub const fn is_endangered(&self) -> bool {
        self.endangered
    }

    /// Returns the counters since the start.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Processes one packet.
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

    /// The first part of [`Device::receive`]: checks that the packet is for this shard and, with keys, that the right
    /// sender has sealed it. `None`: the packet is counted, and must be dropped. Before this check a packet must have
    /// no effect. In particular, the node must not hold the fast path, or stop it from answering READs, because of an
    /// unchecked packet.
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

    /// The second part of [`Device::receive`]: handles a checked packet.
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

    /// Verifies that the packet is unchanged and comes from a sender that may send it. Returns the token that the
    /// packet would have without keys, and the seal of answers to the packet. `None`: the packet is counted, and must
    /// be dropped.
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
            // A server without a chain record uses epoch 0, and knows no token.
            Verified::Yes if header.epoch == 0 => return Some((0, self.hop_seal())),
            Verified::Yes => return Some((self.chain.shard_token, self.hop_seal())),
            Verified::No => self.counters.forged += 1,
            Verified::ForAnother => self.counters.misled += 1,
            Verified::Unknown => self.counters.other_epoch += 1,
        }
        None
    }

    /// Verifies a client's packet. The keys are those of the packet's session, or of the front that the payload names.
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
                // The PING names another identity than the known session's. Another front can choose the same id and
                // token, so the session's own keys are not used.
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

    /// Returns the keys of a session, if this device has keys and the session's front has a valid key of this cluster.
    fn session_keys(&self, identity: Identity) -> Option<SessionKeys> {
        let keys = self.config.keys.as_ref()?;
        keys.cluster.session(self.config.shard, identity)
    }

    /// Sets other keys of the cluster (keys.md §7). A rollover takes several steps, so the neighbour hops can still
    /// verify packets that are sealed with the old keys. Entries that were stored with seals of the old keys are sealed
    /// again when they are sent.
    ///
    /// A session keeps its keys until it ends, unless its front is now refused or its cluster key is no longer
    /// accepted. Such a session loses its keys: its packets are dropped, and it ends by its silence. Its acknowledged
    /// updates are in the log, and are applied. If a NIC takes messages on connections of such a session, the session
    /// keeps its keys until [`Device::unbind`], and the caller must break the connections. A device without keys
    /// ignores this call.
    pub fn rekey(&mut self, cluster: ClusterKeys) {
        let Some(keys) = &mut self.config.keys else {
            return;
        };
        keys.cluster = cluster;
        let cluster = &keys.cluster;
        self.print = Some(cluster.print());
        let mut unserved = Vec::new();
        for (id, session) in &mut self.table.sessions {
            if session.forget_keys(cluster) {
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

    /// Returns the token that an answer to an OPEN has in its token field. Without keys it is 0, because the answer's
    /// tag already is the token.
    const fn token_beside_tag(&self, token: u64) -> u64 {
        if self.has_keys() { token } else { 0 }
    }

    /// Returns the seal of packets that this device sends to other hops.
    fn hop_seal(&self) -> Seal {
        Seal::of(self.chain.keys.as_ref().map(|keys| keys.own))
    }

    /// Returns the seal of RECOVER and its replies.
    fn asking_seal(&self) -> Seal {
        let keys = self.config.keys.as_ref();
        let key = |keys: &DeviceKeys| {
            let present = &keys.cluster.present;
            present.asking(self.config.shard, self.config.id)
        };
        Seal::of(keys.map(key))
    }

    /// Handles a packet whose tag is a token.
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
            // A server without a chain record knows no token. Its store was emptied, or it has another store.
            Kind::StaleEpoch
                if header.tag != self.chain.shard_token && from == self.config.next =>
            {
                self.probe(now, out);
            }
            // The token does not prove that a hop has sent the packet: a client that has seen the shard's token could
            // choose the same token for its session.
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

    /// Checks a packet between hops: its token, its epoch, and whether it comes from the hop that sends this kind.
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
        if !upstream {
            self.link.heard(now);
        }
        None
    }

    /// Tells the device the largest fragments that its paths to the neighbour hops carry. If these fragments are
    /// smaller than the shard's size, the device asks the server, which begins an epoch with a smaller size
    /// (protocol.md §7).
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

    /// Returns the size of the shard's fragments, as this device knows it.
    #[must_use]
    pub fn fragment_size(&self) -> FragmentSize {
        self.chain.size.min(self.path)
    }

    /// Returns the address of the next hop, and the address of the previous hop, if it is known.
    #[must_use]
    pub fn hops(&self) -> (Peer, Option<Peer>) {
        let relayed = self.relayed.back().map(|one| one.from);
        (self.config.next, self.predecessor.or(relayed))
    }

    /// Returns the address from which the previous hop sent its last packet.
    #[must_use]
    pub const fn hop_before(&self) -> Option<Peer> {
        self.predecessor
    }

    /// Returns the stamp of packets that this device sends to other hops.
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

    /// Returns the time when [`Device::tick`] must be called at the latest.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        match &self.phase {
            Phase::Recovering(recovering) => Some(recovering.due()),
            // Time 0 is past, so the node calls [`Device::tick`] at once.
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

    /// Returns the description of this device in RECOVER.
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
