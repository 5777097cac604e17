//! Signals. The first SIGTERM, SIGINT or SIGPWR asks the process to end in order. The second signal ends the process at
//! once. A SIGHUP makes the process read its files again.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Exit code after the second signal. The code is the one that a shell reports for SIGINT.
const EXIT_INTERRUPTED: i32 = 130;
/// The signal that announces a power failure (signal(7)). The library has no constant for this signal.
#[cfg(target_os = "linux")]
const SIGPWR: i32 = 30;

/// The signals that ask the process to end. Such signals come from the user, from the system, and before a power
/// failure.
const ENDS: [i32; 3] = [SIGINT, SIGTERM, SIGPWR];

/// The flag that the signals set.
pub type Shutdown = Arc<AtomicBool>;

/// The flag of this process. `None`: no handler is installed yet.
static ASKED: Mutex<Option<Shutdown>> = Mutex::new(None);

/// Returns a flag that the first signal sets. The process has only one flag, so a later caller also learns of an
/// earlier signal.
///
/// # Errors
/// The kernel refuses to install a handler.
pub fn on_signals() -> anyhow::Result<Shutdown> {
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(flag) = &*asked {
        return Ok(Arc::clone(flag));
    }
    let flag = Arc::new(AtomicBool::new(false));
    for signal in ENDS {
        // The handler that ends the process is registered first. So at the first signal the handler runs before the
        // flag is set, and does not end the process.
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

/// From now on, calls `again` at each SIGHUP, on a thread of its own. The signal then no longer ends the process.
/// Terminals, logrotate scripts and service managers send SIGHUP to daemons.
///
/// # Errors
/// The kernel refuses to install a handler, or to start a thread.
fn call_on_hangup(again: impl Fn() + Send + 'static) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGHUP]).context("cannot catch signals")?;
    std::thread::Builder::new()
        .name("hangup".into())
        .spawn(move || signals.forever().for_each(|_| again()))
        .context("cannot catch signals")?;
    Ok(())
}

/// A thing that is read again at SIGHUP: its name for messages, and the function that reads it.
type Reloadable = (String, Box<dyn Fn() -> Result<(), String> + Send>);

/// All things that this process reads again, in the order in which they were added.
static RELOADABLE: Mutex<Vec<Reloadable>> = Mutex::new(Vec::new());

/// The state of a reload, for messages to the service manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// The reload begins.
    Begins,
    /// The reload has ended.
    Ended,
}

/// Adds a thing that is read again at each SIGHUP. Things are read in the order in which they were added. If the new
/// contents are wrong, `again` keeps the present contents and returns a sentence.
pub fn on_reload(name: &str, again: impl Fn() -> Result<(), String> + Send + 'static) {
    let mut all = RELOADABLE.lock().unwrap_or_else(PoisonError::into_inner);
    all.push((name.to_owned(), Box::new(again)));
}

/// Starts a thread that, at each SIGHUP, reads everything again that was added with [`on_reload`]. Each time the thread
/// logs one line, and calls `told` at the beginning and at the end.
///
/// # Errors
/// The kernel refuses to install a handler, or to start a thread.
pub fn reload_on_hangup(told: impl Fn(Reload) + Send + 'static) -> anyhow::Result<()> {
    call_on_hangup(move || {
        told(Reload::Begins);
        let all = RELOADABLE.lock().unwrap_or_else(PoisonError::into_inner);
        let reloaded = reload(&all);
        drop(all);
        let text = reloaded.to_string();
        if reloaded.wrong.is_empty() {
            tracing::info!("{text}");
        } else {
            tracing::error!("{text}");
        }
        told(Reload::Ended);
    })
}

/// The result of a reload.
struct Reloaded {
    /// Names of the things that were read again.
    again: Vec<String>,
    /// Sentences about the things that stay unchanged, because their new contents are wrong.
    wrong: Vec<String>,
}

fn reload(all: &[Reloadable]) -> Reloaded {
    let mut reloaded = Reloaded {
        again: Vec::new(),
        wrong: Vec::new(),
    };
    for (name, again) in all {
        match again() {
            // Several loops may have read one file. The name of the file is listed only once.
            Ok(()) if reloaded.again.contains(name) => {}
            Ok(()) => reloaded.again.push(name.clone()),
            Err(sentence) => reloaded.wrong.push(format!("{name}: {sentence}")),
        }
    }
    reloaded
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let again = self.again.join(", ");
        match (self.again.is_empty(), self.wrong.is_empty()) {
            (true, true) => f.write_str(
                "PM6030 SIGHUP: there is nothing to reload. Settings are read at the start, and logs go to stderr: start this process \
                 again for new ones",
            ),
            (false, true) => write!(f, "PM6031 SIGHUP: read again: {again}"),
            (_, false) => {
                write!(
                    f,
                    "PM6032 SIGHUP: wrong, and left as before: {}",
                    self.wrong.join("; ")
                )?;
                if !self.again.is_empty() {
                    write!(f, ". Read again: {again}")?;
                }
                Ok(())
            }
        }
    }
}

/// Calls `end` at the first signal, on a thread of its own. If a signal has already come, calls `end` at once.
///
/// # Errors
/// The kernel refuses to start a thread.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn thing(name: &str, result: Result<(), &str>) -> Reloadable {
        let result = result.map_err(str::to_owned);
        (name.into(), Box::new(move || result.clone()))
    }

    #[test]
    fn one_thing_that_is_wrong_keeps_no_other_one_from_being_read_again() {
        let said = |all: &[Reloadable]| reload(all).to_string();
        assert!(said(&[]).starts_with("PM6030 "));
        let (keys, users) = (thing("keys", Ok(())), thing("users", Ok(())));
        assert_eq!(
            said(&[keys, users]),
            "PM6031 SIGHUP: read again: keys, users"
        );
        let all = [
            thing("keys", Err("no")),
            thing("users", Ok(())),
            thing("map", Err("bad")),
        ];
        assert_eq!(
            said(&all),
            "PM6032 SIGHUP: wrong, and left as before: keys: no; map: bad. Read again: users"
        );
        assert!(said(&all[..1]).ends_with("keys: no"));
    }
}
