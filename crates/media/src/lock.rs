//! The exclusive lock on a log.
//!
//! It is taken on the same descriptor through which the log is written. A write in flight keeps that
//! open file alive in the kernel. So the lock of a killed process is released only when its last write
//! is complete, and the next owner never reads what an earlier one is still writing.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::OpenError;

/// How long a lock is waited for: a process killed a moment ago may still have writes in flight.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Locks `file` for this process alone.
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
