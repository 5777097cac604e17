//! The machine's part of the work with a fast path, for example the pipeline in the kernel (`docs/spec/pipeline.md`). A
//! fast path admits updates outside of the machine, by the machine's rules and into the machine's log.
//!
//! Entries that the fast path admitted are folded before the machine examines a packet, so the machine never decides on
//! an old state. Machine and fast path never admit at the same time: while the machine admits, the fast path is held.

use super::reads::{Bucket, ReadState};
use super::{Device, Phase};
use crate::Peer;
use crate::keys::HopKeys;
use crate::time::Time;
use core::num::NonZeroU64;
use pmnet_wire::packet::{Append, Bypass, EntryKind, Identity};
use pmnet_wire::record::{CHAIN_MAX, DurableRow};
use pmnet_wire::{Flags, FragmentSize, Header, Kind, Packet, SessionKeys};

/// State of a session that a fast path needs to admit updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionState {
    /// Id of the session.
    pub id: u64,
    /// Token of the session.
    pub token: u64,
    /// Last admitted seq.
    pub last: u64,
    /// Last committed seq.
    pub committed: u64,
    /// Highest seq that the fast path may admit. Ended sessions and quotas limit this seq.
    pub until: u64,
    /// Last applied seq.
    pub applied: u64,
    /// Address from which the client last sent.
    pub address: Option<Peer>,
    /// Keys of the session, if the shard has keys. If the shard has keys and the session has none, the fast path leaves
    /// the session's packets to the machine.
    pub keys: Option<SessionKeys>,
    /// Row of the session's front, below 64: position of a bit of [`ChainState::over`].
    pub share: u8,
}

/// State that a fast path needs to take part in a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainState {
    /// Position of this device; 0 is the head.
    pub position: usize,
    /// The devices that follow this device, nearest first, each with the last order that it is known to hold.
    pub behind: Vec<DurableRow>,
    /// Address of the previous device, once it is known.
    pub before: Option<Peer>,
    /// The next hop: the next device, or, for the last device, the server.
    pub next: Peer,
    /// Highest committed order.
    pub committed: u64,
    /// Highest order that was sent to the next hop.
    pub sent: u64,
    /// Entries that the next hop can take.
    pub credit: u64,
    /// Maximum number of entries in flight to the next hop.
    pub window: u64,
    /// Number of entries that this device can take at once.
    pub receive_window: u64,
    /// Size of the shard's fragments.
    pub size: FragmentSize,
    /// Keys with the neighbour hops, if the shard has keys.
    pub keys: Option<HopKeys>,
    /// Fingerprint of the shard's keys ([`ClusterKeys::print`](crate::keys::ClusterKeys::print)).
    pub print: Option<NonZeroU64>,
    /// Bit N is set if the front of row N is over its share of the log. Updates of this front are not admitted now.
    pub over: u64,
}

/// The progress of a fast path with the neighbour hops. All numbers except the credit only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HopWork {
    /// For each following device, nearest first, the last order that it holds.
    pub orders: [u64; CHAIN_MAX - 1],
    /// Number of entries that the next hop can take.
    pub credit: u64,
    /// Highest order that was sent to the next hop, by the fast path or by the machine, as far as the fast path knows.
    pub sent: u64,
    /// Highest order that the fast path knows to be committed.
    pub committed: u64,
    /// The fast path has acknowledged every committed order above this order. It may not have acknowledged this order
    /// and lower orders.
    pub skipped: u64,
    /// The durable order of this device, as the last DURABLE stated it that the fast path sent to the previous hop.
    pub told: u64,
}

/// The state that the fast path was told, and the changes that it must still be told.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Sessions whose changes the fast path must be told.
    changed: Vec<u64>,
    /// Incarnations of the following devices, as the fast path was told.
    told_behind: Vec<u32>,
    /// The fast path must be told the state of the chain again.
    untold: bool,
    /// [`ChainState::over`] as the fast path was told.
    told_over: u64,
}

impl Device {
    /// Whether the device has a fast path.
    pub(super) const fn has_fast_path(&self) -> bool {
        self.fast_path.is_some()
    }

    /// Notes that the fast path must be told the state of the chain again.
    pub(super) const fn tell_chain(&mut self) {
        if let Some(ledger) = &mut self.fast_path {
            ledger.untold = true;
        }
    }

    /// Begins to note changed sessions for [`Device::changed_sessions`].
    pub fn note_changes(&mut self) {
        self.fast_path.get_or_insert_default();
    }

    pub(super) fn note_change(&mut self, id: u64) {
        let Some(ledger) = &mut self.fast_path else {
            return;
        };
        let known = self.table.sessions.get_mut(&id);
        if known.is_none_or(|session| !std::mem::replace(&mut session.changed, true)) {
            ledger.changed.push(id);
        }
    }

    /// Notes all sessions as changed, because after a recovery the fast path must be told each of them.
    pub(super) fn note_all(&mut self) {
        if let Some(Ledger { changed, .. }) = &mut self.fast_path {
            changed.clear();
            changed.extend(self.table.sessions.keys());
            changed.sort_unstable();
            for session in self.table.sessions.values_mut() {
                session.changed = true;
            }
        }
    }

    /// Calls `tell` for each session that changed since the last call. `None`: the session has ended.
    pub fn changed_sessions(&mut self, mut tell: impl FnMut(u64, Option<SessionState>)) {
        let Some(ledger) = &mut self.fast_path else {
            return;
        };
        for id in ledger.changed.drain(..) {
            let state = self.table.sessions.get_mut(&id).map(|session| {
                session.changed = false;
                let share = self.config.session_entries_max;
                let until = match share {
                    _ if session.ended => 0,
                    // An update of the session falls back. Only this machine can recognise a late copy of this update
                    // (docs/spec/reads.md §4), so the fast path admits nothing.
                    _ if session.outstanding.falls_back() => session.last,
                    u64::MAX => u64::MAX,
                    _ => session
                        .last
                        .saturating_add(share.saturating_sub(session.unapplied)),
                };
                SessionState {
                    id,
                    token: session.token,
                    last: session.last,
                    committed: session.committed,
                    until,
                    applied: session.applied,
                    address: session.address,
                    keys: session.keys,
                    share: session.share,
                }
            });
            tell(id, state);
        }
    }

    /// Whether a fast path may append now: this device is in service and, as a head, is not being replaced. During a
    /// shortage of space in the store the fast path may not append: every DURABLE and every answer must then have flags
    /// that the fast path cannot set.
    #[must_use]
    pub const fn admits(&self) -> bool {
        self.is_serving() && !(self.short || self.full) && !(self.is_head() && self.joining)
    }

    /// Returns the state of the chain for a fast path.
    pub fn chain_state(&mut self) -> ChainState {
        let size = self.fragment_size();
        let behind = self.phase.serving().downstream.clone();
        if let Some(ledger) = &mut self.fast_path {
            ledger.untold = false;
            ledger.told_over = self.table.shares.over();
            ledger.told_behind.clear();
            let names = behind.iter().map(|row| row.incarnation);
            ledger.told_behind.extend(names);
        }
        ChainState {
            position: self.chain.position,
            behind,
            before: self.predecessor.filter(|_| self.chain.position != 0),
            next: self.config.next,
            committed: self.cursors.committed,
            sent: self.link.sent(),
            credit: self.link.credit(),
            window: self.config.link_window_max,
            receive_window: self.config.receive_window,
            size,
            keys: self.chain.keys,
            print: self.print,
            over: self.table.shares.over(),
        }
    }

    /// Whether a fast path with this progress must be told the state of the chain again. It must be told if orders are
    /// committed or held that the fast path does not know, if the next hop's credit has changed, or if a neighbour
    /// device has restarted or has another address. It must also be told when the machine has sent the entries that the
    /// fast path left to it, so that the fast path can continue.
    #[must_use]
    pub fn fast_path_lags(&self, work: &HopWork, before: Option<Peer>) -> bool {
        let (Phase::Serving(serving), Some(ledger)) = (&self.phase, &self.fast_path) else {
            return false;
        };
        let committed = self.chain.position == 0 && self.cursors.committed > work.committed;
        let mut rows = serving.downstream.iter().zip(&work.orders);
        let held = rows.any(|(row, &known)| row.order > known);
        let credit = self.link.credit() != work.credit;
        let sent = self.link.sent() == self.cursors.last && work.sent < self.cursors.last;
        let sends = self.chain.position + 1 < self.chain.members.len();
        self.chain.members.len() > 1
            && (committed
                || held
                || ledger.untold
                || (sends && (sent || credit))
                || (self.chain.position != 0 && before != self.predecessor))
    }

    /// Whether the set of fronts over their share differs from the set that the fast path was told. The node must hold
    /// the fast path while it tells the new set, so that the fast path admits no update that this machine refuses.
    #[must_use]
    pub fn shares_untold(&self) -> bool {
        let over = self.table.shares.over();
        let ledger = self.fast_path.as_ref();
        ledger.is_some_and(|ledger| ledger.told_over != over)
    }

    /// Whether the machine may admit this packet, or change a session's next seq because of it. If so, the node must
    /// hold the fast path before it handles the packet. An update of a front that is over its share is only refused, so
    /// it needs no hold if the fast path knows of the share.
    #[must_use]
    pub fn may_admit(&self, header: &Header) -> bool {
        match header.kind {
            Kind::Update if !self.shares_untold() => {
                let session = self.table.sessions.get(&header.session);
                !session.is_some_and(|session| self.table.shares.is_over(session.share))
            }
            Kind::Open | Kind::Update | Kind::End | Kind::Append | Kind::RecoverReply => true,
            // This flag means that an update falls back. From then on only this machine may admit the update.
            Kind::Response | Kind::Bypass => header.flags.has(Flags::FALLBACK),
            _ => false,
        }
    }

    /// Whether this packet may close buckets of the index, if this device is a head that answers READs. If so, the node
    /// must first stop the fast path from answering READs.
    #[must_use]
    pub fn may_close(&self, header: &Header) -> bool {
        self.reads.answers() && header.kind == Kind::Bypass && !Bypass::read(header).read_only
    }

    /// Whether the node must call [`Device::tell_reads`]. The fast path need not be held for this check.
    #[must_use]
    pub fn reads_untold(&self) -> bool {
        self.reads.is_untold()
    }

    /// Returns the state that a fast path needs to answer READs. Calls `tell` for each bucket that changed since the
    /// last call. Changes by updates of the fast path are left out.
    pub fn tell_reads(&mut self, mut tell: impl FnMut(usize, Bucket)) -> ReadState {
        self.reads.tell(&mut tell)
    }

    /// Returns the largest number of entries that [`Device::poll_own_entry`] may have to append: at most one for each
    /// session.
    #[must_use]
    pub fn own_entries(&self) -> usize {
        if self.is_head() {
            self.leaving.len()
        } else {
            0
        }
    }

    /// Notes the sessions of which the fast path has received packets since the last call. Must be called before the
    /// search for idle sessions. Packets that the fast path admitted were noted when they were followed; this function
    /// also notes repeated packets.
    pub fn refresh(&mut self, now: Time, mut heard: impl FnMut(u64) -> bool) {
        let Phase::Serving(serving) = &self.phase else {
            return;
        };
        if serving.next_expiry.is_none_or(|due| now < due) {
            return;
        }
        for (&id, session) in &mut self.table.sessions {
            if heard(id) {
                session.seen = now;
            }
        }
    }

    /// Processes an entry that the fast path admitted. `frame`: its frame in the log.
    ///
    /// # Errors
    /// A text that says why the frame cannot be the next frame of this log.
    pub fn follow(&mut self, now: Time, frame: &[u8]) -> Result<(), String> {
        let packet = Packet::parse(frame)
            .map_err(|reason| format!("a frame of the fast path does not parse: {reason}"))?;
        let header = &packet.header;
        let known = self.table.sessions.get_mut(&header.session);
        let next = known.filter(|session| session.next_seq() == header.seq);
        if let Some(session) = next {
            session.seen = now;
        } else if self.chain.position == 0 {
            return Err(format!(
                "PM1023 the fast path admitted (session {}, seq {}), which is not the next of a session",
                header.session, header.seq
            ));
        }
        if header.order != self.cursors.last + 1 || Append::read(header).entry != EntryKind::Update
        {
            return Err(format!(
                "PM1024 the fast path admitted {header} after order {}",
                self.cursors.last
            ));
        }
        self.fold(header, Identity::NOBODY);
        self.counters.admitted += 1;
        Ok(())
    }

    /// The followed entries are durable up to `order`. The chain has only this device, and the fast path has
    /// acknowledged these entries to the clients (rule 5).
    pub fn followed_alone(&mut self, order: u64) {
        assert!(
            self.chain.members.len() == 1,
            "one device acknowledges for one device"
        );
        let told = self.phase.serving().touched.len();
        self.persisted(order);
        self.untouch(told);
    }

    /// The followed entries are durable up to `order`. `before`, `work`: the fast path's progress with the neighbour
    /// hops at the last call, and now.
    pub fn followed(&mut self, now: Time, order: u64, before: &HopWork, work: &HopWork) {
        let tells = self.owed.tell_durable;
        self.persisted(order);
        self.link.followed(now, before.sent, work.sent);
        let mut moved = false;
        let serving = self.phase.serving();
        let names = self.fast_path.iter().flat_map(|ledger| &ledger.told_behind);
        let told = serving.downstream.iter_mut().zip(names);
        for ((row, &incarnation), &held) in told.zip(&work.orders) {
            // A device that has restarted meanwhile may hold less than the fast path knows.
            if row.incarnation == incarnation && held > row.order {
                row.order = held;
                moved = true;
            }
        }
        if let Some(next) = serving.downstream.first()
            && (moved || work.credit != before.credit)
        {
            self.link.confirm(now, next.order, work.credit);
            self.link.heard(now);
        }
        // If the fast path has already sent the DURABLE, the machine does not send it again.
        self.owed.tell_durable = tells || work.told < self.cursors.persisted;
        let told = self.phase.serving().touched.len();
        let known = self.cursors.committed;
        let committable = self.committable();
        if work.skipped > known {
            self.tell_chain();
            self.commit_upto(committable);
            return;
        }
        // The fast path acknowledged each of these orders when the packet that commits the order arrived.
        let acknowledged = committable.min(work.committed);
        self.commit_quietly(acknowledged);
        self.untouch(told);
        self.commit_upto(committable);
    }

    /// Removes the touched sessions after the first `told` sessions: the fast path has already acknowledged their
    /// updates.
    fn untouch(&mut self, told: usize) {
        for id in self.phase.serving().touched.split_off(told) {
            if let Some(session) = self.table.sessions.get_mut(&id) {
                session.touched = false;
            }
        }
    }
}
