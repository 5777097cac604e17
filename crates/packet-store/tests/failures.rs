//! A medium that fails: committed changes are not lost, and the store refuses further work.

mod support;

use pmnet_log::MediaError;
use pmnet_packet_store::{Error, Geometry, Meta, OpenError, Room, Scan};
use support::{Content, IDENTITY, Plain, content, made, opened};

const GEOMETRY: Geometry = Geometry {
    lines: 128,
    frames: 32,
    frame_bytes: 4096,
    log_entries: 0,
};

fn failed(error: &Error) -> bool {
    matches!(error, Error::Media(MediaError::Failed))
}

#[test]
fn every_persist_can_fail() {
    let mut ends = 0;
    for persists in 0..40 {
        let mut medium = Plain::new(made(&GEOMETRY));
        medium.persists_left = Some(persists);
        let opened_once = Scan::open(medium, Some(IDENTITY.shard)).unwrap().repair();
        let mut store = match opened_once {
            Ok(store) => store,
            Err(error) => {
                assert!(
                    persists < 2 && matches!(error, OpenError::Media(_)),
                    "{error}"
                );
                continue;
            }
        };
        let mut allowed = vec![Content::new()];
        let mut step = 0;
        let error = loop {
            step += 1;
            if step > 30 {
                break None;
            }
            let key = [b'a' + step % 4];
            let mut transaction = store.transaction();
            let changed = match step % 3 {
                0 => transaction.remove(&key).map(drop),
                _ => transaction.put(&key, &[step; 50], Meta::default(), Room::Ordinary),
            };
            changed.unwrap();
            let after = content(transaction.store());
            match transaction.commit() {
                Ok(()) => allowed = vec![after],
                Err(error) => {
                    allowed.push(after);
                    break Some(error);
                }
            }
        };
        let Some(error) = error else {
            ends += 1;
            continue;
        };
        assert!(failed(&error), "{error}");
        let mut transaction = store.transaction();
        let put = transaction.put(b"later", b"", Meta::default(), Room::Ordinary);
        assert!(failed(&put.unwrap_err()));
        assert!(failed(&transaction.remove(b"a").unwrap_err()));
        drop(transaction);
        assert!(failed(&store.pack_step(1000).unwrap_err()));
        let again = opened(store.into_media().image);
        assert!(
            allowed.contains(&content(&again)),
            "after {persists} persists"
        );
    }
    assert_eq!(ends, 0, "40 persists are fewer than the script has");
}

#[test]
fn a_full_store_refuses_and_takes_deletes_and_what_may_use_the_reserve() {
    let mut store = opened(made(&GEOMETRY));
    let value = vec![1; 3000];
    let mut kept = 0u32;
    let full = loop {
        let mut transaction = store.transaction();
        match transaction.put(&kept.to_be_bytes(), &value, Meta::default(), Room::Ordinary) {
            Ok(()) => transaction.commit().unwrap(),
            Err(error) => break error,
        }
        kept += 1;
    };
    assert!(matches!(full, Error::Full { .. }), "{full}");
    assert!(store.stat().frames_free >= 8);
    let before = content(&store);
    let mut transaction = store.transaction();
    transaction
        .put(b"record", &value, Meta::default(), Room::Reserved)
        .unwrap();
    assert!(matches!(
        transaction.put(b"client", &value, Meta::default(), Room::Ordinary),
        Err(Error::Full { .. })
    ));
    drop(transaction);
    assert_eq!(content(&store), before);
    for key in 0..kept {
        let mut transaction = store.transaction();
        assert!(transaction.remove(&key.to_be_bytes()).unwrap());
        transaction.commit().unwrap();
    }
    let mut transaction = store.transaction();
    transaction
        .put(b"client", &value, Meta::default(), Room::Ordinary)
        .unwrap();
    transaction.commit().unwrap();
    assert_eq!(opened(store.into_media().image).len(), 1);
}

#[test]
fn lines_run_out_as_frames_do() {
    let mut store = opened(made(&GEOMETRY));
    let mut transaction = store.transaction();
    let mut kept = 0u32;
    let full = loop {
        match transaction.put(&kept.to_be_bytes(), b"", Meta::default(), Room::Ordinary) {
            Ok(()) => kept += 1,
            Err(error) => break error,
        }
    };
    assert!(full.to_string().contains("no line"), "{full}");
    assert_eq!(kept, 128 - 32 - 1);
    transaction.commit().unwrap();
    let too_long = vec![0; pmnet_packet_store::KEY_BYTES_MAX + 1];
    let mut transaction = store.transaction();
    let refused = transaction.put(&too_long, b"", Meta::default(), Room::Reserved);
    assert!(matches!(refused, Err(Error::TooLong)));
}

#[test]
fn the_largest_key_and_value_come_back() {
    let geometry = Geometry {
        lines: 24_576,
        frames: 24_576,
        frame_bytes: 4096,
        log_entries: 0,
    };
    let mut store = opened(made(&geometry));
    let key = vec![b'k'; pmnet_packet_store::KEY_BYTES_MAX];
    let value: Vec<u8> = (0..16u32 << 20).map(|at| at.to_le_bytes()[1]).collect();
    for key in [&key[..], &key[..65_536], b""] {
        let mut transaction = store.transaction();
        transaction
            .put(
                key,
                &value[..value.len() - 1],
                Meta::default(),
                Room::Ordinary,
            )
            .unwrap();
        transaction.commit().unwrap();
        let mut transaction = store.transaction();
        assert!(transaction.remove(key).unwrap());
        transaction
            .put(key, &value, Meta::default(), Room::Ordinary)
            .unwrap();
        transaction.commit().unwrap();
        store = opened(store.into_media().image);
        let record = store.get(key).unwrap().unwrap();
        assert!(record.key_and_value(&mut Vec::new()) == (key, &value[..]));
        let mut transaction = store.transaction();
        transaction.remove(key).unwrap();
        transaction.commit().unwrap();
    }
}
