//! Crashes everywhere: at every persist of every operation and of repair itself, with any subset
//! of the unpersisted words and lines forgotten (`docs/spec/recovery.md` §6).

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

/// How a life of the log ends.
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
                // What was seen can be taken over by another process, which then closes cleanly.
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
        // The repair crashes too, at some persist of it, and perhaps again.
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

/// Closes through a borrowed medium, so that the medium can be looked at afterwards.
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
        run(seed, &Parameters { entries: 128, frame_bytes: 4096 }, &lives);
    }

    #[test]
    fn any_history_survives_in_a_ring_whose_entries_run_out_first(seed: u64, lives in lives()) {
        run(seed, &Parameters { entries: 64, frame_bytes: 256 * 1024 }, &lives);
    }
}

/// A busy history: several laps of both rings, epochs, resets up and down.
fn script(random: &mut Random) -> Vec<Step> {
    let mut steps = Vec::new();
    for round in 0..14u64 {
        steps.push(Step::Append(
            1 + u8::try_from(random.below(9)).unwrap(),
            1344,
        ));
        steps.push(Step::PersistStart);
        steps.push(Step::Append(2, 200));
        steps.push(Step::PersistPoll(true));
        steps.push(Step::Reclaim(u8::try_from(random.below(9)).unwrap()));
        match round {
            4 | 9 => steps.push(Step::RaiseEpoch),
            6 => steps.push(Step::Reset(50)),
            11 => steps.push(Step::Reset(-3)),
            _ => {}
        }
    }
    steps
}

/// Every persist of a history is once the moment of the crash, and every persist of the repair
/// after it too, once as a loss of power and once as the death of the process.
#[test]
fn crash_at_every_persist_and_at_every_persist_of_the_repair() {
    let mut crashes = 0;
    for seed in 0..12 {
        for crash_at in 0.. {
            let mut random = Random(seed);
            let steps = script(&mut random);
            let mut model = Model::default();
            let mut log = recover(Forgetful::formatted(&SMALL, seed * 1000 + crash_at));
            model.recovered(&log);
            let mut medium = log.into_media().kill();
            medium.budget = Some(7 + crash_at);
            log = recover(medium);
            model.recovered(&log);
            let ended = steps
                .iter()
                .all(|step| model.step(&mut log, *step, &mut random).is_ok());
            let after = log.into_media();
            for repair_crash in 0..8 {
                for power in [true, false] {
                    let mut medium = if power {
                        after.clone().crash()
                    } else {
                        after.clone().kill()
                    };
                    medium.budget = Some(repair_crash);
                    let scan = Scan::open(&mut medium, Some(EXPECTED)).unwrap();
                    let decision = scan.decide();
                    let repaired = scan.repair(decision).is_ok();
                    assert_eq!(repaired, repair_crash >= 6, "repair takes six persists");
                    let log = recover(if power { medium.kill() } else { medium.crash() });
                    model.clone().recovered(&log);
                    crashes += 1;
                }
            }
            if ended {
                break;
            }
        }
    }
    assert!(crashes > 2_000, "{crashes} crashes");
}

/// The proof that orders up to 8 were reclaimed sits in an entry that repair erases. However far a
/// repair came, the next one must not take those orders for lost.
#[test]
fn proof_in_an_entry_that_repair_erases() {
    let new = NewEntry {
        session: 1,
        seq: 1,
        kind: 1,
        fragment_index: 0,
        fragment_count: 1,
    };
    for seed in 0..60 {
        for at in 0..7 {
            let mut log = recover(Forgetful::formatted(&SMALL, seed));
            for order in 1..=10 {
                assert_eq!(log.append(&new, &[1; 88], b"", 0), Ok(order));
            }
            log.persist_start().unwrap();
            log.persist_poll(true).unwrap();
            log.reclaim(8);
            log.append(&new, &[2; 88], b"", 0).unwrap();
            log.append(&new, &[3; 88], b"", 0).unwrap();
            let mut medium = log.into_media().kill();
            let torn = 8192 + 11 * 64;
            medium.corrupt(torn + 8, |byte| byte ^ 1);
            medium.budget = Some(at);
            let scan = Scan::open(&mut medium, Some(EXPECTED)).unwrap();
            let decision = scan.decide();
            assert_eq!(
                decision,
                Decision::Keep {
                    applied: 8,
                    proven: 10,
                    tail: 10,
                    beyond: 1
                }
            );
            assert_eq!(scan.repair(decision).is_ok(), at == 6);
            let log = recover(if seed % 2 == 0 {
                medium.crash()
            } else {
                medium.kill()
            });
            assert!(log.applied() <= 8 && log.last() >= 10 && log.last() <= 12);
        }
    }
}

/// Orders that were cut off and given again must not be followed by what once stood after them.
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
