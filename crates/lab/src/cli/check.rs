//! `pmnet-lab check`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use pmnet_cli::address;
use serde_json::{Value, json};

use crate::check::{Ledger, check_history, read_history, report_json, report_table, verify};
use crate::resp::Client;

/// Deadline of one call to the database.
const CALL_MAX: Duration = Duration::from_secs(20);

const EXAMPLES: &str = "\
Examples:
  pmnet-lab load --redis 127.0.0.1:6380 --checked --prefix run1: --history run1.jsonl
  pmnet-lab check run1.jsonl --redis 127.0.0.1:6379
  pmnet-lab check --history run1.jsonl run2.jsonl

With --redis, name the database itself, not the front. The exit code is 1 if an acknowledged operation is lost, \
applied twice or out of order, if a refused operation had an effect, or if two clients got the same lock.

With --history, the command checks linearizability: for each key it looks for one order of all operations that \
explains every reply and agrees with real time. It asks no database. The keys must have been absent at the start of \
the history, and the history must have every operation on them. Operations: set, get, incr, setnx, release. The exit \
code is 1 if a key is not linearizable, or if the search did not finish.";

/// Options of `pmnet-lab check`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    /// History file of `pmnet-lab load --checked --history`, to compare with the database.
    #[arg(
        value_name = "FILE",
        required_unless_present = "histories",
        conflicts_with = "histories",
        requires = "redis"
    )]
    history: Option<PathBuf>,
    /// Address of the database (not of the front).
    #[arg(long, value_name = "HOST:PORT")]
    redis: Option<String>,
    /// History files to check for linearizability, each on its own.
    #[arg(long = "history", value_name = "FILE", num_args = 1.., conflicts_with = "redis")]
    histories: Vec<PathBuf>,
    /// With --history: check all files as one history, which several load generators on one machine wrote.
    #[arg(long, requires = "histories")]
    together: bool,
    /// With --history: largest memory for the search of one key, in MiB. If the search needs more, the key is reported
    /// as undecided.
    #[arg(long, value_name = "MIB", default_value_t = 512,
          value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    search_mib: u64,
    /// Print the verdict as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs the checks. Returns false if a check found a violation, or is undecided.
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
