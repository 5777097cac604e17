//! The paths on which packets reach a device.
//!
//! [`relay`] receives through a UDP socket, in bursts, without privileges. [`xdp`] adds a fast path in the kernel,
//! which packets pass before that socket. [`direct`] bypasses the kernel's network stack and receives into the packet
//! buffers of the log. [`af_xdp`] has the sockets that [`direct`] uses.

pub mod af_xdp;
mod burst;
pub mod direct;
mod interface;
pub mod relay;
pub mod xdp;
