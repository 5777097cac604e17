//! Measures the round trip of one update, and its ratio to the minimum. The round trip is the time until a client knows
//! that its update is safe. The server has an ideal request handler (PMNet paper §VI, see protocol.md §8).
//!
//! One thread sends for all clients in a closed loop. Each client has at most one update in flight. All systems are set
//! up in namespaces at the same time. The systems are measured in turn, in several rounds, with alternating order. The
//! figures are medians over the rounds. A run leaves no processes, networks or programs behind.

pub(crate) mod bypass;
mod carrier;
pub(crate) mod frame;
mod generate;
mod handler;
mod measure;
mod page;
mod payload;
pub(crate) mod pinned;
mod plan;
mod programs;
mod session;
mod sockets;
pub(crate) mod stand;
pub(crate) mod system;
mod table;
mod troubles;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::Context;

use crate::demo::view::View;
use crate::harness::Namespaces;
use crate::xdp::{NOT_BUILT, plain};

pub use carrier::ClientIo;
pub use measure::{Cell, Outcome};
pub(crate) use measure::{cpus, pin};
pub(crate) use plan::cores;
pub use plan::{Handler, PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MIN, Plan, SESSIONS_MAX};
pub use system::{Medium, System};
pub use troubles::Troubles;

/// Destination and form of the output.
#[derive(Clone, Debug)]
pub struct Output {
    /// Folder for the report and the JSON file, and for temporary files of the run.
    pub folder: PathBuf,
    /// Print only one JSON object on stdout.
    pub json: bool,
}

impl Output {
    /// Removes what killed runs have left behind, and creates the folder.
    pub(crate) fn prepare(&self) -> anyhow::Result<&Path> {
        crate::setup::sweep()?;
        let folder = self.folder.as_path();
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        Ok(folder)
    }
}

/// Returns the reason why this process cannot measure; `None` if no obstacle is known before the attempt.
#[must_use]
pub fn refusal() -> Option<String> {
    crate::testbed::refusal()
        .or_else(Namespaces::refusal)
        .or_else(|| (!plain::is_built()).then(|| NOT_BUILT.to_owned()))
}

/// Runs the measurement, and writes the table, the JSON file and the page.
///
/// # Errors
/// Fails if this process is not root or lacks a tool, if a system does not start, if an answer is wrong or takes longer
/// than a few seconds, if the run is interrupted, or if a report cannot be written. In every case all processes,
/// networks and programs of the run are removed.
pub fn main(plan: &Plan, output: &Output, stop: &AtomicBool) -> anyhow::Result<()> {
    if let Some(reason) = refusal() {
        anyhow::bail!(reason);
    }
    let folder = output.prepare()?;
    let view = View::new(output.json, plan.steps());
    let cells = measure::all(plan, folder, stop, &view)?;
    view.finish();
    let outcome = Outcome {
        title: plan.title(),
        notes: plan.notes(),
        cells,
    };
    for (name, text) in [
        ("micro.html", page::html(&outcome)),
        ("micro.json", serde_json::to_string_pretty(&outcome)?),
    ] {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if output.json {
        println!("{}", serde_json::to_string(&outcome)?);
    } else {
        println!("{}", table::text(&outcome));
        println!("report: {}", folder.join("micro.html").display());
    }
    Ok(())
}
