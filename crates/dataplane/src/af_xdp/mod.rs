//! AF_XDP: frames from and to one queue of an interface, past the kernel's network stack.
//!
//! [`Socket`] moves frames, [`Redirect`] is the XDP program that gives it some. Frames lie in memory that the
//! caller supplies ([`Region`]); every frame is at one place at a time, which [`Socket`] keeps a record of: what the
//! kernel hands back is looked up there, and is an error if it was not given to it. Nothing is allocated for a
//! frame, and nothing waits but [`Socket::bind`], for a bounded time. May not: know what is in a frame, or
//! fall back to the generic mode of XDP.

mod config;
mod error;
mod redirect;
mod region;
mod ring;
mod socket;
mod umem;

pub use config::{Config, Mode};
pub use error::AfXdpError;
pub use redirect::{Redirect, is_built};
pub use region::{Anonymous, Region};
pub use socket::{Socket, Wake};
pub use umem::{Frame, Received};

/// Bytes that the kernel leaves free in front of each frame that it receives (XDP_PACKET_HEADROOM).
pub const RECEIVE_HEADROOM: usize = 256;
