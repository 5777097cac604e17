//! Hostile images: a small log as a run left it, changed in some places, with or without correct
//! checksums (`docs/spec/recovery.md`).
//!
//! Invariants: reading, deciding and repairing never panic; a refused image stays unchanged; the
//! kept entries are those that the scan showed; a repaired log can be used, and the next scan finds
//! it unchanged.

use pmnet_log::{Decision, Log, NewEntry, Scan};

use super::model::Model;
use super::{EXPECTED, forge, formatted, parameters, recover};
use crate::input::Input;
use crate::medium::Forgetful;

/// Maximum number of changes to one image.
const CHANGES: usize = 16;

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut image = seed(&mut input);
    let expected = (!input.rarely(8)).then_some(EXPECTED);
    for _ in 0..CHANGES {
        if !input.more() {
            break;
        }
        forge::change(&mut image, &mut input);
    }
    let mut medium = Forgetful::holding(image.clone());
    let scan = match Scan::open(&mut medium, expected) {
        Ok(scan) => scan,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert_eq!((medium.stores, medium.into_image() == image), (0, true));
            return;
        }
    };
    let report = scan.report();
    let slots = report.slots_empty + report.slots_valid + report.slots_invalid;
    assert_eq!(slots, report.parameters.entries);
    let decision = scan.decide();
    assert_eq!(decision, scan.decide());
    let Decision::Keep {
        applied,
        tail,
        proven,
        ..
    } = decision
    else {
        assert!(scan.repair(decision).is_err());
        assert_eq!((medium.stores, medium.into_image() == image), (0, true));
        return;
    };
    assert!(applied <= proven && proven <= tail);
    let kept: Vec<_> = (applied + 1..=tail)
        .map(|order| (scan.entry(order), scan.frame(order).map(<[u8]>::to_vec)))
        .collect();
    match scan.repair(decision) {
        Ok(log) => {
            assert_eq!((log.applied(), log.last()), (applied, tail));
            for (order, (entry, frame)) in (applied + 1..=tail).zip(&kept) {
                assert!(entry.is_some() && frame.is_some());
                assert_eq!(
                    (log.entry(order), log.frame(order)),
                    (*entry, frame.as_deref())
                );
            }
            drop(log);
            used(medium, applied, tail);
        }
        // Frames that overlap, or counters at their maximum.
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert_eq!((medium.stores, medium.into_image() == image), (0, true));
        }
    }
}

/// Returns a log as a run left it.
fn seed(input: &mut Input<'_>) -> Vec<u8> {
    let parameters = parameters(input);
    let mut log = recover(formatted(&parameters));
    let mut model = Model::default();
    model.recovered(&log);
    for _ in 0..input.below(12) {
        for _ in 0..1 + input.below(16) {
            model.append(&mut log, input);
        }
        let done = log.persist_start().and_then(|_| log.persist_poll(true));
        assert!(done.is_ok(), "this medium does not fail");
        model.polled(&log);
        model.reclaim(&mut log, input.below(17));
        if input.rarely(8) {
            assert!(model.set_epoch(&mut log, input.near_word(1)) || log.epoch() > 0);
        }
    }
    model.compare(&log);
    log.into_media().into_image()
}

/// Checks that a repaired log can be found again, filled, closed and found once more.
fn used(mut medium: Forgetful, applied: u64, tail: u64) {
    let Some(log) = again(&mut medium, applied, tail) else {
        return;
    };
    let (applied, last) = fill(log);
    let _ = again(&mut medium, applied, last);
}

fn again(medium: &mut Forgetful, applied: u64, tail: u64) -> Option<Log<&mut Forgetful>> {
    let scan = Scan::open(medium, None).expect("a repaired log opens");
    let decision = scan.decide();
    let expected = Decision::Keep {
        applied,
        proven: tail,
        tail,
        beyond: 0,
    };
    assert_eq!(decision, expected, "nothing is left to repair");
    // The incarnation can be at its maximum.
    scan.repair(decision).ok()
}

/// Fills the log twice, and closes it.
fn fill(mut log: Log<&mut Forgetful>) -> (u64, u64) {
    let new = NewEntry {
        session: 1,
        seq: 2,
        kind: 3,
        fragment_index: 0,
        fragment_count: 1,
    };
    let crc = crc32c::crc32c(b"payload");
    for _ in 0..2 {
        // No real log reaches the last order; a forged one may begin there.
        while log.last() < u64::MAX - 512 && log.append(&new, b"header", b"payload", crc).is_ok() {}
        for _ in 0..2 {
            let done = log.persist_start().and_then(|_| log.persist_poll(true));
            assert!(done.is_ok(), "this medium does not fail");
            log.reclaim(log.durable() - (log.durable() - log.applied()) / 4);
        }
    }
    assert_eq!(log.durable(), log.last());
    let cursors = (log.applied(), log.last());
    log.close().expect("this medium does not fail");
    cursors
}
