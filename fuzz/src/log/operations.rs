//! Histories of a log: append, persist, reclaim, epochs, resets, power losses and deaths of the
//! process at any moment, also during a repair (`docs/spec/ordered-log.md` §7–§9,
//! `docs/spec/recovery.md`).
//!
//! Invariants: the model's promises, after every step and every restart.

use pmnet_log::{Log, LogError, Scan};

use super::model::Model;
use super::{EXPECTED, formatted, parameters, recover};
use crate::input::Input;
use crate::medium::Forgetful;

/// Maximum number of incarnations in one history; it bounds the work of one input.
const LIVES: usize = 24;
/// Maximum number of steps of one history.
const STEPS: usize = 400;

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let parameters = parameters(&mut input);
    let mut log = recover(formatted(&parameters));
    let mut model = Model::default();
    model.recovered(&log);
    let mut lives = 0;
    for _ in 0..STEPS {
        if !input.more() || lives == LIVES {
            break;
        }
        if step(&mut log, &mut model, &mut input) {
            model.compare(&log);
            continue;
        }
        lives += 1;
        log = next_life(log, &mut model, &mut input);
    }
    let medium = if input.rarely(2) {
        log.into_media().crash(0, 0)
    } else {
        log.into_media().kill()
    };
    model.recovered(&recover(medium));
}

/// Runs one operation; `false`: this incarnation is over.
fn step(log: &mut Log<Forgetful>, model: &mut Model, input: &mut Input<'_>) -> bool {
    match input.byte() % 16 {
        0..=4 => {
            let count = 1 + input.below(12);
            for _ in 0..count {
                if !model.append(log, input) {
                    break;
                }
            }
        }
        5..=7 => return log.persist_start().is_ok() && poll(log, model, false),
        8 => return log.persist_start().is_ok(),
        9 => return poll(log, model, true),
        10..=12 => model.reclaim(log, input.below(17)),
        13 => {
            let epoch = input.near_word(log.epoch() + 1);
            return model.set_epoch(log, epoch.min(u32::MAX - 1000));
        }
        14 if input.rarely(4) => {
            let order = input.near(log.last());
            // Orders that no shard reaches would end the history early.
            let order = if order > u64::MAX - 512 {
                u64::MAX
            } else {
                order.min(1 << 60)
            };
            return model.reset(log, order);
        }
        _ => return false,
    }
    true
}

fn poll(log: &mut Log<Forgetful>, model: &mut Model, wait: bool) -> bool {
    let before = log.durable();
    let Ok(moved) = log.persist_poll(wait) else {
        return false;
    };
    assert!(moved || log.durable() == before, "a move is reported");
    model.polled(log);
    true
}

/// Ends the log in any way, and recovers it, perhaps only at the second or third attempt.
fn next_life(log: Log<Forgetful>, model: &mut Model, input: &mut Input<'_>) -> Log<Forgetful> {
    let mut medium = log.into_media();
    if input.rarely(8) {
        medium = closed(medium.kill(), model, input);
    }
    for _ in 0..3 {
        medium = medium.end(input);
        if input.rarely(3) {
            // During this repair power is lost after a drawn number of persists.
            medium.budget = Some(input.below(8));
            let scan = Scan::open(&mut medium, Some(EXPECTED)).expect("opens");
            let decision = scan.decide();
            match scan.repair(decision) {
                Ok(_) | Err(LogError::Media(_)) => {}
                Err(other) => panic!("{other}"),
            }
            continue;
        }
        break;
    }
    medium.budget = None;
    medium = medium.end(input);
    let mut log = recover(medium);
    model.recovered(&log);
    if input.rarely(4) {
        log = slow(log, input);
        model.recovered(&log);
    }
    log
}

/// Returns the log on a medium that is slow, or that fails after some persists.
fn slow(log: Log<Forgetful>, input: &mut Input<'_>) -> Log<Forgetful> {
    let mut medium = log.into_media().kill();
    medium.slowness = input.byte() % 4;
    if input.rarely(2) {
        // The budget suffices for the repair, so that the failure hits the log.
        medium.budget = Some(8 + input.below(16));
    }
    recover(medium)
}

/// Runs one more incarnation, which appends a little and shuts down cleanly; then no entry may be
/// missing.
fn closed(mut medium: Forgetful, model: &mut Model, input: &mut Input<'_>) -> Forgetful {
    medium.budget = None;
    let scan = Scan::open(&mut medium, Some(EXPECTED)).expect("opens");
    let decision = scan.decide();
    let mut log = scan.repair(decision).expect("can be repaired");
    model.recovered(&log);
    for _ in 0..input.below(8) {
        model.append(&mut log, input);
    }
    let (applied, last) = (log.applied(), log.last());
    log.close().expect("the medium works");
    let log = recover(medium.crash(0, 0));
    assert_eq!((log.applied(), log.last()), (applied, last), "closed");
    model.recovered(&log);
    log.into_media()
}
