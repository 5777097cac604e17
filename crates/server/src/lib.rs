//! Server: applies the ordered log to a store; owns trait Store.
//!
//! A server is the end of a chain of devices. It gets the shard's log in order, and applies it exactly once, since the store keeps in one
//! step what was applied and how far that is. There are two ways to be that store:
//!
//! - [`Store`] is called: `load`, `apply`, `execute`. The crate `pmnet-store` has those on Redis and on the packet store.
//! - [`program::Program`] is pulled from: a program takes batches when it likes, stores their rows with its own data, and confirms them
//!   (`docs/use/programs.md`). Other languages use this one.
//!
//! [`ServerNode`] joins the sans-IO server machine and a store (the simulator runs it as it is);
//! [`serve`] puts it on a socket.

mod feed;
mod node;
pub mod program;
pub mod serve;
pub mod store;

pub use self::node::ServerNode;
pub use feed::{Feed, Reader};
pub use pmnet_proto::server::{Server, ServerConfig, Stop};
pub use store::{
    Batch, Origin, RecordChange, RecordKey, Request, Source, Store, StoreError, TAKEN_OVER,
};
