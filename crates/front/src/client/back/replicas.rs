//! Whether a read may go to a replica of the store, and whether that is worthwhile (`docs/spec/reads.md`
//! §11).
//!
//! Purpose: replies of a replica are used only if the head allows it, so a question to a replica that lags is wasted.
//! The results of the last questions to replicas decide whether the next read goes to a replica. This module does not
//! decide how fresh a replica must be. The head states the required freshness.

use pmnet_wire::command::Protocol;

use super::read_before::MISSES;
use crate::client::lane;
use crate::upstream::Time;

/// Time without questions to replicas after a replica lagged, in nanoseconds. The pause doubles each time a replica
/// lags again, at most [`LAGS_MAX`] times.
const LAG_PAUSE: Time = 1_000_000;
const LAGS_MAX: u32 = 7;
/// Time between two questions to the store for its replicas, in nanoseconds.
const FIND_EVERY: Time = 1_000_000_000;
/// Time for which the master's answer about its replicas counts, in nanoseconds. If the master has not named a replica
/// for longer than this time, the replica may have left.
const KNOWN_FOR: Time = 3_000_000_000;

/// The stores that answer reads which the head does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadFrom {
    /// Only the store on which the server works.
    #[default]
    Master,
    /// The store on which the server works, and any replica of it.
    Any,
}

/// The front's knowledge of the replicas.
#[derive(Debug, Default)]
pub struct ReplicaReads {
    any: bool,
    /// Whether a replica can be asked, in RESP2 and in RESP3.
    pub fit: [bool; 2],
    /// Whether a client reads in RESP2, and in RESP3.
    pub(crate) used: [bool; 2],
    misses: u32,
    lags: u32,
    after: Time,
    find_after: Time,
    /// End of the time for which the master's last answer about its replicas counts.
    known_until: Time,
}

impl ReplicaReads {
    pub(in crate::client) fn new(from: ReadFrom) -> ReplicaReads {
        ReplicaReads {
            any: from == ReadFrom::Any,
            ..ReplicaReads::default()
        }
    }

    /// Whether replicas may be read from at all.
    pub(crate) fn are_allowed(&self) -> bool {
        self.any
    }

    /// Whether the next read that the head does not answer is to go to a replica.
    pub(in crate::client) fn are_wanted(&mut self, protocol: Protocol, now: Time) -> bool {
        self.used[lane(protocol)] = true;
        // In each period one read goes to the master, whose answer names its replicas.
        self.any
            && self.fit[lane(protocol)]
            && self.misses >= MISSES
            && now >= self.after
            && now < self.find_after.min(self.known_until)
    }

    /// Whether the master must be asked for its replicas now.
    pub(crate) fn are_sought(&self, now: Time) -> bool {
        self.any && now >= self.find_after
    }

    /// Notes that the master has been asked for its replicas.
    pub fn asked(&mut self, now: Time) {
        self.find_after = now.saturating_add(FIND_EVERY);
    }

    /// Notes that the master has named its replicas.
    pub fn found(&mut self, now: Time) {
        self.known_until = now.saturating_add(KNOWN_FOR);
    }

    pub(in crate::client) fn missed(&mut self) {
        self.misses = self.misses.saturating_add(1);
    }

    pub(in crate::client) fn not_missed(&mut self) {
        self.misses = 0;
    }

    /// Notes that a replica was as fresh as required.
    pub(in crate::client) fn was_fresh(&mut self) {
        self.lags = 0;
    }

    /// Notes that a replica was not fresh enough, or gave no answer. During a pause the note has no effect, because the
    /// question may have been asked before the pause.
    pub(in crate::client) fn was_of_no_use(&mut self, now: Time) {
        if now < self.after {
            return;
        }
        self.after = now.saturating_add(LAG_PAUSE << self.lags);
        self.lags = (self.lags + 1).min(LAGS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_asked_where_that_is_probably_of_use() {
        let mut replicas = ReplicaReads::new(ReadFrom::Any);
        replicas.fit = [true, false];
        replicas.asked(0);
        replicas.found(0);
        let wanted = |replicas: &mut ReplicaReads, now| replicas.are_wanted(Protocol::Resp2, now);
        assert!(!wanted(&mut replicas, 0), "the head may know");
        (0..MISSES).for_each(|_| replicas.missed());
        assert!(wanted(&mut replicas, 0));
        assert!(!replicas.are_wanted(Protocol::Resp3, 0), "none for that");
        replicas.was_of_no_use(0);
        replicas.was_of_no_use(1);
        assert!(!wanted(&mut replicas, LAG_PAUSE - 1));
        assert!(wanted(&mut replicas, LAG_PAUSE));
        replicas.was_of_no_use(LAG_PAUSE);
        assert!(!wanted(&mut replicas, 2 * LAG_PAUSE), "longer each time");
        assert!(wanted(&mut replicas, 3 * LAG_PAUSE));
        assert!(!wanted(&mut replicas, FIND_EVERY), "the master's turn");
        assert!(replicas.are_sought(FIND_EVERY));
        replicas.asked(KNOWN_FOR);
        assert!(!wanted(&mut replicas, KNOWN_FOR), "it did not answer");
        replicas.found(KNOWN_FOR);
        assert!(wanted(&mut replicas, KNOWN_FOR));
        replicas.not_missed();
        assert!(!wanted(&mut replicas, KNOWN_FOR));
        let mut none = ReplicaReads::new(ReadFrom::Master);
        (0..MISSES).for_each(|_| none.missed());
        none.fit = [true; 2];
        none.asked(0);
        none.found(0);
        assert!(!none.are_wanted(Protocol::Resp2, 0) && !none.are_sought(FIND_EVERY));
    }
}
