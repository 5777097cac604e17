//! The state of the queue, its clients and its server.

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
    /// Parts of this message, mixed with the slot's old content.
    Torn(Op),
    /// This message.
    Whole(Op),
}

/// The owner of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Status {
    /// The server: the message is processed, and the slot is not posted again yet.
    #[default]
    Free,
    /// The NIC, which has not used the slot yet.
    Posted,
    /// The NIC, which is receiving a message of this client into the slot.
    Taken(u8),
    /// The NIC has finished this client's message, but the server has not seen the completion. `false`: the completion
    /// is an error.
    Complete(u8, bool),
    /// The server has seen the completion. `false`: it was an error, so the slot is a hole.
    Seen(u8, bool),
    /// The slot's message is processed before the message of an earlier slot (only without some rules).
    Done,
}

/// One slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Owner of the slot.
    pub status: Status,
    /// Content of the slot, as NIC and CPU see it.
    pub holds: Content,
    /// Content that the slot certainly has on the medium, or had before `holds` was written.
    pub before: Content,
    /// Client whose message is in the slot.
    pub owner: u8,
}

impl Slot {
    /// Whether the slot has a message that must still be processed.
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
    /// Both ends of the connection exist.
    pub up: bool,
    /// The step of the program that the client sends next.
    pub next: u8,
    /// Steps whose messages the NIC has acknowledged on this connection, as bits by index.
    pub placed: u8,
    /// A reply under way: 1 + index of the read, and its answer.
    pub reply: (u8, Answer),
}

/// State of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Life {
    /// The process serves.
    #[default]
    Serves,
    /// The computer has failed, and the process does not run.
    Down,
    /// The process has read the slots, and has posted none yet.
    Scanned,
    /// Another device serves, but the NIC of this device still takes messages (only without
    /// [`crate::Rule::ErrorsFirst`]).
    Left,
}

/// State of the server. Effects and session table change in one step, and are durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Store {
    /// Value of the key.
    pub value: Op,
    /// Ops of the steps that have taken effect, as bits.
    pub effects: u8,
    /// Last seq of each session.
    pub table: [u8; CLIENTS],
}

/// State of the whole system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The clients.
    pub clients: [Client; CLIENTS],
    /// The clients' connections.
    pub connections: [Connection; CLIENTS],
    /// The slots.
    pub slots: [Slot; SLOTS],
    /// Slots that the NIC may use, in the order in which they were posted.
    pub posted: Vec<u8>,
    /// Number of slots that were posted, which is the running number of the next posted slot.
    pub next: u8,
    /// The running number of the oldest slot that is not processed.
    pub processed: u8,
    /// The running number of the oldest unprocessed slot, as it is stored on the medium.
    pub kept: u8,
    /// State of the process.
    pub life: Life,
    /// State of the server.
    pub store: Store,
    /// The first client is dead.
    pub dead: bool,
    /// The clients that the event concerns may not connect any more.
    pub cut_off: bool,
    /// The event has taken place.
    pub over: bool,
    /// Number of crashes so far.
    pub crashes: u8,
    /// Number of cuts of connections so far.
    pub cuts: u8,
    /// A message arrived twice.
    pub resent: bool,
    /// A scan has applied a message.
    pub recovered: bool,
    /// Only for the checks, invisible to the protocol: all sequential executions that could have given the replies which
    /// the clients have received.
    pub history: History,
    /// Only for the checks: the first violation.
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
