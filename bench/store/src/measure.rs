//! Runs every store in turn, in both orders, and computes medians.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde::Serialize;

use crate::engines::Engine;
use crate::plan::{Cell, Place, Plan};
use crate::run::{Phase, Run};

/// The results of a store in one cell.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The measured combination of place, number of keys, value size and distribution.
    #[serde(flatten)]
    pub cell: Cell,
    /// The measured store.
    pub engine: Engine,
    /// Median of each figure over the rounds.
    pub median: Run,
    /// The results of each round.
    pub rounds: Vec<Run>,
}

/// A folder that is removed with its contents when this value is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a new folder in `here`.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn new(here: &Path) -> anyhow::Result<Scratch> {
        let path = here.join(format!("pmnet-bench-store-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Scratch(path))
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process that is killed when this value is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures every store in every cell of the plan.
///
/// # Errors
/// A store fails, or lacks data that was written.
pub fn all(plan: &Plan, tell: &dyn Fn(&str)) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (at, cell) in plan.cells.iter().enumerate() {
        let mut rounds = vec![Vec::new(); plan.engines.len()];
        for round in 0..plan.rounds {
            let mut order: Vec<usize> = (0..plan.engines.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for engine in order {
                tell(&format!(
                    "{} of {}, round {}: {}, {}",
                    at + 1,
                    plan.cells.len(),
                    round + 1,
                    heading(cell),
                    plan.engines[engine].name()
                ));
                let run = one(plan, cell, plan.engines[engine]);
                let run = run.with_context(|| {
                    format!("{}, {}", plan.engines[engine].name(), heading(cell))
                })?;
                rounds[engine].push(run);
            }
        }
        for (&engine, rounds) in plan.engines.iter().zip(rounds) {
            rows.push(Row {
                cell: *cell,
                engine,
                median: median(&rounds),
                rounds,
            });
        }
    }
    Ok(rows)
}

/// Returns the heading of a cell.
#[must_use]
pub fn heading(cell: &Cell) -> String {
    format!(
        "{}, {} keys, {} B, {}",
        cell.place.name(),
        cell.keys,
        cell.value_bytes,
        cell.choice.name()
    )
}

fn one(plan: &Plan, cell: &Cell, engine: Engine) -> anyhow::Result<Run> {
    let folder = Scratch::new(match cell.place {
        Place::Disk => &plan.disk,
        Place::Tmpfs | Place::Flushed => &plan.memory,
    })?;
    let command = |what: &str| -> anyhow::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg(what)
            .args(["--engine", engine.name(), "--place", cell.place.name()])
            .args(["--keys", &cell.keys.to_string()])
            .args(["--value-bytes", &cell.value_bytes.to_string()])
            .args(["--choice", cell.choice.name()])
            .args(["--group", &plan.group.to_string()])
            .args(["--seconds", &plan.duration.as_secs_f64().to_string()])
            .arg("--folder")
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Ok(command)
    };
    let mut run: Run = {
        let mut child = Killed(command("run")?.spawn()?);
        serde_json::from_str(&line(&mut child.0)?)?
    };
    let mut child = Killed(command("recover")?.spawn()?);
    run.recovery_ms = line(&mut child.0)?.trim().parse()?;
    ensure!(child.0.wait()?.success(), "the recovery failed");
    Ok(run)
}

fn line(child: &mut Child) -> anyhow::Result<String> {
    let mut text = String::new();
    let stdout = child.stdout.take().context("no stdout")?;
    BufReader::new(stdout).read_line(&mut text)?;
    if text.is_empty() {
        bail!("it ended with {}", child.wait()?);
    }
    Ok(text)
}

/// Returns the middle value; for an even number, the mean of the two middle values.
#[must_use]
pub fn middle(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    let half = all.len() / 2;
    match all.len() {
        0 => 0.0,
        even if even % 2 == 0 => f64::midpoint(all[half - 1], all[half]),
        _ => all[half],
    }
}

fn median(rounds: &[Run]) -> Run {
    let of = |figure: &dyn Fn(&Run) -> f64| middle(rounds.iter().map(figure).collect());
    let phase = |phase: &dyn Fn(&Run) -> &Phase| Phase {
        operations: rounds.iter().map(|run| phase(run).operations).sum(),
        p50_us: of(&|run| phase(run).p50_us),
        p99_us: of(&|run| phase(run).p99_us),
        per_second: of(&|run| phase(run).per_second),
        cpu_us: of(&|run| phase(run).cpu_us),
    };
    let mut memory: Vec<u64> = rounds.iter().map(|run| run.memory_bytes).collect();
    memory.sort_unstable();
    let written: Vec<f64> = rounds
        .iter()
        .filter_map(|run| run.write_amplification)
        .collect();
    Run {
        put: phase(&|run| &run.put),
        group: phase(&|run| &run.group),
        get: phase(&|run| &run.get),
        scan: phase(&|run| &run.scan),
        mixed: phase(&|run| &run.mixed),
        memory_bytes: memory[memory.len() / 2],
        write_amplification: (!written.is_empty()).then(|| middle(written)),
        space_amplification: of(&|run| run.space_amplification),
        recovery_ms: of(&|run| run.recovery_ms),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_middle_is_in_the_middle() {
        assert!((super::middle(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((super::middle(vec![4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
    }
}
