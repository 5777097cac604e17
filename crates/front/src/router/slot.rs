//! Redis Cluster's hash slots: which slot a key belongs to, and which shard serves a slot.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

/// How many slots there are.
pub const SLOTS: u16 = 16_384;
/// Most shards behind one router.
pub const SHARDS_MAX: usize = 256;

/// CRC16 as Redis Cluster uses it (XMODEM: polynomial 0x1021, begins with 0).
const CRC16: [u16; 256] = crc16_table();

const fn crc16_table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        let [high, _] = crc.to_be_bytes();
        (crc << 8) ^ CRC16[usize::from(high ^ byte)]
    })
}

/// The slot of a key: of what is between its first `{` and the `}` that follows, if there is something, else of all of it.
#[must_use]
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = || {
        let open = key.iter().position(|byte| *byte == b'{')?;
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    };
    crc16(tag().unwrap_or(key)) % SLOTS
}

/// Why slots cannot be given out like this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// No shard at all.
    #[error("no shard is named: at least one needs slots")]
    Empty,
    /// More than [`SHARDS_MAX`].
    #[error("{0} shards: at most {SHARDS_MAX} are possible")]
    TooMany(usize),
    /// Not a number, or not a range of slots.
    #[error("slots {0:?}: write numbers and ranges from 0 to 16383, such as 0-5460")]
    Syntax(String),
    /// A range that ends before it begins.
    #[error("slots {0}-{1}: the range ends before it begins")]
    Backwards(u16, u16),
    /// A shard without slots.
    #[error("shard {0} of the list has no slots")]
    NoSlots(usize),
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

/// Reads ranges of slots: numbers, or two with `-` between them, separated by commas.
///
/// # Errors
/// [`MapError::Syntax`], [`MapError::Backwards`].
pub fn parse_slots(text: &str) -> Result<Vec<RangeInclusive<u16>>, MapError> {
    let wrong = || MapError::Syntax(text.to_owned());
    let number = |digits: &str| {
        let digits = digits.trim();
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let slot = digits.parse().ok().filter(|slot| plain && *slot < SLOTS);
        slot.ok_or_else(wrong)
    };
    text.split(',')
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return Err(MapError::Backwards(first, last));
            }
            Ok(first..=last)
        })
        .collect()
}

/// Which shard serves which slots. Shards are numbered from 0 here, in the order of the list; people count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotMap {
    /// For each slot its shard plus 1; 0: none.
    shards: Vec<u16>,
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
                    .ok_or_else(|| MapError::Syntax(slot.to_string()))?;
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
            count: ranges.len(),
        })
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

    /// The ranges of a shard, or those that nobody serves.
    #[must_use]
    pub fn ranges(&self, shard: Option<usize>) -> Vec<RangeInclusive<u16>> {
        let mut found: Vec<RangeInclusive<u16>> = Vec::new();
        for slot in (0..SLOTS).filter(|slot| self.shard(*slot) == shard) {
            match found.last_mut() {
                Some(range) if *range.end() + 1 == slot => *range = *range.start()..=slot,
                _ => found.push(slot..=slot),
            }
        }
        found
    }

    /// Those that nobody serves, for people; `None` if all are served.
    #[must_use]
    pub fn gaps(&self) -> Option<String> {
        let gaps = self.ranges(None);
        (!gaps.is_empty()).then(|| shown(&gaps, ", "))
    }
}

/// Ranges as Redis Cluster writes them.
pub(super) fn shown(ranges: &[RangeInclusive<u16>], between: &str) -> String {
    let mut text = String::new();
    for range in ranges {
        if !text.is_empty() {
            text.push_str(between);
        }
        let (first, last) = (range.start(), range.end());
        let written = if first == last {
            write!(text, "{first}")
        } else {
            write!(text, "{first}-{last}")
        };
        written.expect("writing to a string");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_that_redis_cluster_publishes() {
        // Its specification: the test value of the CRC, and the examples of hash tags.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"123456789"), 12739);
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of(b""), 0);
        let same = |a: &str, b: &str| assert_eq!(slot_of(a.as_bytes()), slot_of(b.as_bytes()));
        same("{user1000}.following", "{user1000}.followers");
        same("{user1000}.following", "user1000");
        same("foo{{bar}}zap", "{bar");
        same("foo{bar}{zap}", "bar");
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot_of(b"foo{bar"), crc16(b"foo{bar") % SLOTS);
    }

    #[test]
    fn ranges_are_read_and_shown() {
        let ranges = parse_slots("0-5460, 6000,16383").unwrap();
        assert_eq!(ranges, [0..=5460, 6000..=6000, 16383..=16383]);
        for bad in ["", "1-", "-1", "a", "16384", "1-16384", "1;2", "+1", "1,,2"] {
            assert!(
                matches!(parse_slots(bad), Err(MapError::Syntax(_))),
                "{bad}"
            );
        }
        assert_eq!(parse_slots("5-4"), Err(MapError::Backwards(5, 4)));
    }

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
        let many = vec![vec![0..=0]; SHARDS_MAX + 1];
        assert_eq!(SlotMap::new(&many), Err(MapError::TooMany(SHARDS_MAX + 1)));
    }
}
