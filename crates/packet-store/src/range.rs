//! Records in the order of their keys, in both directions, from the current state or from a snapshot.

use std::cmp::Ordering;
use std::ops::Bound;

use pmnet_log::Media;

use crate::error::Error;
use crate::keys;
use crate::record::Record;
use crate::store::{PacketStore, Snapshot};

/// Records of a range of keys. Each record is checked when it is returned. A damaged record is returned as an error at
/// its position, and the records after it follow.
pub struct Range<'a, M> {
    store: &'a PacketStore<M>,
    /// The first and the last of the keys that were not returned yet.
    ends: Option<(u32, u32)>,
    at: Option<u64>,
}

impl<M: Media> PacketStore<M> {
    /// Returns the records from one bound to the other, in the order of their keys' bytes. There are none if the range
    /// is empty or reversed. Within a transaction, the result includes the transaction's own changes.
    #[must_use]
    pub fn range(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Range<'_, M> {
        self.range_at(lower, upper, None)
    }

    /// Returns the records between two bounds as of a snapshot.
    #[must_use]
    pub fn range_of(
        &self,
        snapshot: &Snapshot,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Range<'_, M> {
        self.range_at(lower, upper, Some(snapshot.commit()))
    }

    /// Returns the record of a key as of a snapshot.
    ///
    /// # Errors
    /// [`Error::Damaged`]: the record differs from what was written.
    pub fn get_at(&self, snapshot: &Snapshot, key: &[u8]) -> Result<Option<Record<'_, M>>, Error> {
        let found = self.find(&self.digest(key), key);
        let slot = found.and_then(|key| self.version_at(key, Some(snapshot.commit())));
        slot.map(|slot| self.record(slot)).transpose()
    }

    /// Returns the number of records between two bounds. The count takes two searches, however many records there are.
    /// Within a transaction, the result includes the transaction's own changes.
    #[must_use]
    pub fn count_between(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> u64 {
        match is_reversed(lower, upper) {
            true => 0,
            false => u64::from(self.upto(upper).saturating_sub(self.before(lower))),
        }
    }

    /// Returns the records of [`PacketStore::range`] without the first `first` and the last `last` records. The time
    /// for leaving records out does not depend on their number.
    #[must_use]
    pub fn range_without(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        first: u64,
        last: u64,
    ) -> Range<'_, M> {
        let (low, high) = (u64::from(self.before(lower)), u64::from(self.upto(upper)));
        let place = |place: u64| {
            u32::try_from(place)
                .ok()
                .and_then(|rank| self.keys.nth(rank))
        };
        let (from, to) = (low.saturating_add(first), high.saturating_sub(last));
        let ends = match from < to && !is_reversed(lower, upper) {
            true => place(from).zip(place(to - 1)),
            false => None,
        };
        Range {
            store: self,
            ends,
            at: None,
        }
    }

    /// Returns the number of records before a range with this lower bound.
    fn before(&self, lower: Bound<&[u8]>) -> u32 {
        match lower {
            Bound::Unbounded => 0,
            Bound::Included(key) => self.below(key, false),
            Bound::Excluded(key) => self.below(key, true),
        }
    }

    /// Returns the number of records up to the end of a range with this upper bound.
    fn upto(&self, upper: Bound<&[u8]>) -> u32 {
        match upper {
            Bound::Unbounded => self.keys.counted(),
            Bound::Included(key) => self.below(key, true),
            Bound::Excluded(key) => self.below(key, false),
        }
    }

    fn below(&self, key: &[u8], equal: bool) -> u32 {
        let reader = self.reader();
        let compare = |slot| reader.compare(slot, key);
        self.keys.below(keys::prefix(key), compare, equal)
    }

    fn range_at(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, at: Option<u64>) -> Range<'_, M> {
        Range {
            store: self,
            ends: self.ends(lower, upper),
            at,
        }
    }

    fn ends(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Option<(u32, u32)> {
        if is_reversed(lower, upper) {
            return None;
        }
        let reader = self.reader();
        let seek = |key: &[u8], above| {
            let compare = |slot| reader.compare(slot, key);
            self.keys.seek(keys::prefix(key), compare, above)
        };
        let seek_back = |key: &[u8], equal| {
            let compare = |slot| -> Ordering { reader.compare(slot, key) };
            self.keys.seek_back(keys::prefix(key), compare, equal)
        };
        let first = match lower {
            Bound::Unbounded => self.keys.first(),
            Bound::Included(key) => seek(key, false),
            Bound::Excluded(key) => seek(key, true),
        }?;
        let last = match upper {
            Bound::Unbounded => self.keys.last(),
            Bound::Included(key) => seek_back(key, true),
            Bound::Excluded(key) => seek_back(key, false),
        }?;
        // If there is no key between the bounds, the key `last` is before the key `first`.
        (self.keys.next(last) != Some(first)).then_some((first, last))
    }
}

/// Returns whether no key can be between two bounds.
fn is_reversed(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Excluded(high))
        | (Bound::Excluded(low), Bound::Included(high)) => low >= high,
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
    }
}

impl<'a, M: Media> Range<'a, M> {
    fn seen(&self, key: u32) -> Option<Result<Record<'a, M>, Error>> {
        let slot = self.store.version_at(key, self.at)?;
        Some(self.store.record(slot))
    }
}

impl<'a, M: Media> Iterator for Range<'a, M> {
    type Item = Result<Record<'a, M>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some((first, last)) = self.ends {
            let next = self.store.keys.next(first).filter(|_| first != last);
            self.ends = next.map(|next| (next, last));
            if let Some(found) = self.seen(first) {
                return Some(found);
            }
        }
        None
    }
}

impl<M: Media> DoubleEndedIterator for Range<'_, M> {
    fn next_back(&mut self) -> Option<Self::Item> {
        while let Some((first, last)) = self.ends {
            let before = self.store.keys.previous(last).filter(|_| first != last);
            self.ends = before.map(|before| (first, before));
            if let Some(found) = self.seen(last) {
                return Some(found);
            }
        }
        None
    }
}
