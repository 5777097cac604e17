//! A chain changed by hand, without etcd: what devices and servers say of themselves to a person, and what they can be asked for
//! (`docs/spec/protocol.md` §14, "By hand").
//!
//! Purpose: `pmnet ctl` does for a shard without a fleet what controllers do for one with it, step by step while it runs. A
//! [`DeviceDoor`] and a [`ServerDoor`] answer it, each in a thread of its own; what is to be done next is a pure function
//! ([`Change::next`]) of what they say. Invariant: nothing here says who is in the chain. A device is wired anew and begins as after a
//! restart, as it would with other flags; the server decides, as ever. May not: be waited for by a loop that serves.

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

/// A question or order to a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Asked {
    /// Asks for the process's role, number and state.
    Who,
    /// A device is to send to this next hop.
    Wire {
        /// The device that is meant.
        to: Meant,
        /// Its next hop.
        next: SocketAddr,
        /// The id of that hop, 0 for the server.
        #[serde(default)]
        next_id: Option<u32>,
        /// It states that the members of this epoch's chain which its path leaves out are stopped.
        shrink: Option<u32>,
    },
    /// A device is to end. It answers when it has ended, and acknowledges nothing any more.
    Leave {
        /// The device that is meant.
        to: Meant,
    },
}

/// The device that is meant, in this life of its process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meant {
    /// Shard.
    pub shard: u32,
    /// Device id.
    pub id: u32,
    /// Name of its process.
    pub process: String,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answered {
    /// A device.
    Device(Box<DeviceSaid>),
    /// A server.
    Server(ServerSaid),
    /// It was done.
    Done,
    /// It was not, for this reason.
    Refused(String),
}

/// State of a device, as it tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSaid {
    /// Shard, id and process.
    #[serde(flatten)]
    pub who: Meant,
    /// Address at which it listens.
    pub listen: SocketAddr,
    /// The next hop that its command line names.
    pub flag: SocketAddr,
    /// The next hop that it has.
    pub next: SocketAddr,
    /// The id of that hop, 0 for the server, if the device was told it.
    #[serde(default)]
    pub next_id: Option<u32>,
    /// The epoch in which it states that who is not on its path is stopped.
    pub shrink: Option<u32>,
    /// It is to begin anew, and has not yet.
    pub ends: bool,
    /// The epoch that it serves; 0: it does not serve.
    pub epoch: u32,
    /// The devices of that epoch's chain, head first.
    pub chain: Vec<u32>,
    /// It holds everything that a head must.
    pub whole: bool,
    /// The epoch in which it is ready to join; 0: it is not.
    pub joins: u32,
    /// Reason why it waits, if it does.
    pub waits: Option<String>,
    /// It is in the kernel: it answers on when its process has ended.
    pub in_kernel: bool,
}

/// Returns the flags that name a next hop on a command line. With keys its id is one of them; without keys a device refuses it.
#[must_use]
pub fn next_flags(next: SocketAddr, id_with_keys: Option<u32>) -> String {
    match id_with_keys {
        Some(id) => format!("--next {next} --next-id {id}"),
        None => format!("--next {next}"),
    }
}

/// State of a server, as it tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSaid {
    /// Shard.
    pub shard: u32,
    /// Name of its process.
    pub process: String,
    /// Address at which it listens.
    pub listen: SocketAddr,
    /// The epoch that its store has on record; 0: there is none, or the store was not read yet.
    pub epoch: u32,
    /// The devices of that epoch's chain, head first.
    pub chain: Vec<u32>,
}

/// Returns a name for this process.
fn process() -> std::io::Result<String> {
    Ok(format!("{:016x}", pmnet_udp::os_random()?))
}
