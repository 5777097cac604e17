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
//! log = "/var/lib/pmnet/device.pmlog"
//! media = "file"
//!
//! [redis]
//! listen = "127.0.0.1:6380"
//! via = "127.0.0.1:51000"
//!
//! [memcached]
//! listen = "127.0.0.1:11211"
//! via = "127.0.0.1:51000"
//! ```
//!
//! The keys are the long flags without the dashes in front; an unknown key is an error.

use std::fmt::Display;
use std::path::Path;

use pmnet_cli::{ConfigError, bounded_text};
use serde::Deserialize;

use super::device::DeviceArgs;
use super::memcached::MemcachedArgs;
use super::redis::RedisArgs;
use super::server::ServerArgs;

/// Largest configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileConfig {
    pub device: DeviceArgs,
    pub server: ServerArgs,
    pub redis: RedisArgs,
    pub memcached: MemcachedArgs,
}

/// Reads the file; without a path nothing is set.
pub fn read(path: Option<&Path>) -> Result<FileConfig, ConfigError> {
    path.map_or_else(|| Ok(FileConfig::default()), read_file)
}

fn read_file(path: &Path) -> Result<FileConfig, ConfigError> {
    let text = read_text(path)?;
    parse(&text).map_err(|error| bad(path, &error))
}

fn read_text(path: &Path) -> Result<String, ConfigError> {
    let file = std::fs::File::open(path).map_err(|error| bad(path, &error))?;
    bounded_text(file, FILE_BYTES_MAX).map_err(|error| bad(path, &error))
}

fn bad(path: &Path, what: &dyn Display) -> ConfigError {
    ConfigError(format!("configuration {}: {what}", path.display()))
}

/// The check of one section.
type Check = Box<dyn FnOnce() -> Result<(), ConfigError>>;

/// Checks a file as its roles would read it. Returns the sections that it has.
///
/// # Errors
/// [`ConfigError`]: it cannot be read, or a role would refuse its section.
pub fn check(path: &Path) -> Result<Vec<String>, ConfigError> {
    let text = read_text(path)?;
    let FileConfig {
        device,
        server,
        redis,
        memcached,
    } = parse(&text).map_err(|error| bad(path, &error))?;
    let table: toml::Table = toml::from_str(&text).map_err(|error| bad(path, &error))?;
    let checks: [(&str, Check); 4] = [
        ("device", Box::new(|| super::device::check(device))),
        ("server", Box::new(|| super::server::check(server))),
        ("redis", Box::new(|| super::redis::check(redis))),
        ("memcached", Box::new(|| super::memcached::check(memcached))),
    ];
    let mut found = Vec::new();
    for (section, check) in checks {
        if table.contains_key(section) {
            check().map_err(|error| bad(path, &format!("[{section}]: {error}")))?;
            found.push(format!("[{section}]"));
        }
    }
    Ok(found)
}

fn parse(text: &str) -> Result<FileConfig, toml::de::Error> {
    toml::from_str(text)
}

/// Checks whether the text is a configuration file: every key known, every value of its kind. Nothing is
/// resolved or opened.
///
/// # Errors
/// [`ConfigError`], with the place in the text.
pub fn check_file(text: &str) -> Result<(), ConfigError> {
    parse(text)
        .map(|_| ())
        .map_err(|error| ConfigError(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
