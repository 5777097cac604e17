//! Logs: to stderr, filtered by `PMNET_LOG` or by what the configuration says, as text or JSON. Lines that cannot be written are lost and
//! counted: no log ends or delays a process.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

use crate::error::ConfigError;
use crate::message::WithId;
use crate::output::{self, LogLines};

/// Environment variable with the filter.
const FILTER: &str = "PMNET_LOG";

/// Puts another filter in place of the present one.
type Replace = Box<dyn Fn(EnvFilter) + Send + Sync>;

/// How the filter of this process is replaced, and the one that counts if nothing says otherwise. Not set: the environment names one.
static REPLACE: OnceLock<(Replace, String)> = OnceLock::new();

fn parse(what: &str, text: &str) -> Result<EnvFilter, ConfigError> {
    EnvFilter::try_new(text).map_err(|error| ConfigError(format!("{what}={text:?}: {error}")))
}

/// Starts logging; `default` is the filter where neither the environment nor, later, the configuration names one.
pub fn start(json: bool, default: &str) -> Result<(), ConfigError> {
    let named = std::env::var(FILTER).ok();
    let filter = match &named {
        Some(text) => parse(FILTER, text)?,
        None => EnvFilter::new(default),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| LogLines)
        // They would be printed with a macro that panics where stderr cannot be written.
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
        // Fails only if there are no logs any more.
        Box::new(move |filter| drop(handle.reload(filter)))
    } else {
        let builder = builder.with_filter_reloading();
        let handle = builder.reload_handle();
        builder.init();
        Box::new(move |filter| drop(handle.reload(filter)))
    };
    if named.is_none() {
        // Logs are started once.
        let _ = REPLACE.set((replace, default.to_owned()));
    }
    Ok(())
}

/// Checks a filter that `what` names.
///
/// # Errors
/// It is none.
pub fn check_log_filter(what: &str, text: &str) -> Result<(), ConfigError> {
    parse(what, text).map(drop)
}

/// Filters by this from now on; `None`, or one that [`check_log_filter`] refuses: by the default. Returns false, and changes nothing, if the
/// environment names one.
#[must_use]
pub fn filter_logs(text: Option<&str>) -> bool {
    let Some((replace, default)) = REPLACE.get() else {
        return false;
    };
    let filter = text.and_then(|text| EnvFilter::try_new(text).ok());
    replace(filter.unwrap_or_else(|| EnvFilter::new(default)));
    true
}
