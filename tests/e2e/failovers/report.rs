//! Results by kind of run: the longest time without an acknowledgement, and the time until the
//! shard was as before.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::run::{Outcomes, RunReport};

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, world, plan) = (self.seed, self.plan.world, &self.plan);
        write!(f, "seed {seed}: ")?;
        match &self.outcomes {
            Err(why) => write!(f, "NOT COMPLETED ({world}): {plan}: {why}")?,
            Ok(outcomes) => {
                let word = if self.passed() { "passed" } else { "FAILED" };
                let [ok, refused, unknown] = outcomes.counts;
                let [gap, executed, restored, whole] = times(outcomes);
                write!(
                    f,
                    "{word} ({world}): {plan}: gap {gap:.2} s, executed {executed:.2} s, R again after {restored:.1} s, all \
                     after {whole:.1} s; {ok} acknowledged, {refused} refused, {unknown} unknown"
                )?;
                for finding in &outcomes.findings {
                    write!(f, "\n  {finding}")?;
                }
            }
        }
        match &self.folder {
            Some(folder) => write!(
                f,
                "\n  kept: {}\n  again: make failovers {}RUNS=1 FROM={seed}",
                folder.display(),
                if plan.is_storm() { "STORM=1 " } else { "" }
            ),
            None => Ok(()),
        }
    }
}

fn times(outcomes: &Outcomes) -> [f64; 4] {
    let Outcomes {
        gap,
        executed_gap,
        restored,
        whole,
        ..
    } = outcomes;
    [gap, executed_gap, restored, whole].map(Duration::as_secs_f64)
}

/// The results of all runs so far.
#[derive(Default)]
pub struct Campaign {
    reports: Vec<RunReport>,
    /// Number of devices that ended by themselves and were started again.
    pub ended: usize,
}

impl Campaign {
    pub fn add(&mut self, report: RunReport) {
        self.reports.push(report);
    }

    /// Returns whether there were runs, and all of them passed.
    pub fn passed(&self) -> bool {
        !self.reports.is_empty() && self.reports.iter().all(RunReport::passed)
    }

    fn by_kind(&self) -> BTreeMap<String, Vec<&RunReport>> {
        let mut kinds: BTreeMap<String, Vec<&RunReport>> = BTreeMap::new();
        for report in &self.reports {
            kinds.entry(report.plan.kind()).or_default().push(report);
        }
        kinds
    }

    pub fn as_json(&self) -> Value {
        let run = |report: &RunReport| {
            let mut value = json!({
                "seed": report.seed,
                "kind": report.plan.kind(),
                "plan": report.plan.to_string(),
                "copies": report.plan.world.devices,
                "spares": report.plan.world.spares,
                "media": report.plan.world.medium.name(),
                "wait_replicas": report.plan.world.confirm,
                "passed": report.passed(),
            });
            match &report.outcomes {
                Err(why) => value["why"] = json!(why),
                Ok(outcomes) => {
                    let [gap, executed, restored, whole] = times(outcomes);
                    value["gap_s"] = json!(gap);
                    value["executed_gap_s"] = json!(executed);
                    value["restored_s"] = json!(restored);
                    value["whole_s"] = json!(whole);
                    value["acknowledged"] = json!(outcomes.counts[0]);
                    value["refused"] = json!(outcomes.counts[1]);
                    value["unknown"] = json!(outcomes.counts[2]);
                    value["findings"] = json!(outcomes.findings);
                }
            }
            value
        };
        let kinds: Vec<Value> = self
            .by_kind()
            .iter()
            .map(|(kind, reports)| {
                let columns = columns(reports);
                let two = |at: usize| json!({ "median": columns[at].0, "worst": columns[at].1 });
                json!({
                    "kind": kind,
                    "runs": reports.len(),
                    "passed": reports.iter().filter(|one| one.passed()).count(),
                    "gap_s": two(0),
                    "executed_gap_s": two(1),
                    "restored_s": two(2),
                    "whole_s": two(3),
                })
            })
            .collect();
        json!({
            "passed": self.passed(),
            "kinds": kinds,
            "runs": self.reports.iter().map(run).collect::<Vec<_>>(),
        })
    }
}

/// Returns the median and the maximum of each of four times, in seconds.
fn columns(reports: &[&RunReport]) -> [(f64, f64); 4] {
    let done: Vec<[f64; 4]> = reports
        .iter()
        .filter_map(|report| report.outcomes.as_ref().ok())
        .map(times)
        .collect();
    std::array::from_fn(|at| {
        let mut column: Vec<f64> = done.iter().map(|row| row[at]).collect();
        column.sort_by(f64::total_cmp);
        let middle = column.get(column.len() / 2).copied();
        (
            middle.unwrap_or(f64::NAN),
            column.last().copied().unwrap_or(f64::NAN),
        )
    })
}

impl fmt::Display for Campaign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = self.by_kind();
        let width = kinds.keys().map(String::len).max().unwrap_or(0);
        writeln!(
            f,
            "{:<width$}  runs passed  gap: median worst  executed: median worst  R again: median worst   (seconds)",
            "kind"
        )?;
        for (kind, reports) in &kinds {
            let [gap, executed, restored, _] = columns(reports);
            let passed = reports.iter().filter(|one| one.passed()).count();
            writeln!(
                f,
                "{kind:<width$}  {:>4} {passed:>6}       {:>6.2} {:>5.2}            {:>6.2} {:>5.2}           {:>6.1} {:>5.1}",
                reports.len(),
                gap.0,
                gap.1,
                executed.0,
                executed.1,
                restored.0,
                restored.1
            )?;
        }
        let mut counts = [0; 3];
        for outcomes in self.reports.iter().flat_map(|one| &one.outcomes) {
            for (sum, count) in counts.iter_mut().zip(outcomes.counts) {
                *sum += count;
            }
        }
        let [ok, refused, unknown] = counts;
        let passed = self.reports.iter().filter(|one| one.passed()).count();
        write!(
            f,
            "{} runs: {passed} passed, {} not; {ok} operations acknowledged, {refused} refused, {unknown} unknown; devices \
             started again after they were left out: {}",
            self.reports.len(),
            self.reports.len() - passed,
            self.ended
        )
    }
}
