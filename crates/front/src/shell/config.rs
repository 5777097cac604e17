//! Settings of the front, and why it may not start.

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

/// Redis's default.
const KEEPALIVE: Duration = Duration::from_secs(300);

/// How the front is set up.
#[derive(Clone, Debug)]
pub struct FrontConfig {
    /// Where to listen for Redis clients.
    pub listen: SocketAddr,
    /// Most clients at a time; one more is told so and closed.
    pub connections_max: usize,
    /// Microseconds to poll without sleeping after activity ([`pmnet_client::Spin`]).
    pub spin_micros: u64,
    /// How long a command may take before its outcome is reported as unknown.
    pub call_timeout: Duration,
    /// Address of the store for pass-through connections; `None`: the server is asked.
    pub direct: Option<String>,
    /// The password that belongs to it, in place of one that it names.
    pub direct_password: Option<Secret>,
    /// More commands to acknowledge early (`--assume-ok`).
    pub assume_ok: Vec<String>,
    /// Who answers reads.
    pub cache: Cache,
    /// From which stores reads are answered that the head does not answer.
    pub read_from: ReadFrom,
    /// Bytes of replies that one client may leave unread. Above it no further command is taken; who then reads nothing
    /// for a second is refused.
    pub unread_max: usize,
    /// The same of all clients together; the one with most is refused.
    pub unread_total_max: usize,
    /// Who may use it.
    pub access: Access,
    /// With what clients speak TLS; `None`: they do not.
    pub tls: Option<ServerTls>,
    /// After how much silence the operating system checks that a client is still there (whole seconds); `None`: it does not.
    pub keepalive: Option<Duration>,
    /// Sign that the loop lives.
    pub pulse: Arc<Pulse>,
}

/// Who answers commands that only read, beside a bypass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// The head device, with an update that the store may not have yet; else the store, read directly if it is as fresh as the
    /// head says that it must be.
    #[default]
    Pending,
    /// The same, and the head also shows what the store has, as long as its log keeps it: right only if every program that
    /// writes goes through pmnet.
    Log,
    /// None: each read is a bypass, unless its pipeline has just set what it asks for (reads.md §6).
    Off,
}

impl FrontConfig {
    /// The defaults, listening at `listen`.
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

/// Why the front cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}{}", hint(.source, .address))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// A command that cannot be assumed to succeed.
    #[error(transparent)]
    Assume(#[from] AssumeError),
    /// The address of the store is of no use.
    #[error("--direct: {0}")]
    Direct(StoreAddressError),
    /// Polling or registering failed.
    #[error("event loop: {0}")]
    Loop(#[from] std::io::Error),
}

fn hint(error: &std::io::Error, address: &SocketAddr) -> String {
    let fixed = match error.kind() {
        ErrorKind::AddrInUse => {
            return match owner_of_port("tcp", address.port()) {
                Some(owner) => format!("; {owner} listens there: stop it or choose another port"),
                None => {
                    "; the process that had it has ended, and its old connections may hold the port for a minute: start this process again after that".into()
                }
            };
        }
        ErrorKind::PermissionDenied => "; ports below 1024 need privileges: choose a higher one",
        ErrorKind::AddrNotAvailable => "; this machine does not have that address",
        _ => "",
    };
    fixed.to_owned()
}
