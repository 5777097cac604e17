//! The device node: the protocol machine and the ordered log, one burst at a time.
//!
//! A burst is processed in these steps: datagrams → checked views → the machine's verdicts → `log.append` for each
//! admitted packet → one persist → [`pmnet_proto::device::Device::persisted`] → one burst to send. Before `persisted`
//! no entry is forwarded or acknowledged. A slow medium does not block reception: bursts that arrive during a persist
//! share the next persist. This crate must not open sockets, read clocks or draw randomness.

mod fast_path;
mod node;
mod port;
mod slots;

pub use fast_path::{FastPath, Hold};
pub use node::{DeviceError, DeviceNode, Rejects};
pub use pmnet_proto::device::{Counters, DeviceConfig};
pub use port::{Buffers, Port, PortCounters, Renewal, Served, Taken, Turn, Wake, serve};
pub use slots::{Blocked, SLOTS_A_TURN, SlotCounters, SlotRecovery, Slots};
