//! Parses the command line, and converts a program's result to an exit code.

use std::process::ExitCode;

use clap::{Command, Parser};

use crate::error::ConfigError;
use crate::{limits, logs, output};

/// Parses the command line of this process.
///
/// # Errors
/// The exit code, if the user asked for help or the command line is wrong. The message was already printed.
pub fn parse<C: Parser>() -> Result<C, ExitCode> {
    parse_by(C::command())
}

/// Parses the command line with `command`, a modified definition of `C`.
///
/// # Errors
/// As for [`parse`].
pub fn parse_by<C: Parser>(mut command: Command) -> Result<C, ExitCode> {
    let matches = command.try_get_matches_from_mut(std::env::args_os());
    let parsed = matches.and_then(|matches| C::from_arg_matches(&matches));
    parsed.map_err(|error| {
        let error = error.format(&mut command);
        // clap prints help and version to stdout, and errors to stderr.
        let _ = error.print();
        if error.use_stderr() {
            ExitCode::from(2)
        } else {
            ExitCode::SUCCESS
        }
    })
}

/// Returns the error and its causes in one line. A cause is left out if the text already contains it.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text += ": ";
            text += &cause;
        }
    }
    text
}

/// Starts the logs, runs `work` of the program `name`, and converts its result to an exit code. `filter` is the default
/// log filter. `work` returns false if a check found a problem.
#[must_use]
pub fn finish(
    name: &str,
    log_json: bool,
    filter: &str,
    work: impl FnOnce() -> anyhow::Result<bool>,
) -> ExitCode {
    if let Err(error) = logs::start(log_json, filter) {
        output::notice(&format!("{name}: {error:#}"));
        return ExitCode::from(2);
    }
    limits::raise_open_files();
    let done = work();
    if let Some(error) = output::failure() {
        output::notice(&format!(
            "{name}: PM6011 stdout cannot be written: {error}; the command itself went on"
        ));
    }
    match done {
        Ok(true) if output::failure().is_some() => ExitCode::from(1),
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            output::notice(&format!("{name}: {}", sentence(&error)));
            if error.is::<ConfigError>() {
                ExitCode::from(2)
            } else {
                ExitCode::from(1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::sentence;

    #[test]
    fn no_cause_is_said_twice() {
        #[derive(Debug, thiserror::Error)]
        #[error("file x: {0}")]
        struct Told(#[source] std::io::Error);
        let cause = std::io::Error::other("is a directory");
        let error = Err::<(), _>(Told(cause)).context("cannot start");
        let error = error.unwrap_err();
        assert_eq!(sentence(&error), "cannot start: file x: is a directory");
    }
}
