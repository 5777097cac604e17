//! Settings of the front, and why it may not start.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pmnet_client::{Pulse, owner_of_port};

/// How the front is set up.
#[derive(Clone, Debug)]
pub struct FrontConfig {
    /// Where to listen for clients over TCP.
    pub listen: SocketAddr,
    /// Where to receive requests over UDP; `None`: nowhere.
    pub udp: Option<SocketAddr>,
    /// Most clients at a time; one more is told so and closed.
    pub connections_max: usize,
    /// Microseconds to poll without sleeping after activity ([`pmnet_client::Spin`]).
    pub spin_micros: u64,
    /// How long a command may take before its outcome is reported as unknown.
    pub call_timeout: Duration,
    /// Database of the items.
    pub database: u32,
    /// Largest item in bytes, as memcached counts it ([`crate::request::item_bytes`]).
    pub item_max: u64,
    /// A number by which the uniques of this front differ from those of others.
    pub id: u64,
    /// After how much silence the operating system checks that a client is still there; `None`: it does not.
    pub keepalive: Option<Duration>,
    /// Sign that the loop lives.
    pub pulse: Arc<Pulse>,
}

/// Limits that can be others while the front runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For clients that connect later.
    pub connections_max: usize,
    /// For calls that are made later.
    pub call_timeout: Duration,
    /// Of connections that are accepted later.
    pub keepalive: Option<Duration>,
}

impl FrontConfig {
    /// Returns the limits that can be changed later.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            connections_max: self.connections_max,
            call_timeout: self.call_timeout,
            keepalive: self.keepalive,
        }
    }

    /// The defaults, listening at `listen`.
    #[must_use]
    pub fn new(listen: SocketAddr) -> FrontConfig {
        FrontConfig {
            listen,
            udp: None,
            connections_max: 1024,
            spin_micros: 50,
            call_timeout: Duration::from_secs(10),
            database: 0,
            item_max: 1 << 20,
            id: 0,
            keepalive: Some(Duration::from_secs(300)),
            pulse: Arc::default(),
        }
    }
}

/// Why the front cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address} ({protocol}): {source}{}", hint(.source, .protocol, .address))]
    Listen {
        /// TCP or UDP.
        protocol: &'static str,
        /// The address.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Polling or registering failed.
    #[error("event loop: {0}")]
    Loop(#[from] io::Error),
}

fn hint(error: &io::Error, protocol: &str, address: &SocketAddr) -> String {
    let owner = || owner_of_port(protocol, address.port());
    match error.kind() {
        io::ErrorKind::AddrInUse => owner().map_or_else(String::new, |owner| {
            format!("; {owner} listens there: stop it or choose another port")
        }),
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need privileges: choose a higher one".into()
        }
        io::ErrorKind::AddrNotAvailable => "; this machine does not have that address".into(),
        _ => String::new(),
    }
}
