//! Measures latency, throughput and CPU time of every stack, in turn, in several rounds. The results are medians.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::outcome::Cell;
use super::plan::{KEYS, Plan, VALUE_BYTES};
use super::view::View;
use crate::harness::cpu_ns;
use crate::load::{Hooks, Mix, Op, Options, Summary, Workload, run};
use crate::setup::Running;

#[derive(Default)]
struct Rounds {
    summaries: Vec<Summary>,
    /// CPU time of each process in nanoseconds. The processes on the client's side come first.
    cpu_ns: Vec<(String, u64)>,
    own_cpu_ns: u64,
    drain: Duration,
}

/// Measures all cells of the plan.
pub fn all(
    plan: &Plan,
    running: &[Running],
    stop: &AtomicBool,
    view: &View,
) -> anyhow::Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for operation in &plan.operations {
        for clients in &plan.clients {
            let mut rounds: Vec<Rounds> = running.iter().map(|_| Rounds::default()).collect();
            for round in 0..plan.rounds {
                for ((running, stack), rounds) in running.iter().zip(&plan.stacks).zip(&mut rounds)
                {
                    if !stack.measures(*operation) {
                        continue;
                    }
                    anyhow::ensure!(!stop.load(Ordering::Relaxed), "interrupted");
                    let text = format!(
                        "{}, {clients} client{}, round {} of {}: {}",
                        operation.name().to_uppercase(),
                        if *clients == 1 { "" } else { "s" },
                        round + 1,
                        plan.rounds,
                        stack.name
                    );
                    view.step(&text, 1);
                    one(plan, running, *operation, *clients, rounds, stop)?;
                }
            }
            for (stack, rounds) in plan.stacks.iter().zip(rounds) {
                if stack.measures(*operation) {
                    cells.push(rounds.cell(stack.name, *operation, *clients));
                }
            }
        }
    }
    Ok(cells)
}

fn one(
    plan: &Plan,
    running: &Running,
    operation: Op,
    clients: usize,
    rounds: &mut Rounds,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let mut options = Options::new(running.endpoint()?);
    options.clients = clients;
    options.duration = plan.duration;
    options.warmup = plan.warmup;
    options.workload = Workload::Mix {
        mix: Mix::only(operation),
        keys: KEYS,
        zipf: None,
        value_bytes: VALUE_BYTES,
        prefix: "demo:".into(),
    };
    let processes = running.processes();
    let before: Vec<_> = processes
        .iter()
        .map(|(_, process)| process.cpu_ns())
        .collect();
    // If the load runs in a thread of its own, the CPU time of this thread can no longer be read after its end. So the
    // CPU time of the load is measured separately.
    let (summary, own_cpu_ns) = running.inside(|| {
        let own = cpu_ns(std::process::id());
        let summary = run(&options, Hooks::default(), stop)?;
        Ok((summary, cpu_ns(std::process::id()).saturating_sub(own)))
    })?;
    // Operations that were acknowledged early are applied later. Their CPU time belongs to this measurement, and the
    // operations must not disturb the next measurement.
    let loaded = Instant::now();
    running.settle()?;
    rounds.drain = rounds.drain.max(loaded.elapsed());
    for (index, ((name, process), before)) in processes.into_iter().zip(before).enumerate() {
        if index == rounds.cpu_ns.len() {
            rounds.cpu_ns.push((name, 0));
        }
        rounds.cpu_ns[index].1 += process.cpu_ns().saturating_sub(before);
    }
    rounds.own_cpu_ns += own_cpu_ns;
    rounds.summaries.push(summary);
    Ok(())
}

impl Rounds {
    fn cell(mut self, stack: &'static str, operation: Op, clients: usize) -> Cell {
        self.summaries
            .sort_by(|a, b| a.latency.p50_us.total_cmp(&b.latency.p50_us));
        let middle = self.summaries.len() / 2;
        let operations: u64 = self.summaries.iter().map(|s| s.acknowledged).sum();
        let per_operation = |nanos: u64| {
            let total = Duration::from_nanos(nanos).as_secs_f64() * 1e6;
            let count = Duration::from_secs(operations.max(1)).as_secs_f64();
            total / count
        };
        let mut cpu_us = vec![("load".to_owned(), per_operation(self.own_cpu_ns))];
        for (name, nanos) in &self.cpu_ns {
            cpu_us.push((name.clone(), per_operation(*nanos)));
        }
        Cell {
            stack,
            operation,
            clients,
            throughput: self.median(|s| s.throughput),
            p50_us: self.median(|s| s.latency.p50_us),
            p95_us: self.median(|s| s.latency.p95_us),
            p99_us: self.median(|s| s.latency.p99_us),
            errors: self.summaries.iter().map(|s| s.failed + s.unknown).sum(),
            drain_ms: self.drain.as_secs_f64() * 1e3,
            cpu_us,
            benchmark: None,
            cdf: self
                .summaries
                .get(middle)
                .map(|s| s.cdf.clone())
                .unwrap_or_default(),
        }
    }

    fn median(&self, figure: impl Fn(&Summary) -> f64) -> f64 {
        let mut values: Vec<f64> = self.summaries.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    }
}
