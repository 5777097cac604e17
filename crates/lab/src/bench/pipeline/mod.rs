//! The cost of one packet in the kernel's pipeline. Only the pipeline's program is measured, on one core, without
//! network, system call or wake-up.
//!
//! One system call sends thousands of prepared packets through the loaded program. Each packet is different, and each
//! update is really appended to a log and acknowledged. The cost of supplying the packets is measured separately, and
//! subtracted. The device's state machine opens the sessions. The benchmark needs no interface, so it can run while
//! devices on this machine serve. Only packets with a checked result count.

pub(crate) mod frame;
mod measure;
mod packet;
mod plan;
mod stand;
mod table;

use std::sync::atomic::AtomicBool;

use super::micro::pinned;
use crate::demo::view::View;
use crate::harness::Namespaces;
use crate::xdp::{NOT_BUILT, plain};

pub use measure::{Outcome, Row};
pub use packet::Packet;
pub use plan::{BATCH_MAX, BATCHES_IN_LOG, BESIDE_MAX, Plan, TAKEN_MAX, Tags};
pub use stand::SESSIONS_MAX;

/// Returns the reason why this process cannot measure; `None` if no obstacle is known before the attempt.
#[must_use]
pub fn refusal() -> Option<String> {
    if !Namespaces::is_root() {
        return Some("programs in the kernel need root: sudo pmnet-lab bench pipeline".into());
    }
    (!plain::is_built()).then(|| NOT_BUILT.to_owned())
}

/// Runs the measurement, and prints a table or one JSON object.
///
/// # Errors
/// Fails if this process is not root, if the kernel refuses the programs, if a packet has an unexpected result, or if
/// the run is interrupted. In every case all programs and maps of the run are removed.
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
        "Cost of one packet in the pipeline's program{}{}, one core, log in memory with {} MiB of frames, {} rounds \
         of {} packets",
        if plan.leased { ", with a lease" } else { "" },
        if plan.beside > 0 {
            format!(", beside {} other devices at the interface", plan.beside)
        } else {
            String::new()
        },
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
