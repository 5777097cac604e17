//! The RESP front: it serves unmodified Redis clients through pmnet sessions.
//!
//! Purpose: the front speaks RESP2 and RESP3 with clients. By the command matrix ([`table`]) the front decides which
//! commands may be acknowledged as soon as they are durable in the devices. All other commands must go to the store.
//! The front returns each client's replies in the order of the client's commands (`docs/use/`). Invariants: only a
//! command that cannot fail, and whose reply carries no information, is acknowledged early. Every queue is bounded by a
//! named constant, and a full queue stops the reading from its client. Bad input ends one connection, never the
//! process. The front does not know how calls travel: [`upstream::Upstream`] hides that.

pub mod client;
pub mod endpoint;
pub mod limits;
pub mod shards;
pub mod shell;
pub mod store;
pub mod table;
mod tracking;
pub mod upstream;
mod users;

pub use client::ReadFrom;
pub use shell::{
    Cache, Class, DirectMover, Entrance, Front, FrontConfig, FrontError, FrontTurn, Limits,
    Stopper, clients_within,
};
pub use users::{Access, Secret};
