//! Checks and compacts the history that etcd keeps.
//!
//! etcd keeps every value of a key until its history is *compacted*. When the database of etcd has reached the quota,
//! etcd accepts no writes. Each renewal of a lease writes a new value. So the history must be compacted: by etcd itself
//! (`--auto-compaction-retention`), or by a controller with the setting for it. The setting is off by default, because
//! compaction affects all users of an etcd. A controller without the setting checks whether etcd compacts, and warns if
//! it does not.

use std::collections::VecDeque;

use pmnet_proto::Time;
use pmnet_proto::time::{Nanos, SECOND};

use crate::etcd::{Etcd, EtcdError};

/// Interval at which a controller that compacts notes etcd's present revision, in nanoseconds.
const NOTED_EVERY: Nanos = 60 * SECOND;
/// Length of the history that a controller keeps when it compacts, in nanoseconds.
const KEPT: Nanos = 300 * SECOND;
/// Interval at which a controller that does not compact checks the history, in nanoseconds.
const LOOKED_EVERY: Nanos = 600 * SECOND;
/// Age of history that no user of an etcd should need, in nanoseconds.
const OLD: Nanos = 3 * 3600 * SECOND;
/// An etcd that was never compacted is reported if it has at least this number of revisions.
const MANY: u64 = 20_000;

/// Checks the history that etcd keeps, or compacts it.
#[derive(Debug)]
pub struct History {
    compacts: bool,
    /// Revisions that were noted, with their times, oldest first.
    noted: VecDeque<(Time, u64)>,
    next: Time,
}

impl History {
    /// Makes a history without observations. `compacts`: the controller is configured to compact.
    #[must_use]
    pub const fn new(compacts: bool) -> History {
        History {
            compacts,
            noted: VecDeque::new(),
            next: Time(0),
        }
    }

    /// Compacts or checks the history, if that is due. Returns a text for the operator, if there is something to
    /// report.
    pub fn turn(&mut self, now: Time, etcd: &mut Etcd) -> Option<String> {
        if now < self.next {
            return None;
        }
        let (every, old) = if self.compacts {
            (NOTED_EVERY, KEPT)
        } else {
            (LOOKED_EVERY, OLD)
        };
        self.next = now + every;
        let then = self.note(now, etcd.revision(), old);
        let said = if self.compacts {
            then.map_or(Ok(()), |then| etcd.compact(then))
                .map(|()| None)
        } else {
            look(then, etcd)
        };
        // If etcd does not answer, other code of the controller reports it.
        said.ok().flatten().or_else(|| filled(etcd))
    }

    /// Notes the present revision. Returns the newest noted revision that is at least `old`, if there is one.
    fn note(&mut self, now: Time, revision: u64, old: Nanos) -> Option<u64> {
        if revision > 0 {
            self.noted.push_back((now, revision));
        }
        let mut then = None;
        while let Some((_, revision)) = self.noted.pop_front_if(|(at, _)| now.since(*at) >= old) {
            then = Some(revision);
        }
        then
    }
}

/// Checks whether the history is compacted. If not, returns a text for the operator.
fn look(then: Option<u64>, etcd: &mut Etcd) -> Result<Option<String>, EtcdError> {
    let many = etcd.revision() > MANY && etcd.keeps(1)?;
    let old = match then {
        Some(then) => etcd.keeps(then)?,
        None => false,
    };
    let what = if many {
        "all of its history"
    } else {
        "its history of more than three hours"
    };
    Ok((many || old).then(|| {
        format!(
            "PM4101 etcd keeps {what} ({} revisions): it takes no writes when that has reached its quota, and then no device \
             has a lease. Start etcd with --auto-compaction-mode periodic --auto-compaction-retention 5m; or, if nobody else uses \
             this etcd, the controllers with --compact-etcd",
            etcd.revision()
        )
    }))
}

/// Returns a text for the operator if the database is large for its quota.
fn filled(etcd: &mut Etcd) -> Option<String> {
    const MIB: u64 = 1 << 20;
    let storage = etcd.storage().ok()?;
    let quota = storage.quota.map_or_else(
        || "2048 MiB unless it was given another one".to_owned(),
        |quota| format!("{} MiB", quota / MIB),
    );
    storage.is_large().then(|| {
        format!(
            "PM4102 the database of etcd has {} MiB, {} of them in use, and its quota is {quota} (--quota-backend-bytes): let its history be \
             compacted, and then `etcdctl defrag` at each member",
            storage.bytes / MIB,
            storage.used / MIB
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_old_enough_is_compacted_and_no_more() {
        let mut history = History::new(true);
        let mut compacted = Vec::new();
        for minute in 0..10 {
            let now = Time(minute * NOTED_EVERY);
            compacted.extend(history.note(now, 100 + minute, KEPT));
        }
        assert_eq!(compacted, [100, 101, 102, 103, 104]);
        assert!(history.noted.len() <= 5);
        // After a pause only the newest of the old revisions is returned.
        let later = Time(60 * NOTED_EVERY);
        assert_eq!(history.note(later, 500, KEPT), Some(109));
        assert_eq!(history.note(later, 0, KEPT), None, "nothing was heard");
    }
}
