//! Settings of the front, and the errors of its start.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pmnet_client::{Pulse, owner_of_port};

/// Configuration of a front.
#[derive(Clone, Debug)]
pub struct FrontConfig {
    /// Address on which the front listens for TCP clients.
    pub listen: SocketAddr,
    /// Address at which the front receives UDP requests; `None`: no UDP.
    pub udp: Option<SocketAddr>,
    /// Maximum number of clients at a time. A further client gets an error and is closed.
    pub connections_max: usize,
    /// Microseconds of polling without sleeping after activity ([`pmnet_client::Spin`]).
    pub spin_micros: u64,
    /// Time that a command may take before its outcome is reported as unknown.
    pub call_timeout: Duration,
    /// Number of the database that has the items.
    pub database: u32,
    /// Largest item in bytes, as memcached counts it ([`crate::request::item_bytes`]).
    pub item_max: u64,
    /// A number that makes the uniques of this front differ from those of other fronts.
    pub id: u64,
    /// Time of silence after which the operating system checks that a client is still connected; `None`: no
    /// check.
    pub keepalive: Option<Duration>,
    /// Signals that the event loop is running.
    pub pulse: Arc<Pulse>,
}

/// Limits that can be changed while the front runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of clients at a time. A new value applies to clients that connect later.
    pub connections_max: usize,
    /// Time that a command may take. A new value applies to calls that are submitted later.
    pub call_timeout: Duration,
    /// Time of silence after which the operating system checks a client; `None`: no check. A new value applies to
    /// connections that are accepted later.
    pub keepalive: Option<Duration>,
}

impl FrontConfig {
    /// Returns the limits that can be changed while the front runs.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            connections_max: self.connections_max,
            call_timeout: self.call_timeout,
            keepalive: self.keepalive,
        }
    }

    /// Returns the default configuration with the address `listen`.
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

/// Why the front cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// The front cannot use the address.
    #[error("cannot listen on {address} ({protocol}): {source}{hint}")]
    Listen {
        /// The protocol: "TCP" or "UDP".
        protocol: &'static str,
        /// The address.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
        /// Advice, or an empty text.
        hint: String,
    },
    /// The event loop cannot poll, or register a socket.
    #[error("event loop: {0}")]
    Loop(#[from] io::Error),
}

impl FrontError {
    /// Makes the error for an address that the front cannot use. The owner of the port is looked for now, because this
    /// process may have the port itself, and closes it when it ends with this error.
    pub(crate) fn listen(
        protocol: &'static str,
        address: SocketAddr,
        source: io::Error,
    ) -> FrontError {
        FrontError::Listen {
            protocol,
            address,
            hint: hint(&source, protocol, &address),
            source,
        }
    }
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
