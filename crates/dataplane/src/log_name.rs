//! The file of a log, and whether it still has its name.

use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// The path of a log, and the file that was there when the log was first opened. Without its name, a file exists only as
/// long as a process has it open. Clones share the file.
#[derive(Clone, Debug)]
pub struct LogName {
    path: PathBuf,
    file: Arc<OnceLock<File>>,
}

fn identity(about: &Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

impl LogName {
    /// A log at this path, whose file is not open yet.
    #[must_use]
    pub fn new(path: &Path) -> LogName {
        LogName {
            path: path.to_owned(),
            file: Arc::default(),
        }
    }

    /// Keeps the file at the path open for the rest of the process, unless one is kept already. A device file needs no
    /// keeping.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn keep(&self) -> std::io::Result<()> {
        if self.file.get().is_none() && std::fs::metadata(&self.path)?.is_file() {
            let file = File::open(&self.path)?;
            let _first = self.file.get_or_init(|| file);
        }
        Ok(())
    }

    /// Returns the path at which the log is opened: of the file that is kept, also if it has no name any more.
    #[must_use]
    pub fn place(&self) -> PathBuf {
        match self.file.get() {
            Some(file) if self.loss().is_some() => {
                format!("/proc/self/fd/{}", file.as_raw_fd()).into()
            }
            _ => self.path.clone(),
        }
    }

    /// Returns the reason why the path no longer leads to the file. `None`: it still does, or the system does not tell.
    fn loss(&self) -> Option<&'static str> {
        let own = self.file.get()?.metadata().ok()?;
        match std::fs::metadata(&self.path) {
            // If a single file is mounted at the path, the path leads to it even without a name.
            Ok(about) if identity(&about) == identity(&own) => {
                (own.nlink() == 0).then_some("the file was removed")
            }
            Ok(_) => Some("another file has the name of this log"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Some("the file was removed or renamed")
            }
            // For example, the rights of a folder were changed. The file may still be there.
            Err(_) => None,
        }
    }

    /// Returns whether the file has lost its name, and logs it.
    pub(crate) fn is_lost(&self) -> bool {
        let Some(what) = self.loss() else {
            return false;
        };
        tracing::error!(
            "PM1328 {}: {what}. The log is lost when this process ends. Until then the device passes on what it has acknowledged, and leaves further \
             writes to the server (--mode verbs: it cannot). Let the process run until all its entries are applied; then treat the device as lost",
            self.path.display()
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_removed_renamed_or_replaced_is_lost_and_can_be_opened() {
        type Change = fn(&Path, &Path);
        let changes: [Change; 3] = [
            |path, _| std::fs::remove_file(path).unwrap(),
            |path, other| std::fs::rename(path, other).unwrap(),
            |path, other| std::fs::rename(other, path).unwrap(),
        ];
        for change in changes {
            let folder = tempfile::tempdir().unwrap();
            let (path, other) = (folder.path().join("log"), folder.path().join("other"));
            let name = LogName::new(&path);
            assert!(name.keep().is_err() && !name.is_lost() && name.place() == path);
            std::fs::write(&path, "log").unwrap();
            std::fs::write(&other, "other").unwrap();
            name.keep().unwrap();
            let clone = name.clone();
            assert!(!clone.is_lost() && clone.place() == path);
            change(&path, &other);
            assert!(clone.is_lost());
            assert_eq!(std::fs::read(clone.place()).unwrap(), b"log");
            // Even the next run keeps the first file.
            assert!(clone.keep().is_err() || clone.is_lost());
        }
    }
}
