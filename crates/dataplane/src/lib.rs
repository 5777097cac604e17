//! How packets reach a device.
//!
//! [`relay`]: over a UDP socket, in bursts, without privileges. [`xdp`]: through its fast path in the kernel, in front of
//! that socket. [`direct`]: past the kernel's network stack, into the packet buffers that are the log. [`af_xdp`]: the sockets
//! that this takes.

pub mod af_xdp;
mod burst;
pub mod direct;
mod interface;
pub mod relay;
pub mod xdp;
