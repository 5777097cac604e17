//! A device that is both the tail of its chain and the server of its shard. Log and store share one region
//! (`docs/spec/packet-store.md` §12): the frame of a log entry becomes the stored record.
//!
//! [`StoreDevice`] joins a [`DeviceNode`](pmnet_device::DeviceNode) and a [`ServerNode`](pmnet_server::ServerNode),
//! without a network between them. Both machines keep their rules. Not allowed here: IO, clocks, decisions about
//! packets.

mod node;

pub use node::{SERVER, StoreDevice};
