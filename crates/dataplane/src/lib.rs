//! How packets reach a device.
//!
//! [`relay`]: over a UDP socket, in bursts, without privileges. [`xdp`]: through its fast path in the kernel, in front of
//! that socket. [`af_xdp`]: sockets that bypass the kernel's network stack.

pub mod af_xdp;
mod burst;
pub mod relay;
pub mod xdp;
