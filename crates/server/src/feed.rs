//! Reads the log of the tail device directly, if the device runs on the same computer. The log is then the server's
//! receive queue.
//!
//! In this mode the device announces its new entries by sending only the last of them. The server takes the
//! entries from its own last one up to the announced one from the log, and checks them like any datagram. If
//! the log no longer has an entry, the machine asks the device for it, as usual.

use crate::node::ServerNode;
use crate::store::Store;
use pmnet_proto::server::{Genuine, Server, Stop};
use pmnet_proto::{Outbox, Peer, Time};

/// The log of a device in memory that this process can read.
pub trait Feed {
    /// Returns the frame of an order, if the log holds it now: the bytes of an APPEND.
    fn frame(&mut self, order: u64) -> Option<&[u8]>;
}

/// The highest order that the device has announced, and its address.
#[derive(Debug, Default)]
pub struct Reader {
    /// Highest announced order, and the address of the device that announced it.
    told: Option<(u64, Peer)>,
    /// The last order of the part for which the log lacked entries, so that the machine asks the device for them.
    asked: u64,
}

impl Reader {
    /// Handles a packet whose sender is known. Returns `true` if it only announces entries that can be read.
    pub fn notice(&mut self, machine: &Server, from: Peer, genuine: &Genuine<'_>) -> bool {
        let announced = machine.announced(from, genuine);
        let Some(order) = announced.filter(|_| machine.received() >= self.asked) else {
            return false;
        };
        // An announcement that arrives late has an order that is already known.
        let told = self.told.filter(|(_, before)| *before == from);
        let order = told.map_or(order, |(told, _)| told.max(order));
        self.told = Some((order, from));
        true
    }

    /// Feeds as many entries as the machine can take. Returns `true` if it took any.
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
            // Another device is the tail now, or is about to be, and will announce its entries.
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
                // The entry is missing, or of another epoch. The device will send it in the present epoch.
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
