//! A client and its session (protocol.md §3): calls in order, updates in a window, a bypass alone; fallback of an
//! update that was not logged. It ignores epochs, so it believes any packet, however old.

use crate::configuration::Call;
use crate::history::{Answer, BEGUN, NONE, SET};
use crate::network::Packet;
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::state::{Bad, PASSED, State, op_of};

impl Protocol {
    /// The bypass that the client waits for.
    pub(crate) fn bypass_under_way(&self, state: &State, client: u8) -> Option<u8> {
        let of = &state.clients[usize::from(client)];
        let last = of.invoked.checked_sub(1)?;
        (of.done & (1 << last) == 0 && !self.step(client, last).logged).then_some(last)
    }

    pub(crate) fn may_invoke(&self, state: &State, client: u8) -> bool {
        let of = &state.clients[usize::from(client)];
        let plan = &self.plan[usize::from(client)];
        if usize::from(of.invoked) == plan.len() || of.fallback != 0 {
            return false;
        }
        let step = self.step(client, of.invoked);
        if step.call == Call::Expire {
            return true;
        }
        // A second barrier, or mark, is sent while the operation before it has not ended.
        let second = matches!(step.call, Call::Confirm | Call::Unmark) && of.named & PASSED != 0;
        if self.bypass_under_way(state, client).is_some() && !second {
            return false;
        }
        let first = &state.clients[0];
        if client == 1 && self.configuration.successive {
            let all = self.plan[0].len();
            if usize::try_from(first.done.count_ones()).is_ok_and(|done| done < all) {
                return false;
            }
        }
        // Two clients with the same program: the first calls first. Otherwise every history would be searched twice.
        if client == 1
            && first.invoked == 0
            && self.configuration.programs[0] == self.configuration.programs[1]
        {
            return false;
        }
        if step.call.is_direct() && !self.is_settled(state, client) && self.on(Rule::DirectSettled)
        {
            return false;
        }
        let asks = self.reads() && step.call.is_question();
        if asks && !self.is_settled(state, client) && self.on(Rule::ReadSettled) {
            return false;
        }
        let open = of.invoked - u8::try_from(of.done.count_ones()).unwrap_or(u8::MAX);
        match step.call {
            // OPEN and END wait for the calls before them.
            Call::Open | Call::End => open == 0,
            _ if step.logged => open < self.configuration.window,
            // A bypass that changes state waits too (design §3).
            _ if step.call.is_question() => true,
            _ if second => true,
            _ => open == 0,
        }
    }

    /// Whether no call that the client has given up can still arrive.
    fn is_settled(&self, state: &State, client: u8) -> bool {
        let of = &state.clients[usize::from(client)];
        let recorded = |index: &u8| {
            let step = self.step(client, *index);
            step.logged || !step.call.is_read()
        };
        let last = (0..of.invoked).rev().find(recorded);
        last.is_none_or(|index| of.unknown & (1 << index) == 0)
    }

    pub(crate) fn invoke(&self, state: &mut State, client: u8) -> bool {
        let of = &mut state.clients[usize::from(client)];
        let index = of.invoked;
        of.invoked += 1;
        state.network.send(if self.step(client, index).logged {
            Packet::Update { client, index }
        } else {
            Packet::Bypass { client, index }
        });
        true
    }

    /// Whether the client may stop waiting for its bypass. An operation between marks is given up only by their end.
    pub(crate) fn may_give_up(&self, state: &State, client: u8) -> bool {
        self.bypass_under_way(state, client).is_some_and(|index| {
            let call = self.step(client, index).call;
            !call.is_marked() && call != Call::Unmark
        })
    }

    pub(crate) fn give_up(&self, state: &mut State, client: u8) -> bool {
        let Some(index) = self.bypass_under_way(state, client) else {
            return false;
        };
        let of = &mut state.clients[usize::from(client)];
        of.done |= 1 << index;
        of.unknown |= 1 << index;
        if of.named & PASSED == 0 {
            of.named = 0;
        }
        true
    }

    pub(crate) fn client_receives(&self, state: &mut State, client: u8, packet: Packet) -> bool {
        match packet {
            Packet::Ack { seq, .. } => self.on_ack(state, client, seq),
            Packet::Response { index, answer, .. } => {
                self.on_response(state, client, index, answer)
            }
            Packet::Hit { index, answer, .. } => self.ends(state, client, index, answer),
            Packet::NotLogged { index, .. } => {
                let of = &mut state.clients[usize::from(client)];
                if of.fallback != 0 || of.done & (1 << index) != 0 {
                    return false;
                }
                of.fallback = index + 1;
                state.network.send(Packet::Fallback { client, index });
                true
            }
            Packet::Confirmed { index, .. } => {
                self.covers(state, client, self.step(client, index).seq)
            }
            _ => false,
        }
    }

    fn on_response(&self, state: &mut State, client: u8, index: u8, answer: Answer) -> bool {
        let of = &mut state.clients[usize::from(client)];
        let call = self.step(client, index).call;
        if of.done & (1 << index) != 0 {
            return false;
        }
        if call.is_marked() {
            return self.on_mark(state, client, answer);
        }
        if call == Call::Unmark {
            return self.on_second_mark(state, client, index, answer);
        }
        if call.is_direct() {
            // The barrier names the store. Only then the operation itself goes there.
            let first = of.named == 0;
            of.named = if first { answer } else { of.named };
            return first;
        }
        if answer == BEGUN && !call.is_read() {
            of.done |= 1 << index;
            of.unknown |= 1 << index;
            return true;
        }
        if call != Call::Confirm {
            return self.ends(state, client, index, answer);
        }
        let same = of.named == answer | PASSED;
        let waits = of.named & PASSED != 0;
        of.named = 0;
        if waits && !same {
            // The store was replaced meanwhile: what the old one answered may be lost with it.
            of.done |= 1 << (index - 1);
            of.unknown |= 1 << (index - 1);
        } else if waits {
            self.ends(state, client, index - 1, SET);
        }
        self.ends(state, client, index, NONE)
    }

    /// The stores that the client's passed-through operation may go to now.
    pub(crate) fn connections(&self, state: &State, client: u8) -> Vec<u8> {
        let of = &state.clients[usize::from(client)];
        let named = match self.bypass_under_way(state, client) {
            Some(index) if self.step(client, index).call.is_direct() => of.named,
            _ => 0,
        };
        match named {
            0 => Vec::new(),
            _ if named & PASSED != 0 => Vec::new(),
            // Without the rule: the connection that it always had.
            2 if !self.on(Rule::StoreNamed) => vec![0, 1],
            _ => vec![named - 1],
        }
    }

    /// A passed-through operation gets to the store, and its reply to the client.
    pub(crate) fn direct(&self, state: &mut State, client: u8, store: u8) -> bool {
        let Some(index) = self.bypass_under_way(state, client) else {
            return false;
        };
        if self.step(client, index).call == Call::ReadDirect {
            state.clients[usize::from(client)].named = 0;
            let answer = 1 + state.servers[usize::from(store)].store.values[0];
            return self.ends(state, client, index, answer);
        }
        self.effect(state, store, op_of(client, index));
        if self.on(Rule::DirectConfirmed) {
            state.clients[usize::from(client)].named = (1 + store) | PASSED;
            return true;
        }
        state.clients[usize::from(client)].named = 0;
        self.ends(state, client, index, SET)
    }

    fn on_ack(&self, state: &mut State, client: u8, seq: u8) -> bool {
        if !self.on(Rule::OneAckForAll) {
            // As in the paper: two acks are two copies, whoever sent them.
            let copies = self.chain(1).members().len();
            let of = &mut state.clients[usize::from(client)];
            of.acks += 1;
            if usize::from(of.acks) < copies {
                return true;
            }
            of.acks = 0;
        }
        self.covers(state, client, seq)
    }

    /// Everything logged up to the seq is acknowledged.
    fn covers(&self, state: &mut State, client: u8, seq: u8) -> bool {
        let mut any = false;
        for index in 0..state.clients[usize::from(client)].invoked {
            let step = self.step(client, index);
            // Nobody waits for the END that the head makes.
            if step.logged && step.seq <= seq && step.call != Call::Expire {
                any |= self.ends(state, client, index, NONE);
            }
        }
        any
    }

    pub(crate) fn ends(&self, state: &mut State, client: u8, index: u8, answer: Answer) -> bool {
        let of = &mut state.clients[usize::from(client)];
        if of.done & (1 << index) != 0 {
            return false;
        }
        of.done |= 1 << index;
        if of.fallback == index + 1 {
            of.fallback = 0;
        }
        // A conditional write that is acknowledged early is reported as done.
        let step = self.step(client, index);
        let answer = if step.logged && step.call == Call::WriteIfNone {
            SET
        } else {
            answer
        };
        let explained = state.record.declared
            || state
                .history
                .returns(&self.plan, &state.clients, client, index, answer);
        if !explained {
            state.bad = Bad::History;
        }
        true
    }
}
