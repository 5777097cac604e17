//! Changes to the image of a log that keep its checksums correct. Bit rot cannot make such changes;
//! a fuzzer needs them to reach the code after the checksums. The module is written from
//! `docs/spec/ordered-log.md` §5 and §6, not from the code.

use crate::input::Input;

const BLOCK: usize = 4096;
const ENTRY: usize = 64;

/// Offset of the frame ring as superblock copy 0 states it; 0 if that is outside of the image.
fn frames_at(image: &[u8]) -> usize {
    usize::try_from(long(image, 48))
        .ok()
        .and_then(|entries| entries.checked_mul(ENTRY))
        .and_then(|bytes| bytes.checked_add(2 * BLOCK))
        .filter(|at| *at < image.len())
        .unwrap_or(0)
}

fn long(image: &[u8], at: usize) -> u64 {
    let bytes = image
        .get(at..at + 8)
        .and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

fn word(image: &[u8], at: usize) -> u32 {
    let bytes = image
        .get(at..at + 4)
        .and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_le_bytes)
}

/// Makes one change, drawn from the input.
pub fn change(image: &mut Vec<u8>, input: &mut Input<'_>) {
    if image.len() < 2 * BLOCK {
        return;
    }
    let frames = frames_at(image);
    let metadata = frames.max(2 * BLOCK + ENTRY);
    match input.byte() % 12 {
        0 => flip(image, 0..2 * BLOCK, input),
        1 => flip(image, 2 * BLOCK..metadata, input),
        2 => flip(image, metadata..usize::MAX, input),
        3 => copy_slot(image, metadata, input),
        4 => zero_slots(image, metadata, input),
        5 | 6 => superblock(image, input),
        7 | 8 => entry(image, metadata, input),
        9 => frame(image, metadata, input),
        10 => {
            let (first, second) = image.split_at_mut(BLOCK);
            first.swap_with_slice(&mut second[..BLOCK]);
        }
        _ => {
            let length = input.index(image.len() + BLOCK);
            image.resize(length, 0);
        }
    }
}

fn flip(image: &mut [u8], within: std::ops::Range<usize>, input: &mut Input<'_>) {
    let end = within.end.min(image.len());
    if within.start < end {
        let at = within.start + input.index(end - within.start);
        image[at] ^= input.byte();
    }
}

fn slot(metadata: usize, input: &mut Input<'_>) -> usize {
    2 * BLOCK + ENTRY * input.index((metadata - 2 * BLOCK) / ENTRY)
}

fn copy_slot(image: &mut [u8], metadata: usize, input: &mut Input<'_>) {
    let (from, to) = (slot(metadata, input), slot(metadata, input));
    if from.max(to) + ENTRY <= image.len() {
        image.copy_within(from..from + ENTRY, to);
    }
}

fn zero_slots(image: &mut [u8], metadata: usize, input: &mut Input<'_>) {
    let (from, count) = (slot(metadata, input), 1 + input.index(8));
    let end = (from + count * ENTRY).min(image.len());
    if from < end {
        image[from..end].fill(0);
    }
}

/// Changes a field of a superblock, and corrects the checksum.
fn superblock(image: &mut [u8], input: &mut Input<'_>) {
    let block = BLOCK * input.index(2);
    let field = input.pick(&[8, 16, 24, 40, 44, 48, 56, 64, 68, 72, 76, 80, 88, 96]);
    put(
        image,
        block + field,
        matches!(field, 16 | 24 | 48 | 56 | 80 | 88),
        input,
    );
    image[block + 12..block + 16].fill(0);
    let crc = crc32c::crc32c(&image[block..block + BLOCK]);
    image[block + 12..block + 16].copy_from_slice(&crc.to_le_bytes());
}

/// Changes the number at `at` to a nearby or random one.
fn put(image: &mut [u8], at: usize, wide: bool, input: &mut Input<'_>) {
    if wide {
        let value = input.near(long(image, at).wrapping_add(1));
        image[at..at + 8].copy_from_slice(&value.to_le_bytes());
    } else {
        let value = input.near_word(word(image, at).wrapping_add(1));
        image[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}

/// Changes some fields of an entry, perhaps moves it to the slot of its order, and corrects the
/// checksums.
fn entry(image: &mut [u8], metadata: usize, input: &mut Input<'_>) {
    let at = slot(metadata, input);
    if at + ENTRY > image.len() {
        return;
    }
    let mut copy = image[at..at + ENTRY].to_vec();
    for _ in 0..1 + input.index(4) {
        let field = input.pick(&[0, 8, 16, 24, 28, 32, 36, 44, 48, 52, 56]);
        put(&mut copy, field, field < 24, input);
    }
    let entries = u64::try_from((metadata - 2 * BLOCK) / ENTRY).expect("small");
    let own = usize::try_from(long(&copy, 0) % entries).expect("small");
    let to = 2 * BLOCK + own * ENTRY;
    if to + ENTRY <= image.len() {
        image[to..to + ENTRY].copy_from_slice(&copy);
        seal(image, metadata, to);
    }
}

/// Changes a byte of a frame, and corrects the checksums of its entry.
fn frame(image: &mut [u8], metadata: usize, input: &mut Input<'_>) {
    let at = slot(metadata, input);
    let start = metadata.saturating_add(usize::try_from(word(image, at + 32)).unwrap_or(0) * 64);
    let place = start.saturating_add(usize::from(input.byte()));
    if let Some(byte) = image.get_mut(place) {
        *byte ^= input.byte();
        seal(image, metadata, at);
    }
}

/// Corrects both checksums of the entry at `at`, if its frame is in the image.
fn seal(image: &mut [u8], metadata: usize, at: usize) {
    let wide = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    let start = metadata.saturating_add(wide(word(image, at + 32)).saturating_mul(64));
    let end = start.saturating_add(wide(word(image, at + 36)));
    let header_len = usize::from(u16::from_le_bytes([image[at + 56], image[at + 57]]));
    let Some(frame) = image
        .get(start..end)
        .filter(|frame| frame.len() >= header_len)
    else {
        return;
    };
    let (header, payload) = frame.split_at(header_len);
    let payload_crc = crc32c::crc32c(payload).to_le_bytes();
    let header = header.to_vec();
    image[at + 40..at + 44].copy_from_slice(&payload_crc);
    // The checksum covers uuid, era, entry, slot, lap and the frame's header.
    let (order, entries) = (long(image, at), long(image, 48).max(1));
    let mut crc = crc32c::crc32c(&image[24..40]);
    crc = crc32c::crc32c_append(crc, &image[72..76]);
    crc = crc32c::crc32c_append(crc, &image[at..at + 60]);
    crc = crc32c::crc32c_append(crc, &(order % entries).to_le_bytes());
    crc = crc32c::crc32c_append(crc, &(order / entries).to_le_bytes());
    crc = crc32c::crc32c_append(crc, &header);
    image[at + 60..at + 64].copy_from_slice(&crc.to_le_bytes());
}
