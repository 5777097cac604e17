//! What is passed through between two marks (docs/spec/reads.md): the first mark closes its buckets, the second opens
//! them; the operation itself goes to the store on a connection of the client's own.

use crate::history::{Answer, NONE};
use crate::network::Packet;
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::state::{PASSED, State, op_of};

/// Where [`crate::state::Client::named`] keeps what the store said to the operation, until the second mark.
const SAID: u8 = 6;

impl Protocol {
    fn marked(&self, client: u8) -> Option<u8> {
        let plan = &self.plan[usize::from(client)];
        let at = plan.iter().position(|step| step.call.is_marked())?;
        u8::try_from(at).ok()
    }

    /// The mark of a client, as a set of ops.
    pub(crate) fn mark_of(&self, client: u8) -> u8 {
        let mark = self.marked(client);
        mark.map_or(0, |index| 1 << (op_of(client, index) - 1))
    }

    /// The passed-through operation of the client that is under way.
    fn passing(&self, state: &State, client: u8) -> Option<u8> {
        let of = &state.clients[usize::from(client)];
        let index = self.marked(client)?;
        (index < of.invoked && of.done & (1 << index) == 0).then_some(index)
    }

    /// The stores whose epoch the client may look up on its connection now.
    pub(crate) fn may_look(&self, state: &State, client: u8) -> Vec<u8> {
        let of = &state.clients[usize::from(client)];
        if of.named != 0 || self.passing(state, client).is_none() {
            return Vec::new();
        }
        if of.marked == 0 && self.on(Rule::MarkFirst) {
            return Vec::new();
        }
        let same = |store: &u8| state.servers[usize::from(*store)].epoch == of.marked;
        let any = of.marked == 0 || !self.on(Rule::MarkEpoch);
        self.stores(state)
            .filter(|store| any || same(store))
            .collect()
    }

    /// The client's connection leads to this store, whose epoch is the mark's.
    pub(crate) fn look(&self, state: &mut State, client: u8, store: u8) -> bool {
        state.clients[usize::from(client)].named = 1 + store;
        true
    }

    /// The store that the operation may get to now.
    pub(crate) fn may_pass(&self, state: &State, client: u8) -> Option<u8> {
        let named = state.clients[usize::from(client)].named;
        let store = named.checked_sub(1)?;
        let open = named & PASSED == 0 && self.passing(state, client).is_some();
        (open && self.stores(state).any(|reachable| reachable == store)).then_some(store)
    }

    /// The operation gets to the store, and its reply to the client.
    pub(crate) fn pass(&self, state: &mut State, client: u8, store: u8) -> bool {
        let Some(index) = self.passing(state, client) else {
            return false;
        };
        let said = self.effect(state, store, op_of(client, index));
        let of = &mut state.clients[usize::from(client)];
        of.named = (1 + store) | PASSED | said << SAID;
        self.on(Rule::SecondMark) || self.ends(state, client, index, said)
    }

    /// The first mark is answered: the epoch in which it was.
    pub(crate) fn on_mark(&self, state: &mut State, client: u8, epoch: Answer) -> bool {
        let of = &mut state.clients[usize::from(client)];
        let first = of.marked == 0;
        of.marked = if first { epoch } else { of.marked };
        first
    }

    /// The second one is: if it met another epoch, nobody knows what became of the operation.
    pub(crate) fn on_second_mark(
        &self,
        state: &mut State,
        client: u8,
        index: u8,
        epoch: Answer,
    ) -> bool {
        let of = &mut state.clients[usize::from(client)];
        let (same, said) = (of.marked == epoch, of.named >> SAID);
        (of.named, of.marked) = (0, 0);
        if let Some(operation) = self.passing(state, client) {
            if same || !self.on(Rule::SecondMarkEpoch) {
                self.ends(state, client, operation, said);
            } else {
                unknown(state, client, operation);
            }
        }
        self.ends(state, client, index, NONE)
    }

    /// The server ends a mark: it kills the connection that the mark named, then closes the record.
    pub(crate) fn end_mark(&self, state: &mut State, id: u8, client: u8) -> bool {
        let named = state.clients[usize::from(client)].named;
        let connected = named != 0 || self.on(Rule::MarkNamesConnection);
        if let Some(operation) = self.passing(state, client)
            && named & PASSED == 0
            && connected
            && self.on(Rule::MarkKilled)
        {
            unknown(state, client, operation);
            let of = &mut state.clients[usize::from(client)];
            (of.named, of.marked) = (0, 0);
        }
        let store = &mut state.servers[usize::from(id)].store;
        store.marks &= !(1 << client);
        self.say_ended(state, id, client)
    }

    /// The server's own second mark, when it is in all replicas.
    pub(crate) fn say_ended(&self, state: &mut State, id: u8, client: u8) -> bool {
        if !self.replicated(state, id) && self.on(Rule::RepliesReplicated) {
            return true;
        }
        let server = &state.servers[usize::from(id)];
        let (epoch, watermark) = (server.epoch, server.store.applied);
        state.network.send_least(Packet::MarkEnded {
            epoch,
            client,
            watermark,
        });
        true
    }

    /// The server's own second mark passes the head.
    pub(crate) fn on_mark_ended(
        &self,
        state: &mut State,
        id: u8,
        epoch: u8,
        client: u8,
        watermark: u8,
    ) -> bool {
        let device = &mut state.devices[usize::from(id)];
        if device.epoch != epoch {
            return false;
        }
        let mark = self.mark_of(client) & device.index.outstanding;
        let gone: Vec<_> = (1..=8).filter(|op| mark & (1 << (op - 1)) != 0).collect();
        let order = self.on(Rule::ReplyInvalidates).then_some(watermark);
        self.settles(device, &gone, order);
        true
    }
}

/// Nobody knows whether the operation has taken effect, or will.
fn unknown(state: &mut State, client: u8, operation: u8) {
    let of = &mut state.clients[usize::from(client)];
    of.done |= 1 << operation;
    of.unknown |= 1 << operation;
}
