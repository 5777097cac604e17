//! The ordered queue over RDMA verbs (`docs/spec/verbs.md`): a NIC that acknowledges on its own.
//!
//! Purpose: open a NIC ([`Nic`]), receive into slots ([`Receiver`]), the life of connections on both sides ([`QueueDevice`], [`Link`]), and a test
//! whether a NIC takes slots in order ([`order`]). Invariants: nothing is posted that the log does not release; a QP is broken before what it
//! was made for ends, and destroyed when its completions have been polled; every wait has a deadline. May not: decide anything about a packet.
//!
//! `unsafe` stays in `ffi` and `nic`.

mod connections;
mod device;
#[allow(unsafe_code)]
mod ffi;
mod gates;
mod line;
mod link;
mod message;
mod nic;
pub mod order;

pub use connections::ConnectionCounters;
pub use device::{Queue, QueueConfig, QueueCounters, QueueDevice, QueueError};
pub use link::{Link, LinkCounters, News};
pub use message::{MESSAGE_BYTES, Message, Refusal};
pub use nic::{
    Completion, Completions, Nic, NicError, NicEvent, POLL_MAX, QueuePair, Readable, Receiver,
    SendBuffers, SlotMemory, Whereto,
};
