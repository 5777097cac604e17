//! A medium that fails once, at the start or the completion of any persist. After the failure the log accepts no
//! entries, and reports no further orders as durable (ordered-log.md §2).

mod support;

use std::ops::Range;
use std::os::fd::RawFd;

use pmnet_log::{Log, LogError, Media, MediaError, NewEntry, Scan};
use support::{EXPECTED, Forgetful, SMALL, recover};

const NEW: NewEntry = NewEntry {
    session: 1,
    seq: 1,
    kind: 3,
    fragment_index: 0,
    fragment_count: 1,
};

/// A medium that fails one persist, and would succeed in all later ones. So a log that wrongly continues after the
/// failure would succeed.
struct FailsOnce {
    medium: Forgetful,
    /// Number of persists that succeed before the failure.
    before: u64,
    /// True: the persist fails at its start. False: it fails when it is polled.
    at_start: bool,
    failing: bool,
}

impl FailsOnce {
    fn new(before: u64, at_start: bool) -> FailsOnce {
        FailsOnce {
            medium: Forgetful::formatted(&SMALL, before),
            before,
            at_start,
            failing: false,
        }
    }
}

impl Media for FailsOnce {
    fn bytes(&self) -> &[u8] {
        self.medium.bytes()
    }
    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.medium.store(offset, bytes);
    }
    fn persist_start(&mut self, ranges: &[Range<usize>]) -> Result<(), MediaError> {
        let (turn, more) = (self.before == 0, self.before.checked_sub(1));
        self.before = more.unwrap_or(u64::MAX);
        if turn && self.at_start {
            return Err(MediaError::Failed);
        }
        self.failing = turn;
        self.medium.persist_start(ranges)
    }
    fn persist_poll(&mut self, wait: bool) -> Result<bool, MediaError> {
        if std::mem::take(&mut self.failing) {
            self.medium.persist_poll(true)?;
            return Err(MediaError::Failed);
        }
        self.medium.persist_poll(wait)
    }
    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }
    fn survives(&self) -> &'static str {
        "nothing"
    }
    fn name(&self) -> &'static str {
        "failing"
    }
}

/// Calls each method of a log in turn until one fails.
fn until_it_fails(log: &mut Log<FailsOnce>) -> Result<(), LogError> {
    for round in 1..4 {
        log.append(&NEW, &[1; 88], b"", 0).unwrap();
        log.persist_start()?;
        log.append(&NEW, &[2; 88], b"", 0).unwrap();
        log.persist_poll(true)?;
        log.set_epoch(round)?;
        log.mark_served()?;
        log.persist_start()?;
        log.persist_poll(true)?;
        if round == 2 {
            log.reset_to(100)?;
        }
    }
    Ok(())
}

#[test]
fn after_a_persist_that_failed_nothing_is_accepted() {
    let mut failures = 0;
    for before in 6.. {
        let mut ended = false;
        for at_start in [true, false] {
            let scan = Scan::open(FailsOnce::new(before, at_start), Some(EXPECTED)).unwrap();
            let decision = scan.decide();
            let mut log = scan.repair(decision).unwrap();
            if until_it_fails(&mut log).is_ok() {
                ended = true;
                continue;
            }
            failures += 1;
            let durable = log.durable();
            let refused = |result: Result<bool, LogError>| {
                assert!(
                    matches!(result, Err(LogError::Media(MediaError::Failed))),
                    "persist {before}: {result:?}"
                );
            };
            refused(log.persist_start());
            refused(log.persist_poll(true));
            refused(log.persist_poll(false));
            refused(log.set_epoch(log.epoch()).map(|()| true));
            refused(log.set_epoch(77).map(|()| true));
            refused(log.mark_served().map(|()| true));
            refused(log.persist_start());
            assert_eq!(log.durable(), durable, "persist {before}");
            refused(log.reset_to(1000).map(|()| true));
            refused(log.close().map(|()| true));
        }
        if ended {
            break;
        }
    }
    assert!(failures > 20, "{failures}");
}

#[test]
fn a_repair_that_failed_is_an_error_and_can_be_run_again() {
    for before in 0..6 {
        for at_start in [true, false] {
            let mut medium = FailsOnce::new(before, at_start);
            let scan = Scan::open(&mut medium, Some(EXPECTED)).unwrap();
            let decision = scan.decide();
            let failed = scan.repair(decision).map(|_| ());
            assert!(
                matches!(failed, Err(LogError::Media(_))),
                "persist {before}"
            );
            let log = recover(medium.medium.crash());
            assert_eq!((log.last(), log.applied()), (0, 0));
        }
    }
}

#[test]
fn what_is_not_durable_cannot_be_reclaimed() {
    let mut log = recover(Forgetful::formatted(&SMALL, 0));
    log.append(&NEW, &[1; 88], b"", 0).unwrap();
    log.reclaim(1);
    assert_eq!((log.applied(), log.last()), (0, 1));
    log.persist_start().unwrap();
    log.append(&NEW, &[1; 88], b"", 0).unwrap();
    log.persist_poll(true).unwrap();
    log.reclaim(u64::MAX);
    assert_eq!((log.applied(), log.durable(), log.last()), (1, 1, 2));
    log.reclaim(0);
    assert_eq!((log.applied(), log.entry(1)), (1, None));
}
