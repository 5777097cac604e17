//! Reads that are no bypasses (docs/spec/reads.md): the head's index of its own log, its answers HIT and MISS, and
//! the read straight from the store that a MISS allows.

use crate::configuration::{BOTH, Call, Reads, Step};
use crate::history::perform;
use crate::network::Packet;
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::state::{Bucket, Device, Index, Op, Outstanding, Record, State, Table, op_of, step_of};

impl Index {
    /// What is at or below the floor is as good as unknown.
    fn forget(&mut self) {
        for bucket in &mut self.buckets {
            if bucket.order <= self.floor {
                *bucket = Bucket::default();
            }
        }
    }
}

impl Outstanding {
    fn is_none(self) -> bool {
        self.bypass == 0 && self.fallback == 0
    }
}

impl Protocol {
    /// Whether reads go by an index.
    pub(crate) fn reads(&self) -> bool {
        self.configuration.reads != Reads::Bypasses
    }

    /// Whether heads need leases: where a removed one could show what it holds, or lead to a store that is left behind.
    fn leases(&self) -> bool {
        self.configuration.reads == Reads::Hits || self.reads() && self.moves()
    }

    /// Whether a head was removed behind the first of these epochs, up to the second.
    fn removed(&self, from: u8, to: u8) -> bool {
        (from..to).any(|epoch| self.chain(epoch).head() != self.chain(epoch + 1).head())
    }

    /// Whether a lease has yet to run out.
    pub(crate) fn leased(&self, record: &Record) -> bool {
        self.leases() && !record.lease_over && self.removed(1, record.epoch)
    }

    /// Whether a removed head may still answer reads, so that a head of this epoch must wait.
    pub(crate) fn leased_elsewhere(&self, record: &Record, epoch: u8) -> bool {
        self.leased(record) && self.removed(1, epoch) && self.on(Rule::Lease)
    }

    /// The buckets of these keys.
    fn buckets(&self, keys: u8) -> impl Iterator<Item = usize> + use<> {
        let buckets = self.configuration.buckets;
        let bit = move |key: u8| usize::from(key % buckets);
        (0..2).filter(move |key| keys & (1 << key) != 0).map(bit)
    }

    pub(crate) fn keys_of(&self, op: Op) -> u8 {
        let (client, index) = step_of(op);
        self.step(client, index).keys
    }

    /// An entry falls into its bucket, and takes the place of what its session had sent to the server before it: that
    /// is executed before this entry or never.
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

    /// What the session had sent to the server before this entry is not outstanding any more: its buckets take the
    /// entry's order. Returns whether a fallback stays, of this very update.
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

    /// C has moved: what it covers need not be remembered.
    pub(crate) fn know(device: &mut Device) {
        if device.index.began <= device.committed {
            device.index.began = 0;
        }
    }

    /// A is about to move up to this order: what was passed through under a mark that ends there came before that END.
    pub(crate) fn marks_end(&self, device: &mut Device, order: u8) {
        let ends = |at: &u8| device.entry(*at) != 0 && self.ends_mark(device.entry(*at));
        let last = (device.applied + 1..=order).rev().find(ends);
        if let Some(end) = last.filter(|_| self.reads() && self.on(Rule::MarkEndFloor)) {
            device.index.floor = device.index.floor.max(end);
            device.index.forget();
        }
    }

    /// A recover-reply begins the index anew.
    pub(crate) fn begin_index(&self, device: &mut Device, table: Table) {
        device.index = Index::default();
        if !self.reads() {
            return;
        }
        if self.on(Rule::RecoveredLast) && device.last > device.committed {
            device.index.began = device.last;
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

    /// Something that may change state passes the head.
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

    /// The answer to this bypass or fallback passes: nothing of its session up to it is outstanding any more, and what
    /// the log has of those keys up to this watermark may be older than what it did.
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
        if at + 1 >= *newest || !self.on(Rule::OutstandingById) {
            *newest = 0;
        }
        if row.is_none() {
            row.keys = 0;
        }
        if self.on(Rule::Shown) {
            for bucket in self.buckets(keys) {
                if index.buckets[bucket].order <= watermark {
                    index.buckets[bucket].op = 0;
                }
            }
        }
    }

    /// HIT, MISS, or both: where a HIT is allowed, so is a MISS.
    pub(crate) fn on_read(&self, state: &mut State, id: u8, client: u8, index: u8) -> bool {
        let step = self.step(client, index);
        let device = &state.devices[usize::from(id)];
        if self.leased_elsewhere(&state.record, device.epoch) && self.on(Rule::LeaseCoversReads) {
            return false;
        }
        let removed = self.removed(device.epoch, state.record.epoch);
        let silent = removed && self.leases() && state.record.lease_over && self.on(Rule::Lease);
        let hit = self.hit(device, step.keys).filter(|_| !silent);
        let (epoch, need) = (device.epoch, self.need(device, step.keys));
        if let Some(op) = hit {
            let answer = 1 + op;
            state.network.send(Packet::Hit {
                client,
                index,
                answer,
            });
        }
        // A MISS of an earlier epoch is harmless where no store of that epoch answers any more.
        if !(silent && self.moves() && self.on(Rule::LeaseCoversMisses)) {
            state.network.send_least(Packet::Miss {
                client,
                index,
                epoch,
                need,
            });
        }
        true
    }

    /// The update that may be shown to whoever reads this key.
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

    /// What A must have reached for a read of these keys.
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

    /// The masters that a front may still have a connection to.
    pub(crate) fn stores(&self, state: &State) -> impl Iterator<Item = u8> + use<> {
        let now = self.primary(state.record.epoch);
        let marks = self.plan.iter().flatten().any(|step| step.call.is_mark());
        let fenced = self.moves() && marks && self.on(Rule::OldMasterFenced);
        (0..=now).filter(move |store| *store == now || !fenced)
    }

    /// The transaction: epoch, A, and the read, at a store.
    pub(crate) fn fetch(&self, state: &mut State, packet: Packet, store: u8) -> bool {
        let Packet::Miss {
            client,
            index,
            epoch,
            need,
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
}
