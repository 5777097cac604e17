//! The server machine: takes the log in order, decides what a store applies, and answers bypasses
//! (`docs/spec/protocol.md` §2 rules 6–8, §5).
//!
//! The machine gives out one [`Work`] at a time. The node lets the store do the work, and reports the result. The
//! machine changes its state only when the store has done the work durably. If a work failed, or its outcome is
//! unknown, the machine forgets the work and loads the records again.

mod apply;
mod bypass;
mod chain;
pub mod decide;
mod doubts;
mod judge;
mod kept;
mod records;
mod room;

pub use apply::{Change, Effects, Origin, Source};
pub use bypass::Execution;
pub use chain::Chain;
pub use decide::{Decision, decide};

use crate::keys::{self, ClusterKeys, HopKeys, Seal, Strangers, Verified};
use crate::rules::{Rule, Rules};
use crate::time::{MILLISECOND, Nanos, Time};
use crate::{Outbox, Peer, Random};
use bypass::{Executing, Recent, Waiting};
use bytes::Bytes;
use chain::{PendingRecover, Refused, Snapshot};
use doubts::{Doubt, Doubts};
use kept::Kept;
use pmnet_wire::packet::{Append, Applied, Ping, Retrans, StaleEpoch, Stamp};
use pmnet_wire::{FragmentSize, FrontId, Header, Kind, Packet, Payloads};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeSet, VecDeque};

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Number of the shard.
    pub shard: u32,
    /// Maximum number of entries in one batch.
    pub batch_entries_max: usize,
    /// Maximum number of payload bytes in one batch.
    pub batch_bytes_max: usize,
    /// Maximum number of entries that are received and not applied. The tail is told the free number as its credit.
    pub queue_max: usize,
    /// Maximum number of bypasses that wait for their barrier.
    pub waiting_max: usize,
    /// Maximum number of bytes of waiting bypasses.
    pub waiting_bytes_max: usize,
    /// Maximum number of bytes of long replies that are kept until their clients have fetched them.
    pub replies_bytes_max: usize,
    /// Maximum number of bytes of long replies to bypasses that change state. The bound is in memory, and after the
    /// next step of the store also in its records.
    pub kept_bytes_max: usize,
    /// Maximum number of requests that are executed at once.
    pub execute_max: usize,
    /// Upper bound of the fragment size, even if the paths carry larger fragments.
    pub size_max: FragmentSize,
    /// The cluster's keys; `None`: packets carry tokens instead of MACs.
    pub keys: Option<ClusterKeys>,
    /// The rules that hold: all of them, except in the simulator.
    pub rules: Rules,
}

impl ServerConfig {
    /// Returns the default settings for this shard.
    #[must_use]
    pub const fn new(shard: u32) -> ServerConfig {
        ServerConfig {
            shard,
            batch_entries_max: 1024,
            batch_bytes_max: 4 << 20,
            queue_max: 4096,
            waiting_max: 65_536,
            waiting_bytes_max: 256 << 20,
            replies_bytes_max: 256 << 20,
            kept_bytes_max: 128 << 20,
            execute_max: 256,
            size_max: FragmentSize::MAX,
            keys: None,
            rules: Rules::ALL,
        }
    }
}

/// The next step for the store. One work is under way at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Load all records ([`Server::loaded`]).
    Load,
    /// Apply these effects and record changes in one atomic durable step ([`Server::applied`]).
    Apply(Effects),
    /// Execute these requests ([`Server::executed`]).
    Execute(Vec<Execution>),
}

/// Why the shard must stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Stop(pub String);

/// A packet for the server's shard, whose tag is a token. With keys, a sender that may send this packet has sealed it
/// ([`Server::check`]).
pub struct Genuine<'a>(Packet<'a>);

impl Genuine<'_> {
    /// Whether the packet is a RECOVER, in which a device asks to belong to the chain.
    #[must_use]
    pub fn asks(&self) -> bool {
        self.0.header.kind == Kind::Recover
    }
}

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Updates applied (whole messages).
    pub applied: u64,
    /// Updates that were already applied.
    pub repeated: u64,
    /// Updates without effect: malformed, or finally refused by the store.
    pub rejected: u64,
    /// Batches.
    pub batches: u64,
    /// Bypasses executed.
    pub executed: u64,
    /// Bypasses answered from a stored reply.
    pub answered_again: u64,
    /// Bypasses not executed, because their callers had given up.
    pub expired: u64,
    /// Updates applied by fallback.
    pub fallbacks: u64,
    /// Ranges of orders that were asked for again.
    pub retransmissions: u64,
    /// Packets that were dropped: wrong shard, token, kind or epoch, or no room for an entry.
    pub dropped: u64,
    /// Packets of bypasses that were dropped, because the waiting room is full.
    pub no_room: u64,
    /// Bypasses that lost their place in the waiting room: incomplete without a new fragment, over their front's share,
    /// or past their deadline.
    pub abandoned: u64,
    /// Long replies to state-changing bypasses that were dropped to save space, although a copy of the bypass may still
    /// come.
    pub replies_let_go: u64,
    /// Packets that were dropped: not sealed with the right key, or changed.
    pub forged: u64,
    /// Packets that were dropped: sealed for another hop than the server.
    pub misled: u64,
    /// Packets that were dropped unverified: they had another epoch, and the burst had more such packets than are
    /// verified.
    pub other_epoch: u64,
    /// Packets of devices that use keys although this server has none, or the reverse.
    pub other_mode: u64,
}

/// Identity of an entry: session, seq, checksum of the payload. Every entry that arrives with one order must have the
/// same identity.
type Identity = (u64, u64, u32);

/// Maximum number of applied entries whose identity is remembered (known gap G19).
const APPLIED_LATELY_MAX: usize = 4096;

#[derive(Clone, Debug)]
struct Entry {
    append: Append,
    payload_crc: u32,
    payload: Bytes,
}

impl Entry {
    const fn origin(&self) -> Origin {
        Origin {
            order: self.append.order,
            payload_crc: self.payload_crc,
        }
    }
    const fn source(&self) -> Source {
        Source {
            session: self.append.session,
            number: self.append.seq,
            order: self.append.order,
        }
    }
    const fn identity(&self) -> Identity {
        (self.append.session, self.append.seq, self.payload_crc)
    }
}

/// A fragment that waits for the rest of its update.
#[derive(Clone, Debug)]
struct Part {
    seq: u64,
    /// Number of fragments of the update.
    count: u16,
    payload: Bytes,
}

/// A session as the server knows it.
#[derive(Clone, Debug, Default)]
struct Session {
    token: u64,
    /// Front of the session, if there are keys.
    front: Option<FrontId>,
    last_seq: u64,
    /// The first fragments of an incomplete update.
    stage: Vec<Part>,
    /// Last state-changing bypass and its reply.
    reply: Option<(u64, Bytes)>,
    /// Number of the session's reply in [`Kept`]; 0: the reply is short.
    kept_at: u64,
    /// Request id of the last read that was answered with an error, and the error. They answer copies of the read that
    /// may still arrive.
    failed_read: Option<(u64, Bytes)>,
    /// Highest request id seen by this process.
    highest_request: u64,
}

impl Session {
    /// Returns the session's confirmed state in the store: its last applied seq, and the id of its last state-changing
    /// bypass (0: none). Both numbers only grow.
    fn confirmed(&self) -> (u64, u64) {
        let request = self.reply.as_ref().map_or(0, |(request, _)| *request);
        (self.last_seq, request)
    }
}

#[derive(Debug)]
enum InFlight {
    Nothing,
    Load,
    Batch(Change),
    Fallback {
        session: u64,
        seq: u64,
        change: Change,
    },
    Chain(Chain),
    Execute(Vec<Executing>),
    /// A write that replaces dropped replies in the records.
    Shorten,
}

/// The part of the log that has arrived at the server.
#[derive(Debug, Default)]
struct Entries {
    /// A, the last applied order.
    applied: u64,
    /// Highest order received without a gap.
    received: u64,
    /// The entries after `applied`, up to `received`.
    queue: VecDeque<Entry>,
    /// Identities of the last applied entries, the newest last.
    lately: VecDeque<Identity>,
    /// First missing order of the gap that was last asked for, and the time of the question.
    retrans_guard: Option<(u64, Time)>,
}

/// Bypasses that wait for their barrier, or for their missing fragments.
#[derive(Debug, Default)]
struct WaitingRoom {
    /// The bypasses, one for each session.
    waiting: FxHashMap<u64, Waiting>,
    /// Barrier and session of each complete bypass.
    ready: BTreeSet<(u64, u64)>,
    /// Bytes of all bypasses (`bytes`), and of the incomplete bypasses (`partial_bytes`).
    bytes: usize,
    partial_bytes: usize,
    /// Time of the last search for bypasses that can be dropped.
    searched_at: Option<Time>,
}

/// Decides which request the store executes next.
#[derive(Debug, Default)]
struct Turns {
    /// Sessions whose last execution failed, perhaps only because of another request in the same work.
    suspects: FxHashSet<u64>,
    /// The suspect that was tried last.
    last_suspect: u64,
    suspect_went: bool,
    /// The last work was an execution.
    executed_last: bool,
}

/// Long replies to reads, which are kept until their clients have fetched them.
#[derive(Debug, Default)]
struct Replies {
    recent: VecDeque<Recent>,
    /// Bytes of the long replies.
    bytes: usize,
}

/// Recoveries of devices, and the changes of the chain that they cause.
#[derive(Debug, Default)]
struct Recovers {
    /// RECOVERs that wait until the chain record is durable.
    pending: VecDeque<PendingRecover>,
    /// Copies of the session table that recovering devices request in parts.
    snapshots: VecDeque<Snapshot>,
    /// The chain that must be written next.
    next_chain: Option<Chain>,
    refused: Refused,
}

/// The server of one shard.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    /// Largest fragments that the server's path to the tail carries.
    path: FragmentSize,
    /// Kinds of payloads that the store takes. Sessions of other kinds are not begun.
    takes: Payloads,
    /// Name of the loaded store.
    store: Bytes,
    random: Random,
    /// The records are known: no work has failed since they were loaded.
    loaded: bool,
    chain: Option<Chain>,
    /// Keys with the tail in the chain's epoch, if the server has keys.
    keys: Option<HopKeys>,
    /// Number of packets of another epoch that may still be verified in this burst.
    strangers: Strangers,
    entries: Entries,
    sessions: FxHashMap<u64, Session>,
    room: WaitingRoom,
    turns: Turns,
    replies: Replies,
    kept: Kept,
    recovers: Recovers,
    in_flight: InFlight,
    doubts: Doubts,
    /// Address of the tail, as of its last packet (`tail`), and whether the tail must be sent an APPLIED
    /// (`tell_applied`).
    tail: Option<Peer>,
    tell_applied: bool,
    /// The store is short of space.
    short: bool,
    /// The existing sessions need the store's space, so no session may begin.
    full: bool,
    tell_again: u8,
    notices: VecDeque<String>,
    counters: Counters,
}

const RETRANS_GUARD: Nanos = MILLISECOND;
const NOTICES_MAX: usize = 64;
/// Number of works after which the tail is told the end of a shortage of space again, because each APPLIED may be lost.
const SHORT_TOLD_AGAIN: u8 = 8;

impl Server {
    /// Returns a server that has not loaded its records yet. `random`: source of the token of a new shard.
    #[must_use]
    pub fn new(config: ServerConfig, random: Random) -> Server {
        Server {
            path: config.size_max,
            config,
            takes: Payloads::NOT_SAID,
            store: Bytes::new(),
            random,
            loaded: false,
            chain: None,
            keys: None,
            strangers: Strangers::default(),
            entries: Entries::default(),
            sessions: FxHashMap::default(),
            room: WaitingRoom::default(),
            turns: Turns::default(),
            replies: Replies::default(),
            kept: Kept::default(),
            recovers: Recovers::default(),
            in_flight: InFlight::Nothing,
            doubts: Doubts::default(),
            tail: None,
            tell_applied: false,
            short: false,
            full: false,
            tell_again: 0,
            notices: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Returns A: the store has durably applied all orders up to A.
    #[must_use]
    pub const fn watermark(&self) -> u64 {
        self.entries.applied
    }
    /// Returns the chain of the present epoch, if there is one.
    #[must_use]
    pub const fn chain(&self) -> Option<&Chain> {
        self.chain.as_ref()
    }
    /// Returns the sessions whose state-changing bypasses the store has confirmed, each with the id of its last such
    /// bypass.
    pub fn confirmed_requests(&self) -> impl Iterator<Item = (u64, u64)> {
        let replies = self.sessions.iter();
        replies.filter_map(|(id, session)| Some((*id, session.reply.as_ref()?.0)))
    }
    /// Returns the address of the tail, as of its last packet in this epoch.
    #[must_use]
    pub const fn tail(&self) -> Option<Peer> {
        self.tail
    }
    /// Returns the counters since the start.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }
    /// Returns whether the store's records are known, and nothing has failed since.
    #[must_use]
    pub const fn is_loaded(&self) -> bool {
        self.loaded
    }
    /// Returns the number of sessions on record.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }
    /// Returns the bytes of long replies to bypasses that change state.
    #[must_use]
    pub const fn kept_bytes(&self) -> usize {
        self.kept.bytes()
    }
    /// Returns the highest order received without a gap.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.entries.received
    }

    /// Returns whether the queue has no room for another entry.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.entries.queue.len() >= self.config.queue_max
    }

    /// Returns the number of entries that are received and not applied.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.entries.queue.len()
    }
    /// Returns the next text for the operator, if there is one.
    pub fn poll_notice(&mut self) -> Option<String> {
        self.notices.pop_front()
    }

    fn notice(&mut self, text: String) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push_back(text);
        }
    }

    fn epoch(&self) -> u32 {
        self.chain.as_ref().map_or(0, |chain| chain.epoch)
    }

    /// Returns the stamp of packets that the server sends to the chain.
    fn stamp(&self) -> Stamp {
        Stamp {
            shard: self.config.shard,
            epoch: self.epoch(),
            tag: self.chain.as_ref().map_or(0, |chain| chain.shard_token),
            ..Stamp::default()
        }
    }

    /// Processes one packet. `now`: time of its arrival; if it had to wait, the earliest time at which it may have
    /// arrived.
    ///
    /// # Errors
    /// [`Stop`] if the packet belongs to another history than the store's, so that the shard must stop.
    pub fn receive(
        &mut self,
        now: Time,
        from: Peer,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<(), Stop> {
        match self.check(packet) {
            Some(genuine) => self.receive_genuine(now, from, &genuine, out),
            None => Ok(()),
        }
    }

    /// The first part of [`Server::receive`]: checks that the packet is for this shard and, with keys, that the right
    /// sender has sealed it. `None`: the packet is counted, and must be dropped. Before this check a packet must have
    /// no effect. In particular, the node must not read entries from a log, or measure a path, because of an unchecked
    /// packet.
    pub fn check<'a>(&mut self, packet: &Packet<'a>) -> Option<Genuine<'a>> {
        let header = &packet.header;
        if header.shard != self.config.shard {
            self.counters.dropped += 1;
            return None;
        }
        let keyed = self.config.keys.is_some();
        if keys::is_of_the_other_mode(keyed, packet) {
            self.counters.other_mode += 1;
        }
        let tag = if keyed {
            self.verify(packet)?
        } else {
            header.tag
        };
        let header = Header { tag, ..*header };
        let payload = packet.payload;
        Some(Genuine(Packet { header, payload }))
    }

    /// The second part of [`Server::receive`]: handles a checked packet.
    ///
    /// # Errors
    /// The errors of [`Server::receive`].
    pub fn receive_genuine(
        &mut self,
        now: Time,
        from: Peer,
        genuine: &Genuine<'_>,
        out: &mut Outbox,
    ) -> Result<(), Stop> {
        self.take_in(now, from, &genuine.0, out)
    }

    /// Returns the order of the packet, if it is an entry of the tail in the present epoch and entries before it are
    /// missing. If the server reads entries from the tail's log, the tail sends only the last of its new entries, to
    /// announce all of them. `None`: the packet is no such entry, or comes from another sender.
    #[must_use]
    pub fn announced(&self, from: Peer, genuine: &Genuine<'_>) -> Option<u64> {
        let header = &genuine.0.header;
        let chain = self.chain.as_ref()?;
        let of_the_tail = header.kind == Kind::Append
            && self.tail == Some(from)
            && header.epoch == chain.epoch
            && header.tag == chain.shard_token
            && self.recovers.next_chain.is_none();
        let order = Append::read(header).order;
        (of_the_tail && order > self.entries.received + 1).then_some(order)
    }

    /// Verifies that the packet is unchanged and comes from a sender that may send it. Returns the token that the
    /// packet would have without keys. `None`: the packet is counted, and must be dropped.
    fn verify(&mut self, packet: &Packet<'_>) -> Option<u64> {
        let cluster = self.config.keys.as_ref()?;
        let header = &packet.header;
        let asks = header.kind == Kind::Recover;
        if !(asks || keys::goes_to_the_server(header.kind)) {
            self.counters.dropped += 1;
            return None;
        }
        let verified = if asks {
            keys::verify_recover(cluster, 0, packet)
        } else {
            self.verify_hop(packet)
        };
        match verified.under(self.config.rules) {
            Verified::Yes if asks => return Some(0),
            Verified::Yes => return Some(self.chain.as_ref().map_or(0, |chain| chain.shard_token)),
            Verified::No => self.counters.forged += 1,
            Verified::ForAnother => self.counters.misled += 1,
            Verified::Unknown => self.counters.other_epoch += 1,
        }
        None
    }

    /// Whether a hop has sealed the packet. In the chain's epoch only the tail sends to the server.
    fn verify_hop(&mut self, packet: &Packet<'_>) -> Verified {
        let header = &packet.header;
        let chain = self.chain.as_ref();
        if let (Some(chain), Some(keys)) = (chain, &self.keys)
            && header.epoch == chain.epoch
        {
            return Verified::of(keys.verify(packet));
        }
        // This store has no chain record, so the server must take the shard's token from the packet itself. Only a PING
        // states the token, and its only effect is a STALE_EPOCH.
        if chain.is_none() && header.kind != Kind::Ping {
            return Verified::No;
        }
        if !self.strangers.admit() {
            return Verified::Unknown;
        }
        let Some(cluster) = &self.config.keys else {
            return Verified::No;
        };
        let (token, members) = match chain {
            Some(chain) => (chain.shard_token, chain.members.as_slice()),
            None => (Ping::read(header).client, [].as_slice()),
        };
        Verified::of(keys::verify_in_another_epoch(
            cluster, token, members, packet,
        ))
    }

    /// From now on tells devices that the store takes these kinds of payloads (`docs/spec/protocol.md` §4).
    pub const fn take(&mut self, payloads: Payloads) {
        self.takes = payloads;
    }

    /// Sets other keys of the cluster (keys.md §7). A server without keys ignores this call.
    pub fn rekey(&mut self, cluster: ClusterKeys) {
        if self.config.keys.is_some() {
            self.config.keys = Some(cluster);
            self.derive_hop_keys();
        }
    }

    /// Whether packets are sealed with keys.
    #[must_use]
    pub const fn has_keys(&self) -> bool {
        self.config.keys.is_some()
    }

    /// Returns the seal of packets that the server sends to the chain.
    fn seal(&self) -> Seal {
        Seal::of(self.keys.as_ref().map(|keys| keys.own))
    }

    /// Handles a packet whose tag is a token.
    fn take_in(
        &mut self,
        now: Time,
        from: Peer,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<(), Stop> {
        let header = &packet.header;
        // If the records are loaded *again*, the chain need not wait: entries are queued, and are applied when the
        // loaded records have shown the last applied order.
        let knows = self.loaded || (self.chain.is_some() && header.kind != Kind::Recover);
        if !knows {
            self.counters.dropped += 1;
            return Ok(());
        }
        if header.kind == Kind::Recover {
            self.on_recover(from, packet, out);
            return Ok(());
        }
        let Some(chain) = &self.chain else {
            self.counters.dropped += 1;
            if matches!(header.kind, Kind::Append | Kind::Bypass | Kind::Ping) {
                // The sender belongs to a chain that this store does not know. After a STALE_EPOCH the sender sends a
                // RECOVER.
                let stale = StaleEpoch {}.header(&self.stamp());
                out.seal(self.seal(), from, &stale, &[]);
            }
            return Ok(());
        };
        let rules = self.config.rules;
        if (header.tag != chain.shard_token && rules.hold(Rule::Token))
            || !matches!(header.kind, Kind::Append | Kind::Bypass | Kind::Ping)
        {
            self.counters.dropped += 1;
            return Ok(());
        }
        if header.epoch > chain.epoch {
            let known = chain.epoch;
            // Another server may have changed the records while this server was suspended.
            if rules.hold(Rule::FreshRecords) && !self.doubts.is_settled(Doubt::Epoch(header.epoch))
            {
                self.counters.dropped += 1;
                return Ok(());
            }
            return Err(Stop(format!(
                "PM2011 a device serves epoch {} but this store knows epoch {known} only. Before you restore anything: does --store \
                 lead to this shard's store, and not to a replica, an old copy, or another shard's? If it is the right one, it \
                 lost data: restore it, then start the server again.",
                header.epoch
            )));
        }
        let stale = header.epoch < chain.epoch && rules.hold(Rule::Epoch);
        if stale || self.recovers.next_chain.is_some() {
            self.counters.dropped += 1;
            if stale {
                let stale = StaleEpoch {}.header(&self.stamp());
                out.seal(self.seal(), from, &stale, &[]);
            }
            return Ok(());
        }
        match header.kind {
            Kind::Append => return self.on_append(now, from, packet, out),
            Kind::Bypass => self.on_bypass(now, from, packet, out),
            _ => {
                self.tail = Some(from);
                self.tell_applied = true;
            }
        }
        Ok(())
    }

    /// Takes an entry into the queue, by rule 4: only order `received + 1`.
    fn on_append(
        &mut self,
        now: Time,
        from: Peer,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<(), Stop> {
        let append = Append::read(&packet.header);
        let payload_crc = packet.header.payload_crc;
        self.tail = Some(from);
        let expected = self.entries.received + 1;
        if append.order < expected {
            if let Some(known) = self.known_entry(append.order)
                && known != (append.session, append.seq, payload_crc)
            {
                return Err(Stop(format!(
                    "PM2012 order {} arrived as (session {}, seq {}) and as (session {}, seq {}): two histories met. Does \
                     another device serve with a copy of this log? Keep the devices' logs and compare them with \
                     `pmnet log inspect`.",
                    append.order, known.0, known.1, append.session, append.seq
                )));
            }
            self.tell_applied = true;
        } else if append.order > expected && self.config.rules.hold(Rule::NoGaps) {
            if self
                .entries
                .retrans_guard
                .is_none_or(|(order, at)| order != expected || now.since(at) >= RETRANS_GUARD)
            {
                self.entries.retrans_guard = Some((expected, now));
                self.counters.retransmissions += 1;
                let ask = Retrans {
                    first: expected,
                    last: append.order - 1,
                };
                out.seal(self.seal(), from, &ask.header(&self.stamp()), &[]);
            }
        } else if self.is_full() {
            self.counters.dropped += 1;
            self.tell_applied = true;
        } else {
            self.entries.received = append.order;
            self.entries.queue.push_back(Entry {
                append,
                payload_crc,
                payload: Bytes::copy_from_slice(packet.payload),
            });
        }
        Ok(())
    }

    /// Returns the identity of the entry at this order, if the entry waits to be applied or was applied recently.
    fn known_entry(&self, order: u64) -> Option<Identity> {
        if let Some(back) = self.entries.applied.checked_sub(order) {
            let back = usize::try_from(back).ok()?;
            let at = self.entries.lately.len().checked_sub(back + 1)?;
            return self.entries.lately.get(at).copied();
        }
        let at = usize::try_from(order - self.entries.applied - 1).ok()?;
        self.entries.queue.get(at).map(Entry::identity)
    }

    /// Ends a burst of packets, or a work. If necessary, sends the tail an APPLIED with the last applied order.
    pub fn finish(&mut self, out: &mut Outbox) {
        self.strangers = Strangers::default();
        if std::mem::take(&mut self.tell_applied)
            && let Some(tail) = self.tail
        {
            let room = self
                .config
                .queue_max
                .saturating_sub(self.entries.queue.len());
            let applied = if self.config.rules.hold(Rule::ReclaimApplied) {
                self.entries.applied
            } else {
                self.entries.received
            };
            let applied = Applied {
                applied,
                received: self.entries.received,
                room: u64::try_from(room).expect("a queue is bounded"),
                short: self.short,
                full: self.full,
            };
            let applied = applied.header(&self.stamp());
            out.seal(self.seal(), tail, &applied, &[]);
        }
    }

    /// Sets whether the store is short of space. The node calls this after each work. During a shortage the head admits
    /// no updates (`docs/spec/protocol.md` §4). `full`: the shortage is so severe that no session may begin.
    pub fn set_room(&mut self, short: bool, full: bool) {
        if short {
            self.tell_again = SHORT_TOLD_AGAIN;
        } else {
            self.tell_again = self.tell_again.saturating_sub(1);
        }
        self.tell_applied |= (short, full) != (self.short, self.full) || self.tell_again > 0;
        (self.short, self.full) = (short, full);
    }

    /// Returns the next work for the store, if there is one. The work is under way until one of [`Server::loaded`],
    /// [`Server::applied`], [`Server::executed`], [`Server::failed`].
    ///
    /// # Errors
    /// [`Stop`] if the log contradicts the session table.
    pub fn next_work(&mut self, now: Time) -> Result<Option<Work>, Stop> {
        if !matches!(self.in_flight, InFlight::Nothing) {
            return Ok(None);
        }
        let asked = self.doubts.wait()
            && self.entries.queue.is_empty()
            && self.recovers.next_chain.is_none();
        if !self.loaded || asked {
            self.loaded = false;
            self.doubts.look();
            self.in_flight = InFlight::Load;
            return Ok(Some(Work::Load));
        }
        if self.entries.queue.is_empty()
            && let Some(chain) = self.recovers.next_chain.clone()
        {
            let effects = Effects {
                records: records::chain(&chain),
                ..Effects::default()
            };
            self.doubts.look();
            self.in_flight = InFlight::Chain(chain);
            return Ok(Some(Work::Apply(effects)));
        }
        if let Some(work) = self.shorten_records() {
            return Ok(Some(work));
        }
        // The order is: entries, then the chain record, then executions. The chain record comes before executions
        // because a device that waits for its registration serves no client, and an execution may take as long as the
        // adaptor's timeout.
        let executes = self.recovers.next_chain.is_none()
            && (self.entries.queue.is_empty() || !self.turns.executed_last);
        if executes && let Some(work) = self.next_execution(now) {
            self.turns.executed_last = true;
            return Ok(Some(work));
        }
        self.turns.executed_last = false;
        self.next_batch()
    }

    /// The store could not do the work, or the outcome of the work is unknown. The records are loaded again before any
    /// other work.
    pub fn failed(&mut self) {
        if let InFlight::Execute(executing) =
            std::mem::replace(&mut self.in_flight, InFlight::Nothing)
        {
            self.unanswered(&executing);
        }
        self.doubts.failed();
        self.loaded = false;
    }
}
