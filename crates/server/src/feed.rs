//! Reads the log of the tail device directly, if the device is on the same computer. The log then serves as the
//! server's receive queue.
//!
//! In this mode the device announces new entries by sending only the newest entry. The server reads the entries from
//! its own last order up to the announced order in the log, and checks each like a datagram. If an entry is no longer
//! in the log, the machine requests it from the device, as usual.

use crate::node::ServerNode;
use crate::store::Store;
use pmnet_proto::server::{Genuine, Server, Stop};
use pmnet_proto::{Outbox, Peer, Time};

/// The log of a device, in memory that this process can read.
pub trait Feed {
    /// Returns the frame at an order, if the log holds it now. The frame has the bytes of an APPEND.
    fn frame(&mut self, order: u64) -> Option<&[u8]>;
}

/// The highest order that the device has announced, and the device's address.
#[derive(Debug, Default)]
pub struct Reader {
    /// The highest announced order, and the address of the device that announced it.
    told: Option<(u64, Peer)>,
    /// The announced order at the time when the log lacked an entry. The machine requests the entries up to this order
    /// from the device.
    asked: u64,
}

impl Reader {
    /// Handles a packet from a known sender. Returns `true` if the packet only announces entries that can be read from
    /// the log.
    pub fn notice(&mut self, machine: &Server, from: Peer, genuine: &Genuine<'_>) -> bool {
        let announced = machine.announced(from, genuine);
        let Some(order) = announced.filter(|_| machine.received() >= self.asked) else {
            return false;
        };
        // An announcement may arrive late, when a higher order is already known.
        let told = self.told.filter(|(_, before)| *before == from);
        let order = told.map_or(order, |(told, _)| told.max(order));
        self.told = Some((order, from));
        true
    }

    /// Passes as many entries to the machine as the machine can take. Returns `true` if the machine took any.
    ///
    /// # Errors
    /// [`Stop`]: the shard must not continue.
    pub fn feed<S: Store>(
        &mut self,
        feed: &mut dyn Feed,
        core: &mut ServerNode<S>,
        now: Time,
        out: &mut Outbox,
    ) -> Result<bool, Stop> {
        let before = core.machine().received();
        let Some((told, from)) = self.told else {
            return Ok(false);
        };
        if core.machine().tail() != Some(from) {
            // Another device is the tail, or will become the tail. The new tail will announce its own entries.
            self.told = None;
            return Ok(false);
        }
        while core.machine().received() < told {
            let next = core.machine().received() + 1;
            if core.machine().is_full() {
                break;
            }
            if let Some(frame) = feed.frame(next) {
                core.receive(now, from, frame, out)?;
            }
            if core.machine().received() < next {
                // The log lacks the entry, or has it from another epoch. The device will send the entry in the present
                // epoch.
                self.asked = told;
                self.told = None;
                break;
            }
        }
        let received = core.machine().received();
        if received >= told {
            self.told = None;
        }
        Ok(received > before)
    }
}
