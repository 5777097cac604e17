//! The commit record. One durable store of this record makes a whole transaction take effect
//! (`docs/spec/packet-store.md` §4).
//!
//! ```text
//! 0        8         16    24      32   60    64
//! +--------+---------+-----+-------+----+-----+
//! | commit | records | sum | order | 0  | crc |
//! +--------+---------+-----+-------+----+-----+
//! ```
//! Commit n is stored in record n mod 2, so a torn record never destroys the record of the last commit.

use std::ops::Range;

use pmnet_log::Media;

use crate::error::OpenError;
use crate::geometry::{LINE_BYTES, commit_record, take};

const CRC_AT: usize = 60;
/// Largest number of a commit. No store reaches this number. A record with a larger number is forged, and is ignored.
const COMMIT_MAX: u64 = u64::MAX >> 1;

/// The properties of the whole store that a commit states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Number of the commit. Each commit has the number of the previous commit plus one.
    pub commit: u64,
    /// Number of records in the store.
    pub records: u64,
    /// Sum over the lines of all records. The sum shows whether a record is missing.
    pub sum: u64,
    /// Order in the log up to which the store has applied updates, as the user of the store has stated it; 0: not
    /// stated.
    pub order: u64,
}

impl Commit {
    /// Stores the record into the medium, and returns the range that must be persisted.
    pub(crate) fn store<M: Media>(&self, media: &mut M, seed: u32) -> Range<usize> {
        let mut out = [0; LINE_BYTES];
        out[0..8].copy_from_slice(&self.commit.to_le_bytes());
        out[8..16].copy_from_slice(&self.records.to_le_bytes());
        out[16..24].copy_from_slice(&self.sum.to_le_bytes());
        out[24..32].copy_from_slice(&self.order.to_le_bytes());
        let crc = crc32c::crc32c_append(seed, &out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        let place = commit_record(self.commit);
        media.store(place.start, &out);
        place
    }

    fn decode(raw: &[u8; LINE_BYTES], seed: u32) -> Option<Commit> {
        let crc = u32::from_le_bytes(take(raw, CRC_AT));
        let commit = u64::from_le_bytes(take(raw, 0));
        let whole = crc32c::crc32c_append(seed, &raw[..CRC_AT]) == crc && commit <= COMMIT_MAX;
        whole.then(|| Commit {
            commit,
            records: u64::from_le_bytes(take(raw, 8)),
            sum: u64::from_le_bytes(take(raw, 16)),
            order: u64::from_le_bytes(take(raw, 24)),
        })
    }

    /// Returns commit record 0 or 1 of an image, if the record is whole.
    pub(crate) fn at(image: &[u8], seed: u32, number: u64) -> Option<Commit> {
        let place = commit_record(number);
        Commit::decode(&take(image, place.start), seed)
            .filter(|found| found.commit % 2 == number && found.commit < u64::MAX - 1)
    }

    /// Returns the last commit of an image.
    pub(crate) fn read(image: &[u8], seed: u32) -> Result<Commit, OpenError> {
        let at = |number| Commit::at(image, seed, number);
        let newest = match (at(0), at(1)) {
            (Some(even), Some(odd)) if even.commit.abs_diff(odd.commit) != 1 => {
                return Err(OpenError::Unreadable {
                    what: "the two commit records contradict each other".into(),
                });
            }
            (even, odd) => even.into_iter().chain(odd).max_by_key(|found| found.commit),
        };
        newest.ok_or_else(|| OpenError::Unreadable {
            what: "no commit record has a right checksum".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::BLOCK_BYTES;
    use crate::medium::tests::Plain;

    fn image(commits: &[u64]) -> Vec<u8> {
        let mut medium = Plain(vec![0; 4 * BLOCK_BYTES]);
        for &commit in commits {
            let record = Commit {
                commit,
                records: 5,
                sum: 6,
                order: 7,
            };
            record.store(&mut medium, 99);
        }
        medium.0
    }

    #[test]
    fn the_newest_counts_and_a_torn_one_leaves_the_one_before() {
        let mut found = image(&[8, 9]);
        assert_eq!(Commit::read(&found, 99).unwrap().commit, 9);
        found[commit_record(9).start + 20] ^= 1;
        assert_eq!(Commit::read(&found, 99).unwrap().commit, 8);
        found[commit_record(8).start] ^= 1;
        assert!(Commit::read(&found, 99).is_err());
        assert!(
            Commit::read(&image(&[8, 9]), 98).is_err(),
            "of another store"
        );
    }

    #[test]
    fn records_that_cannot_be_neighbours_are_refused() {
        assert!(Commit::read(&image(&[8, 11]), 99).is_err());
        assert!(Commit::read(&image(&[u64::MAX - 1]), 99).is_err());
        assert_eq!(Commit::read(&image(&[0]), 99).unwrap().commit, 0);
    }
}
