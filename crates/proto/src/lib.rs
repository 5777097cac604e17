//! The pmnet protocol as sans-IO state machines: client, device, server (`docs/spec/protocol.md`).
//!
//! Inputs are packets, time and randomness, given as arguments. Outputs are packets in an [`Outbox`], events and work
//! items, polled by the caller. The crate must not open a socket, read a clock, know the layout of a log, or iterate
//! over a randomly seeded map. The simulator runs exactly this code.

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

/// Address of a packet's sender or receiver.
pub type Peer = std::net::SocketAddr;
