//! The command line of pmnet-lab: its commands, and the module of each.
//!
//! Exit codes: 0 if the command succeeded; 1 if it failed, or if a check found a problem; 2 if the command line is
//! wrong. With exit code 1, a sentence on stderr describes the problem and says what to do.

mod attack;
mod bench;
mod check;
mod limit;
mod load;
mod testbed;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tests, measures and shows pmnet.
#[derive(Debug, Parser)]
#[command(name = "pmnet-lab", version, max_term_width = 100, after_help = AFTER)]
struct Cli {
    /// Logs on stderr as JSON, one object a line.
    #[arg(long, global = true)]
    log_json: bool,
    #[command(subcommand)]
    command: Command,
}

const AFTER: &str = "\
The program pmnet must be in the folder of this program, or at the path in PMNET_BINARY.
Logs go to stderr; PMNET_LOG filters them (error, warn, info, debug, or module=level,…).";

#[derive(Debug, Subcommand)]
enum Command {
    /// Generate load against a Redis or a pmnet front, and measure it.
    Load(load::LoadArgs),
    /// Check a history of `pmnet-lab load --checked` against the database.
    Check(check::CheckArgs),
    /// Show pmnet on this machine: measure latencies, kill processes, check the data, write a report.
    Demo(crate::demo::DemoArgs),
    /// Make a small network on this machine for experiments: clients, devices and a server, each in a network
    /// namespace.
    Testbed(testbed::TestbedCommand),
    /// Attack a chain with keys from inside its network.
    Attack(attack::AttackArgs),
    /// Reproduce the measurements of the papers.
    Bench(bench::BenchCommand),
    /// Run a server that answers SET and GET at once and stores nothing: the upper bound for RESP servers on this
    /// machine.
    RespLimit(limit::LimitArgs),
    /// Start a program that ends when its parent ends.
    #[command(hide = true)]
    Guarded(crate::harness::GuardArgs),
}

/// Parses the command line of this process, and runs the command.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match pmnet_cli::parse::<Cli>() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    pmnet_cli::finish("pmnet-lab", cli.log_json, "info", || match &cli.command {
        Command::Load(args) => load::main(args),
        Command::Check(args) => check::main(args),
        Command::Demo(args) => crate::demo::main(args),
        Command::Testbed(command) => testbed::main(command),
        Command::Attack(args) => attack::main(args),
        Command::Bench(command) => bench::main(command),
        Command::RespLimit(args) => limit::main(args),
        Command::Guarded(args) => crate::harness::exec_guarded(args).map(|()| true),
    })
}
