//! The two superblocks (`docs/spec/ordered-log.md` §6).
//!
//! ```text
//! 0       8         12    16        24         40       44      48        56            64
//! +-------+---------+-----+---------+----------+--------+-------+---------+-------------+
//! | magic | version | crc | counter | log uuid | device | shard | entries | frame bytes |
//! +-------+---------+-----+---------+----------+--------+-------+---------+-------------+
//! 64      68            72    76     80        88        96                               4096
//! +-------+-------------+-----+------+---------+---------+--------------------------------+
//! | epoch | incarnation | era |served| applied | durable | buffer bytes (version 2), zero |
//! +-------+-------------+-----+------+---------+---------+--------------------------------+
//! ```
//! The superblock with counter `n` is written to copy `n mod 2`, so a write never touches the newest copy. `crc` is
//! CRC32C over the block with `crc` as zero. The places of `crc` and `version` are the same in every format version. A
//! change of epoch, incarnation or era is complete only when both copies have it. So a later loss of one copy never
//! brings an older value back.

use std::ops::Range;

use crate::error::LogError;
use crate::layout::{BLOCK_BYTES, FrameSpace, Identity, Parameters, take};
use crate::media::{Media, persist_now};

/// Newest format version of the whole log that this crate reads and writes. In version 1 the frame space is a ring; in
/// version 2 it consists of packet buffers.
pub const FORMAT_VERSION: u32 = 2;
const VERSION_RING: u32 = 1;
const VERSION_BUFFERS: u32 = 2;

const MAGIC: [u8; 8] = *b"PMNETLOG";
const CRC_AT: usize = 12;
const USED_BYTES: usize = 100;
/// Highest counter. A higher counter is refused as damaged, because no log is ever written so often.
const COUNTER_MAX: u64 = u64::MAX / 2;

/// Contents of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub counter: u64,
    pub identity: Identity,
    pub parameters: Parameters,
    pub epoch: u32,
    pub incarnation: u32,
    /// Number of resets. The number is part of every entry's checksum, so a reset makes all entries invalid at once.
    pub era: u32,
    /// Last incarnation that was marked to serve; 0: none.
    pub served: u32,
    /// All orders up to this order need not be kept.
    pub applied: u64,
    /// All orders up to this order were durable when the superblock was written.
    pub durable: u64,
}

/// State of a superblock copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// The copy is readable, and of this format version.
    Valid,
    /// All bytes are zero.
    Zero,
    /// The copy is whole, but of another format version.
    OtherVersion(u32),
    /// The copy has the magic number, but a wrong checksum or an impossible field: it is torn or damaged.
    Broken,
    /// The copy has no magic number.
    Foreign,
}

impl Superblock {
    fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut out = [0; BLOCK_BYTES];
        out[0..8].copy_from_slice(&MAGIC);
        let (version, buffer_bytes) = match self.parameters.space {
            FrameSpace::Ring => (VERSION_RING, 0),
            FrameSpace::Buffers(bytes) => (VERSION_BUFFERS, bytes),
        };
        out[8..12].copy_from_slice(&version.to_le_bytes());
        out[16..24].copy_from_slice(&self.counter.to_le_bytes());
        out[24..40].copy_from_slice(&self.identity.log_uuid.to_le_bytes());
        out[40..44].copy_from_slice(&self.identity.device.to_le_bytes());
        out[44..48].copy_from_slice(&self.identity.shard.to_le_bytes());
        out[48..56].copy_from_slice(&self.parameters.entries.to_le_bytes());
        out[56..64].copy_from_slice(&self.parameters.frame_bytes.to_le_bytes());
        out[64..68].copy_from_slice(&self.epoch.to_le_bytes());
        out[68..72].copy_from_slice(&self.incarnation.to_le_bytes());
        out[72..76].copy_from_slice(&self.era.to_le_bytes());
        out[76..80].copy_from_slice(&self.served.to_le_bytes());
        out[80..88].copy_from_slice(&self.applied.to_le_bytes());
        out[88..96].copy_from_slice(&self.durable.to_le_bytes());
        out[96..100].copy_from_slice(&buffer_bytes.to_le_bytes());
        let crc = crc32c::crc32c(&out);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(block: &[u8; BLOCK_BYTES]) -> (CopyState, Option<Superblock>) {
        if is_zero(block) {
            return (CopyState::Zero, None);
        }
        if block[..8] != MAGIC {
            return (CopyState::Foreign, None);
        }
        let mut plain = *block;
        plain[CRC_AT..CRC_AT + 4].fill(0);
        if crc32c::crc32c(&plain) != u32::from_le_bytes(take(block, CRC_AT)) {
            return (CopyState::Broken, None);
        }
        let version = u32::from_le_bytes(take(block, 8));
        let buffer_bytes = u32::from_le_bytes(take(block, 96));
        let space = match (version, buffer_bytes) {
            (VERSION_RING, 0) => FrameSpace::Ring,
            (VERSION_BUFFERS, bytes) => FrameSpace::Buffers(bytes),
            (VERSION_RING, _) => return (CopyState::Broken, None),
            _ => return (CopyState::OtherVersion(version), None),
        };
        let found = Superblock {
            counter: u64::from_le_bytes(take(block, 16)),
            identity: Identity {
                log_uuid: u128::from_le_bytes(take(block, 24)),
                device: u32::from_le_bytes(take(block, 40)),
                shard: u32::from_le_bytes(take(block, 44)),
            },
            parameters: Parameters {
                entries: u64::from_le_bytes(take(block, 48)),
                frame_bytes: u64::from_le_bytes(take(block, 56)),
                space,
            },
            epoch: u32::from_le_bytes(take(block, 64)),
            incarnation: u32::from_le_bytes(take(block, 68)),
            era: u32::from_le_bytes(take(block, 72)),
            served: u32::from_le_bytes(take(block, 76)),
            applied: u64::from_le_bytes(take(block, 80)),
            durable: u64::from_le_bytes(take(block, 88)),
        };
        let possible = found.parameters.validate().is_ok()
            && found.counter <= COUNTER_MAX
            && found.durable >= found.applied
            && found.durable - found.applied <= found.parameters.entries
            && found.durable < u64::MAX - found.parameters.entries
            && found.served <= found.incarnation
            && is_zero(&block[USED_BYTES..]);
        if possible {
            (CopyState::Valid, Some(found))
        } else {
            (CopyState::Broken, None)
        }
    }

    /// Stores this superblock under the next counter; returns the range to persist.
    pub(crate) fn store_next<M: Media>(&mut self, media: &mut M) -> Range<usize> {
        self.counter += 1;
        let start = if self.counter.is_multiple_of(2) {
            0
        } else {
            BLOCK_BYTES
        };
        media.store(start, &self.encode());
        start..start + BLOCK_BYTES
    }

    /// Makes this superblock durable in both copies, one after the other.
    pub(crate) fn commit<M: Media>(&mut self, media: &mut M) -> Result<(), LogError> {
        for _copy in 0..2 {
            let range = self.store_next(media);
            persist_now(media, &[range])?;
        }
        Ok(())
    }
}

/// Reads both copies and chooses one (`docs/spec/recovery.md` §2).
pub(crate) fn read(image: &[u8]) -> Result<(Superblock, [CopyState; 2]), LogError> {
    if image.len() < 2 * BLOCK_BYTES {
        return Err(LogError::Truncated {
            image: image.len(),
            needed: 2 * BLOCK_BYTES,
        });
    }
    let (first, second) = (
        Superblock::decode(&take(image, 0)),
        Superblock::decode(&take(image, BLOCK_BYTES)),
    );
    let states = [first.0, second.0];
    for state in states {
        if let CopyState::OtherVersion(found) = state {
            return Err(LogError::Version {
                found,
                known: FORMAT_VERSION,
            });
        }
    }
    let newest = match (first.1, second.1) {
        (Some(a), Some(b)) => {
            let (newest, older) = if a.counter > b.counter {
                (a, b)
            } else {
                (b, a)
            };
            let grown = newest.counter == older.counter + 1
                && newest.identity == older.identity
                && newest.parameters == older.parameters
                && newest.epoch >= older.epoch
                && newest.incarnation >= older.incarnation
                && newest.served >= older.served
                && newest.era >= older.era;
            if !grown {
                return Err(LogError::Superblock {
                    why: "the two copies contradict each other".into(),
                });
            }
            newest
        }
        (Some(found), None) | (None, Some(found)) => found,
        (None, None) => return Err(unreadable(states, image)),
    };
    let needed = newest.parameters.image_bytes();
    if image.len() < needed {
        return Err(LogError::Truncated {
            image: image.len(),
            needed,
        });
    }
    Ok((newest, states))
}

/// The properties of a log that the newest superblock of its image states; entries are not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heading {
    /// Identity of the log.
    pub identity: Identity,
    /// Incarnation, which every start raises.
    pub incarnation: u32,
    /// Last incarnation that was marked to serve.
    pub served: u32,
}

impl Heading {
    /// Returns whether an image with this heading is no newer than an image of the same log with heading `other`. If
    /// the headings are equal, either image may be the newer image.
    #[must_use]
    pub fn may_precede(&self, other: &Heading) -> bool {
        self.identity == other.identity
            && self.incarnation <= other.incarnation
            && self.served <= other.served
    }
}

/// Returns the heading of an image.
///
/// # Errors
/// [`LogError`]: no superblock of the image can be read.
pub fn heading(image: &[u8]) -> Result<Heading, LogError> {
    let newest = read(image)?.0;
    Ok(Heading {
        identity: newest.identity,
        incarnation: newest.incarnation,
        served: newest.served,
    })
}

/// Returns the size of the log in an image. The superblocks at the beginning of the image suffice.
///
/// # Errors
/// [`LogError`]: no superblock of the image can be read.
pub fn parameters(image: &[u8]) -> Result<Parameters, LogError> {
    Ok(read(image)?.0.parameters)
}

/// Returns the two superblock blocks for a copy of an image with a longer frame space of `frame_bytes` bytes. A block
/// that is no valid superblock stays unchanged.
///
/// # Panics
/// If `head` is shorter than two blocks.
#[must_use]
pub fn enlarged(head: &[u8], frame_bytes: u64) -> [[u8; BLOCK_BYTES]; 2] {
    [0, BLOCK_BYTES].map(|start| {
        let block = take(head, start);
        match Superblock::decode(&block).1 {
            Some(mut found) => {
                found.parameters.frame_bytes = frame_bytes;
                found.encode()
            }
            None => block,
        }
    })
}

fn unreadable(states: [CopyState; 2], image: &[u8]) -> LogError {
    let rest_is_zero = || is_zero(&image[2 * BLOCK_BYTES..]);
    match states {
        [CopyState::Zero, CopyState::Zero] if rest_is_zero() => LogError::Blank,
        [CopyState::Zero, CopyState::Zero] => LogError::Superblock {
            why: "both copies are zero, and there is data behind them".into(),
        },
        // `format` writes copy 1 first and makes it durable before it touches copy 0.
        [CopyState::Zero, CopyState::Broken | CopyState::Foreign]
            if is_zero(&image[BLOCK_BYTES + USED_BYTES..]) =>
        {
            LogError::InterruptedFormat
        }
        [CopyState::Broken, _] | [_, CopyState::Broken] => LogError::Superblock {
            why: "no copy has a right checksum".into(),
        },
        _ => LogError::Foreign,
    }
}

/// Creates an empty log in a blank image. The log is durable when the call returns. The next step is
/// [`Scan::open`](crate::Scan::open).
///
/// # Errors
/// [`LogError::Parameters`], [`LogError::Truncated`] (image too small), [`LogError::NotBlank`] when
/// any byte of the place that the log would take is not zero, [`LogError::Media`].
pub fn format<M: Media>(
    mut media: M,
    identity: &Identity,
    parameters: &Parameters,
) -> Result<(), LogError> {
    parameters.validate()?;
    let needed = parameters.image_bytes();
    let Some(place) = media.bytes().get(..needed) else {
        return Err(LogError::Truncated {
            image: media.bytes().len(),
            needed,
        });
    };
    if !is_zero(place) {
        return Err(LogError::NotBlank);
    }
    let mut superblock = Superblock {
        counter: 0,
        identity: *identity,
        parameters: *parameters,
        epoch: 0,
        incarnation: 0,
        era: 0,
        served: 0,
        applied: 0,
        durable: 0,
    };
    superblock.commit(&mut media)
}

/// Returns whether every byte is zero. The function compares eight bytes at a time, because an image may have
/// gigabytes.
fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            counter: 7,
            identity: Identity {
                log_uuid: 1 << 100 | 5,
                device: 3,
                shard: 9,
            },
            parameters: Parameters::ring(64, 8192),
            epoch: 2,
            incarnation: 4,
            era: 1,
            served: 0,
            applied: 100,
            durable: 120,
        }
    }

    fn image(first: Option<Superblock>, second: Option<Superblock>) -> Vec<u8> {
        let mut image = vec![0; sample().parameters.image_bytes()];
        for (at, copy) in [(0, first), (BLOCK_BYTES, second)] {
            if let Some(copy) = copy {
                image[at..at + BLOCK_BYTES].copy_from_slice(&copy.encode());
            }
        }
        image
    }

    #[test]
    fn round_trip_and_every_flipped_byte() {
        let block = sample().encode();
        assert_eq!(
            Superblock::decode(&block),
            (CopyState::Valid, Some(sample()))
        );
        for at in 0..BLOCK_BYTES {
            let mut bad = block;
            bad[at] ^= 0x10;
            let expected = if at < 8 {
                CopyState::Foreign
            } else {
                CopyState::Broken
            };
            assert_eq!(Superblock::decode(&bad), (expected, None), "byte {at}");
        }
    }

    #[test]
    fn impossible_fields_are_broken_even_with_a_right_checksum() {
        let mut bad = [sample(); 6];
        bad[0].applied = 121;
        bad[1].parameters.entries = 63;
        bad[2].parameters.frame_bytes = 100;
        bad[3].applied = 1;
        bad[4].applied = u64::MAX - 1;
        bad[4].durable = u64::MAX - 1;
        // Both copies have the highest possible counter. Regression: the next write needed a higher counter, and the
        // repair panicked.
        bad[5].counter = u64::MAX;
        for superblock in bad {
            assert_eq!(
                Superblock::decode(&superblock.encode()).0,
                CopyState::Broken
            );
        }
    }

    #[test]
    fn the_newest_of_two_wins_and_one_is_enough() {
        let old = sample();
        let new = Superblock {
            counter: 8,
            epoch: 3,
            ..old
        };
        for (first, second) in [(Some(new), Some(old)), (Some(new), None), (None, Some(new))] {
            assert_eq!(read(&image(first, second)).unwrap().0, new);
        }
        let mut broken = image(Some(new), Some(old));
        broken[70] ^= 1;
        assert_eq!(
            read(&broken).unwrap(),
            (old, [CopyState::Broken, CopyState::Valid])
        );
    }

    #[test]
    fn contradictions_and_other_versions_are_refused() {
        let old = sample();
        for new in [
            Superblock { counter: 9, ..old },
            Superblock {
                counter: 8,
                epoch: 1,
                ..old
            },
            Superblock {
                counter: 8,
                identity: Identity {
                    shard: 8,
                    ..old.identity
                },
                ..old
            },
        ] {
            assert!(matches!(
                read(&image(Some(new), Some(old))),
                Err(LogError::Superblock { .. })
            ));
        }
        let mut future = image(Some(old), Some(Superblock { counter: 8, ..old }));
        future[8] = 3;
        future[CRC_AT..CRC_AT + 4].fill(0);
        let crc = crc32c::crc32c(&future[..BLOCK_BYTES]);
        future[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        assert!(matches!(
            read(&future),
            Err(LogError::Version { found: 3, known: 2 })
        ));
    }

    #[test]
    fn blank_foreign_interrupted_wiped_and_truncated_are_told_apart() {
        let blank = image(None, None);
        assert!(matches!(read(&blank), Err(LogError::Blank)));
        let mut wiped = blank.clone();
        wiped[9000] = 1;
        assert!(matches!(read(&wiped), Err(LogError::Superblock { .. })));
        let mut text = blank.clone();
        text[..5].copy_from_slice(b"hello");
        assert!(matches!(read(&text), Err(LogError::Foreign)));
        let mut torn = image(None, Some(sample()));
        torn[BLOCK_BYTES..BLOCK_BYTES + 64].fill(0);
        assert!(matches!(read(&torn), Err(LogError::InterruptedFormat)));
        let whole = image(Some(sample()), None);
        assert!(matches!(
            read(&whole[..whole.len() - 1]),
            Err(LogError::Truncated { .. })
        ));
        assert!(matches!(
            read(&whole[..100]),
            Err(LogError::Truncated { .. })
        ));
    }
}
