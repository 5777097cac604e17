//! Changes to the image of a packet store, some with correct checksums. Bit rot cannot make such
//! changes; a fuzzer needs them to reach the code after the checksums. The module is written from
//! `docs/spec/packet-store.md` §2, §3 and §4, not from the code.

use crate::input::Input;

const BLOCK: usize = 4096;
const LINE: usize = 64;
const TABLE: usize = 4 * BLOCK;
/// The changed fields of a line, each with its offset: born, dead, order, expires, received and
/// kind, place, frame, payload crc.
const FIELDS: [(usize, usize); 8] = [
    (0, 8),
    (8, 8),
    (16, 8),
    (24, 8),
    (32, 8),
    (40, 12),
    (52, 4),
    (56, 4),
];

fn number(image: &[u8], at: usize, bytes: usize) -> u128 {
    let mut number = [0; 16];
    if let Some(found) = image.get(at..at + bytes) {
        number[..bytes].copy_from_slice(found);
    }
    u128::from_le_bytes(number)
}

fn small(number: u128) -> usize {
    usize::try_from(number & 0xffff_ffff).expect("32 bits")
}

/// Makes one change, drawn from the input. Returns whether a checksum was corrected.
pub fn change(image: &mut Vec<u8>, input: &mut Input<'_>) -> bool {
    if image.len() <= TABLE + LINE {
        return false;
    }
    let end = image.len();
    let lines = small(number(image, 32, 4)).clamp(1, (image.len() - TABLE) / LINE);
    match input.byte() % 10 {
        0 => flip(image, 0..TABLE, input),
        1 => flip(image, TABLE..TABLE + lines * LINE, input),
        2 => flip(image, TABLE + lines * LINE..end, input),
        3 => {
            let (from, to) = (input.index(lines), input.index(lines));
            let start = TABLE + from * LINE;
            image.copy_within(start..start + LINE, TABLE + to * LINE);
            if input.rarely(2) {
                return put_right(image, to);
            }
        }
        4 => {
            let start = TABLE + input.index(lines) * LINE;
            image[start..start + LINE].fill(0);
        }
        5 | 6 => return line(image, lines, input),
        7 => {
            let start = (2 + input.index(2)) * BLOCK;
            let at = start + input.index(4) * 8;
            let old = u64::try_from(number(image, at, 8)).expect("64 bits");
            let new = input.near(old);
            image[at..at + 8].copy_from_slice(&new.to_le_bytes());
            let crc = crc32c::crc32c_append(seed(image), &image[start..start + 60]);
            image[start + 60..start + 64].copy_from_slice(&crc.to_le_bytes());
            return true;
        }
        8 => {
            let start = input.index(2) * BLOCK;
            let at = start + 8 + input.index(9) * 4;
            let old = u32::try_from(number(image, at, 4)).expect("32 bits");
            let new = input.near_word(old);
            image[at..at + 4].copy_from_slice(&new.to_le_bytes());
            let crc = crc32c::crc32c(&image[start..start + 60]);
            image[start + 60..start + 64].copy_from_slice(&crc.to_le_bytes());
            return true;
        }
        _ => {
            let length = input.index(image.len() + BLOCK);
            image.resize(length, 0);
        }
    }
    false
}

fn flip(image: &mut [u8], range: std::ops::Range<usize>, input: &mut Input<'_>) {
    if !range.is_empty() {
        let at = range.start + input.index(range.len());
        image[at] ^= input.byte() | 1;
    }
}

/// Changes a field of a line, and corrects its checksum.
fn line(image: &mut [u8], lines: usize, input: &mut Input<'_>) -> bool {
    let slot = input.index(lines);
    let (at, bytes) = input.pick(&FIELDS);
    let at = TABLE + slot * LINE + at;
    match input.rarely(2) {
        true => image[at + input.index(bytes)] ^= input.byte() | 1,
        false => {
            let low = bytes.min(8);
            let old = u64::try_from(number(image, at, low)).expect("64 bits");
            image[at..at + low].copy_from_slice(&input.near(old).to_le_bytes()[..low]);
        }
    }
    put_right(image, slot)
}

/// The seed of all checksums except the superblocks'.
fn seed(image: &[u8]) -> u32 {
    crc32c::crc32c(&image[16..32])
}

/// Corrects the checksum of a line, and that of its payload if the payload is in the image.
fn put_right(image: &mut [u8], slot: usize) -> bool {
    let start = TABLE + slot * LINE;
    let place = number(image, start + 40, 12);
    let bits = |at: u32, count: u32| small(place >> at & ((1 << count) - 1));
    let (frame_bytes, lines) = (small(number(image, 40, 4)), small(number(image, 32, 4)));
    let frame = small(number(image, start + 52, 4));
    let payload = lines
        .checked_mul(LINE)
        .zip(frame.checked_mul(frame_bytes))
        .and_then(|(table, frames)| table.checked_add(frames)?.checked_add(TABLE + bits(52, 12)));
    let payload = payload.and_then(|from| image.get(from..from.checked_add(bits(64, 13))?));
    let key = match (payload, bits(50, 2)) {
        (None, _) | (_, 3) => &[][..],
        (Some(payload), 0) => &payload[..bits(0, 25).min(payload.len())],
        (Some(payload), _) => {
            let at = bits(26, 12).min(payload.len());
            &payload[at..(at + bits(0, 13)).min(payload.len())]
        }
    };
    let payload_crc = payload.map(crc32c::crc32c);
    let key = key.to_vec();
    if let Some(crc) = payload_crc {
        image[start + 56..start + 60].copy_from_slice(&crc.to_le_bytes());
    }
    let slot = u32::try_from(slot).expect("a small image");
    let crc = crc32c::crc32c_append(seed(image) ^ slot.rotate_left(7), &image[start..start + 8]);
    let crc = crc32c::crc32c_append(crc, &image[start + 16..start + 60]);
    let crc = crc32c::crc32c_append(crc, &key);
    image[start + 60..start + 64].copy_from_slice(&crc.to_le_bytes());
    true
}
