//! A file that its owner alone can read.

use crate::FrontName;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Longest file of keys, in bytes: room for some thousand refused fronts.
const BYTES_MAX: u64 = 256 * 1024;
/// Permissions of all users but the owner.
const OTHERS: u32 = 0o077;

/// Error about a file of keys: a sentence that names the file, and never a key.
#[derive(Debug, thiserror::Error)]
#[error("key file {}: {wrong}", path.display())]
pub struct KeyFileError {
    path: PathBuf,
    /// The fault.
    pub wrong: Wrong,
}

/// A fault of a file of keys.
#[derive(Debug, thiserror::Error)]
pub enum Wrong {
    /// The operating system refuses.
    #[error("{0}")]
    System(io::Error),
    /// Other users could read or change it.
    #[error(
        "others can read or change it (mode {mode:04o}): chmod 600 it. If they may have read it, make a new key (pmnet key new)"
    )]
    Open {
        /// Its permissions.
        mode: u32,
    },
    /// It exists, and is not overwritten.
    #[error("it exists already, and a key file is never overwritten: name a new file")]
    Exists,
    /// It is longer than any file of keys.
    #[error("it has more than {BYTES_MAX} bytes: this is no key file")]
    Long,
    /// It is not understood; the sentence says where.
    #[error("{0}")]
    Text(String),
    /// It belongs to this front.
    #[error(
        "it is the key of the front {0}; devices and servers need the key of the cluster (pmnet key new)"
    )]
    IsOfAFront(FrontName),
    /// It belongs to devices and servers.
    #[error(
        "it is the key of the cluster, which no front may have: make one for it (pmnet key front NAME)"
    )]
    IsOfACluster,
}

impl KeyFileError {
    pub(crate) fn new(path: &Path, wrong: Wrong) -> KeyFileError {
        KeyFileError {
            path: path.to_owned(),
            wrong,
        }
    }
}

/// Returns the text of a file. Who may read it is asked of the file that was opened, not of its name.
pub fn read(path: &Path) -> Result<String, KeyFileError> {
    read_private(path).map_err(|wrong| KeyFileError::new(path, wrong))
}

fn read_private(path: &Path) -> Result<String, Wrong> {
    let file = File::open(path).map_err(Wrong::System)?;
    let about = file.metadata().map_err(Wrong::System)?;
    // A pipe is as private as who made it wants.
    if about.is_file() && about.mode() & OTHERS != 0 {
        let mode = about.mode() & 0o7777;
        return Err(Wrong::Open { mode });
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(Wrong::System)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > BYTES_MAX) {
        return Err(Wrong::Long);
    }
    String::from_utf8(bytes).map_err(|_| Wrong::Text("it is no text in UTF-8".into()))
}

/// Creates a file with this text.
pub fn create(path: &Path, text: &str) -> Result<(), KeyFileError> {
    let fault = |error: io::Error| {
        let wrong = match error.kind() {
            io::ErrorKind::AlreadyExists => Wrong::Exists,
            _ => Wrong::System(error),
        };
        KeyFileError::new(path, wrong)
    };
    let mut options = OpenOptions::new();
    let new = options.write(true).create_new(true).mode(0o600);
    let mut file = new.open(path).map_err(fault)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    written.map_err(|error| {
        // A key of which a part is missing helps nobody.
        let _ = std::fs::remove_file(path);
        fault(error)
    })
}
