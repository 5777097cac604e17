//! The server: applies entries in order, atomically with A (rule 6), answers bypasses after their barrier (rule 8), and
//! sends APPLIED only for states that all its replicas have (rule 7).
//!
//! The server's store is its memory. The server's steps are atomic, so a crash of the server loses only its waiting
//! room. In the model the waiting room is the network, so a crash of the server changes nothing. Only without
//! [`Rule::ApplyAtomically`] there is a state between an effect and its records.

use crate::configuration::{Call, Change, Step};
use crate::history::{Answer, BEGUN, NONE, SET, perform};
use crate::network::Packet;
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::state::{Bad, Op, Server, State, TORN, op_of, step_of};

impl Protocol {
    pub(crate) fn server_receives(&self, state: &mut State, id: u8, packet: Packet) -> bool {
        if !self.has_server(state, id) {
            return false;
        }
        let server = &state.servers[usize::from(id)];
        match packet {
            Packet::Append {
                epoch, order, op, ..
            } => epoch == server.epoch && self.on_server_append(state, id, order, op),
            Packet::Stamped {
                epoch,
                client,
                index,
                barrier,
                incarnation,
                fallback,
            } => {
                let old = incarnation < server.store.heard && self.on(Rule::OldStamps);
                if epoch != server.epoch || old {
                    return false;
                }
                let waits = server.store.applied < barrier;
                if fallback {
                    let waits = waits && self.on(Rule::FallbackBarrier);
                    return !waits && self.apply_fallback(state, id, client, index);
                }
                let waits = waits && self.on(Rule::Barrier);
                !waits && self.execute(state, id, client, index, false)
            }
            _ => false,
        }
    }

    /// The server executes a bypass, and the store fails after the bypass's effect.
    pub(crate) fn store_fails(&self, state: &mut State, id: u8, packet: Packet) -> bool {
        let Packet::Stamped {
            epoch,
            client,
            index,
            barrier,
            ..
        } = packet
        else {
            return false;
        };
        let server = &state.servers[usize::from(id)];
        let executes = epoch == server.epoch && server.store.applied >= barrier;
        executes && self.execute(state, id, client, index, true)
    }

    /// The store executes a command of a connection that the server has abandoned. This happens only without
    /// [`Rule::Fenced`]. With this rule, the next load of the records fences the connection.
    pub(crate) fn late(&self, state: &mut State, id: u8, client: u8, index: u8) -> bool {
        let op = op_of(client, index);
        self.effect(state, id, op);
        state.servers[usize::from(id)].store.replies[usize::from(client)] = (op, SET);
        true
    }

    /// Whether the server works on this store, and has not left it.
    pub(crate) fn has_server(&self, state: &State, id: u8) -> bool {
        !self.moves() || self.primary(state.record.epoch) == id
    }

    /// Whether the server moves to another store while the old one keeps running.
    pub(crate) fn moves(&self) -> bool {
        self.configuration.changes.contains(&Change::Moved)
    }

    /// Whether all replicas of the server's epoch have the state of this store. A store from which the server moves
    /// away has no replicas.
    pub(crate) fn replicated(&self, state: &State, id: u8) -> bool {
        if self.configuration.servers == 1 || id == 1 || self.moves() {
            return true;
        }
        let [first, second] = &state.servers;
        first.epoch == second.epoch && first.store == second.store
    }

    /// Sends APPLIED, if the server may.
    pub(crate) fn say_applied(&self, state: &mut State, id: u8) {
        let (epoch, order) = (
            state.servers[usize::from(id)].epoch,
            state.servers[usize::from(id)].store.applied,
        );
        if order == 0 || epoch == 0 || self.primary(epoch) != id || !self.has_server(state, id) {
            return;
        }
        // As in the published PMNet, a primary that has lost its replica continues alone.
        let alone = !self.on(Rule::FencedReclaim) && state.servers[1].epoch > epoch;
        if self.replicated(state, id) || alone || !self.on(Rule::ReclaimEverywhere) {
            state.network.send(Packet::Applied { epoch, order });
        }
    }

    /// Applies an entry (`Server::on_append`, `Builder::add`).
    fn on_server_append(&self, state: &mut State, id: u8, order: u8, op: Op) -> bool {
        let server = &mut state.servers[usize::from(id)];
        let store = &mut server.store;
        let early = order > store.applied + 1;
        if server.half
            || order <= store.applied
            || early && self.on(Rule::InOrder) && self.on(Rule::OneOrder)
        {
            return false;
        }
        let bit = 1 << (order - 1);
        if early && store.ahead & bit != 0 {
            return false;
        }
        let (client, index) = step_of(op);
        let step = self.step(client, index);
        let session = self.session(client, step);
        let last = store.table[session];
        let reopens = step.call == Call::Open && !self.on(Rule::SessionNeverReused);
        // A gap in a session's seqs stops the shard.
        if step.seq > last + 1 && !reopens {
            return false;
        }
        let fresh = (step.seq == last + 1 || reopens) && store.ahead & bit == 0;
        let epoch = server.epoch;
        if self.configuration.adversary && !self.all_hold(state, epoch, order) {
            state.bad = Bad::Ahead;
            return true;
        }
        if fresh {
            self.before_end(state, op);
            self.effect(state, id, op);
            let store = &mut state.servers[usize::from(id)].store;
            if !self.on(Rule::ApplyAtomically) {
                state.servers[usize::from(id)].half = true;
                return true;
            }
            let ends = step.call == Call::End && !self.on(Rule::SessionNeverReused);
            store.table[session] = if ends { 0 } else { step.seq };
        }
        let store = &mut state.servers[usize::from(id)].store;
        if early && !self.on(Rule::OneOrder) {
            store.ahead |= bit;
        } else {
            store.applied = order;
            // Orders that were applied ahead are now part of the applied prefix.
            while store.ahead & (1 << store.applied) != 0 {
                store.ahead &= !(1 << store.applied);
                store.applied += 1;
            }
        }
        true
    }

    /// Writes the records of an effect. Only without [`Rule::ApplyAtomically`], which writes both in one step.
    pub(crate) fn finish(&self, state: &mut State) -> bool {
        let server = &mut state.servers[0];
        server.half = false;
        server.store.applied += 1;
        // The entry of the effect is the newest applied entry of its session.
        for (client, plan) in self.plan.iter().enumerate() {
            for (index, step) in (0u8..).zip(plan) {
                let op = op_of(u8::try_from(client).expect("two clients"), index);
                let done = step.logged && server.store.effects & (1 << (op - 1)) != 0;
                let row = self.row(u8::try_from(client).expect("two clients"), *step);
                let seq = &mut server.store.table[row];
                *seq = if done { (*seq).max(step.seq) } else { *seq };
            }
        }
        true
    }

    /// Applies a fallback (`Server::fallback_effects`).
    fn apply_fallback(&self, state: &mut State, id: u8, client: u8, index: u8) -> bool {
        let step = self.step(client, index);
        let (seq, session) = (step.seq, self.session(client, step));
        let op = op_of(client, index);
        let server = &mut state.servers[usize::from(id)];
        let (epoch, last) = (server.epoch, server.store.table[session]);
        let watermark = if self.reads() {
            server.store.applied
        } else {
            0
        };
        if !self.on(Rule::FallbackIdentity) {
            self.effect(state, id, op);
        } else if last + 1 == seq {
            server.store.table[session] = seq;
            self.effect(state, id, op);
        } else if last < seq {
            return false;
        }
        state.network.send_least(Packet::Confirm {
            epoch,
            client,
            index,
            watermark,
        });
        true
    }

    /// Executes a bypass: a read, or a bypass that changes state (`Server::next_execution`).
    fn execute(&self, state: &mut State, id: u8, client: u8, index: u8, fails: bool) -> bool {
        let step = self.step(client, index);
        let session = self.session(client, step);
        let op = op_of(client, index);
        let store = &state.servers[usize::from(id)].store;
        let last = store.table[session];
        if !step.call.is_read() && self.on(Rule::RequestId) {
            let (request, answer) = store.replies[usize::from(client)];
            if request > op || request == op && fails {
                return false;
            }
            if request == op {
                return self.respond(state, id, client, index, answer);
            }
        }
        if last > step.seq && self.on(Rule::LateBypass)
            || last < step.seq && self.on(Rule::OwnUpdatesFirst)
        {
            return false;
        }
        if step.call.is_question() {
            let answer = perform(&step, op, &mut store.values.clone());
            return self.respond(state, id, client, index, answer);
        }
        if step.call.is_read() {
            return self.respond(state, id, client, index, 1 + id);
        }
        let answer = self.effect(state, id, op);
        let store = &mut state.servers[usize::from(id)].store;
        let reply = &mut store.replies[usize::from(client)];
        if fails {
            if self.on(Rule::RecordFirst) {
                *reply = (op, BEGUN);
            }
            return true;
        }
        *reply = (op, answer);
        self.respond(state, id, client, index, answer);
        true
    }

    /// Sends the answer, if all replicas have the state that it shows. Otherwise the bypass is sent again later.
    fn respond(&self, state: &mut State, id: u8, client: u8, index: u8, answer: u8) -> bool {
        if !self.replicated(state, id) && self.on(Rule::RepliesReplicated) {
            return false;
        }
        let Server { epoch, store, .. } = &state.servers[usize::from(id)];
        let call = self.step(client, index).call;
        if self.reads() && !call.is_barrier() {
            state.network.send_least(Packet::Passing {
                epoch: *epoch,
                client,
                index,
                answer,
                watermark: store.applied,
            });
            return true;
        }
        state.network.send(Packet::Response {
            client,
            index,
            answer,
        });
        true
    }

    /// An op takes effect. Checks invariants 2, 3, 5 and 6.
    pub(crate) fn effect(&self, state: &mut State, id: u8, op: Op) -> Answer {
        let store = &mut state.servers[usize::from(id)].store;
        let (client, index) = step_of(op);
        let has = |at: u8| store.effects & (1 << (op_of(client, at) - 1)) != 0;
        let plan = &self.plan[usize::from(client)];
        let call = plan[usize::from(index)].call;
        // An operation on the client's own connection belongs to no session that the server knows. It must take effect
        // between the OPEN and the END of its mark.
        let ends = |other: Call| matches!(other, Call::End | Call::Expire);
        let ended = (0u8..)
            .zip(plan)
            .any(|(at, step)| ends(step.call) && at != index && has(at));
        let changes = |at: u8, step: &Step| {
            at != index
                && (!step.call.is_read() || step.call.is_direct_write())
                && !step.call.is_mark()
        };
        let disorder = (0u8..)
            .zip(plan)
            .filter(|(at, step)| changes(*at, step))
            .any(|(at, step)| {
                if at > index {
                    has(at)
                } else {
                    step.logged && !has(at)
                }
            });
        if op & TORN != 0 {
            state.bad = Bad::Garbage;
        } else if matches!(call, Call::Open | Call::OpenMark) || call.is_end() {
            // OPEN and END change only the session table, not the values.
        } else if ended {
            state.bad = Bad::Ended;
        } else if has(index) {
            state.bad = Bad::Twice;
        } else if disorder {
            state.bad = Bad::Disorder;
        }
        if self.is_foreign(client) && plan[usize::from(index)].keys != 0 {
            return NONE;
        }
        store.effects |= 1 << ((op & !TORN) - 1);
        perform(&plan[usize::from(index)], op & !TORN, &mut store.values)
    }
}
