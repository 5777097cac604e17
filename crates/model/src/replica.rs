//! Reads from replicas of the store (docs/spec/reads.md §11): a replica is a state that the master has had. The record counts
//! what changed state without an order, so that a replica shows whether it has that, too.

use crate::configuration::Call;
use crate::history::perform;
use crate::network::Packet;
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::state::{Device, Server, State, op_of};

impl Protocol {
    /// Something has changed the state of this store without an order.
    pub(crate) fn count(&self, state: &mut State, id: u8) {
        if self.configuration.replicas {
            state.servers[usize::from(id)].store.version += 1;
        }
    }

    /// The head hears how much that was.
    pub(crate) fn hears(&self, device: &mut Device, version: u8) {
        if self.configuration.replicas {
            device.index.version = device.index.version.max(version);
        }
    }

    /// What a MISS says for those who ask a replica, if it says anything.
    pub(crate) fn apart(&self, device: &Device, client: u8, index: u8) -> Option<Packet> {
        let rows = &device.index.outstanding;
        let is_quiet = rows.iter().all(|row| row.is_none()) && !self.has_mark(device);
        let asks = matches!(
            self.step(client, index).call,
            Call::Read | Call::ReadOther | Call::ReadBoth
        );
        let says = self.configuration.replicas && asks;
        (says && (is_quiet || !self.on(Rule::ReplicaQuiet))).then(|| {
            let known = device.committed.max(device.index.began);
            let last = self.on(Rule::ReplicaLast);
            Packet::Apart {
                client,
                index,
                epoch: device.epoch,
                need: if last { device.last } else { known },
                version: device.index.version,
            }
        })
    }

    /// Whether what this store shows may be given to who got that.
    pub(crate) fn shows(&self, of: &Server, packet: Packet) -> bool {
        let Packet::Apart {
            epoch,
            need,
            version,
            ..
        } = packet
        else {
            return false;
        };
        (of.epoch == epoch || !self.on(Rule::ReplicaEpoch))
            && (of.store.applied >= need || !self.on(Rule::ReplicaWatermark))
            && (of.store.version >= version || !self.on(Rule::ReplicaVersion))
    }

    /// The transaction at any store, a replica or a master that is one no more.
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
