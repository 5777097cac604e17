//! The server: it applies the ordered log to a store. Defines the trait [`Store`].
//!
//! A server stands at the end of a chain of devices. The server receives the shard's log in order, and applies it
//! exactly once. For this purpose the store writes two things in one step: the effects, and the order up to which they
//! are applied. A store can have one of two forms:
//!
//! - [`Store`]: the server calls `load`, `apply` and `execute`. The crate `pmnet-store` implements this trait for Redis
//!   and for the packet store.
//! - [`program::Program`]: a program takes batches when it chooses, stores their rows with its own data, and confirms
//!   the batches (`docs/use/programs.md`). Libraries for other languages use this form.
//!
//! [`ServerNode`] joins the server machine, which has no IO, and a store. The simulator runs `ServerNode` unchanged.
//! [`serve`] runs `ServerNode` on a socket.

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
