//! Random operations on a store and on an ordered map, which must agree.

mod support;

use std::collections::BTreeMap;
use std::ops::Bound;

use pmnet_packet_store::{
    Error, Geometry, InPlace, Meta, Packet, PacketStore, Room, Scan, Snapshot, Transaction,
};
use support::{ALL, Content, IDENTITY, Plain, Random, content, made, opened};

const GEOMETRIES: [Geometry; 2] = [
    Geometry {
        lines: 512,
        frames: 128,
        frame_bytes: 2048,
        log_entries: 0,
    },
    Geometry {
        lines: 1024,
        frames: 64,
        frame_bytes: 4096,
        log_entries: 0,
    },
];

fn key(random: &mut Random) -> Vec<u8> {
    let number = random.index(120);
    match number % 10 {
        0 => vec![b'z'; number * 60],
        1 => vec![0; number / 10],
        _ => format!("key {number}").into_bytes(),
    }
}

fn value(random: &mut Random) -> Vec<u8> {
    let len = match random.index(30) {
        0 => random.index(70_000),
        1..=4 => random.index(5000),
        5..=12 => random.index(1200),
        _ => random.index(60),
    };
    random.bytes(len)
}

fn meta(random: &mut Random) -> Meta {
    Meta {
        kind: random.next().to_le_bytes()[0],
        expires_at_ms: random.next(),
        order: random.next(),
        received_us: random.next() >> 9,
    }
}

/// Keeps a packet with some records, as if a network interface had put it into a frame. Returns whether the packet was
/// kept.
fn in_place(
    transaction: &mut Transaction<'_, Plain>,
    frame: u32,
    bytes: &[u8],
    payload: std::ops::Range<usize>,
    random: &mut Random,
    model: &mut Content,
) -> bool {
    let mut records = Vec::new();
    let mut wanted = Vec::new();
    let mut at = random.index(20);
    for _ in 0..=random.index(4) {
        let name = key(random);
        let (key_len, value_len, gap) = (name.len().min(30), random.index(100), random.index(9));
        let value_at = at + key_len + gap;
        if value_at + value_len > payload.len() {
            break;
        }
        let record = InPlace {
            key: at..at + key_len,
            value: value_at..value_at + value_len,
            meta: meta(random),
        };
        let of = |range: std::ops::Range<usize>| bytes[payload.clone()][range].to_vec();
        wanted.push((
            of(record.key.clone()),
            (of(record.value.clone()), record.meta),
        ));
        records.push(record);
        at = value_at + value_len;
    }
    let packet = Packet {
        frame,
        payload: payload.clone(),
        crc: crc32c::crc32c(&bytes[payload]),
    };
    match transaction.put_in_place(&packet, &records, Room::Ordinary) {
        Ok(()) => {
            model.extend(wanted);
            true
        }
        Err(Error::Full { .. } | Error::TooLong) => false,
        Err(other) => panic!("{other}"),
    }
}

fn same(store: &PacketStore<Plain>, model: &Content, random: &mut Random) {
    assert!(&content(store) == model, "other records than in the model");
    assert_eq!(store.len(), u64::try_from(model.len()).unwrap());
    let back: Vec<Vec<u8>> = store
        .range(ALL.0, ALL.1)
        .rev()
        .map(|record| record.unwrap().key_and_value(&mut Vec::new()).0.to_vec())
        .collect();
    assert!(back.iter().eq(model.keys().rev()));
    for _ in 0..8 {
        let (low, high) = (key(random), key(random));
        let bounds = |key: &'static [u8], random: &mut Random| match random.index(3) {
            0 => Bound::Included(key),
            1 => Bound::Excluded(key),
            _ => Bound::Unbounded,
        };
        let (low, high) = (bounds(low.leak(), random), bounds(high.leak(), random));
        let found: Vec<Vec<u8>> = store
            .range(low, high)
            .map(|record| record.unwrap().key_and_value(&mut Vec::new()).0.to_vec())
            .collect();
        let inside = |key: &&Vec<u8>| {
            (match low {
                Bound::Included(low) => key.as_slice() >= low,
                Bound::Excluded(low) => key.as_slice() > low,
                Bound::Unbounded => true,
            }) && match high {
                Bound::Included(high) => key.as_slice() <= high,
                Bound::Excluded(high) => key.as_slice() < high,
                Bound::Unbounded => true,
            }
        };
        assert!(found.iter().eq(model.keys().filter(inside)));
        let count = store.count_between(low, high);
        assert_eq!(count, u64::try_from(found.len()).unwrap());
        let (first, last) = (random.index(found.len() + 2), random.index(found.len() + 2));
        let without = store.range_without(
            low,
            high,
            u64::try_from(first).unwrap(),
            u64::try_from(last).unwrap(),
        );
        let without: Vec<Vec<u8>> = without
            .map(|record| record.unwrap().key_and_value(&mut Vec::new()).0.to_vec())
            .collect();
        let end = found.len().saturating_sub(last).max(first.min(found.len()));
        assert_eq!(without, found[first.min(end)..end]);
        let name = key(random);
        let got = store.get(&name).unwrap();
        assert_eq!(got.is_some(), store.contains(&name));
        let got = got.map(|record| (record.value(&mut Vec::new()).to_vec(), record.meta()));
        assert_eq!(got, model.get(&name).cloned());
    }
}

fn run(geometry: Geometry, seed: u64, steps: u32) {
    let mut random = Random(seed);
    let mut store = opened(made(&geometry));
    let mut model = Content::new();
    let mut snapshots: Vec<(Snapshot, Content)> = Vec::new();
    let mut lent: Vec<(u32, Vec<u8>, std::ops::Range<usize>)> = Vec::new();
    let mut full = 0;
    let mut packed = 0;
    for _ in 0..steps {
        if random.one_in(6)
            && lent.len() < 8
            && let Some(frame) = store.lend_frame()
        {
            let mut bytes = vec![0; usize::try_from(geometry.frame_bytes).unwrap()];
            let start = random.index(100);
            let len = random.index(600);
            let text = key(&mut random);
            let text = &text[..text.len().min(len)];
            bytes[start..start + text.len()].copy_from_slice(text);
            store.deposit(frame, 0, &bytes);
            lent.push((frame, bytes, start..start + len));
        }
        let mut next = model.clone();
        let mut transaction = store.transaction();
        for _ in 0..=random.index(6) {
            let name = key(&mut random);
            match random.index(10) {
                0..=2 => {
                    let removed = transaction.remove(&name).unwrap();
                    assert_eq!(removed, next.remove(&name).is_some());
                }
                3 if !lent.is_empty() => {
                    let at = random.index(lent.len());
                    let (frame, bytes, payload) = lent.swap_remove(at);
                    let kept = in_place(
                        &mut transaction,
                        frame,
                        &bytes,
                        payload.clone(),
                        &mut random,
                        &mut next,
                    );
                    if !kept {
                        lent.push((frame, bytes, payload));
                    }
                }
                _ => {
                    let (value, meta) = (value(&mut random), meta(&mut random));
                    match transaction.put(&name, &value, meta, Room::Ordinary) {
                        Ok(()) => drop(next.insert(name.clone(), (value, meta))),
                        Err(Error::Full { .. }) => full += 1,
                        Err(other) => panic!("{other}"),
                    }
                }
            }
            let name = if random.one_in(2) {
                name
            } else {
                key(&mut random)
            };
            let got = transaction.get(&name).unwrap();
            let got = got.map(|record| (record.value(&mut Vec::new()).to_vec(), record.meta()));
            assert_eq!(got, next.get(&name).cloned());
        }
        if random.one_in(5) {
            drop(transaction);
        } else {
            transaction.commit().unwrap();
            model = next;
        }
        match random.index(40) {
            0 if snapshots.len() < 3 => snapshots.push((store.snapshot(), model.clone())),
            1..=3 if !snapshots.is_empty() => {
                let at = random.index(snapshots.len());
                let (snapshot, seen) = snapshots.swap_remove(at);
                let found: BTreeMap<_, _> = store
                    .range_of(&snapshot, ALL.0, ALL.1)
                    .map(|record| {
                        let record = record.unwrap();
                        let mut scratch = Vec::new();
                        let (key, value) = record.key_and_value(&mut scratch);
                        (key.to_vec(), (value.to_vec(), record.meta()))
                    })
                    .collect();
                assert!(
                    found == seen,
                    "seed {seed}: other records than the snapshot saw"
                );
                let name = key(&mut random);
                let got = store
                    .get_at(&snapshot, &name)
                    .unwrap()
                    .map(|record| record.meta());
                assert_eq!(got, seen.get(&name).map(|(_, meta)| *meta));
                store.release(snapshot);
            }
            4..=9 => packed += store.pack_step(1 + random.index(8000)).unwrap(),
            10 => same(&store, &model, &mut random),
            11 => {
                let stat = store.stat();
                snapshots.clear();
                lent.clear();
                store = opened(store.into_media().image);
                let again = store.stat();
                assert_eq!((again.records, again.commit), (stat.records, stat.commit));
                assert!(again.lines_used <= stat.lines_used);
                same(&store, &model, &mut random);
            }
            _ => {}
        }
    }
    assert!(
        packed > 0 && full > 0,
        "packed {packed} bytes, full {full} times"
    );
    // When all snapshots and frames are given back, and all records are removed, all space is free again.
    for (snapshot, _) in snapshots {
        store.release(snapshot);
    }
    for (frame, ..) in lent.drain(..) {
        store.give_back_frame(frame);
    }
    let mut transaction = store.transaction();
    for name in model.keys() {
        assert!(transaction.remove(name).unwrap());
    }
    transaction.commit().unwrap();
    let mut transaction = store.transaction();
    transaction
        .put(b"x", b"", Meta::default(), Room::Ordinary)
        .unwrap();
    transaction.remove(b"x").unwrap();
    transaction.commit().unwrap();
    let stat = store.stat();
    assert_eq!((stat.records, stat.lines_used, stat.bytes_live), (0, 0, 0));
    let scan = Scan::open(Plain::new(store.into_media().image), Some(IDENTITY.shard)).unwrap();
    assert_eq!(scan.loss(), None);
}

#[test]
fn random_operations_do_what_an_ordered_map_does() {
    for geometry in GEOMETRIES {
        for seed in 0..20 {
            run(geometry, seed, 1500);
        }
    }
}

#[test]
fn a_record_without_any_bytes_can_be_the_first() {
    let mut store = opened(made(&GEOMETRIES[0]));
    let mut transaction = store.transaction();
    transaction
        .put(b"", b"", Meta::default(), Room::Ordinary)
        .unwrap();
    transaction.commit().unwrap();
    let expected = Content::from([(Vec::new(), (Vec::new(), Meta::default()))]);
    assert_eq!(content(&store), expected);
    assert_eq!(content(&opened(store.into_media().image)), expected);
}
