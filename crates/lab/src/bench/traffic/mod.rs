//! The effect of a switch with pmnet on other traffic: measures the same switch without any
//! program, with a program that lets everything pass, and with a device at its ports.
//!
//! All variants of one MTU are set up at the same time and measured in turn, in several rounds and
//! both orders; figures that are compared come from the same round. The benchmark asserts nothing: it succeeds if the
//! measurements could be made. The benchmark leaves no processes, networks or programs.

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

/// Measures, and writes the table and the JSON file.
///
/// # Errors
/// Fails if this process is not root or lacks a tool, or if a variant cannot be set up for the MTU of an Ethernet, or
/// if traffic is altered or stalls for seconds, or if the run is interrupted, or if the results cannot be written. All
/// processes, networks and programs of the run are removed in every case.
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
