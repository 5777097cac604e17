//! Real processes that the harness controls: a Redis, a pmnet server, a chain of devices, a front.
//!
//! Purpose: code that the demo and the end-to-end tests share. Invariants: every wait has a
//! deadline. Every process ends when its handle is dropped, and the kernel ends it if this process
//! dies, even by `kill -9`. The output of every process stays in the run's folder until the folder
//! is removed. Tests use a real process, and no mock, wherever the real process can run.
//!
//! The kernel ends a child process when the *thread* that started it ends. So start and restart
//! processes from a thread that outlives them (the main thread of the demo, or the test's own
//! thread).

mod binaries;
mod chaos;
mod claims;
mod cluster;
mod fleet;
mod guard;
pub mod histories;
pub(crate) mod keys;
pub(crate) mod namespaces;
mod process;
mod proxy;
mod scratch;
mod shards;

pub use binaries::{Binaries, PRODUCT};
pub use chaos::{
    ACKNOWLEDGED_MIN, ChaosPlan, ChaosReport, ChaosView, Joiner, Replacement, answered, chaos,
    drained, settle,
};
pub use claims::{Port, Turn, lasting as free_port};
pub(crate) use cluster::READY_MAX;
pub(crate) use cluster::redis_spec;
pub use cluster::{Cluster, Medium, Role, StoreKind, Topology};
pub use fleet::{Fleet, FleetPlan, Machine};
pub use guard::{GuardArgs, exec_guarded};
pub use keys::Keys;
pub use namespaces::{Namespace, Namespaces, sweep as sweep_namespaces};
pub use pmnet_cli::find_program;
pub use process::{Process, Ready, Spec, cpu_ns};
pub use proxy::{LossyProxy, Trouble};
pub use scratch::Scratch;
pub use shards::{Shards, slots_of};
