//! Checks whether an etcd has enough space for the writes of a fleet.

use std::time::Duration;

use pmnet_fleet::{Etcd, Members, Storage};

use super::{Finding, Level};
use crate::cli::EtcdArgs;

/// Longest time of one call to etcd.
const CALL_MAX: Duration = Duration::from_secs(2);
/// If an etcd that was never compacted has at least this number of revisions, it is assumed not to compact by itself.
const MANY: u64 = 20_000;
const MIB: u64 = 1 << 20;
/// Advice for an etcd whose database grows.
const COMPACT: &str = "start it with --auto-compaction-mode periodic --auto-compaction-retention 5m; or, if nobody else uses it, run the \
                       controllers with --compact-etcd";

/// Returns one finding for each member of etcd.
pub fn findings(args: &EtcdArgs) -> Vec<Finding> {
    if args.nothing().is_ok() {
        return Vec::new();
    }
    match args.members() {
        Ok(members) => members.each().into_iter().map(member).collect(),
        Err(error) => vec![Finding::bad(
            Level::Fail,
            "etcd",
            error.to_string(),
            "--etcd https://HOST:2379,…",
        )],
    }
}

fn member(members: Members) -> Finding {
    let endpoint = members.urls().join(",");
    let mut etcd = Etcd::new(members, CALL_MAX);
    let asked = etcd.storage().and_then(|storage| {
        let all = etcd.revision() > MANY && etcd.keeps(1)?;
        Ok((storage, all))
    });
    match asked {
        Ok((storage, all)) => judge(&endpoint, etcd.revision(), &storage, all),
        Err(error) => Finding::bad(
            Level::Fail,
            "etcd",
            error.to_string(),
            "is it etcd 3.4 or later, and does it listen there (--listen-client-urls)?",
        ),
    }
}

/// Returns the finding about one member. `all`: the member still has its whole history.
fn judge(endpoint: &str, revision: u64, storage: &Storage, all: bool) -> Finding {
    let quota = storage.quota.map_or_else(
        || "a quota that it does not tell (2048 MiB unless given)".to_owned(),
        |quota| format!("{} MiB (--quota-backend-bytes)", quota / MIB),
    );
    let history = if all {
        "all of them kept"
    } else {
        "compacted, or few"
    };
    let found = format!(
        "{endpoint}: {}, {} MiB of {quota}, {} MiB in use, {revision} revisions, {history}",
        storage.version,
        storage.bytes / MIB,
        storage.used / MIB
    );
    if storage.is_full {
        let advice = format!(
            "it takes no writes (NOSPACE), so no device has a lease: etcdctl compact --physical {revision}, etcdctl defrag at each member, \
             etcdctl alarm disarm; then {COMPACT}"
        );
        return Finding::bad(Level::Fail, "etcd", found, advice);
    }
    if all {
        return Finding::bad(
            Level::Warn,
            "etcd",
            found,
            format!("its history is not compacted: {COMPACT}"),
        );
    }
    if storage.is_large() {
        let advice = format!(
            "more than half of its quota: etcdctl defrag at each member, if little of it is in use; {COMPACT}"
        );
        return Finding::bad(Level::Warn, "etcd", found, advice);
    }
    Finding::ok("etcd", found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fills_up_is_said_and_what_is_full_fails() {
        let storage = |mib: u64, is_full| Storage {
            version: "3.4.23".into(),
            bytes: mib * MIB,
            used: MIB,
            quota: Some(64 * MIB),
            is_full,
        };
        let level = |storage, all| {
            let finding = judge("http://a:1", 90_000, &storage, all);
            (finding.level, finding.advice.unwrap_or_default())
        };
        assert_eq!(level(storage(9, false), false), (Level::Ok, String::new()));
        let (warns, says) = level(storage(9, false), true);
        assert!(
            warns == Level::Warn && says.contains("--auto-compaction-retention"),
            "{says}"
        );
        let (warns, says) = level(storage(40, false), false);
        assert!(warns == Level::Warn && says.contains("defrag"), "{says}");
        let (fails, says) = level(storage(64, true), false);
        assert!(
            fails == Level::Fail && says.contains("compact --physical 90000"),
            "{says}"
        );
        let args = EtcdArgs {
            etcd: Some("etcd:2379".into()),
            ..EtcdArgs::default()
        };
        let wrong = &findings(&args)[0];
        assert_eq!((wrong.level, wrong.what), (Level::Fail, "etcd"));
    }
}
