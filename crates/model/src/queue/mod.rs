//! The ordered queue over RDMA verbs (docs/spec/verbs.md): a NIC acknowledges messages on its own, and puts them into
//! slots of a shared receive queue. This search is separate from [`crate::protocol`], but uses the clients, calls,
//! histories and rules of that search.
//!
//! In this search a server processes a message in one step (effect, session table and reply), because
//! [`crate::protocol`] covers the rest of the protocol. The NIC works even while the process is dead. There are no
//! timers.
//!
//! *The medium.* For each slot, `holds` is the content that the NIC has stored, and `before` is the content that the
//! medium certainly has. A power cut leaves either content, or a torn message. Slots are never zeroed, so a slot that
//! is posted again keeps its old message until the NIC overwrites it.

mod possible;
mod properties;
mod state;
mod steps;
mod words;

use std::sync::atomic::{AtomicBool, AtomicU32};

use crate::configuration::{CLIENTS, Configuration, Step};
use crate::rule::{Rule, Rules};

pub use state::State;

/// Maximum number of slots of a queue.
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
    /// The shard moves to another device. The old device's process may be suspended meanwhile.
    Moves,
    /// The server ends the first client's session.
    Expires,
    /// The first client's key is removed: the server forgets it, perhaps after a crash.
    Forgets,
}

/// The settings of the queue in a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Number of slots of the shared receive queue, up to [`SLOTS`].
    pub slots: u8,
    /// Number of cuts of all connections together.
    pub cuts: u8,
    /// The event in addition to cuts and crashes.
    pub event: Event,
    /// The goals that the search must reach.
    pub goals: &'static [Goal],
}

/// A state that an exhaustive search must reach. If the search does not reach it, its result proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// All living clients have finished their programs.
    Finished,
    /// The server has seen the completion of a slot, while an earlier slot had no completion.
    Overtaken,
    /// A slot was posted again.
    Reused,
    /// The oldest slot of the queue is a hole, because its completion was an error.
    Hole,
    /// A message arrived twice.
    Resent,
    /// A scan after a crash has applied a message.
    Recovered,
    /// The other device serves, and has taken a message.
    GoneOn,
    /// The server has ended the session, and the other client has finished.
    Ended,
}

/// One step of the modelled system.
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
    /// The server durably stores the number up to which all messages are processed.
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
    /// The server answers a read that has not come through the queue (only without [`Rule::SameQueue`]).
    ReadPast(u8),
    /// Power is lost. The number has one base-3 digit for each slot: the message that the NIC has written is kept,
    /// lost, or torn.
    Fail(u8),
    /// The restarted server reads the slots.
    Scan,
    /// The server serves again.
    Start,
    /// The head is lost with its medium.
    LoseHead,
    /// The server begins to leave, to end the first session, or to forget its key. It disconnects the clients that this
    /// concerns.
    CutOff,
    /// The chain record is written: another device serves.
    Move,
    /// The record that the first client's session has ended is written, or the server forgets the client's key.
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
    /// The goals that were reached, as bits. They are needed only to keep the first example of each goal.
    reached: AtomicU32,
    /// A violation was found. Needed only to keep the first violation, whose path is the shortest.
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
