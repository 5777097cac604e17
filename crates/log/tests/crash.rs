//! Long random histories with several restarts, in rings of other shapes than those of the enumeration. A crash, which
//! may also come during a repair, forgets any subset of the unpersisted words and lines (`docs/spec/recovery.md` §6).
//! `enumerate/main.rs` crashes at every moment of short histories.

mod support;

use pmnet_log::{Decision, NewEntry, Parameters, Scan};
use proptest::prelude::*;
use support::{EXPECTED, Forgetful, Model, Random, SMALL, Step, recover};

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1u8..12, prop_oneof![Just(60u16), Just(700), Just(1344)]).prop_map(|(n, max)| Step::Append(n, max)),
        6 => Just(Step::PersistStart),
        4 => Just(Step::PersistPoll(false)),
        3 => Just(Step::PersistPoll(true)),
        4 => (0u8..9).prop_map(Step::Reclaim),
        1 => Just(Step::RaiseEpoch),
        1 => (-20i8..100).prop_map(Step::Reset),
    ]
}

/// How a run of the log ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Crash,
    Kill,
    Close,
}

fn lives() -> impl Strategy<Value = Vec<(Vec<Step>, End, u64)>> {
    let end = prop_oneof![4 => Just(End::Crash), 2 => Just(End::Kill), 1 => Just(End::Close)];
    prop::collection::vec((prop::collection::vec(step(), 0..60), end, 0u64..40), 1..8)
}

fn run(seed: u64, parameters: &Parameters, lives: &[(Vec<Step>, End, u64)]) {
    let mut random = Random(seed);
    let mut model = Model::default();
    let mut log = recover(Forgetful::formatted(parameters, seed));
    model.recovered(&log);
    for (steps, end, repair_crash) in lives {
        for step in steps {
            model.step(&mut log, *step, &mut random).unwrap();
        }
        let mut medium = match end {
            End::Crash => log.into_media().crash(),
            End::Kill => log.into_media().kill(),
            End::Close => {
                let mut medium = log.into_media();
                // Another process takes over the visible state, and then closes the log cleanly.
                let mut again = recover(medium.clone().kill());
                model.recovered(&again);
                again.reclaim(model.applied);
                let (applied, last) = (again.applied(), again.last());
                medium = close(again);
                let clean = Scan::open(medium.clone(), Some(EXPECTED)).unwrap();
                assert_eq!(
                    (clean.report().applied_hint, clean.report().durable_hint),
                    (applied, last)
                );
                medium.crash()
            }
        };
        // The repair crashes, too, at one of its persists, and perhaps several times.
        let mut at = *repair_crash;
        while at < 7 {
            medium.budget = Some(at);
            let scan = Scan::open(&mut medium, Some(EXPECTED)).unwrap();
            let decision = scan.decide();
            if scan.repair(decision).is_ok() {
                break;
            }
            medium = if random.below(2) == 0 {
                medium.crash()
            } else {
                medium.kill()
            };
            at += 1 + random.below(4);
        }
        medium.budget = None;
        log = recover(medium);
        model.recovered(&log);
    }
}

/// Closes the log through a borrowed medium, so that the medium can be examined afterwards.
fn close(log: pmnet_log::Log<Forgetful>) -> Forgetful {
    let (applied, last) = (log.applied(), log.last());
    let mut medium = log.into_media();
    let scan = Scan::open(&mut medium, Some(EXPECTED)).unwrap();
    let decision = scan.decide();
    let mut log = scan.repair(decision).unwrap();
    assert_eq!(log.last(), last);
    log.reclaim(applied);
    log.close().unwrap();
    medium
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_survives(seed: u64, lives in lives()) {
        run(seed, &SMALL, &lives);
    }

    #[test]
    fn any_history_survives_in_a_ring_that_laps_its_entries(seed: u64, lives in lives()) {
        run(seed, &Parameters::ring(128, 4096), &lives);
    }

    #[test]
    fn any_history_survives_in_a_ring_whose_entries_run_out_first(seed: u64, lives in lives()) {
        run(seed, &Parameters::ring(64, 256 * 1024), &lives);
    }

    #[test]
    fn any_history_survives_in_packet_buffers(seed: u64, lives in lives()) {
        run(seed, &Parameters::buffers(64, 32 * 2048, 2048), &lives);
    }
}

/// After a torn tail, orders are erased and given to new entries. The erased entries that followed the old entries must
/// not appear after the new entries.
#[test]
fn a_torn_tail_never_comes_back() {
    let new = NewEntry {
        session: 1,
        seq: 1,
        kind: 1,
        fragment_index: 0,
        fragment_count: 1,
    };
    for seed in 0..60 {
        let mut log = recover(Forgetful::formatted(&SMALL, seed));
        for _ in 0..6 {
            log.append(&new, &[1; 88], b"", 0).unwrap();
        }
        let mut medium = log.into_media().kill();
        medium.corrupt(8192 + 3 * 64 + 8, |byte| byte ^ 1);
        let mut log = recover(medium);
        assert_eq!(log.last(), 2);
        log.append(&new, &[2; 88], b"", 0).unwrap();
        log.persist_start().unwrap();
        log.persist_poll(true).unwrap();
        let log = recover(log.into_media().crash());
        assert_eq!((log.last(), log.frame(3)), (3, Some(&[2; 88][..])));
    }
}

/// Only an entry that the repair erases proves that orders up to 6 were durable. If one of these orders is damaged, the
/// next recovery must notice it, no matter at which step the repair was interrupted.
#[test]
fn damage_after_a_repair_that_erased_the_proof() {
    let new = NewEntry {
        session: 1,
        seq: 1,
        kind: 1,
        fragment_index: 0,
        fragment_count: 1,
    };
    for budget in 3..6 {
        let mut log = recover(Forgetful::formatted(&SMALL, budget));
        for _ in 0..6 {
            log.append(&new, &[1; 88], b"", 0).unwrap();
        }
        log.persist_start().unwrap();
        log.persist_poll(true).unwrap();
        for _ in 0..2 {
            log.append(&new, &[2; 88], b"", 0).unwrap();
        }
        let mut medium = log.into_media().kill();
        medium.corrupt(8192 + 7 * 64 + 8, |byte| byte ^ 1);
        medium.budget = Some(budget);
        let scan = Scan::open(&mut medium, Some(EXPECTED)).unwrap();
        let decision = scan.decide();
        assert!(scan.repair(decision).is_err(), "cut off");
        let mut medium = medium.kill();
        medium.corrupt(8192 + 5 * 64 + 8, |byte| byte ^ 1);
        let damaged = Decision::Damaged {
            orders: vec![5],
            total: 1,
        };
        let scan = Scan::open(medium, Some(EXPECTED)).unwrap();
        assert_eq!(scan.decide(), damaged, "after {budget} persists");
    }
}
