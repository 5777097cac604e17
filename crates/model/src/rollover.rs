//! The cluster's key is changed while all processes run (docs/spec/keys.md §7).
//!
//! Each device and the server has a key file with the key with which it sends, and perhaps a second key that it also
//! accepts. The operator replaces the file three times. A process may take its next file at any moment that the order
//! of steps allows, also when it restarts after a crash. A front has one key, and a session keeps the key with which it
//! began. In configurations with [`Rollover::Hurried`] the operator keeps no order, and a thief has the old key as soon
//! as all processes have forgotten it.

use crate::configuration::{CLIENTS, DEVICES, Rollover};
use crate::network::{Node, Packet};
use crate::protocol::{Action, Protocol};
use crate::rule::Rule;
use crate::state::{Bad, Phase, State};

/// Number of processes with a key file: the devices, then the server.
pub(crate) const PROCESSES: usize = DEVICES + 1;
/// Index of the server among the processes with a key file.
const SERVER: usize = DEVICES;

/// A key file under which the process sends with the old key, and also accepts the new key.
const ACCEPTS: u8 = 1;
/// A key file with which the process sends with the new key, and also accepts the old key.
const SENDS: u8 = 2;
/// A key file with only the new key.
const FORGETS: u8 = 3;

/// The keys of all processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// The key file of each device and of the server; 0: a file with only the old key.
    pub files: [u8; PROCESSES],
    /// For each client: whether its session's key is derived from the new cluster key.
    pub fronts: [bool; CLIENTS],
    /// For each device: its entries that are sealed with the new key, as bits (only without [`Rule::RollAnew`]).
    pub sealed: [u8; DEVICES],
}

impl Keys {
    pub(crate) fn bytes(&self) -> [u8; 7] {
        let [one, two, server] = self.files;
        let [first, second] = self.fronts;
        let [head, tail] = self.sealed;
        let fronts = [u8::from(first), u8::from(second)];
        [one, two, server, fronts[0], fronts[1], head, tail]
    }
}

/// Whether a process with this file accepts packets that are sealed with the new key (`new`) or with the old key.
const fn accepts(file: u8, new: bool) -> bool {
    if new { file >= ACCEPTS } else { file < FORGETS }
}

/// Whether a process with this file seals with the new key.
const fn seals_anew(file: u8) -> bool {
    file >= SENDS
}

impl Protocol {
    /// Whether the configuration has a rollover.
    pub(crate) fn rolls(&self) -> bool {
        self.configuration.rollover != Rollover::None
    }

    /// Returns the devices of the newest chain, and the server. A device that was left out gets no new file.
    fn in_charge(&self, state: &State) -> impl Iterator<Item = usize> {
        let members = self.chain(state.record.epoch).members();
        let members = members.iter().map(|member| usize::from(*member));
        members.chain([SERVER])
    }

    fn all_have(&self, state: &State, file: u8) -> bool {
        self.in_charge(state).all(|at| state.keys.files[at] >= file)
    }

    /// Whether all processes have forgotten the old key, so that an adversary may have it.
    pub(crate) fn is_stolen(&self, state: &State) -> bool {
        self.configuration.rollover == Rollover::Hurried && self.all_have(state, FORGETS)
    }

    /// Whether this client makes no further call.
    fn has_ended(&self, state: &State, client: usize) -> bool {
        let done = state.clients[client].done.count_ones();
        usize::try_from(done).is_ok_and(|done| done == self.plan[client].len())
    }

    /// Whether the operator may give this file to a process.
    fn may_have(&self, state: &State, file: u8) -> bool {
        if self.configuration.rollover == Rollover::Hurried {
            return true;
        }
        match file {
            SENDS => self.all_have(state, ACCEPTS) || !self.on(Rule::RollAccepted),
            FORGETS => {
                let over =
                    |client: usize| state.keys.fronts[client] || self.has_ended(state, client);
                (self.all_have(state, SENDS) || !self.on(Rule::RollSent))
                    && ((0..CLIENTS).all(over) || !self.on(Rule::RollFronts))
            }
            _ => true,
        }
    }

    /// Adds the operator's steps.
    pub(crate) fn rekeys(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, file) in (0u8..).zip(state.keys.files) {
            if file < FORGETS && self.may_have(state, file + 1) {
                actions.push(Action::Rekey(at));
            }
        }
        for (client, has) in (0u8..).zip(state.keys.fronts) {
            // A session keeps the key with which it began.
            let begins = state.clients[usize::from(client)].invoked == 0;
            if !has && begins && self.may_have(state, SENDS) {
                actions.push(Action::NewFront(client));
            }
        }
    }

    /// Without [`Rule::RollAnew`], notes for the entries that a step has stored with which key they are sealed.
    pub(crate) fn note_seals(&self, before: &State, state: &mut State) {
        if self.on(Rule::RollAnew) {
            return;
        }
        for at in 0..DEVICES {
            let (was, is) = (before.devices[at].last, state.devices[at].last);
            let sealed = &mut state.keys.sealed[at];
            *sealed &= ((1u16 << is.min(was)) - 1).to_le_bytes()[0];
            if seals_anew(state.keys.files[at]) {
                let new = (was..is).map(|order| 1 << order).sum::<u8>();
                *sealed |= new;
            }
        }
    }

    fn place(&self, node: Node) -> Option<usize> {
        match node {
            Node::Client(_) => None,
            Node::Device(id) => Some(usize::from(id)),
            Node::Server(_) => Some(SERVER),
        }
    }

    /// Whether the receiver has a key with which the sender may have sealed the packet: the sender's present or
    /// previous key.
    pub(crate) fn hears(&self, state: &State, packet: Packet, at: Node) -> bool {
        let keys = &state.keys;
        let Some(receiver) = self.place(at).filter(|_| self.rolls()) else {
            // A client always has the keys of its own session.
            return true;
        };
        let sender = match packet {
            Packet::Update { client, .. }
            | Packet::Bypass { client, .. }
            | Packet::Fallback { client, .. } => {
                let new = keys.fronts[usize::from(client)];
                return accepts(keys.files[receiver], new) || self.keeps(new);
            }
            Packet::Append { epoch, to, .. } => match to {
                Node::Device(next) => self.before(epoch, next),
                _ => self.tail(epoch),
            },
            Packet::Stamped { epoch, .. } => self.tail(epoch),
            Packet::Durable { epoch, .. }
            | Packet::Confirm { epoch, .. }
            | Packet::Passing { epoch, .. } => Some(self.after(epoch, self.chain(epoch).head())),
            Packet::Applied { epoch, .. } | Packet::Reply { epoch, .. } => match at {
                Node::Device(device) => Some(self.after(epoch, device)),
                _ => None,
            },
            _ => None,
        };
        let Some(sender) = sender.and_then(|sender| self.place(sender)) else {
            return true;
        };
        let (from, to) = (keys.files[sender], keys.files[receiver]);
        accepts(to, false) || seals_anew(from) && accepts(to, true)
    }

    /// Whether a session still has keys although its cluster key is forgotten, which is so only without
    /// [`Rule::RollSessions`].
    fn keeps(&self, new: bool) -> bool {
        !new && !self.on(Rule::RollSessions)
    }

    /// Whether a process accepts a packet that a thief of the old key has sealed.
    pub(crate) fn believes_the_thief(&self, state: &State, packet: Packet, at: Node) -> bool {
        if !self.is_stolen(state) {
            return false;
        }
        match (packet, at) {
            (Packet::Update { client, .. }, Node::Device(_)) => {
                self.keeps(state.keys.fronts[usize::from(client)])
            }
            (Packet::Append { .. }, Node::Device(_) | Node::Server(_)) => {
                !self.on(Rule::RollForgotten)
            }
            _ => false,
        }
    }

    /// Whether, on the whole path from this device to the server, each two neighbour hops can verify each other's
    /// packets.
    pub(crate) fn is_heard(&self, state: &State, id: u8) -> bool {
        if !self.rolls() {
            return true;
        }
        let chain = self.chain(state.record.epoch);
        let mut at = Some(id);
        while let Some(device) = at {
            if !self.understand(state, device) {
                return false;
            }
            at = chain.next(device);
        }
        true
    }

    /// Whether a device of the newest chain and its next hop verify each other's packets.
    fn understand(&self, state: &State, device: u8) -> bool {
        let next = self.place(self.after(state.record.epoch, device));
        let files = &state.keys.files;
        let (own, next) = (files[usize::from(device)], files[next.unwrap_or(SERVER)]);
        accepts(next, seals_anew(own)) && accepts(own, seals_anew(next))
    }

    /// Whether the rollover alone causes a process to reject genuine packets: packets of its neighbour hop, stored
    /// entries of the previous hop, or packets of a client.
    fn unheard(&self, state: &State) -> bool {
        let keys = &state.keys;
        let chain = self.chain(state.record.epoch);
        let members = chain.members();
        let hops = members.iter().any(|id| !self.understand(state, *id));
        let stored = |id: &u8| {
            let device = &state.devices[usize::from(*id)];
            let next = self.place(self.after(state.record.epoch, *id));
            let next = keys.files[next.unwrap_or(SERVER)];
            let mut entries = device.applied..device.last;
            let sealed = keys.sealed[usize::from(*id)];
            device.phase == Phase::Serving
                && entries.any(|order| !accepts(next, sealed & (1 << order) != 0))
        };
        let entries = !self.on(Rule::RollAnew) && members.iter().any(stored);
        let head = keys.files[usize::from(chain.head())];
        let client = |client: usize| {
            let begun = state.clients[client].invoked > 0 && !self.has_ended(state, client);
            begun && !accepts(head, keys.fronts[client])
        };
        hops || entries || (0..CLIENTS).any(client)
    }

    /// Looks for a process whose packets are rejected although the operator keeps the order of steps.
    pub(crate) fn look_at_keys(&self, state: &mut State) {
        if self.configuration.rollover == Rollover::Ordered && self.unheard(state) {
            state.bad = Bad::Unheard;
        }
    }

    /// Whether the old key is forgotten, and both clients have finished.
    pub(crate) fn has_rolled(&self, state: &State) -> bool {
        self.all_have(state, FORGETS) && (0..CLIENTS).all(|client| self.has_ended(state, client))
    }
}
