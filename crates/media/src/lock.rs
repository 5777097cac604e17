//! The exclusive lock on a log.
//!
//! The lock belongs to the descriptor through which the log is written. In the kernel, a write in flight keeps that
//! open file alive. So the lock of a killed process is released only when its last write is complete, and the next
//! owner never reads bytes that an earlier owner is still writing.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::OpenError;

/// Longest wait for a lock. A process that was just killed may still have writes in flight, and a busy kernel completes
/// them late.
const LOCK_WAIT: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Locks `file` for this process alone. Waits at most 5 seconds for another process that has the lock.
pub(crate) fn exclusive(file: &File, path: &Path) -> Result<(), OpenError> {
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(LOCK_PAUSE)
            }
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::Locked {
                    path: path.to_path_buf(),
                });
            }
            Err(TryLockError::Error(source)) => {
                return Err(OpenError::io(path, "lock the file", 0)(source));
            }
        }
    }
}

/// Locks the file that `path` names. The process that had the lock may have replaced the file
/// ([`replace`](crate::replace)). In this case the opened file has no name, and must not be used.
pub(crate) fn of_path(file: &File, path: &Path) -> Result<(), OpenError> {
    exclusive(file, path)?;
    match same_file(file, path) {
        true => Ok(()),
        false => Err(OpenError::Replaced {
            path: path.to_path_buf(),
        }),
    }
}

/// Returns whether `path` names this file.
pub(crate) fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(ours), Ok(theirs)) => (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_replaced_while_its_lock_was_waited_for_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let owner = File::create(&path).unwrap();
        exclusive(&owner, &path).unwrap();
        let next = opened(&path);
        let (path, next) = (&path, &next);
        std::thread::scope(|scope| {
            let waits = scope.spawn(move || of_path(next, path));
            std::fs::write(folder.path().join("larger"), b"new").unwrap();
            std::fs::rename(folder.path().join("larger"), path).unwrap();
            drop(owner);
            let refused = waits.join().unwrap().unwrap_err();
            assert!(matches!(refused, OpenError::Replaced { .. }), "{refused}");
        });
        of_path(&opened(path), path).unwrap();
    }

    fn opened(path: &Path) -> File {
        File::options().read(true).write(true).open(path).unwrap()
    }

    #[test]
    fn a_lock_that_is_freed_late_is_got() {
        let made = tempfile::NamedTempFile::new().unwrap();
        let path = made.path();
        let owner = opened(path);
        exclusive(&owner, path).unwrap();
        let next = opened(path);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| exclusive(&next, path));
            // This is longer than any killed process has needed so far, and far shorter than `LOCK_WAIT`.
            std::thread::sleep(Duration::from_millis(1_300));
            assert!(!waits.is_finished(), "somebody else has it");
            drop(owner);
            waits.join().unwrap().unwrap();
        });
        assert!(opened(path).try_lock().is_err(), "and it is held");
    }

    #[test]
    fn a_lock_that_is_held_for_good_is_refused() {
        let made = tempfile::NamedTempFile::new().unwrap();
        let path = made.path();
        let owner = opened(path);
        exclusive(&owner, path).unwrap();
        let refused = exclusive(&opened(path), path).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "PM1303 {}: in use by another process: stop that device first, or give this one its own log",
                path.display()
            )
        );
        drop(owner);
        exclusive(&opened(path), path).unwrap();
    }
}
