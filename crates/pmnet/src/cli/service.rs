//! Messages to the service manager. The messages are sent if the manager started this process and asked for them
//! (`NOTIFY_SOCKET`, `WATCHDOG_USEC`; sd_notify(3)).
//!
//! If a message cannot be sent, it is lost. No role depends on these messages.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use pmnet_cli::Reload;
use pmnet_status::Shown;
use sd_notify::NotifyState;

/// Longest interval of the messages to the watchdog, even if the manager permits a longer interval.
const SIGN_MAX: Duration = Duration::from_secs(10);

fn say(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, states) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}

/// The role's ready line, without the first word; `None`: the role does not serve yet.
static READY: Mutex<Option<String>> = Mutex::new(None);

/// Tells the manager that the role serves. `line`: the role's ready line, without the first word.
pub fn ready(line: &str) {
    let mut ready = READY.lock().unwrap_or_else(PoisonError::into_inner);
    say(&[NotifyState::Ready, NotifyState::Status(line)]);
    *ready = Some(line.to_owned());
}

/// Tells the manager that the process begins to read its files again, or has finished. If the role does not serve yet,
/// sends nothing: the manager takes any READY for the end of the start.
pub fn told(reload: Reload) {
    let ready = READY.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(line) = &*ready else {
        return;
    };
    match reload {
        Reload::Begins => {
            if let Ok(now) = NotifyState::monotonic_usec_now() {
                say(&[NotifyState::Reloading, now]);
            }
        }
        Reload::Ended => say(&[NotifyState::Ready, NotifyState::Status(line)]),
    }
}

/// Sends messages to the manager's watchdog while the loops run.
///
/// # Errors
/// The system cannot start a thread.
pub fn watch(shown: &Shown) -> anyhow::Result<()> {
    let mut micros = 0;
    if !sd_notify::watchdog_enabled(false, &mut micros) {
        return Ok(());
    }
    let every = (Duration::from_micros(micros) / 3).clamp(Duration::from_millis(10), SIGN_MAX);
    let shown = shown.clone();
    std::thread::Builder::new()
        .name("watchdog".into())
        .spawn(move || {
            loop {
                if shown.dead(Instant::now()).is_empty() {
                    say(&[NotifyState::Watchdog]);
                }
                std::thread::sleep(every);
            }
        })
        .map(drop)
        .context("cannot start the thread of the watchdog")
}
