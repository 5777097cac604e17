//! `pmnet-lab check`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use pmnet_cli::address;
use serde_json::{Value, json};

use crate::check::{Ledger, check_history, read_history, report_json, report_table, verify};
use crate::resp::Client;

/// Longest time of one call to the database.
const CALL_MAX: Duration = Duration::from_secs(20);

const EXAMPLES: &str = "\
Examples:
  pmnet-lab load --redis 127.0.0.1:6380 --checked --prefix run1: --history run1.jsonl
  pmnet-lab check run1.jsonl --redis 127.0.0.1:6379
  pmnet-lab check --history run1.jsonl run2.jsonl

With --redis: ask the database itself, not the front. Exit code 1 if anything acknowledged is
lost, applied twice or out of order, if a refused operation had an effect, or if a lock was given
to two.

With --history: is there, for each key, one order of all operations that explains every reply and
agrees with real time (linearizability)? No database is asked; the keys must have been absent at
the start of the history, and all that touched them must be in it. Operations: set, get, incr,
setnx, release. Exit code 1 if a key is not linearizable, or could not be decided.";

/// Options of `pmnet-lab check`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    /// History of `pmnet-lab load --checked --history`, to be compared with the database.
    #[arg(
        value_name = "FILE",
        required_unless_present = "histories",
        conflicts_with = "histories",
        requires = "redis"
    )]
    history: Option<PathBuf>,
    /// The database (not the front).
    #[arg(long, value_name = "HOST:PORT")]
    redis: Option<String>,
    /// Histories to be checked for linearizability, each by itself.
    #[arg(long = "history", value_name = "FILE", num_args = 1.., conflicts_with = "redis")]
    histories: Vec<PathBuf>,
    /// With --history: the files are parts of one history, of several load generators on one
    /// machine.
    #[arg(long, requires = "histories")]
    together: bool,
    /// With --history: give a key up (undecided) when its search needs more memory.
    #[arg(long, value_name = "MIB", default_value_t = 512,
          value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    search_mib: u64,
    /// The verdict as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs the checks; returns false if a check found something, or is not decided.
pub fn main(args: &CheckArgs) -> anyhow::Result<bool> {
    match (&args.history, &args.redis) {
        (Some(history), Some(redis)) => compare(history, redis, args.json),
        _ => linearizable(args),
    }
}

fn compare(history: &std::path::Path, redis: &str, json: bool) -> anyhow::Result<bool> {
    let ledger =
        Ledger::read(history).with_context(|| format!("cannot check {}", history.display()))?;
    let address = address("--redis", redis)?;
    let mut reader = Client::connect(address, CALL_MAX)
        .with_context(|| format!("cannot reach the database at {address}"))?;
    let verdict = verify(&ledger, &mut reader)?;
    if json {
        println!("{}", serde_json::to_string(&verdict)?);
    } else {
        println!("{verdict}");
    }
    Ok(verdict.is_clean())
}

fn linearizable(args: &CheckArgs) -> anyhow::Result<bool> {
    let limits = pmnet_history::Limits {
        bytes_max: args.search_mib << 20,
    };
    let files = args.histories.iter().map(|path| {
        let name = path.display().to_string();
        read_history(path).map(|operations| (name, operations))
    });
    let mut histories = files.collect::<anyhow::Result<Vec<_>>>()?;
    if args.together {
        let (names, parts): (Vec<_>, Vec<_>) = histories.into_iter().unzip();
        histories = vec![(names.join(" "), parts.concat())];
    }
    let mut passed = true;
    let mut verdicts = Vec::new();
    for (name, operations) in &histories {
        let report = check_history(operations, &limits);
        passed &= report.is_linearizable();
        if args.json {
            let mut verdict = report_json(&report);
            verdict["history"] = Value::from(name.as_str());
            verdicts.push(verdict);
        } else {
            if histories.len() > 1 {
                println!("{name}:");
            }
            println!("{}", report_table(&report));
        }
    }
    if args.json {
        println!("{}", json!({"linearizable": passed, "histories": verdicts}));
    }
    Ok(passed)
}
