//! The fleet: leases in etcd, the agents that renew them, and the controllers that watch them
//! (`docs/spec/protocol.md` §14).
//!
//! Purpose: etcd provides the knowledge about a shard's devices that otherwise an operator must have. An [`Agent`]
//! keeps the lease of one device, in a thread of its own. A [`ServerAgent`] reports the chain that the store has on
//! record. A [`Follower`] tells clients the devices' addresses. A [`Controller`] decides which devices are stopped, and
//! which next hops the others get. An [`Intent`] is a change that an operator wants. Without etcd an operator makes
//! changes with [`hand`]. Invariant: the members of etcd agree on each lease, and one transaction both grants the lease
//! and checks the word about its device. Not allowed here: access to packets, logs and stores. A loop that serves must
//! never wait for this code.

mod agent;
mod controller;
mod ctl;
mod etcd;
mod follow;
pub mod hand;
mod heal;
mod history;
mod plan;
mod record;
mod server;
mod shard;

pub use agent::{Agent, AgentConfig, Facts};
pub use controller::{Controller, ControllerConfig};
pub use ctl::{Intent, Want, intend};
pub use etcd::{Access, Etcd, EtcdError, LIMIT, Login, Members, Storage};
pub use follow::{FollowConfig, Follower, whereabouts};
pub use heal::{Advice, Step};
pub use history::History;
pub use plan::{Order, Place, Plan};
pub use record::{MemberRecord, Names, ServerRecord, StatusRecord, Wish};
pub use server::{Candidate, ServerAgent, ServerAgentConfig};
pub use shard::{Row, Shard};

pub use pmnet_proto::lease::{Word, margin};

use pmnet_proto::time::{Nanos, SECOND};

/// Shortest and longest length of a lease, in seconds. etcd grants no shorter lease than two seconds.
pub const LEASE_SECONDS: std::ops::RangeInclusive<u64> = 2..=60;
/// Default length of a lease, in seconds.
pub const LEASE_SECONDS_USUAL: u64 = 3;

/// Converts seconds to nanoseconds.
#[must_use]
pub const fn length(seconds: u64) -> Nanos {
    seconds.saturating_mul(SECOND)
}
