//! The machine's side of a fast path, which admits updates outside of the machine by the same rules and into the same
//! log: the pipeline in the kernel (`docs/spec/pipeline.md`).
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
    /// Keys of the session, if the shard has keys. If a session lacks keys that it needs, the fast path leaves it to
    /// the machine.
    pub keys: Option<SessionKeys>,
    /// Row of the session's front, below 64: position of a bit of [`ChainState::over`].
    pub share: u8,
}

/// State that a fast path needs to take part in a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainState {
    /// Position of this device; 0 is the head.
    pub position: usize,
    /// The devices that follow this device, nearest first, and the orders that they are known to hold.
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
    /// Entries in flight towards the next hop, at most.
    pub window: u64,
    /// Entries that this device can take in at once.
    pub receive_window: u64,
    /// Size of the shard's fragments.
    pub size: FragmentSize,
    /// Keys with the neighbour hops, if the shard has keys.
    pub keys: Option<HopKeys>,
    /// Fingerprint of the shard's keys ([`ClusterKeys::print`](crate::keys::ClusterKeys::print)).
    pub print: Option<NonZeroU64>,
    /// One bit for each row of a front that is over its share of the log: its updates are not admitted now.
    pub over: u64,
}

/// A fast path's work with the neighbour hops. All numbers except the credit only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HopWork {
    /// Orders that the following devices hold, nearest first.
    pub orders: [u64; CHAIN_MAX - 1],
    /// Entries that the next hop can take.
    pub credit: u64,
    /// Highest order that was sent to the next hop, by the fast path or, as far as it was told, by the machine.
    pub sent: u64,
    /// Highest order that the fast path knows to be committed.
    pub committed: u64,
    /// The fast path itself has acknowledged all committed orders above this order. For this order and lower orders,
    /// the acknowledgement is not certain.
    pub skipped: u64,
    /// This device's order in the last DURABLE that the fast path sent to the hop before.
    pub told: u64,
}

/// Notes the state that the fast path was told, and changes that it must still be told.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Sessions whose changes the fast path must be told.
    changed: Vec<u64>,
    /// Incarnations of the following devices, as the fast path was told.
    told_behind: Vec<u32>,
    /// The fast path must be told the chain again.
    untold: bool,
    /// [`ChainState::over`] as the fast path was told.
    told_over: u64,
}

impl Device {
    /// Whether the device has a fast path.
    pub(super) const fn has_fast_path(&self) -> bool {
        self.fast_path.is_some()
    }

    /// Notes that the fast path must be told the chain again.
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
                    // Only this machine can recognise a late copy of the update that falls back (docs/spec/reads.md
                    // §4).
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

    /// Whether a fast path may append now: this device is in service and, as a head, is not being replaced. While the
    /// store is short of space, it may not: the fast path cannot set the flags that every DURABLE and every answer must
    /// then have.
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

    /// Whether a fast path that has done this work must be told the chain again. It must be told in these cases: orders
    /// are committed or held that the fast path does not know; the next hop's credit has changed; a neighbour device
    /// has restarted or has another address; or the machine has sent the entries that the fast path left to it, so that
    /// the fast path can continue.
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

    /// Whether the set of fronts over their share differs from the set that the fast path was told. The fast path must
    /// be held while it is told the new set, so that it admits no update that this machine refuses.
    #[must_use]
    pub fn shares_untold(&self) -> bool {
        let over = self.table.shares.over();
        let ledger = self.fast_path.as_ref();
        ledger.is_some_and(|ledger| ledger.told_over != over)
    }

    /// Whether this packet may be admitted or move a session. If so, the fast path must be held before the packet is
    /// handled. If the fast path knows that the front is over its share, an update of the front is only refused, so no
    /// hold is needed.
    #[must_use]
    pub fn may_admit(&self, header: &Header) -> bool {
        match header.kind {
            Kind::Update if !self.shares_untold() => {
                let session = self.table.sessions.get(&header.session);
                !session.is_some_and(|session| self.table.shares.is_over(session.share))
            }
            Kind::Open | Kind::Update | Kind::End | Kind::Append | Kind::RecoverReply => true,
            // From a packet with this flag on, only this machine may admit an update that falls back.
            Kind::Response | Kind::Bypass => header.flags.has(Flags::FALLBACK),
            _ => false,
        }
    }

    /// Whether this packet may close buckets of the index of a head that answers READs; then the fast path must stop to
    /// answer READs first.
    #[must_use]
    pub fn may_close(&self, header: &Header) -> bool {
        self.reads.answers() && header.kind == Kind::Bypass && !Bypass::read(header).read_only
    }

    /// Whether the fast path must be told changes with [`Device::tell_reads`]. This call does not require that the fast
    /// path is held.
    #[must_use]
    pub fn reads_untold(&self) -> bool {
        self.reads.is_untold()
    }

    /// Returns the state that a fast path needs to answer READs. Calls `tell` for each bucket that changed since the
    /// last call, except by an update of the fast path.
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

    /// Notes the sessions of which the fast path has received packets since the last call. Must be called before idle
    /// sessions are looked for. Sessions with admitted packets are noted already; this function adds the sessions with
    /// repeated packets.
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

    /// Takes in an entry that the fast path admitted. `frame`: its frame in the log.
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
    /// acknowledged them to the clients (rule 5).
    pub fn followed_alone(&mut self, order: u64) {
        assert!(
            self.chain.members.len() == 1,
            "one device acknowledges for one device"
        );
        let told = self.phase.serving().touched.len();
        self.persisted(order);
        self.untouch(told);
    }

    /// The followed entries are durable up to `order`. `before` and `work` are the fast path's work with the neighbour
    /// hops at the last call and now.
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
        // A DURABLE that the fast path has sent is not sent again.
        self.owed.tell_durable = tells || work.told < self.cursors.persisted;
        let told = self.phase.serving().touched.len();
        let known = self.cursors.committed;
        let committable = self.committable();
        if work.skipped > known {
            self.tell_chain();
            self.commit_upto(committable);
            return;
        }
        // The fast path has acknowledged each of these orders when it received the packet that confirmed it.
        let acknowledged = committable.min(work.committed);
        self.commit_quietly(acknowledged);
        self.untouch(told);
        self.commit_upto(committable);
    }

    /// Removes the sessions touched after the first `told`: their clients are acknowledged already.
    fn untouch(&mut self, told: usize) {
        for id in self.phase.serving().touched.split_off(told) {
            if let Some(session) = self.table.sessions.get_mut(&id) {
                session.touched = false;
            }
        }
    }
}
