//! The part that the libraries for other languages (`capi`, `python`) share. This crate opens clients and servers from
//! a caller's options, handles payloads and replies in the form that programs use (`docs/spec/wire.md` §6), and defines
//! the kinds of errors.
//!
//! Purpose: names, bounds, defaults and errors are the same in the libraries of all languages. Invariants: this crate
//! checks a caller's arguments before it begins anything. Each error has exactly one kind. Not allowed here: knowledge
//! of a language, decisions about the protocol.

mod fault;

pub use fault::{Fault, Kind};

use bytes::Bytes;
use pmnet_client::{ClientConfig, ReadAnswer, Refused, Session, SessionError};
use pmnet_keys::{Cluster, Front, KeyFileError};
use pmnet_server::program::Program;
use pmnet_server::serve::ServeConfig;
use pmnet_server::{RecordKey, ServerConfig};
use pmnet_udp::Family;
use pmnet_wire::{Payloads, program};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Once;
use std::time::Duration;
use tracing_subscriber::filter::LevelFilter;

/// Maximum number of devices in a chain.
const DEVICES_MAX: u32 = 8;
/// Maximum value of `batch_entries_max`.
const ENTRIES_MAX: u32 = 65_536;
/// Maximum value of `batch_bytes_max`.
const BYTES_MAX: u32 = 1 << 30;
/// Maximum number of characters of a server's refusal that an error shows.
const REFUSAL_MAX: usize = 300;

/// Options of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Addresses of the chain's devices, head first: `HOST:PORT`, with commas between them.
    pub devices: String,
    /// Number of the shard.
    pub shard: u32,
    /// Minimum number of devices that must hold an update, 1 to 8. If an acknowledgement states fewer devices, the
    /// session is closed.
    pub copies_min: u32,
    /// Longest time for one call.
    pub timeout: Duration,
    /// Maximum number of calls in flight.
    pub calls_max: u32,
    /// Path of the program's key file (`pmnet key front`). `None`: the program has no key, and then the devices must
    /// have no keys either.
    pub key_file: Option<PathBuf>,
}

impl ClientOptions {
    /// Default of `copies_min`.
    pub const COPIES_MIN: u32 = 1;
    /// Default of `timeout`.
    pub const TIMEOUT: Duration = Duration::from_secs(10);
    /// Default of `calls_max`.
    pub const CALLS_MAX: u32 = 4096;

    /// Opens the client's session. Does not wait for a device.
    ///
    /// # Errors
    /// [`Kind::Argument`] or [`Kind::System`].
    pub fn open(&self) -> Result<Session, Fault> {
        let hosts = self.devices.split(',').map(|host| addresses(host.trim()));
        let hosts = hosts.collect::<Result<Vec<_>, _>>()?;
        let differ = || Fault::argument("devices has addresses of IPv4 and of IPv6");
        let family = Family::common(&hosts).ok_or_else(differ)?;
        let mut devices = hosts.iter().filter_map(|host| family.first(host));
        let mut config = ClientConfig::new(devices.next().ok_or_else(differ)?);
        config.others = devices.collect();
        config.shard = self.shard;
        config.payloads = Payloads::PROGRAM;
        let copies_min = bounded("copies_min", self.copies_min, DEVICES_MAX)?;
        config.copies_min = u8::try_from(copies_min).expect("it is at most 8");
        config.queue_max = bounded("calls_max", self.calls_max, u32::MAX)?;
        if let Some(path) = &self.key_file {
            config.keys = Some(Front::read(path).map_err(unusable)?.key);
        }
        if self.timeout.is_zero() {
            return Err(Fault::argument("the timeout is 0: no call could end"));
        }
        Ok(Session::start(config, self.timeout)?)
    }
}

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// UDP address `HOST:PORT` of the server. The last device of the chain sends to this address.
    pub listen: String,
    /// Number of the shard.
    pub shard: u32,
    /// Maximum number of log entries in one batch.
    pub batch_entries_max: u32,
    /// Maximum number of bytes of payloads in one batch. A batch with a single entry may exceed this size.
    pub batch_bytes_max: u32,
    /// Path of the cluster's key file (`pmnet key new`). `None`: the server has no key, and then the devices must have
    /// no keys either.
    pub key_file: Option<PathBuf>,
}

impl ServerOptions {
    /// Default of `batch_entries_max`.
    pub const BATCH_ENTRIES_MAX: u32 = 1024;
    /// Default of `batch_bytes_max`.
    pub const BATCH_BYTES_MAX: u32 = 4 << 20;

    /// Returns the configuration for [`Stored::open`].
    ///
    /// # Errors
    /// [`Kind::Argument`] if an option is invalid.
    pub fn config(&self) -> Result<ServeConfig, Fault> {
        let mut server = ServerConfig::new(self.shard);
        server.batch_entries_max =
            bounded("batch_entries_max", self.batch_entries_max, ENTRIES_MAX)?;
        server.batch_bytes_max = bounded("batch_bytes_max", self.batch_bytes_max, BYTES_MAX)?;
        if let Some(path) = &self.key_file {
            server.keys = Some(Cluster::read(path).map_err(unusable)?.keys());
        }
        Ok(ServeConfig::new(addresses(&self.listen)?[0], server))
    }
}

/// The rows that a program has stored, in one of two forms.
#[derive(Clone, Debug)]
pub enum Stored {
    /// Each row as a separate value. Before the first batch there are no rows.
    Rows(Vec<(RecordKey, Bytes)>),
    /// All rows packed into one blob.
    Watermark(Bytes),
}

impl Stored {
    /// Returns the error for a caller that passes both rows and a watermark.
    #[must_use]
    pub fn twice() -> Fault {
        Fault::argument("there are rows and a watermark: hand over one of them")
    }

    /// Opens the program's server, and starts its thread.
    ///
    /// # Errors
    /// [`Kind::Rows`], [`Kind::Shard`] or [`Kind::System`].
    pub fn open(self, config: ServeConfig) -> Result<Program, Fault> {
        let opened = match self {
            Stored::Rows(rows) => Program::open(config, rows),
            Stored::Watermark(watermark) => Program::open_blob(config, &watermark),
        };
        Ok(opened?)
    }
}

/// Converts the error of a key file that cannot be used. The kind of the result is [`Kind::Argument`].
fn unusable(error: KeyFileError) -> Fault {
    Fault::argument(error.to_string())
}

fn bounded(what: &str, value: u32, max: u32) -> Result<usize, Fault> {
    match value {
        0 => Err(Fault::argument(format!("{what} is 0: at least 1"))),
        value if value <= max => Ok(value as usize),
        value => Err(Fault::argument(format!("{what} is {value}: at most {max}"))),
    }
}

/// Resolves `HOST:PORT`. Returns at least one address, IPv4 addresses first.
fn addresses(text: &str) -> Result<Vec<SocketAddr>, Fault> {
    let found = pmnet_udp::addresses(text);
    let found = found.map_err(|error| Fault::argument(format!("{text:?}: {error}")))?;
    if found.is_empty() {
        return Err(Fault::argument(format!("{text:?} has no address")));
    }
    Ok(found)
}

/// Returns the payload that carries a program's request.
///
/// # Errors
/// [`Kind::Length`] if the request is too long.
pub fn payload(bytes: &[u8]) -> Result<Bytes, Fault> {
    if bytes.len() > pmnet_wire::MESSAGE_BYTES_MAX {
        return Err(Fault::new(Kind::Length, Refused::TooLarge));
    }
    Ok(program::payload(bytes).into())
}

/// Returns the hash of a key. Without a key (a request about several keys), the hash is 0.
#[must_use]
pub fn key_hash(key: Option<&[u8]>) -> u64 {
    key.map_or(0, pmnet_wire::command::key_hash)
}

/// Returns the part of a reply that the server's program made.
///
/// # Errors
/// [`Kind::Refused`]: the program's server refused the request, or a store of another kind did.
pub fn reply(reply: &[u8]) -> Result<&[u8], Fault> {
    program::reply_body(reply).ok_or_else(|| {
        let text = String::from_utf8_lossy(reply);
        let text = text.trim_end().trim_start_matches('-');
        let cut = text.char_indices().nth(REFUSAL_MAX);
        let cut = cut.map_or(text.len(), |(at, _)| at);
        let text = format!("the server refused the request: {}", &text[..cut]);
        Fault::new(Kind::Refused, text)
    })
}

/// A device's answer to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading<'a> {
    /// The newest update of the key; `None`: the device does not know it.
    pub payload: Option<&'a [u8]>,
    /// The epoch of the device's chain.
    pub epoch: u32,
    /// The order of the newest update. If there is none: the order up to which a server must have applied the log to
    /// know the key.
    pub order: u64,
}

impl<'a> Reading<'a> {
    /// Converts an answer.
    ///
    /// # Errors
    /// [`Kind::NoAnswer`] if no device answered.
    pub fn of(answer: &'a ReadAnswer) -> Result<Reading<'a>, Fault> {
        let (payload, epoch, order) = match answer {
            ReadAnswer::Hit {
                epoch,
                order,
                payload,
                // A payload that does not come from a program cannot be used, so the answer counts as a MISS (reads.md
                // §2).
            } => (program::body(payload), *epoch, *order),
            ReadAnswer::Miss { epoch, need, .. } => (None, *epoch, *need),
            ReadAnswer::None => return Err(SessionError::NoAnswer.into()),
        };
        Ok(Reading {
            payload,
            epoch,
            order,
        })
    }
}

/// From now on, writes warnings of the loops to this writer, one warning a line. No function returns these warnings.
/// Each language's library has a subscriber of its own, even if the process has others.
pub fn warnings_to<W: Write + 'static>(writer: fn() -> W) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let lines = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::WARN)
            .with_ansi(false)
            .with_target(false)
            .with_writer(writer);
        // A static library may be part of a program that already has a subscriber.
        let _ = lines.try_init();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(devices: &str) -> ClientOptions {
        ClientOptions {
            devices: devices.into(),
            shard: 0,
            copies_min: ClientOptions::COPIES_MIN,
            timeout: ClientOptions::TIMEOUT,
            calls_max: ClientOptions::CALLS_MAX,
            key_file: None,
        }
    }

    fn refusal(options: &ClientOptions) -> String {
        let fault = options.open().unwrap_err();
        assert_eq!(fault.kind, Kind::Argument);
        fault.text
    }

    #[test]
    fn options_out_of_bounds_are_refused_before_anything_begins() {
        for devices in [
            "",
            "nowhere",
            "127.0.0.1",
            "127.0.0.1:1,",
            "127.0.0.1:70000",
        ] {
            refusal(&client(devices));
        }
        let mixed = refusal(&client("127.0.0.1:1, [::1]:2"));
        assert!(mixed.contains("IPv6"), "{mixed}");
        let good = client("127.0.0.1:1, 127.0.0.1:2");
        good.open().unwrap();
        for copies_min in [0, 9, 256] {
            refusal(&ClientOptions {
                copies_min,
                ..good.clone()
            });
        }
        refusal(&ClientOptions {
            timeout: Duration::ZERO,
            ..good.clone()
        });
        refusal(&ClientOptions {
            calls_max: 0,
            ..good.clone()
        });
        let keyless = refusal(&ClientOptions {
            key_file: Some("/none/such".into()),
            ..good
        });
        assert!(keyless.contains("key file /none/such"), "{keyless}");
        for (batch_entries_max, batch_bytes_max, is_good) in [
            (1, 1, true),
            (65_536, 1 << 30, true),
            (0, 1, false),
            (65_537, 1, false),
            (1, (1 << 30) + 1, false),
        ] {
            let options = ServerOptions {
                listen: "127.0.0.1:0".into(),
                shard: 0,
                batch_entries_max,
                batch_bytes_max,
                key_file: None,
            };
            assert_eq!(options.config().is_ok(), is_good, "{options:?}");
        }
    }

    #[test]
    fn payloads_have_a_bound_and_refusals_are_cut() {
        let longest = vec![1; pmnet_wire::MESSAGE_BYTES_MAX];
        assert_eq!(program::body(&payload(&longest).unwrap()).unwrap(), longest);
        let longer = vec![1; longest.len() + 1];
        assert_eq!(payload(&longer).unwrap_err().kind, Kind::Length);
        assert_eq!(reply(&[program::REPLY_MARK, 7]).unwrap(), [7]);
        let long = format!("-ERR {}\r\n", "ü".repeat(1000));
        let refused = reply(long.as_bytes()).unwrap_err();
        assert_eq!(refused.kind, Kind::Refused);
        assert!(
            refused
                .text
                .starts_with("the server refused the request: ERR ü")
        );
        assert!(refused.text.chars().count() < 400);
    }
}
