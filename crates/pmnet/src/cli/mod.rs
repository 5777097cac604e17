//! The command line: what can be said, and which module does it.
//!
//! Exit codes: 0 done, 1 it failed or a check found something (a sentence on stderr says what and
//! what to do), 2 the command line or the configuration was not understood.

mod config;
mod device;
mod log;
mod logging;
mod ready;
mod redis;
mod server;
mod shutdown;
mod status;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use config::{ConfigError, address, bytes, check_file};
pub use shutdown::{Shutdown, on_signals};

/// Makes a write durable in the network, on its way to the server.
#[derive(Debug, Parser)]
#[command(name = "pmnet", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    /// Logs on stderr as JSON, one object a line.
    #[arg(long, global = true)]
    log_json: bool,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Example: a Redis with a device in front of it, all on one machine
  redis-server --appendonly yes --appendfsync always &
  pmnet server --listen 127.0.0.1:51500 --store redis://127.0.0.1:6379 &
  pmnet device --listen 127.0.0.1:51000 --next 127.0.0.1:51500 --log /var/tmp/d1.log --media file &
  pmnet redis  --listen 127.0.0.1:6380 --via 127.0.0.1:51000 &
  redis-cli -p 6380 SET greeting hello

Logs go to stderr; PMNET_LOG filters them (error, warn, info, debug, or module=level,…).";

#[derive(Debug, Subcommand)]
enum Command {
    /// Apply the log of a shard to a database.
    Server(server::ServerCommand),
    /// Keep a shard's log: make writes durable and acknowledge them, on their way to the server.
    Device(device::DeviceCommand),
    /// Speak Redis with clients, pmnet with the devices.
    Redis(redis::RedisCommand),
    /// Look at the log of a device that is not running.
    Log(log::LogCommand),
    /// Look at the devices in this machine's kernel: logs, counters, times.
    Status(status::StatusArgs),
    /// Say whether pmnet will work well on this machine, and what to do if not.
    Doctor(crate::doctor::DoctorArgs),
}

/// Whether these are a command line, the name of the program first. Nothing is run.
#[must_use]
pub fn is_command_line(arguments: &[&str]) -> bool {
    Cli::try_parse_from(arguments).is_ok()
}

/// Reads the command line of this process; the exit code if that is all that is to be done.
///
/// # Errors
/// The exit code, when help was asked for or the line was not understood; what there is to say is said.
pub fn parse<C: Parser>() -> Result<C, ExitCode> {
    C::try_parse().map_err(|error| {
        // Help and version go to stdout and are a success; clap knows which is which.
        let _ = error.print();
        if error.use_stderr() {
            ExitCode::from(2)
        } else {
            ExitCode::SUCCESS
        }
    })
}

/// Starts the logs (`filter` is what they say by default), does the work, and tells its end as an exit code.
#[must_use]
pub fn finish(
    name: &str,
    log_json: bool,
    filter: &str,
    work: impl FnOnce() -> anyhow::Result<bool>,
) -> ExitCode {
    if let Err(error) = logging::start(log_json, filter) {
        eprintln!("{name}: {error:#}");
        return ExitCode::from(2);
    }
    match work() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("{name}: {error:#}");
            if error.is::<ConfigError>() {
                ExitCode::from(2)
            } else {
                ExitCode::from(1)
            }
        }
    }
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match parse::<Cli>() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    finish("pmnet", cli.log_json, "info", || match &cli.command {
        Command::Server(command) => server::main(command),
        Command::Device(command) => device::main(command),
        Command::Redis(command) => redis::main(command),
        Command::Log(command) => log::main(command),
        Command::Status(args) => status::main(args),
        Command::Doctor(args) => crate::doctor::main(args),
    })
}
