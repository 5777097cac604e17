//! The log of the device before a server on the same machine, read where it lies: its receive queue.
//!
//! The device then sends the last of its new entries only. What lies between that one and what the
//! machine has is taken from the log, checked like any datagram; what cannot be found there the
//! machine asks for as usual.

use crate::node::ServerNode;
use crate::store::Store;
use pmnet_proto::server::Stop;
use pmnet_proto::{Outbox, Peer, Time};
use pmnet_wire::packet::Append;
use pmnet_wire::{Kind, Packet};

/// The log of a device in memory that this process can read.
pub trait Feed {
    /// The frame of an order, if the log holds it now: the bytes of an APPEND.
    fn frame(&mut self, order: u64) -> Option<&[u8]>;
}

/// How far the device has told that there is something to read, and where it is.
#[derive(Debug, Default)]
pub struct Reader {
    /// Highest order told of, and by whom.
    told: Option<(u64, Peer)>,
    /// Up to here the log was of no help: the machine asks for it.
    asked: u64,
}

impl Reader {
    /// Takes note of a datagram; `true` if it says no more than that there is something to read.
    pub fn notice(&mut self, from: Peer, datagram: &[u8], received: u64) -> bool {
        let Ok(packet) = Packet::parse(datagram) else {
            return false;
        };
        if packet.header.kind != Kind::Append {
            return false;
        }
        let order = Append::read(&packet.header).order;
        let tells = order > received + 1 && received >= self.asked;
        if tells {
            self.told = Some((order, from));
        }
        tells
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
        while core.machine().received() < told {
            let next = core.machine().received() + 1;
            if core.machine().is_full() {
                break;
            }
            if let Some(frame) = feed.frame(next) {
                core.receive(now, from, frame, out)?;
            }
            if core.machine().received() < next {
                // Not there, or of another epoch: the device sends it in the present one.
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
