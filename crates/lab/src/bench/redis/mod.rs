//! Compares Redis behind pmnet, Redis alone, and an upper bound for both, with different mixes of reads.
//!
//! All rows run at the same time and are measured in turn, in several rounds and both orders; figures are medians over
//! the rounds. The load waits until everything is in Redis before the next row is measured. A run leaves nothing
//! behind, and accepts no wrong reply.

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

/// Where things go.
#[derive(Clone, Debug)]
pub struct Output {
    /// Folder for report and numbers, and for the files of the run while it lasts.
    pub folder: PathBuf,
    /// Numbers also here.
    pub json: Option<Json>,
}

/// Where to put the result as JSON, besides the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Json {
    /// On stdout, as one line, in place of the table.
    Stdout,
    /// In this file.
    File(PathBuf),
}

/// Measures, and writes table, JSON and page.
///
/// # Errors
/// No redis-server; a row that does not start; a reply that is wrong or does not come within seconds; interrupted; a
/// report that cannot be written. Rows that need more than this machine has are left out. Nothing is left behind.
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
