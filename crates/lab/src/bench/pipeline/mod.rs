//! What one packet costs the pipeline in the kernel: its program alone, on one core, without network,
//! system call or wake-up.
//!
//! Thousands of prepared packets go through the loaded program in one system call, each of them distinct,
//! each update really appended to a log and acknowledged; what putting the packets there takes is measured in the
//! same way and subtracted. Sessions are opened by the device's machine. Needs no interface, so it
//! can run beside devices that serve. May not: count a packet whose fate it did not check.

mod frame;
mod measure;
mod packet;
mod stand;
mod table;

use std::sync::atomic::AtomicBool;

use pmnet_dataplane::xdp::{KernelError, plain};
use pmnet_log::Parameters;
use serde::Serialize;

use super::micro::pinned;
use crate::demo::view::View;
use crate::harness::Namespaces;

pub use measure::Row;
pub use packet::Packet;
pub use stand::SESSIONS_MAX;

/// Packets of one run, at most.
pub const BATCH_MAX: u32 = 10_000;
/// Most bytes of a log that one update takes: header and payload, rounded up.
pub const TAKEN_MAX: u64 = 1_536;
/// A log has room for so many runs: space is free again when two later updates say so.
pub const BATCHES_IN_LOG: u64 = 3;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Kinds of packets, each once.
    pub packets: Vec<Packet>,
    /// Payloads of appended updates over IPv4, in bytes, each once.
    pub payloads: Vec<usize>,
    /// Numbers of sessions, 1 to [`SESSIONS_MAX`], each once; packets take turns.
    pub sessions: Vec<usize>,
    /// Packets of one run, 1 to [`BATCH_MAX`].
    pub batch: u32,
    /// Runs of each row.
    pub rounds: usize,
    /// Size of the log: powers of two, with room for [`BATCHES_IN_LOG`] runs.
    pub log: Parameters,
}

/// Everything that a run found out.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// What was measured, on what.
    pub title: String,
    /// What to know about the figures.
    pub notes: Vec<String>,
    /// The figures.
    pub rows: Vec<Row>,
}

/// Why this process cannot measure; `None`: it can, as far as can be told without trying.
#[must_use]
pub fn refusal() -> Option<String> {
    if !Namespaces::is_root() {
        return Some("programs in the kernel need root: sudo pmnet-lab bench pipeline".into());
    }
    (!plain::is_built()).then(|| KernelError::NotBuilt.to_string())
}

/// Measures, and prints a table, or one JSON object.
///
/// # Errors
/// No root; a kernel that does not take the programs; a packet that was not treated as it should;
/// interrupted. Nothing is left behind.
pub fn main(plan: &Plan, json: bool, stop: &AtomicBool) -> anyhow::Result<()> {
    if let Some(reason) = refusal() {
        anyhow::bail!(reason);
    }
    pinned::sweep()?;
    let view = View::new(json, measure::steps(plan));
    let rows = measure::all(plan, stop, &view)?;
    view.finish();
    let outcome = Outcome {
        title: title(plan),
        notes: notes(plan),
        rows,
    };
    if json {
        println!("{}", serde_json::to_string(&outcome)?);
    } else {
        println!("{}", table::text(&outcome));
    }
    Ok(())
}

fn title(plan: &Plan) -> String {
    format!(
        "Cost of one packet in the pipeline's program, one core, log in memory with {} MiB of frames, {} rounds of {} \
         packets",
        plan.log.frame_bytes >> 20,
        plan.rounds,
        plan.batch
    )
}

fn notes(plan: &Plan) -> Vec<String> {
    let mut notes: Vec<String> = plan
        .packets
        .iter()
        .map(|packet| format!("{}: {}", packet.name(), packet.meaning()))
        .collect();
    notes.push(
        "ns: from one packet in the frame to the verdict, median over the rounds; least: the least of any round with \
         the pipeline, less the least without; subtracted: what putting the packet there and going over to a program \
         takes, median"
            .into(),
    );
    notes.push(
        "packets are in the caches when the program begins, as behind a NIC that writes there; drivers, network \
         stack and wake-ups are not in these figures"
            .into(),
    );
    let jit = std::fs::read_to_string("/proc/sys/net/core/bpf_jit_enable");
    if jit.is_ok_and(|jit| jit.trim() == "0") {
        notes.push(
            "this kernel interprets BPF programs, which is many times slower: sysctl net.core.bpf_jit_enable=1"
                .into(),
        );
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    if let Some(load) = load.split_whitespace().next() {
        notes.push(format!(
            "load average at the end: {load} (this measurement by itself makes about 1)"
        ));
    }
    notes
}
