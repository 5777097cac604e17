//! Errors of a packet store.

use pmnet_log::MediaError;

/// Reason why a store cannot be opened or created in an image. The image is unchanged, unless a medium failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A size that no store can have.
    #[error("not a possible size of a packet store: {why}")]
    Geometry {
        /// The reason why no store can have this size.
        why: String,
    },
    /// The image is shorter than the store that it contains.
    #[error(
        "PM2407 truncated: {image} bytes, and the store in it has {needed}: copy the whole file"
    )]
    Truncated {
        /// Length of the image in bytes.
        image: usize,
        /// Length of the store in bytes.
        needed: usize,
    },
    /// The image is blank.
    #[error("PM2408 there is no store in it yet")]
    Blank,
    /// A crash interrupted [`format`](crate::format()); the store was never used.
    #[error("PM2409 making this store was interrupted: remove it, and make it again")]
    Interrupted,
    /// The image in which a store was to be created is not blank.
    #[error("PM2410 not empty: a store is made only where every byte is zero")]
    NotBlank,
    /// The image holds something other than a packet store.
    #[error("PM2412 not a packet store of pmnet; it was left as it is")]
    Foreign,
    /// The store has another format version.
    #[error("PM2413 a packet store of format {found}; this program reads format {known}")]
    Version {
        /// Version in the image.
        found: u32,
        /// Version that this program knows.
        known: u32,
    },
    /// A log has packet buffers in the image, or it should have some ([`Shared`](crate::Shared)).
    #[error("{0}")]
    Region(&'static str),
    /// The store belongs to another shard.
    #[error("PM2414 it belongs to shard {found}, not {wanted}: give each shard its own store")]
    OtherShard {
        /// Shard in the image.
        found: u32,
        /// Shard that the caller expected.
        wanted: u32,
    },
    /// No copy of a superblock or commit record can be read.
    #[error("PM2406 damaged: {what}; it was left as it is. Take the copy of a backup")]
    Unreadable {
        /// The damaged part, and the kind of damage.
        what: String,
    },
    /// Records are missing.
    #[error("PM2405 damaged, and left as it is: {0}")]
    Damaged(Box<Loss>),
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
}

/// Differences between the last commit and the records that a scan of the image found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Number of records that the last commit counts.
    pub counted: u64,
    /// Number of whole records that the scan found.
    pub whole: u64,
    /// The first [`DAMAGES_LISTED_MAX`] damages.
    pub damages: Vec<Damage>,
}

/// Maximum number of damages that are listed.
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

/// A record, or the rest of a record, whose content differs from what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Key of the record, as far as it can be read. At most the first [`Damage::KEY_BYTES_SHOWN`] bytes are kept.
    pub key: Vec<u8>,
    /// Order of the write in the log, as far as it can be read; 0 if the write had no order.
    pub order: u64,
    /// Number of the record's line.
    pub line: u32,
    /// The kind of damage.
    pub why: &'static str,
}

impl Damage {
    /// Maximum number of bytes of a key that are kept.
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

/// Reason why an operation on an open store failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store has no space for this operation, which has changed nothing.
    #[error("the packet store is full: {what}; delete keys, or make it larger (pmnet store grow)")]
    Full {
        /// The resource of which the store has too little: frames or lines.
        what: &'static str,
    },
    /// A key or value is longer than a record can hold.
    #[error(
        "a key of at most {} and a value of at most {} bytes fit into a record",
        crate::KEY_BYTES_MAX,
        crate::VALUE_BYTES_MAX
    )]
    TooLong,
    /// A stored record differs from what was written.
    #[error("damaged: {0}")]
    Damaged(Box<Damage>),
    /// The medium failed. The outcome of the transaction is unknown, and the store refuses everything until it is
    /// opened again.
    #[error(transparent)]
    Media(#[from] MediaError),
}
