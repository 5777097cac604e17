//! From the command line to the exit code.

use std::process::ExitCode;

use clap::Parser;

use crate::error::ConfigError;
use crate::logs;

/// Reads the command line of this process.
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

/// Starts the logs, does the work of the program `name`, and makes an exit code of how it ended. `filter` is what is
/// logged where the environment does not say; `work` is false if a check found something.
#[must_use]
pub fn finish(
    name: &str,
    log_json: bool,
    filter: &str,
    work: impl FnOnce() -> anyhow::Result<bool>,
) -> ExitCode {
    if let Err(error) = logs::start(log_json, filter) {
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
