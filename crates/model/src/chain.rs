//! Epochs: changes of the chain and of the server, and how a device begins to serve (protocol.md §5, design §5).

use crate::configuration::{CLIENTS, Change};
use crate::network::Packet;
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::state::{Device, Index, Phase, State, Table, step_of};

impl Protocol {
    fn next_change(&self, state: &State) -> Option<Change> {
        let at = usize::from(state.record.epoch) - 1;
        self.configuration.changes.get(at).copied()
    }

    pub(crate) fn may_change(&self, state: &State) -> bool {
        match self.next_change(state) {
            None => false,
            Some(_) if !self.may_leave_out(state) => false,
            Some(Change::PromoteJoined) => self.synced(state) || !self.on(Rule::Synced),
            Some(_) => true,
        }
    }

    /// Returns the joiner of this epoch, after the device before it. `None`: no device joins.
    fn joins(&self, epoch: u8) -> Option<(u8, u8)> {
        let (old, new) = (self.chain(epoch - 1), self.chain(epoch));
        let pairs = new.members().windows(2);
        let mut joins = pairs.filter(|pair| old.has(pair[0]) && !old.has(pair[1]));
        joins.next().map(|pair| (pair[0], pair[1]))
    }

    /// Returns the number of device restarts that the joins up to this epoch have caused.
    pub(crate) fn started_to_join(&self, epoch: u8) -> u8 {
        let each = if self.on(Rule::StandsStill) { 2 } else { 1 };
        (2..=epoch)
            .filter(|epoch| self.joins(*epoch).is_some())
            .map(|_| each)
            .sum()
    }

    /// Whether each entry that the joined device must hold is in its log, or is applied by the store (`decide` in
    /// `proto`).
    pub(crate) fn synced(&self, state: &State) -> bool {
        let epoch = state.record.epoch;
        let Some((_, joiner)) = (epoch > 1).then(|| self.joins(epoch)).flatten() else {
            return false;
        };
        let applied = state.servers[usize::from(self.primary(epoch))]
            .store
            .applied;
        let has = state.devices[usize::from(joiner)].durable.max(applied);
        state.record.needs > 0 && has + 1 >= state.record.needs
    }

    /// Begins a join: the operator starts the joiner, which erases its log, and then restarts the device before the
    /// joiner with the joiner as its next hop. The restarted device serves no client until the server has answered in
    /// the new epoch. Every entry that was acknowledged until now is in this device's log, or is applied.
    fn join(&self, state: &mut State, before: u8, joiner: u8, applied: u8) {
        self.crash(state, joiner);
        if self.on(Rule::EraseOnJoin) {
            let device = &mut state.devices[usize::from(joiner)];
            *device = Device {
                phase: Phase::Asking,
                incarnation: device.incarnation,
                ..Device::default()
            };
        }
        if self.on(Rule::StandsStill) {
            self.crash(state, before);
        }
        state.record.needs = 1 + state.devices[usize::from(before)].durable.max(applied);
    }

    /// Makes the next change of the chain or of the server. The server first decides the change durably.
    pub(crate) fn change(&self, state: &mut State) -> bool {
        let Some(change) = self.next_change(state) else {
            return false;
        };
        let applied = state.servers[usize::from(self.primary(state.record.epoch))]
            .store
            .applied;
        let old = self.chain(state.record.epoch).head();
        let replaced = change == Change::Replaced;
        if change == Change::LastRemoved && self.on(Rule::LastMemberStopped)
            || replaced && self.on(Rule::LossDeclared)
        {
            let device = &mut state.devices[usize::from(old)];
            if !replaced && !self.configuration.leased {
                device.phase = Phase::Gone;
            }
            if device.last > applied {
                state.record.declared = true;
                state.history.forget();
            }
        }
        if replaced {
            let device = &mut state.devices[usize::from(old)];
            *device = Device {
                phase: Phase::Asking,
                incarnation: device.incarnation + 1,
                ..Device::default()
            };
        }
        if change == Change::Moved {
            state.servers[1].store = state.servers[0].store.clone();
        }
        state.record.epoch += 1;
        state.record.needs = 0;
        let epoch = state.record.epoch;
        self.left_out(state);
        if let Some((before, joiner)) = self.joins(epoch) {
            self.join(state, before, joiner, applied);
        }
        state.servers[usize::from(self.primary(epoch))].store.heard = 0;
        if self.on(Rule::ServerFirst) {
            state.servers[usize::from(self.primary(epoch))].epoch = epoch;
        }
        true
    }

    /// Whether the server may answer a RECOVER of the device now.
    pub(crate) fn may_answer(&self, state: &State, id: u8) -> bool {
        let device = &state.devices[usize::from(id)];
        let asks = match device.phase {
            Phase::Asking => true,
            Phase::Serving => device.epoch < state.record.epoch,
            Phase::Gone => false,
        };
        asks && self.chain(state.record.epoch).has(id)
    }

    /// The device stops serving and sends RECOVER, and the server answers with its state of one moment.
    pub(crate) fn answer(&self, state: &mut State, id: u8) -> bool {
        let epoch = state.record.epoch;
        let device = &mut state.devices[usize::from(id)];
        device.phase = Phase::Asking;
        let incarnation = device.incarnation;
        let server = self.primary(epoch);
        let store = &mut state.servers[usize::from(server)].store;
        if self.reads() && self.chain(epoch).head() == id {
            // From now on the server refuses requests that an earlier incarnation of the head has stamped.
            store.heard = incarnation;
        }
        let (applied, table) = (store.applied, store.table);
        if !self.replicated(state, server) && self.on(Rule::RecoverReplicated) {
            // The reply is sent in a later step.
            return true;
        }
        state.network.send(Packet::Reply {
            device: id,
            incarnation,
            epoch,
            applied,
            table,
        });
        true
    }

    /// The device begins to serve with the recover-reply (`Device::on_own_reply`, `DeviceNode::resume`).
    pub(crate) fn on_reply(&self, state: &mut State, packet: Packet) -> bool {
        let Packet::Reply {
            device: id,
            incarnation,
            epoch,
            applied,
            table,
        } = packet
        else {
            return false;
        };
        let device = &mut state.devices[usize::from(id)];
        let mine = device.incarnation == incarnation || !self.on(Rule::OwnReply);
        if device.phase != Phase::Asking || !mine || epoch < device.epoch {
            return false;
        }
        device.epoch = epoch;
        device.phase = Phase::Serving;
        device.free(applied.min(device.last));
        device.applied = device.applied.max(applied);
        device.last = device.last.max(applied);
        device.durable = device.durable.max(applied);
        device.committed = device.applied;
        device.below = 0;
        device.index = Index::default();
        device.table = Table::default();
        device.answered = Table::default();
        if self.chain(epoch).head() != id {
            return true;
        }
        let device = &mut state.devices[usize::from(id)];
        self.begin_index(device, table);
        device.table = table;
        device.answered = table;
        for order in device.applied + 1..=device.last {
            let op = device.entry(order);
            if op != 0 {
                let (client, index) = step_of(op);
                let step = self.step(client, index);
                let seq = &mut device.table[self.session(client, step)];
                *seq = (*seq).max(step.seq);
            }
        }
        if !self.on(Rule::MarksRecovered) {
            device.table[CLIENTS..].fill(0);
        }
        true
    }
}
