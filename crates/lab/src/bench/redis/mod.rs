//! Compares Redis with pmnet, Redis alone, and an upper bound for both, with different mixes of
//! reads.
//!
//! All rows run at the same time. The rows are measured in turn, in several rounds, with alternating order. The figures
//! are medians over the rounds. A row is measured only after Redis has applied all operations of the row before. A run
//! leaves no processes or networks behind, and fails on any wrong reply.

mod counts;
mod measure;
mod outcome;
mod page;
mod pairs;
mod plan;
mod scrape;
mod stand;
mod table;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use anyhow::Context;

use super::load_average;
use crate::demo::view::View;
use crate::harness::find_program;

pub use counts::Counts;
pub use measure::{Cell, Percentiles};
pub use outcome::Outcome;
pub use pairs::PairsCell;
pub use plan::{Plan, Reads, Row};
pub use stand::Refused;

/// Destinations of the output.
#[derive(Clone, Debug)]
pub struct Output {
    /// Folder for the report and the JSON file, and for temporary files of the run.
    pub folder: PathBuf,
    /// An additional destination of the JSON result.
    pub json: Option<Json>,
}

/// An additional destination of the JSON result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Json {
    /// One line of JSON on stdout, instead of the table.
    Stdout,
    /// The file with this path.
    File(PathBuf),
}

/// Runs the measurement, and writes the table, the JSON file and the page.
///
/// # Errors
/// Fails if redis-server is missing, if a row does not start, if a reply is wrong or takes longer than a few seconds,
/// if the run is interrupted, or if a report cannot be written. Rows that this machine cannot start are left out. In
/// every case all processes and networks of the run are removed.
pub fn main(plan: &Plan, output: &Output, stop: &AtomicBool) -> anyhow::Result<()> {
    find_program("redis-server")
        .context("redis-server is not installed: apt-get install redis-server (make setup)")?;
    let folder = output.folder.as_path();
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let only_json = output.json == Some(Json::Stdout);
    let view = View::new(only_json, plan.steps());
    let before = load_average();
    let (stands, refused) = stand::start_all(plan, folder, &view)?;
    let beside = stand::start_beside(plan.beside, folder)?;
    let cells = measure::all(plan, &stands, stop, &view)?;
    let pairs = pairs::all(plan, &stands, stop, &view)?;
    drop(beside);
    let ended = stand::stop_all(stands)?;
    view.finish();
    let mut notes = plan.notes();
    notes.extend(ended.unclean);
    notes.push(format!(
        "load average: {before} before, {} after (this measurement by itself makes about 2)",
        load_average()
    ));
    let outcome = Outcome {
        title: plan.title(),
        notes,
        cells,
        pairs,
        fronts: ended.fronts,
        refused,
    };
    let numbers = serde_json::to_string_pretty(&outcome)?;
    let report = folder.join("redis.html");
    let mut files = vec![
        (report.clone(), page::html(plan, &outcome)),
        (folder.join("redis.json"), numbers.clone()),
    ];
    if let Some(Json::File(path)) = &output.json {
        files.push((path.clone(), numbers));
    }
    for (path, text) in files {
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if only_json {
        println!("{}", serde_json::to_string(&outcome)?);
    } else {
        println!("{}", table::text(plan, &outcome));
        println!("report: {}", report.display());
    }
    Ok(())
}
