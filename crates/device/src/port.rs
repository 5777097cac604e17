//! `trait Port`: where a device's bursts come from and go to, and the loop that serves one.

use crate::node::{DeviceError, DeviceNode};
use pmnet_log::Media;
use pmnet_proto::{Outbox, Peer, Time};
use std::io;

/// Why [`Port::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Something may have arrived, or the time has come.
    Work,
    /// The device is asked to stop.
    Stop,
}

/// A device's side of the network: UDP relay, AF_XDP, a simulated link.
pub trait Port {
    /// Receives one burst of at most a bounded number of datagrams without blocking; gives their
    /// number. Each comes with the number of hops that it may still make, its own arrival being none (time to live of IPv4,
    /// hop limit of IPv6).
    ///
    /// # Errors
    /// Errors that make the port unusable.
    fn receive(&mut self, deliver: &mut dyn FnMut(Peer, u8, &[u8])) -> io::Result<usize>;

    /// Sends a burst, and foreign datagrams with the number of hops given with them. What cannot be sent is dropped and
    /// counted: the protocol sends it again.
    ///
    /// # Errors
    /// Errors that make the port unusable.
    fn send(&mut self, out: &Outbox) -> io::Result<()>;

    /// The time, read once a burst.
    fn now(&self) -> Time;

    /// Waits until something arrives, a persist completes, or `until`; may spin before it blocks.
    /// `busy` says whether the last turn did something.
    ///
    /// # Errors
    /// Errors that make the port unusable.
    fn wait(&mut self, busy: bool, until: Option<Time>) -> io::Result<Wake>;
}

/// Serves a port until it says stop; then closes the log cleanly.
///
/// # Errors
/// [`DeviceError`]: the port failed, the log failed, or the shard must stop.
pub fn serve<M: Media>(
    mut node: DeviceNode<M>,
    port: &mut impl Port,
    mut observe: impl FnMut(&DeviceNode<M>),
) -> Result<(), DeviceError> {
    loop {
        let now = port.now();
        let mut failed = Ok(());
        let received = port.receive(&mut |from, hops, datagram| {
            if failed.is_ok() {
                failed = node.receive_with_hops(now, from, hops, datagram);
            }
        })?;
        failed?;
        let worked = node.finish(now)?;
        if !node.out().is_empty() {
            port.send(node.out())?;
            node.sent();
        }
        observe(&node);
        let until = node.rest(now)?;
        match port.wait(received > 0 || worked, until)? {
            Wake::Work => {}
            Wake::Stop => return node.close(),
        }
    }
}
