//! Whether the file of a log still has its name.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pmnet_proto::Time;
use pmnet_proto::time::{Nanos, SECOND};

/// Interval of the looks.
const LOOK_EVERY: Nanos = SECOND;

/// The path of a log, and the file that was there when the log was opened. Without its name, a file exists only as long
/// as its process.
#[derive(Debug)]
pub(crate) struct LogName {
    path: PathBuf,
    file: (u64, u64),
    next_look: Time,
}

fn identity(about: &Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

impl LogName {
    /// `None`: there is no file at this path, for example because the log is in memory of the kernel.
    pub(crate) fn of(path: &Path) -> Option<LogName> {
        let about = std::fs::metadata(path).ok()?;
        Some(LogName {
            path: path.to_owned(),
            file: identity(&about),
            next_look: Time(0),
        })
    }

    /// Looks, if it is time, and logs the loss.
    pub(crate) fn is_lost(&mut self, now: Time) -> bool {
        if now < self.next_look {
            return false;
        }
        self.next_look = now + LOOK_EVERY;
        let what = match std::fs::metadata(&self.path) {
            Ok(about) if identity(&about) == self.file => return false,
            Ok(_) => "another file has the name of this log",
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                "the file was removed or renamed"
            }
            // For example, the rights of a folder were changed. The file may still be there.
            Err(_) => return false,
        };
        tracing::error!(
            "PM1328 {}: {what}. The log is lost when this process ends. Until then the device passes on what it has acknowledged; it leaves further \
             writes to the server, so nothing else is acknowledged early. Let the process run until all its entries are applied; then treat the \
             device as lost",
            self.path.display()
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_removed_renamed_or_replaced_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("log"), folder.path().join("other"));
        let at = |seconds| Time(seconds * SECOND);
        type Change = fn(&Path, &Path);
        let changes: [Change; 3] = [
            |path, _| std::fs::remove_file(path).unwrap(),
            |path, other| std::fs::rename(path, other).unwrap(),
            |path, other| std::fs::rename(other, path).unwrap(),
        ];
        assert!(LogName::of(&path).is_none());
        for change in changes {
            std::fs::write(&path, "log").unwrap();
            std::fs::write(&other, "other").unwrap();
            let mut name = LogName::of(&path).unwrap();
            assert!(!name.is_lost(at(1)));
            change(&path, &other);
            assert!(!name.is_lost(at(1)), "it looks once a second");
            assert!(name.is_lost(at(2)));
        }
    }
}
