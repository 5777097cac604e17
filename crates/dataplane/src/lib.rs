//! The ways in which packets reach a device.
//!
//! [`relay`] receives through a UDP socket, in bursts, without privileges. [`xdp`] adds a fast path in the kernel,
//! which handles packets before the UDP socket. [`direct`] receives into the packet buffers of the log, without the
//! kernel's network stack. [`af_xdp`] has the sockets that [`direct`] uses.

pub mod af_xdp;
mod burst;
pub mod direct;
mod interface;
pub mod log_name;
pub mod relay;
pub mod xdp;
