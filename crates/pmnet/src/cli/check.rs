//! `pmnet check`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::config::address;
use crate::check::{Ledger, verify};
use crate::resp::Client;

/// One call to the database.
const CALL_MAX: Duration = Duration::from_secs(20);

const EXAMPLES: &str = "\
Example:
  pmnet load --redis 127.0.0.1:6380 --checked --prefix run1: --history run1.jsonl
  pmnet check run1.jsonl --redis 127.0.0.1:6379

Ask the database itself, not the front. Exit code 1 if anything acknowledged is lost, applied
twice or out of order, if a refused operation had an effect, or if a lock was given to two.";

/// Options of `pmnet check`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    /// History of `pmnet load --checked --history`.
    history: PathBuf,
    /// The database (not the front).
    #[arg(long, value_name = "HOST:PORT")]
    redis: String,
    /// The verdict as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

/// Checks; false if something was found.
pub fn main(args: &CheckArgs) -> anyhow::Result<bool> {
    let ledger = Ledger::read(&args.history)
        .with_context(|| format!("cannot check {}", args.history.display()))?;
    let address = address("--redis", &args.redis)?;
    let mut reader = Client::connect(address, CALL_MAX)
        .with_context(|| format!("cannot reach the database at {address}"))?;
    let verdict = verify(&ledger, &mut reader)?;
    if args.json {
        println!("{}", serde_json::to_string(&verdict)?);
    } else {
        println!("{verdict}");
    }
    Ok(verdict.is_clean())
}
