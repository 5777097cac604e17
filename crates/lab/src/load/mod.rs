//! The load generator: the same code against a pmnet front, a plain Redis or a pmnet device.
//!
//! Purpose: comparable latencies and throughput, and histories that can be checked. Invariants: one
//! thread; every operation ends by its deadline as acknowledged, failed or unknown
//! (`docs/spec/protocol.md` §3); an operation is reported exactly once. In open loop every latency
//! counts from the moment at which the operation was due, so a stalled server is not hidden by a
//! generator that waits for it (coordinated omission). May not: judge a history; [`crate::check`]
//! does that.

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

/// Runs the load until its time is up, its number of operations is reached or `stop` is set.
///
/// # Errors
/// Fails if an option is out of bounds, the endpoint gave no answer at all, the system has no more file descriptors, or
/// a hook returned an error.
pub fn run(options: &Options, hooks: Hooks<'_>, stop: &AtomicBool) -> anyhow::Result<Summary> {
    options.check().map_err(anyhow::Error::msg)?;
    match options.endpoint {
        Endpoint::Resp => resp::run(options, hooks, stop),
        Endpoint::Native => native::run(options, hooks, stop),
    }
}
