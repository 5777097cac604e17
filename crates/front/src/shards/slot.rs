//! Which shard serves which of Redis Cluster's hash slots.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

pub use pmnet_wire::slots::{SLOTS, parse_slots, slot_of};
use pmnet_wire::slots::{SlotsError, shown};

/// Most shards of one router.
pub const SHARDS_MAX: usize = 256;

/// Why slots cannot be given out like this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// No shard at all.
    #[error("no shard is named: at least one needs slots")]
    Empty,
    /// More than [`SHARDS_MAX`].
    #[error("{0} shards: at most {SHARDS_MAX} are possible")]
    TooMany(usize),
    /// Not a list of slots.
    #[error(transparent)]
    Slots(#[from] SlotsError),
    /// A shard without slots.
    #[error("shard {0} of the list has no slots")]
    NoSlots(usize),
    /// A slot that is being moved and that no shard serves.
    #[error("slot {0} is to be moving, and belongs to no shard")]
    MovesUnserved(u16),
    /// A slot with two shards.
    #[error("slot {slot} belongs to shard {first} and to shard {second} of the list")]
    Overlap {
        /// The slot.
        slot: u16,
        /// The shard that has it.
        first: usize,
        /// The shard that wants it, too.
        second: usize,
    },
}

/// Which shard serves which slots. Shards are numbered from 0 here, in the order of the list; people count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotMap {
    /// For each slot its shard plus 1; 0: none.
    shards: Vec<u16>,
    /// Those that are being moved to another shard: commands for their keys are refused meanwhile.
    moving: BTreeSet<u16>,
    count: usize,
}

impl SlotMap {
    /// Gives each shard its ranges.
    ///
    /// # Errors
    /// [`MapError`].
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

    /// The same map, with these slots being moved.
    ///
    /// # Errors
    /// [`MapError::MovesUnserved`].
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

    /// Those that are being moved, for people; `None` if there are none.
    #[must_use]
    pub fn moving(&self) -> Option<String> {
        all(self.moving.iter().copied())
    }

    /// Those that another shard serves in `other`, for people; `None` if there are none.
    #[must_use]
    pub fn differing(&self, other: &SlotMap) -> Option<String> {
        all((0..SLOTS).filter(|slot| self.shard(*slot) != other.shard(*slot)))
    }

    /// Those that this shard serves here, and that one in `other`, for people; `None` if there are none.
    #[must_use]
    pub fn moved(&self, other: &SlotMap, from: Option<usize>, to: Option<usize>) -> Option<String> {
        let moved = |slot: &u16| self.shard(*slot) == from && other.shard(*slot) == to;
        all((0..SLOTS).filter(moved))
    }

    /// How many shards there are.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.count
    }

    /// The shard that serves a slot.
    #[must_use]
    pub fn shard(&self, slot: u16) -> Option<usize> {
        let number = self.shards.get(usize::from(slot))?;
        usize::from(*number).checked_sub(1)
    }

    /// The ranges of a shard, or those that no shard serves.
    #[must_use]
    pub fn ranges(&self, shard: Option<usize>) -> Vec<RangeInclusive<u16>> {
        joined((0..SLOTS).filter(|slot| self.shard(*slot) == shard))
    }

    /// The ranges that any shard serves, joined.
    pub(super) fn served(&self) -> Vec<RangeInclusive<u16>> {
        joined((0..SLOTS).filter(|slot| self.shard(*slot).is_some()))
    }

    /// How many slots no shard serves.
    #[must_use]
    pub fn unserved(&self) -> usize {
        self.shards.iter().filter(|shard| **shard == 0).count()
    }

    /// How many slots are being moved.
    #[must_use]
    pub fn moving_count(&self) -> usize {
        self.moving.len()
    }

    /// Those that no shard serves, for people; `None` if all are served.
    #[must_use]
    pub fn gaps(&self) -> Option<String> {
        all((0..SLOTS).filter(|slot| self.shard(*slot).is_none()))
    }
}

/// Ascending slots as ranges.
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

/// The same for people; `None` if there are none.
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
