//! Hosts that are named: a name may be unknown at the start, and may have another address later (a container that came back).
//!
//! The system's resolver may take seconds, so a thread of its own asks it. May not: be waited for by a loop that serves.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use pmnet_cli::{host_and_port, is_name, on_signals, resolve};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);
/// Time between looks before anything can begin.
const FIRST_LOOK: Duration = Duration::from_millis(250);
/// A condition that lasts is logged again after this time.
const PATIENCE: Duration = Duration::from_secs(30);

/// A host by its name, and a port there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub host: String,
    pub port: u16,
}

/// Returns this machine since its start, and the network namespace of this process: together they are like no others.
pub fn here() -> Option<(String, PathBuf)> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let network = std::fs::read_link("/proc/self/ns/net").ok()?;
    Some((boot.trim().to_owned(), network))
}

/// Returns the same as a text.
pub fn machine() -> Option<String> {
    let (boot, network) = here()?;
    Some(format!("{boot} {}", network.display()))
}

impl Named {
    /// Returns the name in `host:port`, if it is one and no address.
    pub fn of(text: &str) -> Option<Named> {
        let (host, port) = host_and_port("", text.trim()).ok()?;
        is_name(host).then(|| Named {
            host: host.to_owned(),
            port,
        })
    }

    /// Returns all of several with commas between them, if one of them is a name; addresses are their own names then.
    pub fn all(text: &str) -> Vec<Named> {
        let parts = || text.split(',').map(str::trim);
        if parts().all(|part| Named::of(part).is_none()) {
            return Vec::new();
        }
        let split = parts().filter_map(|part| host_and_port("", part).ok());
        split
            .map(|(host, port)| Named {
                host: host.to_owned(),
                port,
            })
            .collect()
    }

    /// Returns its addresses now.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        resolve(&self.host, self.port)
    }
}

/// Waits until every name among these (each `host:port`, or several with commas between them) is known, as long as that takes.
/// False: asked to stop meanwhile.
pub fn wait_until_known<'a>(
    flag: &str,
    texts: impl IntoIterator<Item = &'a str>,
) -> anyhow::Result<bool> {
    let stop = on_signals()?;
    let texts = texts.into_iter().flat_map(|text| text.split(','));
    for named in texts.filter_map(Named::of) {
        let mut said: Option<Instant> = None;
        while let Err(why) = named.addresses() {
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            if said.is_none_or(|at| at.elapsed() >= PATIENCE) {
                tracing::warn!(
                    "PM6005 {flag} {}: {why}: this process waits until it is",
                    named.host
                );
                said = Some(Instant::now());
            }
            std::thread::sleep(FIRST_LOOK);
        }
    }
    // A resolver may take its time, and know the name in the end.
    Ok(!stop.load(Ordering::Relaxed))
}

/// Looks where some hosts are, until it is dropped.
pub struct Watch {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Begins to look. `tell` gets all addresses of each at every look; a name that is unknown just now has those that it had.
    pub fn start(
        hosts: Vec<Named>,
        mut tell: impl FnMut(&[Vec<SocketAddr>]) + Send + 'static,
    ) -> anyhow::Result<Watch> {
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let look = move || {
            let mut found: Vec<Vec<SocketAddr>> = vec![Vec::new(); hosts.len()];
            let mut said: Option<Instant> = None;
            loop {
                std::thread::park_timeout(LOOK);
                if ends.load(Ordering::Acquire) {
                    return;
                }
                for (host, found) in hosts.iter().zip(&mut found) {
                    match host.addresses() {
                        Ok(now) => *found = now,
                        Err(why) if said.is_none_or(|at| at.elapsed() >= PATIENCE) => {
                            tracing::warn!(
                                "PM6006 {}: {why}. The address that it had is used on",
                                host.host
                            );
                            said = Some(Instant::now());
                        }
                        Err(_) => {}
                    }
                }
                tell(&found);
            }
        };
        let thread = std::thread::Builder::new().name("names".into()).spawn(look);
        Ok(Watch {
            over,
            thread: Some(thread.context("cannot start the thread that looks up names")?),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // A resolver that takes its time is left to the end of the process.
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
        }
    }
}
