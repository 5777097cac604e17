//! The bytes of the image, and the images that are refused.

use pmnet_log::Identity;
use pmnet_log::slots::{SlotParameters, SlotScan, SlotsError, format};

use crate::medium::Medium;
use crate::world::{IDENTITY, PARAMETERS, blank, formatted};

fn open(image: Vec<u8>) -> Result<u64, SlotsError> {
    SlotScan::open(Medium::holding(image), Some(IDENTITY)).map(|scan| scan.cursor())
}

fn changed(change: impl Fn(&mut Vec<u8>)) -> Result<u64, SlotsError> {
    let mut image = formatted().into_image();
    change(&mut image);
    open(image)
}

/// Returns an image whose cursor was advanced this number of times, each time by the number of slots.
fn advanced(times: u64) -> Vec<u8> {
    let mut medium = formatted();
    for _ in 0..times {
        let scan = SlotScan::open(medium, None).unwrap();
        medium = scan.begin().unwrap().into_media();
    }
    medium.into_image()
}

#[test]
fn the_bytes() {
    let image = formatted().into_image();
    assert_eq!(image.len(), 4096 + 4 * 128);
    assert_eq!(&image[..12], b"PMNETSLT\x01\0\0\0");
    assert_eq!(image[16..32], IDENTITY.log_uuid.to_le_bytes());
    assert_eq!(
        image[32..48],
        [3, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 128, 0, 0, 0]
    );
    assert_eq!(image[..72], image[2048..2048 + 72]);
    assert!(image[72..2048].iter().all(|byte| *byte == 0));
    let cursor = u64::from_le_bytes(advanced(3)[64..72].try_into().unwrap());
    assert_eq!(cursor >> 12, 12);
    assert_eq!(PARAMETERS.place(6), 4096 + 2 * 128..4096 + 3 * 128);
}

#[test]
fn what_is_refused() {
    use SlotsError::{Blank, Damaged, Foreign, InterruptedFormat, OtherLog, Truncated, Version};
    assert_eq!(changed(|_| ()).unwrap(), 0);
    assert!(matches!(open(blank().into_image()), Err(Blank)));
    assert!(matches!(open(Vec::new()), Err(Blank)));
    assert!(matches!(open(vec![1; 100]), Err(Truncated { .. })));
    let short = |image: &mut Vec<u8>| image.truncate(4096 + 511);
    assert!(matches!(
        changed(short),
        Err(Truncated { needed: 4608, .. })
    ));
    assert!(matches!(open(vec![1; 8192]), Err(Foreign)));
    let wiped = |image: &mut Vec<u8>| image[..4096].fill(0);
    let with_message = |image: &mut Vec<u8>| {
        wiped(image);
        image[4200] = 1;
    };
    assert!(matches!(changed(with_message), Err(Damaged(_))));
    let both = |image: &mut Vec<u8>| {
        image[40] ^= 1;
        image[2048 + 40] ^= 1;
        image[4200] = 1;
    };
    assert!(matches!(changed(both), Err(Damaged("no head can be read"))));
    let version = |image: &mut Vec<u8>| {
        image[8] = 2;
        image[12..16].fill(0);
        let crc = crc32c::crc32c(&image[..64]);
        image[12..16].copy_from_slice(&crc.to_le_bytes());
    };
    assert!(matches!(changed(version), Err(Version { found: 2 })));
    let other = Identity {
        log_uuid: 5,
        ..IDENTITY
    };
    let scan = SlotScan::open(formatted(), Some(other));
    assert!(matches!(scan, Err(OtherLog(found)) if found == IDENTITY));
    let begun = |image: &mut Vec<u8>| {
        image[..64].fill(0);
        image[2048..2048 + 64].fill(0);
    };
    assert!(matches!(changed(begun), Err(InterruptedFormat)));
}

#[test]
fn one_head_and_one_cursor_suffice() {
    for at in [0, 2048] {
        for byte in 0..72 {
            for bit in 0..8 {
                let cursor = changed(|image| image[at + byte] ^= 1 << bit);
                // The 12 check bits reveal the changed cursor, and the other cursor is unchanged.
                assert!(
                    matches!(cursor, Ok(0)),
                    "byte {byte}, bit {bit}: {cursor:?}"
                );
            }
        }
    }
}

#[test]
fn cursors_that_cannot_be_are_refused() {
    let (old, new) = (advanced(1), advanced(2));
    let mut mixed = new.clone();
    mixed[64..72].copy_from_slice(&old[64..72]);
    assert_eq!(
        open(mixed).unwrap(),
        8,
        "a crash while the cursor was written"
    );
    let mut mixed = advanced(3);
    mixed[64..72].copy_from_slice(&old[64..72]);
    assert!(matches!(open(mixed), Err(SlotsError::Damaged(_))));
    let mut none = new;
    none[64..72].fill(0xff);
    none[2048 + 64..2048 + 72].fill(0xff);
    assert!(matches!(
        open(none),
        Err(SlotsError::Damaged("no cursor can be read"))
    ));
}

#[test]
fn a_format_that_was_interrupted_is_named_and_nothing_else_is_written_over() {
    for persists in 0..3 {
        let mut medium = blank();
        medium.budget = Some(persists);
        assert!(format(&mut medium, IDENTITY, PARAMETERS).is_err());
        for image in medium.images() {
            match open(image) {
                Ok(0) => assert!(persists > 0),
                Err(SlotsError::Blank | SlotsError::InterruptedFormat) => {}
                other => panic!("after {persists} persists: {other:?}"),
            }
        }
    }
    let mut medium = formatted();
    let before = medium.clone().into_image();
    let again = format(&mut medium, IDENTITY, PARAMETERS);
    assert!(matches!(again, Err(SlotsError::NotBlank)));
    assert_eq!(medium.into_image(), before);
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for (slots, slot_bytes) in [
        (2, 128),
        (5, 128),
        (1 << 16, 128),
        (4, 64),
        (4, 130),
        (4, 1 << 17),
    ] {
        let parameters = SlotParameters { slots, slot_bytes };
        assert!(matches!(
            format(&mut blank(), IDENTITY, parameters),
            Err(SlotsError::Parameters(..))
        ));
    }
}
