//! Messages to the service manager, if it started this process and asked for them (`NOTIFY_SOCKET`, `WATCHDOG_USEC`; sd_notify(3)).
//!
//! A message that cannot be sent is lost. The manager then acts without it. No role depends on these messages.

use std::time::{Duration, Instant};

use anyhow::Context;
use pmnet_cli::Reload;
use pmnet_status::Shown;
use sd_notify::NotifyState;

/// Longest time between two signs of life, even if the manager would wait longer.
const SIGN_MAX: Duration = Duration::from_secs(10);

fn say(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, states) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}

/// Tells the manager that the role serves. `line`: the role's ready line, without the first word.
pub fn ready(line: &str) {
    say(&[NotifyState::Ready, NotifyState::Status(line)]);
}

/// Tells the manager that the role reads its files again, or has done so. The role serves meanwhile.
pub fn told(reload: Reload<'_>) {
    match reload {
        Reload::Begins => {
            if let Ok(now) = NotifyState::monotonic_usec_now() {
                say(&[NotifyState::Reloading, now]);
            }
        }
        Reload::Ended(line) => say(&[NotifyState::Ready, NotifyState::Status(line)]),
    }
}

/// Sends signs of life to the manager's watchdog while the loops run.
///
/// # Errors
/// There is no thread for it.
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
