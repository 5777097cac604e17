//! The ordered queue over RDMA verbs (`docs/spec/verbs.md`): a NIC that acknowledges on its own.
//!
//! Purpose: open a NIC ([`Nic`]), receive into slots ([`Receiver`]), keep the connections on both sides
//! ([`QueueDevice`], [`Link`]), and test whether a NIC takes slots in order ([`order`]). Invariants: only slots that
//! the log has released are posted. A QP is broken before the epoch for which it was made ends, and it is destroyed
//! only after its completions have been polled. Every wait has a deadline. This crate must not decide anything about a
//! packet.
//!
//! All `unsafe` code is in `ffi` and `nic`.

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
mod sealed;

pub use connections::{CONNECTIONS_MAX, ConnectionCounters};
pub use device::{Queue, QueueConfig, QueueCounters, QueueDevice, QueueError};
pub use link::{Link, LinkCounters, News};
pub use message::{MESSAGE_BYTES, Message, Nonce, Refusal};
pub use nic::{
    Completion, Completions, Nic, NicError, NicEvent, POLL_MAX, QueuePair, Readable, Receiver,
    SendBuffers, SlotMemory, Whereto,
};
pub use sealed::{Caller, Heard, Host, Told};
