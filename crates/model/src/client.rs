//! A client and its session (protocol.md §3): calls in order, updates in a window, a bypass alone; fallback of an
//! update that was not logged. It looks at no epochs: it may be fooled by any packet, however old. What goes to the
//! store on a connection of the client's own: `direct.rs`.

use crate::configuration::{Call, KEY};
use crate::history::{Answer, BEGUN, NONE, SET, read};
use crate::network::Packet;
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::state::{Ahead, Bad, PASSED, State, op_of};

impl Protocol {
    /// The bypass that the client waits for.
    pub(crate) fn bypass_under_way(&self, state: &State, client: u8) -> Option<u8> {
        let of = &state.clients[usize::from(client)];
        let own = |index: &u8| {
            let call = self.step(client, *index).call;
            !call.is_mark() && call != Call::ReadOwn
        };
        let last = (0..of.invoked).rev().find(own)?;
        (of.done & (1 << last) == 0 && !self.step(client, last).logged).then_some(last)
    }

    /// Whether the updates of this client are of a kind that the server skips.
    pub(crate) fn is_foreign(&self, client: u8) -> bool {
        self.configuration.foreign && client == 1
    }

    /// Whether this client was told that the server would skip its updates.
    pub(crate) fn is_refused(&self, state: &State, client: u8) -> bool {
        self.is_foreign(client) && state.clients[usize::from(client)].unknown & 1 != 0
    }

    pub(crate) fn may_invoke(&self, state: &State, client: u8) -> bool {
        let of = &state.clients[usize::from(client)];
        let plan = &self.plan[usize::from(client)];
        let ended = usize::from(of.invoked) == plan.len() || self.is_refused(state, client);
        if ended || of.fallback != 0 {
            return false;
        }
        let step = self.step(client, of.invoked);
        match step.call {
            call if call.is_expiry() => return true,
            Call::OpenMark => return true,
            Call::EndMark => return self.may_end_mark(state, client),
            _ => {}
        }
        // A second barrier goes while the operation before it has not ended.
        let second = step.call == Call::Confirm && of.named & PASSED != 0;
        // Behind an operation that was given up, and may be on its way yet, the session does nothing more.
        let waits = self.bypass_under_way(state, client).is_some() || of.connected != 0;
        if waits && !second {
            return false;
        }
        let first = &state.clients[0];
        if client == 1 && self.configuration.successive {
            let all = self.plan[0].len();
            if usize::try_from(first.done.count_ones()).is_ok_and(|done| done < all) {
                return false;
            }
        }
        // Clients with the same program: the first calls first, or every history would be searched twice.
        if client == 1
            && first.invoked == 0
            && self.configuration.programs[0] == self.configuration.programs[1]
        {
            return false;
        }
        let settled = self.is_settled(state, client, step.call);
        if step.call.is_direct() && !settled && self.on(Rule::DirectSettled) {
            return false;
        }
        let unmarked = step.call.is_direct_write() && self.lacks_mark(state, client);
        if unmarked && self.on(Rule::MarkBeforeBarrier) {
            return false;
        }
        let asks = self.reads() && step.call.is_question() && step.call != Call::ReadOwn;
        if asks && !settled && self.on(Rule::ReadSettled) {
            return false;
        }
        let waited_for = |index: &u8| {
            let call = self.step(client, *index).call;
            !call.is_mark() && !call.is_expiry() && call != Call::ReadOwn
        };
        let under_way = |index: &u8| of.done & (1 << index) == 0;
        let open = (0..of.invoked).filter(waited_for).filter(under_way).count();
        let written = self.own_write(client, of.invoked);
        match step.call {
            // In the turn in which the update was called; without the rule, at any time until that is done.
            Call::ReadOwn => under_way(&written),
            // OPEN and END wait for what was before.
            Call::Open | Call::End => open == 0,
            _ if step.logged => open < usize::from(self.configuration.window),
            // A read that the head answers waits for the session's own updates.
            _ if asks && step.call != Call::ReadBypass => {
                open == 0 || !self.on(Rule::ReadOwnCommitted)
            }
            _ if step.call.is_question() => true,
            _ if second => true,
            // A bypass that changes state waits too (design §3).
            _ => open == 0,
        }
    }

    /// Whether nothing that the client has given up can still take effect behind this call. A bypass comes behind all
    /// updates of its session (rule 8); a read that the head answers does so when a bypass was answered.
    fn is_settled(&self, state: &State, client: u8, call: Call) -> bool {
        let of = &state.clients[usize::from(client)];
        let recorded = |index: &u8| {
            let step = self.step(client, *index);
            (step.logged || !step.call.is_read()) && !step.call.is_mark()
        };
        let Some(last) = (0..of.invoked).rev().find(recorded) else {
            return true;
        };
        if of.unknown & (1 << last) == 0 {
            return true;
        }
        let bypass = |at: u8| self.step(client, at).call == Call::ReadBypass;
        let answered = |at: u8| bypass(at) && of.done & !of.unknown & (1 << at) != 0;
        let behind = call.is_direct() || call == Call::ReadBypass;
        self.step(client, last).logged && (behind || (last..of.invoked).any(answered))
    }

    pub(crate) fn invoke(&self, state: &mut State, client: u8) -> bool {
        let of = &mut state.clients[usize::from(client)];
        let index = of.invoked;
        of.invoked += 1;
        let step = self.step(client, index);
        if step.call == Call::ReadOwn {
            // It has no packet of its own; now those of its turn go.
            for index in (0..index).filter(|at| self.held(client, *at, index)) {
                state.network.send(Packet::Update { client, index });
            }
        } else if !step.logged {
            state.network.send(Packet::Bypass { client, index });
        } else if !self.held(client, index, index + 1) {
            state.network.send(Packet::Update { client, index });
        }
        true
    }

    /// The newest update of the key before this step.
    fn own_write(&self, client: u8, index: u8) -> u8 {
        let writes = |at: &u8| self.step(client, *at).call == Call::Write;
        (0..index).rev().find(writes).unwrap_or(0)
    }

    /// Whether an update waits, when this many steps are called, for the read of it that is called in the same turn.
    fn held(&self, client: u8, update: u8, invoked: u8) -> bool {
        let plan = &self.plan[usize::from(client)];
        let behind = plan.iter().skip(usize::from(invoked));
        let mut behind = behind.skip_while(|step| step.logged);
        let turn = (update..invoked).all(|at| self.step(client, at).logged);
        let read = behind.next().is_some_and(|step| step.call == Call::ReadOwn);
        turn && read && self.on(Rule::OwnUnsent)
    }

    /// What the client may stop waiting for: its bypass, or the last update of its session.
    fn may_be_given_up(&self, state: &State, client: u8) -> Option<u8> {
        let of = &state.clients[usize::from(client)];
        let update = || {
            let index = of.invoked.checked_sub(1)?;
            let step = self.step(client, index);
            let sent = step.logged && step.keys != 0 && !self.held(client, index, of.invoked);
            (sent && of.done & (1 << index) == 0 && of.fallback == 0).then_some(index)
        };
        let bypass = self
            .bypass_under_way(state, client)
            .filter(|_| self.configuration.impatient);
        bypass.or_else(|| update().filter(|_| self.configuration.abandons))
    }

    pub(crate) fn may_give_up(&self, state: &State, client: u8) -> bool {
        self.may_be_given_up(state, client).is_some()
    }

    pub(crate) fn give_up(&self, state: &mut State, client: u8) -> bool {
        let Some(index) = self.may_be_given_up(state, client) else {
            return false;
        };
        let of = &mut state.clients[usize::from(client)];
        of.done |= 1 << index;
        of.unknown |= 1 << index;
        if !self.step(client, index).logged {
            of.ahead = Ahead::default();
        }
        if of.named & PASSED == 0 {
            of.named = 0;
        }
        true
    }

    pub(crate) fn client_receives(&self, state: &mut State, client: u8, packet: Packet) -> bool {
        match packet {
            Packet::Ack { mark, seq, .. } => self.on_ack(state, client, mark, seq),
            Packet::Response { index, answer, .. } => {
                self.on_response(state, client, index, answer)
            }
            Packet::Hit { index, answer, .. } => self.ends(state, client, index, answer),
            Packet::NotLogged { index, .. } => {
                let of = &mut state.clients[usize::from(client)];
                if of.fallback != 0 || of.done & (1 << index) != 0 {
                    return false;
                }
                if self.step(client, index).call == Call::Open {
                    of.done |= 1 << index;
                    of.unknown |= 1 << index;
                    return true;
                }
                of.fallback = index + 1;
                state.network.send(Packet::Fallback { client, index });
                true
            }
            Packet::Confirmed { index, .. } => {
                self.covers(state, client, false, self.step(client, index).seq)
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
        self.on_confirm_barrier(state, client, index, answer)
    }

    fn on_ack(&self, state: &mut State, client: u8, mark: bool, seq: u8) -> bool {
        if !self.on(Rule::OneAckForAll) {
            // As published: two acks are two copies, whoever sent them.
            let copies = self.chain(1).members().len();
            let of = &mut state.clients[usize::from(client)];
            of.acks += 1;
            if usize::from(of.acks) < copies {
                return true;
            }
            of.acks = 0;
        }
        self.covers(state, client, mark, seq)
    }

    /// Everything logged up to the seq, in either session, has ended well; and so has a read of it that was called with it.
    fn covers(&self, state: &mut State, client: u8, mark: bool, seq: u8) -> bool {
        let mut any = false;
        for index in 0..state.clients[usize::from(client)].invoked {
            let step = self.step(client, index);
            let own = step.call == Call::ReadOwn;
            let update = if own {
                self.own_write(client, index)
            } else {
                index
            };
            if self.step(client, update).seq > seq || step.call.is_mark() != mark {
                continue;
            }
            if own {
                let value = op_of(client, update);
                any |= self.ends(state, client, index, read(KEY, [value, 0]));
            } else if step.logged && !step.call.is_expiry() {
                // Nobody waits for the END that the head makes.
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
        if !step.logged {
            of.ahead = Ahead::default();
        }
        let answer = if step.logged && step.call == Call::WriteIfNone {
            SET
        } else {
            answer
        };
        // A mark session is the front's own affair: nobody sees when it opens and ends.
        let explained = step.call.is_mark()
            || state.record.declared
            || state
                .history
                .returns(&self.plan, &state.clients, client, index, answer);
        if !explained {
            state.bad = Bad::History;
        }
        true
    }
}
