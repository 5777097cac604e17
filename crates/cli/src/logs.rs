//! Logs: written to stderr as text or JSON, filtered by `PMNET_LOG` or by the configuration. Lines that cannot be
//! written are lost and counted, so no log ends or delays a process.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

use crate::error::ConfigError;
use crate::message::WithId;
use crate::output::{self, LogLines};

/// Environment variable with the filter.
const FILTER: &str = "PMNET_LOG";

/// A function that replaces the present filter.
type Replace = Box<dyn Fn(EnvFilter) + Send + Sync>;

/// The function that replaces the filter, and the default filter. Not set if the environment names a filter.
static REPLACE: OnceLock<(Replace, String)> = OnceLock::new();

fn parse(what: &str, text: &str) -> Result<EnvFilter, ConfigError> {
    EnvFilter::try_new(text).map_err(|error| ConfigError(format!("{what}={text:?}: {error}")))
}

/// Starts logging. `default` is the filter if neither the environment nor, later, the configuration names one.
pub fn start(json: bool, default: &str) -> Result<(), ConfigError> {
    let named = std::env::var(FILTER).ok();
    let filter = match &named {
        Some(text) => parse(FILTER, text)?,
        None => EnvFilter::new(default),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| LogLines)
        // The subscriber would print its own errors with a macro that panics if stderr cannot be written.
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
        // This cannot fail, because logs are started only once.
        let _ = REPLACE.set((replace, default.to_owned()));
    }
    Ok(())
}

/// Checks the text of a filter. `what` names its origin in the error.
///
/// # Errors
/// The text is not a filter.
pub fn check_log_filter(what: &str, text: &str) -> Result<(), ConfigError> {
    parse(what, text).map(drop)
}

/// Replaces the filter by `text`, or by the default if `text` is `None` or [`check_log_filter`] refuses it. Returns
/// false, and changes nothing, if the environment names a filter.
#[must_use]
pub fn filter_logs(text: Option<&str>) -> bool {
    let Some((replace, default)) = REPLACE.get() else {
        return false;
    };
    let filter = text.and_then(|text| EnvFilter::try_new(text).ok());
    replace(filter.unwrap_or_else(|| EnvFilter::new(default)));
    true
}
