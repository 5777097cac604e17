//! Repeats PASTE's comparison (M. Honda et al., HotNets 2016) of three servers that answer requests. The first server
//! stores nothing. The second copies each request into a log. The third makes the packet buffer with the request a part
//! of the log.
//!
//! The three servers use the same AF_XDP sockets (crate `packets`) and differ in nothing else. Each server has a veth
//! pair, over which one thread sends in a closed loop. The servers are measured in turn, in several rounds, with
//! alternating order. The figures are medians. After each run, the newest stored requests are compared with the
//! requests that were sent. A run leaves no processes, networks or files behind.

mod generate;
mod measure;
mod page;
mod plan;
mod request;
mod serve;
mod table;

use std::sync::atomic::AtomicBool;

use anyhow::Context;
use pmnet_dataplane::af_xdp;
use pmnet_media::Instruction;

use crate::bench::load_average;
use crate::bench::micro::{Output, cores};
use crate::demo::view::View;
use crate::harness::Namespaces;
use crate::xdp::NOT_BUILT;

pub use measure::{Cell, Outcome};
pub use plan::{
    IN_FLIGHT_MAX, PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MIN, Place, Plan, QUEUES_MAX, Store,
};

/// Path in sysfs that exists if the kernel offers the processor's performance counters.
const COUNTERS: &str = "/sys/bus/event_source/devices/cpu";

/// Returns the reason why this process cannot measure; `None` if no obstacle is known before the attempt.
#[must_use]
pub fn refusal() -> Option<String> {
    crate::testbed::refusal()
        .or_else(Namespaces::refusal)
        .or_else(|| (!af_xdp::is_built()).then(|| NOT_BUILT.to_owned()))
}

/// Runs the measurement, and writes the table, the JSON file and the page.
///
/// # Errors
/// Fails if this process is not root or lacks a tool, if a server does not answer, if a request is not stored as it was
/// sent, if the run is interrupted, or if a report cannot be written. In every case all processes, networks and files
/// of the run are removed.
pub fn main(plan: &Plan, output: &Output, stop: &AtomicBool) -> anyhow::Result<()> {
    if let Some(reason) = refusal() {
        anyhow::bail!(reason);
    }
    let folder = output.prepare()?;
    let view = View::new(output.json, plan.steps());
    let mut notes = notes(plan);
    let cells = measure::all(plan, folder, stop, &view, &mut notes)?;
    view.finish();
    notes.push(format!(
        "load average at the end: {} (this measurement by itself makes about 2)",
        load_average()
    ));
    let outcome = Outcome {
        title: title(plan),
        notes,
        cells,
    };
    for (name, text) in [
        ("packets.html", page::html(&outcome)),
        ("packets.json", serde_json::to_string_pretty(&outcome)?),
    ] {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if output.json {
        println!("{}", serde_json::to_string(&outcome)?);
    } else {
        println!("{}", table::text(&outcome));
        println!("report: {}", folder.join("packets.html").display());
    }
    Ok(())
}

fn title(plan: &Plan) -> String {
    format!(
        "Requests to a server that stores nothing, copies them into a log, or keeps the packet buffers as the log: AF_XDP, \
         closed loop, veth on one machine with {} cores, {} MiB of buffers and of log, R = 1",
        cores(),
        plan.log_bytes >> 20
    )
}

fn notes(plan: &Plan) -> Vec<String> {
    let mut notes: Vec<String> = [Store::Nothing, Store::Copied, Store::Buffers]
        .map(|store| format!("{}: {}", store.name(), store.meaning()))
        .into();
    for place in &plan.places {
        notes.push(format!("{}: {}", place.name(), place.title()));
    }
    if plan.places.iter().any(|place| place.flushes()) {
        let instruction = Instruction::of_this_processor().map_or("none", Instruction::name);
        notes.push(format!(
            "flushed: each persist flushes its lines ({instruction}) and fences, as on persistent memory. DRAM is not made \
             persistent by that, and is not as slow to write to"
        ));
    }
    notes.push(
        "throughput, p50: against copied. Published for PASTE (a NIC that stores into emulated persistent memory, TCP and \
         HTTP): +10 to +88 % throughput, −9 to −46 % latency"
            .into(),
    );
    notes.push(
        "server ns: time of the server's one thread for a request, system calls of sending included, median; storing ns: so \
         much more than with nothing stored; burst: requests that it took in at a time. One thread serves all queues"
            .into(),
    );
    notes.push(match plan.kept {
        Some(kept) => format!("{kept} requests are kept before the oldest is forgotten"),
        None => "three quarters of the buffers are full of kept requests, so every request comes into memory that has not \
                 been used for long"
            .into(),
    });
    notes.push(
        "a veth has no zero copy: the kernel copies each packet once, on the client's core, into the buffer. A NIC would do \
         that by DMA"
            .into(),
    );
    if !std::path::Path::new(COUNTERS).exists() {
        notes.push(
            "cycles and cache misses: this machine shows no counters of its processor (perf says: not supported)"
                .into(),
        );
    }
    notes.push(format!(
        "medians over {} rounds of {:.1} s",
        plan.rounds,
        plan.duration.as_secs_f64()
    ));
    notes
}
