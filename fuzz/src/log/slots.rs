//! Hostile images of slots, and any sequence of completions (`docs/spec/verbs.md` §5).
//!
//! Invariants: reading never panics; a refused image stays unchanged; a queue that was begun can be
//! read again; whatever the NIC reports, the ring hands messages on in order and posts no slot too
//! early.

use pmnet_log::slots::{Oldest, Outcome, SlotParameters, SlotQueue, SlotScan, format};

use super::IDENTITY;
use crate::input::Input;
use crate::medium::Forgetful;

const PARAMETERS: SlotParameters = SlotParameters {
    slots: 8,
    slot_bytes: 128,
};
/// Heads and cursors.
const FIRST: usize = 4096;
/// Maximum number of events of one ring.
const STEPS: usize = 256;

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let image = image(&mut input);
    let mut medium = Forgetful::holding(image.clone());
    let expected = (!input.rarely(8)).then_some(IDENTITY);
    let scan = match SlotScan::open(&mut medium, expected) {
        Ok(scan) => scan,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert_eq!((medium.stores, medium.into_image() == image), (0, true));
            return;
        }
    };
    let (slots, cursor) = (scan.parameters().slots, scan.cursor());
    let all = u64::try_from(scan.slots().count()).expect("few");
    assert_eq!(all, u64::from(slots));
    match scan.begin() {
        Ok(queue) => {
            assert_eq!(queue.kept(), cursor + u64::from(slots));
        }
        // The cursor is at its maximum.
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert_eq!((medium.stores, medium.into_image() == image), (0, true));
            return;
        }
    }
    let scan = SlotScan::open(&mut medium, None).expect("what was begun can be read");
    assert_eq!(scan.cursor(), cursor + u64::from(slots));
    if let Ok(queue) = scan.begin() {
        live(queue, slots, &mut input);
    }
}

/// Returns a queue as a run left it, changed in some places.
fn image(input: &mut Input<'_>) -> Vec<u8> {
    let mut medium = Forgetful::new(PARAMETERS.image_bytes());
    format(&mut medium, IDENTITY, PARAMETERS).expect("a blank medium takes slots");
    for _ in 0..input.below(3) {
        let scan = SlotScan::open(&mut medium, None).expect("slots of ours open");
        let _ = scan.begin().expect("this medium does not fail");
    }
    let mut image = medium.end(input).into_image();
    for _ in 0..16 {
        if !input.more() {
            break;
        }
        change(&mut image, input);
    }
    image
}

fn change(image: &mut Vec<u8>, input: &mut Input<'_>) {
    if image.is_empty() {
        return;
    }
    match input.byte() % 8 {
        0..=2 => {
            let at = input.index(image.len());
            image[at] ^= 1 << (input.byte() % 8);
        }
        3 => {
            let at = input.index(FIRST).min(image.len() - 1);
            image[at] = input.byte();
        }
        4 => {
            let bytes = input.bytes(64);
            let at = input.index(image.len());
            for (to, from) in image[at..].iter_mut().zip(bytes) {
                *to = *from;
            }
        }
        5 => image.truncate(input.index(image.len() + 1)),
        // A head or a cursor with a correct checksum.
        6 => seal_head(image, input),
        _ => seal_cursor(image, input),
    }
}

fn seal_head(image: &mut [u8], input: &mut Input<'_>) {
    let at = input.pick(&[0, 2048]);
    let Some(head) = image.get_mut(at..at + 64) else {
        return;
    };
    let field = input.pick(&[8, 32, 36, 40, 44]);
    let word = u32::from_le_bytes(head[field..field + 4].try_into().expect("four bytes"));
    head[field..field + 4].copy_from_slice(&input.near_word(word).to_le_bytes());
    head[12..16].fill(0);
    let crc = crc32c::crc32c(head);
    head[12..16].copy_from_slice(&crc.to_le_bytes());
}

fn seal_cursor(image: &mut [u8], input: &mut Input<'_>) {
    let at = input.pick(&[64, 2048 + 64]);
    let Some(cursor) = image.get_mut(at..at + 8) else {
        return;
    };
    let number = input.near(8) >> 12;
    let crc = crc32c::crc32c(&IDENTITY.log_uuid.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &number.to_le_bytes());
    cursor.copy_from_slice(&(number << 12 | u64::from(crc >> 20)).to_le_bytes());
}

/// Delivers any completions, in any order.
fn live(mut queue: SlotQueue<&mut Forgetful>, slots: u32, input: &mut Input<'_>) {
    let begun = queue.kept();
    let (mut posted, mut handed_on) = (begun, begun);
    for _ in 0..STEPS {
        if !input.more() {
            break;
        }
        match input.byte() % 8 {
            0 | 1 => {
                if let Some(posting) = queue.post() {
                    assert_eq!(posting.number, posted);
                    posted += 1;
                }
            }
            2..=4 => {
                let ahead = input.below(u64::from(slots) + 2);
                let number = handed_on.saturating_sub(1) + ahead;
                let outcome = match input.byte() % 4 {
                    0 => Outcome::Error,
                    _ => Outcome::Message(input.near_word(128)),
                };
                let said = queue.complete(number, u32::from(input.byte() % 4), outcome);
                assert!(said.is_err() || (handed_on..posted).contains(&number));
            }
            5 | 6 => {
                let number = match queue.oldest() {
                    None => continue,
                    Some(Oldest::Hole { number } | Oldest::Message { number, .. }) => number,
                };
                assert_eq!((number, queue.blocked()), (handed_on, None));
                queue.advance();
                handed_on += 1;
            }
            _ => {
                let entered = handed_on - input.below(handed_on - queue.kept() + 1);
                queue
                    .keep_start(entered)
                    .expect("this medium does not fail");
                queue.keep_poll(true).expect("this medium does not fail");
            }
        }
        assert!(queue.kept() <= handed_on && handed_on <= posted);
        assert!(posted <= queue.kept() + u64::from(slots));
        assert_eq!(queue.processed(), handed_on);
        assert!(queue.credit() <= posted - handed_on);
    }
}
