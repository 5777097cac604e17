//! The state of the queue and of what is around it.

use std::hash::{Hash, Hasher};

use crate::configuration::CLIENTS;
use crate::history::{Answer, History};
use crate::queue::SLOTS;
use crate::state::{Bad, Client, Op};

/// Contents of a slot's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Content {
    /// No message.
    #[default]
    Nothing,
    /// Parts of this message, and of whatever was there.
    Torn(Op),
    /// This message.
    Whole(Op),
}

/// The owner of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Status {
    /// None: its message is processed.
    #[default]
    Free,
    /// The NIC, which has not used it yet.
    Posted,
    /// The NIC, which is receiving a message of this client into it.
    Taken(u8),
    /// The server does not know yet that the NIC is done with this client's message; false: an error.
    Complete(u8, bool),
    /// The server knows; false: an error, a hole.
    Seen(u8, bool),
    /// Its message is processed, and an earlier slot's is not (only without some rules).
    Done,
}

/// One slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slot {
    /// The owner.
    pub status: Status,
    /// Its contents, as NIC and CPU see them.
    pub holds: Content,
    /// The contents that are durable for sure, or were there before.
    pub before: Content,
    /// The client of its message.
    pub owner: u8,
}

impl Slot {
    /// Whether its message is still to be processed.
    pub fn waits(&self) -> bool {
        matches!(
            self.status,
            Status::Taken(_) | Status::Complete(..) | Status::Seen(..)
        )
    }
}

/// A client's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Connection {
    /// Both ends are there.
    pub up: bool,
    /// The step of the program that is sent next.
    pub next: u8,
    /// Steps whose messages the NIC has acknowledged on this connection: bit by index.
    pub placed: u8,
    /// A reply under way: 1 + index of the read, and what it says.
    pub reply: (u8, Answer),
}

/// State of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Life {
    /// It serves.
    #[default]
    Serves,
    /// The machine has failed.
    Down,
    /// It has read the slots, and has posted none yet.
    Scanned,
    /// Another device serves; the NIC of this one does not know (only without [`crate::Rule::ErrorsFirst`]).
    Left,
}

/// State of the server: effects and session table change in one step, and are durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Store {
    /// Value of the key.
    pub value: Op,
    /// Steps that have taken effect: bit by op.
    pub effects: u8,
    /// Last seq of each session.
    pub table: [u8; CLIENTS],
}

/// Everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The clients.
    pub clients: [Client; CLIENTS],
    /// Their connections.
    pub connections: [Connection; CLIENTS],
    /// The slots.
    pub slots: [Slot; SLOTS],
    /// Slots that the NIC may use, in the order in which they were posted.
    pub posted: Vec<u8>,
    /// Messages that were posted for: the running number of the next slot that is posted.
    pub next: u8,
    /// The running number of the oldest slot that is not processed.
    pub processed: u8,
    /// The same, as the medium has it.
    pub kept: u8,
    /// State of the process.
    pub life: Life,
    /// State of the server.
    pub store: Store,
    /// The first client is dead.
    pub dead: bool,
    /// The clients that the event is about may not connect any more.
    pub cut_off: bool,
    /// The event has taken place.
    pub over: bool,
    /// Crashes so far.
    pub crashes: u8,
    /// Cuts so far.
    pub cuts: u8,
    /// A message came twice.
    pub resent: bool,
    /// A scan has applied a message.
    pub recovered: bool,
    /// Ghost: everything that the clients have seen.
    pub history: History,
    /// Ghost: the first violation.
    pub bad: Bad,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        for client in &self.clients {
            hasher.write_u32(u32::from_be_bytes([
                client.invoked,
                client.done,
                client.unknown,
                0,
            ]));
        }
        self.connections.hash(hasher);
        self.slots.hash(hasher);
        self.posted.hash(hasher);
        self.store.hash(hasher);
        self.life.hash(hasher);
        let flags = [
            self.dead,
            self.cut_off,
            self.over,
            self.resent,
            self.recovered,
        ];
        flags.hash(hasher);
        hasher.write(&[
            self.next,
            self.processed,
            self.kept,
            self.crashes,
            self.cuts,
        ]);
        self.history.hash(hasher);
        self.bad.hash(hasher);
    }
}
