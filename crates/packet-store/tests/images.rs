//! Damaged images: a store never returns a wrong value, never panics, and reports missing records.

mod support;

use pmnet_packet_store::{
    Geometry, InPlace, LINE_BYTES, Meta, OpenError, Packet, Room, Scan, format,
};
use support::{ALL, Content, IDENTITY, Plain, Random, content, made, opened};

const GEOMETRY: Geometry = Geometry {
    lines: 128,
    frames: 32,
    frame_bytes: 2048,
    log_entries: 0,
};
/// Offset of the table of lines in the image.
const TABLE: usize = 16384;
/// Offset of the frames in the image.
const FRAMES: usize = TABLE + 128 * LINE_BYTES;

/// Returns a store with every form of record, and its content before and after the last commit.
fn sample() -> (Vec<u8>, [Content; 2]) {
    let mut store = opened(made(&GEOMETRY));
    let frame = store.lend_frame().unwrap();
    let payload = b"*3\r\n$3\r\nSET\r\n$6\r\npacket\r\n$5\r\nvalue\r\nk1v1k2v2";
    store.deposit(frame, 30, payload);
    let packet = Packet {
        frame,
        payload: 30..30 + payload.len(),
        crc: crc32c::crc32c(payload),
    };
    let at = |key: std::ops::Range<usize>, value| InPlace {
        key,
        value,
        meta: Meta {
            order: 77,
            ..Meta::default()
        },
    };
    let records = [at(17..23, 29..34), at(36..38, 38..40), at(40..42, 42..44)];
    let mut transaction = store.transaction();
    transaction
        .put_in_place(&packet, &records, Room::Ordinary)
        .unwrap();
    for (key, len) in [
        (&b"small"[..], 10),
        (b"large", 5000),
        (b"", 3),
        (b"over", 40),
    ] {
        let value = Random(9).bytes(len);
        transaction
            .put(key, &value, Meta::default(), Room::Ordinary)
            .unwrap();
    }
    transaction.commit().unwrap();
    let before = content(&store);
    let mut transaction = store.transaction();
    transaction
        .put(b"over", b"written", Meta::default(), Room::Ordinary)
        .unwrap();
    transaction.remove(b"small").unwrap();
    transaction.commit().unwrap();
    let after = content(&store);
    assert_eq!(after.len(), 6);
    (store.into_media().image, [before, after])
}

/// Opens an image. Returns its records, and whether damage was reported.
fn look(image: Vec<u8>) -> Result<(Content, bool), OpenError> {
    let scan = Scan::open(Plain::new(image), Some(IDENTITY.shard))?;
    let mut wrong = scan.loss().is_some() || !scan.verify().is_empty();
    let store = scan.repair_without_lost()?;
    let mut found = Content::new();
    let mut scratch = Vec::new();
    for record in store.range(ALL.0, ALL.1) {
        match record {
            Ok(record) => {
                let (key, value) = record.key_and_value(&mut scratch);
                found.insert(key.to_vec(), (value.to_vec(), record.meta()));
            }
            Err(_) => wrong = true,
        }
    }
    // From then on, the lines of the repaired store are whole.
    let again = Scan::open(Plain::new(store.into_media().image), Some(IDENTITY.shard))?;
    assert_eq!(again.loss(), None);
    Ok((found, wrong))
}

#[test]
fn a_flipped_bit_is_never_served() {
    let (image, [before, after]) = sample();
    let used = FRAMES + 5 * 2048;
    let (mut refused, mut said, mut harmless) = (0, 0, 0);
    for at in (0..64)
        .chain(4096..4160)
        .chain(8192..8256)
        .chain(12288..12352)
        .chain(TABLE..used)
    {
        let mut bad = image.clone();
        bad[at] ^= 1 << (at % 8);
        match look(bad) {
            Err(OpenError::Media(error)) => panic!("{error}"),
            Err(_) => refused += 1,
            Ok((found, wrong)) => {
                // If a newer version was given up on purpose, an older version of the record may remain, which was
                // written at an earlier time. The loss of the newer version was reported.
                let written =
                    |(key, row)| before.get(key) == Some(row) || after.get(key) == Some(row);
                assert!(found.iter().all(written), "byte {at}: never written");
                // If the record of the last commit is damaged, the commit looks torn.
                let last_commit = (8192..8256).contains(&at);
                let right = found == after || last_commit && found == before;
                assert!(
                    wrong || right,
                    "byte {at}: other records, and nothing was said"
                );
                *if wrong { &mut said } else { &mut harmless } += 1;
            }
        }
    }
    assert_eq!(
        refused, 0,
        "one copy of each superblock and commit record is enough"
    );
    // The loop has changed each byte of six records, of their lines and pieces, of empty lines, and of unused space.
    assert!(
        said > 5000 && harmless > 5000,
        "said {said}, harmless {harmless}"
    );
}

/// A torn commit record could become whole if the next attempt at the same commit is torn, too.
#[test]
fn a_torn_commit_record_is_erased() {
    let (mut image, [before, _]) = sample();
    let record = 8192..8192 + LINE_BYTES;
    image[record.start..record.start + 8].fill(0);
    let scan = Scan::open(Plain::new(image), Some(IDENTITY.shard)).unwrap();
    assert_eq!(scan.last_commit().commit, 1);
    let store = scan.repair().unwrap();
    assert_eq!(content(&store), before);
    assert!(
        store.into_media().image[record]
            .iter()
            .all(|byte| *byte == 0)
    );
}

#[test]
fn damage_is_named_and_nothing_is_changed_unless_it_is_given_up() {
    let (mut image, [_, after]) = sample();
    let start = (TABLE..FRAMES)
        .step_by(LINE_BYTES)
        .find(|at| image[at + 16] == 77)
        .unwrap();
    image[start + 33] ^= 1;
    let scan = Scan::open(Plain::new(image.clone()), Some(IDENTITY.shard)).unwrap();
    let loss = scan.loss().unwrap();
    assert_eq!((loss.counted, loss.whole), (6, 5));
    let named = loss
        .damages
        .iter()
        .find(|damage| damage.order == 77)
        .unwrap();
    assert!(!named.key.is_empty() && !content_has(&after, &named.key, false));
    let refused = scan.repair().map(drop).unwrap_err();
    assert!(matches!(&refused, OpenError::Damaged(_)), "{refused}");
    let scan = Scan::open(Plain::new(image), Some(IDENTITY.shard)).unwrap();
    let store = scan.repair_without_lost().unwrap();
    assert_eq!(store.len(), 5);
    let again = opened(store.into_media().image);
    assert!(!content_has(&content(&again), &named.key, true));
}

fn content_has(all: &Content, key: &[u8], wanted: bool) -> bool {
    all.contains_key(key) == wanted
}

#[test]
fn a_damaged_value_has_its_key_and_can_be_removed() {
    let (mut image, _) = sample();
    let at = image
        .windows(5)
        .rposition(|bytes| bytes == b"value")
        .unwrap();
    image[at] ^= 1;
    let scan = Scan::open(Plain::new(image), Some(IDENTITY.shard)).unwrap();
    assert_eq!(scan.loss(), None);
    // The three records in the packet share its checksum.
    let keys: Vec<Vec<u8>> = scan.verify().into_iter().map(|damage| damage.key).collect();
    assert_eq!(keys, scan.damaged_keys());
    assert_eq!(keys, [b"k1".to_vec(), b"k2".to_vec(), b"packet".to_vec()]);
    let mut store = scan.repair().unwrap();
    assert!(store.get(b"packet").is_err() && store.contains(b"packet"));
    assert_eq!(store.pack_step(1 << 20).unwrap(), 0);
    let mut transaction = store.transaction();
    for key in keys {
        assert!(transaction.remove(&key).unwrap());
    }
    transaction.commit().unwrap();
    assert_eq!(content(&opened(store.into_media().image)).len(), 3);
}

#[test]
fn any_image_is_read_in_bounded_time() {
    let (image, _) = sample();
    let mut random = Random(1);
    for round in 0..2000 {
        let mut bad = image.clone();
        match round % 4 {
            // Lines are copied to other slots.
            0 => {
                for _ in 0..8 {
                    let [from, to] = [(); 2].map(|()| TABLE + random.index(128) * LINE_BYTES);
                    bad.copy_within(from..from + LINE_BYTES, to);
                }
            }
            1 => {
                for _ in 0..1 + random.index(200) {
                    let at = TABLE + random.index(bad.len() - TABLE);
                    bad[at] = random.next().to_le_bytes()[0];
                }
            }
            // The table contains only noise.
            2 => {
                let noise = random.bytes(FRAMES - TABLE);
                bad[TABLE..FRAMES].copy_from_slice(&noise);
            }
            _ => {
                let at = random.index(bad.len());
                bad[at..].fill(0);
            }
        }
        match look(bad) {
            Ok(_) | Err(OpenError::Unreadable { .. } | OpenError::Blank) => {}
            Err(other) => assert!(round % 4 == 3, "{other}"),
        }
    }
}

#[test]
fn what_is_no_store_of_this_shard_and_version_is_refused() {
    let whole = made(&GEOMETRY);
    let open = |image: &[u8]| {
        Scan::open(Plain::new(image.to_vec()), Some(IDENTITY.shard))
            .map(|_| ())
            .unwrap_err()
    };
    let other = Scan::open(Plain::new(whole.clone()), Some(5))
        .map(|_| ())
        .unwrap_err();
    assert!(
        matches!(
            other,
            OpenError::OtherShard {
                found: 4,
                wanted: 5
            }
        ),
        "{other}"
    );
    assert!(matches!(
        open(&whole[..whole.len() - 4096]),
        OpenError::Truncated { .. }
    ));
    assert!(matches!(open(&vec![0; whole.len()]), OpenError::Blank));
    assert!(matches!(open(&vec![1; whole.len()]), OpenError::Foreign));
    let mut medium = Plain::new(whole.clone());
    let again = format(&mut medium, &IDENTITY, &GEOMETRY).unwrap_err();
    assert!(matches!(again, OpenError::NotBlank));
    assert_eq!(medium.image, whole);
    let mut short = Plain::new(vec![0; 4096]);
    let error = format(&mut short, &IDENTITY, &GEOMETRY).unwrap_err();
    assert!(matches!(error, OpenError::Truncated { .. }));
}

#[test]
fn a_store_whose_making_was_interrupted_is_made_again() {
    for persists in 0..3 {
        let mut medium = Plain::new(vec![0; GEOMETRY.image_bytes()]);
        medium.persists_left = Some(persists);
        assert!(format(&mut medium, &IDENTITY, &GEOMETRY).is_err());
        // The state before this persist is not a store yet.
        if persists == 2 {
            medium.image[..64].fill(0);
        }
        medium.persists_left = None;
        let error = Scan::open(Plain::new(medium.image.clone()), None).map(|_| ());
        match persists {
            0 | 1 if medium.image[4096..4160].iter().all(|byte| *byte == 0) => {
                assert!(matches!(error, Err(OpenError::Interrupted)));
            }
            // One whole superblock is enough for an empty and usable store.
            _ => error.unwrap(),
        }
        if persists == 0 {
            format(&mut medium, &IDENTITY, &GEOMETRY).unwrap();
            assert!(opened(medium.image).is_empty());
        }
    }
}
