//! What passes a head without being logged (rule 8, protocol.md §4 Fallback), and the head's cache (design §6).

use crate::configuration::Call;
use crate::history::Answer;
use crate::network::Packet;
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::state::{Cached, Record, State, op_of};

impl Protocol {
    /// Whether a removed head may still answer from its cache, so that a head of this epoch must wait.
    pub(crate) fn leased_elsewhere(&self, record: &Record, epoch: u8) -> bool {
        self.configuration.cache && epoch > 1 && !record.lease_over && self.on(Rule::Lease)
    }

    /// Stamps a bypass, or answers it from the cache.
    pub(crate) fn on_bypass(&self, state: &mut State, id: u8, client: u8, index: u8) -> bool {
        let (step, session) = (self.step(client, index), self.session(client));
        let ticket = if self.configuration.cache { 1 + id } else { 0 };
        let device = &state.devices[usize::from(id)];
        if self.on(Rule::OwnUpdatesFirst) && device.table[session] < step.seq {
            return false;
        }
        if self.leased_elsewhere(&state.record, device.epoch) && self.on(Rule::LeaseCoversReads) {
            return false;
        }
        let (epoch, barrier) = (device.epoch, device.last);
        if self.configuration.cache && !step.call.is_read() {
            self.leaves(state, id, client, index);
        }
        let device = &state.devices[usize::from(id)];
        let cached = device.cached;
        let removed = epoch < state.record.epoch;
        let leased = !removed || !state.record.lease_over || !self.on(Rule::Lease);
        let quiet = device.outstanding == [0; 2];
        let hit = cached.valid && quiet && cached.order <= device.committed && leased;
        state.network.send(if step.call == Call::Read && hit {
            let answer = 1 + cached.value;
            Packet::Response {
                client,
                index,
                answer,
                ticket: 0,
            }
        } else {
            let fallback = false;
            Packet::Stamped {
                epoch,
                client,
                index,
                barrier,
                ticket,
                fallback,
            }
        });
        true
    }

    /// Stamps a fallback.
    pub(crate) fn on_fallback(&self, state: &mut State, id: u8, client: u8, index: u8) -> bool {
        let device = &state.devices[usize::from(id)];
        if device.table[self.session(client)] + 1 < self.step(client, index).seq {
            return false;
        }
        let (epoch, barrier) = (device.epoch, device.last);
        let (ticket, fallback) = (0, true);
        state.network.send(Packet::Stamped {
            epoch,
            client,
            index,
            barrier,
            ticket,
            fallback,
        });
        true
    }

    /// A confirmed fallback passes: the head moves the session, then hands it on (`Device::on_server_answer`).
    pub(crate) fn on_confirm(
        &self,
        state: &mut State,
        id: u8,
        epoch: u8,
        client: u8,
        index: u8,
    ) -> bool {
        let device = &mut state.devices[usize::from(id)];
        if device.epoch != epoch {
            return false;
        }
        let seq = self.step(client, index).seq;
        let last = &mut device.table[self.session(client)];
        *last = (*last).max(seq);
        let answered = &mut device.answered[usize::from(client)];
        *answered = (*answered).max(seq);
        state.network.send(Packet::Confirmed { client, index });
        true
    }

    /// A bypass that changes state leaves the head: until its answer passes, the cache knows nothing.
    fn leaves(&self, state: &mut State, id: u8, client: u8, index: u8) {
        let device = &mut state.devices[usize::from(id)];
        if self.on(Rule::CacheOutstanding) {
            device.outstanding[usize::from(client)] = op_of(client, index);
        } else {
            device.outstanding[0] = (device.outstanding[0] + 1).min(3);
        }
        device.cached.valid = false;
        self.raise(state, id);
    }

    /// Its answer passes the head.
    pub(crate) fn passes(
        &self,
        state: &mut State,
        id: u8,
        epoch: u8,
        client: u8,
        index: u8,
        answer: Answer,
    ) -> bool {
        let device = &mut state.devices[usize::from(id)];
        if device.epoch != epoch {
            return false;
        }
        let one = &mut device.outstanding[usize::from(client)];
        if !self.on(Rule::CacheOutstanding) {
            device.outstanding[0] = device.outstanding[0].saturating_sub(1);
        } else if *one == op_of(client, index) {
            *one = 0;
        }
        device.cached.valid = false;
        self.raise(state, id);
        state.network.send(Packet::Response {
            client,
            index,
            answer,
            ticket: 0,
        });
        true
    }

    /// The head's cache ticket rises: no reply to a read that was stamped before may fill the cache.
    pub(crate) fn raise(&self, state: &mut State, id: u8) {
        if !self.configuration.cache || !self.on(Rule::CacheTicket) {
            return;
        }
        let old = |ticket| if ticket == 1 + id { 0 } else { ticket };
        state.network.change(|packet| match packet {
            Packet::Stamped {
                epoch,
                client,
                index,
                barrier,
                ticket,
                fallback,
            } => {
                let ticket = old(ticket);
                Packet::Stamped {
                    epoch,
                    client,
                    index,
                    barrier,
                    ticket,
                    fallback,
                }
            }
            Packet::Response {
                client,
                index,
                answer,
                ticket,
            } => {
                let ticket = old(ticket);
                Packet::Response {
                    client,
                    index,
                    answer,
                    ticket,
                }
            }
            other => other,
        });
    }

    /// A reply under the newest ticket passes the head; as published: any, when the entry's update is applied.
    pub(crate) fn fill(&self, state: &mut State, id: u8, answer: Answer) -> bool {
        let device = &mut state.devices[usize::from(id)];
        let stale_is_over = !device.cached.valid || device.cached.order <= device.applied;
        let outstanding = device.outstanding != [0; 2];
        if outstanding || !self.on(Rule::CacheTicket) && !stale_is_over {
            return false;
        }
        device.cached = Cached {
            valid: true,
            order: 0,
            value: answer - 1,
        };
        true
    }
}
