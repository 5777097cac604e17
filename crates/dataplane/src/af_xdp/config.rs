//! Interface, queue and size of a socket.

use super::busy::BusyPoll;

/// How packets are moved between the driver and the UMEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The kernel copies the packets. This works with every driver that has XDP.
    Copy,
    /// Zero copy if the driver supports it, else copy. [`Socket::is_zero_copy`](super::Socket::is_zero_copy) says which
    /// mode is used.
    PreferZeroCopy,
    /// Zero copy; an error if the driver does not support it.
    ZeroCopy,
}

/// Interface and queue of a socket, and the sizes of its frames and rings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Interface, in the calling thread's network namespace.
    pub interface: String,
    /// Number of the interface's queue, from 0.
    pub queue: u32,
    /// Whether the kernel copies frames between driver and UMEM.
    pub mode: Mode,
    /// Bytes of a frame: 2048 or 4096.
    pub frame_bytes: u32,
    /// Number of bytes that stay free before a received packet, in addition to [`super::RECEIVE_HEADROOM`].
    pub headroom: u32,
    /// Number of entries of the fill ring and of the RX ring, a power of two.
    pub receive_ring: u32,
    /// Number of entries of the TX ring and of the completion ring, a power of two.
    pub send_ring: u32,
    /// Settings of busy polling ([`super::Queue::poll_driver`]). `None`: no busy polling.
    pub busy_poll: Option<BusyPoll>,
}

impl Config {
    /// Returns a configuration with copy mode, frames of 2048 bytes and rings of 256 entries.
    #[must_use]
    pub fn new(interface: &str, queue: u32) -> Config {
        Config {
            interface: interface.to_owned(),
            queue,
            mode: Mode::Copy,
            frame_bytes: 2048,
            headroom: 0,
            receive_ring: 256,
            send_ring: 256,
            busy_poll: None,
        }
    }
}
