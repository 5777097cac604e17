//! Server: applies the ordered log to a store; owns trait Store.
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
