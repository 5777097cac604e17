//! The ordered queue over RDMA verbs (docs/spec/verbs.md): a NIC that acknowledges on its own, into slots of a shared
//! receive queue. This search is separate from [`crate::protocol`], with the same clients, calls, histories and rules.
//!
//! In this search a server processes a message in one step (effect, session table and reply), because
//! [`crate::protocol`] covers the rest of the protocol. The NIC works even if the process is dead. There are no timers.
//!
//! *The medium.* `holds` of a slot is what the NIC has stored; `before` is the content that the medium has for certain.
//! A power cut leaves either of them, or a torn message. A slot that is posted again keeps its old message until the
//! NIC overwrites it: slots are never zeroed.

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

/// The event of a configuration, in addition to cuts and crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// No event.
    None,
    /// The first client dies, perhaps in the middle of a message.
    Dies,
    /// R = 2: the head is lost with its medium, and the second device continues.
    HeadLost,
    /// The shard moves to another device. The process of the old device may stand still meanwhile.
    Moves,
    /// The server ends the first client's session.
    Expires,
    /// The first client's key is removed: the server forgets it, perhaps after a crash.
    Forgets,
}

/// The part of a configuration that concerns the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Slots of the shared receive queue, up to [`SLOTS`].
    pub slots: u8,
    /// Number of cuts of connections, all together.
    pub cuts: u8,
    /// The event in addition to cuts and crashes.
    pub event: Event,
    /// The goals that the search must reach.
    pub goals: &'static [Goal],
}

/// A goal that an exhausted configuration must have reached; otherwise its result would say nothing.
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
    /// A message arrived twice.
    Resent,
    /// A scan after a crash has applied a message.
    Recovered,
    /// The other device serves, and has been handed a message.
    GoneOn,
    /// The server has ended the session, and the other client has finished.
    Ended,
}

/// One step of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A client calls the next step of its program.
    Invoke(u8),
    /// The NIC begins to receive a client's next message into this slot.
    Take(u8, u8),
    /// The NIC has received the whole message.
    Place(u8),
    /// A client gets the NIC's acknowledgement of its messages (only without [`Rule::DrainRead`]).
    Ack(u8),
    /// The READ that a client has sent after its messages completes.
    Drain(u8),
    /// A client gets the protocol's acknowledgement (R > 1).
    Acknowledge(u8),
    /// The server polls the completion of a slot.
    See(u8),
    /// The server takes the message of a slot.
    HandOn(u8),
    /// The server stores the number up to which all messages are processed, durably.
    Keep,
    /// The server posts a slot again.
    Post(u8),
    /// A client gets the reply of a read.
    Reply(u8),
    /// A connection is cut.
    Cut(u8),
    /// A client connects again, and sends from this step of its program on.
    Connect(u8, u8),
    /// The server destroys its end of a cut connection (only without [`Rule::DrainFirst`]).
    Destroy(u8),
    /// The first client dies.
    Die,
    /// The oldest slot has been open for too long: all clients that may have it are disconnected.
    Deadline,
    /// A read is answered outside the queue (only without [`Rule::SameQueue`]).
    ReadPast(u8),
    /// Power is lost. One base-3 digit for each slot: the message that the NIC has written is kept, lost, or torn.
    Fail(u8),
    /// The restarted server reads the slots.
    Scan,
    /// The server serves again.
    Start,
    /// The head is lost with its medium.
    LoseHead,
    /// The server begins to leave, to end the first session, or to forget its key: it disconnects the clients concerned.
    CutOff,
    /// The record says that another device serves.
    Move,
    /// The record says that the first client's session has ended, or the server forgets its key.
    Expire,
}

/// A configuration with a set of rules.
#[derive(Debug)]
pub struct Machine {
    /// The bounds of the search.
    pub configuration: Configuration,
    /// The bounds of the queue.
    pub queue: Queue,
    /// The rules that hold.
    pub rules: Rules,
    /// The programs' steps with their numbers.
    pub plan: [Vec<Step>; CLIENTS],
    /// The goals that were reached, as bits; needed only to keep the first example of each.
    reached: AtomicU32,
    /// A violation was seen; needed only to keep the first, which is the shortest.
    violated: AtomicBool,
}

impl Machine {
    /// Returns the system of the configuration under these rules.
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

    /// Whether the event ends the first client's session.
    fn ends_session(&self) -> bool {
        matches!(self.queue.event, Event::Expires | Event::Forgets)
    }

    /// Whether the first client is disconnected, and its messages are processed, before its session ends.
    fn is_end_prepared(&self) -> bool {
        match self.queue.event {
            Event::Forgets => self.on(Rule::ForgetErrorsFirst),
            _ => self.on(Rule::EndErrorsFirst),
        }
    }

    fn step(&self, client: u8, index: u8) -> Step {
        self.plan[usize::from(client)][usize::from(index)]
    }

    /// Returns the number of steps of a client's program.
    fn calls(&self, client: u8) -> u8 {
        u8::try_from(self.plan[usize::from(client)].len()).expect("programs are short")
    }
}
