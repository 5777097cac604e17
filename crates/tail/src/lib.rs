//! A device that is the tail of its chain and the server of its shard, over one region for its log and its store
//! (`docs/spec/packet-store.md` §12): the frame of a log entry becomes the stored record.
//!
//! [`StoreDevice`] joins a [`DeviceNode`](pmnet_device::DeviceNode) and a [`ServerNode`](pmnet_server::ServerNode), with no network between them. The rules are those
//! of both machines, unchanged. May not: do IO, read a clock, decide anything about a packet.

mod node;

pub use node::{SERVER, StoreDevice};
