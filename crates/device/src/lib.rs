//! The device node: the protocol machine and the ordered log, one burst at a time.
//!
//! A burst passes in one direction: datagrams → checked views → the machine's verdicts → `log.append` for all → one
//! persist → [`pmnet_proto::device::Device::persisted`] → one burst out. Nothing is forwarded or acknowledged before
//! `persisted`. Slow media do not block reception: bursts that arrive during a persist share the next persist.
//! Not allowed here: opening sockets, reading clocks, drawing randomness.

mod fast_path;
mod node;
mod port;
mod slots;

pub use fast_path::{FastPath, Hold};
pub use node::{DeviceError, DeviceNode, Rejects};
pub use pmnet_proto::device::{Counters, DeviceConfig};
pub use port::{Buffers, Port, PortCounters, Renewal, Served, Taken, Turn, Wake, serve};
pub use slots::{Blocked, SLOTS_A_TURN, SlotCounters, SlotRecovery, Slots};
