//! The command line: its commands, and the module of each. `pmnet_cli` defines the exit codes.

mod access;
mod check;
mod common;
mod config;
mod controller;
mod ctl;
mod device;
mod environment;
mod etcd;
mod key;
mod keys;
mod log;
mod memcached;
mod names;
mod passwords;
mod process;
mod ready;
mod redis;
mod reload;
mod run;
mod server;
pub(crate) mod service;
mod status;
mod stop;
mod store;
mod tls;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use pmnet_cli::{finish, parse_by};

pub use config::check_file;
pub(crate) use config::statuses;
pub use etcd::EtcdArgs;
pub(crate) use log::header as log_header;
pub(crate) use names::machine;
pub(crate) use status::kernel_devices;

use common::CommonArgs;

/// Makes a write durable in the network, before it reaches the server.
#[derive(Debug, Parser)]
#[command(name = "pmnet", version = RELEASE, long_version = VERSION, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    /// Logs on stderr as JSON, one object a line.
    #[arg(long, global = true)]
    log_json: bool,
    #[command(subcommand)]
    command: Command,
}

/// The version number, and the commit from which the program was built.
const RELEASE: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("PMNET_COMMIT"), ")");

/// Text of `--version`: the version number, the commit, and a note if this build is not the product.
const VERSION: &str = if pmnet_proto::rules::CAN_BE_SWITCHED_OFF {
    concat!(
        env!("CARGO_PKG_VERSION"),
        " (",
        env!("PMNET_COMMIT"),
        ")\nbuilt with what is simulated: rules of the protocol can be switched off"
    )
} else {
    concat!(
        env!("CARGO_PKG_VERSION"),
        " (",
        env!("PMNET_COMMIT"),
        ")\nevery rule of the protocol holds"
    )
};

const EXAMPLES: &str = "\
Example: a Redis and a device that makes its writes durable, all on one machine
  redis-server --appendonly yes --appendfsync always &
  pmnet run --store redis://127.0.0.1:6379 &
  redis-cli -p 6380 SET greeting hello

The same as three processes, which can also be on three machines
  pmnet server --listen 127.0.0.1:51500 --store redis://127.0.0.1:6379 &
  pmnet device --listen 127.0.0.1:51000 --next 127.0.0.1:51500 \\
      --log /var/tmp/d1.pmlog --media file &
  pmnet redis  --listen 127.0.0.1:6380 --via 127.0.0.1:51000 &
  redis-cli -p 6380 SET greeting hello

A flag of a role can also be set by an environment variable: PMNET_DEVICE_LISTEN is --listen of pmnet device. A flag \
overrides its variable, and the variable overrides the file. Flags by which an operator states a fact once, such as \
--declare-data-loss, have no variable.

Logs go to stderr; PMNET_LOG filters them (error, warn, info, debug, or module=level,…). A warning or an error \
begins with an id such as PM1203. docs/operate/messages.md says what to do for each id.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Start several roles in one process: server, device and front for one store, or all sections of a file.
    Run(run::RunCommand),
    /// Apply the log of a shard to a database.
    Server(server::ServerCommand),
    /// Keep a shard's log: make writes durable, acknowledge them, and send them on to the server.
    Device(device::DeviceCommand),
    /// Serve Redis clients: send their commands through the devices of a chain.
    Redis(redis::RedisCommand),
    /// Serve memcached clients: send their commands through the devices of a chain.
    Memcached(memcached::MemcachedCommand),
    /// Remove devices that have lost their lease from the chain of a fleet, and let spares join.
    Controller(controller::ControllerArgs),
    /// Change a running chain, with or without etcd: add, remove or replace a device. Or replace a shard's Redis by its
    /// replica.
    Ctl(ctl::CtlArgs),
    /// Check a configuration file without starting anything.
    Check(check::CheckArgs),
    /// Make and show key files. With keys, packets from senders without a key are dropped.
    Key(key::KeyCommand),
    /// Look at the log of a device.
    Log(log::LogCommand),
    /// Look at a packet store, copy it, make it larger, or repair it.
    Store(store::StoreCommand),
    /// Show the state of processes (by their status ports), of the devices in this machine's kernel, or of a fleet.
    Status(status::StatusArgs),
    /// Watch several processes in a terminal: rates, times, copies, the lag of stores, lost devices, and what to do.
    Top(crate::top::TopArgs),
    /// Say whether pmnet will work well on this machine, and what to do if not.
    Doctor(crate::doctor::DoctorArgs),
}

impl Command {
    /// Returns the name of the command, if it starts a process that serves until it is ended.
    const fn role(&self) -> Option<&'static str> {
        Some(match self {
            Command::Run(_) => "run",
            Command::Server(_) => "server",
            Command::Device(_) => "device",
            Command::Redis(_) => "redis",
            Command::Memcached(_) => "memcached",
            Command::Controller(_) => "controller",
            _ => return None,
        })
    }
}

/// Returns the definition of the whole command line. The reference is generated from this definition.
#[must_use]
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Returns whether these words are a valid command line. The first word is the program's name. No command is run.
#[must_use]
pub fn is_command_line(arguments: &[&str]) -> bool {
    Cli::try_parse_from(arguments).is_ok()
}

/// Parses the command line of this process, and runs the command.
#[must_use]
pub fn main() -> ExitCode {
    let root = environment::with_variables(Cli::command());
    let cli = match parse_by::<Cli>(root.clone()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    finish("pmnet", cli.log_json, "info", || {
        if let Some(role) = cli.command.role() {
            environment::warn_of_unknown(&root, role);
        }
        execute(&cli.command)
    })
}

/// Runs the command.
fn execute(command: &Command) -> anyhow::Result<bool> {
    let file = |common: &CommonArgs| config::read(common.config.as_deref());
    match command {
        Command::Run(command) => run::main(command),
        Command::Server(command) => {
            server::main(command, file(&command.common)?.server.only("server")?)
        }
        Command::Device(command) => {
            device::main(command, file(&command.common)?.device.only("device")?)
        }
        Command::Redis(command) => {
            redis::main(command, file(&command.common)?.redis.only("redis")?)
        }
        Command::Memcached(command) => {
            memcached::main(command, file(&command.common)?.memcached.only("memcached")?)
        }
        Command::Controller(args) => controller::main(args),
        Command::Ctl(args) => ctl::main(args),
        Command::Check(args) => check::main(args),
        Command::Key(command) => key::main(command),
        Command::Log(command) => log::main(command),
        Command::Store(command) => store::main(command),
        Command::Status(args) => status::main(args),
        Command::Top(args) => crate::top::main(args),
        Command::Doctor(args) => crate::doctor::main(args),
    }
}
