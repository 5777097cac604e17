//! Measures all rows in turn, in several rounds. Figures are medians over the rounds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;

use super::plan::{PREFIX, Plan, Reads, Row};
use super::scrape;
use super::stand::Stand;
use crate::demo::view::View;
use crate::harness::cpu_ns;
use crate::load::{Hooks, Latency, Options, Summary, Workload, run};

/// Latency percentiles of operations in microseconds, each as the median over the rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
}

/// The figures for one row, one mix and one number of clients.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The set-up.
    pub row: Row,
    /// Name of the set-up, with medium and R.
    pub title: String,
    /// The fraction of reads.
    pub reads: Reads,
    /// Number of connections.
    pub clients: usize,
    /// Number of acknowledged operations in all rounds, warm-ups included.
    pub operations: u64,
    /// Operations per second, median over the rounds.
    pub throughput: f64,
    /// Percentiles of all operations.
    pub all: Percentiles,
    /// Percentiles of `SET` and `GET`, if the mix has them.
    pub by_operation: BTreeMap<&'static str, Percentiles>,
    /// The p50 of all operations in each round, sorted. The spread shows how far the rounds agree.
    pub rounds_p50_us: Vec<f64>,
    /// p50 of Redis over the same path, divided by the p50 of all operations of this cell.
    pub lower: Option<f64>,
    /// The p50 of all operations of this cell, divided by the p50 of the bound over the same path.
    pub of_limit: Option<f64>,
    /// Number of operations in all rounds that failed or had an unknown outcome.
    pub errors: u64,
    /// The text of the first error among these operations.
    pub first_error: Option<String>,
    /// Longest time in milliseconds from the end of the load until the database had applied all operations.
    pub drain_ms: f64,
    /// CPU time per operation in microseconds, over all rounds, by process. The processes on the client's side come
    /// first.
    pub cpu_us: Vec<(String, f64)>,
    /// The distribution of latencies in the round with the median p50, as points (microseconds, fraction of operations
    /// at or below this time).
    pub cdf: Vec<(f64, f64)>,
}

/// The results of all rounds of one cell.
#[derive(Default)]
struct Rounds {
    summaries: Vec<Summary>,
    cpu: Cpu,
    /// CPU time of the load generator.
    own_ns: u64,
    drain: Duration,
}

/// CPU time by process. The processes on the client's side come first.
#[derive(Default)]
pub struct Cpu(Vec<(String, u64)>);

impl Cpu {
    /// Returns the CPU time that all processes have used so far.
    pub fn of(stand: &Stand) -> Cpu {
        let processes = stand.running.processes();
        Cpu(processes
            .into_iter()
            .map(|(name, process)| (name, process.cpu_ns()))
            .collect())
    }

    /// Adds the CPU time that was used between two looks.
    pub fn add(&mut self, before: &Cpu, after: Cpu) {
        for (index, (name, nanos)) in after.0.into_iter().enumerate() {
            if index == self.0.len() {
                self.0.push((name, 0));
            }
            let used = nanos.saturating_sub(before.0.get(index).map_or(0, |before| before.1));
            self.0[index].1 += used;
        }
    }

    /// Returns the CPU time in microseconds per operation.
    pub fn per_operation(&self, operations: u64) -> Vec<(String, f64)> {
        let count = Duration::from_secs(operations.max(1)).as_secs_f64();
        let each = self.0.iter().map(|(name, nanos)| {
            let micros = Duration::from_nanos(*nanos).as_secs_f64() * 1e6;
            (name.clone(), micros / count)
        });
        each.collect()
    }
}

/// Returns the indices of the rows in the order of this round. The order differs from round to round, so that it does
/// not affect the result.
pub fn order(rows: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// Measures all mixes with all numbers of clients.
pub fn all(
    plan: &Plan,
    stands: &[Stand],
    stop: &AtomicBool,
    view: &View,
) -> anyhow::Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for reads in &plan.reads {
        for clients in &plan.clients {
            let mut rounds: Vec<Rounds> = stands.iter().map(|_| Rounds::default()).collect();
            for round in 0..plan.rounds {
                for index in order(stands.len(), round) {
                    ensure!(!stop.load(Ordering::Relaxed), "interrupted");
                    let stand = &stands[index];
                    let text = format!(
                        "{}, {clients} client(s), round {} of {}: {}",
                        reads.title(),
                        round + 1,
                        plan.rounds,
                        stand.row.name()
                    );
                    view.step(&text, 1);
                    let mut options = options(plan, *reads, *clients, stand)?;
                    // Each round has a seed of its own. All rows of a round have the same seed.
                    options.seed = u64::try_from(round).unwrap_or(0) + 1;
                    one(stand, &options, &mut rounds[index], stop)
                        .with_context(|| format!("{}: {}", stand.row.name(), reads.title()))?;
                }
            }
            let group = stands.iter().zip(rounds);
            let group = group.map(|(stand, rounds)| rounds.cell(plan, stand.row, *reads, *clients));
            cells.extend(compare(group.collect()));
        }
    }
    Ok(cells)
}

fn options(plan: &Plan, reads: Reads, clients: usize, stand: &Stand) -> anyhow::Result<Options> {
    let mut options = Options::new(stand.running.endpoint()?);
    options.clients = clients;
    options.pipeline = plan.pipeline;
    options.duration = plan.duration;
    options.warmup = plan.warmup;
    options.replicas = stand.row.replicas();
    options.workload = Workload::Mix {
        mix: reads.mix()?,
        keys: plan.keys,
        zipf: plan.zipf,
        value_bytes: plan.value_bytes,
        prefix: PREFIX.into(),
    };
    Ok(options)
}

fn one(
    stand: &Stand,
    options: &Options,
    rounds: &mut Rounds,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let before = Cpu::of(stand);
    // If the load runs in a thread of its own, the CPU time of this thread can no longer be read after its end. So the
    // CPU time of the load is measured separately.
    let (summary, own_ns) = stand.running.inside(|| {
        let own = cpu_ns(std::process::id());
        let work = || run(options, Hooks::default(), stop);
        let summary = scrape::beside(&stand.ports, work)?;
        Ok((summary, cpu_ns(std::process::id()).saturating_sub(own)))
    })?;
    // Operations that were acknowledged early are applied later. Their CPU time belongs to this measurement, and the
    // operations must not disturb the next measurement.
    let loaded = Instant::now();
    stand.running.settle()?;
    rounds.drain = rounds.drain.max(loaded.elapsed());
    rounds.cpu.add(&before, Cpu::of(stand));
    rounds.own_ns += own_ns;
    rounds.summaries.push(summary);
    Ok(())
}

impl Rounds {
    fn cell(mut self, plan: &Plan, row: Row, reads: Reads, clients: usize) -> Cell {
        self.summaries
            .sort_by(|a, b| a.latency.p50_us.total_cmp(&b.latency.p50_us));
        let operations: u64 = self.summaries.iter().map(|s| s.acknowledged).sum();
        self.cpu.0.insert(0, ("load".to_owned(), self.own_ns));
        let errors = self.summaries.iter().map(|s| s.failed + s.unknown).sum();
        let kinds: std::collections::BTreeSet<_> = self
            .summaries
            .iter()
            .flat_map(|summary| summary.by_operation.keys().copied())
            .collect();
        let by_operation = kinds.into_iter().map(|kind| {
            let of = |summary: &Summary| summary.by_operation.get(kind).cloned();
            (kind, self.percentiles(&of))
        });
        let middle = self.summaries.get(self.summaries.len() / 2);
        Cell {
            row,
            title: row.title(plan.medium),
            reads,
            clients,
            operations,
            throughput: median(self.summaries.iter().map(|s| s.throughput).collect()),
            all: self.percentiles(&|summary| Some(summary.latency.clone())),
            by_operation: by_operation.collect(),
            rounds_p50_us: self.summaries.iter().map(|s| s.latency.p50_us).collect(),
            lower: None,
            of_limit: None,
            errors,
            first_error: self
                .summaries
                .iter()
                .find_map(|summary| summary.errors.keys().next().cloned()),
            drain_ms: self.drain.as_secs_f64() * 1e3,
            cpu_us: self.cpu.per_operation(operations),
            cdf: middle
                .map(|summary| summary.cdf.clone())
                .unwrap_or_default(),
        }
    }

    fn percentiles(&self, of: &dyn Fn(&Summary) -> Option<Latency>) -> Percentiles {
        let rounds: Vec<Latency> = self.summaries.iter().filter_map(of).collect();
        let at = |figure: &dyn Fn(&Latency) -> f64| median(rounds.iter().map(figure).collect());
        Percentiles {
            p50_us: at(&|latency| latency.p50_us),
            p99_us: at(&|latency| latency.p99_us),
            p999_us: at(&|latency| latency.p999_us),
        }
    }
}

/// Returns the median of the values; 0 if there are no values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Computes the ratios of the cells of one group.
fn compare(mut cells: Vec<Cell>) -> Vec<Cell> {
    let medians: Vec<(Row, f64)> = cells
        .iter()
        .map(|cell| (cell.row, cell.all.p50_us))
        .collect();
    let of = |row: Row| {
        let mut found = medians.iter();
        let found = found.find(|(other, p50)| *other == row && *p50 > 0.0);
        found.map(|(_, p50)| *p50)
    };
    for cell in cells.iter_mut().filter(|cell| cell.all.p50_us > 0.0) {
        let base = cell.row.base().and_then(of);
        cell.lower = base.map(|base| base / cell.all.p50_us);
        cell.of_limit = of(cell.row.limit()).map(|limit| cell.all.p50_us / limit);
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_orders_take_turns() {
        assert_eq!(order(3, 0), [0, 1, 2]);
        assert_eq!(order(3, 1), [2, 1, 0]);
    }

    #[test]
    fn cpu_time_is_summed_by_process() {
        let cpu = |nanos: [u64; 2]| {
            let names = ["front", "redis"].map(str::to_owned);
            Cpu(names.into_iter().zip(nanos).collect())
        };
        let mut sum = Cpu::default();
        sum.add(&cpu([100, 7]), cpu([2_100, 1_007]));
        sum.add(&cpu([5_000, 0]), cpu([7_000, 1_000]));
        let each = sum.per_operation(2);
        assert_eq!(each[0], ("front".to_owned(), 2.0));
        assert_eq!(each[1], ("redis".to_owned(), 1.0));
    }

    #[test]
    fn ratios_are_of_the_same_path() {
        let cell = |row: Row, p50_us: f64| Cell {
            row,
            title: String::new(),
            reads: Reads::Percent(0),
            clients: 1,
            operations: 1,
            throughput: 1.0,
            all: Percentiles {
                p50_us,
                ..Percentiles::default()
            },
            by_operation: BTreeMap::new(),
            rounds_p50_us: vec![p50_us],
            lower: None,
            of_limit: None,
            errors: 0,
            first_error: None,
            drain_ms: 0.0,
            cpu_us: Vec::new(),
            cdf: Vec::new(),
        };
        let cells = compare(vec![
            cell(Row::RespLimit, 10.0),
            cell(Row::Direct, 80.0),
            cell(Row::Relay1, 40.0),
            cell(Row::LinkDirect, 120.0),
            cell(Row::Nic, 30.0),
        ]);
        let ratios: Vec<_> = cells
            .iter()
            .map(|cell| (cell.lower, cell.of_limit))
            .collect();
        assert_eq!(ratios[0], (None, Some(1.0)));
        assert_eq!(ratios[2], (Some(2.0), Some(4.0)));
        assert_eq!(ratios[4], (Some(4.0), None));
    }
}
