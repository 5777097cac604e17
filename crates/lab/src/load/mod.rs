//! The load generator. The same code measures a pmnet front, a plain Redis or a pmnet device.
//!
//! Purpose: latencies and throughput that can be compared, and histories that can be checked. Invariants: one thread;
//! every operation ends by its deadline as acknowledged, failed or unknown (`docs/spec/protocol.md` §3); each operation
//! is reported exactly once. In open loop, a latency begins at the moment at which the operation was due. Otherwise a
//! generator that waits for a stalled server would hide the stall (coordinated omission). The generator must not judge
//! a history: [`crate::check`] does that.

mod connection;
mod generator;
mod history;
mod keys;
mod mix;
mod native;
mod options;
mod resp;
mod run;
mod summary;
mod wait;

use std::sync::atomic::AtomicBool;

pub use history::{HistoryFile, Op, Outcome, Record};
pub use keys::ZIPF_MAX;
pub use mix::{Mix, MixError};
pub use options::{CLIENTS_MAX, PIPELINE_MAX, VALUE_BYTES_MAX};
pub use options::{CheckedOptions, Endpoint, Hooks, Options, Progress, Workload};
pub use summary::{Latency, Summary};

/// Runs the load until its time is over, its number of operations is reached or `stop` is set.
///
/// # Errors
/// Fails if an option is out of bounds, if the endpoint gave no answer at all, if the system has no file descriptors
/// left, or if a hook returned an error.
pub fn run(options: &Options, hooks: Hooks<'_>, stop: &AtomicBool) -> anyhow::Result<Summary> {
    options.check().map_err(anyhow::Error::msg)?;
    match options.endpoint {
        Endpoint::Resp => resp::run(options, hooks, stop),
        Endpoint::Native => native::run(options, hooks, stop),
    }
}
