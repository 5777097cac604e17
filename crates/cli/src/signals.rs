//! SIGTERM, SIGINT and SIGPWR: the first one asks for a clean end, the second one ends at once. SIGHUP: read a file again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Exit code when the second signal came: as a shell reports SIGINT.
const EXIT_INTERRUPTED: i32 = 130;
/// A power supply reports that it will fail (signal(7)); not among the library's constants.
#[cfg(target_os = "linux")]
const SIGPWR: i32 = 30;

/// Ask for the end: the user, the system, and a power supply that is about to fail.
const ENDS: [i32; 3] = [SIGINT, SIGTERM, SIGPWR];

/// The flag that the signals set.
pub type Shutdown = Arc<AtomicBool>;

/// The flag of this process, once the signals are caught.
static ASKED: Mutex<Option<Shutdown>> = Mutex::new(None);

/// Catches the signals in a flag. It is one for the whole process: who asks later knows of a signal that came before.
///
/// # Errors
/// The kernel refuses.
pub fn on_signals() -> anyhow::Result<Shutdown> {
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(flag) = &*asked {
        return Ok(Arc::clone(flag));
    }
    let flag = Arc::new(AtomicBool::new(false));
    for signal in ENDS {
        // In this order: at the first signal the flag is not yet set when the exit is considered.
        signal_hook::flag::register_conditional_shutdown(
            signal,
            EXIT_INTERRUPTED,
            Arc::clone(&flag),
        )
        .context("cannot catch signals")?;
        signal_hook::flag::register(signal, Arc::clone(&flag)).context("cannot catch signals")?;
    }
    *asked = Some(Arc::clone(&flag));
    Ok(flag)
}

/// Calls `again` at each SIGHUP, from a thread of its own: what was read at the start is to be read again. From now on the signal does not
/// end this process. Terminals, scripts of logrotate and service managers send it to daemons.
///
/// # Errors
/// The kernel refuses.
pub fn call_on_hangup(again: impl Fn() + Send + 'static) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGHUP]).context("cannot catch signals")?;
    std::thread::Builder::new()
        .name("hangup".into())
        .spawn(move || signals.forever().for_each(|_| again()))
        .context("cannot catch signals")?;
    Ok(())
}

/// Calls `end` at the first signal, or now if one came already, from a thread of its own.
///
/// # Errors
/// The kernel refuses.
pub fn call_on_signals(end: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let asked = on_signals()?;
    let mut signals = Signals::new(ENDS).context("cannot catch signals")?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if asked.load(Ordering::Acquire) || signals.forever().next().is_some() {
                end();
            }
        })
        .context("cannot catch signals")?;
    Ok(())
}
