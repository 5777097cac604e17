//! The rows of a plan after their start.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use serde::Serialize;

use super::counts::{self, Counts};
use super::plan::{PREFIX, Plan, Row};
use super::scrape;
use crate::bench::micro::refusal;
use crate::demo::view::View;
use crate::harness::{Binaries, Process, Ready, Spec, find_program};
use crate::resp::{Client, Reply, write_command};
use crate::setup::{Running, ValueBytes, sweep};

/// Number of keys that one pipeline writes before the first measurement.
const FILL_BATCH: u64 = 500;
/// Deadline of one such pipeline, which usually takes far less time.
const FILL_MAX: std::time::Duration = std::time::Duration::from_secs(30);

/// A running row.
pub struct Stand {
    /// The row.
    pub row: Row,
    /// The row's processes, which another row can share ([`Row::twin`]).
    pub running: Arc<Running>,
    /// Status ports of these processes; empty if the row is measured without reading metrics.
    pub ports: Vec<SocketAddr>,
}

/// A row that cannot be started on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// The row.
    pub row: Row,
    /// The reason, in one line.
    pub reason: String,
}

/// Starts all rows, and writes every key in each row. If this machine cannot make namespaces, the rows that need them
/// are left out.
pub fn start_all(
    plan: &Plan,
    folder: &Path,
    view: &View,
) -> anyhow::Result<(Vec<Stand>, Vec<Refused>)> {
    let binaries = Binaries::own()?;
    let linked = plan.rows.iter().any(|row| row.is_linked());
    let missing = linked
        .then(|| refusal().or_else(|| sweep().err().map(|error| format!("{error:#}"))))
        .flatten();
    let mut stands: Vec<Stand> = Vec::new();
    let mut refused = Vec::new();
    for (number, row) in plan.rows.iter().enumerate() {
        if let Some(reason) = missing.as_ref().filter(|_| row.is_linked()) {
            refused.push(Refused {
                row: *row,
                reason: reason.lines().next().unwrap_or_default().to_owned(),
            });
            continue;
        }
        view.step(&format!("starting {}", row.name()), 0);
        let twin = stands.iter().find(|stand| row.twin() == Some(stand.row));
        let running = match twin.map(|twin| Arc::clone(&twin.running)) {
            Some(running) => running,
            None => {
                let place = row.place(plan.medium, ValueBytes(plan.value_bytes));
                let running = Running::start(&place, ("redis", number), &binaries, folder)
                    .with_context(|| format!("cannot set up {}", row.name()))?;
                Arc::new(running)
            }
        };
        let ports = if *row == Row::Relay2Scraped {
            scrape::ports(&running)
        } else {
            Vec::new()
        };
        let stand = Stand {
            row: *row,
            running,
            ports,
        };
        if row.keeps_data() {
            fill(plan, &stand).with_context(|| format!("cannot fill {}", row.name()))?;
        }
        stands.push(stand);
    }
    Ok((stands, refused))
}

/// Starts programs that never sleep. The programs end when the result is dropped.
pub fn start_beside(count: usize, folder: &Path) -> anyhow::Result<Vec<Process>> {
    let shell = find_program("sh").context("there is no sh")?;
    (0..count)
        .map(|number| {
            let spec = Spec {
                name: format!("busy-{number}"),
                binaries: Binaries::own()?,
                program: Some(shell.clone()),
                args: ["-c", "while :; do :; done"].map(Into::into).to_vec(),
                ready: Ready::Line,
            };
            Process::launch(spec, folder)
        })
        .collect()
}

/// Writes every key once, so that every read finds a value.
fn fill(plan: &Plan, stand: &Stand) -> anyhow::Result<()> {
    let endpoint = stand.running.endpoint()?;
    let value = vec![b'x'; plan.value_bytes];
    stand.running.inside(|| {
        let mut client = Client::connect(endpoint, FILL_MAX)?;
        let mut commands = Vec::new();
        for first in (0..plan.keys).step_by(usize::try_from(FILL_BATCH)?) {
            let last = (first + FILL_BATCH).min(plan.keys);
            commands.clear();
            for number in first..last {
                let key = format!("{PREFIX}{number}");
                write_command(&mut commands, &[b"SET", key.as_bytes(), &value]);
            }
            let replies = client.exchange(&commands, usize::try_from(last - first)?)?;
            let wrong = replies.iter().find(|reply| !is_ok(reply));
            anyhow::ensure!(wrong.is_none(), "a SET is answered with {wrong:?}");
        }
        Ok(())
    })?;
    stand.running.settle()
}

/// Returns whether a `SET` succeeded.
pub fn is_ok(reply: &Reply) -> bool {
    matches!(reply, Reply::Status(text) if text == b"OK")
}

/// The facts that are known after the end of all rows.
#[derive(Default)]
pub struct Ended {
    /// The counts of the fronts that reported them.
    pub fronts: Vec<Counts>,
    /// One sentence about each process that did not end with exit code 0.
    pub unclean: Vec<String>,
}

/// Ends all rows.
pub fn stop_all(stands: Vec<Stand>) -> anyhow::Result<Ended> {
    let mut ended = Ended::default();
    for stand in stands {
        // The last row that shares processes ends them.
        let Some(mut running) = Arc::into_inner(stand.running) else {
            continue;
        };
        let mut names = Vec::new();
        if let Some(front) = running.end_front()? {
            ended.fronts.extend(counts::of(stand.row, &front.log));
            names.extend((!front.clean).then(|| "front".to_owned()));
        }
        names.extend(running.stop()?);
        if !names.is_empty() {
            let row = stand.row.name();
            let names = names.join(", ");
            ended
                .unclean
                .push(format!("{row}: did not end in good order: {names}"));
        }
    }
    Ok(ended)
}
