//! Changes of a chain by hand, without etcd: the answers of devices and servers about themselves, and the
//! orders to them (`docs/spec/protocol.md` §14, "By hand").
//!
//! Purpose: in a shard without a fleet, `pmnet ctl` does the work of the controllers while the command runs. A
//! [`DeviceDoor`] and a [`ServerDoor`] answer its questions, each in a thread of its own. The next step depends only on
//! these answers ([`Change::next`]). Invariant: no code in this module decides which devices are in the chain. A device
//! gets a new next hop and starts again, as after a restart with other flags; the server decides about the chain as at
//! any restart. Not allowed here: a loop that serves must never wait for this code.

mod change;
mod device;
mod door;
mod lock;
mod look;
mod memory;
mod server;

pub use change::{Change, Doing, HandStep, HandWant};
pub use device::{DeviceDoor, DeviceDoorConfig};
pub use door::ask;
pub use look::{Looked, look};
pub use server::ServerDoor;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// A question or an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Asked {
    /// Asks a process for its role, number and state.
    Who,
    /// Orders a device to send to this next hop.
    Wire {
        /// The device that is meant.
        to: Meant,
        /// The device's next hop.
        next: SocketAddr,
        /// The id of the next hop, which is 0 for the server.
        #[serde(default)]
        next_id: Option<u32>,
        /// The epoch for which the device must state that members of its chain are stopped: all members that are not on
        /// the device's path.
        shrink: Option<u32>,
    },
    /// Orders a device to end. The device answers after its end, and acknowledges nothing from then on.
    Leave {
        /// The device that is meant.
        to: Meant,
    },
}

/// A device, and the run of its process for which an order is meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meant {
    /// Number of the shard.
    pub shard: u32,
    /// Id of the device.
    pub id: u32,
    /// Name of the device's process.
    pub process: String,
}

/// The answer to a question or an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answered {
    /// The state of a device.
    Device(Box<DeviceSaid>),
    /// The state of a server.
    Server(ServerSaid),
    /// The order was carried out.
    Done,
    /// The order was refused, for this reason.
    Refused(String),
}

/// State of a device, as the device reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSaid {
    /// Shard, id and process.
    #[serde(flatten)]
    pub who: Meant,
    /// Address at which the device listens.
    pub listen: SocketAddr,
    /// The next hop on its command line.
    pub flag: SocketAddr,
    /// The device's present next hop.
    pub next: SocketAddr,
    /// The id of the present next hop (0: the server); `None`: the device does not know it.
    #[serde(default)]
    pub next_id: Option<u32>,
    /// The epoch for which the device states that all members that are not on its path are stopped.
    pub shrink: Option<u32>,
    /// The device has an order to start again, and has not done it yet.
    pub ends: bool,
    /// The epoch that the device serves; 0: it does not serve.
    pub epoch: u32,
    /// The devices of the chain of `epoch`, head first.
    pub chain: Vec<u32>,
    /// The device holds everything that a head must hold.
    pub whole: bool,
    /// The epoch in which the device is ready to join; 0: it is not ready.
    pub joins: u32,
    /// The event for which the device waits, if any.
    pub waits: Option<String>,
    /// The device admits updates in the kernel, which continues to answer after the end of the process.
    pub in_kernel: bool,
}

/// Returns the flags of a command line for a next hop. If the device has keys, the flags include the id of the next
/// hop. A device without keys refuses the flag for the id.
#[must_use]
pub fn next_flags(next: SocketAddr, id_with_keys: Option<u32>) -> String {
    match id_with_keys {
        Some(id) => format!("--next {next} --next-id {id}"),
        None => format!("--next {next}"),
    }
}

/// State of a server, as the server reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSaid {
    /// Number of the shard.
    pub shard: u32,
    /// Name of the server's process.
    pub process: String,
    /// Address at which the server listens.
    pub listen: SocketAddr,
    /// The epoch that the server's store has on record; 0: there is no epoch, or the store has not been read yet.
    pub epoch: u32,
    /// The devices of the chain of `epoch`, head first.
    pub chain: Vec<u32>,
}

/// Returns a name for this process.
fn process() -> std::io::Result<String> {
    Ok(format!("{:016x}", pmnet_udp::os_random()?))
}
