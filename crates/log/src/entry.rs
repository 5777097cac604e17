//! The 64-byte entry of the metadata ring (`docs/spec/ordered-log.md` §5).
//!
//! ```text
//! 0       8         16    24            28            32           36
//! +-------+---------+-----+-------------+-------------+------------+-----------+
//! | order | session | seq | durable lag | applied lag | frame line | frame len |
//! +-------+---------+-----+-------------+-------------+------------+-----------+
//! 40            44      48            52         54         56           58     59     60     64
//! +-------------+-------+-------------+----------+----------+------------+------+------+------+
//! | payload crc | epoch | incarnation | fragment | of count | header len | kind | skew | crc  |
//! +-------------+-------+-------------+----------+----------+------------+------+------+------+
//! ```
//! A lag is the distance from `order` down to the durable or applied order. `crc` is CRC32C over the log's uuid and
//! era, bytes 0..60, slot, generation and the frame's header; the payload has its own checksum, computed once by the
//! client. This module turns entries into bytes and back; it does not interpret them.

use std::ops::Range;

use crate::layout::{ENTRY_BYTES, FRAME_ALIGN, FrameSpace, Identity, Parameters, take, to_u64};

/// Longest frame, in bytes: header and payload of one datagram.
pub const FRAME_LEN_MAX: usize = 65_535;
/// Longest header part of a frame, in bytes.
pub const HEADER_LEN_MAX: usize = 512;

const CRC_AT: usize = 60;

/// The reason why a slot that is not zero holds no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InvalidSlot {
    /// A field has an impossible value: the order belongs to another slot, a lag is impossible, or the frame's place or
    /// length is impossible.
    Fields,
    /// The entry's checksum is wrong.
    Checksum,
    /// The frame's payload does not have the checksum that the entry states.
    Payload,
}

/// Whether a scan checks the payloads of frames. A scan that does not check them takes an entry with a torn payload for
/// a whole entry (protocol.md §8), as the simulator shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payloads {
    /// Payloads are checked, which is the only correct choice.
    Checked,
    /// Payloads are not checked.
    #[cfg(feature = "rules")]
    Trusted,
}

/// Data about a frame, from the caller of [`Log::append`](crate::Log::append).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewEntry {
    /// Session of the update (protocol.md §1).
    pub session: u64,
    /// Sequence number within the session.
    pub seq: u64,
    /// Kind of packet, which has no meaning for the log.
    pub kind: u8,
    /// Index of this fragment, from 0.
    pub fragment_index: u16,
    /// Number of fragments of the update.
    pub fragment_count: u16,
}

/// One entry as read from the metadata ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Position in the log.
    pub order: u64,
    /// Session of the update.
    pub session: u64,
    /// Sequence number within the session.
    pub seq: u64,
    /// Durable order of this device when the entry was appended: the entry proves that all orders up to it were
    /// durable.
    pub durable: u64,
    /// Highest order that this device had reclaimed when the entry was appended.
    pub applied: u64,
    /// Epoch of the log when the entry was appended.
    pub epoch: u32,
    /// Incarnation of the device when the entry was appended.
    pub incarnation: u32,
    /// Kind of packet.
    pub kind: u8,
    /// Index of this fragment, from 0.
    pub fragment_index: u16,
    /// Number of fragments of the update.
    pub fragment_count: u16,
    /// Length of the whole frame, in bytes.
    pub frame_len: u32,
    /// Length of the frame's header in bytes; the rest is payload.
    pub header_len: u16,
    /// CRC32C of the payload.
    pub payload_crc: u32,
    /// Start of the frame, in 64-byte lines from the start of the frame space.
    pub(crate) frame_line: u32,
    /// Offset of the frame in its first line, in bytes; 0 in a ring.
    pub(crate) skew: u8,
}

impl Entry {
    /// Returns the byte offset of the frame in the frame space.
    pub(crate) fn frame_offset(&self) -> usize {
        usize::try_from(self.frame_line).expect("u32 fits usize") * FRAME_ALIGN
            + usize::from(self.skew)
    }

    /// Returns the length of the frame in bytes.
    pub(crate) fn frame_bytes(&self) -> usize {
        usize::try_from(self.frame_len).expect("u32 fits usize")
    }

    /// Returns whether the frame's place is possible in a frame space of this kind: in a ring, the frame begins at a
    /// line; with packet buffers, one buffer holds the whole frame.
    fn fits(&self, parameters: &Parameters) -> bool {
        match parameters.space {
            FrameSpace::Ring => self.skew == 0,
            FrameSpace::Buffers(bytes) => {
                let bytes = usize::try_from(bytes).expect("u32 fits usize");
                usize::from(self.skew) < FRAME_ALIGN
                    && self.frame_offset() % bytes + self.frame_bytes() <= bytes
            }
        }
    }

    /// Returns the bytes of the entry with its checksum, for the frame header `header`.
    pub(crate) fn encode(&self, key: &ChecksumKey, header: &[u8]) -> [u8; ENTRY_BYTES] {
        let lag = |below: u64| {
            u32::try_from(self.order - below).expect("lags are bounded by ENTRIES_MAX")
        };
        let mut out = [0; ENTRY_BYTES];
        out[0..8].copy_from_slice(&self.order.to_le_bytes());
        out[8..16].copy_from_slice(&self.session.to_le_bytes());
        out[16..24].copy_from_slice(&self.seq.to_le_bytes());
        out[24..28].copy_from_slice(&lag(self.durable).to_le_bytes());
        out[28..32].copy_from_slice(&lag(self.applied).to_le_bytes());
        out[32..36].copy_from_slice(&self.frame_line.to_le_bytes());
        out[36..40].copy_from_slice(&self.frame_len.to_le_bytes());
        out[40..44].copy_from_slice(&self.payload_crc.to_le_bytes());
        out[44..48].copy_from_slice(&self.epoch.to_le_bytes());
        out[48..52].copy_from_slice(&self.incarnation.to_le_bytes());
        out[52..54].copy_from_slice(&self.fragment_index.to_le_bytes());
        out[54..56].copy_from_slice(&self.fragment_count.to_le_bytes());
        out[56..58].copy_from_slice(&self.header_len.to_le_bytes());
        out[58] = self.kind;
        out[59] = self.skew;
        let crc = key.checksum(&out[..CRC_AT], self.order, header);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Returns the bytes of an entry that was written without a checksum, with its checksum.
    pub(crate) fn seal(
        raw: &[u8; ENTRY_BYTES],
        key: &ChecksumKey,
        header: &[u8],
    ) -> [u8; ENTRY_BYTES] {
        let mut out = *raw;
        let crc = key.checksum(&raw[..CRC_AT], Entry::decode(raw).order, header);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads an entry that is known to be valid, because it was appended in this run, or a scan has checked it.
    pub(crate) fn decode(raw: &[u8; ENTRY_BYTES]) -> Entry {
        let order = u64::from_le_bytes(take(raw, 0));
        let below = |at| order.wrapping_sub(u64::from(u32::from_le_bytes(take(raw, at))));
        Entry {
            order,
            session: u64::from_le_bytes(take(raw, 8)),
            seq: u64::from_le_bytes(take(raw, 16)),
            durable: below(24),
            applied: below(28),
            frame_line: u32::from_le_bytes(take(raw, 32)),
            frame_len: u32::from_le_bytes(take(raw, 36)),
            payload_crc: u32::from_le_bytes(take(raw, 40)),
            epoch: u32::from_le_bytes(take(raw, 44)),
            incarnation: u32::from_le_bytes(take(raw, 48)),
            fragment_index: u16::from_le_bytes(take(raw, 52)),
            fragment_count: u16::from_le_bytes(take(raw, 54)),
            header_len: u16::from_le_bytes(take(raw, 56)),
            kind: raw[58],
            skew: raw[59],
        }
    }

    /// Reads an entry from `slot` of an untrusted image, with all checks of `docs/spec/recovery.md` §3. Returns
    /// `Ok(None)` if the slot is all zero.
    pub(crate) fn check(
        raw: &[u8; ENTRY_BYTES],
        slot: u64,
        parameters: &Parameters,
        key: &ChecksumKey,
        frames: &[u8],
        payloads: Payloads,
    ) -> Result<Option<Entry>, InvalidSlot> {
        if raw.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let entry = Entry::decode(raw);
        let durable_lag = u64::from(u32::from_le_bytes(take(raw, 24)));
        let applied_lag = u64::from(u32::from_le_bytes(take(raw, 28)));
        if entry.order == 0
            || entry.order >= u64::MAX - parameters.entries
            || parameters.slot(entry.order) != slot
            || durable_lag == 0
            || durable_lag > applied_lag
            || applied_lag > parameters.entries.min(entry.order)
        {
            return Err(InvalidSlot::Fields);
        }
        let header_len = usize::from(entry.header_len);
        let start = entry.frame_offset();
        let Some(frame) = frames
            .get(start..)
            .and_then(|rest| rest.get(..entry.frame_bytes()))
        else {
            return Err(InvalidSlot::Fields);
        };
        if header_len == 0
            || header_len > frame.len().min(HEADER_LEN_MAX)
            || frame.len() > FRAME_LEN_MAX
            || !entry.fits(parameters)
        {
            return Err(InvalidSlot::Fields);
        }
        let (header, payload) = frame.split_at(header_len);
        if key.checksum(&raw[..CRC_AT], entry.order, header)
            != u32::from_le_bytes(take(raw, CRC_AT))
        {
            return Err(InvalidSlot::Checksum);
        }
        if payloads == Payloads::Checked && crc32c::crc32c(payload) != entry.payload_crc {
            return Err(InvalidSlot::Payload);
        }
        Ok(Some(entry))
    }
}

/// The values that make a checksum valid only in one log, era, slot and lap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChecksumKey {
    seed: u32,
    parameters: Parameters,
}

impl ChecksumKey {
    /// Returns the key of the log `identity`. `era`: number of the log's resets.
    pub(crate) fn new(identity: &Identity, era: u32, parameters: &Parameters) -> ChecksumKey {
        let seed = crc32c::crc32c_append(
            crc32c::crc32c(&identity.log_uuid.to_le_bytes()),
            &era.to_le_bytes(),
        );
        ChecksumKey {
            seed,
            parameters: *parameters,
        }
    }

    fn checksum(&self, fields: &[u8], order: u64, header: &[u8]) -> u32 {
        let mut place = [0; 16];
        place[..8].copy_from_slice(&self.parameters.slot(order).to_le_bytes());
        place[8..].copy_from_slice(&self.parameters.generation(order).to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c_append(self.seed, fields), &place);
        crc32c::crc32c_append(crc, header)
    }
}

/// Returns the frame of `order` in the image of a log that another process or the kernel writes; `None`: the slot of
/// `order` has another order, or no possible entry. Only place and length of the frame are checked. So the function may
/// be called only for orders that the writer has published and has not reclaimed.
#[must_use]
pub fn frame_at<'a>(image: &'a [u8], parameters: &Parameters, order: u64) -> Option<&'a [u8]> {
    let entry = Entry::decode(&raw_slot(image, parameters, parameters.slot(order)));
    let frames = frame_space(image, parameters);
    let frame = frames
        .get(entry.frame_offset()..)?
        .get(..entry.frame_bytes())?;
    (entry.order == order).then_some(frame)
}

/// Returns the number of bytes that a frame of `len` bytes takes in a ring.
pub(crate) fn aligned(len: usize) -> usize {
    len.next_multiple_of(FRAME_ALIGN)
}

/// Returns the whole lines around a frame, because a medium flushes lines.
pub(crate) fn lines(frame: &Range<usize>) -> Range<usize> {
    frame.start - frame.start % FRAME_ALIGN..aligned(frame.end)
}

/// Converts a byte offset in the frame space to lines and remaining bytes.
pub(crate) fn line_of(offset: usize) -> (u32, u8) {
    (
        u32::try_from(to_u64(offset / FRAME_ALIGN))
            .expect("the frame space has at most 2^32 lines"),
        u8::try_from(offset % FRAME_ALIGN).expect("less than a line"),
    )
}

/// Returns the bytes of a slot in `image`.
pub(crate) fn raw_slot(image: &[u8], parameters: &Parameters, slot: u64) -> [u8; ENTRY_BYTES] {
    take(image, parameters.slot_offset(slot))
}

/// Returns the frame space inside `image`.
pub(crate) fn frame_space<'a>(image: &'a [u8], parameters: &Parameters) -> &'a [u8] {
    &image[parameters.frame_space()]
}
