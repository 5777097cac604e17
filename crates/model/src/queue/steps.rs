//! The effects of each step.

use crate::configuration::{CLIENTS, KEY};
use crate::history::{Answer, NONE, read};
use crate::queue::state::{Connection, Content, Life, Slot, State, Status};
use crate::queue::{Action, Event, Machine};
use crate::rule::Rule;
use crate::state::{Bad, op_of, step_of};

impl Machine {
    /// Returns the initial state: all slots are posted, and no client is connected.
    pub(super) fn beginning(&self) -> State {
        let mut state = State::default();
        self.post_all(&mut state, 0);
        state
    }

    /// Returns the state after a step; `None`: the step changes nothing.
    pub(super) fn take(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        self.apply(&mut state, action);
        if state == *before {
            return None;
        }
        if state.bad == Bad::No && self.lost(&state) {
            state.bad = Bad::Lost;
        }
        Some(state)
    }

    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Invoke(client) => state.clients[usize::from(client)].invoked += 1,
            Action::Take(client, slot) => self.begin(state, client, slot),
            Action::Place(client) => self.place(state, client),
            Action::Ack(client) => self.told(state, client),
            Action::Drain(client) => self.drain(state, client),
            Action::Acknowledge(client) => self.acknowledge(state, client),
            Action::See(slot) => self.see(state, slot),
            Action::HandOn(slot) => self.hand_on(state, slot),
            Action::Keep => state.kept = state.processed,
            Action::Post(slot) => self.post(state, slot),
            Action::Reply(client) => self.reply(state, client),
            Action::Cut(client) => {
                state.cuts += 1;
                cut(state, client);
            }
            Action::Connect(client, from) => {
                state.connections[usize::from(client)] = Connection {
                    up: true,
                    next: from,
                    ..Connection::default()
                };
            }
            Action::Destroy(client) => destroy(state, client),
            Action::Die => state.dead = true,
            Action::Deadline => self.deadline(state),
            Action::ReadPast(client) => self.read_past(state, client),
            Action::Fail(code) => self.fail(state, code),
            Action::Scan => self.scan(state),
            Action::Start => self.post_all(state, state.kept + self.queue.slots),
            Action::LoseHead => self.lose_head(state),
            Action::CutOff => self.cut_off(state),
            Action::Move => self.go(state),
            Action::Expire => self.expire(state),
        }
    }

    /// Posts all slots, beginning with this running number. No slot may be in use.
    fn post_all(&self, state: &mut State, from: u8) {
        state.processed = from;
        state.kept = from;
        state.next = from + self.queue.slots;
        state.posted = (from..state.next).map(|at| self.slot_of(at)).collect();
        for slot in &mut state.slots[..usize::from(self.queue.slots)] {
            slot.status = Status::Posted;
        }
        state.life = Life::Serves;
    }

    fn begin(&self, state: &mut State, client: u8, slot: u8) {
        let connection = &mut state.connections[usize::from(client)];
        let op = op_of(client, connection.next);
        let same = |other: &Slot| other.waits() && other.holds == Content::Whole(op);
        state.resent |= state.slots.iter().any(same);
        state.posted.retain(|posted| *posted != slot);
        let at = &mut state.slots[usize::from(slot)];
        at.status = Status::Taken(client);
        at.holds = Content::Torn(op);
        at.owner = client;
    }

    fn place(&self, state: &mut State, client: u8) {
        let connection = &mut state.connections[usize::from(client)];
        for slot in &mut state.slots {
            if slot.status == Status::Taken(client) {
                slot.status = Status::Complete(client, true);
                slot.holds = Content::Whole(op_of(client, connection.next));
            }
        }
        connection.placed |= 1 << connection.next;
        connection.next += 1;
    }

    fn drain(&self, state: &mut State, client: u8) {
        if self.on(Rule::DdioOff) {
            for slot in &mut state.slots {
                if slot.owner == client && matches!(slot.holds, Content::Whole(_)) {
                    slot.before = slot.holds;
                }
            }
        }
        // With R > 1 the head's copy alone is not sufficient, so the NIC's acknowledgement does not count.
        if self.queue.event != Event::HeadLost || !self.on(Rule::HardwareCopies) {
            self.told(state, client);
        }
    }

    /// Ends the client's updates that were acknowledged on this connection as successful.
    fn told(&self, state: &mut State, client: u8) {
        let placed = state.connections[usize::from(client)].placed;
        for index in 0..self.calls(client) {
            if placed & (1 << index) != 0 && self.step(client, index).logged {
                self.ends(state, client, index, NONE);
            }
        }
    }

    fn acknowledge(&self, state: &mut State, client: u8) {
        let seq = state.store.table[usize::from(client)];
        for index in 0..state.clients[usize::from(client)].invoked {
            let step = self.step(client, index);
            if step.logged && step.seq <= seq {
                self.ends(state, client, index, NONE);
            }
        }
    }

    fn ends(&self, state: &mut State, client: u8, index: u8, answer: Answer) {
        let of = &mut state.clients[usize::from(client)];
        if of.done & (1 << index) != 0 {
            return;
        }
        of.done |= 1 << index;
        let explained = state
            .history
            .returns(&self.plan, &state.clients, client, index, answer);
        if !explained {
            state.bad = Bad::History;
        }
    }

    fn see(&self, state: &mut State, slot: u8) {
        let at = &mut state.slots[usize::from(slot)];
        let Status::Complete(client, good) = at.status else {
            return;
        };
        at.status = Status::Seen(client, good);
        if !self.on(Rule::CqOrder) {
            self.hand_on(state, slot);
        }
    }

    fn hand_on(&self, state: &mut State, slot: u8) {
        let at = &mut state.slots[usize::from(slot)];
        let Status::Seen(_, good) = at.status else {
            return;
        };
        at.status = Status::Done;
        let holds = at.holds;
        if good || !self.on(Rule::ErrorHole) {
            self.process(state, holds, true);
        }
        loop {
            let oldest = usize::from(self.slot_of(state.processed));
            if state.slots[oldest].status != Status::Done {
                break;
            }
            state.slots[oldest].status = Status::Free;
            state.processed += 1;
        }
    }

    /// The server processes the contents of a slot.
    fn process(&self, state: &mut State, holds: Content, serves: bool) {
        let op = match holds {
            Content::Nothing => return,
            Content::Torn(_) => {
                state.bad = Bad::Garbage;
                return;
            }
            Content::Whole(op) => op,
        };
        let (client, index) = step_of(op);
        let (step, who) = (self.step(client, index), usize::from(client));
        let last = state.store.table[who];
        // A restarted server may have read a key file from which this key is already removed.
        let unread = !serves && state.cut_off && !self.on(Rule::ScanForgotten);
        if client == 0 && self.ends_session() && (state.over || unread) {
            return;
        }
        if !step.logged {
            if serves && step.seq == last && state.connections[who].up {
                let answer = read(KEY, [state.store.value, 0]);
                state.connections[who].reply = (index + 1, answer);
            }
            return;
        }
        if self.on(Rule::SlotSeq) && step.seq != last + 1 {
            return;
        }
        state.recovered |= !serves;
        let bit = 1 << (op - 1);
        if state.store.effects & bit != 0 {
            state.bad = Bad::Twice;
        } else if step.seq < last {
            state.bad = Bad::Disorder;
        }
        state.store.effects |= bit;
        state.store.value = op;
        state.store.table[who] = step.seq.max(last);
    }

    fn post(&self, state: &mut State, slot: u8) {
        state.slots[usize::from(slot)].status = Status::Posted;
        state.posted.push(slot);
        state.next += 1;
    }

    fn reply(&self, state: &mut State, client: u8) {
        let (which, answer) = std::mem::take(&mut state.connections[usize::from(client)].reply);
        if let Some(index) = which.checked_sub(1) {
            self.ends(state, client, index, answer);
        }
    }

    fn read_past(&self, state: &mut State, client: u8) {
        let index = state.clients[usize::from(client)].invoked - 1;
        if state.store.table[usize::from(client)] == self.step(client, index).seq {
            let answer = read(KEY, [state.store.value, 0]);
            self.ends(state, client, index, answer);
        }
    }

    /// Disconnects all clients that may have the oldest slot: all clients without a finished message in a later slot.
    fn deadline(&self, state: &mut State) {
        let oldest = usize::from(self.slot_of(state.processed));
        for client in 0..2 {
            let later = state.slots.iter().enumerate().any(|(at, slot)| {
                at != oldest
                    && slot.owner == client
                    && matches!(slot.status, Status::Seen(_, true) | Status::Done)
            });
            if !later && state.connections[usize::from(client)].up {
                cut(state, client);
            }
        }
    }

    fn fail(&self, state: &mut State, code: u8) {
        state.crashes += 1;
        let mut rest = code;
        for slot in &mut state.slots[..usize::from(self.queue.slots)] {
            let holds = match (rest % 3, slot.holds) {
                (0, holds) => holds,
                (1, _) => slot.before,
                (_, Content::Whole(op)) => Content::Torn(op),
                (_, holds) => holds,
            };
            rest /= 3;
            *slot = Slot {
                holds,
                before: holds,
                ..Slot::default()
            };
        }
        state.connections = Default::default();
        state.posted.clear();
        state.processed = state.kept;
        state.next = state.kept;
        state.life = Life::Down;
    }

    fn scan(&self, state: &mut State) {
        for number in state.kept..state.kept + self.queue.slots {
            let holds = state.slots[usize::from(self.slot_of(number))].holds;
            let whole = matches!(holds, Content::Whole(_));
            let torn = holds != Content::Nothing && !self.on(Rule::SlotChecksum);
            if whole || torn {
                self.process(state, holds, false);
            } else if !self.on(Rule::ScanAll) {
                break;
            }
        }
        state.life = Life::Scanned;
    }

    /// The second device takes over, with all entries that were sent to it, and with empty slots.
    fn lose_head(&self, state: &mut State) {
        self.another(state);
    }

    /// Another device takes over.
    fn another(&self, state: &mut State) {
        state.over = true;
        state.cut_off = false;
        state.connections = Default::default();
        state.slots = Default::default();
        self.post_all(state, 0);
    }

    fn cut_off(&self, state: &mut State) {
        state.cut_off = true;
        cut(state, 0);
        if self.queue.event == Event::Moves {
            cut(state, 1);
        }
    }

    fn go(&self, state: &mut State) {
        if self.on(Rule::ErrorsFirst) {
            self.another(state);
        } else {
            state.over = true;
            state.life = Life::Left;
        }
    }

    fn expire(&self, state: &mut State) {
        state.over = true;
        if self.is_end_prepared() {
            // The client learns that its session has ended. Its calls under way may have taken effect.
            let of = &mut state.clients[0];
            let open = ((1 << of.invoked) - 1) & !of.done;
            of.done |= open;
            of.unknown |= open;
        }
    }

    /// Whether an acknowledged update has not taken effect, and can no longer do so.
    fn lost(&self, state: &State) -> bool {
        (0..CLIENTS).zip(0u8..).any(|(who, client)| {
            let of = &state.clients[who];
            let told = of.done & !of.unknown;
            (0..of.invoked).any(|index| {
                let told = told & (1 << index) != 0 && self.step(client, index).logged;
                told && !self.safe(state, client, index)
            })
        })
    }

    fn safe(&self, state: &State, client: u8, index: u8) -> bool {
        let op = op_of(client, index);
        if state.store.effects & (1 << (op - 1)) != 0 {
            return true;
        }
        let ended = client == 0 && self.ends_session() && state.over;
        let there = |slot: &Slot| {
            let waits = slot.waits() && !matches!(slot.status, Status::Seen(_, false));
            slot.holds == Content::Whole(op) && (waits || state.life == Life::Down)
        };
        !ended && state.life != Life::Left && state.slots.iter().any(there)
    }
}

/// Removes both ends of a connection. The NIC's reception ends with an error.
fn cut(state: &mut State, client: u8) {
    state.connections[usize::from(client)] = Connection::default();
    for slot in &mut state.slots {
        if slot.status == Status::Taken(client) {
            slot.status = Status::Complete(client, false);
        }
    }
}

/// Removes the completions of a connection's messages, so that the server cannot see that there were messages.
fn destroy(state: &mut State, client: u8) {
    for slot in &mut state.slots {
        if slot.status == Status::Complete(client, true) {
            slot.status = Status::Seen(client, false);
        }
    }
}
