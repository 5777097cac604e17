//! Logs: to stderr, filtered by `PMNET_LOG`, as text or JSON. Lines that cannot be written are lost and
//! counted: no log ends or delays a process.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::error::ConfigError;
use crate::message::WithId;
use crate::output::{self, LogLines};

/// Environment variable with the filter.
const FILTER: &str = "PMNET_LOG";

/// Starts logging; `default` is the filter where the environment names none.
pub fn start(json: bool, default: &str) -> Result<(), ConfigError> {
    let filter = match std::env::var(FILTER) {
        Ok(text) => EnvFilter::try_new(&text)
            .map_err(|error| ConfigError(format!("{FILTER}={text:?}: {error}")))?,
        Err(_) => EnvFilter::new(default),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| LogLines)
        // They would be printed with a macro that panics where stderr cannot be written.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    output::logs_are_json(json);
    if json {
        builder.json().map_event_format(WithId).init();
    } else {
        builder.init();
    }
    Ok(())
}
