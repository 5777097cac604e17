//! An adversary without a key, who sees, stores, changes and repeats every packet between any two processes
//! (docs/spec/keys.md).
//!
//! The network of the model already repeats, delays, reorders and drops packets. The adversary adds one step: he gives
//! any packet that was ever sent, unchanged or changed, to any process. A MAC is modelled as a symbol ([`Seal`]) that
//! names its key and the fields that it covers. A process accepts a packet if the packet's seal equals the seal that
//! the process expects. Each rule adds one part to the symbol. If the rule is switched off, this part is missing in
//! both seals.

use crate::configuration::{CLIENTS, DEVICES};
use crate::network::{Node, Packet};
use crate::protocol::{Action, Protocol};
use crate::rule::Rule;
use crate::state::{State, TORN};

/// A change that the adversary makes to a packet before he gives it to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trick {
    /// He changes nothing, but may give the packet to another process than its receiver.
    Redirect,
    /// He replaces the payload.
    Payload,
    /// He replaces the epoch.
    Epoch(u8),
    /// He makes an update that its session has not sent, without having a key.
    Make,
    /// He replaces the payload, and seals the packet with the cluster's old key.
    Stolen,
}

/// The two roles between which a packet travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leg {
    /// From a client to the head.
    ToHead,
    /// From the head to a client.
    ToClient,
    /// Between devices and server.
    Hop,
}

/// A MAC: its key and the fields that it covers. `None`: the field is not covered, because this kind of seal does not
/// have it, or the rule that adds it is switched off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seal {
    leg: Option<Leg>,
    /// The hop that sends the packet.
    sender: Option<Node>,
    epoch: Option<u8>,
    /// The session, which the token identifies.
    nonce: Option<u8>,
    /// Whether the payload differs from the payload that was sealed.
    altered: Option<bool>,
}

impl Protocol {
    /// Returns the device before this one in the chain of an epoch.
    pub(crate) fn before(&self, epoch: u8, device: u8) -> Option<Node> {
        let members = self.chain(epoch).members();
        let before = |member: &&u8| self.chain(epoch).next(**member) == Some(device);
        members
            .iter()
            .find(before)
            .map(|member| Node::Device(*member))
    }

    /// Returns the last device of the chain of an epoch.
    pub(crate) fn tail(&self, epoch: u8) -> Option<Node> {
        let last = self.chain(epoch).members().last();
        last.map(|member| Node::Device(*member))
    }

    /// Returns the hop after this device in the chain of an epoch: a device or the server.
    pub(crate) fn after(&self, epoch: u8, device: u8) -> Node {
        match self.chain(epoch).next(device) {
            Some(next) => Node::Device(next),
            None => Node::Server(self.primary(epoch)),
        }
    }

    fn hop(&self, sender: Option<Node>, epoch: u8) -> Seal {
        Seal {
            leg: self.on(Rule::KeyLeg).then_some(Leg::Hop),
            sender: sender.filter(|_| self.on(Rule::KeySender)),
            epoch: self.on(Rule::KeyEpoch).then_some(epoch),
            altered: self.on(Rule::KeyPayload).then_some(false),
            ..Seal::default()
        }
    }

    /// Returns the seal of a session's packet. The seal names no epoch, so the packet verifies in every epoch.
    fn of_session(&self, leg: Leg, client: u8) -> Seal {
        Seal {
            leg: self.on(Rule::KeyLeg).then_some(leg),
            nonce: self.on(Rule::KeyNonce).then_some(client),
            altered: self.on(Rule::KeyPayload).then_some(false),
            ..Seal::default()
        }
    }

    /// Returns the seal that the sender has put on a packet. `None`: the packet is a reply, which the nonce of its
    /// question identifies instead.
    fn sealed(&self, packet: Packet) -> Option<Seal> {
        Some(match packet {
            Packet::Update { client, .. }
            | Packet::Bypass { client, .. }
            | Packet::Fallback { client, .. } => self.of_session(Leg::ToHead, client),
            Packet::Ack { client, .. }
            | Packet::Response { client, .. }
            | Packet::Hit { client, .. }
            | Packet::Miss { client, .. }
            | Packet::Apart { client, .. }
            | Packet::NotLogged { client, .. }
            | Packet::Confirmed { client, .. } => self.of_session(Leg::ToClient, client),
            Packet::Append { epoch, to, .. } => {
                let sender = match to {
                    Node::Device(next) => self.before(epoch, next),
                    _ => self.tail(epoch),
                };
                self.hop(sender, epoch)
            }
            Packet::Stamped { epoch, .. } => self.hop(self.tail(epoch), epoch),
            Packet::Durable { epoch, .. }
            | Packet::Confirm { epoch, .. }
            | Packet::Passing { epoch, .. } => {
                let head = self.chain(epoch).head();
                self.hop(Some(self.after(epoch, head)), epoch)
            }
            // Every hop sends APPLIED to the previous hop, so the seal names no sender.
            Packet::Applied { epoch, .. } => self.hop(None, epoch),
            Packet::Reply { .. } => return None,
        })
    }

    /// Returns the seal that this process requires of the packet. `None`: the process does not accept such a packet.
    fn expected(&self, state: &State, packet: Packet, at: Node) -> Option<Seal> {
        Some(match (packet, at) {
            (
                Packet::Update { client, .. }
                | Packet::Bypass { client, .. }
                | Packet::Fallback { client, .. },
                Node::Device(device),
            ) if self.is_head(state, device) => self.of_session(Leg::ToHead, client),
            // The adversary leads a client's bypass past the head to the server. Without [`Rule::KeyLeg`] the client's
            // seal equals a hop's seal.
            (Packet::Bypass { client, .. }, Node::Server(_)) if !self.on(Rule::KeyLeg) => {
                self.of_session(Leg::ToHead, client)
            }
            (Packet::Bypass { .. }, Node::Server(server)) => {
                let epoch = state.servers[usize::from(server)].epoch;
                self.hop(self.tail(epoch), epoch)
            }
            (
                Packet::Ack { client, .. }
                | Packet::Response { client, .. }
                | Packet::Hit { client, .. }
                | Packet::NotLogged { client, .. }
                | Packet::Confirmed { client, .. }
                | Packet::Confirm { client, .. }
                | Packet::Passing { client, .. },
                Node::Client(at),
            ) if client == at => self.of_session(Leg::ToClient, client),
            (Packet::Append { epoch, .. }, Node::Device(device)) => {
                self.hop(Some(self.before(epoch, device)?), epoch)
            }
            (Packet::Append { epoch, .. } | Packet::Stamped { epoch, .. }, Node::Server(_)) => {
                self.hop(self.tail(epoch), epoch)
            }
            (
                Packet::Durable { epoch, .. }
                | Packet::Confirm { epoch, .. }
                | Packet::Passing { epoch, .. },
                Node::Device(device),
            ) if self.chain(epoch).head() == device => {
                self.hop(Some(self.after(epoch, device)), epoch)
            }
            (Packet::Applied { epoch, .. }, Node::Device(_)) => self.hop(None, epoch),
            _ => return None,
        })
    }

    /// Returns the packet after the adversary's change.
    fn presented(&self, trick: Trick, packet: Packet, at: Node) -> Packet {
        match (trick, packet) {
            (
                Trick::Payload | Trick::Stolen,
                Packet::Append {
                    epoch,
                    order,
                    op,
                    to,
                },
            ) => Packet::Append {
                epoch,
                order,
                op: op | TORN,
                to,
            },
            (Trick::Epoch(other), packet) => in_epoch(packet, other),
            // The adversary gives the front an old OPEN_REPLY, so that its next session uses the id of an earlier
            // session.
            (
                Trick::Redirect,
                Packet::Ack {
                    mark, seq, copies, ..
                },
            ) if self.configuration.successive => match at {
                Node::Client(client) => Packet::Ack {
                    client,
                    mark,
                    seq,
                    copies,
                },
                _ => packet,
            },
            _ => packet,
        }
    }

    /// Returns whether the changed packet passes the receiver's verification.
    fn verifies(&self, state: &State, trick: Trick, packet: Packet, at: Node) -> bool {
        if trick == Trick::Make {
            return false;
        }
        let Some(mut has) = self.sealed(packet) else {
            return false;
        };
        let presented = self.presented(trick, packet, at);
        if trick == Trick::Stolen {
            let right = self.expected(state, presented, at).is_some();
            return right && self.believes_the_thief(state, presented, at);
        }
        if !self.hears(state, packet, at) {
            return false;
        }
        if trick == Trick::Payload {
            // The seal was made for the payload before the change.
            has.altered = has.altered.map(|altered| !altered);
        }
        self.expected(state, presented, at)
            .is_some_and(|expected| expected == has)
    }

    /// Adds all steps of the adversary.
    pub(crate) fn tricks(&self, state: &State, actions: &mut Vec<Action>) {
        let nodes = || {
            let clients = (0u8..).take(CLIENTS).map(Node::Client);
            let devices = (0u8..).take(DEVICES).map(Node::Device);
            let servers = (0..self.configuration.servers).map(Node::Server);
            clients.chain(devices).chain(servers)
        };
        let epochs = 1..=state.record.epoch;
        for packet in state.network.iter() {
            for at in nodes() {
                actions.push(Action::Forge(Trick::Redirect, packet, at));
                actions.push(Action::Forge(Trick::Payload, packet, at));
                if self.is_stolen(state) {
                    actions.push(Action::Forge(Trick::Stolen, packet, at));
                }
                let others = epochs
                    .clone()
                    .filter(|epoch| in_epoch(packet, *epoch) != packet);
                actions.extend(others.map(|epoch| Action::Forge(Trick::Epoch(epoch), packet, at)));
            }
        }
        for client in (0u8..).take(CLIENTS) {
            let plan = &self.plan[usize::from(client)];
            for (index, _) in (0u8..).zip(plan).filter(|(_, step)| step.logged) {
                let made = Packet::Update { client, index };
                for device in (0u8..).take(DEVICES) {
                    actions.push(Action::Forge(Trick::Make, made, Node::Device(device)));
                }
            }
        }
    }

    /// Gives a packet of the adversary to a process. Returns whether this changes the state.
    pub(crate) fn forge(&self, state: &mut State, trick: Trick, packet: Packet, at: Node) -> bool {
        if let (Trick::Make, Packet::Update { client, index }, Node::Device(device)) =
            (trick, packet, at)
            && !self.on(Rule::KeyFirst)
            && self.is_head(state, device)
        {
            return self.counts(state, device, client, index);
        }
        if !self.verifies(state, trick, packet, at) {
            return false;
        }
        let presented = self.presented(trick, packet, at);
        let alters = matches!(trick, Trick::Payload | Trick::Stolen);
        match (presented, at) {
            (Packet::Update { client, index }, Node::Device(device)) if alters => {
                self.admits_altered(state, device, client, index)
            }
            // No process of the model reads the payload of these packets.
            _ if alters && !matches!(presented, Packet::Append { .. }) => false,
            (Packet::Bypass { client, index }, Node::Server(server)) => {
                let epoch = state.servers[usize::from(server)].epoch;
                let stamped = Packet::Stamped {
                    epoch,
                    client,
                    index,
                    barrier: 0,
                    incarnation: 0,
                    fallback: false,
                };
                self.server_receives(state, server, stamped)
            }
            (
                Packet::Passing {
                    client,
                    index,
                    answer,
                    ..
                },
                Node::Client(at),
            ) => {
                let response = Packet::Response {
                    client,
                    index,
                    answer,
                };
                self.client_receives(state, at, response)
            }
            (Packet::Confirm { client, index, .. }, Node::Client(at)) => {
                let confirmed = Packet::Confirmed { client, index };
                self.client_receives(state, at, confirmed)
            }
            (_, Node::Client(client)) => self.client_receives(state, client, presented),
            (_, Node::Device(device)) => self.device_receives(state, device, presented),
            (_, Node::Server(server)) => self.server_receives(state, server, presented),
        }
    }

    /// Without [`Rule::KeyFirst`], the head first counts the seq, and then verifies the packet and drops it.
    fn counts(&self, state: &mut State, device: u8, client: u8, index: u8) -> bool {
        let step = self.step(client, index);
        let session = self.session(client, step);
        let last = &mut state.devices[usize::from(device)].table[session];
        let next = step.seq == *last + 1;
        if next {
            *last = step.seq;
        }
        next
    }

    /// Without [`Rule::KeyPayload`], the head admits an update whose payload was replaced.
    fn admits_altered(&self, state: &mut State, device: u8, client: u8, index: u8) -> bool {
        let before = state.devices[usize::from(device)].last;
        let admitted = self.device_receives(state, device, Packet::Update { client, index });
        let device = &mut state.devices[usize::from(device)];
        if device.last > before {
            device.log[usize::from(before)] |= TORN;
        }
        admitted
    }

    /// Whether every device of the server's epoch holds this order. This is checked when the store is about to apply
    /// the order.
    pub(crate) fn all_hold(&self, state: &State, epoch: u8, order: u8) -> bool {
        let holds = |member: &u8| {
            let device = &state.devices[usize::from(*member)];
            device.epoch != epoch || device.durable >= order
        };
        self.chain(epoch).members().iter().all(holds)
    }
}

/// Returns the packet with another epoch, if packets of this kind name an epoch.
fn in_epoch(packet: Packet, other: u8) -> Packet {
    let mut changed = packet;
    match &mut changed {
        Packet::Append { epoch, .. }
        | Packet::Durable { epoch, .. }
        | Packet::Stamped { epoch, .. }
        | Packet::Miss { epoch, .. }
        | Packet::Apart { epoch, .. }
        | Packet::Passing { epoch, .. }
        | Packet::Applied { epoch, .. }
        | Packet::Confirm { epoch, .. } => *epoch = other,
        _ => {}
    }
    changed
}
