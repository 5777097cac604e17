//! The rows of a program. The rows hold the protocol's records, and the program stores them with its own data.
//!
//! A row has a key and a value. The value is that of a record, followed by a checksum over shard, key and value. One
//! more row, [`ABOUT`], changes whenever another row changes. The row [`ABOUT`] has the layout, the shard, the number
//! of rows, and the sum of their checksums. When the program passes the rows back, the server detects rows that are
//! damaged, are missing, or come from another moment or another shard.

use crate::store::{RecordChange, RecordKey};
use bytes::Bytes;
use pmnet_wire::crc;
use std::collections::BTreeMap;

/// Key of the row that describes all other rows.
const ABOUT: &[u8] = b"pmnet";
/// Layout of the rows.
const LAYOUT: u8 = 1;
/// Length of the value of [`ABOUT`] without its checksum, in bytes: layout, shard, number of rows, sum.
const ABOUT_BYTES: usize = 1 + 4 + 8 + 8;
/// Length of a checksum, in bytes.
pub(super) const CRC_BYTES: usize = 4;
/// Maximum length of a key, in bytes.
pub const KEY_BYTES_MAX: usize = 32;
/// First bytes of a blob with all rows. The length of the blob follows in 4 bytes.
const BLOB_MAGIC: &[u8; 8] = b"pmnetrow";
/// Length of a blob's header in bytes. The rows follow the header.
const BLOB_HEAD: usize = BLOB_MAGIC.len() + 4;
/// Maximum length of a blob with all rows, in bytes. A session needs about 100 bytes, and its last reply.
pub const BLOB_BYTES_MAX: usize = 64 << 20;

/// The reason why rows, or a blob of rows, cannot be the last ones of a program of this shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowsError {
    /// The checksum of a row is wrong.
    #[error(
        "the stored row {0:?} is damaged: restore the program's data, with the rows that belong to it"
    )]
    Damaged(String),
    /// A key occurs twice, or is not a valid key of a row.
    #[error("the row {0:?} is none of these rows, or was given twice")]
    Unknown(String),
    /// The rows come from different moments, or some are missing.
    #[error(
        "the stored rows do not belong together: some are missing, or older than the others. Each batch's rows must be stored in \
         one transaction, and all of them handed back"
    )]
    Mixed,
    /// The rows belong to another shard.
    #[error("the stored rows are those of shard {found}, and this server is for shard {wanted}")]
    OtherShard {
        /// The shard of the rows.
        found: u32,
        /// The shard of the server.
        wanted: u32,
    },
    /// Another version of pmnet wrote the rows.
    #[error(
        "the stored rows have layout {0}, which this version does not know: use the version that wrote them"
    )]
    Layout(u8),
    /// The blob has a wrong header or checksum, or is incomplete.
    #[error(
        "the stored watermark is damaged or cut off: restore the program's data, with the watermark that belongs to it"
    )]
    Blob,
}

/// Returns the checksum of a row.
fn checksum(shard: u32, key: &[u8], value: &[u8]) -> u32 {
    let parts: [&[u8]; 3] = [&shard.to_be_bytes(), key, &crc(value).to_be_bytes()];
    crc(&parts.concat())
}

/// Returns the amount that a row adds to the sum of the checksums.
fn weight(checksum: [u8; CRC_BYTES]) -> u64 {
    // Without the multiplication, similar checksums could cancel each other out.
    u64::from(u32::from_be_bytes(checksum) | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns the value with its checksum appended, as the program stores it.
fn sealed(shard: u32, key: &[u8], mut value: Vec<u8>) -> Bytes {
    let checksum = checksum(shard, key, &value);
    value.extend_from_slice(&checksum.to_be_bytes());
    value.into()
}

fn shown(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

/// Returns the value and the checksum of a row; `None` if the checksum is wrong.
fn checked<'a>(shard: u32, key: &[u8], row: &'a Bytes) -> Option<(&'a [u8], [u8; CRC_BYTES])> {
    let (value, found) = row.split_last_chunk::<CRC_BYTES>()?;
    (checksum(shard, key, value) == u32::from_be_bytes(*found)).then_some((value, *found))
}

/// All rows as the program last stored them.
#[derive(Debug, Default)]
pub(super) struct Rows {
    shard: u32,
    rows: BTreeMap<RecordKey, Bytes>,
    sum: u64,
}

impl Rows {
    /// Checks the rows that the program passes. A program that has never stored rows passes none.
    pub(super) fn open(
        shard: u32,
        given: impl IntoIterator<Item = (RecordKey, Bytes)>,
    ) -> Result<Rows, RowsError> {
        let mut about = None;
        let mut rows = BTreeMap::new();
        for (key, row) in given {
            let before = if key == ABOUT {
                about.replace(row)
            } else {
                rows.insert(key.clone(), row)
            };
            if before.is_some() || key.len() > KEY_BYTES_MAX {
                return Err(RowsError::Unknown(shown(&key)));
            }
        }
        let Some(about) = about else {
            // The program has never stored rows.
            let none = Rows {
                shard,
                ..Rows::default()
            };
            return rows.is_empty().then_some(none).ok_or(RowsError::Mixed);
        };
        let (count, wanted) = read_about(shard, &about)?;
        let mut sum: u64 = 0;
        for (key, row) in &rows {
            let found = checked(shard, key, row);
            let (_, found) = found.ok_or_else(|| RowsError::Damaged(shown(key)))?;
            sum = sum.wrapping_add(weight(found));
        }
        if (count, wanted) != (rows.len() as u64, sum) {
            return Err(RowsError::Mixed);
        }
        Ok(Rows { shard, rows, sum })
    }

    /// Checks the blob that [`Rows::blob`] made. `place` may be longer than the blob, so that a program can keep the
    /// blob in a place of fixed size. If `place` has only zeros, there is no blob yet.
    pub(super) fn open_blob(shard: u32, place: &Bytes) -> Result<Rows, RowsError> {
        if place.iter().all(|byte| *byte == 0) {
            return Rows::open(shard, []);
        }
        let (blob, body) = split_blob(place).ok_or(RowsError::Blob)?;
        let blob = place.slice_ref(blob);
        let mut rest = &body[BLOB_HEAD..];
        let mut rows = Vec::new();
        while !rest.is_empty() {
            let (key, after) = split_row(rest).ok_or(RowsError::Blob)?;
            let (value, after) = split_row(after).ok_or(RowsError::Blob)?;
            rows.push((key.to_vec(), blob.slice_ref(value)));
            rest = after;
        }
        Rows::open(shard, rows)
    }

    /// Returns the records in the form that the protocol's machine uses.
    pub(super) fn records(&self) -> Vec<(RecordKey, Bytes)> {
        let rows = self.rows.iter();
        rows.map(|(key, row)| (key.clone(), row.slice(..row.len() - CRC_BYTES)))
            .collect()
    }

    /// Returns the changes in the form in which the program must store them, including the change of [`ABOUT`]. Empty
    /// if nothing changes.
    pub(super) fn sealed(&self, changes: Vec<(RecordKey, Option<Vec<u8>>)>) -> Vec<RecordChange> {
        if changes.is_empty() {
            return Vec::new();
        }
        let mut rows: Vec<RecordChange> = changes
            .into_iter()
            .map(|(key, value)| {
                let row = value.map(|value| sealed(self.shard, &key, value));
                (key, row)
            })
            .collect();
        let (count, sum) = self.after(&rows);
        let mut about = vec![LAYOUT];
        about.extend_from_slice(&self.shard.to_be_bytes());
        about.extend_from_slice(&count.to_be_bytes());
        about.extend_from_slice(&sum.to_be_bytes());
        rows.push((ABOUT.to_vec(), Some(sealed(self.shard, ABOUT, about))));
        rows
    }

    /// Returns the number of rows after these changes, and the sum of their checksums.
    fn after(&self, changes: &[RecordChange]) -> (u64, u64) {
        let (mut count, mut sum) = (self.rows.len() as u64, self.sum);
        for (key, value) in changes.iter().filter(|(key, _)| key != ABOUT) {
            if let Some(before) = self.rows.get(key) {
                count -= 1;
                sum = sum.wrapping_sub(weight_of(before));
            }
            if let Some(row) = value {
                count += 1;
                sum = sum.wrapping_add(weight_of(row));
            }
        }
        (count, sum)
    }

    /// Returns all rows, as they are after these changes, in one blob; `None` if it is longer than [`BLOB_BYTES_MAX`].
    pub(super) fn blob(&self, changes: &[RecordChange]) -> Option<Vec<u8>> {
        let changed: BTreeMap<&[u8], &Option<Bytes>> = changes
            .iter()
            .map(|(key, value)| (&key[..], value))
            .collect();
        let kept = self.rows.iter().map(|(key, row)| (&key[..], row));
        let kept = kept.filter(|(key, _)| !changed.contains_key(key));
        let new = changed
            .iter()
            .filter_map(|(key, value)| Some((*key, value.as_ref()?)));
        let mut blob = [&BLOB_MAGIC[..], &[0; 4]].concat();
        for (key, row) in kept.chain(new) {
            if blob.len() + key.len() + row.len() + 16 > BLOB_BYTES_MAX {
                return None;
            }
            for part in [key, row] {
                let length = u32::try_from(part.len()).ok()?;
                blob.extend_from_slice(&length.to_be_bytes());
                blob.extend_from_slice(part);
            }
        }
        let length = u32::try_from(blob.len() + CRC_BYTES).ok()?;
        blob[BLOB_MAGIC.len()..BLOB_HEAD].copy_from_slice(&length.to_be_bytes());
        let checksum = crc(&blob);
        blob.extend_from_slice(&checksum.to_be_bytes());
        Some(blob)
    }

    /// Notes that the program has stored these changes.
    pub(super) fn stored(&mut self, changes: Vec<RecordChange>) {
        (_, self.sum) = self.after(&changes);
        for (key, value) in changes {
            match value {
                _ if key == ABOUT => {}
                Some(row) => {
                    self.rows.insert(key, row);
                }
                None => {
                    self.rows.remove(&key);
                }
            }
        }
    }
}

/// Returns the amount that a stored row adds to the sum of the checksums. The checksum is in the row's last bytes.
fn weight_of(row: &Bytes) -> u64 {
    row.last_chunk::<CRC_BYTES>().map_or(0, |crc| weight(*crc))
}

/// Returns the number of rows, and the sum of their checksums, from [`ABOUT`].
fn read_about(shard: u32, about: &Bytes) -> Result<(u64, u64), RowsError> {
    let damaged = || RowsError::Damaged(shown(ABOUT));
    let layout = *about.first().ok_or_else(damaged)?;
    if layout != LAYOUT {
        return Err(RowsError::Layout(layout));
    }
    let found = about
        .get(1..5)
        .and_then(|shard| Some(u32::from_be_bytes(shard.try_into().ok()?)));
    let found = found.ok_or_else(damaged)?;
    let (value, _) = checked(found, ABOUT, about).ok_or_else(damaged)?;
    if found != shard {
        return Err(RowsError::OtherShard {
            found,
            wanted: shard,
        });
    }
    let numbers = value.get(5..ABOUT_BYTES).ok_or_else(damaged)?;
    let (count, sum) = numbers.split_first_chunk::<8>().ok_or_else(damaged)?;
    let sum = <[u8; 8]>::try_from(sum).map_err(|_| damaged())?;
    Ok((u64::from_be_bytes(*count), u64::from_be_bytes(sum)))
}

/// Checks the blob at the beginning of `place`. Returns the blob with and without its checksum.
fn split_blob(place: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = place.strip_prefix(BLOB_MAGIC)?;
    let length = u32::from_be_bytes(*rest.first_chunk::<4>()?);
    let blob = place.get(..usize::try_from(length).ok()?)?;
    let (body, found) = blob.split_last_chunk::<CRC_BYTES>()?;
    let right = body.len() >= BLOB_HEAD && crc(body) == u32::from_be_bytes(*found);
    right.then_some((blob, body))
}

/// Splits off the first row, which begins with its length.
fn split_row(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Stored = BTreeMap<RecordKey, Bytes>;

    fn put(key: &str, value: &[u8]) -> (RecordKey, Option<Vec<u8>>) {
        (key.as_bytes().to_vec(), Some(value.to_vec()))
    }

    /// Stores the changes of one batch, as a program does.
    fn step(
        rows: &mut Rows,
        stored: &mut Stored,
        changes: Vec<(RecordKey, Option<Vec<u8>>)>,
    ) -> Vec<u8> {
        let changes = rows.sealed(changes);
        let blob = rows.blob(&changes).unwrap();
        for (key, value) in &changes {
            match value {
                Some(value) => stored.insert(key.clone(), value.clone()),
                None => stored.remove(key),
            };
        }
        rows.stored(changes);
        blob
    }

    fn three_batches() -> (Vec<Stored>, Vec<u8>) {
        let mut rows = Rows::open(7, []).unwrap();
        let mut stored = Stored::new();
        let mut moments = vec![stored.clone()];
        step(&mut rows, &mut stored, vec![put("a", b"1"), put("b", b"")]);
        moments.push(stored.clone());
        step(&mut rows, &mut stored, vec![put("a", b"2")]);
        moments.push(stored.clone());
        let gone = vec![(b"b".to_vec(), None), put("c", b"3")];
        let blob = step(&mut rows, &mut stored, gone);
        moments.push(stored);
        (moments, blob)
    }

    #[test]
    fn rows_come_back_as_they_were() {
        let (moments, blob) = three_batches();
        for stored in &moments {
            Rows::open(7, stored.clone()).unwrap();
        }
        let last = Rows::open(7, moments[3].clone()).unwrap();
        let wanted: Vec<(RecordKey, Bytes)> = vec![
            (b"a".to_vec(), Bytes::from_static(b"2")),
            (b"c".to_vec(), Bytes::from_static(b"3")),
        ];
        assert_eq!(last.records(), wanted);
        let same_blob = blob.clone();
        let same = Rows::open_blob(7, &blob.into()).unwrap();
        assert_eq!((same.records(), same.sum), (wanted.clone(), last.sum));
        // The blob is in a place of fixed size.
        let place = [&same_blob[..], &[0xff; 40]].concat();
        assert_eq!(Rows::open_blob(7, &place.into()).unwrap().records(), wanted);
        for zeros in [0, 100] {
            let none = Rows::open_blob(7, &vec![0; zeros].into()).unwrap();
            assert!(none.records().is_empty());
        }
        // A batch that changes nothing has no rows.
        assert!(last.sealed(Vec::new()).is_empty());
    }

    #[test]
    fn every_byte_of_a_row_counts() {
        let (moments, blob) = three_batches();
        for (key, row) in &moments[3] {
            for at in 0..row.len() {
                let mut stored = moments[3].clone();
                let mut bad = row.to_vec();
                bad[at] ^= 0x10;
                stored.insert(key.clone(), bad.into());
                let error = Rows::open(7, stored).unwrap_err();
                let layout = key == ABOUT && at == 0;
                assert_eq!(matches!(error, RowsError::Layout(_)), layout, "{error}");
            }
        }
        for at in 0..blob.len() {
            let mut bad = blob.clone();
            bad[at] ^= 0x10;
            assert_eq!(Rows::open_blob(7, &bad.into()).err(), Some(RowsError::Blob));
            if at == 0 {
                continue;
            }
            let cut = Bytes::copy_from_slice(&blob[..at]);
            assert_eq!(Rows::open_blob(7, &cut).err(), Some(RowsError::Blob));
        }
    }

    #[test]
    fn rows_of_different_moments_or_shards_are_refused() {
        let (moments, blob) = three_batches();
        for (then, now) in [(1, 2), (2, 3), (1, 3), (3, 2)] {
            // A row is replaced by the same row from another moment.
            for (key, row) in &moments[then] {
                let mut mixed = moments[now].clone();
                if mixed.insert(key.clone(), row.clone()).as_ref() != Some(row) {
                    assert_eq!(
                        Rows::open(7, mixed).err(),
                        Some(RowsError::Mixed),
                        "{key:?}"
                    );
                }
            }
            // Rows of which one is missing are refused.
            for key in moments[now].keys() {
                let mut fewer = moments[now].clone();
                fewer.remove(key);
                assert_eq!(Rows::open(7, fewer).err(), Some(RowsError::Mixed));
            }
        }
        let other = RowsError::OtherShard {
            found: 7,
            wanted: 8,
        };
        assert_eq!(Rows::open(8, moments[3].clone()).err(), Some(other.clone()));
        assert_eq!(Rows::open_blob(8, &blob.into()).err(), Some(other));
        let twice = moments[1].clone().into_iter().chain(moments[1].clone());
        let error = Rows::open(7, twice).unwrap_err();
        assert!(matches!(error, RowsError::Unknown(_)), "{error}");
    }

    #[test]
    fn a_blob_has_a_bound() {
        let mut rows = Rows::open(0, []).unwrap();
        let mut stored = Stored::new();
        for name in ["a", "b", "c"] {
            step(&mut rows, &mut stored, vec![put(name, &[1; 16 << 20])]);
        }
        let changes = rows.sealed(vec![put("d", &[1; 16 << 20])]);
        assert_eq!(rows.blob(&changes), None);
    }
}
