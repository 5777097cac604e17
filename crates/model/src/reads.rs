//! Reads without a bypass (docs/spec/reads.md): the head's index of its own log, its answers HIT and MISS, and the
//! read directly from the store that a MISS allows.

use crate::configuration::{BOTH, Call, Reads, Step};
use crate::history::perform;
use crate::network::Packet;
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::state::{Bucket, Device, Index, Op, Record, State, op_of, step_of};

impl Index {
    /// The ops that are outstanding.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = Op> + use<> {
        let set = self.outstanding;
        (1..=8).filter(move |op| set & (1 << (op - 1)) != 0)
    }

    /// C has reached this order: if the last order at the recover-reply is not above it, it no longer matters.
    pub(crate) fn know(&mut self, committed: u8) {
        if self.began <= committed {
            self.began = 0;
        }
    }

    /// Entries at or below the floor are ignored.
    fn forget(&mut self) {
        for bucket in &mut self.buckets {
            if bucket.order <= self.floor {
                *bucket = Bucket::default();
            }
        }
    }
}

impl Protocol {
    /// Whether reads go by an index.
    pub(crate) fn reads(&self) -> bool {
        self.configuration.reads != Reads::Bypasses
    }

    /// Whether heads need leases: if a removed head could show what it holds, or lead to an abandoned store.
    fn leases(&self) -> bool {
        self.configuration.reads == Reads::Hits || self.reads() && self.moves()
    }

    /// Whether a head was removed after the first of these epochs, up to the second.
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

    /// An entry falls into its bucket, and replaces what its session had sent to the server before it: that is
    /// executed before this entry or never.
    pub(crate) fn index(&self, device: &mut Device, order: u8, entry: Op) {
        if !self.reads() {
            return;
        }
        let (client, at) = step_of(entry);
        let step = self.step(client, at);
        let ends = matches!(step.call, Call::End | Call::Expire);
        let beside = self.overtakes(device, order, client, step);
        let index = &mut device.index;
        if step.keys == BOTH {
            if self.on(Rule::FloorUnknown) {
                index.floor = order;
            }
        } else if !ends && let Some(bucket) = self.buckets(step.keys).next() {
            let shown = self.configuration.reads == Reads::Hits && !beside;
            let op = if shown { entry } else { 0 };
            index.buckets[bucket] = Bucket { order, op };
        }
        index.forget();
    }

    /// What the session had sent to the server before this entry is not outstanding any more: its buckets take the
    /// entry's order. A mark stays. Returns whether a fallback stays, of this very update.
    fn overtakes(&self, device: &mut Device, order: u8, client: u8, entry: Step) -> bool {
        let index = &mut device.index;
        let raises = match entry.call {
            Call::End | Call::Expire => self.on(Rule::EndRaises),
            _ => self.on(Rule::UpdateRaises),
        };
        let mut beside = false;
        for other in index.outstanding() {
            let (of, at) = step_of(other);
            let step = self.step(of, at);
            let mark = step.call.is_marked() && self.on(Rule::MarkOutlivesEnd);
            if of != client || mark {
                continue;
            }
            if step.seq >= entry.seq {
                beside = self.on(Rule::HitBeside);
                continue;
            }
            index.outstanding &= !(1 << (other - 1));
            if raises && step.keys == BOTH {
                index.floor = order;
            } else if raises {
                for bucket in self.buckets(step.keys) {
                    index.buckets[bucket] = Bucket { order, op: 0 };
                }
            }
        }
        beside
    }

    /// A recover-reply begins a new index.
    pub(crate) fn begin_index(&self, device: &mut Device, table: [u8; 2], marks: u8) {
        device.index = Index::default();
        if !self.reads() {
            return;
        }
        for client in 0..2 {
            if marks & (1 << client) != 0 {
                device.index.outstanding |= self.mark_of(client);
            }
        }
        if self.on(Rule::RecoveredLast) && device.last > device.committed {
            device.index.began = device.last;
        }
        if self.configuration.rebuilds {
            device.index.floor = device.applied;
            for order in device.applied + 1..=device.last {
                let op = device.entry(order);
                let (client, at) = step_of(op);
                let applied = self.step(client, at).seq <= table[self.session(client)];
                if !(applied && self.on(Rule::RebuildLeavesOut)) {
                    self.index(device, order, op);
                }
            }
        } else if self.on(Rule::FloorRestart) {
            device.index.floor = device.last;
        }
    }

    /// A request that may change state passes the head.
    pub(crate) fn leaves(&self, device: &mut Device, op: Op) {
        if self.reads() && self.keys_of(op) != 0 {
            device.index.outstanding |= 1 << (op - 1);
        }
    }

    /// Nothing of these is outstanding any more; what the index knew up to this order may be older than their effect.
    pub(crate) fn settles(&self, device: &mut Device, gone: &[Op], order: Option<u8>) {
        for op in gone {
            device.index.outstanding &= !(1 << (op - 1));
            for bucket in self.buckets(self.keys_of(*op)) {
                let bucket = &mut device.index.buckets[bucket];
                if order.is_some_and(|order| bucket.order <= order) {
                    bucket.op = 0;
                }
            }
        }
    }

    /// What is no longer outstanding after a reply to this op of the session: a mark only after its second mark.
    pub(crate) fn ended_by(&self, device: &Device, by: Op) -> Vec<Op> {
        let (client, at) = step_of(by);
        let second = self.step(client, at).call == Call::Unmark || !self.on(Rule::SecondMarkOnly);
        let over = |op: &Op| {
            let (of, index) = step_of(*op);
            let mark = self.step(of, index).call.is_marked();
            of == client && (*op <= by || !self.on(Rule::OutstandingById)) && (second || !mark)
        };
        device.index.outstanding().filter(over).collect()
    }

    /// HIT, MISS, or both: where a HIT is allowed, so is a MISS.
    pub(crate) fn on_read(&self, state: &mut State, id: u8, client: u8, index: u8) -> bool {
        let (step, session) = (self.step(client, index), self.session(client));
        let device = &state.devices[usize::from(id)];
        let own = if self.on(Rule::ReadOwnCommitted) {
            device.answered[usize::from(client)]
        } else {
            device.table[session]
        };
        if self.on(Rule::ReadOwnFirst) && own < step.seq {
            return false;
        }
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
        let closes = |op: Op| self.buckets(self.keys_of(op)).any(|bucket| bucket == at);
        let closed = device.index.outstanding().any(closes) && self.on(Rule::Closed);
        (op != 0 && self.keys_of(op) == keys && committed && !closed).then_some(op)
    }

    /// What A must have reached for a read of these keys.
    fn need(&self, device: &Device, keys: u8) -> u8 {
        let index = &device.index;
        let known = device.committed.max(index.began);
        let several = index.outstanding().any(|op| self.keys_of(op) == BOTH);
        if several && self.on(Rule::SeveralKeys) {
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
        let marks = self.plan.iter().flatten().any(|step| step.call.is_marked());
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
