//! A client and its session (protocol.md §3): calls in order, updates in a window, one bypass at a time, and the
//! fallback of an update that was not logged. The client ignores epochs, so even a very old packet may have an effect
//! on it. Operations that the client sends to the store on its own connection are in `direct.rs`.

use crate::configuration::{Call, KEY};
use crate::history::{Answer, BEGUN, NONE, SET, read};
use crate::network::Packet;
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::state::{Ahead, Bad, PASSED, State, op_of};

impl Protocol {
    /// Returns the bypass for whose answer the client waits.
    pub(crate) fn bypass_under_way(&self, state: &State, client: u8) -> Option<u8> {
        let of = &state.clients[usize::from(client)];
        let own = |index: &u8| {
            let call = self.step(client, *index).call;
            !call.is_mark() && call != Call::ReadOwn
        };
        let last = (0..of.invoked).rev().find(own)?;
        (of.done & (1 << last) == 0 && !self.step(client, last).logged).then_some(last)
    }

    /// Whether this client's updates have payloads of a kind that the server skips.
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
        // The second barrier of an operation is sent although the operation is not answered yet.
        let second = step.call == Call::Confirm && of.named & PASSED != 0;
        // As long as an abandoned operation of the client may still be executed, the session makes no further call.
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
        // If both clients have the same program, the first client begins. Otherwise the search would visit every
        // history twice.
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
            // The read is called in the same turn as its update. Without [`Rule::OwnUnsent`], it may be called at any
            // time until the update is done.
            Call::ReadOwn => under_way(&written),
            // OPEN and END wait for all earlier calls.
            Call::Open | Call::End => open == 0,
            _ if step.logged => open < usize::from(self.configuration.window),
            // A read that the head answers waits until the session's own updates are done.
            _ if asks && step.call != Call::ReadBypass => {
                open == 0 || !self.on(Rule::ReadOwnCommitted)
            }
            _ if step.call.is_question() => true,
            _ if second => true,
            // A bypass that changes state waits until all earlier calls are done (design §3).
            _ => open == 0,
        }
    }

    /// Whether no abandoned call of the client can take effect after this call. A bypass takes effect after all updates
    /// of its session (rule 8). A read that the head answers takes effect after them only if a bypass was answered
    /// since.
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
            // The read has no packet of its own. The updates of this turn, which were held for the read, are sent now.
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

    /// Returns the index of the newest update of the key before this step.
    fn own_write(&self, client: u8, index: u8) -> u8 {
        let writes = |at: &u8| self.step(client, *at).call == Call::Write;
        (0..index).rev().find(writes).unwrap_or(0)
    }

    /// Whether an update is not sent yet, because a read of it will be called in the same turn. `invoked`: number of
    /// called steps.
    fn held(&self, client: u8, update: u8, invoked: u8) -> bool {
        let plan = &self.plan[usize::from(client)];
        let behind = plan.iter().skip(usize::from(invoked));
        let mut behind = behind.skip_while(|step| step.logged);
        let turn = (update..invoked).all(|at| self.step(client, at).logged);
        let read = behind.next().is_some_and(|step| step.call == Call::ReadOwn);
        turn && read && self.on(Rule::OwnUnsent)
    }

    /// Returns the call that the client may abandon: its bypass under way, or the last update of its session.
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
            // This answers the barrier, and names the store. Afterwards the operation itself is sent to this store.
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
            // As in the published PMNet, the client counts two acks as two copies, even if one device has sent both.
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

    /// Ends all logged calls up to this seq as successful, in the client's own session or in its mark session. Also
    /// ends the reads that were called together with one of these updates.
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
                // No client waits for an END that the head makes.
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
        // If a conditional write is acknowledged early, the client is told that the write has set the key.
        let step = self.step(client, index);
        if !step.logged {
            of.ahead = Ahead::default();
        }
        let answer = if step.logged && step.call == Call::WriteIfNone {
            SET
        } else {
            answer
        };
        // Only the front uses a mark session, so no client observes the session's OPEN and END.
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
