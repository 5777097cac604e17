//! The exclusive lock on a log.
//!
//! It is taken on the same descriptor through which the log is written. A write in flight keeps that
//! open file alive in the kernel. So the lock of a killed process is released only when its last write
//! is complete, and the next owner never reads what an earlier one is still writing.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::OpenError;

/// How long a lock is waited for: a process killed a moment ago may still have writes in flight, and on a busy machine the
/// kernel ends them late.
const LOCK_WAIT: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Locks `file` for this process alone. Somebody else who has the lock is waited for, 5 seconds at most.
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

#[cfg(test)]
mod tests {
    use super::*;

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
            // Longer than a process that was killed took until now, and far shorter than what is waited for.
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
                "{}: in use by another process: stop that device first, or give this one its own log",
                path.display()
            )
        );
        drop(owner);
        exclusive(&opened(path), path).unwrap();
    }
}
