//! Signals. The first SIGTERM, SIGINT or SIGPWR asks for a clean end, the second one ends the process at once. A SIGHUP
//! makes the process read its files again.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Exit code after the second signal: the code that a shell reports for SIGINT.
const EXIT_INTERRUPTED: i32 = 130;
/// The signal of a power supply that is about to fail (signal(7)). The library has no constant for it.
#[cfg(target_os = "linux")]
const SIGPWR: i32 = 30;

/// The signals that ask for the end: from the user, from the system, and from a power supply that is about to fail.
const ENDS: [i32; 3] = [SIGINT, SIGTERM, SIGPWR];

/// The flag that the signals set.
pub type Shutdown = Arc<AtomicBool>;

/// The flag of this process. `None`: the signals are not caught yet.
static ASKED: Mutex<Option<Shutdown>> = Mutex::new(None);

/// Sets a flag at the first signal. The process has only one flag, so a later caller also learns of an earlier signal.
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
        // The handler that ends the process is registered first, so it runs before the flag is set: the first signal
        // does not end the process.
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

/// Calls `again` at each SIGHUP, on a thread of its own. From now on the signal does not end this process. Terminals,
/// logrotate scripts and service managers send it to daemons.
///
/// # Errors
/// The kernel refuses a handler or a thread.
fn call_on_hangup(again: impl Fn() + Send + 'static) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGHUP]).context("cannot catch signals")?;
    std::thread::Builder::new()
        .name("hangup".into())
        .spawn(move || signals.forever().for_each(|_| again()))
        .context("cannot catch signals")?;
    Ok(())
}

/// Something that is read again at SIGHUP: its name for messages, and the function that reads it.
type Reloadable = (String, Box<dyn Fn() -> Result<(), String> + Send>);

/// All reloadable things of this process, in the order in which they were added.
static RELOADABLE: Mutex<Vec<Reloadable>> = Mutex::new(Vec::new());

/// State of a reload, for the service manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// The reload begins.
    Begins,
    /// The reload has ended.
    Ended,
}

/// Adds something that is read again at each SIGHUP; the order of addition is the order of reading. If the new content
/// is wrong, `again` keeps the present one and returns a sentence.
pub fn on_reload(name: &str, again: impl Fn() -> Result<(), String> + Send + 'static) {
    let mut all = RELOADABLE.lock().unwrap_or_else(PoisonError::into_inner);
    all.push((name.to_owned(), Box::new(again)));
}

/// From now on a thread reads everything that was added with [`on_reload`] again at each SIGHUP. It writes one line to
/// the log, and calls `told` at the begin and the end.
///
/// # Errors
/// The kernel refuses a handler or a thread.
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

/// Result of a reload.
struct Reloaded {
    /// Names of the things that were read again.
    again: Vec<String>,
    /// Sentences about the things that stay unchanged because their new content is wrong.
    wrong: Vec<String>,
}

fn reload(all: &[Reloadable]) -> Reloaded {
    let mut reloaded = Reloaded {
        again: Vec::new(),
        wrong: Vec::new(),
    };
    for (name, again) in all {
        match again() {
            // Several loops may have read the same file, so its name is listed once.
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

/// Calls `end` at the first signal, on a thread of its own; at once if a signal has come already.
///
/// # Errors
/// The kernel refuses a thread.
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
