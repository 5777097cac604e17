//! Which packets can still have an effect: the others are forgotten, so that states that differ only in dead
//! packets are one state. Each reason here is a monotone fact: a call that has ended, an epoch that has passed, a
//! prefix that is durable.

use crate::network::{Node, Packet};
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::state::{Phase, State};

impl Protocol {
    /// Whether the packet may still change something.
    #[must_use]
    pub fn useful(&self, state: &State, packet: &Packet) -> bool {
        let waits =
            |client: u8, index: u8| state.clients[usize::from(client)].done & (1 << index) == 0;
        // The reply to an earlier asking must go in any case: that is its nonce.
        if !self.configuration.forgetful && !matches!(packet, Packet::Reply { .. }) {
            return true;
        }
        match *packet {
            Packet::Update { .. } | Packet::Fallback { .. } => true,
            Packet::Bypass { client, index } => {
                let read = self.step(client, index).call.is_read();
                !read || self.configuration.cache || waits(client, index)
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
            Packet::Ack { client, seq, .. } => {
                let plan = &self.plan[usize::from(client)];
                let open = |(index, step): (u8, &crate::configuration::Step)| {
                    step.logged && step.seq <= seq && waits(client, index)
                };
                (0u8..).zip(plan).any(open)
            }
            Packet::Stamped {
                epoch,
                client,
                index,
                ticket,
                ..
            } => {
                let server = &state.servers[usize::from(self.primary(epoch))];
                let read = self.step(client, index).call.is_read();
                server.epoch <= epoch && (!read || waits(client, index) || ticket != 0)
            }
            Packet::Response {
                client,
                index,
                ticket,
                ..
            } => waits(client, index) || ticket != 0,
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
            Packet::Passing { client, index, .. } => {
                !self.on(Rule::CacheOutstanding) || waits(client, index)
            }
            Packet::NotLogged { client, index } | Packet::Confirmed { client, index } => {
                waits(client, index)
            }
            Packet::Confirm {
                epoch,
                client,
                index,
            } => {
                let head = &state.devices[usize::from(self.chain(epoch).head())];
                head.epoch <= epoch && waits(client, index)
            }
        }
    }
}
