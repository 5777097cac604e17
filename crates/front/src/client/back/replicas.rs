//! Whether a read may go to a replica of the store, and whether that is worth it (`docs/spec/reads.md` §11).
//!
//! Purpose: what a replica shows is used only where the head allows it, so a question to one that lags is work for nothing. What has
//! become of the last ones decides whether the next read asks.
//! May not decide how fresh a replica must be: the head says that.

use pmnet_wire::command::Protocol;

use super::read_before::MISSES;
use crate::client::lane;
use crate::upstream::Time;

/// After a replica that lagged, none is asked for so long, in nanoseconds; twice as long after each further one, so many times.
const LAG_PAUSE: Time = 1_000_000;
const LAGS_MAX: u32 = 7;
/// How often the store is asked for its replicas, in nanoseconds.
const FIND_EVERY: Time = 1_000_000_000;
/// For how long its answer counts: a replica that it has not named for longer may be none any more.
const KNOWN_FOR: Time = 3_000_000_000;

/// From which stores reads are answered that the head does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadFrom {
    /// From the one that the server works on.
    #[default]
    Master,
    /// From any replica of it, too.
    Any,
}

/// What is known of the replicas.
#[derive(Debug, Default)]
pub struct ReplicaReads {
    any: bool,
    /// Whether there is one that can be asked, in RESP2 and in RESP3.
    pub fit: [bool; 2],
    /// Whether a client reads in that version of RESP.
    pub(crate) used: [bool; 2],
    misses: u32,
    lags: u32,
    after: Time,
    find_after: Time,
    /// What the master has said of its replicas counts until then.
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
        // One read in each period goes to the master, which says who its replicas are.
        self.any
            && self.fit[lane(protocol)]
            && self.misses >= MISSES
            && now >= self.after
            && now < self.find_after.min(self.known_until)
    }

    /// Whether the master is to say now who its replicas are.
    pub(crate) fn are_sought(&self, now: Time) -> bool {
        self.any && now >= self.find_after
    }

    /// The master has been asked.
    pub fn asked(&mut self, now: Time) {
        self.find_after = now.saturating_add(FIND_EVERY);
    }

    /// The master has said who its replicas are.
    pub fn found(&mut self, now: Time) {
        self.known_until = now.saturating_add(KNOWN_FOR);
    }

    pub(in crate::client) fn missed(&mut self) {
        self.misses = self.misses.saturating_add(1);
    }

    pub(in crate::client) fn not_missed(&mut self) {
        self.misses = 0;
    }

    /// A replica was as fresh as it must be.
    pub(in crate::client) fn was_fresh(&mut self) {
        self.lags = 0;
    }

    /// It was not, or gave no answer. Those who were asked before the pause began make it no longer.
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
