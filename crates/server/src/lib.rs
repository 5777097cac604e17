//! Server: applies the ordered log to a store. Defines the trait [`Store`].
//!
//! A server stands at the end of a chain of devices. It gets the shard's log in order, and applies it exactly
//! once. For this, the store keeps the effects, and the order up to which they are applied, in one step. A
//! store can have one of two forms:
//!
//! - [`Store`]: the server calls `load`, `apply` and `execute`. The crate `pmnet-store` implements it for
//!   Redis and for the packet store.
//! - [`program::Program`]: a program takes batches when it likes, stores their rows with its own data, and
//!   confirms them (`docs/use/programs.md`). Other languages use this form.
//!
//! [`ServerNode`] joins the sans-IO server machine and a store (the simulator runs it unchanged); [`serve`]
//! runs it on a socket.

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
