//! Appends by the fast path (ordered-log.md §10): a log takes over entries that the fast path wrote by the log's rules,
//! and no other entries.

mod support;

use pmnet_log::{BLOCK_BYTES, Expected, Log, LogError, Media, NewEntry, frame_at};
use support::{Forgetful, Random, SMALL, recover};

const METADATA: usize = 2 * BLOCK_BYTES;

fn slot_at(order: u64) -> usize {
    METADATA + usize::try_from(order & (SMALL.entries - 1)).unwrap() * 64
}

fn append(log: &mut Log<Forgetful>, random: &mut Random) {
    let new = NewEntry {
        session: 1,
        seq: log.last() + 1,
        kind: 3,
        fragment_index: 0,
        fragment_count: 1,
    };
    let len = random.index(900);
    let payload = random.bytes(len);
    let crc = crc32c::crc32c(&payload);
    log.append(&new, &[7; 88], &payload, crc).unwrap();
    log.persist_start().unwrap();
    log.persist_poll(true).unwrap();
}

/// Returns a log with `before + more` orders twice: once written by its owner, and once as a fast path leaves it for an
/// owner that knows only the first `before` orders.
fn two(before: u64, more: u64, seed: u64) -> (Log<Forgetful>, Log<Forgetful>) {
    let mut random = Random(seed);
    let mut log = recover(Forgetful::formatted(&SMALL, seed));
    for order in 1..=before {
        append(&mut log, &mut random);
        if order % 7 == 0 {
            log.reclaim(order - 3);
        }
    }
    let tail = log.tail();
    for _order in 0..more {
        append(&mut log, &mut random);
    }
    let mut medium = log.medium().clone();
    for order in before + 1..=before + more {
        for at in slot_at(order) + 60..slot_at(order) + 64 {
            medium.corrupt(at, |_| 0);
        }
    }
    (log, Log::adopt(medium, None, &tail).unwrap())
}

#[test]
fn what_was_followed_is_as_if_it_had_been_appended() {
    for seed in 0..200 {
        let before = seed % 90;
        let room = 10.min(SMALL.entries - 1);
        let (log, mut follower) = two(before, room, seed);
        assert_eq!(follower.last(), before);
        for upto in before..=before + room {
            follower.follow(upto).unwrap();
            assert_eq!((follower.last(), follower.durable()), (upto, upto));
        }
        assert_eq!(follower.tail(), log.tail(), "seed {seed}");
        assert_eq!(follower.room(), log.room());
        assert_eq!(
            follower.medium().bytes(),
            log.medium().bytes(),
            "seed {seed}: entries are sealed"
        );
        // Both logs continue in this way, until the rings have wrapped.
        let (mut log, mut random, mut again) = (log, Random(seed), Random(seed));
        for step in 0..30 {
            append(&mut log, &mut random);
            append(&mut follower, &mut again);
            if step % 5 == 0 {
                log.reclaim(log.last());
                follower.reclaim(follower.last());
            }
        }
        assert_eq!(follower.tail(), log.tail());
        assert_eq!(follower.medium().bytes(), log.medium().bytes());
    }
}

#[test]
fn a_followed_log_survives_like_any_other() {
    let (_, mut follower) = two(20, 5, 3);
    follower.follow(25).unwrap();
    let log = recover(follower.into_media().kill());
    assert_eq!(log.last(), 25);
}

#[test]
fn what_the_log_could_not_have_appended_is_refused() {
    // The field of the entry, its offset, and the number that is added to its lowest byte.
    for (what, field, change) in [
        ("order", 0, 1),
        ("order of the lap before", 0, 64),
        ("more applied than the owner knows of", 28, 255),
        ("a frame beyond the ring", 33, 1),
        ("a frame longer than the ring", 38, 1),
        ("a header longer than any", 57, 2),
    ] {
        let (_, follower) = two(0, 3, 5);
        let tail = follower.tail();
        let mut medium = follower.into_media();
        medium.corrupt(slot_at(2) + field, |byte| byte.wrapping_add(change));
        let mut follower = Log::adopt(medium, None, &tail).unwrap();
        follower.follow(1).unwrap();
        assert!(
            matches!(follower.follow(3), Err(LogError::Followed { order: 2 })),
            "{what}"
        );
        assert!(follower.persist_start().is_err(), "{what}: it has failed");
    }
}

#[test]
fn a_log_is_adopted_by_its_end_or_not_at_all() {
    let (log, _) = two(40, 5, 7);
    let tail = log.tail();
    let medium = log.into_media();
    let adopted = Log::adopt(medium.clone(), None, &tail).unwrap();
    assert_eq!(adopted.tail(), tail);
    assert_eq!(adopted.incarnation(), 1, "nothing was repaired");
    for (what, wrong) in [
        (
            "too long",
            pmnet_log::Tail {
                last: tail.last + 1,
                ..tail
            },
        ),
        (
            "released beyond stated",
            pmnet_log::Tail {
                released: tail.stated + 1,
                ..tail
            },
        ),
        (
            "stated beyond applied",
            pmnet_log::Tail {
                stated: tail.applied + 1,
                ..tail
            },
        ),
        (
            "applied beyond last",
            pmnet_log::Tail {
                applied: tail.last + 1,
                ..tail
            },
        ),
        (
            "a head outside of the ring",
            pmnet_log::Tail {
                head: SMALL.frame_bytes + 64,
                ..tail
            },
        ),
        (
            "more than the ring holds",
            pmnet_log::Tail {
                last: tail.released + 65,
                ..tail
            },
        ),
    ] {
        let found = Log::adopt(medium.clone(), None, &wrong);
        assert!(matches!(found, Err(LogError::Followed { .. })), "{what}");
    }
    let other = Expected {
        device: 8,
        shard: 3,
        parameters: None,
    };
    assert!(matches!(
        Log::adopt(medium, Some(other), &tail),
        Err(LogError::OtherDevice { .. })
    ));
}

#[test]
fn a_frame_is_read_from_beside_only_where_its_order_is() {
    let (log, _) = two(70, 5, 9);
    let image = log.medium().bytes();
    for order in log.applied() + 1..=log.last() {
        assert_eq!(frame_at(image, &SMALL, order), log.frame(order));
    }
    assert_eq!(frame_at(image, &SMALL, log.last() + 1), None);
    assert_eq!(
        frame_at(image, &SMALL, log.last() - 64),
        None,
        "another lap"
    );
}

/// An applied entry stays readable until it is overwritten. After that, the log returns no other bytes for its order.
#[test]
fn what_is_applied_is_kept_until_it_is_overwritten() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut log = recover(Forgetful::formatted(&SMALL, seed));
        let mut follower = Log::adopt(log.medium().clone(), None, &log.tail()).unwrap();
        let mut frames = vec![Vec::new()];
        let mut kept = 0;
        for order in 1..=400 {
            append(&mut log, &mut random);
            frames.push(log.frame(order).unwrap().to_vec());
            if order % 3 == 0 {
                log.reclaim(order - random.below(order.min(5)));
            }
            if random.below(40) == 0 {
                // From now on, another owner reads.
                follower = Log::adopt(log.medium().clone(), None, &log.tail()).unwrap();
            }
            for (reader, name) in [(&log, "owner"), (&follower, "follower")] {
                let last = usize::try_from(reader.last()).unwrap();
                for (at, frame) in frames.iter().enumerate().take(last + 1) {
                    let seen = reader.kept_frame(u64::try_from(at).unwrap());
                    assert!(
                        seen.is_none_or(|seen| seen == frame),
                        "seed {seed}, {name}: order {at} of {last}"
                    );
                    kept += usize::from(seen.is_some() && at + 20 < last);
                }
            }
            // The frames of the last orders all fit into the ring, so they must still be readable.
            let bytes = frames[frames.len().saturating_sub(9)..]
                .iter()
                .map(Vec::len);
            if frames.len() > 9 && bytes.map(|len| len + 64).sum::<usize>() < 8 * 1024 {
                assert!(
                    log.kept_frame(order - 7).is_some(),
                    "seed {seed}: order {order}"
                );
            }
        }
        assert!(
            kept > 0,
            "seed {seed}: the ring has more than what is not applied"
        );
        assert_eq!(log.kept_frame(0), None);
        assert_eq!(log.kept_frame(401), None);
    }
}
