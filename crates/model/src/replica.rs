//! Reads from replicas of the store (docs/spec/reads.md §11). A replica has a present or earlier state of the master. A
//! request that changed state without an order was executed before all entries that the head admits after the request's
//! answer. So a replica that has applied such an entry also has the request's effect.

use crate::configuration::Call;
use crate::history::perform;
use crate::network::Packet;
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::state::{Device, Server, State, op_of};

impl Protocol {
    /// Notes that requests that may have changed these keys without an order were answered. The requests were executed
    /// before all entries that are admitted from now on.
    pub(crate) fn answered(&self, device: &mut Device, keys: u8) {
        if self.configuration.replicas && self.on(Rule::ReplicaBehind) {
            for bucket in self.buckets(keys) {
                device.index.behind[bucket] = device.last + 1;
            }
        }
    }

    /// Returns the MISS for clients that ask a replica, if the head may send one.
    pub(crate) fn apart(&self, device: &Device, client: u8, index: u8) -> Option<Packet> {
        let step = self.step(client, index);
        let (rows, mine) = (&device.index.outstanding, step.keys);
        let closes = |keys: u8| {
            self.buckets(keys)
                .any(|at| self.buckets(mine).any(|of| of == at))
        };
        let is_quiet = !rows.iter().any(|row| closes(row.keys)) && !self.has_mark(device);
        let asks = matches!(step.call, Call::Read | Call::ReadOther | Call::ReadBoth);
        let says = self.configuration.replicas && asks;
        (says && (is_quiet || !self.on(Rule::ReplicaQuiet))).then(|| {
            let known = if self.on(Rule::ReplicaLast) {
                u8::MAX
            } else {
                device.committed.max(device.index.began)
            };
            let of = |at: usize| {
                let newest = device.index.buckets[at].order.min(known);
                newest.max(device.index.behind[at])
            };
            let need = self.buckets(mine).map(of).fold(device.index.floor, u8::max);
            Packet::Apart {
                client,
                index,
                epoch: device.epoch,
                need,
            }
        })
    }

    /// Whether the values of this store may answer a read with this MISS. Epochs are not compared, because after a
    /// recover-reply `need` is above all orders that were applied in earlier epochs.
    pub(crate) fn shows(&self, of: &Server, packet: Packet) -> bool {
        let Packet::Apart { need, .. } = packet else {
            return false;
        };
        of.store.applied >= need || !self.on(Rule::ReplicaWatermark)
    }

    /// The client reads from any store, a replica or a former master, after the head's MISS.
    pub(crate) fn fetch_apart(&self, state: &mut State, packet: Packet, store: u8) -> bool {
        let Packet::Apart { client, index, .. } = packet else {
            return false;
        };
        let of = &state.servers[usize::from(store)];
        if !self.shows(of, packet) {
            return false;
        }
        let mut values = of.store.values;
        let answer = perform(&self.step(client, index), op_of(client, index), &mut values);
        self.ends(state, client, index, answer)
    }
}
