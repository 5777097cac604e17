//! Operations that bypass the devices: the client sends them to the store on its own connection, after a barrier. If
//! heads answer reads, the OPEN of a mark session comes first (docs/spec/reads.md §5).

use crate::configuration::{CLIENTS, Call};
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::state::{Device, Op, PASSED, State, op_of, step_of};

/// Position of the bits of [`crate::state::Client::named`] that keep the store's reply to the operation until the
/// second barrier.
pub(crate) const SAID: u8 = 6;
/// Mask of the bits of [`crate::state::Client::named`] that have the number of the store.
const STORE: u8 = 3;

impl Protocol {
    /// Returns the last called operation of the client that bypasses the devices and may change state.
    fn direct_write(&self, state: &State, client: u8) -> Option<u8> {
        let invoked = state.clients[usize::from(client)].invoked;
        (0..invoked)
            .rev()
            .find(|index| self.step(client, *index).call.is_direct_write())
    }

    /// Whether the operation is answered only after a second barrier.
    fn confirmed(&self, client: u8, index: u8) -> bool {
        let plan = &self.plan[usize::from(client)];
        let next = plan.get(usize::from(index) + 1);
        next.is_some_and(|step| step.call == Call::Confirm) && self.on(Rule::DirectConfirmed)
    }

    /// Whether the client must not send an operation to the store yet, because it does not know its mark to be open.
    pub(crate) fn lacks_mark(&self, state: &State, client: u8) -> bool {
        let of = &state.clients[usize::from(client)];
        let own = |index: &u8| {
            let call = self.step(client, *index).call;
            matches!(call, Call::OpenMark | Call::EndMark)
        };
        let last = (0..of.invoked).rev().find(own);
        let open = |index: u8| {
            self.step(client, index).call == Call::OpenMark && of.done & (1 << index) != 0
        };
        self.reads() && self.on(Rule::MarkFirst) && !last.is_some_and(open)
    }

    /// Whether the client may end its mark: no operation under the mark is under way, and none may still be executed.
    pub(crate) fn may_end_mark(&self, state: &State, client: u8) -> bool {
        let of = &state.clients[usize::from(client)];
        let done = |index: u8| of.done & (1 << index) != 0;
        let idle = of.connected == 0 && self.direct_write(state, client).is_none_or(done);
        idle || !self.on(Rule::MarkEndSettled)
    }

    /// Returns the stores to which the client's operation may go now.
    pub(crate) fn connections(&self, state: &State, client: u8) -> Vec<u8> {
        let of = &state.clients[usize::from(client)];
        let named = match self.bypass_under_way(state, client) {
            Some(index) if self.step(client, index).call.is_direct() => of.named,
            _ => 0,
        };
        match named {
            0 => Vec::new(),
            _ if named & PASSED != 0 || of.connected != 0 => Vec::new(),
            // Without [`Rule::StoreNamed`], the client's connection may still lead to the previous store.
            2 if !self.on(Rule::StoreNamed) => vec![0, 1],
            _ => vec![named - 1],
        }
    }

    /// The client's operation reaches the store, and the reply reaches the client. If the operation needs a mark, this
    /// step only sends the operation, and [`Self::executes`] executes it.
    pub(crate) fn direct(&self, state: &mut State, client: u8, store: u8) -> bool {
        let Some(index) = self.bypass_under_way(state, client) else {
            return false;
        };
        if self.step(client, index).call == Call::ReadDirect {
            state.clients[usize::from(client)].named = 0;
            let answer = 1 + state.servers[usize::from(store)].store.values[0];
            return self.ends(state, client, index, answer);
        }
        if self.reads() {
            let ended = state.servers[usize::from(store)].store.table[mark(client)] > 1;
            if ended && self.on(Rule::MarkAlive) || self.lacks_mark(state, client) {
                return false;
            }
            state.clients[usize::from(client)].connected = 1 + store;
            return true;
        }
        self.executes(state, client, store)
    }

    /// Returns the store at which an operation that was sent may be executed.
    pub(crate) fn may_pass(&self, state: &State, client: u8) -> Option<u8> {
        let of = &state.clients[usize::from(client)];
        let store = of.connected.checked_sub(1)?;
        self.stores(state)
            .any(|reachable| reachable == store)
            .then_some(store)
    }

    /// An operation that was sent takes effect at the store. The reply reaches the client, if the client still waits.
    pub(crate) fn executes(&self, state: &mut State, client: u8, store: u8) -> bool {
        let Some(index) = self.direct_write(state, client) else {
            return false;
        };
        let said = self.effect(state, store, op_of(client, index));
        let of = &mut state.clients[usize::from(client)];
        of.connected = 0;
        if of.done & (1 << index) != 0 {
            return true;
        }
        if self.confirmed(client, index) {
            of.named = (1 + store) | PASSED | said << SAID;
            return true;
        }
        of.named = 0;
        self.ends(state, client, index, said)
    }

    /// Handles the answer to the second barrier. The answer names this store.
    pub(crate) fn on_confirm_barrier(
        &self,
        state: &mut State,
        client: u8,
        index: u8,
        store: u8,
    ) -> bool {
        let of = &mut state.clients[usize::from(client)];
        let named = of.named;
        of.named = 0;
        if named & PASSED != 0 {
            if named & STORE == store {
                self.ends(state, client, index - 1, named >> SAID);
            } else {
                // The server has another store now, so the operation's effect may be lost with the old store.
                unknown(state, client, index - 1);
            }
        }
        self.ends(state, client, index, crate::history::NONE)
    }

    /// Whether an operation that was sent may still be executed, although its client no longer waits.
    pub(crate) fn may_close(&self, state: &State, client: u8) -> bool {
        let of = &state.clients[usize::from(client)];
        let done = |index: u8| of.done & (1 << index) != 0;
        of.connected != 0 && self.direct_write(state, client).is_some_and(done)
    }

    /// The store closes the client's connection, and executes no more operations from it.
    pub(crate) fn close(&self, state: &mut State, client: u8) {
        if state.clients[usize::from(client)].connected == 0 {
            return;
        }
        let of = &mut state.clients[usize::from(client)];
        (of.connected, of.named) = (0, 0);
        if let Some(index) = self.direct_write(state, client) {
            unknown(state, client, index);
        }
    }

    /// Before the server applies the END that the head made for a mark, it closes the connections of that mark.
    pub(crate) fn before_end(&self, state: &mut State, op: Op) {
        let (client, index) = step_of(op);
        let expires = self.step(client, index).call == Call::ExpireMark;
        if expires && self.on(Rule::MarkClosed) {
            self.close(state, client);
        }
    }

    /// Whether the head has a mark that may be open: the mark's OPEN is admitted, and its END is not applied yet.
    pub(crate) fn has_mark(&self, device: &Device) -> bool {
        let open = (0u8..)
            .take(CLIENTS)
            .any(|client| device.table[mark(client)] == 1);
        let mut rest = device.applied + 1..=device.last;
        let ending =
            rest.any(|order| device.entry(order) != 0 && self.ends_mark(device.entry(order)));
        open || ending && self.on(Rule::MarkUntilApplied)
    }

    /// Whether this entry is the END of a mark.
    pub(crate) fn ends_mark(&self, op: Op) -> bool {
        let (client, index) = step_of(op);
        let call = self.step(client, index).call;
        matches!(call, Call::EndMark | Call::ExpireMark)
    }
}

/// Returns the row of a client's mark session.
pub(crate) fn mark(client: u8) -> usize {
    CLIENTS + usize::from(client)
}

/// Makes the outcome of the operation unknown: the operation may have taken effect, or may take effect later.
fn unknown(state: &mut State, client: u8, operation: u8) {
    let of = &mut state.clients[usize::from(client)];
    of.done |= 1 << operation;
    of.unknown |= 1 << operation;
}
