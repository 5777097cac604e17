//! The RESP front: unmodified Redis clients in, pmnet sessions out.
//!
//! Purpose: speaks RESP2 and RESP3 with clients, decides by the command matrix ([`table`]) what may
//! be acknowledged as soon as it is durable in the devices and what must go to the store, and keeps
//! each client's replies in the order of its commands (`docs/use/`).
//! Invariants: only a command that cannot fail and whose reply says nothing is acknowledged early;
//! every queue is bounded by a named constant, and a full one stops reading from its client; bad
//! input ends one connection, never the process.
//! It may not know how calls travel: that is behind [`upstream::Upstream`].

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
