//! Waits while the interpreter is released, without missing a signal.

use crate::fault::exception;
use pmnet_bindings::Fault;
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// Longest wait between two checks for signals. The checks are needed because a signal that arrives just before a wait
/// does not end the wait.
const PATIENCE: Duration = Duration::from_millis(200);

/// Waits until `once` returns a value, at most for this time (`None`: without limit). `once` must not wait longer than
/// its argument. Signal handlers run meanwhile. If a handler raises an exception, this function fails with the
/// exception.
pub(crate) fn until<T: Send, E: Into<Fault> + Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    mut once: impl FnMut(Duration) -> Result<Option<T>, E> + Send,
) -> PyResult<Option<T>> {
    let begun = Instant::now();
    loop {
        let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
        let wait = left.map_or(PATIENCE, |left| left.min(PATIENCE));
        let found = py.detach(|| once(wait));
        if let Some(found) = found.map_err(|error| exception(py, error))? {
            return Ok(Some(found));
        }
        py.check_signals()?;
        if timeout.is_some_and(|timeout| begun.elapsed() >= timeout) {
            return Ok(None);
        }
    }
}
