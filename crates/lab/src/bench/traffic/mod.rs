//! Measures the effect that a switch with pmnet has on other traffic. The same switch is measured without any program,
//! with a program that lets everything pass, and with a device at its ports.
//!
//! All variants of one MTU are set up at the same time. The variants are measured in turn, in several rounds, with
//! alternating order. Only figures of the same round are compared. The benchmark has no thresholds: it succeeds if it
//! could measure. The benchmark leaves no processes, networks or programs behind.

mod load;
mod measure;
mod pace;
mod plan;
mod share;
mod stand;
mod table;
mod tcp;
mod udp;

use std::sync::atomic::AtomicBool;

use anyhow::Context;

use crate::bench::micro::refusal;
use crate::demo::view::View;

use super::load_average;
pub use super::micro::Output;
pub use measure::{Cell, Outcome, Refused};
pub use plan::{Plan, Variant, Workload};
pub use share::Share;

/// Runs the measurement, and writes the table and the JSON file.
///
/// # Errors
/// Fails if this process is not root or lacks a tool, if a variant cannot be set up for an MTU of 1500, if traffic is
/// altered or stalls for seconds, if the run is interrupted, or if the results cannot be written. In every case all
/// processes, networks and programs of the run are removed.
pub fn main(plan: &Plan, output: &Output, stop: &AtomicBool) -> anyhow::Result<()> {
    if let Some(reason) = refusal() {
        anyhow::bail!(reason);
    }
    let folder = output.prepare()?;
    let view = View::new(output.json, plan.steps());
    let before = load_average();
    let (cells, refused) = measure::all(plan, folder, stop, &view)?;
    view.finish();
    let mut notes = plan.notes();
    notes.push(format!(
        "load average: {before} before, {} after (this measurement by itself makes about 2)",
        load_average()
    ));
    let outcome = Outcome {
        title: plan.title(),
        notes,
        cells,
        refused,
    };
    let path = folder.join("traffic.json");
    std::fs::write(&path, serde_json::to_string_pretty(&outcome)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    if output.json {
        println!("{}", serde_json::to_string(&outcome)?);
    } else {
        println!("{}", table::text(&outcome));
        println!("numbers: {}", path.display());
    }
    Ok(())
}
