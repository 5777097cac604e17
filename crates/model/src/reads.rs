//! Reads that are no bypasses (docs/spec/reads.md): the head's index of its log, its answers HIT and MISS, and the
//! direct read from the store that a MISS allows.

use crate::configuration::{BOTH, Call, Reads, Step};
use crate::history::perform;
use crate::network::Packet;
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::state::{
    Ahead, Bucket, Device, Index, Op, Outstanding, Record, State, Table, op_of, step_of,
};

impl Index {
    /// Forgets the buckets whose order is at or below the floor, because the floor covers their orders.
    fn forget(&mut self) {
        for bucket in &mut self.buckets {
            if bucket.order <= self.floor {
                *bucket = Bucket::default();
            }
        }
    }
}

impl Outstanding {
    pub(crate) fn is_none(self) -> bool {
        self.bypass == 0 && self.fallback == 0
    }
}

impl Protocol {
    /// Whether heads have an index and answer reads.
    pub(crate) fn reads(&self) -> bool {
        self.configuration.reads != Reads::Bypasses
    }

    /// Whether a new head waits for the end of the removed head's lease. It must wait if a removed head could answer
    /// HIT, or could send a client to a store that the server has left.
    fn leases(&self) -> bool {
        let shows = self.configuration.reads == Reads::Hits || self.reads() && self.moves();
        shows && !self.configuration.leased
    }

    /// Whether a head was removed after epoch `from`, up to epoch `to`.
    fn removed(&self, from: u8, to: u8) -> bool {
        (from..to).any(|epoch| self.chain(epoch).head() != self.chain(epoch + 1).head())
    }

    /// Whether a lease of a removed head is not over yet.
    pub(crate) fn leased(&self, record: &Record) -> bool {
        self.leases() && !record.lease_over && self.removed(1, record.epoch)
    }

    /// Whether a removed head may still answer reads, so that a head of this epoch must wait.
    pub(crate) fn leased_elsewhere(&self, record: &Record, epoch: u8) -> bool {
        self.leased(record) && self.removed(1, epoch) && self.on(Rule::Lease)
    }

    /// Returns the buckets of these keys.
    pub(crate) fn buckets(&self, keys: u8) -> impl Iterator<Item = usize> + use<> {
        let buckets = self.configuration.buckets;
        let bit = move |key: u8| usize::from(key % buckets);
        (0..2).filter(move |key| keys & (1 << key) != 0).map(bit)
    }

    pub(crate) fn keys_of(&self, op: Op) -> u8 {
        let (client, index) = step_of(op);
        self.step(client, index).keys
    }

    /// Puts an entry into its bucket. All requests that its session has sent to the server before are executed before
    /// this entry, or never. So they are no longer outstanding.
    pub(crate) fn index(&self, device: &mut Device, order: u8, entry: Op) {
        if !self.reads() {
            return;
        }
        let (client, at) = step_of(entry);
        let step = self.step(client, at);
        let beside = self.overtakes(device, order, client, step);
        let index = &mut device.index;
        if step.keys == BOTH {
            if self.on(Rule::FloorUnknown) {
                index.floor = order;
            }
        } else if let Some(bucket) = self.buckets(step.keys).next() {
            let shown = self.configuration.reads == Reads::Hits && !beside;
            let op = if shown { entry } else { 0 };
            index.buckets[bucket] = Bucket { order, op };
        }
        index.forget();
    }

    /// Ends the session's earlier requests to the server: they are no longer outstanding, and their buckets take the
    /// entry's order. Returns whether a fallback of the entry's own update is still outstanding.
    fn overtakes(&self, device: &mut Device, order: u8, client: u8, entry: Step) -> bool {
        if entry.call.is_mark() {
            return false;
        }
        let index = &mut device.index;
        let raises = match entry.call {
            Call::End | Call::Expire => self.on(Rule::EndRaises),
            _ => self.on(Rule::UpdateRaises),
        };
        let row = &mut index.outstanding[usize::from(client)];
        let before = |fallback: u8| self.step(client, fallback - 1).seq < entry.seq;
        let (bypass, fallback) = (row.bypass != 0, row.fallback != 0 && before(row.fallback));
        row.bypass = 0;
        row.fallback = if fallback { 0 } else { row.fallback };
        let (keys, beside) = (row.keys, !row.is_none() && self.on(Rule::HitBeside));
        if row.is_none() {
            row.keys = 0;
        }
        if bypass || fallback {
            index.changed = true;
        }
        if !raises || !(bypass || fallback) {
            return beside;
        }
        if keys == BOTH {
            index.floor = order;
        } else {
            for bucket in self.buckets(keys) {
                index.buckets[bucket] = Bucket { order, op: 0 };
            }
        }
        beside
    }

    /// If a head's version changes in this step, notes that replies which stores have already given can no longer be
    /// used.
    pub(crate) fn note_versions(state: &mut State) {
        for device in &mut state.devices {
            if std::mem::take(&mut device.index.changed) {
                for client in &mut state.clients {
                    client.ahead.changed |= client.ahead.epoch == device.epoch;
                }
            }
        }
    }

    /// Takes note of a new committed order. Once `began` is committed, it is forgotten.
    pub(crate) fn know(device: &mut Device) {
        if device.index.began <= device.committed {
            device.index.began = 0;
        }
    }

    /// Ends marks before A rises to this order. Operations under a mark whose END has an order up to this one were
    /// executed before the END.
    pub(crate) fn marks_end(&self, device: &mut Device, order: u8) {
        let ends = |at: &u8| device.entry(*at) != 0 && self.ends_mark(device.entry(*at));
        let last = (device.applied + 1..=order).rev().find(ends);
        let Some(end) = last.filter(|_| self.reads()) else {
            return;
        };
        device.index.changed = true;
        if self.on(Rule::MarkEndFloor) {
            device.index.floor = device.index.floor.max(end);
            device.index.forget();
        }
    }

    /// Creates a new index when the head begins to serve with a recover-reply.
    pub(crate) fn begin_index(&self, device: &mut Device, table: Table) {
        device.index = Index {
            changed: true,
            ..Index::default()
        };
        if !self.reads() {
            return;
        }
        if self.on(Rule::RecoveredLast) && device.last > device.committed {
            device.index.began = device.last;
        }
        if self.on(Rule::ReplicaRecovered) {
            self.answered(device, BOTH);
        }
        if self.configuration.rebuilds {
            device.index.floor = device.applied;
            for order in device.applied + 1..=device.last {
                let op = device.entry(order);
                let (client, at) = step_of(op);
                let step = self.step(client, at);
                let applied = step.seq <= table[self.session(client, step)];
                if !(applied && self.on(Rule::RebuildLeavesOut)) {
                    self.index(device, order, op);
                }
            }
        } else if self.on(Rule::FloorRestart) {
            device.index.floor = device.last;
        }
    }

    /// Notes that a request that may change state passes the head, and so becomes outstanding.
    pub(crate) fn leaves(&self, device: &mut Device, op: Op) {
        let (client, index) = step_of(op);
        let step = self.step(client, index);
        if !self.reads() || step.keys == 0 {
            return;
        }
        let row = &mut device.index.outstanding[usize::from(client)];
        let newest = if step.logged {
            &mut row.fallback
        } else {
            &mut row.bypass
        };
        let newer = index + 1 >= *newest;
        *newest = (*newest).max(index + 1);
        if self.on(Rule::OutstandingMerged) {
            row.keys |= step.keys;
        } else if newer {
            row.keys = step.keys;
        }
    }

    /// Notes that the answer to this bypass or fallback passes the head. The session's requests up to this request are
    /// no longer outstanding. Log entries of their keys up to `watermark` may be older than their effects, so they are
    /// no longer shown.
    pub(crate) fn settles(&self, device: &mut Device, op: Op, watermark: u8) {
        if !self.reads() {
            return;
        }
        let (client, at) = step_of(op);
        let step = self.step(client, at);
        let index = &mut device.index;
        let row = &mut index.outstanding[usize::from(client)];
        let keys = row.keys;
        let newest = if step.logged {
            &mut row.fallback
        } else {
            &mut row.bypass
        };
        let leaves = *newest != 0 && (at + 1 >= *newest || !self.on(Rule::OutstandingById));
        if leaves {
            *newest = 0;
        }
        if row.is_none() {
            row.keys = 0;
        }
        if leaves {
            index.changed = true;
            self.answered(device, keys);
        }
        let index = &mut device.index;
        if self.on(Rule::Shown) {
            for bucket in self.buckets(keys) {
                if index.buckets[bucket].order <= watermark {
                    index.buckets[bucket].op = 0;
                }
            }
        }
    }

    /// Sends HIT or MISS, or both as alternatives, because the head may also answer MISS where a HIT is allowed.
    pub(crate) fn on_read(&self, state: &mut State, id: u8, client: u8, index: u8) -> bool {
        let step = self.step(client, index);
        let device = &state.devices[usize::from(id)];
        let waits =
            self.leased_elsewhere(&state.record, device.epoch) && self.on(Rule::LeaseCoversReads);
        let device = &state.devices[usize::from(id)];
        let silenced = self.is_silent(device);
        let apart = self.apart(device, client, index);
        let apart = apart.filter(|_| !waits && (!silenced || !self.on(Rule::ReplicaLease)));
        if let Some(apart) = apart {
            state.network.send_least(apart);
        }
        if waits || silenced {
            return apart.is_some();
        }
        let device = &state.devices[usize::from(id)];
        let removed = self.removed(device.epoch, state.record.epoch);
        let silent = removed && self.leases() && state.record.lease_over && self.on(Rule::Lease);
        let hit = self.hit(device, step.keys).filter(|_| !silent);
        let (epoch, need) = (device.epoch, self.need(device, step.keys));
        let ahead = state.clients[usize::from(client)].ahead;
        let same = ahead.epoch > 0 && !ahead.changed;
        if let Some(op) = hit {
            let answer = 1 + op;
            state.network.send(Packet::Hit {
                client,
                index,
                answer,
            });
        }
        // A removed head may answer MISS if no store of its epoch still answers.
        if !(silent && self.moves() && self.on(Rule::LeaseCoversMisses)) {
            state.network.send_least(Packet::Miss {
                client,
                index,
                epoch,
                same,
                need,
            });
        }
        true
    }

    /// Returns the update that may answer a read of this key.
    fn hit(&self, device: &Device, keys: u8) -> Option<Op> {
        let at = self.buckets(keys).next()?;
        let Bucket { order, op } = device.index.buckets[at];
        let committed = order <= device.committed || !self.on(Rule::HitCommitted);
        let closes = |row: &Outstanding| self.buckets(row.keys).any(|bucket| bucket == at);
        let rows = &device.index.outstanding;
        let closed = rows.iter().any(closes) && self.on(Rule::Closed)
            || self.has_mark(device) && self.on(Rule::MarkCloses);
        (op != 0 && self.keys_of(op) == keys && committed && !closed).then_some(op)
    }

    /// Returns the order that the store must have applied for a read of these keys.
    fn need(&self, device: &Device, keys: u8) -> u8 {
        let index = &device.index;
        let known = device.committed.max(index.began);
        let several = index.outstanding.iter().any(|row| row.keys == BOTH);
        if several && self.on(Rule::SeveralKeys) || self.has_mark(device) && self.on(Rule::MarkNeed)
        {
            return known.max(index.floor);
        }
        let of = |at: usize| {
            let Bucket { order, op } = index.buckets[at];
            let collides = op != 0 && self.keys_of(op) & keys == 0;
            if collides && !self.on(Rule::NeedOnCollision) {
                0
            } else {
                order.min(known)
            }
        };
        let orders = self.buckets(keys).map(of);
        orders.fold(index.floor, u8::max)
    }

    /// Returns the stores, present and former masters, to which a front may still have a connection.
    pub(crate) fn stores(&self, state: &State) -> impl Iterator<Item = u8> + use<> {
        let now = self.primary(state.record.epoch);
        let marks = self.plan.iter().flatten().any(|step| step.call.is_mark());
        let fenced = self.moves() && marks && self.on(Rule::OldMasterFenced);
        (0..=now).filter(move |store| *store == now || !fenced)
    }

    /// The client reads epoch, A and values from a store, in one transaction, after the head's MISS.
    pub(crate) fn fetch(&self, state: &mut State, packet: Packet, store: u8) -> bool {
        let Packet::Miss {
            client,
            index,
            epoch,
            need,
            ..
        } = packet
        else {
            return false;
        };
        let of = &state.servers[usize::from(store)];
        let fresh = (of.epoch == epoch || !self.on(Rule::ReadEpoch))
            && (of.store.applied >= need || !self.on(Rule::ReadWatermark))
            && (self.replicated(state, store) || !self.on(Rule::ReadDurable));
        if !fresh {
            return false;
        }
        let mut values = of.store.values;
        let answer = perform(&self.step(client, index), op_of(client, index), &mut values);
        self.ends(state, client, index, answer)
    }

    /// Whether the client may ask a store before the head has answered its read.
    pub(crate) fn may_go_ahead(&self, state: &State, client: u8) -> bool {
        let asks = |index| {
            let call = self.step(client, index).call;
            matches!(call, Call::Read | Call::ReadOther | Call::ReadBoth)
        };
        let of = &state.clients[usize::from(client)];
        self.configuration.at_once
            && of.ahead == Ahead::default()
            && self.bypass_under_way(state, client).is_some_and(asks)
    }

    /// The client reads from the store before the head has answered its READ. The model assumes that the client knows
    /// the head's present version. With another version the reply would be useless, because no version occurs twice. A
    /// MISS that was sent earlier allows at least these replies ([`Self::fetch`]).
    pub(crate) fn go_ahead(&self, state: &mut State, client: u8, store: u8) -> bool {
        let Some(index) = self.bypass_under_way(state, client) else {
            return false;
        };
        let of = &state.servers[usize::from(store)];
        let head = self.chain(of.epoch).head();
        let device = &state.devices[usize::from(head)];
        let serves = self.is_head(state, head) && device.epoch == of.epoch;
        if !serves || !self.replicated(state, store) && self.on(Rule::ReadDurable) {
            return false;
        }
        let mut values = of.store.values;
        let answer = perform(&self.step(client, index), op_of(client, index), &mut values);
        state.clients[usize::from(client)].ahead = Ahead {
            epoch: of.epoch,
            applied: of.store.applied,
            changed: false,
            answer,
        };
        true
    }

    /// The head's MISS arrives after the store's answer.
    pub(crate) fn use_ahead(&self, state: &mut State, packet: Packet) -> bool {
        let Packet::Miss {
            client,
            index,
            epoch,
            same,
            need,
        } = packet
        else {
            return false;
        };
        let ahead = state.clients[usize::from(client)].ahead;
        let fresh = ahead.epoch > 0
            && (ahead.epoch == epoch || !self.on(Rule::ReadEpoch))
            && (ahead.applied >= need || !self.on(Rule::ReadWatermark))
            && (same || !self.on(Rule::Unchanged));
        fresh && self.ends(state, client, index, ahead.answer)
    }
}
