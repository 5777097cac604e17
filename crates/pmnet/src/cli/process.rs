//! Parts of a process that exist only once, even if the process has several roles: signals, the status port, the ready
//! line, and the files that are read again at SIGHUP.
//!
//! Each role is a [`Part`] of its process. A process with one role has one part; `pmnet run` has several.

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use pmnet_cli::{ConfigError, call_on_signals, on_reload, reload_on_hangup};
use pmnet_client::Stop;
use pmnet_fleet::StatusRecord;
use pmnet_status::Source;
use serde_json::Value;

use super::ready::Line;
use super::reload::{Again, Commit, File, Section};
use super::service;
use crate::status::Status;

/// A function that ends a part of the process, and is called once.
type End = Box<dyn FnOnce() + Send>;

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that serves.
pub struct Process {
    status: Status,
    line: Line,
    file: Option<File>,
}

impl Process {
    /// Opens the status port if `status` gives an address, and handles SIGHUP from now on. `file`: the configuration
    /// file, which is read again at each SIGHUP.
    ///
    /// # Errors
    /// The address is wrong, or the system cannot start a thread.
    pub fn open(
        role: &'static str,
        status: Option<&str>,
        line: Line,
        file: Option<&Path>,
    ) -> anyhow::Result<Process> {
        reload_on_hangup(service::told)?;
        let file = file.map(File::on_hangup);
        let status = Status::open(role, status)?;
        Ok(Process { status, line, file })
    }

    /// Returns the configuration file of the process, if it has one.
    pub const fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Returns the part of a process that has only one. The part ends at the first signal.
    ///
    /// # Errors
    /// The kernel refuses to install a signal handler.
    pub fn alone(&self) -> anyhow::Result<Part<'_>> {
        let part = self.part(None);
        let ending = Arc::clone(&part.ending);
        call_on_signals(move || ending.end())?;
        Ok(part)
    }

    /// Returns a new part of a process that has several. `section`: the name that distinguishes the part.
    pub fn part(&self, section: Option<String>) -> Part<'_> {
        Part {
            process: self,
            section,
            ending: Arc::default(),
        }
    }
}

/// The end of a part: the functions that its end must call, or the fact that the end has begun.
#[derive(Default)]
pub struct Ending(Mutex<Ends>);

enum Ends {
    Will(Vec<End>),
    Has,
}

impl Default for Ends {
    fn default() -> Ends {
        Ends::Will(Vec::new())
    }
}

impl Ending {
    /// Begins the end of the part. Further calls have no effect.
    pub fn end(&self) {
        let ends = std::mem::replace(&mut *lock(&self.0), Ends::Has);
        if let Ends::Will(all) = ends {
            all.into_iter().for_each(|end| end());
        }
    }

    /// Calls `end` when the part's end begins. If the end has already begun, calls `end` at once.
    fn on_end(&self, end: End) {
        match &mut *lock(&self.0) {
            Ends::Will(all) => return all.push(end),
            Ends::Has => {}
        }
        end();
    }
}

/// A role, as one part of its process.
pub struct Part<'a> {
    process: &'a Process,
    section: Option<String>,
    ending: Arc<Ending>,
}

impl Part<'_> {
    /// Returns a handle with which a thread can begin the end of the part.
    pub fn ending(&self) -> Arc<Ending> {
        Arc::clone(&self.ending)
    }

    /// Returns a stop that is triggered when the part is asked to end.
    ///
    /// # Errors
    /// The system has no sockets left.
    pub fn stop(&self) -> anyhow::Result<Stop> {
        let (stop, trigger) = Stop::new().context("cannot catch signals")?;
        self.on_end(move || trigger.stop());
        Ok(stop)
    }

    /// Calls `end` when the part is asked to end. If the part was already asked to end, calls `end` at once.
    pub fn on_end(&self, end: impl FnOnce() + Send + 'static) {
        self.ending.on_end(Box::new(end));
    }

    /// Adds a function that is called at each SIGHUP, and reads something again ([`on_reload`]).
    pub fn on_reload(&self, name: &str, again: impl Fn() -> Result<(), String> + Send + 'static) {
        match &self.section {
            None => on_reload(name, again),
            Some(section) => on_reload(&format!("{name} of [{section}]"), again),
        }
    }

    /// If the part's settings are in a file, reads them again at each SIGHUP. `take` checks the new settings, and
    /// returns a function that applies them.
    pub fn on_new_settings<A: Section>(
        &self,
        in_use: &A,
        again: Again<A>,
        take: impl Fn(A) -> Result<Commit, ConfigError> + Send + 'static,
    ) {
        if let Some(file) = &self.process.file {
            let name = self.section.as_deref().unwrap_or(A::NAME);
            file.add_section(name, in_use.clone(), again, take);
        }
    }

    /// Shows a loop at the status port, if the process has one.
    pub fn show(&self, source: Arc<dyn Source>) {
        self.process.status.show(self.section.clone(), source);
    }

    /// Returns the address of the status port for this part's record in etcd. `own`: the address at which other
    /// machines reach the process.
    pub fn status_record(&self, own: IpAddr) -> Option<StatusRecord> {
        self.process.status.record(own)
    }

    /// Returns whether the process has a status port.
    pub const fn is_shown(&self) -> bool {
        self.process.status.is_open()
    }

    /// Adds to the ready line that this role serves.
    pub fn announce(&self, role: &str, fields: &[(&str, Value)]) {
        self.process
            .line
            .serves(self.section.as_deref().unwrap_or(role), role, fields);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn an_end_is_called_once_and_also_by_a_part_that_asks_too_late() {
        let calls = Arc::new(AtomicU32::new(0));
        let count = || {
            let calls = Arc::clone(&calls);
            Box::new(move || {
                calls.fetch_add(1, Ordering::Relaxed);
            })
        };
        let ending = Ending::default();
        ending.on_end(count());
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        ending.end();
        ending.end();
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        ending.on_end(count());
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }
}
