//! Password files, for example for Redis and its Sentinels.

use std::path::{Path, PathBuf};

use pmnet_cli::{ConfigError, password};
use pmnet_store::{Passwords, Secret};

use super::keys::leave_no_dump;
use super::process::Part;

/// Reads the password from the file that this flag names. From this call on, the kernel writes no dump of this
/// process's memory.
pub fn secret(flag: &str, path: &Path) -> Result<Secret, ConfigError> {
    leave_no_dump();
    Ok(Secret::new(password(flag, path)?.as_bytes()))
}

/// The files of `--store-password-file` and `--sentinel-password-file`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PasswordFiles {
    /// File with the password of Redis.
    pub store: Option<PathBuf>,
    /// File with the password of its Sentinels.
    pub sentinel: Option<PathBuf>,
}

impl PasswordFiles {
    /// Reads both passwords.
    pub fn read(&self) -> Result<Passwords, ConfigError> {
        let read = |flag: &str, path: &Option<PathBuf>| {
            let read = path.as_ref().map(|path| secret(flag, path));
            read.transpose()
        };
        Ok(Passwords {
            store: read("--store-password-file", &self.store)?,
            sentinel: read("--sentinel-password-file", &self.sentinel)?,
        })
    }

    /// At each SIGHUP, reads the files again. New connections use the new passwords.
    pub fn keep_fresh(self, in_use: Passwords, part: &Part<'_>) {
        if self == PasswordFiles::default() {
            return;
        }
        let name = "the passwords (--store-password-file, --sentinel-password-file)";
        part.on_reload(name, move || {
            let new = self.read().map_err(|error| error.0)?;
            for both in [(&in_use.store, new.store), (&in_use.sentinel, new.sentinel)] {
                if let (Some(in_use), Some(new)) = both {
                    in_use.replace_by(&new);
                }
            }
            Ok(())
        });
    }
}
