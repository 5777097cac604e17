//! The deterministic simulator over many seeds.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pmnet_cli::{finish, on_signals, parse};
use pmnet_sim::cells::{Cell, Fault, Hits, Moment};
use pmnet_sim::{Plan, Summary, Without, campaign, run_with_trace};
use serde_json::json;

/// Maximum number of failing seeds that are shown; further seeds are only counted.
const SHOWN_MAX: usize = 10;
/// Maximum number of violations that are shown of one seed.
const VIOLATIONS_MAX: usize = 5;
/// Number of lines that are shown of a seed's trace.
const STORY_LINES: usize = 12;

const EXAMPLES: &str = "\
Examples:
  pmnet-sim --seeds 2000
  pmnet-sim --from 100000 --seeds 100000 --jobs 8
  pmnet-sim --seed 4711 --trace
  pmnet-sim --seeds 1000 --twice
  pmnet-sim --seeds 500 --only log-full/server-crash
  pmnet-sim --seeds 100000 --packet-store
  pmnet-sim --seeds 2000 --short-store
  pmnet-sim --seeds 2000 --keyed
  pmnet-sim --without barrier
  pmnet-sim --without all

The production client, device and server run in a virtual world with loss, duplication, reordering, crashes and lost \
devices. A seed gives the same trace every time. The exit code is 1 on any violation. With --without, a rule of the \
protocol is switched off, and the exit code is 1 if no check finds a violation.";

/// Runs the deterministic simulator.
#[derive(Debug, Parser)]
#[command(name = "pmnet-sim", version, max_term_width = 100, after_help = EXAMPLES)]
struct SimCommand {
    /// Logs on stderr as JSON, one object a line.
    #[arg(long)]
    log_json: bool,
    /// Number of seeds [default: 100; with --without: the most that the rule may need].
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// The first seed.
    #[arg(long, alias = "first", default_value_t = 1, value_name = "SEED")]
    from: u64,
    /// Run only this seed.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// With --seed: print the trace, one line for each event.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Aim at one cell of the failure matrix: MOMENT/FAULT.
    #[arg(long, value_name = "CELL")]
    only: Option<Cell>,
    /// Switch a rule of the protocol off, to test that the checks find a violation; `all`: every rule, one after the
    /// other.
    #[arg(long, value_name = "RULE")]
    without: Option<String>,
    /// With --without: file of --note. Try first the seed in which the rule's violation was found before, then all
    /// others.
    #[arg(long, value_name = "FILE", requires = "without")]
    noticed: Option<PathBuf>,
    /// With --without: file to which the seed is written in which each rule's violation was found.
    #[arg(long, value_name = "FILE", requires = "without")]
    note: Option<PathBuf>,
    /// Give the server the packet store in every world, not only in a quarter of the worlds.
    #[arg(long, conflicts_with = "without")]
    packet_store: bool,
    /// As --packet-store, and the store sometimes reports that it is short of space.
    #[arg(long, conflicts_with = "without")]
    short_store: bool,
    /// Seal packets with keys, with an adversary that sees, keeps, changes, redirects and repeats all packets.
    #[arg(long)]
    keyed: bool,
    /// Run every seed twice, and compare the traces.
    #[arg(long, conflicts_with_all = ["without", "trace"])]
    twice: bool,
    /// Number of threads [default: one for each core].
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Print the result as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let command = match parse::<SimCommand>() {
        Ok(command) => command,
        Err(code) => return code,
    };
    // Only errors are logged: devices and server warn about every fault of the simulator, hundreds of times in each
    // seed.
    finish("pmnet-sim", command.log_json, "error", || seeds(&command))
}

/// Runs the seeds. Returns false if there was a violation.
fn seeds(command: &SimCommand) -> anyhow::Result<bool> {
    let mut plan = Plan {
        only: command.only,
        packet_store: command.packet_store || command.short_store,
        short_store: command.short_store,
        keyed: command.keyed,
        without: None,
    };
    let rules: Vec<Without> = match command.without.as_deref() {
        Some("all") => Without::ALL.to_vec(),
        Some(name) => vec![name.parse().map_err(anyhow::Error::msg)?],
        None => Vec::new(),
    };
    if command.trace
        && let Some(seed) = command.seed
    {
        plan.without = rules.first().copied();
        let (report, story) = run_with_trace(seed, &plan);
        for line in story {
            println!("{line}");
        }
        for violation in &report.violations {
            println!("seed {seed}: {violation}");
        }
        return Ok(report.violations.is_empty());
    }
    let stop = on_signals()?;
    let sound = if rules.is_empty() {
        check(command, &plan, &stop)?
    } else {
        notice(command, plan, &rules, &stop)?
    };
    anyhow::ensure!(!stop.load(Ordering::Relaxed), "interrupted");
    Ok(sound)
}

fn run(plan: &Plan, from: u64, count: u64, command: &SimCommand, stop: &AtomicBool) -> Summary {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let target = if command.json || !std::io::stderr().is_terminal() {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    };
    let style = ProgressStyle::with_template("{elapsed:>4} {bar:30} {pos}/{len} seeds {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(Some(count), target).with_style(style);
    let first_is_enough = plan.without.is_some();
    let progress = |so_far: &Summary| {
        bar.set_position(so_far.seeds);
        if so_far.failing > 0 {
            bar.set_message(format!("{} failing", so_far.failing));
        }
        let found = first_is_enough && so_far.failing > 0;
        !found && !stop.load(Ordering::Relaxed)
    };
    let summary = campaign(plan, from, count, command.jobs.unwrap_or(cores), progress);
    bar.finish_and_clear();
    summary
}

/// Runs the seeds, of which none may have a violation.
fn check(command: &SimCommand, plan: &Plan, stop: &AtomicBool) -> anyhow::Result<bool> {
    let (from, count) = command
        .seed
        .map_or((command.from, command.seeds.unwrap_or(100)), |s| (s, 1));
    let start = Instant::now();
    let summary = run(plan, from, count, command, stop);
    let same = match command.twice {
        true => run(plan, from, count, command, stop).trace_hash == summary.trace_hash,
        false => true,
    };
    let seconds = start.elapsed().as_secs_f64();
    if command.json {
        println!("{}", as_json(&summary, plan, same, seconds));
    } else {
        for (seed, _) in summary.violations.iter().take(SHOWN_MAX) {
            show(*seed, plan);
        }
        print_matrix(&summary.cells);
        let [calls, acknowledged, failed, unknown] = summary.calls;
        println!(
            "{} seeds, {} failing; {calls} calls: {acknowledged} acknowledged, {failed} failed, \
             {unknown} unknown; {} events in {:.1} simulated hours, {seconds:.1} s, trace hash {:016x}",
            summary.seeds,
            summary.failing,
            summary.events,
            summary.hours(),
            summary.trace_hash
        );
        let happened: Vec<_> = summary
            .happened
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        println!("{}", happened.join(", "));
        if command.twice {
            let verdict = if same { "the same" } else { "NOT the same" };
            println!("run twice: {verdict} stories");
        }
    }
    Ok(summary.failing == 0 && same)
}

/// Reads the file that `--note` wrote: for each rule, the seed in which its absence was found.
fn known(path: Option<&Path>) -> anyhow::Result<BTreeMap<String, u64>> {
    let Some(path) = path else {
        return Ok(BTreeMap::new());
    };
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let line = |line: &str| {
        let (name, seed) = line.split_once(' ')?;
        Some((name.to_owned(), seed.parse().ok()?))
    };
    let all: Option<_> = text.lines().map(line).collect();
    all.with_context(|| format!("{} is no list of rules and seeds", path.display()))
}

/// Checks for each rule that its absence is found: while the rule is switched off, some seed must have a violation.
fn notice(
    command: &SimCommand,
    mut plan: Plan,
    rules: &[Without],
    stop: &AtomicBool,
) -> anyhow::Result<bool> {
    let known = known(command.noticed.as_deref())?;
    let mut noted = String::new();
    let mut all = true;
    let mut rows = Vec::new();
    for &without in rules {
        plan.without = Some(without);
        let (from, count) = command.seed.map_or(
            (command.from, command.seeds.unwrap_or(without.seeds)),
            |seed| (seed, 1),
        );
        // A machine without a rule may panic. The panic counts as a violation, and its message is not printed.
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let first = known.get(without.name);
        let mut summary =
            first.map_or_else(Summary::default, |seed| run(&plan, *seed, 1, command, stop));
        if summary.violations.is_empty() {
            summary = run(&plan, from, count, command, stop);
        }
        std::panic::set_hook(hook);
        let found = summary.violations.first();
        all &= found.is_some();
        if let Some((seed, _)) = found {
            writeln!(noted, "{} {seed}", without.name)?;
        }
        if command.json {
            rows.push(json!({
                "rule": without.name, "says": without.says, "seeds_run": summary.seeds,
                "found": found.map(|(seed, words)| json!({"seed": seed, "violation": words})),
            }));
            continue;
        }
        match found {
            Some((seed, words)) => println!(
                "without {:18} seed {seed:<5} of {:<5} {}\n{:27}{words}",
                without.name, count, without.says, ""
            ),
            None => println!(
                "without {:18} NOT NOTICED in {} seeds: {}",
                without.name, summary.seeds, without.says
            ),
        }
    }
    if command.json {
        println!("{}", json!(rows));
    } else if rules.len() > 1 {
        let verdict = if all { "every one" } else { "NOT every one" };
        println!("{} rules switched off, {verdict} noticed", rules.len());
    }
    if let Some(path) = &command.note {
        std::fs::write(path, noted).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(all)
}

fn as_json(summary: &Summary, plan: &Plan, same: bool, seconds: f64) -> serde_json::Value {
    let failing: Vec<_> = summary
        .violations
        .iter()
        .take(SHOWN_MAX)
        .map(|(seed, _)| {
            let (report, _) = run_with_trace(*seed, plan);
            json!({"seed": seed, "violations": report.violations})
        })
        .collect();
    let cells: serde_json::Map<_, _> = Cell::all()
        .map(|cell| (cell.to_string(), json!(cell.of(&summary.cells))))
        .collect();
    json!({
        "seeds": summary.seeds, "failing": summary.failing, "first_failing": failing,
        "calls": summary.calls[0], "acknowledged": summary.calls[1],
        "failed": summary.calls[2], "unknown": summary.calls[3], "events": summary.events,
        "simulated_seconds": Duration::from_nanos(summary.simulated).as_secs_f64(),
        "seconds": seconds, "trace_hash": format!("{:016x}", summary.trace_hash),
        "same_twice": same, "cells": cells, "happened": summary.happened,
    })
}

fn print_matrix(cells: &Hits) {
    print!("{:22}", "failure matrix, hits");
    for fault in Fault::ALL {
        print!("{:>13}", fault.name());
    }
    println!();
    for &moment in Moment::ALL {
        print!("{:22}", moment.name());
        for &fault in Fault::ALL {
            print!("{:>13}", Cell { moment, fault }.of(cells));
        }
        println!();
    }
}

/// Shows the cause, the last events and the replay command of a failing seed.
fn show(seed: u64, plan: &Plan) {
    let (report, story) = run_with_trace(seed, plan);
    for violation in report.violations.iter().take(VIOLATIONS_MAX) {
        println!("seed {seed}: {violation}");
    }
    let end = story
        .iter()
        .position(|line| line.contains("VIOLATION"))
        .map_or(story.len(), |at| at + 1);
    for line in &story[end.saturating_sub(STORY_LINES)..end] {
        println!("    {line}");
    }
    let only = plan
        .only
        .map_or(String::new(), |cell| format!(" --only {cell}"));
    let store = match (plan.packet_store, plan.short_store) {
        (_, true) => " --short-store",
        (true, false) => " --packet-store",
        (false, false) => "",
    };
    let keyed = if plan.keyed { " --keyed" } else { "" };
    println!("  again: pmnet-sim --seed {seed}{only}{store}{keyed} --trace");
}
