//! Hostile images: a small packet store as a run left it, changed in some places, with or without
//! correct checksums (`docs/spec/packet-store.md`).
//!
//! Invariants: scanning, verifying and repairing never panic, and end; a refused image stays
//! unchanged; without forged checksums only values that were once written are returned; a repaired
//! store can be used, and the next scan finds it again.

mod forge;
pub mod region;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use pmnet_log::Media;
use pmnet_packet_store::{
    Error, Geometry, Identity, InPlace, Meta, OpenError, Packet, PacketStore, Room, Scan, format,
};

use crate::input::Input;
use crate::medium::Forgetful;

/// The smallest possible store.
const GEOMETRY: Geometry = Geometry {
    lines: 128,
    frames: 32,
    frame_bytes: 2048,
    log_entries: 0,
};
const IDENTITY: Identity = Identity {
    uuid: 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210,
    shard: 4,
};
/// Maximum number of transactions of the earlier run, and maximum number of changes of one of them.
const TRANSACTIONS: u64 = 12;
const PUTS: u64 = 6;
/// Maximum number of changes to one image.
const CHANGES: usize = 16;
/// Number of bytes that a step of packing moves.
const PACKED_BYTES: usize = 8 << 10;

/// Keys with all their values so far.
type Written = BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>;
/// Keys with their values.
type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (mut image, written) = life(&mut input);
    let shard = (!input.rarely(8)).then_some(IDENTITY.shard);
    let mut forged = false;
    for _ in 0..CHANGES {
        if !input.more() {
            break;
        }
        forged |= forge::change(&mut image, &mut input);
    }
    let mut medium = Forgetful::holding(image.clone());
    let loss = match Scan::open(&mut medium, shard) {
        Ok(scan) => {
            assert_eq!(scan.verify(), scan.verify());
            assert!(scan.stat().lines_used <= u64::from(scan.stat().lines));
            let _only_shows = scan.damaged_keys();
            scan.loss()
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert_eq!((medium.stores, medium.into_image() == image), (0, true));
            return;
        }
    };
    assert_eq!((medium.stores, medium.bytes() == image), (0, true));
    let repaired = Scan::open(&mut medium, shard).and_then(Scan::repair);
    if let Some(loss) = loss {
        assert!(matches!(repaired, Err(OpenError::Damaged(found)) if *found == loss));
        assert_eq!((medium.stores, medium.into_image() == image), (0, true));
        medium = Forgetful::holding(image);
        let without = Scan::open(&mut medium, shard).and_then(Scan::repair_without_lost);
        look(without, forged, &written);
    } else {
        look(repaired, forged, &written);
    }
    used(medium);
}

/// Reads all records of a repaired store.
fn look(store: Result<PacketStore<&mut Forgetful>, OpenError>, forged: bool, written: &Written) {
    let store = store.expect("it opens, and its medium works");
    for (key, value) in content(&store) {
        let known = written
            .get(&key)
            .is_some_and(|values| values.contains(&value));
        assert!(known || forged, "never written");
    }
}

/// Returns all readable records.
fn content<M: Media>(store: &PacketStore<M>) -> Content {
    let mut content = Content::new();
    let mut scratch = Vec::new();
    let mut last: Option<Vec<u8>> = None;
    for record in store.range(Bound::Unbounded, Bound::Unbounded) {
        match record {
            Ok(record) => {
                let (key, value) = record.key_and_value(&mut scratch);
                assert!(last.as_deref().is_none_or(|last| last < key), "in order");
                last = Some(key.to_vec());
                content.insert(key.to_vec(), value.to_vec());
            }
            Err(error) => assert!(matches!(error, Error::Damaged(_)), "{error}"),
        }
    }
    for (key, value) in &content {
        let found = store.get(key).expect("just read").expect("just found");
        assert_eq!(found.value(&mut scratch), value);
    }
    content
}

/// Checks that a repaired store can be opened, changed and filled, and is found again after a loss
/// of power.
fn used(mut medium: Forgetful) {
    let mut store = again(&mut medium);
    let mut expected = content(&store);
    for number in 0..160u32 {
        let key = number.to_be_bytes().to_vec();
        let value = vec![7; usize::try_from(number).expect("small") * 9];
        let mut transaction = store.transaction();
        let put = transaction.put(&key, &value, Meta::default(), Room::Ordinary);
        let committed = put.and_then(|()| transaction.commit());
        match committed {
            Ok(()) => {
                expected.insert(key, value);
            }
            Err(error) => assert!(matches!(error, Error::Full { .. }), "{error}"),
        }
        match store.pack_step(PACKED_BYTES) {
            Ok(_) => {}
            // The contents of a forged record may differ from its checksum; packing does not move
            // it.
            Err(error) => assert!(
                matches!(error, Error::Damaged(_) | Error::Full { .. }),
                "{error}"
            ),
        }
    }
    let keys: Vec<_> = expected.keys().cloned().collect();
    for key in keys.iter().step_by(2) {
        let mut transaction = store.transaction();
        assert!(transaction.remove(key).expect("there is room to delete"));
        transaction.commit().expect("the medium works");
        expected.remove(key);
    }
    assert_eq!(content(&store), expected);
    drop(store);
    let mut medium = medium.crash(0, 0);
    assert_eq!(content(&again(&mut medium)), expected);
}

fn again(medium: &mut Forgetful) -> PacketStore<&mut Forgetful> {
    let scan = Scan::open(medium, None).expect("a repaired store opens");
    assert_eq!(scan.loss(), None, "nothing is left to repair");
    scan.repair().expect("nothing is missing")
}

/// Returns an image, and the records that were written into it.
fn life(input: &mut Input<'_>) -> (Vec<u8>, Written) {
    let mut medium = Forgetful::new(GEOMETRY.image_bytes());
    format(&mut medium, &IDENTITY, &GEOMETRY).expect("a blank medium");
    let mut store = Scan::open(medium, None)
        .and_then(Scan::repair)
        .expect("just made");
    let mut written = Written::new();
    for _ in 0..input.below(TRANSACTIONS) {
        let mut changes = Vec::new();
        let packet = input.rarely(3).then(|| store.lend_frame()).flatten();
        if let Some(frame) = packet {
            store.deposit(frame, 30, b"SET packet value");
        }
        let mut transaction = store.transaction();
        if let Some(frame) = packet {
            let packet = Packet {
                frame,
                payload: 30..46,
                crc: crc32c::crc32c(b"SET packet value"),
            };
            let record = InPlace {
                key: 4..10,
                value: 11..16,
                meta: Meta::default(),
            };
            match transaction.put_in_place(&packet, &[record], Room::Ordinary) {
                Ok(()) => changes.push((b"packet".to_vec(), b"value".to_vec())),
                Err(error) => panic!("{error}"),
            }
        }
        for _ in 0..input.below(PUTS) {
            let key = vec![b'k'; input.index(5)];
            let len = match input.byte() {
                0..=199 => input.index(100),
                200..=239 => input.index(2100),
                _ => input.index(9000),
            };
            let value = vec![input.byte(); len];
            if input.rarely(4) {
                transaction.remove(&key).expect("there is room to delete");
            } else if transaction
                .put(&key, &value, Meta::default(), Room::Ordinary)
                .is_ok()
            {
                changes.push((key, value));
            }
        }
        if input.rarely(6) {
            drop(transaction);
        } else {
            transaction.commit().expect("the medium works");
            for (key, value) in changes {
                written.entry(key).or_default().insert(value);
            }
        }
        if input.rarely(4) {
            store.pack_step(PACKED_BYTES).expect("the medium works");
        }
    }
    (store.into_media().into_image(), written)
}
