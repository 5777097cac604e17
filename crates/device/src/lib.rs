//! The device node: the protocol machine and the ordered log, one burst at a time.
//!
//! A burst passes through in one direction: datagrams → checked views → the machine's verdicts →
//! `log.append` for all → one persist → [`pmnet_proto::device::Device::persisted`], before which
//! nothing is forwarded or acknowledged → one burst out. Slow media do not stop this: bursts that
//! arrive while a persist is under way share the next one.
//! May not: open sockets, read clocks, draw randomness.

mod fast_path;
mod node;
mod port;
mod slots;

pub use fast_path::{FastPath, Hold};
pub use node::{DeviceError, DeviceNode, Rejects};
pub use pmnet_proto::device::{Counters, DeviceConfig};
pub use port::{Buffers, Port, PortCounters, Renewal, Served, Taken, Turn, Wake, serve};
pub use slots::{Blocked, SLOTS_A_TURN, SlotCounters, SlotRecovery, Slots};
