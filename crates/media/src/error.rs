//! Reasons why a medium could not be created or opened. Every message names the path and gives advice.

use std::io;
use std::path::{Path, PathBuf};

/// Error of [`create`](crate::create), [`open`](crate::open) and
/// [`open_image_read_only`](crate::open_image_read_only).
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such file, or no such folder in which to create it.
    #[error("PM1301 {}: no such file or folder: check the path; a device makes a new log in a folder that is there", path.display())]
    NotFound {
        /// Path of the file.
        path: PathBuf,
    },
    /// `create` never overwrites a file.
    #[error("PM1302 {}: exists already; nothing was changed", path.display())]
    Exists {
        /// Path of the file.
        path: PathBuf,
    },
    /// Another process has the log open.
    #[error("PM1303 {}: in use by another process: stop that device first, or give this one its own log", path.display())]
    Locked {
        /// Path of the file.
        path: PathBuf,
    },
    /// Another file replaced the opened one before it could be locked.
    #[error("PM1304 {}: was replaced by another file while it was waited for (pmnet store grow?): start again", path.display())]
    Replaced {
        /// Path of the file.
        path: PathBuf,
    },
    /// The folder is removed when the process ends.
    #[error(
        "PM1329 {}: this folder belongs to the unit alone, and systemd removes it when the unit stops (PrivateTmp=yes): use a folder that stays, such \
         as /var/lib/pmnet",
        path.display()
    )]
    Fleeting {
        /// Path of the file.
        path: PathBuf,
    },
    /// The disk or the memory file system has too little free space.
    #[error("PM1305 {}: no room for {bytes} bytes: free space there, or make the log smaller", path.display())]
    NoSpace {
        /// Path of the file.
        path: PathBuf,
        /// Number of bytes needed.
        bytes: usize,
    },
    /// A log cannot have this size.
    #[error(
        "PM1306 {}: {bytes} bytes cannot be a log (a multiple of 4096, at least 16384): the file was truncated, or \
         is something else; nothing was changed", path.display()
    )]
    Size {
        /// Path of the file.
        path: PathBuf,
        /// Number of bytes found or asked for.
        bytes: u64,
    },
    /// Not an ordinary file.
    #[error(
        "PM1307 {}: not an ordinary file: give the path of a file (--media pmem: or of a devdax device)", path.display()
    )]
    NotAFile {
        /// Path of the file.
        path: PathBuf,
    },
    /// Stores to this file go through the page cache, so a flush of the processor does not make them durable.
    #[error(
        "PM1308 {}: not persistent memory that can be mapped directly ({source}): --media pmem takes a devdax device \
         (/dev/daxX.Y), or a file of ext4 or xfs mounted with -o dax on /dev/pmemX; for this path use --media file",
        path.display()
    )]
    NotDirect {
        /// Path of the file.
        path: PathBuf,
        /// Error of the kernel for a mapping with `MAP_SYNC`.
        source: io::Error,
    },
    /// The memory has bad blocks. To read one of them would kill the process.
    #[error(
        "PM1309 {}: {bytes} bytes of this persistent memory are known to be bad (badblocks in /sys), and reading them \
         kills a process: treat the device as lost; then `ndctl clear-errors`, and make a new log; nothing was \
         changed", path.display()
    )]
    BadBlocks {
        /// Path of the file.
        path: PathBuf,
        /// Number of bytes in bad blocks.
        bytes: u64,
    },
    /// This processor has no flush instruction that pmnet knows.
    #[error(
        "PM1310 {}: pmnet flushes persistent memory on x86-64 only: on this processor use --media file", path.display()
    )]
    NoFlush {
        /// Path of the file.
        path: PathBuf,
    },
    /// Another operation failed in the operating system.
    #[error("PM1311 {}: cannot {what}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl OpenError {
    /// Returns the error of the operation `what` on `path`; a lack of space becomes [`OpenError::NoSpace`].
    pub(crate) fn io(
        path: &Path,
        what: &'static str,
        bytes: usize,
    ) -> impl FnOnce(io::Error) -> OpenError {
        let path = path.to_path_buf();
        move |source| match source.kind() {
            io::ErrorKind::NotFound => OpenError::NotFound { path },
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => OpenError::NoSpace { path, bytes },
            _ => OpenError::Io { path, what, source },
        }
    }
}
