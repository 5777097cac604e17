//! The end of the roles that wait in a driver, and what does not end them.

use anyhow::Context;
use pmnet_cli::{reload_on_hangup, write_on_signals};
use pmnet_client::Stop;

use super::service;

/// Catches the signals in a [`Stop`].
pub fn stop_on_signals() -> anyhow::Result<Stop> {
    reload_on_hangup(service::told)?;
    let (stop, trigger) = Stop::new().context("cannot catch signals")?;
    write_on_signals(&trigger.into_stream())?;
    Ok(stop)
}

/// The error, unless it only says that the process was asked to stop before it could serve.
pub fn unless_asked_to_stop(error: anyhow::Error) -> anyhow::Result<()> {
    let asked = error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::Interrupted)
    });
    if asked { Ok(()) } else { Err(error) }
}
