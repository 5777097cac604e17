//! A device that serves (protocol.md §2, §4): admission at the head, appends along the chain, commit, reclaim.

use crate::configuration::{CLIENTS, Call};
use crate::network::{Node, Packet};
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::state::{Bad, Device, ORDERS, Op, Phase, State, TORN, op_of, step_of};

impl Device {
    /// Returns the entry at an order; 0: there is none, or it is freed.
    #[must_use]
    pub fn entry(&self, order: u8) -> Op {
        self.log[usize::from(order) - 1]
    }

    pub(crate) fn append(&mut self, op: Op) -> bool {
        if usize::from(self.last) == ORDERS {
            return false;
        }
        self.log[usize::from(self.last)] = op;
        self.last += 1;
        true
    }

    pub(crate) fn free(&mut self, up_to: u8) {
        for order in self.applied + 1..=up_to {
            self.log[usize::from(order) - 1] = 0;
        }
        self.applied = self.applied.max(up_to);
    }
}

impl Protocol {
    pub(crate) fn device_receives(&self, state: &mut State, id: u8, packet: Packet) -> bool {
        if let Packet::Reply { .. } = packet {
            return self.on_reply(state, packet);
        }
        if state.devices[usize::from(id)].phase != Phase::Serving {
            return false;
        }
        match packet {
            Packet::Update { client, index } => self.on_update(state, id, client, index),
            Packet::Bypass { client, index } => self.on_bypass(state, id, client, index),
            Packet::Fallback { client, index } => self.on_fallback(state, id, client, index),
            Packet::Append {
                epoch, order, op, ..
            } => self.on_append(state, id, epoch, order, op),
            Packet::Durable { epoch, order } => self.on_durable(state, id, epoch, order),
            Packet::Applied { epoch, order } => self.on_applied(state, id, epoch, order),
            Packet::Confirm {
                epoch,
                client,
                index,
                watermark,
            } => self.on_confirm(state, id, epoch, op_of(client, index), watermark),
            Packet::Passing {
                epoch,
                client,
                index,
                answer,
                watermark,
            } => {
                let mine = state.devices[usize::from(id)].epoch == epoch;
                mine && self.passes(state, id, op_of(client, index), answer, watermark)
            }
            _ => false,
        }
    }

    /// Admits a client's packet at the head, by rules 1 and 2 (`Device::on_client_entry`).
    fn on_update(&self, state: &mut State, id: u8, client: u8, index: u8) -> bool {
        let step = self.step(client, index);
        let session = self.session(client, step);
        let op = op_of(client, index);
        let device = &mut state.devices[usize::from(id)];
        if !self.on(Rule::Identity) {
            // As in the published PMNet, an update with the hash of an earlier update counts as its duplicate.
            let alike = (device.applied + 1..=device.committed).find(|order| {
                let entry = device.entry(*order);
                entry != 0 && entry != op && self.hash(entry) == step.seq
            });
            if alike.is_some() {
                let (seq, copies) = (step.seq, 1);
                let mark = false;
                state.network.send(Packet::Ack {
                    client,
                    mark,
                    seq,
                    copies,
                });
                return true;
            }
        }
        let last = device.table[session];
        let reopens = step.call == Call::Open && !self.on(Rule::SessionNeverReused);
        let next = if self.on(Rule::SessionOrder) {
            step.seq == last + 1
        } else {
            step.seq > last
        };
        if !next && !reopens {
            return false;
        }
        let refused = step.call == Call::Open && self.is_foreign(client);
        if refused && self.on(Rule::TakenPayloads) {
            return self.refuse(state, client, index);
        }
        if device.last - device.applied >= self.configuration.capacity {
            // Only an update is refused. A client simply sends an OPEN or END again.
            return step.keys != 0 && self.refuse(state, client, index);
        }
        if !device.append(op) {
            return false;
        }
        let ends = step.call == Call::End && !self.on(Rule::SessionNeverReused);
        device.table[session] = if ends { 0 } else { step.seq };
        self.index(device, device.last, op);
        true
    }

    /// The head refuses an update, because its log has no room.
    pub(crate) fn refuse(&self, state: &mut State, client: u8, index: u8) -> bool {
        state.network.send(Packet::NotLogged { client, index });
        true
    }

    /// Returns the hash of an update. The updates of both clients with the same seq have the same hash.
    pub(crate) fn hash(&self, op: Op) -> u8 {
        let (client, index) = step_of(op);
        self.step(client, index).seq
    }

    /// Takes an entry at a follower, by rules 3 and 4 (`Device::on_append`).
    fn on_append(&self, state: &mut State, id: u8, epoch: u8, order: u8, op: Op) -> bool {
        let device = &mut state.devices[usize::from(id)];
        if device.epoch != epoch {
            return false;
        }
        if order <= device.last {
            if order > device.applied && device.entry(order) != op {
                state.bad = Bad::Fork;
                return true;
            }
            return false;
        }
        if order > device.last + 1 {
            if self.on(Rule::InOrder) {
                return false;
            }
            device.last = order - 1;
        }
        device.append(op)
    }

    /// Handles DURABLE at the head, by rule 5 (`Device::on_durable`).
    fn on_durable(&self, state: &mut State, id: u8, epoch: u8, order: u8) -> bool {
        let device = &mut state.devices[usize::from(id)];
        if device.epoch != epoch || order <= device.below {
            return false;
        }
        device.below = order;
        true
    }

    /// Handles APPLIED, by rule 7 (`Device::on_applied`).
    fn on_applied(&self, state: &mut State, id: u8, epoch: u8, order: u8) -> bool {
        let device = &mut state.devices[usize::from(id)];
        let mine = device.epoch == epoch || !self.on(Rule::FencedReclaim);
        let order = order.min(device.durable);
        if !mine || order <= device.applied {
            return false;
        }
        if !self.on(Rule::ReclaimByOrder) {
            // As in the published PMNet, the entry to free is found by a hash of the update.
            for freed in device.applied + 1..=order {
                let hash = match device.entry(freed) {
                    0 => continue,
                    entry => self.hash(entry),
                };
                for other in order + 1..=device.last {
                    if device.entry(other) != 0 && self.hash(device.entry(other)) == hash {
                        device.log[usize::from(other) - 1] = 0;
                    }
                }
            }
        }
        // Entries up to A are committed, because the server got them from the tail.
        device.committed = device.committed.max(order);
        self.answer_up_to(device, order);
        self.marks_end(device, order);
        device.free(order);
        Self::know(device);
        true
    }

    /// Raises the sessions' committed seqs by the entries up to an order.
    fn answer_up_to(&self, device: &mut Device, order: u8) {
        for at in device.applied + 1..=order {
            let op = device.entry(at);
            if op != 0 {
                let (client, index) = step_of(op);
                let step = self.step(client, index);
                let seq = &mut device.answered[self.row(client, step)];
                *seq = (*seq).max(step.seq);
            }
        }
    }

    pub(crate) fn persist(&self, state: &mut State, id: u8) -> bool {
        let device = &mut state.devices[usize::from(id)];
        device.durable += 1;
        if !self.on(Rule::OneAckForAll) {
            let (client, index) = step_of(device.entry(device.durable));
            let step = self.step(client, index);
            state.network.send(Packet::Ack {
                client,
                mark: step.call.is_mark(),
                seq: step.seq,
                copies: 1,
            });
        }
        true
    }

    /// Sends every packet that the device may send now: acks of committed updates, DURABLE, and entries to the next
    /// hop.
    pub(crate) fn flush(&self, state: &mut State, id: u8) {
        let State {
            devices,
            network,
            record,
            ..
        } = state;
        let device = &mut devices[usize::from(id)];
        if device.phase != Phase::Serving || device.epoch == 0 || !self.chain(device.epoch).has(id)
        {
            return;
        }
        let chain = self.chain(device.epoch);
        let epoch = device.epoch;
        if chain.head() == id {
            let alone = chain.next(id).is_none() || !self.on(Rule::AckWhenAllHold);
            let held = if alone {
                device.durable
            } else {
                device.durable.min(device.below)
            };
            let held = if self.leased_elsewhere(record, epoch) {
                device.committed
            } else {
                held
            };
            if held > device.committed {
                self.answer_up_to(device, held);
                device.committed = held;
                Self::know(device);
            }
            let copies = u8::try_from(chain.members().len()).unwrap_or(u8::MAX);
            for (row, seq) in device.answered.into_iter().enumerate() {
                let (client, mark) = (u8::from(row % CLIENTS != 0), row >= CLIENTS);
                let silent = self.leased_elsewhere(record, epoch)
                    || self.is_silent(device)
                    || !self.on(Rule::OneAckForAll);
                if seq > 0 && !silent {
                    network.send(Packet::Ack {
                        client,
                        mark,
                        seq,
                        copies,
                    });
                }
            }
        } else if device.durable > 0 {
            network.send(Packet::Durable {
                epoch,
                order: device.durable,
            });
        }
        let to = match chain.next(id) {
            Some(next) => Node::Device(next),
            None => Node::Server(self.primary(epoch)),
        };
        let end = if self.on(Rule::WriteAhead) {
            device.durable
        } else {
            device.last
        };
        for order in device.applied + 1..=end {
            let op = device.entry(order);
            if op != 0 {
                network.send(Packet::Append {
                    epoch,
                    order,
                    op,
                    to,
                });
            }
        }
    }

    /// A crash: entries that were not durable are lost or torn, and memory is lost. The device restarts and sends
    /// RECOVER.
    pub(crate) fn crash(&self, state: &mut State, id: u8) -> bool {
        let device = &mut state.devices[usize::from(id)];
        let torn = !self.on(Rule::EntryChecksum) && device.durable < device.last;
        if torn {
            device.log[usize::from(device.durable)] |= TORN;
            device.durable += 1;
        }
        for entry in device.log.iter_mut().skip(usize::from(device.durable)) {
            *entry = 0;
        }
        *device = Device {
            phase: Phase::Asking,
            epoch: device.epoch,
            incarnation: device.incarnation + 1,
            last: device.durable,
            durable: device.durable,
            applied: device.applied,
            log: device.log,
            ..Device::default()
        };
        true
    }
}
