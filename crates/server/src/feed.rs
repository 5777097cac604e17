//! Reads the log of the tail device directly, if it is on the same machine: the log is the server's
//! receive queue.
//!
//! The device then sends only the last of its new entries. The entries between that one and those that
//! the machine has are taken from the log, and checked like any datagram. If the log no longer has
//! one, the machine asks for it as usual.

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
    /// Highest order announced, and by whom.
    told: Option<(u64, Peer)>,
    /// Up to here the log did not have the entries: the machine asks for them.
    asked: u64,
}

impl Reader {
    /// Takes note of a packet whose sender is known; `true` if it only announces that there is something to read.
    pub fn notice(&mut self, machine: &Server, from: Peer, genuine: &Genuine<'_>) -> bool {
        let announced = machine.announced(from, genuine);
        let Some(order) = announced.filter(|_| machine.received() >= self.asked) else {
            return false;
        };
        // One that was overtaken says nothing new.
        let told = self.told.filter(|(_, before)| *before == from);
        let order = told.map_or(order, |(told, _)| told.max(order));
        self.told = Some((order, from));
        true
    }

    /// Feeds what the machine has room for. Gives `true` if it took something.
    ///
    /// # Errors
    /// [`Stop`]: the shard must not go on.
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
            // Another device is the tail by now, or is about to be, and announces what it has.
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
                // The entry is missing, or of another epoch: the device sends it in the present epoch.
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
