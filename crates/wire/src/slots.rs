//! Redis Cluster's hash slots: the slot of a key, and the notation of ranges of slots. Fronts of many shards, and
//! servers whose store is a Redis Cluster, use these rules.

use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::sync::OnceLock;

/// Number of slots.
pub const SLOTS: u16 = 16_384;

/// Table of CRC16 as Redis Cluster uses it (XMODEM: polynomial 0x1021, initial value 0).
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

/// Returns the slot of a key. If the text between the key's first `{` and the next `}` is not empty, only this text
/// counts; otherwise the whole key.
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

/// Reason why a text is no list of slots.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotsError {
    /// The text is not a number of a slot, or not a range of slots.
    #[error("slots {0:?}: write numbers and ranges from 0 to 16383, such as 0-5460")]
    Syntax(String),
    /// A range ends before it begins.
    #[error("slots {0}-{1}: the range ends before it begins")]
    Backwards(u16, u16),
}

/// Reads ranges of slots: numbers, or two numbers with `-` between them, separated by commas.
///
/// # Errors
/// [`SlotsError::Syntax`], [`SlotsError::Backwards`].
pub fn parse_slots(text: &str) -> Result<Vec<RangeInclusive<u16>>, SlotsError> {
    let wrong = || SlotsError::Syntax(text.to_owned());
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
                return Err(SlotsError::Backwards(first, last));
            }
            Ok(first..=last)
        })
        .collect()
}

/// Returns ranges in the notation of Redis Cluster, separated by `between`.
///
/// # Panics
/// Never: writing to a string does not fail.
#[must_use]
pub fn shown(ranges: &[RangeInclusive<u16>], between: &str) -> String {
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

/// Returns the smallest number whose digits, used as a hash tag, belong to this slot.
///
/// # Panics
/// If there is no such slot.
#[must_use]
pub fn tag_of(slot: u16) -> u32 {
    static TAGS: OnceLock<Vec<u32>> = OnceLock::new();
    let tags = TAGS.get_or_init(|| {
        let mut tags = vec![None; usize::from(SLOTS)];
        let mut missing = tags.len();
        for number in 0_u32.. {
            let place = &mut tags[usize::from(slot_of(number.to_string().as_bytes()))];
            if place.is_none() {
                *place = Some(number);
                missing -= 1;
            }
            if missing == 0 {
                break;
            }
        }
        tags.into_iter().flatten().collect()
    });
    tags[usize::from(slot)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_that_redis_cluster_publishes() {
        // Values from the specification: the test value of the CRC, and the examples of hash tags.
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
                matches!(parse_slots(bad), Err(SlotsError::Syntax(_))),
                "{bad}"
            );
        }
        assert_eq!(parse_slots("5-4"), Err(SlotsError::Backwards(5, 4)));
    }

    #[test]
    fn ranges_are_written_as_they_are_read() {
        let text = "0-5460 6000 16383";
        let ranges = parse_slots(&text.replace(' ', ",")).unwrap();
        assert_eq!(shown(&ranges, " "), text);
    }

    #[test]
    fn each_slot_has_a_tag() {
        for slot in 0..SLOTS {
            assert_eq!(slot_of(format!("x{{{}}}y", tag_of(slot)).as_bytes()), slot);
        }
        assert_eq!(tag_of(slot_of(b"0")), 0);
    }
}
