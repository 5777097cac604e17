//! A line: 64 bytes that describe one version of a record (`docs/spec/packet-store.md` §3).
//!
//! ```text
//! 0      8      16      24        32         39     40      52      56            60     64
//! +------+------+-------+---------+----------+------+-------+-------+-------------+------+
//! | born | dead | order | expires | received | kind | place | frame | payload crc | crc  |
//! +------+------+-------+---------+----------+------+-------+-------+-------------+------+
//! ```
//! `dead`: the number of the commit that deleted the record. If the record is not deleted: the inverted bits of `born`.
//! `place`, with the number of bits of each field, from the lowest bit: lengths 50, form 2, start in the frame 12,
//! bytes in the frame 13, prefix of the key 19 (zero unless the record is in a packet). The field of the lengths has 25
//! bits for the key, and 25 bits for the value. For a record in a packet it has 13 bits for each length, followed by
//! the offset of the key (12) and the gap between key and value (12). `crc` is CRC32C over the store's uuid, the slot,
//! all bytes of the line except `dead`, and the part of the key that lies in the frame. So a line is valid in only one
//! slot of one store, and a changed key makes the line invalid.

use std::ops::Range;

use crate::geometry::{Geometry, LINE_BYTES, index, take};
use crate::prefix::{PREFIX_BITS, Prefix};

/// Longest key, in bytes: as long as the largest message, plus space for a prefix.
pub const KEY_BYTES_MAX: usize = (16 << 20) + 256;
/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = (1 << 25) - 1;
/// Latest time of receipt that a line can hold, in microseconds since 1970.
const RECEIVED_MAX: u64 = (1 << 56) - 1;

const DEAD_AT: usize = 8;
const RECEIVED_AT: usize = 32;
const KIND_AT: usize = 39;
const PLACE_AT: usize = 40;
const PLACE_BYTES: usize = 12;
/// Offset of the prefix in `place`, in bits. The prefix is the last field.
const PREFIX_AT: u32 = 77;
const _: () = assert!(PREFIX_AT + PREFIX_BITS == 96, "the field is full");
const FRAME_AT: usize = 52;
const PAYLOAD_CRC_AT: usize = 56;
const CRC_AT: usize = 60;

/// The form of the bytes in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The key, and then the value. If key and value do not fit into this frame, pieces hold the remaining bytes.
    Plain,
    /// A packet's payload with key and value somewhere in it.
    Packet,
    /// A packet's payload with key and value somewhere in it, and other records in the same payload.
    Shared,
    /// The continuation of a record of the form [`Form::Plain`].
    Piece,
}

/// One line, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Number of the commit that wrote the line.
    pub born: u64,
    /// Order of the write in the log. In the line of a piece, this field has the index of the piece (from 0) in its
    /// upper half, and the slot of its record in its lower half.
    pub order: u64,
    /// Time at which the packet was received, in microseconds since 1970; 0: unknown.
    pub received_us: u64,
    /// Kind of the value. The kind has no meaning for the store.
    pub kind: u8,
    /// Time of expiry, in milliseconds since 1970; 0: never.
    pub expires_at_ms: u64,
    pub key_len: u32,
    pub value_len: u32,
    pub form: Form,
    pub frame: u32,
    /// Offset of the payload in the frame.
    pub start: u16,
    /// Length of the payload in this frame, in bytes.
    pub len: u16,
    /// Offset of the key in the payload.
    pub key_at: u16,
    /// Number of bytes between key and value.
    pub gap: u16,
    /// Prefix of the key. The bytes of the prefix are not in the payload.
    pub prefix: Prefix,
    /// CRC32C of the payload in this frame.
    pub payload_crc: u32,
}

impl Line {
    /// Returns the 64 bytes of the line of a version that is not deleted. `key` is the part of the key that lies in the
    /// frame.
    pub fn encode(&self, seed: u32, slot: u32, key: &[u8]) -> [u8; LINE_BYTES] {
        let mut out = [0; LINE_BYTES];
        out[0..8].copy_from_slice(&self.born.to_le_bytes());
        out[DEAD_AT..16].copy_from_slice(&alive(self.born).to_le_bytes());
        out[16..24].copy_from_slice(&self.order.to_le_bytes());
        out[24..32].copy_from_slice(&self.expires_at_ms.to_le_bytes());
        let received = self.received_us.min(RECEIVED_MAX).to_le_bytes();
        out[RECEIVED_AT..KIND_AT].copy_from_slice(&received[..KIND_AT - RECEIVED_AT]);
        out[KIND_AT] = self.kind;
        let (key_len, value_len) = (u128::from(self.key_len), u128::from(self.value_len));
        let in_packet =
            key_len | value_len << 13 | u128::from(self.key_at) << 26 | u128::from(self.gap) << 38;
        let (form, lengths) = match self.form {
            Form::Plain => (0, key_len | value_len << 25),
            Form::Packet => (1, in_packet),
            Form::Shared => (2, in_packet),
            Form::Piece => (3, 0),
        };
        let place = lengths
            | form << 50
            | u128::from(self.start) << 52
            | u128::from(self.len) << 64
            | u128::from(self.prefix.in_line()) << PREFIX_AT;
        out[PLACE_AT..PLACE_AT + PLACE_BYTES].copy_from_slice(&place.to_le_bytes()[..PLACE_BYTES]);
        out[FRAME_AT..FRAME_AT + 4].copy_from_slice(&self.frame.to_le_bytes());
        out[PAYLOAD_CRC_AT..CRC_AT].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = checksum(&out, seed, slot, key);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes a line without any check.
    pub fn decode(raw: &[u8; LINE_BYTES]) -> Line {
        let place = place(raw);
        let wide = |at: u32, bits: u32| -> u32 {
            u32::try_from(place >> at & ((1 << bits) - 1)).expect("at most 25 bits")
        };
        let narrow =
            |at: u32, bits: u32| -> u16 { u16::try_from(wide(at, bits)).expect("at most 13 bits") };
        let form = match wide(50, 2) {
            0 => Form::Plain,
            1 => Form::Packet,
            2 => Form::Shared,
            _ => Form::Piece,
        };
        let (key_len, value_len, key_at, gap) = match form {
            Form::Plain | Form::Piece => (wide(0, 25), wide(25, 25), 0, 0),
            Form::Packet | Form::Shared => {
                (wide(0, 13), wide(13, 13), narrow(26, 12), narrow(38, 12))
            }
        };
        Line {
            born: u64::from_le_bytes(take(raw, 0)),
            order: u64::from_le_bytes(take(raw, 16)),
            received_us: u64::from_le_bytes(take(raw, RECEIVED_AT)) & RECEIVED_MAX,
            kind: raw[KIND_AT],
            expires_at_ms: u64::from_le_bytes(take(raw, 24)),
            key_len,
            value_len,
            form,
            start: narrow(52, 12),
            len: narrow(64, 13),
            key_at,
            gap,
            prefix: Prefix::from_line(wide(PREFIX_AT, PREFIX_BITS)),
            frame: u32::from_le_bytes(take(raw, FRAME_AT)),
            payload_crc: u32::from_le_bytes(take(raw, PAYLOAD_CRC_AT)),
        }
    }

    /// Decodes a line of an untrusted image without checking its checksum. Returns `None` if the line points outside of
    /// the image, or contradicts itself.
    pub fn plausible(raw: &[u8; LINE_BYTES], geometry: &Geometry) -> Option<Line> {
        let line = Line::decode(raw);
        let end = usize::from(line.start) + usize::from(line.len);
        let lengths = index(line.key_len) + index(line.value_len);
        let in_packet = line.is_in_packet();
        let inside = match line.form {
            Form::Plain => {
                let key_is_here = index(line.key_len) <= usize::from(line.len);
                usize::from(line.len) <= lengths
                    && (key_is_here || usize::from(line.len) == geometry.frame_len())
            }
            Form::Packet | Form::Shared => line.value().end <= usize::from(line.len),
            Form::Piece => lengths == 0 && line.len > 0 && line.head() < geometry.lines,
        };
        let possible = line.born != 0
            && line.frame < geometry.frames
            && end <= geometry.frame_len()
            && (in_packet || line.prefix == Prefix::NONE)
            && index(line.key_len) <= KEY_BYTES_MAX
            && inside;
        possible.then_some(line)
    }

    /// Returns the range of the line's payload in the image.
    pub fn payload(&self, geometry: &Geometry) -> Range<usize> {
        let start = geometry.frame_offset(self.frame) + usize::from(self.start);
        start..start + usize::from(self.len)
    }

    /// Returns the range, in the payload, of the part of the key that lies in this frame.
    pub fn key_part(&self) -> Range<usize> {
        let start = usize::from(self.key_at);
        let end = (start + index(self.key_len)).min(usize::from(self.len));
        start.min(end)..end
    }

    /// Returns the range of the value in the payload, if the whole record lies in one frame.
    pub fn value(&self) -> Range<usize> {
        let start = usize::from(self.key_at) + index(self.key_len) + usize::from(self.gap);
        start..start + index(self.value_len)
    }

    /// Returns whether the record of the line is in a packet.
    pub fn is_in_packet(&self) -> bool {
        matches!(self.form, Form::Packet | Form::Shared)
    }

    /// Returns the total length of all parts of the record, in bytes.
    pub fn total(&self) -> usize {
        match self.form {
            Form::Plain => index(self.key_len) + index(self.value_len),
            Form::Packet | Form::Shared | Form::Piece => usize::from(self.len),
        }
    }

    /// Returns the number of pieces that belong to the record of this line.
    pub fn pieces(&self, geometry: &Geometry) -> usize {
        (self.total() - usize::from(self.len)).div_ceil(geometry.frame_len())
    }

    /// Returns the slot of the record to which this piece belongs.
    pub fn head(&self) -> u32 {
        u32::try_from(self.order & u64::from(u32::MAX)).expect("32 bits")
    }

    /// Returns the value of the field `order` of a piece.
    pub fn piece_of(head: u32, piece: u32) -> u64 {
        u64::from(piece) << 32 | u64::from(head)
    }
}

/// Returns the bits of the field `place`.
fn place(raw: &[u8; LINE_BYTES]) -> u128 {
    let mut place = [0; 16];
    place[..PLACE_BYTES].copy_from_slice(&raw[PLACE_AT..PLACE_AT + PLACE_BYTES]);
    u128::from_le_bytes(place)
}

/// Returns whether the checksum of a line is right; `key` is the part of the key that lies in its frame.
pub(crate) fn is_whole(raw: &[u8; LINE_BYTES], seed: u32, slot: u32, key: &[u8]) -> bool {
    checksum(raw, seed, slot, key) == stored_crc(raw)
}

fn stored_crc(raw: &[u8; LINE_BYTES]) -> u32 {
    u32::from_le_bytes(take(raw, CRC_AT))
}

fn checksum(raw: &[u8; LINE_BYTES], seed: u32, slot: u32, key: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(seed ^ slot.rotate_left(7), &raw[..DEAD_AT]);
    let crc = crc32c::crc32c_append(crc, &raw[16..CRC_AT]);
    crc32c::crc32c_append(crc, key)
}

/// Returns the number of the commit that deleted the record; `None` if the record is not deleted.
pub(crate) fn dead(raw: &[u8; LINE_BYTES]) -> Option<u64> {
    let born = u64::from_le_bytes(take(raw, 0));
    let dead = u64::from_le_bytes(take(raw, DEAD_AT));
    (dead != alive(born)).then_some(dead)
}

/// Returns the word `dead` of a line that is not deleted. The word fits only this line. If the line is overwritten and
/// torn, no other word of the old or the new line makes the line valid again.
pub(crate) fn alive(born: u64) -> u64 {
    !born
}

/// Returns the offset, in the image, of the word `dead` of the line in a slot.
pub(crate) fn dead_word(geometry: &Geometry, slot: u32) -> usize {
    geometry.line(slot).start + DEAD_AT
}

/// Returns the number that this line adds to the sum of a commit record. Sums wrap around. The sums of different lines,
/// or of lines in other slots, are equal only with a chance of one in 2^64.
pub(crate) fn share(raw: &[u8; LINE_BYTES], slot: u32) -> u64 {
    let born = u64::from_le_bytes(take(raw, 0));
    let mut mixed = born
        ^ (u64::from(slot) << 32 | u64::from(stored_crc(raw))).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Line {
        Line {
            born: 0x0102_0304_0506_0708,
            order: u64::MAX - 3,
            received_us: RECEIVED_MAX,
            kind: 0xfe,
            expires_at_ms: u64::MAX,
            key_len: 16,
            value_len: 2000,
            form: Form::Packet,
            frame: 77,
            start: 22,
            len: 2026,
            key_at: 3,
            gap: 7,
            prefix: Prefix::from_line((1 << PREFIX_BITS) - 1),
            payload_crc: 0xdead_beef,
        }
    }

    const GEOMETRY: Geometry = Geometry {
        lines: 128,
        frames: 128,
        frame_bytes: 2048,
        log_entries: 0,
    };

    #[test]
    fn round_trip_at_the_limits_of_every_field() {
        let long = Line {
            key_len: (1 << 25) - 1,
            value_len: (1 << 25) - 1,
            form: Form::Plain,
            start: 4095,
            len: 4096,
            key_at: 0,
            gap: 0,
            prefix: Prefix::NONE,
            frame: u32::MAX,
            ..sample()
        };
        let packet = Line {
            key_len: (1 << 13) - 1,
            value_len: (1 << 13) - 1,
            form: Form::Shared,
            key_at: 4095,
            gap: 4095,
            prefix: Prefix::from_line(1),
            ..long
        };
        for line in [sample(), long, packet] {
            assert_eq!(Line::decode(&line.encode(5, 9, b"k")), line);
        }
    }

    #[test]
    fn every_flipped_byte_but_those_of_dead_is_seen() {
        let raw = sample().encode(5, 9, b"key");
        assert!(is_whole(&raw, 5, 9, b"key"));
        assert!(
            !is_whole(&raw, 6, 9, b"key")
                && !is_whole(&raw, 5, 10, b"key")
                && !is_whole(&raw, 5, 9, b"kez")
        );
        for at in 0..LINE_BYTES {
            let mut bad = raw;
            bad[at] ^= 0x10;
            assert_eq!(
                is_whole(&bad, 5, 9, b"key"),
                (8..16).contains(&at),
                "byte {at}"
            );
        }
    }

    #[test]
    fn what_points_outside_is_not_plausible() {
        let good = sample();
        assert_eq!(
            Line::plausible(&good.encode(0, 0, b""), &GEOMETRY),
            Some(good)
        );
        for bad in [
            Line { born: 0, ..good },
            Line { frame: 128, ..good },
            Line { start: 23, ..good },
            Line { len: 2025, ..good },
            Line { gap: 8, ..good },
            Line {
                key_len: 17,
                ..good
            },
            Line {
                form: Form::Plain,
                ..good
            },
            Line {
                form: Form::Plain,
                key_at: 0,
                gap: 0,
                len: 2016,
                ..good
            },
            Line {
                form: Form::Piece,
                ..good
            },
            Line {
                form: Form::Piece,
                key_len: 0,
                value_len: 0,
                order: 128,
                ..good
            },
        ] {
            assert_eq!(
                Line::plausible(&bad.encode(0, 0, b""), &GEOMETRY),
                None,
                "{bad:?}"
            );
        }
    }
}
