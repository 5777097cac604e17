//! Reads the configuration file again at SIGHUP.
//!
//! All roles follow the same rule. The file is read once, and each part of the process checks its section. If all
//! sections are valid, each part applies the settings that can change while it runs. If another key has a new value, a
//! warning says that the key needs a restart. If a section is wrong, nothing changes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use pmnet_cli::{ConfigError, on_reload};
use serde::Serialize;
use serde_json::Value;

use super::config::{self, FileConfig, Sections};

/// A function that applies settings which were checked before.
pub type Commit = Box<dyn FnOnce()>;
/// A function that checks the text of the file for one part of the process. The result is a function that applies the
/// settings.
type Prepare = Box<dyn Fn(&str) -> Result<Commit, ConfigError> + Send>;

/// Settings of a role, which may stand in a section of the file.
pub trait Section: Clone + Serialize + Send + 'static {
    /// Name of the section.
    const NAME: &'static str;

    /// Returns all sections of this kind.
    fn all_of(file: FileConfig) -> Sections<Self>;

    /// Returns these settings without those that can change while the process runs.
    #[must_use]
    fn fixed(self) -> Self {
        self
    }
}

/// A function that takes the settings of a part from a file that was read again. `None`: the file no longer has the
/// part's section.
pub type Again<A> = Box<dyn Fn(FileConfig) -> Result<Option<A>, ConfigError> + Send>;

/// Returns the [`Again`] of a process with one role. `over` merges the process's flags with the settings of a section.
pub fn alone<A: Section + Default>(over: impl Fn(A) -> A + Send + 'static) -> Again<A> {
    Box::new(move |file| {
        let section = A::all_of(file).only(A::NAME)?;
        Ok(Some(over(section)))
    })
}

/// Returns the [`Again`] of one part of a process with several roles. `name`: the name of the part's section.
pub fn named<A: Section>(name: String) -> Again<A> {
    Box::new(move |file| {
        let mut all = A::all_of(file).named(A::NAME);
        Ok(all.find(|(own, _)| *own == name).map(|(_, args)| args))
    })
}

/// The configuration file of a process. Clones share the list of parts.
#[derive(Clone)]
pub struct File {
    path: PathBuf,
    parts: Arc<Mutex<Vec<Prepare>>>,
}

impl File {
    /// From now on, reads the file again at each SIGHUP.
    pub fn on_hangup(path: &Path) -> File {
        let file = File {
            path: path.to_owned(),
            parts: Arc::default(),
        };
        let own = file.clone();
        let name = format!("the configuration {}", path.display());
        on_reload(&name, move || own.again().map_err(|error| error.0));
        file.add(|text| {
            let filter = config::parse_text(text)?.log_filter;
            if let Some(filter) = &filter {
                pmnet_cli::check_log_filter("log-filter", filter)?;
            }
            Ok(Box::new(move || config::filter_logs(filter.as_deref())))
        });
        file
    }

    /// Adds a part of the process, which then takes part in each reload.
    pub fn add(&self, prepare: impl Fn(&str) -> Result<Commit, ConfigError> + Send + 'static) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.push(Box::new(prepare));
    }

    /// Adds the settings of a part. `name`: the part's section. `in_use`: the part's present settings. `take` checks
    /// new settings, and returns a function that applies them.
    pub fn add_section<A: Section>(
        &self,
        name: &str,
        in_use: A,
        again: Again<A>,
        take: impl Fn(A) -> Result<Commit, ConfigError> + Send + 'static,
    ) {
        let (name, fixed) = (format!("[{name}]"), in_use.fixed());
        self.add(move |text| {
            let Some(new) = again(config::parse_text(text)?)? else {
                // If a section is missing, the process itself logs a warning.
                return Ok(Box::new(|| ()));
            };
            let commit =
                take(new.clone()).map_err(|error| ConfigError(format!("{name}: {error}")))?;
            let (name, differ) = (name.clone(), differing(&fixed, &new.fixed()));
            Ok(Box::new(move || {
                commit();
                need_restart(&name, &differ);
            }))
        });
    }

    fn again(&self) -> Result<(), ConfigError> {
        let text = config::read_text(&self.path)?;
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let commits: Result<Vec<Commit>, ConfigError> =
            parts.iter().map(|prepare| prepare(&text)).collect();
        commits?.into_iter().for_each(|commit| commit());
        Ok(())
    }
}

/// Logs a warning that these keys of a section take effect only after a restart. If there are no keys, logs nothing.
pub fn need_restart(section: &str, keys: &[String]) {
    if !keys.is_empty() {
        tracing::warn!(
            "PM6034 {section}: other values than at the start, which count after a restart only: {}",
            keys.join(", ")
        );
    }
}

/// Returns the names of the keys whose values differ.
pub fn differing(a: &impl Serialize, b: &impl Serialize) -> Vec<String> {
    let keys = |args: Result<Value, serde_json::Error>| match args {
        Ok(Value::Object(keys)) => keys,
        // Settings are always serialized as objects, so this arm is never reached.
        Ok(_) | Err(_) => serde_json::Map::new(),
    };
    let (a, b) = (keys(serde_json::to_value(a)), keys(serde_json::to_value(b)));
    let all = a
        .iter()
        .chain(b.iter().filter(|(key, _)| !a.contains_key(*key)));
    all.filter(|(key, _)| a.get(*key) != b.get(*key))
        .map(|(key, _)| key.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::device::DeviceArgs;
    use super::super::redis::RedisArgs;
    use super::*;

    #[test]
    fn keys_that_differ_are_named_as_in_the_file() {
        let args = |text: &str| toml::from_str::<DeviceArgs>(text).unwrap();
        let before = args("log-size = \"64M\"\nshard = 1\nmedia = \"dram\"\njoin = true");
        let after = args("log-size = \"65M\"\nshard = 1\nmedia = \"file\"\nnext = \"a\"");
        assert_eq!(differing(&before, &before), [""; 0]);
        assert_eq!(
            differing(&before, &after),
            ["join", "log-size", "media", "next"]
        );
    }

    /// Passwords are not compared, and are not printed.
    #[test]
    fn limits_and_passwords_need_no_restart() {
        let args = |text: &str| toml::from_str::<RedisArgs>(text).unwrap();
        let before =
            args("deadline-ms = 1\nrequirepass = \"a\"\nunread-max = \"64M\"\nspin-us = 1");
        let after = args(
            "deadline-ms = 2\nrequirepass = \"b\"\nunread-total-max = \"3G\"\ntcp-keepalive = 3\nconnections-max = 7\nspin-us = 1",
        );
        assert_eq!(differing(&before.clone().fixed(), &after.fixed()), [""; 0]);
        let without = args("spin-us = 1");
        assert_eq!(
            differing(&before.fixed(), &without.fixed()),
            ["requirepass"]
        );
    }

    #[test]
    fn one_wrong_section_keeps_all_from_changing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        let file = File {
            path: path.clone(),
            parts: Arc::default(),
        };
        let taken = Arc::new(AtomicU32::new(0));
        for name in ["device.1", "device.2"] {
            let taken = Arc::clone(&taken);
            let in_use = DeviceArgs::default();
            file.add_section(name, in_use, named(name.into()), move |new: DeviceArgs| {
                if new.shard == Some(9) {
                    return Err(ConfigError("nine".into()));
                }
                let taken = Arc::clone(&taken);
                Ok(Box::new(move || {
                    taken.fetch_add(1, Ordering::Relaxed);
                }))
            });
        }
        let again = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let said = file.again().map_err(|error| error.0);
            (said, taken.swap(0, Ordering::Relaxed))
        };
        assert_eq!(again("[[device]]\n[[device]]\nshard = 1"), (Ok(()), 2));
        assert_eq!(
            again("[[device]]\n[[device]]\nshard = 9"),
            (Err("[device.2]: nine".into()), 0)
        );
        assert_eq!(again("[[device]]\nx = 1").1, 0);
        // If the file no longer has the section, the part keeps its settings.
        assert_eq!(again(""), (Ok(()), 0));
        std::fs::remove_file(&path).unwrap();
        assert!(file.again().is_err());
    }
}
