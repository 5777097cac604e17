//! The configuration file: one TOML file with a section for each role. A flag takes precedence over the same key of the
//! file.
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
//! The keys are the long flags without their leading dashes. An unknown key is an error.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::path::Path;

use pmnet_cli::{ConfigError, bounded_text};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::device::{DeviceArgs, Devices};
use super::memcached::MemcachedArgs;
use super::redis::RedisArgs;
use super::run::RunArgs;
use super::server::ServerArgs;

/// Error text for a file without a section of a role.
pub const NO_ROLE: &str =
    "the configuration has no role: write a section [server], [device], [redis] or [memcached]";

/// Maximum size of a configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The contents of a configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileConfig {
    /// Filter of log messages, in the form of the variable `PMNET_LOG`. The variable takes precedence.
    #[serde(rename = "log-filter")]
    pub log_filter: Option<String>,
    pub run: RunArgs,
    pub server: Sections<ServerArgs>,
    pub device: Sections<DeviceArgs>,
    pub redis: Sections<RedisArgs>,
    pub memcached: Sections<MemcachedArgs>,
}

/// The sections of one role: one section `[device]`, or several sections `[[device]]`.
#[derive(Debug)]
pub struct Sections<T>(Vec<T>);

/// Maximum number of sections of one role.
const SECTIONS_MAX: usize = 64;

impl<T> Default for Sections<T> {
    fn default() -> Sections<T> {
        Sections(Vec::new())
    }
}

impl<T> Sections<T> {
    /// Returns all sections, each with its name: `device`, or `device.1`, `device.2`, …
    pub fn named(self, role: &str) -> impl Iterator<Item = (String, T)> {
        let is_one = self.0.len() == 1;
        let all = (1..).zip(self.0);
        all.map(move |(number, section)| match is_one {
            true => (role.to_owned(), section),
            false => (format!("{role}.{number}"), section),
        })
    }
}

impl<T: Default> Sections<T> {
    /// Returns the section of a process that has only this role. If the file has no such section, returns settings
    /// without values.
    ///
    /// # Errors
    /// The file has more than one section of this role.
    pub fn only(self, role: &str) -> Result<T, ConfigError> {
        let mut all = self.0.into_iter();
        let first = all.next().unwrap_or_default();
        match all.len() {
            0 => Ok(first),
            more => Err(ConfigError(format!(
                "the file has {} sections [[{role}]]: pmnet {role} starts one. Give it a file with that one, or start all of them \
                 with pmnet run",
                more + 1
            ))),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Sections<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Sections<T>, D::Error> {
        deserializer.deserialize_any(OneOrMore(PhantomData))
    }
}

struct OneOrMore<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrMore<T> {
    type Value = Sections<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a section [name], or several [[name]]")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Sections<T>, A::Error> {
        let one = T::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Sections(vec![one]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Sections<T>, A::Error> {
        let mut all = Vec::new();
        while let Some(one) = sequence.next_element()? {
            if all.len() == SECTIONS_MAX {
                return Err(A::Error::custom(format_args!(
                    "at most {SECTIONS_MAX} sections of one role"
                )));
            }
            all.push(one);
        }
        Ok(Sections(all))
    }
}

/// Reads the configuration file of this process, and sets the log filter that the file names. Without a path, returns
/// settings without values.
pub fn read(path: Option<&Path>) -> Result<FileConfig, ConfigError> {
    let Some(path) = path else {
        return Ok(FileConfig::default());
    };
    let file = read_file(path)?;
    if let Some(filter) = &file.log_filter {
        pmnet_cli::check_log_filter("log-filter", filter).map_err(|error| bad(path, &error))?;
        filter_logs(Some(filter));
    }
    Ok(file)
}

fn read_file(path: &Path) -> Result<FileConfig, ConfigError> {
    let text = read_text(path)?;
    parse_text(&text).map_err(|error| bad(path, &error))
}

/// Returns the text of a file.
pub fn read_text(path: &Path) -> Result<String, ConfigError> {
    let file = std::fs::File::open(path).map_err(|error| bad(path, &error))?;
    bounded_text(file, FILE_BYTES_MAX).map_err(|error| bad(path, &error))
}

fn bad(path: &Path, what: &dyn Display) -> ConfigError {
    ConfigError(format!("configuration {}: {what}", path.display()))
}

/// Checks a file in the same way as the roles when they read it. Returns the names of its sections.
///
/// # Errors
/// [`ConfigError`]: the file cannot be read, it has no section of a role, a role would refuse its section, or two of its
/// devices have the same log or the same place in a chain.
pub fn check(path: &Path) -> Result<Vec<String>, ConfigError> {
    let FileConfig {
        log_filter,
        run,
        server,
        device,
        redis,
        memcached,
    } = read_file(path)?;
    if let Some(filter) = &log_filter {
        pmnet_cli::check_log_filter("log-filter", filter).map_err(|error| bad(path, &error))?;
    }
    crate::status::at(run.status.as_deref())
        .map_err(|error| bad(path, &format!("[run]: {error}")))?;
    let mut found = Vec::new();
    let mut checked = |name: String, outcome: Result<(), ConfigError>| {
        outcome.map_err(|error| bad(path, &format!("[{name}]: {error}")))?;
        found.push(format!("[{name}]"));
        Ok::<(), ConfigError>(())
    };
    for (name, args) in server.named("server") {
        checked(name, super::server::check(args))?;
    }
    let mut devices = Devices::default();
    for (name, args) in device.named("device") {
        let outcome = devices.add(&name, args);
        checked(name, outcome)?;
    }
    devices.go_together().map_err(|error| bad(path, &error))?;
    for (name, args) in redis.named("redis") {
        checked(name, super::redis::check(args))?;
    }
    for (name, args) in memcached.named("memcached") {
        checked(name, super::memcached::check(args))?;
    }
    if found.is_empty() {
        return Err(bad(path, &NO_ROLE));
    }
    Ok(found)
}

/// Returns the addresses of the status ports that a file names. If section `[run]` names an address, the result has
/// only this address. Otherwise the result has the addresses of all other sections.
///
/// # Errors
/// [`ConfigError`]: the file cannot be read.
pub fn statuses(path: &Path) -> Result<Vec<String>, ConfigError> {
    let FileConfig {
        log_filter: _,
        run,
        server,
        device,
        redis,
        memcached,
    } = read_file(path)?;
    if let Some(status) = run.status {
        return Ok(vec![status]);
    }
    let servers = server.0.into_iter().map(|args| args.status);
    let devices = device.0.into_iter().map(|args| args.status);
    let fronts = redis.0.into_iter().map(|args| args.status);
    let others = memcached.0.into_iter().map(|args| args.status);
    let all = servers.chain(devices).chain(fronts).chain(others);
    Ok(all.flatten().collect())
}

/// Parses the text of a file. If the text is wrong, the error does not quote the wrong line, because the line may
/// contain a password.
pub fn parse_text(text: &str) -> Result<FileConfig, ConfigError> {
    parse(text).map_err(|error| {
        let place = error.span().map_or(0, |span| span.start);
        let before = text.get(..place).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        ConfigError(format!("line {line}: {}", error.message()))
    })
}

/// Sets the log filter of this process to the one in the file. If another setting takes precedence, logs this.
pub fn filter_logs(filter: Option<&str>) {
    if !pmnet_cli::filter_logs(filter) && filter.is_some() {
        tracing::warn!("PM6035 log-filter has no effect: PMNET_LOG is set, and wins over it");
    }
}

/// Returns the names of all sections, in order.
pub fn names(file: &FileConfig) -> Vec<String> {
    let of = |role: &str, count: usize| -> Vec<String> {
        match count {
            1 => vec![role.to_owned()],
            count => (1..=count)
                .map(|number| format!("{role}.{number}"))
                .collect(),
        }
    };
    let all = [
        of("server", file.server.0.len()),
        of("device", file.device.0.len()),
        of("redis", file.redis.0.len()),
        of("memcached", file.memcached.0.len()),
    ];
    all.concat()
}

/// Parses the text of a file.
pub fn parse(text: &str) -> Result<FileConfig, toml::de::Error> {
    toml::from_str(text)
}

/// Checks that the text is a configuration file: every key must be known, and every value must have the right type. The
/// check resolves no names, and opens no files.
///
/// # Errors
/// [`ConfigError`], with the position of the error in the text.
pub fn check_file(text: &str) -> Result<(), ConfigError> {
    parse_text(text).map(drop)
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
            "[[server]]\nlisten_on = 1",
            "server = 5",
        ] {
            assert!(toml::from_str::<FileConfig>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_role_has_one_section_or_several() {
        let names = |text: &str| {
            let file = parse(text).unwrap();
            let named = file.device.named("device");
            named.map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names(""), [""; 0]);
        assert_eq!(names("[device]"), ["device"]);
        assert_eq!(names("[[device]]\n[[device]]"), ["device.1", "device.2"]);
        assert_eq!(names(&"[[device]]\n".repeat(64)).len(), 64);
        let error = parse(&"[[device]]\n".repeat(65)).unwrap_err().to_string();
        assert!(error.contains("at most 64 sections"), "{error}");
        let only = |text: &str| parse(text).unwrap().device.only("device").map(drop);
        assert!(only("").is_ok() && only("[device]").is_ok());
        let error = only("[[device]]\n[[device]]").unwrap_err().0;
        assert!(error.contains("2 sections [[device]]"), "{error}");
        // The error has the position in the text, even if a role has several sections.
        let error = check_file("[[device]]\n[[device]]\nlisten = 5\n")
            .unwrap_err()
            .0;
        assert!(error.contains("line 3"), "{error}");
        // The error must not contain the password, because it is logged and sent to the service manager.
        let error = check_file("[redis]\nrequirepass = \"topsecret\n")
            .unwrap_err()
            .0;
        assert!(
            error.contains("line 2") && !error.contains("topsecret"),
            "{error}"
        );
    }
}
