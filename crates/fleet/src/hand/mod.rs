//! Changes of a chain by hand, without etcd: the answers of devices and servers about themselves, and the
//! orders to them (`docs/spec/protocol.md` §14, "By hand").
//!
//! Purpose: for a shard without a fleet, `pmnet ctl` does the work of controllers, step by step while it
//! runs. A [`DeviceDoor`] and a [`ServerDoor`] answer it, each in a thread of its own. The next step is a
//! pure function of their answers ([`Change::next`]).
//! Invariant: no code in this module decides which devices are in the chain. A device gets a new next hop and
//! starts as after a restart with other flags; as always, the server decides.
//! Not allowed here: a loop that serves must never wait for this code.

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
    /// Asks for the process's role, number and state.
    Who,
    /// A device must send to this next hop.
    Wire {
        /// The device that is meant.
        to: Meant,
        /// The device's next hop.
        next: SocketAddr,
        /// The id of the next hop; 0 for the server.
        #[serde(default)]
        next_id: Option<u32>,
        /// The device states that those members of this epoch's chain which are not on its path are stopped.
        shrink: Option<u32>,
    },
    /// A device must end. It answers when it has ended, and acknowledges nothing after that.
    Leave {
        /// The device that is meant.
        to: Meant,
    },
}

/// A device, in this run of its process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meant {
    /// Number of the shard.
    pub shard: u32,
    /// Id of the device.
    pub id: u32,
    /// Name of its process.
    pub process: String,
}

/// The answer.
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
    /// The id of the present next hop, 0 for the server, if the device knows it.
    #[serde(default)]
    pub next_id: Option<u32>,
    /// The epoch for which it states that the members that are not on its path are stopped.
    pub shrink: Option<u32>,
    /// The device must start again, and has not yet.
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
    /// The device runs in the kernel: it continues to answer after the end of its process.
    pub in_kernel: bool,
}

/// Returns the flags for a next hop on a command line. If the device has keys, the flags include the hop's id. A device
/// without keys refuses the flag for the id.
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
    /// Name of its process.
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
