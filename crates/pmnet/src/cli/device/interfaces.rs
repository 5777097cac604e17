//! Checks the interfaces of a device in the kernel while the device serves. The checks change nothing at the
//! interfaces.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use pmnet_dataplane::direct::{name, number, refused_by_driver};

/// Interval of the checks.
const LOOK: Duration = Duration::from_secs(5);

/// Checks the interfaces every five seconds, until this value is dropped.
pub struct Interfaces {
    /// The drop of this sender ends the thread.
    _sender: Sender<()>,
}

impl Interfaces {
    /// Starts the checks. Logs a warning if an interface was removed, made again or renamed. With `answers`, also logs
    /// a warning if drivers have refused more packets of the device's part in the kernel. Returns `None` if the thread
    /// cannot be started; this is logged.
    pub fn watch(names: Vec<String>, answers: bool) -> Option<Interfaces> {
        let (sender, over) = channel();
        let mut watched: Vec<Watched> = names.into_iter().map(Watched::new).collect();
        let look = move || {
            while over.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                for one in &mut watched {
                    if let Some(warning) = one.look_for_it() {
                        tracing::warn!("{warning}");
                    }
                    if answers {
                        one.count();
                    }
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("interfaces".into())
            .spawn(look);
        thread
            .inspect_err(|error| tracing::warn!("PM1424 the interfaces are not watched: {error}"))
            .is_ok()
            .then_some(Interfaces { _sender: sender })
    }
}

struct Watched {
    name: String,
    /// Index of the interface when the checks began.
    first: Option<u32>,
    /// Index of the interface at the last check.
    number: Option<u32>,
    refused: u64,
}

impl Watched {
    fn new(name: String) -> Watched {
        let found = number(&name);
        Watched {
            first: found,
            number: found,
            refused: refused_by_driver(&name).unwrap_or(0),
            name,
        }
    }

    fn look_for_it(&mut self) -> Option<String> {
        let called = self.first.and_then(name);
        self.judge(called, number(&self.name))
    }

    /// Returns a warning if the interface was renamed or replaced. A renamed interface keeps its index and its program.
    /// A removed interface takes its program with it, and a new interface of this name does not have the program.
    /// `called`: the present name of the interface that existed when the checks began. `now`: the index of the
    /// interface that has the name now.
    fn judge(&mut self, called: Option<String>, now: Option<u32>) -> Option<String> {
        if let Some(called) = called {
            self.number = self.first;
            let before = std::mem::replace(&mut self.name, called);
            return (before != self.name).then(|| {
                format!(
                    "PM1429 the interface {before} is called {0} now: this device goes on with it. Its next start needs --dev {0}",
                    self.name
                )
            });
        }
        if now == self.number {
            return None;
        }
        self.number = now;
        let name = &self.name;
        if now.is_none() {
            return Some(format!(
                "PM1425 there is no interface {name} any more: this device receives nothing through it"
            ));
        }
        Some(format!(
            "PM1426 {name} was removed and made anew: this device has no program there any more. Packets that come through it pass on, or are served by this \
             process, which is slower. Start this device again with the same flags"
        ))
    }

    fn count(&mut self) {
        let now = refused_by_driver(&self.name).unwrap_or(0);
        let more = now.saturating_sub(self.refused);
        self.refused = now;
        if more > 0 {
            tracing::warn!(
                "PM1427 {}: its driver did not take {more} packets that the kernel's part of this device sent in the last {} s: they \
                 are lost. Is the other end of a veth without an XDP program, or the link down? ethtool -S {0}",
                self.name,
                LOOK.as_secs()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_interface_is_not_taken_for_a_lost_one() {
        let mut watched = Watched {
            name: "e0".into(),
            first: Some(4),
            number: Some(4),
            refused: 0,
        };
        let mut says = |called: Option<&str>, now| {
            let said = watched.judge(called.map(str::to_owned), now);
            said.map(|text| text[..6].to_owned())
        };
        assert_eq!(says(Some("e0"), Some(4)), None);
        let renamed = Some("PM1429".to_owned());
        assert_eq!(says(Some("eth9"), None), renamed);
        assert_eq!(says(Some("eth9"), Some(4)), None);
        // Now another interface has the name.
        assert_eq!(says(Some("e0"), Some(7)), renamed);
        assert_eq!(says(None, None).as_deref(), Some("PM1425"));
        assert_eq!(says(None, None), None);
        assert_eq!(says(None, Some(8)).as_deref(), Some("PM1426"));
        assert_eq!(says(None, Some(8)), None);
        assert_eq!(says(Some("e0"), Some(4)), None);
    }
}
