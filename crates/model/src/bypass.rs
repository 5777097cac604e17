//! Requests that pass the head without an entry in the log: bypasses (rule 8), fallbacks (protocol.md §4), and the
//! server's answers to both.

use crate::configuration::Call;
use crate::history::Answer;
use crate::network::Packet;
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::state::{Op, State, op_of, step_of};

impl Protocol {
    /// Handles a client's bypass at the head: stamps the bypass, or answers a read.
    pub(crate) fn on_bypass(&self, state: &mut State, id: u8, client: u8, index: u8) -> bool {
        let step = self.step(client, index);
        let session = self.session(client, step);
        if self.reads() && step.call.is_question() && step.call != Call::ReadBypass {
            return self.on_read(state, id, client, index);
        }
        let device = &mut state.devices[usize::from(id)];
        if self.on(Rule::OwnUpdatesFirst) && device.table[session] < step.seq {
            return false;
        }
        if self.leased_elsewhere(&state.record, device.epoch) && self.on(Rule::LeaseCoversReads) {
            return false;
        }
        if !step.call.is_read() {
            self.leaves(device, op_of(client, index));
        }
        self.stamp(state, id, client, index, false);
        true
    }

    fn stamp(&self, state: &mut State, id: u8, client: u8, index: u8, fallback: bool) {
        let device = &state.devices[usize::from(id)];
        let (epoch, barrier) = (device.epoch, device.last);
        let incarnation = if self.reads() { device.incarnation } else { 0 };
        state.network.send(Packet::Stamped {
            epoch,
            client,
            index,
            barrier,
            incarnation,
            fallback,
        });
    }

    /// Handles a client's fallback at the head: stamps the fallback.
    pub(crate) fn on_fallback(&self, state: &mut State, id: u8, client: u8, index: u8) -> bool {
        let step = self.step(client, index);
        let device = &mut state.devices[usize::from(id)];
        if device.table[self.session(client, step)] + 1 < step.seq {
            return false;
        }
        if self.leased_elsewhere(&state.record, device.epoch) && self.on(Rule::LeaseCoversReads) {
            return false;
        }
        if self.on(Rule::FallbackCloses) {
            self.leaves(device, op_of(client, index));
        }
        self.stamp(state, id, client, index, true);
        true
    }

    /// Handles the confirmation of a fallback at the head: the head advances the session, and passes the packet on to
    /// the client (`Device::on_server_answer`).
    pub(crate) fn on_confirm(
        &self,
        state: &mut State,
        id: u8,
        epoch: u8,
        op: Op,
        watermark: u8,
    ) -> bool {
        let device = &mut state.devices[usize::from(id)];
        if device.epoch != epoch {
            return false;
        }
        let (client, index) = step_of(op);
        let step = self.step(client, index);
        let last = &mut device.table[self.session(client, step)];
        *last = (*last).max(step.seq);
        let answered = &mut device.answered[self.row(client, step)];
        *answered = (*answered).max(step.seq);
        self.settles(device, op, watermark);
        state.network.send(Packet::Confirmed { client, index });
        true
    }

    /// Handles the answer to a bypass at the head, which passes it on to the client.
    pub(crate) fn passes(
        &self,
        state: &mut State,
        id: u8,
        op: Op,
        answer: Answer,
        watermark: u8,
    ) -> bool {
        let device = &mut state.devices[usize::from(id)];
        self.settles(device, op, watermark);
        let (client, index) = step_of(op);
        state.network.send(Packet::Response {
            client,
            index,
            answer,
        });
        true
    }
}
