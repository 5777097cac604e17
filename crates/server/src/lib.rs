//! Server driver: applies the ordered log to a store; owns trait Store.
//!
//! [`Core`] joins the sans-IO server machine and a store (the simulator runs it as it is);
//! [`driver`] puts it on a socket.

mod core;
pub mod driver;
mod feed;
pub mod store;

pub use self::core::Core;
pub use feed::{Feed, Reader};
pub use pmnet_proto::server::{Server, ServerConfig, Stop};
pub use store::{Batch, RecordChange, RecordKey, Request, Store, StoreError};
