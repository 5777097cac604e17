//! SIGTERM, SIGINT and SIGPWR: the first one asks for a clean end, the second one ends at once. SIGHUP: read a file again.

use std::fmt;
use std::io::Write;
use std::os::unix::net::UnixStream;
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

/// Writes a byte to this stream at every signal, and now if one came already.
///
/// # Errors
/// The kernel refuses.
pub fn write_on_signals(stream: &UnixStream) -> anyhow::Result<()> {
    let asked = on_signals()?;
    for signal in ENDS {
        let stream = stream.try_clone().context("cannot catch signals")?;
        signal_hook::low_level::pipe::register(signal, stream).context("cannot catch signals")?;
    }
    if asked.load(Ordering::Acquire) {
        let mut stream = stream;
        stream.write_all(&[0]).context("cannot catch signals")?;
    }
    Ok(())
}

/// From now on a SIGHUP does not end this process. Terminals, scripts of logrotate and service managers send it to daemons.
///
/// # Errors
/// The kernel refuses.
pub fn survive_hangup() -> anyhow::Result<()> {
    let nobody_looks = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGHUP, nobody_looks).context("cannot catch signals")?;
    Ok(())
}

/// Calls `again` at each SIGHUP, from a thread of its own.
fn call_on_hangup(again: impl Fn() + Send + 'static) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGHUP]).context("cannot catch signals")?;
    std::thread::Builder::new()
        .name("hangup".into())
        .spawn(move || signals.forever().for_each(|_| again()))
        .context("cannot catch signals")?;
    Ok(())
}

/// A thing that is read again at SIGHUP: its name, for people, and how.
type Reloadable = (String, Box<dyn Fn() -> Result<(), String> + Send>);

/// Those of this process.
static RELOADABLE: Mutex<Vec<Reloadable>> = Mutex::new(Vec::new());

/// State of a reload, for the service manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload<'a> {
    /// It begins.
    Begins,
    /// It is over; this line is in the log.
    Ended(&'a str),
}

/// Adds a thing that is read again at each SIGHUP, in the order in which they were added. `again` returns a sentence if the new one
/// is wrong. Then the present one must stay as it is.
pub fn on_reload(name: &str, again: impl Fn() -> Result<(), String> + Send + 'static) {
    let mut all = RELOADABLE.lock().unwrap_or_else(PoisonError::into_inner);
    all.push((name.to_owned(), Box::new(again)));
}

/// From now on a SIGHUP has all things read again that were added ([`on_reload`]), by a thread of its own. It writes one line to the
/// log, and says to `told` when it begins and ends.
///
/// # Errors
/// The kernel refuses.
pub fn reload_on_hangup(told: impl Fn(Reload<'_>) + Send + 'static) -> anyhow::Result<()> {
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
        told(Reload::Ended(&text));
    })
}

/// Result of a reload.
struct Reloaded {
    /// Names of the things that were read again.
    again: Vec<String>,
    /// Sentences about those that stay as they were.
    wrong: Vec<String>,
}

fn reload(all: &[Reloadable]) -> Reloaded {
    let mut reloaded = Reloaded {
        again: Vec::new(),
        wrong: Vec::new(),
    };
    for (name, again) in all {
        match again() {
            // Several loops may have read the same file.
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
