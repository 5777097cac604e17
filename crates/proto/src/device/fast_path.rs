//! What the machine does for a fast path that admits updates beside it, by the same rules and into
//! the same log: the pipeline in the kernel (`docs/spec/pipeline.md`).
//!
//! Whatever the fast path admitted is folded here before the machine looks at a packet, so the
//! machine never decides on an old state. Admission itself is never shared: while the machine
//! admits, the fast path is held.

use super::reads::{Bucket, ReadState};
use super::{Device, Phase};
use crate::Peer;
use crate::keys::HopKeys;
use crate::time::Time;
use core::num::NonZeroU64;
use pmnet_wire::packet::{Append, Bypass, EntryKind, Identity};
use pmnet_wire::record::{CHAIN_MAX, DurableRow};
use pmnet_wire::{Flags, FragmentSize, Header, Kind, Packet, SessionKeys};

/// What a fast path must know to admit updates of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionState {
    /// The session.
    pub id: u64,
    /// Its token.
    pub token: u64,
    /// Last admitted seq.
    pub last: u64,
    /// Last committed seq.
    pub committed: u64,
    /// It may be admitted up to this seq: ended sessions and quotas.
    pub until: u64,
    /// Last applied seq.
    pub applied: u64,
    /// Where its client was last heard from.
    pub address: Option<Peer>,
    /// Its keys, if the shard has keys. A session that should have some and has none is served by the machine alone.
    pub keys: Option<SessionKeys>,
    /// Row of its front: a bit of [`ChainState::over`]. Below 64.
    pub share: u8,
}

/// What a fast path must know to take part in a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainState {
    /// Place of this device; 0 is the head.
    pub position: usize,
    /// The devices behind it, nearest first, and what they are known to hold.
    pub behind: Vec<DurableRow>,
    /// The device before it, once it has been heard of.
    pub before: Option<Peer>,
    /// The next hop: a device, or, for the last one, the server.
    pub next: Peer,
    /// Highest committed order.
    pub committed: u64,
    /// Highest order that was sent to the next hop.
    pub sent: u64,
    /// Entries that the next hop can take.
    pub credit: u64,
    /// Entries in flight towards the next hop, at most.
    pub window: u64,
    /// Entries that this device can take in at once.
    pub receive_window: u64,
    /// Size of the shard's fragments.
    pub size: FragmentSize,
    /// Keys with the hops beside it, if the shard has keys.
    pub keys: Option<HopKeys>,
    /// Which keys the shard has ([`ClusterKeys::print`](crate::keys::ClusterKeys::print)).
    pub print: Option<NonZeroU64>,
    /// Rows of fronts of which no update is admitted now, because they are over their share of the log: a bit for each.
    pub over: u64,
}

/// What a fast path has done with the hops beside it. All numbers except the credit only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HopWork {
    /// What each device behind this one holds, nearest first.
    pub orders: [u64; CHAIN_MAX - 1],
    /// Entries that the next hop can take.
    pub credit: u64,
    /// Highest order that was sent to the next hop, by the fast path or, as it was told, the machine.
    pub sent: u64,
    /// Highest order that it knows to be committed.
    pub committed: u64,
    /// It has acknowledged every committed order above this one itself; at or below, it may not have.
    pub skipped: u64,
    /// Own order in the last DURABLE that it sent to the hop before.
    pub told: u64,
}

/// What the fast path beside the machine has been told, and what it must still be told.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Sessions that it must hear about.
    changed: Vec<u64>,
    /// Incarnations of the devices behind this one, as it was told.
    told_behind: Vec<u32>,
    /// It must hear of the chain again.
    untold: bool,
    /// [`ChainState::over`] as it was told.
    told_over: u64,
}

impl Device {
    /// Whether a fast path is there to be told.
    pub(super) const fn has_fast_path(&self) -> bool {
        self.fast_path.is_some()
    }

    /// The fast path, if there is one, must hear of the chain again.
    pub(super) const fn tell_chain(&mut self) {
        if let Some(ledger) = &mut self.fast_path {
            ledger.untold = true;
        }
    }

    /// From now on [`Device::changed_sessions`] says which sessions changed.
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

    /// After a recovery the fast path must be told every session again.
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

    /// The sessions that changed since the last call, with their state; `None`: it is over.
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
                    // A late copy of it is to be told apart (docs/spec/reads.md §4), and only this machine can.
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

    /// Whether a fast path may append now: this device is in service, and as a head not being replaced. Not while the store is short of
    /// room: a fast path does not know the word that each DURABLE, and each answer, has to carry then.
    #[must_use]
    pub const fn admits(&self) -> bool {
        self.is_serving() && !(self.short || self.full) && !(self.is_head() && self.joining)
    }

    /// The chain as a fast path must know it.
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

    /// Whether the fast path, which has done this, must be told of the chain again. It must if something is committed
    /// or held that it does not know of; if the next hop can take more or less; if a device beside this one came back
    /// or has another address; or if what it left to the machine has been sent on, so that it can go on.
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

    /// Whether the fast path must be told who is over its share: others are than it was told. It is to be held for that, so that it admits
    /// nothing more of a front that this machine refuses.
    #[must_use]
    pub fn shares_untold(&self) -> bool {
        let over = self.table.shares.over();
        let ledger = self.fast_path.as_ref();
        ledger.is_some_and(|ledger| ledger.told_over != over)
    }

    /// Whether taking in this packet may admit something or move a session: then the fast path has
    /// to be held before. An update of a front that is over its share, and of which the fast path was told so, is only refused.
    #[must_use]
    pub fn may_admit(&self, header: &Header) -> bool {
        match header.kind {
            Kind::Update if !self.shares_untold() => {
                let session = self.table.sessions.get(&header.session);
                !session.is_some_and(|session| self.table.shares.is_over(session.share))
            }
            Kind::Open | Kind::Update | Kind::End | Kind::Append | Kind::RecoverReply => true,
            // An update that falls back is admitted by nobody but this machine from now on, or from then on.
            Kind::Response | Kind::Bypass => header.flags.has(Flags::FALLBACK),
            _ => false,
        }
    }

    /// Whether taking in this packet may close buckets of the index of a head that answers READs: then the fast path
    /// has to stop answering them before.
    #[must_use]
    pub fn may_close(&self, header: &Header) -> bool {
        self.reads.answers() && header.kind == Kind::Bypass && !Bypass::read(header).read_only
    }

    /// Whether the fast path must be told something with [`Device::tell_reads`], though it is not held.
    #[must_use]
    pub fn reads_untold(&self) -> bool {
        self.reads.is_untold()
    }

    /// What a fast path must know to answer READs: the return value, and each bucket that something other than an update
    /// of the fast path has changed since the last call.
    pub fn tell_reads(&mut self, mut tell: impl FnMut(usize, Bucket)) -> ReadState {
        self.reads.tell(&mut tell)
    }

    /// How many entries [`Device::poll_own_entry`] may have to append: at most one for each session.
    #[must_use]
    pub fn own_entries(&self) -> usize {
        if self.is_head() {
            self.leaving.len()
        } else {
            0
        }
    }

    /// To be called before idle sessions are looked for: the fast path says which sessions it has heard from
    /// since it was last asked. What it admitted is known already; these only repeated earlier packets.
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

    /// Takes in an entry that the fast path admitted: its frame, as it stands in the log.
    ///
    /// # Errors
    /// A text that says why the frame cannot be the next of this log.
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

    /// What was followed is durable up to `order`. The whole chain is this device, and the fast path has
    /// told the clients itself (rule 5).
    pub fn followed_alone(&mut self, order: u64) {
        assert!(
            self.chain.members.len() == 1,
            "one device acknowledges for one device"
        );
        let told = self.phase.serving().touched.len();
        self.persisted(order);
        self.untouch(told);
    }

    /// What was followed is durable up to `order`. The fast path's work with the hops beside it was
    /// `before` and is now `work`.
    pub fn followed(&mut self, now: Time, order: u64, before: &HopWork, work: &HopWork) {
        let tells = self.owed.tell_durable;
        self.persisted(order);
        self.link.followed(now, before.sent, work.sent);
        let mut moved = false;
        let serving = self.phase.serving();
        let names = self.fast_path.iter().flat_map(|ledger| &ledger.told_behind);
        let told = serving.downstream.iter_mut().zip(names);
        for ((row, &incarnation), &held) in told.zip(&work.orders) {
            // A device that came back meanwhile may hold less than the fast path knows of it.
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
        // What it said to the hop before is not said again.
        self.owed.tell_durable = tells || work.told < self.cursors.persisted;
        let told = self.phase.serving().touched.len();
        let known = self.cursors.committed;
        let committable = self.committable();
        if work.skipped > known {
            self.tell_chain();
            self.commit_upto(committable);
            return;
        }
        // One by one, each acknowledged by the packet that confirmed it.
        let acknowledged = committable.min(work.committed);
        self.commit_quietly(acknowledged);
        self.untouch(told);
        self.commit_upto(committable);
    }

    /// The clients of the sessions touched after the first `told` have been acknowledged already.
    fn untouch(&mut self, told: usize) {
        for id in self.phase.serving().touched.split_off(told) {
            if let Some(session) = self.table.sessions.get_mut(&id) {
                session.touched = false;
            }
        }
    }
}
