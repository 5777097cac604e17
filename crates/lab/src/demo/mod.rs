//! `pmnet-lab demo` (and `make demo`): measures, kills processes, checks the data and writes a report, on this machine,
//! in a minute and a half.
//!
//! Purpose: show a Redis user the difference in latency, and the guarantee. Invariants: the baseline is a real Redis on
//! the same disk, measured in turn with pmnet in the same run; every figure names medium and R; the verdict comes from
//! a reader that asks the database directly; the exit code is 1 on any violation. The demo must not hide the limits of
//! this machine.

mod bench;
pub(crate) mod chart;
mod measure;
mod outcome;
mod picture;
mod plan;
mod report;
mod running;
mod table;
pub(crate) mod view;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use pmnet_cli::on_signals;

use crate::harness::{
    Binaries, ChaosPlan, ChaosReport, Cluster, Medium, Role, StoreKind, Topology, chaos,
    find_program,
};
pub use outcome::{BenchRow, Cell, Outcome};
use plan::Plan;
use view::View;

const EXAMPLES: &str = "\
Examples:
  pmnet-lab demo
  pmnet-lab demo --checked-seconds 60 --out /tmp/demo
  pmnet-lab demo --no-redis --json

Needs no privileges. As root, if pmnet was built with clang, it also measures the device in the kernel, at a NIC and \
in a switch. Without redis-server the demo uses the embedded store, and says that it has no Redis to compare with. \
The exit code is 1 if an acknowledged write is lost, applied twice or out of order.";

/// Time between two kills.
const KILL_INTERVAL: Duration = Duration::from_millis(1_500);
/// Time from a kill to the restart.
const KILL_DOWN: Duration = Duration::from_millis(150);

/// Options of `pmnet-lab demo`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DemoArgs {
    /// Folder for the report.
    #[arg(long, default_value = "target/demo", value_name = "FOLDER")]
    out: PathBuf,
    /// Duration of the checked load with kills, in seconds.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(4..=86_400))]
    checked_seconds: u64,
    /// Use the embedded store even if redis-server is installed.
    #[arg(long)]
    no_redis: bool,
    /// Measure less (for tests).
    #[arg(long)]
    quick: bool,
    /// Print the result as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs the demo. Returns false if a violation was found.
///
/// # Errors
/// Fails if a process does not start or does not come back, or if a report cannot be written.
pub fn main(args: &DemoArgs) -> anyhow::Result<bool> {
    let start = Instant::now();
    let stop = on_signals()?;
    let binaries = Binaries::own()?;
    std::fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot make the folder {}", args.out.display()))?;
    let mut plan = Plan::new(args.no_redis, args.quick);
    let view = View::new(args.json, plan.steps() + args.checked_seconds);
    let lasts = plan.lasts() + Duration::from_secs(args.checked_seconds);
    view.say(&format!("this takes about {} s", lasts.as_secs()));
    for note in &plan.notes {
        view.say(note);
    }
    let cells = measure_all(&mut plan, &binaries, &args.out, &stop, &view)?;
    let chaos = kill_and_check(&plan, &binaries, args, &stop, &view)?;
    anyhow::ensure!(!stop.load(Ordering::Relaxed), "interrupted");
    let outcome = Outcome {
        notes: plan.notes.clone(),
        cells,
        kills: chaos
            .kills
            .iter()
            .map(|(role, count)| (role.to_string(), *count))
            .collect(),
        longest_call_ms: chaos.summary.latency.max_us / 1e3,
        verdict: chaos.verdict,
        seconds: start.elapsed().as_secs_f64(),
    };
    view.finish();
    let report = args.out.join("report.html");
    std::fs::write(&report, report::html(&plan, &outcome))
        .with_context(|| format!("cannot write {}", report.display()))?;
    if let Some(picture) = picture::svg(&plan, &outcome) {
        let file = args.out.join("latency.svg");
        std::fs::write(&file, picture)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let result = args.out.join("result.json");
    std::fs::write(&result, serde_json::to_string_pretty(&outcome)?)
        .with_context(|| format!("cannot write {}", result.display()))?;
    if args.json {
        println!("{}", serde_json::to_string(&outcome)?);
    } else {
        println!("{}", table::text(&plan, &outcome));
        println!("report: {}", report.display());
    }
    Ok(outcome.verdict.is_clean())
}

fn measure_all(
    plan: &mut Plan,
    binaries: &Binaries,
    out: &Path,
    stop: &AtomicBool,
    view: &View,
) -> anyhow::Result<Vec<Cell>> {
    let running = running::start_all(plan, binaries, out, view)?;
    let mut cells = measure::all(plan, &running, stop, view)?;
    if find_program("redis-benchmark").is_some() {
        bench::all(plan, &running, &mut cells, stop, view)?;
    }
    for (running, stack) in running.into_iter().zip(&plan.stacks) {
        view.step(&format!("stopping {}", stack.name), 0);
        let unclean = running.stop()?;
        if !unclean.is_empty() {
            view.say(&format!(
                "{}: did not end in good order: {}",
                stack.name,
                unclean.join(", ")
            ));
        }
    }
    Ok(cells)
}

fn kill_and_check(
    plan: &Plan,
    binaries: &Binaries,
    args: &DemoArgs,
    stop: &AtomicBool,
    view: &View,
) -> anyhow::Result<ChaosReport> {
    view.step(
        "starting the set-up that is going to suffer (R = 1, DRAM)",
        0,
    );
    let mut topology = Topology::new(plan.store, 1, Medium::Dram);
    topology.store_size = Some(plan::STORE_SIZE);
    let mut cluster = Cluster::start(binaries, &args.out, "chaos", topology)?;
    let mut victims = vec![Role::Device(0), Role::Server, Role::Front];
    if plan.store == StoreKind::Redis {
        victims.push(Role::Redis);
    }
    let chaos_plan = ChaosPlan {
        duration: Duration::from_secs(args.checked_seconds),
        clients: 8,
        pipeline: 4,
        deadline: Duration::from_secs(10),
        victims,
        interval: KILL_INTERVAL,
        down: KILL_DOWN,
        lose_at_half: Vec::new(),
        replacements: Vec::new(),
        exchanges: Vec::new(),
        value_bytes: 0,
        seed: fastrand::u64(1..1_000_000_000),
    };
    let mut shown = 0;
    let report = chaos(&mut cluster, &chaos_plan, stop, |now| {
        let text = format!(
            "kill -9 under load: {} acknowledged, {} kills, {}",
            now.acknowledged, now.kills, now.event
        );
        let second =
            Duration::from_secs_f64(now.fraction * chaos_plan.duration.as_secs_f64()).as_secs();
        view.step(&text, second.saturating_sub(shown));
        shown = shown.max(second);
    })?;
    if report.verdict.is_clean() {
        let unclean = cluster.stop()?;
        if !unclean.is_empty() {
            view.say(&format!(
                "did not end in good order: {}",
                unclean.join(", ")
            ));
        }
    } else {
        view.say(&format!(
            "what the processes wrote is kept in {}",
            cluster.folder().display()
        ));
    }
    Ok(report)
}
