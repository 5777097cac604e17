//! `pmnet-lab load`.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pmnet_cli::{ConfigError, address, on_signals};

use crate::load::{
    CheckedOptions, Endpoint, HistoryFile, Hooks, Latency, Mix, Options, Progress, Record, Summary,
    Workload, run,
};

const EXAMPLES: &str = "\
Examples:
  pmnet-lab load --redis 127.0.0.1:6380 --clients 16 --seconds 5
  pmnet-lab load --redis 127.0.0.1:6379 --rate 5000 --mix set:80,get:20 --json
  pmnet-lab load --via 127.0.0.1:51000 --clients 16 --pipeline 8
  pmnet-lab load --redis 127.0.0.1:6380 --checked --clients 8 --history run.jsonl
  pmnet-lab check run.jsonl --redis 127.0.0.1:6379

Closed loop (the default): each client sends --pipeline commands and waits for all replies.

Open loop (--rate): operations are due at fixed times. The latency of an operation counts from its due time, so that a \
stall shows in the percentiles (corrected for coordinated omission).

History: JSON lines, one for each operation, in order of return, with client, op, key, value, reply, invoke_ns and \
return_ns (CLOCK_MONOTONIC), outcome (ok, failed, unknown).";

/// Options of `pmnet-lab load`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct LoadArgs {
    /// Address of a RESP server: a front of pmnet, or a Redis for comparison.
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "via")]
    redis: Option<String>,
    /// Address of the head device of a chain. The load uses pmnet's protocol, without a front.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "redis")]
    via: Option<String>,
    /// Number of connections, or of sessions with --via.
    #[arg(long, default_value_t = 1)]
    clients: usize,
    /// Number of commands in flight on each connection.
    #[arg(long, default_value_t = 1)]
    pipeline: usize,
    /// Open loop: operations per second of all clients together.
    #[arg(long, value_name = "OPS")]
    rate: Option<f64>,
    /// Duration of the measurement in seconds.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Number of operations after which the load stops, even if --seconds have not passed.
    #[arg(long, value_name = "N")]
    operations: Option<u64>,
    /// Time before the measurement starts.
    #[arg(long, default_value_t = 0.5, value_name = "SECONDS")]
    warmup: f64,
    /// Milliseconds after which an operation is given up, with the outcome unknown.
    #[arg(long, default_value_t = 5_000, value_name = "MS")]
    deadline_ms: u64,
    /// Operations and their weights: set, get, incr, lpush, rpush, mset, setnx, ping; or alternate: SET of a key, then
    /// GET of this key.
    #[arg(long, default_value = "set:1", conflicts_with = "checked")]
    mix: Mix,
    /// Number of different keys.
    #[arg(long, default_value_t = 10_000)]
    keys: u64,
    /// Exponent of a Zipf distribution of the keys, such as 0.99 [default: all keys are equally frequent].
    #[arg(long, value_name = "S", conflicts_with = "checked")]
    zipf: Option<f64>,
    /// Number of the shard that the device at --via serves.
    #[arg(long, default_value_t = 0, value_name = "N", requires = "via")]
    shard: u32,
    /// Number of replicas for which clients WAIT after each write. The write ends when they have it.
    #[arg(long, default_value_t = 0, value_name = "N", conflicts_with = "via")]
    replicas: u8,
    /// Size of a value in bytes. With --checked: smallest size for SET, or 0.
    #[arg(long, value_name = "N")]
    value_bytes: Option<usize>,
    /// Prefix of every key. With --checked each run needs a new prefix.
    #[arg(long, default_value = "load:")]
    prefix: String,
    /// Run the checked workload: SET, RPUSH, INCR and SET NX, whose effects `pmnet-lab check` can verify.
    #[arg(long)]
    checked: bool,
    /// With --checked: leave out RPUSH, because histories with lists cannot be checked.
    #[arg(long, requires = "checked")]
    no_lists: bool,
    /// With --checked: number of keys that a client writes before it overwrites the first.
    #[arg(long, default_value_t = 100_000)]
    ring: u64,
    /// Write every operation to this file as JSON lines.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Microseconds to poll without blocking after activity; 0: never. Polling uses processor time.
    #[arg(long, default_value_t = 0, value_name = "US")]
    spin_us: u64,
    /// Seed for the choice of keys and operations.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the result as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs the load. Returns false if no operation was acknowledged.
pub fn main(args: &LoadArgs) -> anyhow::Result<bool> {
    let options = options(args)?;
    let stop = on_signals()?;
    let mut history = args
        .history
        .as_deref()
        .map(HistoryFile::create)
        .transpose()?;
    let bar = bar(args.json);
    let mut show = |progress: &Progress| {
        bar.set_position(Duration::from_secs_f64(progress.fraction * 1e3).as_secs());
        bar.set_message(format!(
            "{:.0}/s, {} acknowledged, {} failed, {} unknown",
            progress.rate, progress.acknowledged, progress.failed, progress.unknown
        ));
    };
    let mut write = |record: &Record| history.as_mut().map_or(Ok(()), |file| file.write(record));
    let hooks = Hooks {
        record: args.history.is_some().then_some(&mut write),
        progress: Some(&mut show),
    };
    let summary = run(&options, hooks, &stop)?;
    bar.finish_and_clear();
    if let Some(history) = history {
        history.finish()?;
    }
    print(&summary, args.json)?;
    Ok(summary.acknowledged > 0)
}

fn options(args: &LoadArgs) -> Result<Options, ConfigError> {
    let seconds = |flag: &str, value: f64| {
        Duration::try_from_secs_f64(value)
            .map_err(|error| ConfigError(format!("{flag} {value}: {error}")))
    };
    let workload = if args.checked {
        Workload::Checked(CheckedOptions {
            prefix: args.prefix.clone(),
            ring: args.ring,
            lists: !args.no_lists,
            value_bytes: args.value_bytes.unwrap_or(0),
        })
    } else {
        Workload::Mix {
            mix: args.mix.clone(),
            keys: args.keys,
            zipf: args.zipf,
            value_bytes: args.value_bytes.unwrap_or(100),
            prefix: args.prefix.clone(),
        }
    };
    let (endpoint, address) = match (&args.redis, &args.via) {
        (Some(redis), _) => (Endpoint::Resp, address("--redis", redis)?),
        (None, Some(via)) => (Endpoint::Native, address("--via", via)?),
        (None, None) => return Err(ConfigError("--redis or --via is needed".into())),
    };
    let options = Options {
        endpoint,
        address,
        shard: args.shard,
        clients: args.clients,
        pipeline: args.pipeline,
        rate: args.rate,
        duration: seconds("--seconds", args.seconds)?,
        acknowledged_min: 0,
        operations: args.operations,
        warmup: seconds("--warmup", args.warmup)?,
        deadline: Duration::from_millis(args.deadline_ms),
        replicas: args.replicas,
        spin: Duration::from_micros(args.spin_us),
        seed: args.seed,
        workload,
    };
    options.check().map_err(ConfigError)?;
    Ok(options)
}

fn bar(json: bool) -> ProgressBar {
    let target = if json || !std::io::stderr().is_terminal() {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    };
    let bar = ProgressBar::with_draw_target(Some(1000), target);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3}% {msg}") {
        bar.set_style(style);
    }
    bar
}

fn print(summary: &Summary, json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let text = if json {
        serde_json::to_string(summary).context("cannot write the result")?
    } else {
        describe(summary)
    };
    writeln!(out, "{}", text.trim_end()).context("cannot write the result")
}

fn describe(summary: &Summary) -> String {
    let mut text = format!(
        "{} loop, {:.2} s: {:.0} operations/s; acknowledged {}, failed {}, unknown {}, \
         reconnects {}\n",
        summary.mode,
        summary.seconds,
        summary.throughput,
        summary.acknowledged,
        summary.failed,
        summary.unknown,
        summary.reconnects
    );
    if summary.backlog > 0 {
        text += &format!(
            "{} operations were due but never sent: the rate was more than the other side takes\n",
            summary.backlog
        );
    }
    text +=
        "latency, µs      count      min     mean      p50      p95      p99    p99.9      max\n";
    for (name, latency) in &summary.by_operation {
        text += &line(name, latency);
    }
    if summary.by_operation.len() > 1 {
        text += &line("all", &summary.latency);
    }
    for (error, count) in &summary.errors {
        text += &format!("{count} × {error}\n");
    }
    text
}

fn line(name: &str, latency: &Latency) -> String {
    format!(
        "{name:<11} {:>10} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>8.1}\n",
        latency.count,
        latency.min_us,
        latency.mean_us,
        latency.p50_us,
        latency.p95_us,
        latency.p99_us,
        latency.p999_us,
        latency.max_us
    )
}
