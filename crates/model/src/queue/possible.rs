//! The possible steps of a state.

use crate::configuration::CLIENTS;
use crate::queue::state::{Content, Life, Slot, State, Status};
use crate::queue::{Action, Event, Machine};
use crate::rule::Rule;

const BOTH: [u8; CLIENTS] = [0, 1];

impl Machine {
    pub(super) fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        for client in BOTH {
            if self.may_call(state, client) {
                actions.push(Action::Invoke(client));
            }
            if !(client == 0 && state.dead) {
                self.of_client(state, client, actions);
            }
        }
        for (slot, at) in (0..self.queue.slots).zip(&state.slots) {
            self.of_slot(state, slot, at, actions);
        }
        if state.life == Life::Serves && state.kept < state.processed {
            actions.push(Action::Keep);
        }
        self.faults(state, actions);
        self.events(state, actions);
    }

    fn may_call(&self, state: &State, client: u8) -> bool {
        let of = &state.clients[usize::from(client)];
        let gone = client == 0 && (state.dead || self.ended(state));
        if gone || of.invoked == self.calls(client) {
            return false;
        }
        let open = (0..of.invoked).filter(|index| of.done & (1 << index) == 0);
        let reads = open.clone().any(|at| !self.step(client, at).logged);
        let window = if self.step(client, of.invoked).logged {
            usize::from(self.configuration.window)
        } else {
            1
        };
        !reads && open.count() < window
    }

    /// Whether the server has ended the first client's session, or has begun to end it.
    fn ended(&self, state: &State) -> bool {
        self.ends_session() && (state.cut_off || state.over)
    }

    fn of_client(&self, state: &State, client: u8, actions: &mut Vec<Action>) {
        let connection = &state.connections[usize::from(client)];
        let of = &state.clients[usize::from(client)];
        if connection.up {
            self.of_connection(state, client, actions);
        } else {
            let first = self.first_open(state, client);
            let refused = state.cut_off && (client == 0 || !self.ends_session());
            let serves = state.life == Life::Serves && !refused;
            if serves && first < of.invoked {
                actions.push(Action::Connect(client, first));
                if !self.on(Rule::ResendFirst) && first + 1 < of.invoked {
                    actions.push(Action::Connect(client, first + 1));
                }
            }
        }
        let open = of.invoked > 0 && of.done & (1 << (of.invoked - 1)) == 0;
        let read = open && !self.step(client, of.invoked - 1).logged;
        if read && state.life == Life::Serves && !self.on(Rule::SameQueue) {
            actions.push(Action::ReadPast(client));
        }
    }

    fn of_connection(&self, state: &State, client: u8, actions: &mut Vec<Action>) {
        let connection = &state.connections[usize::from(client)];
        let of = &state.clients[usize::from(client)];
        let busy = state
            .slots
            .iter()
            .any(|slot| slot.status == Status::Taken(client));
        if busy {
            actions.push(Action::Place(client));
        } else if connection.next < of.invoked {
            let any = if self.on(Rule::SrqOrder) {
                1
            } else {
                state.posted.len()
            };
            let slots = state.posted.iter().take(any);
            actions.extend(slots.map(|slot| Action::Take(client, *slot)));
        }
        if connection.placed != 0 {
            let drained = if self.on(Rule::DrainRead) {
                Action::Drain(client)
            } else {
                Action::Ack(client)
            };
            actions.push(drained);
        }
        if self.queue.event == Event::HeadLost {
            actions.push(Action::Acknowledge(client));
        }
        if connection.reply.0 != 0 {
            actions.push(Action::Reply(client));
        }
        if state.cuts < self.queue.cuts {
            actions.push(Action::Cut(client));
        }
    }

    fn of_slot(&self, state: &State, slot: u8, at: &Slot, actions: &mut Vec<Action>) {
        if state.life != Life::Serves {
            return;
        }
        let oldest = slot == self.slot_of(state.processed);
        match at.status {
            Status::Complete(client, good) => {
                actions.push(Action::See(slot));
                let up = state.connections[usize::from(client)].up;
                if good && !up && !self.on(Rule::DrainFirst) {
                    actions.push(Action::Destroy(client));
                }
            }
            Status::Seen(..) if oldest || !self.on(Rule::FirstHole) => {
                actions.push(Action::HandOn(slot));
            }
            Status::Taken(0) if oldest && state.dead && self.on(Rule::HeadDeadline) => {
                actions.push(Action::Deadline);
            }
            Status::Free => {
                let turn = slot == self.slot_of(state.next) || !self.on(Rule::RingOrder);
                let written = if self.on(Rule::ProcessedFirst) {
                    state.kept
                } else {
                    state.processed
                };
                if turn && state.next < written + self.queue.slots {
                    actions.push(Action::Post(slot));
                }
            }
            _ => {}
        }
    }

    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        match state.life {
            Life::Down => actions.push(Action::Scan),
            Life::Scanned => actions.push(Action::Start),
            Life::Serves | Life::Left => {}
        }
        if state.crashes == self.configuration.crashes || state.life == Life::Down {
            return;
        }
        let choices = |slot: &Slot| match slot.holds {
            holds if holds == slot.before => 1,
            // The slot is torn in any case.
            Content::Torn(_) => 2,
            _ => 3,
        };
        let slots = &state.slots[..usize::from(self.queue.slots)];
        let possible = |code: &u8| {
            let mut rest = *code;
            slots.iter().all(|slot| {
                let digit = rest % 3;
                rest /= 3;
                digit < choices(slot)
            })
        };
        let codes = 0..3_u8.pow(u32::from(self.queue.slots));
        actions.extend(codes.filter(possible).map(Action::Fail));
    }

    fn events(&self, state: &State, actions: &mut Vec<Action>) {
        if state.over || state.life != Life::Serves {
            return;
        }
        let waits = |slot: &Slot| slot.waits();
        match self.queue.event {
            Event::None => {}
            Event::Dies => {
                if !state.dead {
                    actions.push(Action::Die);
                }
            }
            Event::HeadLost => actions.push(Action::LoseHead),
            Event::Moves if !self.on(Rule::ErrorsFirst) => {
                // Without the rule, the shard moves as soon as no received message waits to be processed. The NIC may
                // still be receiving messages.
                let known =
                    |slot: &Slot| matches!(slot.status, Status::Complete(..) | Status::Seen(..));
                if !state.slots.iter().any(known) {
                    actions.push(Action::Move);
                }
            }
            Event::Moves => {
                if !state.cut_off {
                    actions.push(Action::CutOff);
                } else if !state.slots.iter().any(waits) {
                    actions.push(Action::Move);
                }
            }
            Event::Expires | Event::Forgets if !self.is_end_prepared() => {
                actions.push(Action::Expire);
            }
            Event::Expires | Event::Forgets => {
                if !state.cut_off {
                    actions.push(Action::CutOff);
                } else if !state
                    .slots
                    .iter()
                    .any(|slot| slot.owner == 0 && waits(slot))
                {
                    actions.push(Action::Expire);
                }
            }
        }
    }

    /// Returns the first step of a client's program that has not ended.
    pub(super) fn first_open(&self, state: &State, client: u8) -> u8 {
        let done = state.clients[usize::from(client)].done;
        u8::try_from(done.trailing_ones()).expect("at most eight bits")
    }

    /// Returns the slot for a running number.
    pub(super) fn slot_of(&self, number: u8) -> u8 {
        number % self.queue.slots
    }
}
