//! Errors of the log. Every text contains advice.

use std::fmt;

use crate::layout::{BadParameters, Identity, Parameters};
use crate::media::MediaError;

/// Reason why a log could not be created, opened, repaired or persisted.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The parameters break a bound.
    #[error(transparent)]
    Parameters(#[from] BadParameters),
    /// The image is shorter than the log in it.
    #[error(
        "PM1201 the image has {image} bytes, the log needs {needed}: the file was truncated, or is too small. \
         Restore it, or remove this device from the chain and make a new log"
    )]
    Truncated {
        /// Length of the image in bytes.
        image: usize,
        /// Bytes that the log needs.
        needed: usize,
    },
    /// All bytes are zero: no log was ever created in the image.
    #[error("PM1202 the image is blank: make a log in it first (format)")]
    Blank,
    /// There is data in the image, but it is not a pmnet log.
    #[error(
        "PM1203 this is not a pmnet log (no magic number found): check the path; nothing was changed"
    )]
    Foreign,
    /// `format` was asked to overwrite data.
    #[error(
        "PM1204 the image is not blank, so no log was made in it: delete the file (zero the devdax device) if it may go; \
         nothing was changed"
    )]
    NotBlank,
    /// The creation of the log was interrupted, and the log holds nothing.
    #[error(
        "PM1205 the making of this log was interrupted before it held anything: delete the file (zero the devdax device) \
         and start again"
    )]
    InterruptedFormat,
    /// The log has another format version.
    #[error(
        "PM1206 the log has format version {found}, this program knows version {known}: use the program that \
         made it to drain it; nothing was changed"
    )]
    Version {
        /// Version in the image.
        found: u32,
        /// Version of this program.
        known: u32,
    },
    /// The log belongs to another device or shard.
    #[error(
        "PM1207 the log belongs to device {}, shard {}, but device {device}, shard {shard} was asked for: check \
         the path and the configuration; nothing was changed", found.device, found.shard
    )]
    OtherDevice {
        /// Identity of the log in the image.
        found: Identity,
        /// Device that the caller expected.
        device: u32,
        /// Shard that the caller expected.
        shard: u32,
    },
    /// The log was made with other parameters.
    #[error(
        "PM1208 the log was made with {found}, but {expected} were asked for: drain and delete it, or leave the size out and get \
         that of the log; nothing was changed"
    )]
    OtherParameters {
        /// Parameters in the image.
        found: Parameters,
        /// Parameters that the caller expected.
        expected: Parameters,
    },
    /// Neither superblock can be trusted.
    #[error(
        "PM1209 the superblocks are damaged ({why}): remove this device from the chain and make a new log; \
         nothing was changed"
    )]
    Superblock {
        /// The damage of both copies, as text.
        why: String,
    },
    /// Orders that were durable and not yet applied cannot be read.
    #[error(
        "PM1210 the log is damaged: {total} orders that were durable cannot be read ({}). Nothing was changed. {}",
        list(orders, *total), WHEN_DAMAGED
    )]
    Damaged {
        /// The first [`DAMAGED_ORDERS_LISTED_MAX`](crate::DAMAGED_ORDERS_LISTED_MAX) such orders.
        orders: Vec<u64>,
        /// Number of such orders.
        total: u64,
    },
    /// The new epoch is lower than the current one.
    #[error(
        "PM1211 epoch {asked} is lower than {have}, which is durable here: a stale configuration was refused"
    )]
    EpochWentBack {
        /// The current, durable epoch.
        have: u32,
        /// Epoch that the caller asked for.
        asked: u32,
    },
    /// A 32-bit counter has reached its end.
    #[error("PM1212 the {what} counter of this log is exhausted: drain the log and make a new one")]
    Exhausted {
        /// Name of the counter.
        what: &'static str,
    },
    /// An entry in a shared image could not have been appended by this log.
    #[error(
        "PM1213 the shared image holds something at order {order} that does not belong there: save it with `pmnet log`, \
         then detach the device and start it again"
    )]
    Followed {
        /// Order of the entry.
        order: u64,
    },
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
}

/// Advice to the operator for a log that has lost entries, with several copies of the log and with one copy.
pub const WHEN_DAMAGED: &str = "If the chain has more devices, remove this one: another copy serves. If this was the \
                                only device, acknowledged writes that were not applied are at risk: keep the log; \
                                `pmnet log inspect` shows which orders can be read";

fn list(orders: &[u64], total: u64) -> String {
    let mut text = orders
        .iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    if u64::try_from(orders.len()).is_ok_and(|listed| listed < total) {
        text.push_str(", …");
    }
    text
}

/// Reason why a frame was not appended. The log is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Full {
    /// Every slot of the metadata ring is in use.
    Entries,
    /// No contiguous part of the frame space is large enough now.
    Frames,
    /// The log can never take the frame: its header is empty or longer than [`HEADER_LEN_MAX`](crate::HEADER_LEN_MAX),
    /// or the frame is longer than [`FRAME_LEN_MAX`](crate::FRAME_LEN_MAX) or the whole ring.
    TooLarge,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Full::Entries => "log full: no free entry",
            Full::Frames => "log full: no room for the frame",
            Full::TooLarge => "the frame is larger than the log can ever hold",
        })
    }
}

impl std::error::Error for Full {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: the text promised another copy also where this log is the only one.
    #[test]
    fn a_damaged_log_says_what_it_means_with_and_without_other_copies() {
        let error = LogError::Damaged {
            orders: vec![3],
            total: 2,
        };
        let text = error.to_string();
        for part in [
            "2 orders that were durable cannot be read (3, …)",
            "If the chain has more devices, remove this one",
            "If this was the only device, acknowledged writes that were not applied are at risk",
            "pmnet log inspect",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
