//! The log without crashes: cursors, free space, laps, epochs, resets, and the bytes that a persist covers.

mod support;

use pmnet_log::{Full, LogError, Media, NewEntry, Parameters, Room, Scan, format};
use support::{EXPECTED, Forgetful, IDENTITY, Model, Random, SMALL, filled, recover};

const NEW: NewEntry = NewEntry {
    session: 1,
    seq: 1,
    kind: 3,
    fragment_index: 0,
    fragment_count: 1,
};

#[test]
fn a_new_log_is_empty_and_of_incarnation_one() {
    let log = recover(Forgetful::formatted(&SMALL, 0));
    assert_eq!((log.last(), log.durable(), log.applied()), (0, 0, 0));
    assert_eq!((log.epoch(), log.incarnation(), log.occupancy()), (0, 1, 0));
    assert_eq!(
        log.room(),
        Room {
            entries: 64,
            frame_bytes: 16 * 1024
        }
    );
    assert_eq!((log.identity(), log.parameters()), (&IDENTITY, &SMALL));
}

#[test]
fn a_burst_is_one_persist_of_its_entries_and_frames_alone() {
    let (mut log, _) = filled(&SMALL, 60, 10, 58);
    for _ in 0..8 {
        log.append(&NEW, &[1; 88], &[2; 200], crc32c::crc32c(&[2; 200]))
            .unwrap();
    }
    let before = log.durable();
    assert!(log.persist_start().unwrap());
    assert!(!log.persist_start().unwrap(), "one in flight");
    assert_eq!(log.durable(), before);
    assert!(log.persist_poll(true).unwrap());
    assert_eq!(log.durable(), log.last());
    assert!(
        !log.persist_poll(true).unwrap() && !log.persist_start().unwrap(),
        "nothing more to do"
    );
    let medium = log.into_media();
    // Orders 61..=68 wrap in the metadata ring of 64 slots, into slots 61..64 and 0..5. Their frames are contiguous.
    let sizes: Vec<usize> = medium
        .last_ranges
        .iter()
        .map(ExactSizeIterator::len)
        .collect();
    assert_eq!(sizes, [3 * 64, 5 * 64, 8 * 320]);
}

#[test]
fn full_of_entries_and_free_again_without_an_append() {
    let (mut log, _) = filled(&Parameters::ring(64, 1 << 20), 64, 16, 0);
    assert_eq!(log.append(&NEW, &[1], &[], 0), Err(Full::Entries));
    assert_eq!((log.room().entries, log.occupancy()), (0, 100));
    log.reclaim(64);
    assert_eq!((log.applied(), log.occupancy()), (64, 0));
    // The orders are reclaimed, but no durable witness states it yet, so their space must not be used.
    assert_eq!(log.append(&NEW, &[1], &[], 0), Err(Full::Entries));
    assert!(log.persist_start().unwrap());
    assert!(!log.persist_poll(true).unwrap(), "durable() has not moved");
    assert_eq!(log.room().entries, 0, "one copy of the superblock says so");
    assert!(
        log.persist_start().unwrap(),
        "the other one follows unasked"
    );
    assert!(!log.persist_poll(true).unwrap());
    assert_eq!(log.room().entries, 64);
    assert!(!log.persist_start().unwrap(), "nothing more to do");
    assert_eq!(log.append(&NEW, &[1], &[], 0), Ok(65));
}

#[test]
fn one_reclaimed_order_in_a_full_log_is_enough_to_go_on() {
    let (mut log, _) = filled(&Parameters::ring(64, 1 << 20), 64, 16, 0);
    log.reclaim(1);
    assert!(
        !log.persist_start().unwrap(),
        "one order alone is not worth a superblock"
    );
    assert_eq!(log.append(&NEW, &[1], &[], 0), Err(Full::Entries));
    assert!(
        log.persist_start().unwrap(),
        "but it is when an append needs it"
    );
    log.persist_poll(true).unwrap();
    log.persist_start().unwrap();
    log.persist_poll(true).unwrap();
    assert_eq!(log.append(&NEW, &[1], &[], 0), Ok(65));
}

/// Reclaimed space is used again only after two durable witnesses state the reclaim. Entries that were appended before
/// the reclaim are no witnesses.
#[test]
fn a_persist_releases_only_what_it_wrote_down() {
    let (mut log, _) = filled(&Parameters::ring(64, 1 << 20), 32, 16, 0);
    let append = |log: &mut pmnet_log::Log<Forgetful>| log.append(&NEW, &[1], &[], 0).unwrap();
    append(&mut log);
    log.reclaim(15);
    log.persist_start().unwrap();
    log.persist_poll(true).unwrap();
    assert_eq!(
        log.room().entries,
        64 - 33,
        "order 33 says: nothing reclaimed"
    );
    append(&mut log);
    log.persist_start().unwrap();
    assert_eq!(
        log.room().entries,
        64 - 34,
        "order 34 says so, and is not durable yet"
    );
    log.persist_poll(true).unwrap();
    assert_eq!(
        log.room().entries,
        64 - 34,
        "order 34 says so, and may be damaged one day"
    );
    append(&mut log);
    log.persist_start().unwrap();
    log.persist_poll(true).unwrap();
    assert_eq!(log.room().entries, 64 - 35 + 15);
}

/// Space was released and used again. Then a superblock that released it is lost, and the entry that used it is torn.
/// All durable orders that were not applied must still be present.
#[test]
fn a_lost_superblock_and_a_torn_entry_cost_no_durable_order() {
    let (mut log, _) = filled(&Parameters::ring(64, 1 << 20), 64, 64, 0);
    log.reclaim(62);
    let mut persists = 0;
    while log.append(&NEW, &[1], &[], 0).is_err() {
        persists += 1;
        assert!(persists < 3 && log.persist_start().unwrap());
        log.persist_poll(true).unwrap();
    }
    let image = log.into_media().kill();
    for lost in [0, pmnet_log::BLOCK_BYTES] {
        let mut bad = image.clone();
        // The entry of order 65, in slot 1, is torn.
        bad.corrupt(2 * pmnet_log::BLOCK_BYTES + 64 + 20, |byte| byte ^ 0x40);
        bad.corrupt(lost + 100, |byte| byte ^ 0x40);
        let log = recover(bad);
        assert_eq!((log.applied(), log.last()), (62, 64));
    }
}

#[test]
fn full_of_frames_and_frames_that_never_fit() {
    let mut log = recover(Forgetful::formatted(&Parameters::ring(64, 4096), 0));
    assert_eq!(
        log.append(&NEW, &[1; 88], &[0; 4096], 0),
        Err(Full::TooLarge)
    );
    assert_eq!(log.append(&NEW, &[], &[0; 40], 0), Err(Full::TooLarge));
    assert_eq!(
        log.append(&NEW, &[1; 513], &[0; 40], 0),
        Err(Full::TooLarge)
    );
    assert_eq!(
        log.append(&NEW, &[1; 88], &[0; 4008], crc32c::crc32c(&[0; 4008])),
        Ok(1)
    );
    assert_eq!(
        log.room(),
        Room {
            entries: 63,
            frame_bytes: 0
        }
    );
    assert_eq!(log.append(&NEW, &[1; 1], &[], 0), Err(Full::Frames));
    let mut large = recover(Forgetful::formatted(&Parameters::ring(64, 1 << 20), 0));
    assert_eq!(
        large.append(&NEW, &[1; 36], &[0; 65_500], 0),
        Err(Full::TooLarge)
    );
}

/// An old copy of the image, from before the mark, keeps its lower mark, even if its device is started often.
#[test]
fn the_incarnation_that_served_survives_and_is_not_raised_by_starts() {
    let mut log = recover(Forgetful::formatted(&SMALL, 0));
    assert_eq!((log.incarnation(), log.served()), (1, 0));
    log = recover(log.into_media().crash());
    assert_eq!((log.incarnation(), log.served()), (2, 0));
    log.mark_served().unwrap();
    log.mark_served().unwrap();
    assert_eq!(log.served(), 2);
    for incarnation in 3..6 {
        log = recover(log.into_media().crash());
        assert_eq!((log.incarnation(), log.served()), (incarnation, 2));
    }
}

#[test]
fn epochs_only_grow_and_survive() {
    let mut log = recover(Forgetful::formatted(&SMALL, 0));
    log.set_epoch(5).unwrap();
    log.set_epoch(5).unwrap();
    assert!(matches!(
        log.set_epoch(4),
        Err(LogError::EpochWentBack { have: 5, asked: 4 })
    ));
    log.append(&NEW, &[1; 88], b"x", crc32c::crc32c(b"x"))
        .unwrap();
    assert_eq!(
        log.entry(1).map(|entry| (entry.epoch, entry.incarnation)),
        Some((5, 1))
    );
    let log = recover(log.into_media().crash());
    assert_eq!((log.epoch(), log.incarnation()), (5, 2));
}

#[test]
fn set_epoch_waits_for_the_persist_in_flight_and_poll_still_reports_it() {
    let mut log = recover(Forgetful::formatted(&SMALL, 0));
    log.append(&NEW, &[1; 88], b"x", crc32c::crc32c(b"x"))
        .unwrap();
    log.persist_start().unwrap();
    log.set_epoch(1).unwrap();
    assert!(log.persist_poll(false).unwrap());
    assert!(!log.persist_poll(false).unwrap());
}

/// The applied order in the superblock stays 0 while both rings are filled many times.
#[test]
fn a_superblock_hint_that_lags_many_laps_behind() {
    let (log, mut model) = filled(&SMALL, 1000, 3, 980);
    let medium = log.into_media().crash();
    let scan = Scan::open(medium, Some(EXPECTED)).unwrap();
    assert_eq!(
        scan.report().applied_hint,
        0,
        "no superblock was written on the way"
    );
    let decision = scan.decide();
    let log = scan.repair(decision).unwrap();
    assert_eq!(log.last(), 1000);
    assert!(
        log.applied() >= 970,
        "the entries prove what was reclaimed: {}",
        log.applied()
    );
    model.recovered(&log);
}

#[test]
fn reset_forgets_everything_at_once_in_both_directions() {
    for target in [10, 500] {
        let (mut log, _) = filled(&SMALL, 100, 10, 60);
        log.reset_to(target).unwrap();
        assert_eq!(
            (log.last(), log.durable(), log.applied(), log.entry(80)),
            (target, target, target, None)
        );
        let log = recover(log.into_media().crash());
        assert_eq!((log.last(), log.applied()), (target, target));
        // Orders that existed before the reset are now given to new entries.
        let mut log = log;
        assert_eq!(
            log.append(&NEW, &[9; 88], b"new", crc32c::crc32c(b"new")),
            Ok(target + 1)
        );
        log.persist_start().unwrap();
        log.persist_poll(true).unwrap();
        let log = recover(log.into_media().crash());
        assert_eq!(log.last(), target + 1);
        assert_eq!(&log.frame(target + 1).unwrap()[88..], b"new");
    }
    let mut log = recover(Forgetful::formatted(&SMALL, 0));
    assert!(matches!(
        log.reset_to(u64::MAX - 3),
        Err(LogError::Exhausted { .. })
    ));
}

#[test]
fn a_failed_medium_ends_the_log() {
    let (log, _) = filled(&SMALL, 10, 5, 0);
    let mut medium = log.into_media().kill();
    medium.budget = Some(6);
    let mut log = recover(medium);
    log.append(&NEW, &[1; 88], b"x", crc32c::crc32c(b"x"))
        .unwrap();
    assert!(matches!(log.persist_start(), Err(LogError::Media(_))));
    assert!(
        matches!(log.persist_start(), Err(LogError::Media(_))),
        "it is not tried again in silence"
    );
    assert!(log.persist_poll(true).is_err() && log.set_epoch(9).is_err());
    assert_eq!(log.durable(), 10);
}

#[test]
fn format_refuses_what_is_not_blank_or_not_possible() {
    let mut medium = Forgetful::new(SMALL.image_bytes(), 0);
    for bad in [
        Parameters {
            entries: 63,
            ..SMALL
        },
        Parameters {
            entries: 32,
            ..SMALL
        },
        Parameters {
            entries: 1 << 40,
            ..SMALL
        },
        Parameters {
            frame_bytes: 0,
            ..SMALL
        },
        Parameters {
            frame_bytes: 5000,
            ..SMALL
        },
        Parameters {
            frame_bytes: u64::MAX - 4095,
            ..SMALL
        },
    ] {
        assert!(
            matches!(
                format(&mut medium, &IDENTITY, &bad),
                Err(LogError::Parameters { .. })
            ),
            "{bad:?}"
        );
    }
    let larger = Parameters {
        entries: 128,
        ..SMALL
    };
    assert!(matches!(
        format(&mut medium, &IDENTITY, &larger),
        Err(LogError::Truncated { .. })
    ));
    medium.corrupt(20_000, |_| 1);
    assert!(matches!(
        format(&mut medium, &IDENTITY, &SMALL),
        Err(LogError::NotBlank)
    ));
    medium.corrupt(20_000, |_| 0);
    format(&mut medium, &IDENTITY, &SMALL).unwrap();
    assert!(matches!(
        format(&mut medium, &IDENTITY, &SMALL),
        Err(LogError::NotBlank)
    ));
}

#[test]
fn a_crash_while_the_log_is_made_leaves_a_log_or_says_so() {
    let (mut logs, mut interrupted, mut blank) = (0, 0, 0);
    for seed in 0..200 {
        for at in 0..2 {
            let mut medium = Forgetful::new(SMALL.image_bytes(), seed);
            medium.budget = Some(at);
            assert!(format(&mut medium, &IDENTITY, &SMALL).is_err());
            match Scan::open(medium.crash(), Some(EXPECTED)) {
                Ok(_) => logs += 1,
                Err(LogError::InterruptedFormat) => interrupted += 1,
                Err(LogError::Blank) => blank += 1,
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(
        logs > 0 && interrupted > 0 && blank > 0,
        "{logs} {interrupted} {blank}"
    );
}

#[test]
fn a_random_load_laps_both_rings_and_the_medium_is_never_asked_for_more_than_the_bursts() {
    let mut random = Random(5);
    let mut log = recover(Forgetful::formatted(&SMALL, 5));
    let mut model = Model::default();
    model.recovered(&log);
    for _ in 0..3_000 {
        let len = random.index(1345);
        model.append(&mut log, len, &mut random);
        if random.below(4) == 0 {
            log.persist_start().unwrap();
            log.persist_poll(true).unwrap();
            model.promised = log.durable();
            log.reclaim(log.durable() - log.durable().min(random.below(6)));
            model.applied = log.applied();
        }
    }
    assert!(log.last() > 2_000, "{}", log.last());
    let bytes = log.into_media();
    assert!(
        bytes.persisted_bytes < 3_000 * (64 + 64 + 1345 + 100) + 64 * 4096
            && bytes.bytes().len() == SMALL.image_bytes()
    );
}
