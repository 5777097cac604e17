//! The fleet: leases in etcd, who keeps them, and who looks at them (`docs/spec/protocol.md` §14).
//!
//! Purpose: what an operator would know of a shard's devices is known from etcd. An [`Agent`] keeps the lease of one device, in a
//! thread of its own; a [`ServerAgent`] says which chain the store has on record. A [`Follower`] tells clients where the devices are. A [`Controller`]
//! says who is stopped, and how the rest is wired. An [`Intent`] is what a person wants changed. Without etcd a person does that by
//! [`hand`]. Invariant: a lease is granted by agreement of all members of etcd, together with the look at the
//! word about its device. May not: see a packet, a log or a store; be waited for by a loop that serves.

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
pub use record::{MemberRecord, Names, ServerRecord, Wish};
pub use server::{Candidate, ServerAgent, ServerAgentConfig};
pub use shard::{Row, Shard};

pub use pmnet_proto::lease::{Word, margin};

use pmnet_proto::time::{Nanos, SECOND};

/// Shortest and longest lease, in seconds. etcd gives no shorter ones.
pub const LEASE_SECONDS: std::ops::RangeInclusive<u64> = 2..=60;
/// Usual length of a lease, in seconds.
pub const LEASE_SECONDS_USUAL: u64 = 3;

/// Returns a length in seconds as the protocol counts it.
#[must_use]
pub const fn length(seconds: u64) -> Nanos {
    seconds.saturating_mul(SECOND)
}
