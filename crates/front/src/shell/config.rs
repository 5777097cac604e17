//! Settings of the front, and the errors of its start.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pmnet_client::{Pulse, owner_of_port};
use pmnet_tls::ServerTls;

use crate::client::ReadFrom;
use crate::store::StoreAddressError;
use crate::table::AssumeError;
use crate::users::{Access, Secret};

/// Redis's default keepalive.
const KEEPALIVE: Duration = Duration::from_secs(300);

/// Configuration of a front.
#[derive(Clone, Debug)]
pub struct FrontConfig {
    /// Address on which the front listens for Redis clients.
    pub listen: SocketAddr,
    /// Maximum number of clients at a time. A further client gets an error and is closed.
    pub connections_max: usize,
    /// Microseconds of polling without sleeping after activity ([`pmnet_client::Spin`]).
    pub spin_micros: u64,
    /// Time that a command may take before its outcome is reported as unknown.
    pub call_timeout: Duration,
    /// Address of the store for pass-through connections; `None`: the server names it.
    pub direct: Option<String>,
    /// Password for `direct`. If the address has a password too, this password replaces it.
    pub direct_password: Option<Secret>,
    /// Further commands to acknowledge early (`--assume-ok`).
    pub assume_ok: Vec<String>,
    /// The sources that may answer reads.
    pub cache: Cache,
    /// The stores that answer reads which the head does not answer.
    pub read_from: ReadFrom,
    /// Bytes of replies that one client may leave unread. Above this bound, no further command is taken from the
    /// client. A client that then reads nothing for a second is closed.
    pub unread_max: usize,
    /// Bytes of replies that all clients together may leave unread. Above this bound, the front closes the client with
    /// the most unread bytes.
    pub unread_total_max: usize,
    /// The clients that may use the front, and their rights.
    pub access: Access,
    /// TLS settings for clients; `None`: no TLS.
    pub tls: Option<ServerTls>,
    /// Time of silence after which the operating system checks that a client is still connected (whole
    /// seconds); `None`: no check.
    pub keepalive: Option<Duration>,
    /// Signals that the event loop is running.
    pub pulse: Arc<Pulse>,
}

/// The sources that may answer commands that only read, apart from bypasses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// The head device answers with an update that the store may not have applied yet. If the head has no such update,
    /// the front reads from the store directly, provided that the store is as fresh as the head requires.
    #[default]
    Pending,
    /// As `Pending`. In addition, the head answers with updates that the store has applied, while the head's log keeps
    /// them. This setting is correct only if every program that writes uses pmnet.
    Log,
    /// Reads use neither the head nor direct connections: each read is a bypass, unless its pipeline has just set the
    /// key (reads.md §6).
    Off,
}

impl FrontConfig {
    /// Returns the default configuration with the address `listen`.
    #[must_use]
    pub fn new(listen: SocketAddr) -> FrontConfig {
        FrontConfig {
            listen,
            connections_max: 10_000,
            spin_micros: 50,
            call_timeout: Duration::from_secs(10),
            direct: None,
            direct_password: None,
            assume_ok: Vec::new(),
            cache: Cache::default(),
            read_from: ReadFrom::default(),
            unread_max: 1 << 30,
            unread_total_max: 2 << 30,
            access: Access::default(),
            tls: None,
            keepalive: Some(KEEPALIVE),
            pulse: Arc::default(),
        }
    }
}

/// Why the front cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// The front cannot listen on the address.
    #[error("cannot listen on {address}: {source}{hint}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
        /// Advice, or an empty text.
        hint: String,
    },
    /// A command of `--assume-ok` cannot be acknowledged early.
    #[error(transparent)]
    Assume(#[from] AssumeError),
    /// The address of the store is unusable.
    #[error("--direct: {0}")]
    Direct(StoreAddressError),
    /// The event loop cannot poll, or register a socket.
    #[error("event loop: {0}")]
    Loop(#[from] std::io::Error),
}

impl FrontError {
    /// Makes the error for an address on which the front cannot listen. The owner of the port is looked for now, because
    /// this process may have the port itself, and closes it when it ends with this error.
    pub(crate) fn listen(address: SocketAddr, source: std::io::Error) -> FrontError {
        FrontError::Listen {
            address,
            hint: hint(&source, &address),
            source,
        }
    }
}

fn hint(error: &std::io::Error, address: &SocketAddr) -> String {
    let fixed = match error.kind() {
        ErrorKind::AddrInUse => {
            return match owner_of_port("tcp", address.port()) {
                Some(owner) => format!("; {owner} listens there: stop it or choose another port"),
                None => {
                    "; no process was found that listens there: perhaps it has just ended. Start this process again, or choose another port".into()
                }
            };
        }
        ErrorKind::PermissionDenied => "; ports below 1024 need privileges: choose a higher one",
        ErrorKind::AddrNotAvailable => "; this machine does not have that address",
        _ => "",
    };
    fixed.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: the owner was looked for when the text was shown. If the port was that of this process, the
    /// port was closed by then, and the text said that its owner had ended.
    #[test]
    fn the_owner_of_a_port_is_found_although_it_is_this_process_and_ends() {
        let status = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = status.local_addr().unwrap();
        let error = FrontError::listen(address, ErrorKind::AddrInUse.into());
        drop(status);
        let text = error.to_string();
        let owner = format!("; process {} (", std::process::id());
        assert!(text.contains(&owner), "{text}");
    }

    #[test]
    fn a_port_without_a_visible_owner_gets_a_neutral_text() {
        let address = "127.0.0.1:1".parse().unwrap();
        let text = FrontError::listen(address, ErrorKind::AddrInUse.into()).to_string();
        assert!(text.contains("; no process was found"), "{text}");
    }
}
