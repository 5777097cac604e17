//! The end of the roles that wait in a driver.

use anyhow::Context;
use pmnet_cli::write_on_signals;
use pmnet_client::Stop;

/// Catches the signals in a [`Stop`].
pub fn stop_on_signals() -> anyhow::Result<Stop> {
    let (stop, trigger) = Stop::new().context("cannot catch signals")?;
    write_on_signals(&trigger.into_stream())?;
    Ok(stop)
}
