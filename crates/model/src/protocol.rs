//! The transition system: the possible steps of a state, and the effect of each step.
//!
//! There are no timers: an event that a timeout could cause may happen at any moment. A packet that its sender repeats
//! until it is answered is in the network from the moment at which it can first be sent.

use std::sync::atomic::{AtomicBool, AtomicU32};

use crate::adversary::Trick;
use crate::configuration::{CLIENTS, Chain, Change, Configuration, DEVICES, Step};
use crate::direct::mark;
use crate::network::{Node, Packet};
use crate::rule::{Rule, Rules};
use crate::state::{Bad, Phase, STOPPED, State};

/// One step of the modelled system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A client calls the next step of its program.
    Invoke(u8),
    /// A client stops waiting for its call.
    GiveUp(u8),
    /// A packet arrives.
    Deliver(Packet, Node),
    /// A device's medium reports the next entry durable.
    Persist(u8),
    /// A device crashes and restarts with its durable state.
    Crash(u8),
    /// A device asks the server (RECOVER), which answers.
    Answer(u8),
    /// The next change of the chain, or of the server, is decided.
    Change,
    /// The server persists an epoch that is already in use (only without [`Rule::ServerFirst`]).
    ServerFollows,
    /// The replica takes the primary's state.
    Replicate,
    /// The server writes the records of an effect (only without [`Rule::ApplyAtomically`]).
    Finish,
    /// The server crashes between an effect and its records (only without [`Rule::ApplyAtomically`]).
    ServerCrash,
    /// The lease of the removed head ends.
    LeaseOver,
    /// The lease store gives a device a lease, or renews it.
    Renew(u8),
    /// By a device's own clock, its lease is over.
    Silent(u8),
    /// A lease disappears from the lease store.
    Lapse(u8),
    /// The controller declares a member stopped.
    Declare(u8),
    /// A server executes a bypass, and its store fails after the effect.
    StoreFails(Packet, u8),
    /// The store executes a command of an abandoned connection (only without [`Rule::Fenced`]).
    Late(u8, u8),
    /// A client's operation reaches this store on the client's own connection. If the operation needs a mark, this step
    /// only sends the operation, and [`Action::Pass`] executes it.
    Direct(u8, u8),
    /// A client reads directly from this store, as a MISS allows.
    Fetch(Packet, u8),
    /// A client reads from this store, which may be a replica, as a MISS allows.
    FetchApart(Packet, u8),
    /// A client asks this store before the head has answered.
    GoAhead(u8, u8),
    /// The head's MISS arrives after the store's reply to the same read.
    UseAhead(Packet),
    /// A client's operation that needs a mark is executed at this store.
    Pass(u8, u8),
    /// The store closes the connection of a client that has abandoned its operation.
    Close(u8),
    /// A head finds no room for an update of the first client.
    Refuse(u8),
    /// The adversary gives a packet to a process.
    Forge(Trick, Packet, Node),
    /// A device takes its next key file. The number after the last device stands for the server.
    Rekey(u8),
    /// A front that has not begun gets a key that is derived from the new cluster key.
    NewFront(u8),
    /// The server restarts, and has forgotten the incarnation that it last answered (only without
    /// [`Rule::StampsRecorded`]).
    Forget,
}

/// A configuration with a set of rules.
#[derive(Debug)]
pub struct Protocol {
    /// The bounds of the search.
    pub configuration: Configuration,
    /// The rules that hold.
    pub rules: Rules,
    /// The programs' steps with their numbers.
    pub plan: [Vec<Step>; CLIENTS],
    /// The goals that were reached, as bits. They are needed only to keep the first example of each goal.
    pub(crate) reached: AtomicU32,
    /// A violation was found. Needed only to keep the first violation, whose path is the shortest.
    pub(crate) violated: AtomicBool,
}

impl Protocol {
    /// Returns the system of the configuration under these rules.
    #[must_use]
    pub fn new(configuration: Configuration, rules: Rules) -> Self {
        let plan = configuration.plan(rules);
        Self {
            configuration,
            rules,
            plan,
            reached: AtomicU32::new(0),
            violated: AtomicBool::new(false),
        }
    }

    pub(crate) fn on(&self, rule: Rule) -> bool {
        self.rules.on(rule)
    }

    pub(crate) fn step(&self, client: u8, index: u8) -> Step {
        self.plan[usize::from(client)][usize::from(index)]
    }

    /// Returns the row of the session tables for the session of a client's step.
    pub(crate) fn session(&self, client: u8, step: Step) -> usize {
        if step.call.is_mark() {
            mark(client)
        } else if self.configuration.successive && !self.on(Rule::SessionNeverReused) {
            0
        } else {
            usize::from(client)
        }
    }

    /// Returns the row that a step's session would have if session numbers are never reused.
    pub(crate) fn row(&self, client: u8, step: Step) -> usize {
        if step.call.is_mark() {
            mark(client)
        } else {
            usize::from(client)
        }
    }

    /// Returns the chain of an epoch.
    pub(crate) fn chain(&self, epoch: u8) -> Chain {
        self.configuration.chains[usize::from(epoch.max(1)) - 1]
    }

    /// Returns the primary server of an epoch.
    pub(crate) fn primary(&self, epoch: u8) -> u8 {
        let changes = &self.configuration.changes[..usize::from(epoch.max(1)) - 1];
        let elsewhere = |change: &Change| matches!(change, Change::Server | Change::Moved);
        u8::from(changes.iter().any(elsewhere))
    }

    pub(crate) fn is_head(&self, state: &State, device: u8) -> bool {
        let of = &state.devices[usize::from(device)];
        of.phase == Phase::Serving && of.epoch > 0 && self.chain(of.epoch).head() == device
    }

    /// Returns the initial state: the devices serve epoch 1. A session is open, unless its client's program opens it.
    pub(crate) fn beginning(&self) -> State {
        let mut state = State::default();
        state.record.epoch = 1;
        for server in state
            .servers
            .iter_mut()
            .take(if self.configuration.replicas {
                2
            } else {
                usize::from(self.configuration.servers)
            })
        {
            server.epoch = 1;
        }
        for (id, device) in (0u8..).zip(state.devices.iter_mut()) {
            if self.chain(1).has(id) {
                device.epoch = 1;
            } else {
                device.phase = Phase::Asking;
            }
        }
        state
    }

    /// Returns all steps that may have an effect.
    pub(crate) fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        if state.bad != Bad::No {
            return;
        }
        let clients = (0u8..).take(CLIENTS);
        for client in clients {
            if self.may_invoke(state, client) {
                actions.push(Action::Invoke(client));
            }
            if self.may_give_up(state, client) {
                actions.push(Action::GiveUp(client));
            }
            if self.may_close(state, client) {
                actions.push(Action::Close(client));
            }
            if let Some(store) = self.may_pass(state, client) {
                actions.push(Action::Pass(client, store));
            }
            if self.may_go_ahead(state, client) {
                let stores = self.stores(state);
                actions.extend(stores.map(|store| Action::GoAhead(client, store)));
            }
            for store in self.connections(state, client) {
                actions.push(Action::Direct(client, store));
            }
        }
        for packet in state.network.iter() {
            self.arrivals(state, packet, actions);
        }
        let started: u8 = state.devices.iter().map(|device| device.incarnation).sum();
        let done = &self.configuration.changes[..usize::from(state.record.epoch) - 1];
        let replaced = u8::from(done.contains(&Change::Replaced));
        let crashed = started - replaced - self.started_to_join(state.record.epoch);
        for (id, device) in (0u8..).zip(&state.devices) {
            if device.phase == Phase::Serving && device.durable < device.last {
                actions.push(Action::Persist(id));
            }
            if device.phase != Phase::Gone
                && device.epoch > 0
                && crashed < self.configuration.crashes
            {
                actions.push(Action::Crash(id));
            }
            if self.may_answer(state, id) && self.is_heard(state, id) {
                actions.push(Action::Answer(id));
            }
        }
        self.faults(state, actions);
        if self.configuration.adversary {
            self.tricks(state, actions);
        }
        if self.rolls() {
            self.rekeys(state, actions);
        }
    }

    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        if self.may_change(state) {
            actions.push(Action::Change);
        }
        let primary = &state.servers[usize::from(self.primary(state.record.epoch))];
        if primary.epoch < state.record.epoch {
            actions.push(Action::ServerFollows);
        }
        if primary.half {
            actions.push(Action::Finish);
            actions.push(Action::ServerCrash);
        }
        if self.configuration.servers == 2 {
            let [first, second] = &state.servers;
            if first.epoch == second.epoch && first.store != second.store && !self.moves() {
                actions.push(Action::Replicate);
            }
        } else if self.configuration.replicas && state.servers[0] != state.servers[1] {
            actions.push(Action::Replicate);
        }
        if self.leased(&state.record) {
            actions.push(Action::LeaseOver);
        }
        self.lease_steps(state, actions);
        if !self.on(Rule::StampsRecorded) && primary.store.heard > 0 {
            actions.push(Action::Forget);
        }
    }

    /// Adds the arrival of a packet at each receiver where it may have an effect.
    fn arrivals(&self, state: &State, packet: Packet, actions: &mut Vec<Action>) {
        let mut to = |node| actions.push(Action::Deliver(packet, node));
        match packet {
            Packet::Update { .. } | Packet::Bypass { .. } | Packet::Fallback { .. } => {
                if let Packet::Update { client: 0, index } = packet
                    && self.configuration.refuses
                    && self.step(0, index).keys != 0
                {
                    actions.push(Action::Refuse(index));
                }
                let mut to = |node| actions.push(Action::Deliver(packet, node));
                for device in (0u8..).take(DEVICES) {
                    if self.is_head(state, device) {
                        to(Node::Device(device));
                    }
                }
            }
            Packet::Append { to: hop, .. } => to(hop),
            Packet::Durable { epoch, .. }
            | Packet::Confirm { epoch, .. }
            | Packet::Passing { epoch, .. } => {
                to(Node::Device(self.chain(epoch).head()));
            }
            Packet::Applied { .. } => {
                for device in (0u8..).take(DEVICES) {
                    to(Node::Device(device));
                }
            }
            Packet::Reply { device, .. } => to(Node::Device(device)),
            Packet::Stamped {
                epoch,
                client,
                index,
                fallback,
                ..
            } => {
                let server = self.primary(epoch);
                to(Node::Server(server));
                let changes = !fallback && !self.step(client, index).call.is_read();
                if changes && self.configuration.store_fails {
                    actions.push(Action::StoreFails(packet, server));
                    if !self.on(Rule::Fenced) {
                        actions.push(Action::Late(client, index));
                    }
                }
            }
            Packet::Miss { client, .. } => {
                if state.clients[usize::from(client)].ahead.epoch > 0 {
                    actions.push(Action::UseAhead(packet));
                }
                actions.extend(self.stores(state).map(|store| Action::Fetch(packet, store)));
            }
            Packet::Apart { .. } => {
                actions.extend((0..2).map(|store| Action::FetchApart(packet, store)));
            }
            Packet::Response { client, .. } | Packet::Hit { client, .. } => {
                to(Node::Client(client))
            }
            Packet::Ack { client, .. }
            | Packet::NotLogged { client, .. }
            | Packet::Confirmed { client, .. } => to(Node::Client(client)),
        }
    }

    /// Returns the state after a step. `None`: the step changes nothing.
    pub(crate) fn take(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let changed = match action {
            Action::Deliver(packet, at) if !self.hears(before, packet, at) => false,
            Action::Rekey(at) => {
                state.keys.files[usize::from(at)] += 1;
                true
            }
            Action::NewFront(client) => {
                state.keys.fronts[usize::from(client)] = true;
                true
            }
            Action::Invoke(client) => self.invoke(&mut state, client),
            Action::GiveUp(client) => self.give_up(&mut state, client),
            Action::Deliver(packet, Node::Client(client)) => {
                self.client_receives(&mut state, client, packet)
            }
            Action::Deliver(packet, Node::Device(device)) => {
                self.device_receives(&mut state, device, packet)
            }
            Action::Deliver(packet, Node::Server(server)) => {
                self.server_receives(&mut state, server, packet)
            }
            Action::Forge(trick, packet, at) => self.forge(&mut state, trick, packet, at),
            Action::Persist(device) => self.persist(&mut state, device),
            Action::Crash(device) => self.crash(&mut state, device),
            Action::Answer(device) => self.answer(&mut state, device),
            Action::Change => self.change(&mut state),
            Action::ServerFollows => {
                let epoch = state.record.epoch;
                state.servers[usize::from(self.primary(epoch))].epoch = epoch;
                true
            }
            Action::Replicate => {
                state.servers[1] = state.servers[0].clone();
                true
            }
            Action::Finish => self.finish(&mut state),
            Action::ServerCrash => {
                state.servers[usize::from(self.primary(before.record.epoch))].half = false;
                true
            }
            Action::StoreFails(packet, server) => self.store_fails(&mut state, server, packet),
            Action::Late(client, index) => self.late(&mut state, 0, client, index),
            Action::Direct(client, store) => self.direct(&mut state, client, store),
            Action::Fetch(packet, store) => self.fetch(&mut state, packet, store),
            Action::FetchApart(packet, store) => self.fetch_apart(&mut state, packet, store),
            Action::GoAhead(client, store) => self.go_ahead(&mut state, client, store),
            Action::UseAhead(packet) => self.use_ahead(&mut state, packet),
            Action::Pass(client, store) => self.executes(&mut state, client, store),
            Action::Close(client) => {
                self.close(&mut state, client);
                true
            }
            Action::Refuse(index) => self.refuse(&mut state, 0, index),
            Action::Forget => {
                let server = self.primary(before.record.epoch);
                state.servers[usize::from(server)].store.heard = 0;
                true
            }
            Action::LeaseOver => {
                state.record.lease_over = true;
                true
            }
            Action::Renew(id) => self.renew(&mut state, id),
            Action::Silent(id) => {
                state.devices[usize::from(id)].leased = false;
                true
            }
            Action::Lapse(id) => {
                state.record.kept[usize::from(id)] = false;
                true
            }
            Action::Declare(id) => {
                state.record.stopped[usize::from(id)] = STOPPED;
                true
            }
        };
        if !changed {
            return None;
        }
        Self::note_versions(&mut state);
        self.note_seals(before, &mut state);
        if state.bad == Bad::No {
            self.settle(&mut state);
        }
        (state != *before).then_some(state)
    }

    /// Adds the packets that can now be sent, removes those that can no longer have an effect, and looks for losses.
    fn settle(&self, state: &mut State) {
        for device in (0u8..).take(DEVICES) {
            self.flush(state, device);
        }
        for server in 0..self.configuration.servers {
            self.say_applied(state, server);
        }
        let mut network = std::mem::take(&mut state.network);
        network.retain(|packet| self.useful(state, packet));
        state.network = network;
        if !state.record.declared && self.lost(state) {
            state.bad = Bad::Lost;
        }
        self.look_at_keys(state);
    }
}
