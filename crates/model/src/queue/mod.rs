//! The ordered queue over RDMA verbs (docs/spec/verbs.md): a NIC that acknowledges by itself, into slots of a shared receive
//! queue. A search of its own beside [`crate::protocol`], with the same clients, calls, histories and rules.
//!
//! A server processes a message in one step here (effect, session table and reply): the rest of
//! the protocol is in the other search. The NIC acts whether the process lives or not. There are no timers, as there.
//!
//! *The medium.* A slot holds what the NIC has put there; what the medium has of it for sure is `before`. A power cut leaves
//! either, or a torn message. A slot that is posted again keeps its old message until the NIC overwrites it: nothing here is
//! zeroed.

mod possible;
mod properties;
mod state;
mod steps;
mod words;

use std::sync::atomic::{AtomicBool, AtomicU32};

use crate::configuration::{CLIENTS, Configuration, Step};
use crate::rule::{Rule, Rules};

pub use state::State;

/// Most slots of a queue.
pub const SLOTS: usize = 3;

/// The event of a configuration, besides cuts and crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing.
    None,
    /// The first client dies, perhaps in the middle of a message.
    Dies,
    /// R = 2: the head is lost with its medium, the second device goes on.
    HeadLost,
    /// The shard goes to another device; the process of the old one may stand still meanwhile.
    Moves,
    /// The server ends the first client's session.
    Expires,
}

/// The part of a configuration that is about the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Slots of the shared receive queue, up to [`SLOTS`].
    pub slots: u8,
    /// Connections that are cut, all together.
    pub cuts: u8,
    /// The other event.
    pub event: Event,
    /// The goals that must be reached.
    pub goals: &'static [Goal],
}

/// A goal that an exhausted configuration must have reached, or it would say nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The clients that live have finished their programs.
    Finished,
    /// A completion was seen while an earlier slot had none.
    Overtaken,
    /// A slot was posted again.
    Reused,
    /// An error completion has left a hole at the head of the queue.
    Hole,
    /// A message came twice.
    Resent,
    /// A scan after a crash has applied a message.
    Recovered,
    /// The other device serves, and has been handed a message.
    GoneOn,
    /// The session was ended, and the other client has finished.
    Ended,
}

/// One step of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A client calls the next step of its program.
    Invoke(u8),
    /// The NIC begins to receive a client's next message into this slot.
    Take(u8, u8),
    /// The NIC has received all of it.
    Place(u8),
    /// A client gets the acknowledgement of its messages (only without [`Rule::DrainRead`]).
    Ack(u8),
    /// A client gets the byte that it reads after its messages.
    Drain(u8),
    /// A client gets the protocol's acknowledgement (R > 1).
    Acknowledge(u8),
    /// The server polls the completion of a slot.
    See(u8),
    /// The server takes the message of a slot.
    HandOn(u8),
    /// The server writes down up to which message all is processed, durably.
    Keep,
    /// The server posts a slot again.
    Post(u8),
    /// A client gets the reply of a read.
    Reply(u8),
    /// A connection is cut.
    Cut(u8),
    /// A client connects anew and sends from this step of its program on.
    Connect(u8, u8),
    /// The server destroys the end of a connection that was cut (only without [`Rule::DrainFirst`]).
    Destroy(u8),
    /// The first client dies.
    Die,
    /// The oldest slot has been open for too long: all clients that may have it are cut off.
    Deadline,
    /// A read is answered past the queue (only without [`Rule::SameQueue`]).
    ReadPast(u8),
    /// Power is lost. By slot, in base 3: what the NIC has written stays, is not there, or is torn.
    Fail(u8),
    /// The slots are read.
    Scan,
    /// The server serves again.
    Start,
    /// The head is lost with its medium.
    LoseHead,
    /// The server begins to leave, or to end the first session: the clients concerned are cut off.
    CutOff,
    /// The record says that another device serves.
    Move,
    /// The record says that the first client's session has ended.
    Expire,
}

/// A configuration under rules.
#[derive(Debug)]
pub struct Machine {
    /// The bounds.
    pub configuration: Configuration,
    /// Those of the queue.
    pub queue: Queue,
    /// The rules.
    pub rules: Rules,
    /// The programs' steps with their numbers.
    pub plan: [Vec<Step>; CLIENTS],
    /// Goals that were reached, by bit; only so that the first example is kept.
    reached: AtomicU32,
    /// A violation was seen; only so that the first, the shortest, is kept.
    violated: AtomicBool,
}

impl Machine {
    /// The configuration under these rules.
    #[must_use]
    pub fn new(configuration: Configuration, queue: Queue, rules: Rules) -> Self {
        let plan = configuration.plan(rules);
        Self {
            configuration,
            queue,
            rules,
            plan,
            reached: AtomicU32::new(0),
            violated: AtomicBool::new(false),
        }
    }

    fn on(&self, rule: Rule) -> bool {
        self.rules.on(rule)
    }

    fn step(&self, client: u8, index: u8) -> Step {
        self.plan[usize::from(client)][usize::from(index)]
    }

    /// Steps of a client's program.
    fn calls(&self, client: u8) -> u8 {
        u8::try_from(self.plan[usize::from(client)].len()).expect("programs are short")
    }
}
