//! Steps as text, for counterexamples.

use crate::configuration::KEY;
use crate::history::seen;
use crate::queue::state::{Content, State};
use crate::queue::{Action, Event, Machine};
use crate::state::{Op, step_of};

fn value(op: Op) -> String {
    match op.checked_sub(1) {
        None => "no value".to_owned(),
        Some(_) => {
            let (client, index) = step_of(op);
            format!("{}{}", if client == 0 { 'a' } else { 'b' }, index + 1)
        }
    }
}

impl Machine {
    fn call(&self, client: u8, index: u8) -> String {
        let (step, who) = (self.step(client, index), client + 1);
        if step.logged {
            let op = crate::state::op_of(client, index);
            format!(
                "client {who}'s write (seq {}, value {})",
                step.seq,
                value(op)
            )
        } else {
            format!("client {who}'s read (behind seq {})", step.seq)
        }
    }

    fn content(&self, holds: Content) -> String {
        let of = |op| {
            let (client, index) = step_of(op);
            self.call(client, index)
        };
        match holds {
            Content::Nothing => "nothing".to_owned(),
            Content::Torn(op) => format!("a part of {}", of(op)),
            Content::Whole(op) => of(op),
        }
    }

    /// Returns a step as text.
    #[must_use]
    pub fn describe(&self, state: &State, action: Action) -> String {
        let slot = |slot: u8| format!("slot {slot}");
        let next = |client: u8| {
            let connection = &state.connections[usize::from(client)];
            self.call(client, connection.next)
        };
        let who = |client: u8| format!("client {}", client + 1);
        let holds = |slot: u8| self.content(state.slots[usize::from(slot)].holds);
        match action {
            Action::Invoke(client) => {
                let index = state.clients[usize::from(client)].invoked;
                format!("call: {}", self.call(client, index))
            }
            Action::Take(client, at) => {
                format!(
                    "the NIC begins to receive {} into {}",
                    next(client),
                    slot(at)
                )
            }
            Action::Place(client) => format!("the NIC has {}, and acknowledges it", next(client)),
            Action::Ack(client) => format!("{} gets the NIC's acknowledgement", who(client)),
            Action::Drain(client) => format!("{} gets the byte that it reads", who(client)),
            Action::Acknowledge(client) => {
                let seq = state.store.table[usize::from(client)];
                format!("{} gets ack(seq {seq})", who(client))
            }
            Action::See(at) => format!("the server sees the completion of {}", slot(at)),
            Action::HandOn(at) => format!("the server takes {} from {}", holds(at), slot(at)),
            Action::Keep => format!("processed up to {}: durable", state.processed),
            Action::Post(at) => format!("{} is posted again", slot(at)),
            Action::Reply(client) => self.reply_in_words(state, client),
            Action::Cut(client) => format!("{}'s connection is cut", who(client)),
            Action::Connect(client, from) => {
                format!(
                    "{} connects, and sends from {} on",
                    who(client),
                    self.call(client, from)
                )
            }
            Action::Destroy(client) => {
                format!(
                    "the server destroys its end of {}'s connection",
                    who(client)
                )
            }
            Action::Die => "client 1 dies".to_owned(),
            Action::Deadline => "the oldest slot was open for too long".to_owned(),
            Action::ReadPast(client) => format!(
                "{}'s read is answered past the queue: {}",
                who(client),
                value(state.store.value)
            ),
            Action::Fail(code) => self.fail_in_words(state, code),
            Action::Scan => "the slots are read".to_owned(),
            Action::Start => "the server serves again".to_owned(),
            Action::LoseHead => {
                "the head is lost with its medium, the second device goes on".to_owned()
            }
            Action::CutOff if self.ends_session() => "client 1 is cut off".to_owned(),
            Action::CutOff => "all clients are cut off".to_owned(),
            Action::Move => "the record says that another device serves".to_owned(),
            Action::Expire if self.queue.event == Event::Forgets => {
                "the server forgets client 1's key".to_owned()
            }
            Action::Expire => "the record says that client 1's session has ended".to_owned(),
        }
    }

    fn reply_in_words(&self, state: &State, client: u8) -> String {
        let (which, answer) = state.connections[usize::from(client)].reply;
        let said: Vec<_> = seen(KEY, answer).into_iter().map(value).collect();
        format!(
            "client {} gets the reply to {}: {}",
            client + 1,
            self.call(client, which.saturating_sub(1)),
            said.concat()
        )
    }

    fn fail_in_words(&self, state: &State, code: u8) -> String {
        let mut rest = code;
        let mut left = Vec::new();
        for (number, slot) in state.slots[..usize::from(self.queue.slots)]
            .iter()
            .enumerate()
        {
            let (digit, holds) = (rest % 3, slot.holds);
            rest /= 3;
            let has = match (digit, holds) {
                (1, _) => self.content(slot.before),
                (2, Content::Whole(op)) => self.content(Content::Torn(op)),
                (_, holds) => self.content(holds),
            };
            left.push(format!("slot {number} has {has}"));
        }
        format!("the machine fails: {}", left.join(", "))
    }
}
