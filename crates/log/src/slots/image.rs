//! The image of a queue (two heads, two cursors, slots), its creation, and the checks when it is read.

use std::ops::Range;

use crate::layout::{Identity, take, to_u64};
use crate::media::{Media, MediaError, persist_now};

/// Minimum number of slots of a queue.
pub const SLOTS_MIN: u32 = 4;
/// Maximum number of slots of a queue; NICs have the same limit for shared receive queues.
pub const SLOTS_MAX: u32 = 1 << 15;
/// Smallest slot, in bytes.
pub const SLOT_BYTES_MIN: u32 = 128;
/// Largest slot, in bytes.
pub const SLOT_BYTES_MAX: u32 = 1 << 16;
/// Highest message number. A cursor with a higher number is refused as damaged, because no queue ever receives so many
/// messages.
pub const NUMBER_MAX: u64 = 1 << 51;

const MAGIC: [u8; 8] = *b"PMNETSLT";
const VERSION: u32 = 1;
const CRC_AT: usize = 12;
const LINE: usize = 64;
const HEAD_BYTES: usize = LINE;
/// Offsets of the heads.
const HEADS: [usize; 2] = [0, 2048];
/// Offsets of the cursors. Each cursor has a line of its own, so that a store changes only the cursor.
const CURSORS: [usize; 2] = [64, 2048 + 64];
const SLOTS_AT: usize = 4096;
/// Number of bits in a cursor that are a checksum of its other bits.
const CHECK_BITS: u32 = 12;

/// Size of a queue, fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotParameters {
    /// Slots: a power of two from [`SLOTS_MIN`] to [`SLOTS_MAX`].
    pub slots: u32,
    /// Bytes of a slot: a multiple of 64 from [`SLOT_BYTES_MIN`] to [`SLOT_BYTES_MAX`]. The NIC refuses a longer
    /// message.
    pub slot_bytes: u32,
}

/// Reason why a queue of slots could not be created, opened or kept.
#[derive(Debug, thiserror::Error)]
pub enum SlotsError {
    /// The parameters break a bound.
    #[error(
        "{0} slots of {1} bytes: the number must be a power of two from {SLOTS_MIN} to {SLOTS_MAX}, the bytes a multiple of 64 \
         from {SLOT_BYTES_MIN} to {SLOT_BYTES_MAX}"
    )]
    Parameters(u32, u32),
    /// The image is shorter than the queue in it.
    #[error(
        "the image has {image} bytes, the slots need {needed}: the file was truncated, or is too small. What the NIC has \
         acknowledged may be in what is missing: restore it"
    )]
    Truncated {
        /// Bytes of the image.
        image: usize,
        /// Bytes that the queue needs.
        needed: usize,
    },
    /// All bytes are zero: there is no queue.
    #[error("the image is blank: make slots in it first (format)")]
    Blank,
    /// `format` was asked to overwrite data.
    #[error(
        "the image is not blank, so no slots were made in it: delete the file (zero the devdax device) if it may go; nothing was \
         changed"
    )]
    NotBlank,
    /// The image has data, but no slots of pmnet.
    #[error(
        "these are no pmnet slots (no magic number found): check the path; nothing was changed"
    )]
    Foreign,
    /// The creation of the queue was interrupted; nothing was received into it.
    #[error(
        "the making of these slots was interrupted before anything was received: delete the file (zero the devdax device) and \
         start again"
    )]
    InterruptedFormat,
    /// The queue has another format version.
    #[error(
        "the slots have format version {found}, this program knows version {VERSION}: use the program that made them; nothing was \
         changed"
    )]
    Version {
        /// Version in the image.
        found: u32,
    },
    /// The heads or the cursors cannot be trusted.
    #[error(
        "the slots are damaged ({0}): what the NIC has acknowledged and is not in the log cannot be put in order. Keep the image; \
         nothing was changed"
    )]
    Damaged(&'static str),
    /// The queue belongs to another log.
    #[error(
        "the slots belong to the log of device {}, shard {}, and not to this one: check the path; nothing was changed",
        .0.device, .0.shard
    )]
    OtherLog(Identity),
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
}

impl SlotParameters {
    /// Checks the bounds.
    ///
    /// # Errors
    /// [`SlotsError::Parameters`].
    pub fn validate(&self) -> Result<(), SlotsError> {
        let slots = self.slots.is_power_of_two() && (SLOTS_MIN..=SLOTS_MAX).contains(&self.slots);
        let bytes = self.slot_bytes.is_multiple_of(64)
            && (SLOT_BYTES_MIN..=SLOT_BYTES_MAX).contains(&self.slot_bytes);
        if slots && bytes {
            Ok(())
        } else {
            Err(SlotsError::Parameters(self.slots, self.slot_bytes))
        }
    }

    /// Returns the number of bytes of the whole image.
    #[must_use]
    pub fn image_bytes(&self) -> usize {
        SLOTS_AT + size(self.slots) * size(self.slot_bytes)
    }

    /// Returns the range of the image into which message number `number` is received.
    #[must_use]
    pub fn place(&self, number: u64) -> Range<usize> {
        let bytes = size(self.slot_bytes);
        let start = SLOTS_AT + self.slot(number) * bytes;
        start..start + bytes
    }

    /// Returns the slot of a message number.
    pub(super) fn slot(&self, number: u64) -> usize {
        usize::try_from(number % u64::from(self.slots)).expect("fewer than SLOTS_MAX")
    }
}

/// Converts a `u32` to a `usize`.
fn size(value: u32) -> usize {
    usize::try_from(value).expect("u32 fits usize")
}

/// Contents of the two heads.
pub(super) struct Head {
    pub identity: Identity,
    pub parameters: SlotParameters,
}

enum Copy {
    Valid([u8; HEAD_BYTES]),
    Zero,
    Version(u32),
    Broken,
    Foreign,
}

fn encode(identity: &Identity, parameters: &SlotParameters) -> [u8; HEAD_BYTES] {
    let mut out = [0; HEAD_BYTES];
    out[0..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[16..32].copy_from_slice(&identity.log_uuid.to_le_bytes());
    out[32..36].copy_from_slice(&identity.device.to_le_bytes());
    out[36..40].copy_from_slice(&identity.shard.to_le_bytes());
    out[40..44].copy_from_slice(&parameters.slots.to_le_bytes());
    out[44..48].copy_from_slice(&parameters.slot_bytes.to_le_bytes());
    let crc = crc32c::crc32c(&out);
    out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    out
}

fn copy(image: &[u8], at: usize) -> Copy {
    let raw: [u8; HEAD_BYTES] = take(image, at);
    if raw == [0; HEAD_BYTES] {
        return Copy::Zero;
    }
    if raw[..8] != MAGIC {
        return Copy::Foreign;
    }
    let mut blank = raw;
    blank[CRC_AT..CRC_AT + 4].fill(0);
    if crc32c::crc32c(&blank) != u32::from_le_bytes(take(&raw, CRC_AT)) {
        return Copy::Broken;
    }
    match u32::from_le_bytes(take(&raw, 8)) {
        VERSION => Copy::Valid(raw),
        found => Copy::Version(found),
    }
}

fn decode(raw: &[u8; HEAD_BYTES]) -> Result<Head, SlotsError> {
    let word = |at| u32::from_le_bytes(take(raw, at));
    let head = Head {
        identity: Identity {
            log_uuid: u128::from_le_bytes(take(raw, 16)),
            device: word(32),
            shard: word(36),
        },
        parameters: SlotParameters {
            slots: word(40),
            slot_bytes: word(44),
        },
    };
    match head.parameters.validate() {
        Ok(()) => Ok(head),
        Err(_) => Err(SlotsError::Damaged("a head with impossible numbers")),
    }
}

/// Reads and checks the heads.
pub(super) fn read(image: &[u8]) -> Result<Head, SlotsError> {
    if image.len() < SLOTS_AT {
        let needed = SLOTS_AT;
        return match is_zero(image) {
            true => Err(SlotsError::Blank),
            false => Err(SlotsError::Truncated {
                image: image.len(),
                needed,
            }),
        };
    }
    let head = match HEADS.map(|at| copy(image, at)) {
        [Copy::Version(found), _] | [_, Copy::Version(found)] => {
            return Err(SlotsError::Version { found });
        }
        [Copy::Valid(one), Copy::Valid(other)] if one != other => {
            return Err(SlotsError::Damaged("the two heads contradict each other"));
        }
        // The heads are equal, because they are written only once, before any message is received.
        [Copy::Valid(raw), _] | [_, Copy::Valid(raw)] => decode(&raw)?,
        [Copy::Zero, Copy::Zero] if is_zero(image) => return Err(SlotsError::Blank),
        [Copy::Zero, other] if rest_is_zero(image) && !matches!(other, Copy::Broken) => {
            return Err(SlotsError::InterruptedFormat);
        }
        [Copy::Zero, Copy::Broken] if rest_is_zero(image) => {
            return Err(SlotsError::InterruptedFormat);
        }
        [Copy::Broken | Copy::Zero, Copy::Broken | Copy::Zero] => {
            return Err(SlotsError::Damaged("no head can be read"));
        }
        _ => return Err(SlotsError::Foreign),
    };
    let needed = head.parameters.image_bytes();
    if image.len() < needed {
        return Err(SlotsError::Truncated {
            image: image.len(),
            needed,
        });
    }
    Ok(head)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Returns whether all bytes except heads and cursors are zero.
fn rest_is_zero(image: &[u8]) -> bool {
    let between = &image[CURSORS[0] + 8..HEADS[1]];
    is_zero(between) && is_zero(&image[CURSORS[1] + 8..])
}

/// Returns a cursor as it is stored: one word, so that a crash leaves the old or the new cursor, but never a mixture.
/// The low bits of the word are a checksum of the other bits.
fn seal(log_uuid: u128, number: u64) -> u64 {
    let crc = crc32c::crc32c_append(
        crc32c::crc32c(&log_uuid.to_le_bytes()),
        &number.to_le_bytes(),
    );
    number << CHECK_BITS | u64::from(crc >> (u32::BITS - CHECK_BITS))
}

/// Returns the highest cursor in an image. One persist writes both cursors. If the persist of the highest cursor was
/// interrupted, its messages are nevertheless entered, because the persist begins only after that. So the highest
/// cursor is right in every case.
pub(super) fn cursor(image: &[u8], head: &Head) -> Result<u64, SlotsError> {
    let uuid = head.identity.log_uuid;
    let one = |at: usize| {
        let word = u64::from_le_bytes(take(image, at));
        let number = word >> CHECK_BITS;
        (seal(uuid, number) == word && number <= NUMBER_MAX).then_some(number)
    };
    match CURSORS.map(one) {
        [None, None] => Err(SlotsError::Damaged("no cursor can be read")),
        [Some(one), Some(other)] if one.abs_diff(other) > u64::from(head.parameters.slots) => {
            Err(SlotsError::Damaged("the two cursors contradict each other"))
        }
        [one, other] => Ok(one.max(other).expect("at least one is there")),
    }
}

/// Stores both cursors; returns the lines that must be persisted.
pub(super) fn store_cursor<M: Media>(
    media: &mut M,
    log_uuid: u128,
    number: u64,
) -> [Range<usize>; 2] {
    let word = seal(log_uuid, number).to_le_bytes();
    CURSORS.map(|at| {
        media.store(at, &word);
        at..at + LINE
    })
}

/// Creates an empty queue that belongs to the log `identity`. The image must be blank.
///
/// # Errors
/// [`SlotsError`]; nothing was changed, unless the medium failed.
pub fn format<M: Media>(
    media: &mut M,
    identity: Identity,
    parameters: SlotParameters,
) -> Result<(), SlotsError> {
    parameters.validate()?;
    let (image, needed) = (media.bytes(), parameters.image_bytes());
    if image.len() < needed {
        return Err(SlotsError::Truncated {
            image: image.len(),
            needed,
        });
    }
    if !is_zero(image) {
        return Err(SlotsError::NotBlank);
    }
    let lines = store_cursor(media, identity.log_uuid, 0);
    persist_now(media, &lines)?;
    let head = encode(&identity, &parameters);
    for at in HEADS.into_iter().rev() {
        media.store(at, &head);
        let line = at..at + HEAD_BYTES;
        persist_now(media, std::slice::from_ref(&line))?;
    }
    debug_assert!(to_u64(needed) <= to_u64(media.bytes().len()));
    Ok(())
}
