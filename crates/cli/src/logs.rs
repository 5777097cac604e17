//! Logs, which are written to stderr as text or JSON. `PMNET_LOG` or the configuration sets the filter. Lines that
//! cannot be written are lost and counted, so logging never ends or delays a process.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

use crate::error::ConfigError;
use crate::message::WithId;
use crate::output::{self, LogLines};

/// Environment variable with the log filter.
const FILTER: &str = "PMNET_LOG";

/// A function that replaces the log filter.
type Replace = Box<dyn Fn(EnvFilter) + Send + Sync>;

/// The function that replaces the log filter, and the default filter. Not set if the environment names a filter.
static REPLACE: OnceLock<(Replace, String)> = OnceLock::new();

fn parse(what: &str, text: &str) -> Result<EnvFilter, ConfigError> {
    EnvFilter::try_new(text).map_err(|error| ConfigError(format!("{what}={text:?}: {error}")))
}

/// Starts logging. `default`: the log filter if neither the environment nor, later, the configuration names one.
pub fn start(json: bool, default: &str) -> Result<(), ConfigError> {
    let named = std::env::var(FILTER).ok();
    let filter = match &named {
        Some(text) => parse(FILTER, text)?,
        None => EnvFilter::new(default),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| LogLines)
        // The subscriber prints its own errors with a macro that panics if stderr cannot be written. So these errors
        // are switched off.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    output::logs_are_json(json);
    let replace: Replace = if json {
        let builder = builder
            .json()
            .map_event_format(WithId)
            .with_filter_reloading();
        let handle = builder.reload_handle();
        builder.init();
        // The reload fails only if the subscriber no longer exists.
        Box::new(move |filter| drop(handle.reload(filter)))
    } else {
        let builder = builder.with_filter_reloading();
        let handle = builder.reload_handle();
        builder.init();
        Box::new(move |filter| drop(handle.reload(filter)))
    };
    if named.is_none() {
        // The cell is still empty, because logging is started only once. So `set` cannot fail.
        let _ = REPLACE.set((replace, default.to_owned()));
    }
    Ok(())
}

/// Checks the text of a log filter. `what`: the origin of the text, for the error.
///
/// # Errors
/// The text is not a valid filter.
pub fn check_log_filter(what: &str, text: &str) -> Result<(), ConfigError> {
    parse(what, text).map(drop)
}

/// Replaces the log filter by `text`. If `text` is `None`, or if [`check_log_filter`] refuses `text`, the default
/// filter is used. If the environment names a filter, changes nothing and returns false.
#[must_use]
pub fn filter_logs(text: Option<&str>) -> bool {
    let Some((replace, default)) = REPLACE.get() else {
        return false;
    };
    let filter = text.and_then(|text| EnvFilter::try_new(text).ok());
    replace(filter.unwrap_or_else(|| EnvFilter::new(default)));
    true
}
