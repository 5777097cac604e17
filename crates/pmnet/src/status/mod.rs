//! The view of each role at its status port: which numbers of its loop are which metrics, when it is ready, and more facts about it.
//!
//! May not: serve HTTP (`pmnet_status` does), or do more in a loop than to copy numbers.

mod controller;
mod device;
mod front;
mod kernel;
mod lag;
mod memcached;
mod page;
mod server;
mod verbs;
mod waiting;

pub(crate) use controller::{ControllerBoard, ControllerNumbers};
pub(crate) use device::{Beside, DeviceBoard, DeviceWriter};
pub(crate) use front::FrontBoard;
pub(crate) use memcached::MemcachedBoard;
pub use page::page;
pub(crate) use server::{ServerBoard, ServerWriter};
pub(crate) use verbs::VerbsBoard;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Context;
use pmnet_cli::{ConfigError, address};
use pmnet_status::{
    About, Histogram, Look, Metric, Place, Sample, Shown, Source, StatusPort, Value,
};

use crate::cli::service;

/// Commit that this program was built from, or `unknown`.
pub(crate) const COMMIT: &str = env!("PMNET_COMMIT");

/// Longest path of a unix socket, in bytes.
const UNIX_PATH_MAX: usize = 107;

/// Reads an address of the port: HOST:PORT, or unix:PATH.
pub(crate) fn place(flag: &str, text: &str) -> Result<Place, ConfigError> {
    let Some(path) = text.strip_prefix("unix:") else {
        return address(flag, text).map(Place::Tcp);
    };
    if !path.starts_with('/') || path.len() > UNIX_PATH_MAX {
        return Err(ConfigError(format!(
            "{flag} {text}: after unix: write an absolute path of at most {UNIX_PATH_MAX} bytes"
        )));
    }
    Ok(Place::Unix(path.into()))
}

/// Reads `--status`.
pub(crate) fn at(text: Option<&str>) -> Result<Option<Place>, ConfigError> {
    text.map(|text| place("--status", text)).transpose()
}

/// Locks what a loop and the status port's thread share. No panic leaves it half changed.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a sample of times that were recorded in nanoseconds, with bounds from 2^10 ns (1 µs) to 2^34 ns (17 s).
fn seconds(metric: Metric, times: &Histogram) -> Sample {
    Sample::new(metric, Value::Histogram(times.read(1e9, 10, 34)))
}

/// A loop of a process that has loops of several roles: its labels alone do not tell it from the others.
#[derive(Debug)]
struct InSection {
    section: String,
    source: Arc<dyn Source>,
}

impl Source for InSection {
    fn labels(&self) -> Vec<(&'static str, String)> {
        let mut labels = vec![("section", self.section.clone())];
        labels.extend(self.source.labels());
        labels
    }

    fn pulse(&self) -> u64 {
        self.source.pulse()
    }

    fn tick(&self, now: Instant) {
        self.source.tick(now);
    }

    fn look(&self, now: Instant) -> Look {
        self.source.look(now)
    }
}

/// The status port of this process; closed when dropped.
pub(crate) struct Status {
    shown: Shown,
    port: Option<StatusPort>,
}

impl Status {
    /// Opens the port, if `text` gives an address.
    pub(crate) fn open(role: &'static str, text: Option<&str>) -> anyhow::Result<Status> {
        let shown = Shown::default();
        let about = About {
            role,
            version: env!("CARGO_PKG_VERSION"),
            commit: COMMIT,
        };
        let port = at(text)?.map(|place| StatusPort::open(place, about, shown.clone()));
        let port = port
            .transpose()
            .context("cannot start the thread of the status port")?;
        if let Some(place) = port.as_ref().and_then(StatusPort::place) {
            tracing::info!(at = %place, "the status port is open");
        }
        service::watch(&shown)?;
        Ok(Status { shown, port })
    }

    /// Shows one more loop. `section`: its name, in a process with loops of several roles.
    pub(crate) fn show(&self, section: Option<String>, source: Arc<dyn Source>) {
        self.shown.add(match section {
            None => source,
            Some(section) => Arc::new(InSection { section, source }),
        });
    }

    /// Returns whether there is a port.
    pub(crate) const fn is_open(&self) -> bool {
        self.port.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_addresses_or_paths() {
        assert_eq!(
            place("--at", "127.0.0.1:9464").ok(),
            Some(Place::Tcp("127.0.0.1:9464".parse().unwrap()))
        );
        assert_eq!(
            place("--at", "unix:/run/a.sock").ok(),
            Some(Place::Unix("/run/a.sock".into()))
        );
        for wrong in [
            "9464",
            "unix:a.sock",
            "unix:",
            &format!("unix:/{}", "a".repeat(107)),
        ] {
            let error = place("--status", wrong).err().map(|error| error.0).unwrap();
            assert!(error.contains("--status"), "{error}");
        }
    }
}
