//! `pmnet check`: checks a configuration file.

use std::path::PathBuf;

use clap::Args;
use pmnet_cli::tell;

use super::config;

const EXAMPLES: &str = "\
Examples:
  pmnet check --config /etc/pmnet/pmnet.toml

Each section of the file is checked as its role would read it: keys, values, and their combinations. Devices of one \
file must have their own logs, and devices of one chain their own ids. The command looks names up, and reads the files of passwords and certificates. It opens nothing for writing, uses no port, and \
asks no other process. The exit code is 0 if the file is right, 2 if not.";

/// The command line of `pmnet check`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    /// The TOML file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Checks the file. Returns true if the file is valid. Otherwise returns an error with the reason.
pub fn main(args: &CheckArgs) -> anyhow::Result<bool> {
    let sections = config::check(&args.config)?;
    tell(format_args!(
        "{} is right: {}",
        args.config.display(),
        sections.join(", ")
    ));
    Ok(true)
}
