//! AF_XDP: receives and sends frames through one queue of an interface, without the kernel's network stack.
//!
//! [`Socket`] moves frames. [`Redirect`] is the XDP program that redirects packets to a socket. Frames lie in memory
//! that the caller supplies ([`Region`]).
//!
//! Invariants: every frame has one owner at a time: the free list, a holder, or the kernel. [`Socket`] records the
//! owners, and checks each frame that the kernel returns against the record. No memory is allocated for a frame. Only
//! [`Socket::bind`] may wait, for a bounded time. This module must not interpret the contents of a frame, or fall back
//! to the generic mode of XDP.

mod busy;
mod config;
mod error;
mod queue;
mod redirect;
mod region;
mod ring;
mod socket;
mod umem;

pub use busy::{BusyPoll, is_known as knows_busy_poll};
pub use config::{Config, Mode};
pub use error::AfXdpError;
pub use queue::{Queue, Wake};
pub use redirect::{Only, QUEUES_MAX, Redirect, Transport, is_built};
pub use region::{Anonymous, Region};
pub use socket::Socket;
pub use umem::{Frame, Places, Received, Umem};

/// Number of bytes that the kernel leaves free before each received packet (XDP_PACKET_HEADROOM).
pub const RECEIVE_HEADROOM: usize = 256;
