//! A file that only its owner can read.

use crate::FrontName;
use rustix::fs::OFlags;
use rustix::process::geteuid;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Maximum size of a key file in bytes. This size is enough for a list of several thousand refused fronts.
const BYTES_MAX: u64 = 256 * 1024;
/// The users other than the owner who may read a key file.
#[derive(Clone, Copy)]
pub enum Readers {
    /// No other user.
    Nobody,
    /// The process's group. If the platform of a container mounts a secret, its owner is always root.
    Group,
}

impl Readers {
    /// Returns the permission bits that a file must not have.
    fn forbidden(self) -> u32 {
        match self {
            Readers::Nobody => 0o077,
            Readers::Group => 0o037,
        }
    }
}

/// Number of root, the user that can read every file.
const ROOT: u32 = 0;

/// Error about a key file. The text of the error names the file, and never contains a key.
#[derive(Debug, thiserror::Error)]
#[error("key file {}: {wrong}", path.display())]
pub struct KeyFileError {
    path: PathBuf,
    /// The fault of the file.
    pub wrong: Wrong,
}

/// A fault of a key file.
#[derive(Debug, thiserror::Error)]
pub enum Wrong {
    /// The operating system returned an error.
    #[error("{0}")]
    System(io::Error),
    /// Other users could read or change the file.
    #[error(
        "others can read or change it (mode {mode:04o}): chmod 600 it. If they may have read it, make a new key (pmnet key new)"
    )]
    Open {
        /// The file's permission bits.
        mode: u32,
    },
    /// Another user owns the file, and can therefore read and change it.
    #[error(
        "it belongs to user {owner}, and this process is user {own}: chown it to that user, or run this as user {owner}"
    )]
    Owner {
        /// Number of the user who owns the file.
        owner: u32,
        /// Number of the user of this process.
        own: u32,
    },
    /// The path is a pipe, a folder or a device.
    #[error("it is no regular file: name a file that this process can read again at any time")]
    NoFile,
    /// A file with this name exists, and is not overwritten.
    #[error("it exists already, and a key file is never overwritten: name a new file")]
    Exists,
    /// The file is longer than a key file can be.
    #[error("it has more than {BYTES_MAX} bytes: this is no key file")]
    Long,
    /// The text of the file is invalid. The message has the position.
    #[error("{0}")]
    Text(String),
    /// The file has the key of this front. Devices and servers need the file of a cluster.
    #[error(
        "it is the key of the front {0}; devices and servers need the key of the cluster (pmnet key new)"
    )]
    IsOfAFront(FrontName),
    /// The file has the key of a cluster. A front needs a file of its own.
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

/// Reads the text of a file. The permissions that are checked are those of the opened file, even if its name now
/// belongs to another file.
pub fn read(path: &Path, readers: Readers) -> Result<String, KeyFileError> {
    read_private(path, readers).map_err(|wrong| KeyFileError::new(path, wrong))
}

fn read_private(path: &Path, readers: Readers) -> Result<String, Wrong> {
    // Without this flag, a pipe would block the process until another process writes into it.
    let at_once = OFlags::NONBLOCK | OFlags::NOCTTY;
    let at_once = i32::try_from(at_once.bits()).expect("flags of open are an int");
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(at_once).open(path);
    let file = opened.map_err(Wrong::System)?;
    let about = file.metadata().map_err(Wrong::System)?;
    if !about.is_file() {
        return Err(Wrong::NoFile);
    }
    is_private(about.mode(), about.uid(), geteuid().as_raw(), readers)?;
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(Wrong::System)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > BYTES_MAX) {
        return Err(Wrong::Long);
    }
    String::from_utf8(bytes).map_err(|_| Wrong::Text("it is no text in UTF-8".into()))
}

/// Checks the permissions and the owner of a file. Only root, the user `own` of this process and `readers` may be able
/// to read it. Only root and `own` may be able to change it.
fn is_private(mode: u32, owner: u32, own: u32, readers: Readers) -> Result<(), Wrong> {
    if mode & readers.forbidden() != 0 {
        let mode = mode & 0o7777;
        return Err(Wrong::Open { mode });
    }
    if owner == own || owner == ROOT {
        Ok(())
    } else {
        Err(Wrong::Owner { owner, own })
    }
}

/// Creates a file with this text. Only the owner can read the file.
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
        .and_then(|()| file.sync_all())
        // The folder contains the name of the file. Without this sync, a power failure may leave the file without its
        // name.
        .and_then(|()| File::open(folder_of(path))?.sync_all());
    written.map_err(|error| {
        // An incomplete key file is removed, because it is of no use.
        let _ = std::fs::remove_file(path);
        fault(error)
    })
}

/// Replaces a file, in one step, by a file with this text. The file need not exist before.
pub fn replace(path: &Path, text: &str) -> Result<(), KeyFileError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    // Removes a copy that an interrupted call has left behind.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(KeyFileError::new(&new, Wrong::System(error)));
        }
        _ => {}
    }
    create(&new, text)?;
    std::fs::rename(&new, path).map_err(|error| KeyFileError::new(path, Wrong::System(error)))
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_this_user_or_root() {
        for (owner, own, is_right) in [
            (1000, 1000, true),
            (0, 1000, true),
            (0, 0, true),
            (1000, 0, false),
            (1001, 1000, false),
        ] {
            let found = is_private(0o100_600, owner, own, Readers::Nobody);
            assert_eq!(found.is_ok(), is_right, "{owner} {own}");
            if let Err(wrong) = found {
                let says = format!("it belongs to user {owner}, and this process is user {own}");
                assert!(wrong.to_string().contains(&says), "{wrong}");
            }
        }
    }

    #[test]
    fn a_group_may_read_only_where_that_is_asked_for() {
        for (mode, nobody, group) in [
            (0o600, true, true),
            (0o400, true, true),
            (0o440, false, true),
            (0o640, false, true),
            (0o460, false, false),
            (0o450, false, false),
            (0o444, false, false),
            (0o602, false, false),
        ] {
            let is_right = |readers| is_private(0o100_000 | mode, 0, 1000, readers).is_ok();
            assert_eq!(is_right(Readers::Nobody), nobody, "{mode:o}");
            assert_eq!(is_right(Readers::Group), group, "{mode:o}");
        }
    }

    #[test]
    fn a_name_alone_is_in_the_folder_of_the_process() {
        for (path, folder) in [("c.key", "."), ("a/c.key", "a"), ("/c.key", "/")] {
            assert_eq!(folder_of(Path::new(path)), Path::new(folder));
        }
    }
}
