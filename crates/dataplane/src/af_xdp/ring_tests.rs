//! The arithmetic of the rings. The kernel's side is played by a second mapping of the same memory.

use std::fs::File;

use memmap2::MmapOptions;
use rustix::fs::{MemfdFlags, memfd_create};

use super::*;

const BYTES: u64 = 4096;

fn offsets(size: u32) -> XdpRingOffset {
    XdpRingOffset {
        producer: 0,
        consumer: 64,
        desc: BYTES - u64::from(size) * 8,
        flags: Some(128),
    }
}

/// Returns two mappings of one page, in which both counters are `start`.
fn memory(start: u32) -> [MmapRaw; 2] {
    let file = File::from(memfd_create("ring", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(BYTES).unwrap();
    let map = || MmapOptions::new().map_raw(&file).unwrap();
    let first = map();
    for at in [0, 64] {
        // SAFETY: inside the mapping, and aligned; no other code uses it yet.
        unsafe { first.as_mut_ptr().add(at).cast::<u32>().write(start) };
    }
    [first, map()]
}

fn pair(size: u32, start: u32) -> (Producer<u64>, Consumer<u64>) {
    let [ours, theirs] = memory(start);
    (
        Producer::new(ours, &offsets(size), size).unwrap(),
        Consumer::new(theirs, &offsets(size), size).unwrap(),
    )
}

#[test]
fn everything_arrives_once_and_in_order_across_the_wrap_around() {
    // The counters wrap at 2^32, and bursts of every size begin at every entry of the ring.
    for size in [1, 2, 8] {
        for start in [0, 5, u32::MAX - 20, u32::MAX] {
            let (mut producer, mut consumer) = pair(size, start);
            let (mut sent, mut received) = (0, 0);
            for round in 0..200 {
                let wanted = round % (size + 2);
                let granted = producer.reserve(wanted).unwrap();
                let room = size - u32::try_from(sent - received).unwrap();
                assert_eq!(granted, wanted.min(room));
                for _ in 0..granted {
                    producer.put(sent);
                    sent += 1;
                }
                let before = consumer.peek(size).unwrap();
                assert_eq!(producer.submit(), granted);
                let there = consumer.peek(size).unwrap();
                assert_eq!(there, before + granted, "seen when submitted");
                for _ in 0..there.min(round % 3 + 1) {
                    assert_eq!(consumer.get(), received);
                    received += 1;
                }
                consumer.release();
            }
            assert!(received > 100, "{size} {start} {received}");
        }
    }
}

#[test]
fn a_place_is_free_again_when_it_is_released() {
    let (mut producer, mut consumer) = pair(2, u32::MAX);
    assert_eq!(producer.reserve(9).unwrap(), 2);
    producer.put(1);
    producer.put(2);
    producer.submit();
    assert_eq!(consumer.peek(9).unwrap(), 2);
    assert_eq!(consumer.get(), 1);
    assert_eq!(producer.reserve(1).unwrap(), 0);
    consumer.release();
    assert_eq!(producer.reserve(9).unwrap(), 1);
}

#[test]
fn what_is_reserved_and_not_put_is_not_handed_over() {
    let (mut producer, mut consumer) = pair(4, 0);
    assert_eq!(producer.reserve(3).unwrap(), 3);
    producer.put(7);
    assert_eq!(producer.reserve(4).unwrap(), 3);
    assert_eq!(producer.submit(), 1);
    assert_eq!(consumer.peek(4).unwrap(), 1);
    let beyond = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| producer.put(8)));
    assert!(beyond.is_err(), "a place must be reserved");
}

#[test]
fn a_counter_that_cannot_be_is_an_error() {
    for (at, value) in [(0, 9), (0, u32::MAX), (64, 1), (64, u32::MAX - 9)] {
        let [ours, theirs] = memory(0);
        let (first, second) = (offsets(8), offsets(8));
        let mut producer = Producer::<u64>::new(ours, &first, 8).unwrap();
        let mut consumer = Consumer::<u64>::new(theirs, &second, 8).unwrap();
        let word = if at == 0 {
            consumer.shared.word(0)
        } else {
            producer.shared.word(64)
        };
        word.store(value, Relaxed);
        let failed = if at == 0 {
            consumer.peek(8).is_err()
        } else {
            producer.reserve(9).is_err()
        };
        assert!(failed, "{at} {value}");
    }
    // A counter that decreases is an error, too.
    let (mut producer, mut consumer) = pair(8, 0);
    producer.reserve(2).unwrap();
    producer.put(1);
    producer.put(2);
    producer.submit();
    assert_eq!(consumer.peek(8).unwrap(), 2);
    let _ = (consumer.get(), consumer.get());
    producer.shared.word(0).store(1, Relaxed);
    assert!(consumer.peek(8).is_err());
}

#[test]
fn offsets_outside_of_the_mapping_are_an_error() {
    let good = offsets(8);
    for wrong in [
        XdpRingOffset {
            producer: BYTES,
            ..good
        },
        XdpRingOffset {
            consumer: 3,
            ..good
        },
        XdpRingOffset {
            flags: Some(u64::MAX),
            ..good
        },
        XdpRingOffset {
            desc: good.desc + 8,
            ..good
        },
    ] {
        let [ours, _] = memory(0);
        assert!(Producer::<u64>::new(ours, &wrong, 8).is_err(), "{wrong:?}");
    }
    let [ours, theirs] = memory(0);
    assert!(Producer::<u64>::new(ours, &good, 6).is_err());
    assert!(Producer::<u64>::new(theirs, &good, 8).is_ok());
}
