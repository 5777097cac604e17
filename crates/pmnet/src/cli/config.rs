//! The configuration file: one TOML file with a section for each role. Flags win over it.
//!
//! ```toml
//! [server]
//! listen = "127.0.0.1:51500"
//! store = "redis://127.0.0.1:6379"
//!
//! [device]
//! listen = "127.0.0.1:51000"
//! next = "127.0.0.1:51500"
//! log = "/var/lib/pmnet/device.log"
//! media = "file"
//!
//! [redis]
//! listen = "127.0.0.1:6380"
//! via = "127.0.0.1:51000"
//! ```
//!
//! The keys are the long flags without the dashes in front; an unknown key is an error.

use std::io::Read;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;

use super::device::DeviceArgs;
use super::redis::RedisArgs;
use super::server::ServerArgs;

/// Largest configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The command line or the configuration is wrong; the sentence says how.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// What every role has besides its own settings.
#[derive(Debug, Args)]
pub struct CommonArgs {
    /// Take what is not given here from this TOML file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The ready line on stdout as JSON.
    #[arg(long)]
    pub json: bool,
}

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileConfig {
    pub device: DeviceArgs,
    pub server: ServerArgs,
    pub redis: RedisArgs,
}

impl CommonArgs {
    /// Reads the file, if one was named.
    pub fn file(&self) -> Result<FileConfig, ConfigError> {
        self.config
            .as_deref()
            .map_or_else(|| Ok(FileConfig::default()), read)
    }
}

fn read(path: &Path) -> Result<FileConfig, ConfigError> {
    let place = path.display();
    let bad = |what: &dyn std::fmt::Display| ConfigError(format!("configuration {place}: {what}"));
    let file = std::fs::File::open(path).map_err(|error| bad(&error))?;
    let mut text = String::new();
    // Not what it says of its length: it may be a pipe, or a device without an end.
    file.take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| bad(&error))?;
    if u64::try_from(text.len()).is_ok_and(|length| length > FILE_BYTES_MAX) {
        return Err(bad(&format!("more than {FILE_BYTES_MAX} bytes")));
    }
    parse(&text).map_err(|error| bad(&error))
}

fn parse(text: &str) -> Result<FileConfig, toml::de::Error> {
    toml::from_str(text)
}

/// Whether the text is a configuration file: every key known, every value of its kind. Nothing is
/// resolved or opened.
///
/// # Errors
/// [`ConfigError`], with the place in the text.
pub fn check_file(text: &str) -> Result<(), ConfigError> {
    parse(text)
        .map(|_| ())
        .map_err(|error| ConfigError(error.to_string()))
}

/// Resolves `host:port`.
///
/// # Errors
/// It is not one, or the name is unknown.
pub fn address(flag: &str, text: &str) -> Result<SocketAddr, ConfigError> {
    text.to_socket_addrs()
        .map_err(|error| ConfigError(format!("{flag} {text}: {error}; host:port is needed")))?
        .next()
        .ok_or_else(|| ConfigError(format!("{flag} {text}: the name has no address")))
}

/// The value, or a sentence that says what is missing and how to give it.
pub fn required<T>(flag: &str, section: &str, value: Option<T>) -> Result<T, ConfigError> {
    value.ok_or_else(|| {
        let key = flag.trim_start_matches('-');
        ConfigError(format!(
            "{flag} is missing: give it, or {key} = … in section [{section}] of --config"
        ))
    })
}

/// A UDP address of the protocol; a port outside the reserved range is allowed, with a warning.
pub fn udp_address(flag: &str, text: &str) -> Result<SocketAddr, ConfigError> {
    let address = address(flag, text)?;
    let (first, last) = (pmnet_wire::PORT_FIRST, pmnet_wire::PORT_LAST);
    if !(first..=last).contains(&address.port()) {
        tracing::warn!(
            "{flag} {address}: the reserved ports are {first} to {last}; devices in the kernel or \
             in a switch will pass others on unseen"
        );
    }
    Ok(address)
}

/// A number of bytes: `4096`, `64K`, `64M`, `2G` (powers of 1024).
///
/// # Errors
/// It is not one, or is zero or beyond 64 bits.
pub fn bytes(flag: &str, text: &str) -> Result<u64, ConfigError> {
    let (digits, unit) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1_u64),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| {
            ConfigError(format!(
                "{flag} {text}: a size such as 4096, 64K, 64M or 2G is needed"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes("--x", "4096").unwrap(), 4096);
        assert_eq!(bytes("--x", "64M").unwrap(), 64 << 20);
        assert_eq!(bytes("--x", "2g").unwrap(), 2 << 30);
        for bad in ["", "M", "0", "-1", "1T", "99999999999G", "1.5M"] {
            assert!(bytes("--x", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_documented_file_is_understood_and_an_unknown_key_is_not() {
        let text: String = include_str!("config.rs")
            .lines()
            .skip_while(|line| !line.contains("```toml"))
            .skip(1)
            .take_while(|line| !line.contains("```"))
            .map(|line| format!("{}\n", line.trim_start_matches("//!").trim()))
            .collect();
        assert!(text.contains("[device]"));
        toml::from_str::<FileConfig>(&text).unwrap();
        for bad in [
            "[device]\nlisten_on = 1",
            "[devise]\n",
            "[server]\nlisten = 5",
        ] {
            assert!(toml::from_str::<FileConfig>(bad).is_err(), "{bad}");
        }
    }
}
