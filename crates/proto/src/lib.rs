//! The pmnet protocol as sans-IO state machines: client, device, server (`docs/spec/protocol.md`).
//!
//! Inputs are packets, time and randomness, given as arguments; outputs are packets in an
//! [`Outbox`], events and work items, polled by the caller. Nothing here opens a socket, reads a
//! clock, knows the layout of a log, or iterates over a randomly seeded map. The simulator runs
//! exactly this code.

pub mod client;
pub mod device;
pub mod keys;
pub mod lease;
pub mod outbox;
pub mod random;
pub mod rto;
pub mod rules;
pub mod server;
pub mod time;

pub use outbox::{Outbox, Place};
pub use pmnet_wire::{FragmentSize, PORT_FIRST, PORT_LAST};
pub use random::Random;
pub use time::Time;

/// Where a packet came from or goes to.
pub type Peer = std::net::SocketAddr;
