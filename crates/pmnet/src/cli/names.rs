//! Hosts that are given by name. A name may be unknown at the start, and its address may change later (for example,
//! after a restart of a container).
//!
//! The system's resolver may need seconds, so a thread of its own calls it. No loop that serves may wait for this
//! thread.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use pmnet_cli::{host_and_port, is_name, on_signals, resolve};

/// Interval at which the resolver is asked.
const LOOK: Duration = Duration::from_secs(2);
/// Interval at which the resolver is asked while the process waits for a name at its start.
const FIRST_LOOK: Duration = Duration::from_millis(250);
/// Time after which a message about a lasting state is logged again.
const PATIENCE: Duration = Duration::from_secs(30);

/// The name of a host, with a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub host: String,
    pub port: u16,
}

/// Returns the id of this machine's boot, and the network namespace of this process. The pair is unique: another boot
/// or another namespace has another pair.
pub fn here() -> Option<(String, PathBuf)> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let network = std::fs::read_link("/proc/self/ns/net").ok()?;
    Some((boot.trim().to_owned(), network))
}

/// Returns both values of [`here`] in one text.
pub fn machine() -> Option<String> {
    let (boot, network) = here()?;
    Some(format!("{boot} {}", network.display()))
}

impl Named {
    /// Returns the host and the port in `host:port`, if the host is a name; `None` if it is an address.
    pub fn of(text: &str) -> Option<Named> {
        let (host, port) = host_and_port("", text.trim()).ok()?;
        is_name(host).then(|| Named {
            host: host.to_owned(),
            port,
        })
    }

    /// Returns all hosts of a list with commas if at least one host is a name. If there is a name, addresses in the
    /// list are treated as names too. Without a name, the result is empty.
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

    /// Returns the present addresses of the host.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        resolve(&self.host, self.port)
    }
}

/// Waits without a time limit until every name in `texts` has an address. Each text is `host:port`, or a list of such
/// pairs with commas. Returns false if the process was asked to stop.
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
    // The stop may have been requested during the last call of the resolver.
    Ok(!stop.load(Ordering::Relaxed))
}

/// A thread that resolves the names of hosts at intervals, until this value is dropped.
pub struct Watch {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the thread. After each look-up, the thread calls `tell` with all addresses of each host. If a name cannot
    /// be resolved, `tell` gets its previous addresses.
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
        // The drop does not wait for the thread, because a look-up in progress may take long.
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
        }
    }
}
