//! `pmnet sim`: the deterministic simulator over many seeds.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pmnet_sim::Report;
use serde_json::json;

use super::shutdown;

/// Failing seeds that are shown; more are counted.
const SHOWN_MAX: usize = 10;
/// Violations of one seed that are shown.
const VIOLATIONS_MAX: usize = 5;

const EXAMPLES: &str = "\
Examples:
  pmnet sim --seeds 2000
  pmnet sim --first 100000 --seeds 100000 --jobs 8
  pmnet sim --seed 4711 --trace

The production client, device and server run in a virtual world with loss, duplication,
reordering, crashes and lost devices; the same seed gives the same story every time. Exit code 1
on any violation.";

/// The command line of `pmnet sim`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SimCommand {
    /// How many seeds.
    #[arg(long, default_value_t = 100, value_name = "N")]
    seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    first: u64,
    /// Only this one.
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// With --seed: tell the story, one line an event.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Threads [default: one for each core].
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// The result as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

#[derive(Default)]
struct Total {
    seeds: u64,
    calls: [u64; 4],
    events: u64,
    simulated: Duration,
    happened: BTreeMap<&'static str, u64>,
    failing: u64,
    shown: Vec<Report>,
}

impl Total {
    fn add(&mut self, report: Report) {
        self.seeds += 1;
        self.events += report.events;
        self.simulated += Duration::from_nanos(report.simulated);
        for (sum, calls) in self.calls.iter_mut().zip(report.calls) {
            *sum += calls;
        }
        for (name, count) in &report.happened {
            *self.happened.entry(name).or_default() += count;
        }
        if !report.violations.is_empty() {
            self.failing += 1;
            if self.shown.len() < SHOWN_MAX {
                self.shown.push(report);
            }
        }
    }
}

/// Runs the seeds; false on any violation.
pub fn main(command: &SimCommand) -> anyhow::Result<bool> {
    if let (Some(seed), true) = (command.seed, command.trace) {
        let (report, story) = pmnet_sim::run_with_trace(seed);
        for line in story {
            println!("{line}");
        }
        print_failing(&report);
        return Ok(report.violations.is_empty());
    }
    let stop = shutdown::on_signals()?;
    let (first, count) = command
        .seed
        .map_or((command.first, command.seeds), |seed| (seed, 1));
    let start = Instant::now();
    let total = run(first, count, command, &stop)?;
    let seconds = start.elapsed().as_secs_f64();
    if command.json {
        let failing: Vec<_> = total
            .shown
            .iter()
            .map(|report| json!({"seed": report.seed, "violations": report.violations}))
            .collect();
        println!(
            "{}",
            json!({
                "seeds": total.seeds, "failing": total.failing, "first_failing": failing,
                "calls": total.calls[0], "acknowledged": total.calls[1],
                "failed": total.calls[2], "unknown": total.calls[3], "events": total.events,
                "simulated_seconds": total.simulated.as_secs_f64(), "seconds": seconds,
                "happened": total.happened,
            })
        );
    } else {
        for report in &total.shown {
            print_failing(report);
        }
        println!(
            "{} seeds, {} failing; {} calls: {} acknowledged, {} failed, {} unknown; {} events in \
             {:.0} simulated seconds, {seconds:.1} s",
            total.seeds,
            total.failing,
            total.calls[0],
            total.calls[1],
            total.calls[2],
            total.calls[3],
            total.events,
            total.simulated.as_secs_f64()
        );
        let happened: Vec<_> = total
            .happened
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        println!("{}", happened.join(", "));
    }
    anyhow::ensure!(!stop.load(Ordering::Relaxed), "interrupted");
    Ok(total.failing == 0)
}

fn run(first: u64, count: u64, command: &SimCommand, stop: &AtomicBool) -> anyhow::Result<Total> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let jobs = command.jobs.unwrap_or(cores).clamp(1, 1024);
    let target = if command.json || !std::io::stderr().is_terminal() {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    };
    let bar = ProgressBar::with_draw_target(Some(count), target).with_style(
        ProgressStyle::with_template("{elapsed:>4} {bar:30} {pos}/{len} seeds {msg}")?,
    );
    let next = AtomicU64::new(0);
    let total = Mutex::new(Total::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return;
                    }
                    let report = pmnet_sim::run_caught(first.wrapping_add(index));
                    let mut total = total.lock().unwrap_or_else(|poison| poison.into_inner());
                    total.add(report);
                    bar.inc(1);
                    if total.failing > 0 {
                        bar.set_message(format!("{} failing", total.failing));
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut total = total
        .into_inner()
        .unwrap_or_else(|poison| poison.into_inner());
    total.shown.sort_by_key(|report| report.seed);
    Ok(total)
}

fn print_failing(report: &Report) {
    for violation in report.violations.iter().take(VIOLATIONS_MAX) {
        println!("seed {}: {violation}", report.seed);
    }
    if !report.violations.is_empty() {
        println!("  again: pmnet sim --seed {} --trace", report.seed);
    }
}
