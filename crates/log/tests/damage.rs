//! Damaged, foreign and hostile images. The result is a clear error and an unchanged image, or exactly the appended
//! entries. The code never panics, and never returns contents that were not appended (`docs/spec/recovery.md` §2–§4).

mod support;

use pmnet_log::{BLOCK_BYTES, Decision, Expected, LogError, Media, Parameters, Scan, decide};
use proptest::prelude::*;
use support::{EXPECTED, Forgetful, Random, SMALL, filled};

const METADATA: usize = 2 * BLOCK_BYTES;

/// Forbids any store into the medium.
fn sealed(mut medium: Forgetful) -> Forgetful {
    medium.budget = Some(u64::MAX);
    medium
}

fn slot_offset(order: u64) -> usize {
    METADATA + usize::try_from(order % 64).unwrap() * 64
}

#[test]
fn damage_below_the_proof_is_refused_and_the_image_is_left_alone() {
    // Orders 41..=60 are live, in bursts of five. The last burst proves that orders up to 55 are durable.
    let (log, _) = filled(&SMALL, 60, 5, 40);
    let medium = log.into_media().kill();
    let frames_at = METADATA + 64 * 64;
    let scan = Scan::open(medium.clone(), Some(EXPECTED)).unwrap();
    let Decision::Keep {
        applied,
        proven,
        tail,
        beyond: 0,
    } = scan.decide()
    else {
        panic!("{:?}", scan.decide())
    };
    assert!(applied < 45 && (proven, tail) == (55, 60));
    for order in applied + 1..=60 {
        let frame = frames_at + frame_offset(&scan, order);
        let frame_len = scan.frame(order).unwrap().len();
        let slot = slot_offset(order);
        for at in (slot..slot + 64).chain([frame, frame + frame_len - 1]) {
            let mut bad = medium.clone();
            bad.corrupt(at, |byte| byte ^ 0x40);
            let scan = Scan::open(sealed(bad), Some(EXPECTED)).unwrap();
            let decision = scan.decide();
            if order > proven {
                // No later entry proves that the last burst was durable, so it looks like a torn burst.
                assert!(
                    matches!(decision, Decision::Keep { tail, .. } if tail == order - 1),
                    "{order} {decision:?}"
                );
                continue;
            }
            assert_eq!(
                decision,
                Decision::Damaged {
                    orders: vec![order],
                    total: 1
                },
                "byte {at}"
            );
            assert_eq!(scan.report().slots_invalid, 1);
            let error = scan.repair(decision).unwrap_err();
            assert!(matches!(&error, LogError::Damaged { orders, .. } if *orders == [order]));
            assert!(error.to_string().contains(&format!("({order})")), "{error}");
        }
    }
}

fn frame_offset(scan: &Scan<Forgetful>, order: u64) -> usize {
    let raw = &scan.image()[slot_offset(order)..][..64];
    usize::try_from(u32::from_le_bytes(raw[32..36].try_into().unwrap())).unwrap() * 64
}

#[test]
fn many_lost_orders_are_counted_and_the_first_ones_listed() {
    let (log, _) = filled(&SMALL, 60, 5, 0);
    let mut medium = log.into_media().kill();
    for order in 1..=50 {
        medium.corrupt(slot_offset(order) + 20, |byte| byte.wrapping_add(1));
    }
    let scan = Scan::open(sealed(medium), None).unwrap();
    let Decision::Damaged { orders, total } = scan.decide() else {
        panic!("{:?}", scan.decide())
    };
    assert_eq!((orders.len(), total, orders[0]), (32, 50, 1));
}

#[test]
fn a_clean_shutdown_proves_the_last_burst_too() {
    let (log, _) = filled(&SMALL, 60, 5, 40);
    let mut medium = log.into_media().kill();
    let scan = Scan::open(&mut medium, None).unwrap();
    let decision = scan.decide();
    scan.repair(decision).unwrap().close().unwrap();
    medium.corrupt(slot_offset(60), |byte| byte ^ 1);
    let scan = Scan::open(sealed(medium), None).unwrap();
    assert_eq!(
        scan.decide(),
        Decision::Damaged {
            orders: vec![60],
            total: 1
        }
    );
}

#[test]
fn either_superblock_copy_may_be_lost_at_any_time() {
    let (mut log, _) = filled(&SMALL, 60, 5, 40);
    log.set_epoch(3).unwrap();
    let incarnation = log.incarnation();
    let medium = log.into_media().kill();
    for copy in 0..2usize {
        let mut bad = medium.clone();
        bad.corrupt(copy * BLOCK_BYTES + 70, |byte| byte ^ 1);
        let scan = Scan::open(bad, Some(EXPECTED)).unwrap();
        assert_eq!(
            (scan.report().epoch, scan.report().incarnation),
            (3, incarnation)
        );
        assert_eq!(scan.report().findings_total, 1);
        let decision = scan.decide();
        let log = scan.repair(decision).unwrap();
        assert_eq!(
            (log.epoch(), log.incarnation(), log.last()),
            (3, incarnation + 1, 60)
        );
        let scan = Scan::open(log.into_media().crash(), Some(EXPECTED)).unwrap();
        assert_eq!(
            scan.report().findings_total,
            0,
            "the lost copy was written anew"
        );
    }
    let mut bad = medium;
    bad.corrupt(70, |byte| byte ^ 1);
    bad.corrupt(BLOCK_BYTES + 70, |byte| byte ^ 1);
    assert!(matches!(
        Scan::open(sealed(bad), None),
        Err(LogError::Superblock { .. })
    ));
}

#[test]
fn superblocks_older_than_the_entries_are_refused() {
    let (log, _) = filled(&SMALL, 20, 5, 0);
    let old = log.into_media().kill();
    let mut log = support::recover(old.clone());
    let new = pmnet_log::NewEntry {
        session: 1,
        seq: 1,
        kind: 1,
        fragment_index: 0,
        fragment_count: 1,
    };
    log.append(&new, &[1; 88], b"", 0).unwrap();
    log.persist_start().unwrap();
    log.persist_poll(true).unwrap();
    let mut medium = log.into_media();
    for at in 0..2 * BLOCK_BYTES {
        let byte = old.bytes()[at];
        medium.corrupt(at, |_| byte);
    }
    let scan = Scan::open(sealed(medium), None).unwrap();
    let decision = scan.decide();
    assert_eq!(decision, Decision::SuperblockBehind { order: 21 });
    assert!(matches!(
        scan.repair(decision),
        Err(LogError::Superblock { .. })
    ));
}

#[test]
fn another_device_other_parameters_blank_truncated_foreign() {
    let (log, _) = filled(&SMALL, 20, 5, 0);
    let medium = sealed(log.into_media().kill());
    let open = |expected| Scan::open(medium.clone(), Some(expected)).map(|_| ());
    open(Expected {
        parameters: Some(SMALL),
        ..EXPECTED
    })
    .unwrap();
    assert!(matches!(
        open(Expected {
            device: 8,
            ..EXPECTED
        }),
        Err(LogError::OtherDevice { device: 8, .. })
    ));
    assert!(matches!(
        open(Expected {
            shard: 8,
            ..EXPECTED
        }),
        Err(LogError::OtherDevice { shard: 8, .. })
    ));
    let other = Parameters {
        entries: 128,
        ..SMALL
    };
    assert!(matches!(
        open(Expected {
            parameters: Some(other),
            ..EXPECTED
        }),
        Err(LogError::OtherParameters { found: SMALL, .. })
    ));
    assert!(matches!(
        Scan::open(sealed(Forgetful::new(1 << 16, 0)), None),
        Err(LogError::Blank)
    ));
    let mut text = Forgetful::new(1 << 16, 0);
    text.corrupt(0, |_| b'#');
    text.corrupt(5000, |_| b'!');
    assert!(matches!(
        Scan::open(sealed(text), None),
        Err(LogError::Foreign)
    ));
    assert!(matches!(
        Scan::open(sealed(Forgetful::new(4096, 0)), None),
        Err(LogError::Truncated { .. })
    ));
}

/// A log whose creation was interrupted has only zeros after the fields of copy 1. If any other byte after these fields
/// is not zero, the image is a damaged log, or no log of pmnet. Then the error must not say that the image may be
/// deleted.
#[test]
fn only_an_empty_image_counts_as_an_interrupted_making() {
    let formatted = Forgetful::formatted(&SMALL, 0);
    for (magic, broken) in [(true, BLOCK_BYTES + 70), (false, BLOCK_BYTES)] {
        let mut interrupted = formatted.clone();
        for at in 0..BLOCK_BYTES {
            interrupted.corrupt(at, |_| 0);
        }
        interrupted.corrupt(broken, |byte| byte ^ 1);
        let open = |medium| Scan::open(sealed(medium), Some(EXPECTED)).map(|_| ());
        assert!(matches!(
            open(interrupted.clone()),
            Err(LogError::InterruptedFormat)
        ));
        for at in [
            BLOCK_BYTES + 100,
            METADATA - 1,
            METADATA,
            SMALL.image_bytes() - 1,
        ] {
            let mut bad = interrupted.clone();
            bad.corrupt(at, |_| 1);
            let error = open(bad).unwrap_err();
            let right = match magic {
                true => matches!(error, LogError::Superblock { .. }),
                false => matches!(error, LogError::Foreign),
            };
            assert!(right, "byte {at}: {error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    /// If any bytes are damaged, the result is an error, or a sequence of entries without a gap, exactly as they were
    /// appended.
    #[test]
    fn random_damage_never_invents(seed: u64, hits in 1usize..40, spread in 0usize..3, orders in 1u64..200) {
        let (log, mut model) = filled(&SMALL, orders, 1 + seed % 7, orders.saturating_sub(30));
        let mut medium = log.into_media().kill();
        let mut random = Random(seed);
        let end = [2 * BLOCK_BYTES, METADATA + 64 * 64, SMALL.image_bytes()][spread];
        for _ in 0..hits {
            let (at, value) = (random.index(end), random.next().to_le_bytes()[0]);
            medium.corrupt(at, |_| value);
        }
        let Ok(scan) = Scan::open(medium, Some(EXPECTED)) else { return Ok(()) };
        let decision = scan.decide();
        if let Ok(log) = scan.repair(decision) {
            model.promised = 0; // No later entry proves that the last burst was durable.
            model.recovered(&log);
        }
    }

    /// An attacker knows the log's uuid, and writes entries with right checksums. The scan's work is bounded, and
    /// nothing panics.
    #[test]
    fn hostile_slots_with_right_checksums(seed: u64, slots in 1usize..20) {
        let (log, _) = filled(&SMALL, 30, 5, 10);
        let mut medium = log.into_media().kill();
        let mut random = Random(seed);
        for _ in 0..slots {
            let slot = random.below(64);
            let mut raw = [0u8; 64];
            for field in [8..24, 40..58] {
                let bytes = random.bytes(field.len());
                raw[field].copy_from_slice(&bytes);
            }
            let order = if random.below(4) == 0 { random.next() & !63 | slot } else { random.below(3) * 64 + slot };
            raw[0..8].copy_from_slice(&order.to_le_bytes());
            for at in [24, 28, 32, 36] {
                let value = u32::try_from(random.below(90)).unwrap();
                raw[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            raw[44..52].fill(0);
            raw[56..58].copy_from_slice(&1u16.to_le_bytes());
            let line = usize::try_from(u32::from_le_bytes(raw[32..36].try_into().unwrap())).unwrap();
            let len = usize::try_from(u32::from_le_bytes(raw[36..40].try_into().unwrap())).unwrap();
            let frame = &medium.bytes()[METADATA + 4096 + line * 64..][..len.max(1)];
            raw[40..44].copy_from_slice(&crc32c::crc32c(&frame[1..]).to_le_bytes());
            let mut place = [0u8; 16];
            place[..8].copy_from_slice(&slot.to_le_bytes());
            place[8..].copy_from_slice(&(order / 64).to_le_bytes());
            let seed = crc32c::crc32c_append(crc32c::crc32c(&support::IDENTITY.log_uuid.to_le_bytes()), &[0; 4]);
            let crc = [&raw[..60], &place, &frame[..1]].iter().fold(seed, |crc, part| crc32c::crc32c_append(crc, part));
            raw[60..].copy_from_slice(&crc.to_le_bytes());
            for (at, byte) in raw.iter().enumerate() {
                medium.corrupt(METADATA + usize::try_from(slot).unwrap() * 64 + at, |_| *byte);
            }
        }
        let Ok(scan) = Scan::open(medium, Some(EXPECTED)) else { return Ok(()) };
        let decision = scan.decide();
        if let Ok(mut log) = scan.repair(decision) {
            for order in log.applied() + 1..=log.last() {
                prop_assert!(log.frame(order).is_some());
            }
            let new = pmnet_log::NewEntry { session: 1, seq: 1, kind: 1, fragment_index: 0, fragment_count: 1 };
            let _full_or_not = log.append(&new, &[1; 88], b"", 0);
            log.close().unwrap();
        }
    }

    /// The decision has a result for every summary that the scan can build.
    #[test]
    fn decide_is_total(seed: u64, bits in 0u32..7) {
        let mut random = Random(seed);
        let count = 1u64 << bits;
        let base = if seed % 5 == 0 { u64::MAX - 200 } else { random.below(500) };
        let slots = (0..count).map(|slot| {
            let order = (base & !(count - 1)) + slot;
            if order == 0 || random.below(4) == 0 {
                return pmnet_log::Slot::Empty;
            }
            let applied = order - 1 - random.below(count.min(order));
            let durable = applied + random.below(order - applied);
            pmnet_log::Slot::Valid { order, durable, applied, epoch: 0, incarnation: 0 }
        }).collect();
        let applied = base.saturating_sub(random.below(100));
        let durable = applied + random.below(count + 1);
        let _any = decide(&pmnet_log::Summary { applied, durable, epoch: 0, incarnation: 0, slots });
    }
}
