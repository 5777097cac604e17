//! Decides which packets can still have an effect. Other packets are removed, so that states that differ only in such
//! packets become one state. Each reason for a removal is a fact that stays true: a call has ended, an epoch has
//! passed, a prefix is durable.

use crate::network::{Node, Packet};
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::state::{Device, Phase, State, op_of};

impl Protocol {
    /// Whether the packet may still change something.
    #[must_use]
    pub fn useful(&self, state: &State, packet: &Packet) -> bool {
        let waits =
            |client: u8, index: u8| state.clients[usize::from(client)].done & (1 << index) == 0;
        // A reply to an earlier question of the device is always removed, because the nonce makes it useless.
        if !self.configuration.forgetful && !matches!(packet, Packet::Reply { .. }) {
            return true;
        }
        match *packet {
            Packet::Update { client, index } | Packet::Fallback { client, index } => {
                waits(client, index) || !self.known(state, client, index)
            }
            Packet::Bypass { client, index } => {
                let read = self.step(client, index).call.is_read();
                waits(client, index) || !read && !self.recorded(state, client, index)
            }
            Packet::Append {
                epoch,
                order,
                op,
                to,
                ..
            } => match to {
                Node::Server(id) => {
                    let server = &state.servers[usize::from(id)];
                    server.epoch <= epoch && order > server.store.applied
                }
                Node::Device(id) => {
                    let device = &state.devices[usize::from(id)];
                    let same = order <= device.applied || device.log[usize::from(order) - 1] == op;
                    device.epoch <= epoch && !(same && order <= device.durable)
                }
                Node::Client(_) => false,
            },
            Packet::Durable { epoch, order } => {
                let head = &state.devices[usize::from(self.chain(epoch).head())];
                head.epoch <= epoch && order > head.below
            }
            Packet::Ack {
                client, mark, seq, ..
            } => {
                let plan = &self.plan[usize::from(client)];
                let open = |(index, step): (u8, &crate::configuration::Step)| {
                    step.logged
                        && step.call.is_mark() == mark
                        && step.seq <= seq
                        && waits(client, index)
                };
                (0u8..).zip(plan).any(open)
            }
            Packet::Stamped {
                epoch,
                client,
                index,
                incarnation,
                ..
            } => {
                let server = &state.servers[usize::from(self.primary(epoch))];
                let read = self.step(client, index).call.is_read();
                let heard = server.epoch < epoch
                    || incarnation >= server.store.heard
                    || !self.on(Rule::OldStamps)
                    || !self.on(Rule::StampsRecorded);
                let over = read || self.recorded(state, client, index);
                server.epoch <= epoch && heard && (!over || waits(client, index))
            }
            Packet::Response { client, index, .. } | Packet::Hit { client, index, .. } => {
                waits(client, index)
            }
            Packet::Miss {
                client,
                index,
                epoch,
                ..
            } => {
                let may = |store| state.servers[usize::from(store)].epoch <= epoch;
                let open = self.stores(state).any(may) || !self.on(Rule::ReadEpoch);
                waits(client, index) && open
            }
            Packet::Apart { client, index, .. } => waits(client, index),
            Packet::Applied { epoch, order } => {
                let fenced = self.on(Rule::FencedReclaim);
                state.devices.iter().any(|device| {
                    device.phase != Phase::Gone
                        && (!fenced || device.epoch <= epoch)
                        && device.applied < order
                })
            }
            Packet::Reply {
                device,
                incarnation,
                ..
            } => {
                let device = &state.devices[usize::from(device)];
                !self.on(Rule::OwnReply)
                    || device.phase == Phase::Asking && device.incarnation == incarnation
            }
            // Even if no client waits, such a packet ends the outstanding request at the head.
            Packet::Passing { epoch, .. } => {
                let head = &state.devices[usize::from(self.chain(epoch).head())];
                head.epoch <= epoch
            }
            Packet::NotLogged { client, index } | Packet::Confirmed { client, index } => {
                waits(client, index)
            }
            Packet::Confirm {
                epoch,
                client,
                index,
                ..
            } => {
                let head = &state.devices[usize::from(self.chain(epoch).head())];
                head.epoch <= epoch && (self.reads() || waits(client, index))
            }
        }
    }

    /// Whether the server has recorded this bypass, or a later bypass of its session. Then the bypass is not executed
    /// again, and a copy of the bypass can only close buckets.
    fn recorded(&self, state: &State, client: u8, index: u8) -> bool {
        let kept = self.configuration.servers == 1 && self.on(Rule::RequestId);
        let replies = &state.servers[0].store.replies;
        kept && replies[usize::from(client)].0 >= op_of(client, index)
    }

    /// Whether the server has applied an update, and every head knows it. Then the update is not admitted again.
    fn known(&self, state: &State, client: u8, index: u8) -> bool {
        let step = self.step(client, index);
        let (seq, session) = (step.seq, self.session(client, step));
        let kept = self.configuration.servers == 1
            && self.reads()
            && self.on(Rule::FallbackIdentity)
            && self.on(Rule::SessionNeverReused);
        let told = |(id, device): (u8, &Device)| match device.phase {
            Phase::Asking => false,
            Phase::Gone => true,
            Phase::Serving => !self.is_head(state, id) || device.table[session] >= seq,
        };
        kept && state.servers[0].store.table[session] >= seq
            && (0u8..).zip(&state.devices).all(told)
    }
}
