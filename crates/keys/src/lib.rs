//! Key files (`docs/spec/keys.md` §2). There are two kinds: the file of a cluster, for devices and servers, and the
//! file of a front or a program.
//!
//! Invariants: a file that other users can read is refused; a warning would not be enough. No error and no `Debug`
//! output contains a key. An existing file is overwritten only by a copy. Not allowed here: knowledge of a role or a
//! flag, and making a MAC.

mod file;
mod front_name;
mod hex;
mod text;

use pmnet_proto::keys::ClusterKeys;
use pmnet_wire::{ClusterKey, FrontId, FrontKey, KEY_BYTES};
use std::path::Path;

pub use file::{KeyFileError, Wrong};
pub use front_name::FrontName;
pub use hex::written as key_text;
pub use text::{id_text, refused_text};

/// The contents of a key file.
#[derive(Clone, Debug)]
pub enum KeyFile {
    /// The keys of devices and servers.
    Cluster(Cluster),
    /// The key of a front or a program.
    Front(Front),
}

/// The keys of a cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The key with which devices and servers send.
    pub present: ClusterKey,
    /// A second key that devices and servers accept while the key is being replaced.
    pub other: Option<ClusterKey>,
    /// The fronts that devices and servers refuse.
    pub refused: Vec<Refused>,
}

/// One refused front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The front with this name, whichever of the cluster's keys its own key was derived from.
    Name(FrontName),
    /// The front key with this id.
    Id(FrontId),
}

/// The key of a front, with its name.
#[derive(Clone, Debug)]
pub struct Front {
    /// The front's name, for messages.
    pub name: FrontName,
    /// The front's key and id.
    pub key: FrontKey,
}

impl KeyFile {
    /// Reads a key file.
    ///
    /// # Errors
    /// The file cannot be read, other users can read it, or it is not a key file.
    pub fn read(path: &Path) -> Result<KeyFile, KeyFileError> {
        understood(path, file::Readers::Nobody)
    }

    /// Copies a key file, and replaces `to`. The group of `from` may be able to read `from`. Only the owner of the copy
    /// can read the copy. Returns the contents.
    ///
    /// # Errors
    /// `from` cannot be read, users outside its group can read it, it is not a key file, or `to` cannot be written.
    pub fn copy(from: &Path, to: &Path) -> Result<KeyFile, KeyFileError> {
        let keys = understood(from, file::Readers::Group)?;
        file::replace(to, &text::written(&keys))?;
        Ok(keys)
    }

    /// Creates a file with these keys. Only the owner can read the file. When this function returns, the file is
    /// durable.
    ///
    /// # Errors
    /// A file with this name exists, or the file cannot be written.
    pub fn create(&self, path: &Path) -> Result<(), KeyFileError> {
        file::create(path, &text::written(self))
    }
}

fn understood(path: &Path, readers: file::Readers) -> Result<KeyFile, KeyFileError> {
    let text = file::read(path, readers)?;
    text::understand(&text).map_err(|wrong| KeyFileError::new(path, wrong))
}

impl Cluster {
    /// Makes a new random key.
    ///
    /// # Errors
    /// The operating system gives no random numbers.
    pub fn draw() -> std::io::Result<Cluster> {
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes)?;
        Ok(Cluster {
            present: ClusterKey::new(bytes),
            other: None,
            refused: Vec::new(),
        })
    }

    /// Reads the key file of a cluster.
    ///
    /// # Errors
    /// As for [`KeyFile::read`]; or the file is that of a front.
    pub fn read(path: &Path) -> Result<Cluster, KeyFileError> {
        match KeyFile::read(path)? {
            KeyFile::Cluster(cluster) => Ok(cluster),
            KeyFile::Front(front) => Err(KeyFileError::new(path, Wrong::IsOfAFront(front.name))),
        }
    }

    /// Derives the key of a front with this name from the cluster's key.
    #[must_use]
    pub fn front(&self, name: FrontName) -> Front {
        let id = self.present.front_id(name.as_str().as_bytes());
        let key = self.present.front(id).expect("its id is of this key");
        Front { name, key }
    }

    /// Returns these keys in the form that the protocol's machines use.
    #[must_use]
    pub fn keys(&self) -> ClusterKeys {
        let accepted = || [self.present].into_iter().chain(self.other);
        let refused = self.refused.iter().flat_map(|refused| match refused {
            Refused::Name(name) => accepted()
                .map(|key| key.front_id(name.as_str().as_bytes()))
                .collect(),
            Refused::Id(id) => vec![*id],
        });
        ClusterKeys {
            present: self.present,
            other: self.other,
            refused: refused.collect(),
        }
    }
}

impl Front {
    /// Returns the fingerprint of the cluster key from which this front key was derived ([`ClusterKey::fingerprint`]).
    #[must_use]
    pub fn cluster(&self) -> u32 {
        u32::try_from(self.key.id().get() >> 32).expect("a half of 64 bits")
    }

    /// Reads the key file of a front.
    ///
    /// # Errors
    /// As for [`KeyFile::read`]; or the file is that of a cluster.
    pub fn read(path: &Path) -> Result<Front, KeyFileError> {
        match KeyFile::read(path)? {
            KeyFile::Front(front) => Ok(front),
            KeyFile::Cluster(_) => Err(KeyFileError::new(path, Wrong::IsOfACluster)),
        }
    }
}

#[cfg(test)]
mod tests;
