//! What can go wrong with a store.

use pmnet_log::MediaError;

/// Why an image cannot be opened as a store, or made into one. Nothing was changed, unless a medium failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A size that no store can have.
    #[error("not a possible size of a packet store: {why}")]
    Geometry {
        /// What is wrong.
        why: String,
    },
    /// The image is shorter than the store in it.
    #[error(
        "PM2407 truncated: {image} bytes, and the store in it has {needed}: copy the whole file"
    )]
    Truncated {
        /// Bytes of the image.
        image: usize,
        /// Bytes of the store.
        needed: usize,
    },
    /// Nothing is in the image.
    #[error("PM2408 there is no store in it yet")]
    Blank,
    /// A crash interrupted [`format`](crate::format()); the store was never used.
    #[error("PM2409 making this store was interrupted: remove it, and make it again")]
    Interrupted,
    /// Something is in the place where a store was to be made.
    #[error("PM2410 not empty: a store is made only where every byte is zero")]
    NotBlank,
    /// Something else than a packet store.
    #[error("PM2412 not a packet store of pmnet; it was left as it is")]
    Foreign,
    /// Made by another version.
    #[error("PM2413 a packet store of format {found}; this program reads format {known}")]
    Version {
        /// Found in the image.
        found: u32,
        /// What this program knows.
        known: u32,
    },
    /// A log has packet buffers in it, or should have ([`Shared`](crate::Shared)).
    #[error("{0}")]
    Region(&'static str),
    /// Of another shard.
    #[error("PM2414 it belongs to shard {found}, not {wanted}: give each shard its own store")]
    OtherShard {
        /// Found in the image.
        found: u32,
        /// What was asked for.
        wanted: u32,
    },
    /// No copy of a superblock or commit record can be read.
    #[error("PM2406 damaged: {what}; it was left as it is. Take the copy of a backup")]
    Unreadable {
        /// Which part, and how.
        what: String,
    },
    /// Records are missing.
    #[error("PM2405 damaged, and left as it is: {0}")]
    Damaged(Box<Loss>),
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
}

/// What a scan misses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Records that the last commit counted.
    pub counted: u64,
    /// Records that are whole.
    pub whole: u64,
    /// What is damaged, the first [`DAMAGES_LISTED_MAX`] of it.
    pub damages: Vec<Damage>,
}

/// Most damages that are listed.
pub const DAMAGES_LISTED_MAX: usize = 1000;

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the last commit had {} records, and {} are whole",
            self.counted, self.whole
        )?;
        for damage in self.damages.iter().take(3) {
            write!(f, "; {damage}")?;
        }
        if self.damages.len() > 3 {
            write!(f, "; and {} more", self.damages.len() - 3)?;
        }
        Ok(())
    }
}

/// One record, or what once was one, that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Its key, as far as it can be read; cut off after [`Damage::KEY_BYTES_SHOWN`] bytes.
    pub key: Vec<u8>,
    /// The log's order of the write, 0 if there was none; what can still be read of it.
    pub order: u64,
    /// Number of its line.
    pub line: u32,
    /// What is wrong.
    pub why: &'static str,
}

impl Damage {
    /// Longest part of a key that is kept, in bytes.
    pub const KEY_BYTES_SHOWN: usize = 256;
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "key \"{}\", order {}, line {}: {}",
            self.key.escape_ascii(),
            self.order,
            self.line,
            self.why
        )
    }
}

/// Why an operation on an open store failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No room; nothing of this operation happened.
    #[error("the packet store is full: {what}; delete keys, or make it larger (pmnet store grow)")]
    Full {
        /// What there is too little of.
        what: &'static str,
    },
    /// A key or value is longer than a record can have.
    #[error(
        "a key of at most {} and a value of at most {} bytes fit into a record",
        crate::KEY_BYTES_MAX,
        crate::VALUE_BYTES_MAX
    )]
    TooLong,
    /// What is stored is not what was written.
    #[error("damaged: {0}")]
    Damaged(Box<Damage>),
    /// The medium failed. Nothing is known about the transaction, and the store refuses everything until it is opened again.
    #[error(transparent)]
    Media(#[from] MediaError),
}
