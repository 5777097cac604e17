//! The shard of each of Redis Cluster's hash slots.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

pub use pmnet_wire::slots::{SLOTS, parse_slots, slot_of};
use pmnet_wire::slots::{SlotsError, shown};

/// Maximum number of shards of one router.
pub const SHARDS_MAX: usize = 256;

/// Why a list of ranges of slots is not a valid map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The list of shards is empty.
    #[error("no shard is named: at least one needs slots")]
    Empty,
    /// There are more shards than [`SHARDS_MAX`].
    #[error("{0} shards: at most {SHARDS_MAX} are possible")]
    TooMany(usize),
    /// A text is not a list of slots.
    #[error(transparent)]
    Slots(#[from] SlotsError),
    /// A shard has no slots.
    #[error("shard {0} of the list has no slots")]
    NoSlots(usize),
    /// A slot is marked as being moved, but no shard serves it.
    #[error("slot {0} is to be moving, and belongs to no shard")]
    MovesUnserved(u16),
    /// A slot has two shards.
    #[error("slot {slot} belongs to shard {first} and to shard {second} of the list")]
    Overlap {
        /// The slot.
        slot: u16,
        /// The first shard that has the slot.
        first: usize,
        /// The second shard that has the slot.
        second: usize,
    },
}

/// The shard that serves each slot. In this type shards are numbered from 0, in the order of the list. Users number
/// shards from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotMap {
    /// For each slot, the number of its shard plus 1; 0: no shard.
    shards: Vec<u16>,
    /// Slots that are being moved to another shard. Meanwhile, commands for keys of these slots are refused.
    moving: BTreeSet<u16>,
    count: usize,
}

impl SlotMap {
    /// Makes a map from the ranges of each shard.
    ///
    /// # Errors
    /// [`MapError`] if the ranges are not a valid map.
    pub fn new(ranges: &[Vec<RangeInclusive<u16>>]) -> Result<SlotMap, MapError> {
        if ranges.is_empty() {
            return Err(MapError::Empty);
        }
        if ranges.len() > SHARDS_MAX {
            return Err(MapError::TooMany(ranges.len()));
        }
        let mut shards = vec![0_u16; usize::from(SLOTS)];
        for (number, own) in (1_u16..).zip(ranges) {
            if own.iter().all(RangeInclusive::is_empty) {
                return Err(MapError::NoSlots(usize::from(number)));
            }
            for slot in own.iter().cloned().flatten() {
                let place = shards
                    .get_mut(usize::from(slot))
                    .ok_or_else(|| SlotsError::Syntax(slot.to_string()))?;
                if *place != 0 {
                    return Err(MapError::Overlap {
                        slot,
                        first: usize::from(*place),
                        second: usize::from(number),
                    });
                }
                *place = number;
            }
        }
        Ok(SlotMap {
            shards,
            moving: BTreeSet::new(),
            count: ranges.len(),
        })
    }

    /// Returns this map with these slots marked as being moved.
    ///
    /// # Errors
    /// [`MapError::MovesUnserved`] if no shard serves one of the slots.
    pub fn with_moving(mut self, ranges: &[RangeInclusive<u16>]) -> Result<SlotMap, MapError> {
        self.moving = ranges.iter().cloned().flatten().collect();
        match self.moving.iter().find(|slot| self.shard(**slot).is_none()) {
            Some(slot) => Err(MapError::MovesUnserved(*slot)),
            None => Ok(self),
        }
    }

    /// Whether a slot is being moved.
    #[must_use]
    pub fn is_moving(&self, slot: u16) -> bool {
        self.moving.contains(&slot)
    }

    /// Returns the slots that are being moved, as text; `None` if there are none.
    #[must_use]
    pub fn moving(&self) -> Option<String> {
        all(self.moving.iter().copied())
    }

    /// Returns, as text, the slots that have one shard in this map and another shard in `other`; `None` if there are
    /// none.
    #[must_use]
    pub fn differing(&self, other: &SlotMap) -> Option<String> {
        all((0..SLOTS).filter(|slot| self.shard(*slot) != other.shard(*slot)))
    }

    /// Returns the slots that shard `from` serves in this map and shard `to` serves in `other`, as text;
    /// `None` if there are none.
    #[must_use]
    pub fn moved(&self, other: &SlotMap, from: Option<usize>, to: Option<usize>) -> Option<String> {
        let moved = |slot: &u16| self.shard(*slot) == from && other.shard(*slot) == to;
        all((0..SLOTS).filter(moved))
    }

    /// Returns the number of shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.count
    }

    /// Returns the shard that serves a slot.
    #[must_use]
    pub fn shard(&self, slot: u16) -> Option<usize> {
        let number = self.shards.get(usize::from(slot))?;
        usize::from(*number).checked_sub(1)
    }

    /// Returns the ranges of a shard; for `None`, the ranges that no shard serves.
    #[must_use]
    pub fn ranges(&self, shard: Option<usize>) -> Vec<RangeInclusive<u16>> {
        joined((0..SLOTS).filter(|slot| self.shard(*slot) == shard))
    }

    /// Returns the ranges of slots that any shard serves, joined where they touch.
    pub(super) fn served(&self) -> Vec<RangeInclusive<u16>> {
        joined((0..SLOTS).filter(|slot| self.shard(*slot).is_some()))
    }

    /// Returns the number of slots that no shard serves.
    #[must_use]
    pub fn unserved(&self) -> usize {
        self.shards.iter().filter(|shard| **shard == 0).count()
    }

    /// Returns the number of slots that are being moved.
    #[must_use]
    pub fn moving_count(&self) -> usize {
        self.moving.len()
    }

    /// Returns the slots that no shard serves, as text; `None` if all are served.
    #[must_use]
    pub fn gaps(&self) -> Option<String> {
        all((0..SLOTS).filter(|slot| self.shard(*slot).is_none()))
    }
}

/// Joins ascending slots to ranges.
fn joined(slots: impl Iterator<Item = u16>) -> Vec<RangeInclusive<u16>> {
    let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
    for slot in slots {
        match ranges.last_mut() {
            Some(last) if *last.end() + 1 == slot => *last = *last.start()..=slot,
            _ => ranges.push(slot..=slot),
        }
    }
    ranges
}

/// Returns ascending slots as a text of ranges; `None` if there are none.
fn all(slots: impl Iterator<Item = u16>) -> Option<String> {
    let ranges = joined(slots);
    (!ranges.is_empty()).then(|| shown(&ranges, ", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_has_one_shard_or_none() {
        let map = |lists: &[&str]| {
            let ranges: Vec<_> = lists
                .iter()
                .map(|text| parse_slots(text).unwrap())
                .collect();
            SlotMap::new(&ranges)
        };
        let found = map(&["0-5460,9000", "5461-8999,9001-16382"]).unwrap();
        assert_eq!(found.shards(), 2);
        assert_eq!(found.shard(5460), Some(0));
        assert_eq!(found.shard(9000), Some(0));
        assert_eq!(found.shard(5461), Some(1));
        assert_eq!(found.shard(16383), None);
        assert_eq!(found.gaps().as_deref(), Some("16383"));
        assert_eq!(shown(&found.ranges(Some(0)), " "), "0-5460 9000");
        assert_eq!(map(&["0-16383"]).unwrap().gaps(), None);
        assert_eq!(map(&[]), Err(MapError::Empty));
        assert_eq!(
            map(&["0-10", "20", "10-12"]),
            Err(MapError::Overlap {
                slot: 10,
                first: 1,
                second: 3
            })
        );
        assert_eq!(SlotMap::new(&[vec![]]), Err(MapError::NoSlots(1)));
        let moving = |slot: u16| found.clone().with_moving(&[slot..=slot]);
        assert!(moving(9000).unwrap().is_moving(9000) && !found.is_moving(9000));
        assert_eq!(moving(9000).unwrap().moving().as_deref(), Some("9000"));
        let many = found.clone().with_moving(&[7..=9, 300..=300, 10..=12]);
        assert_eq!(many.unwrap().moving().as_deref(), Some("7-12, 300"));
        assert_eq!(moving(16383), Err(MapError::MovesUnserved(16383)));
        let other = map(&["0-5460", "5461-16382"]).unwrap();
        assert_eq!(found.differing(&other).as_deref(), Some("9000"));
        assert_eq!(found.differing(&found), None);
        let many = vec![vec![0..=0]; SHARDS_MAX + 1];
        assert_eq!(SlotMap::new(&many), Err(MapError::TooMany(SHARDS_MAX + 1)));
    }
}
