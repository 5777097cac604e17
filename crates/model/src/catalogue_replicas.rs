//! The configurations of reads from replicas of the store (docs/spec/reads.md §11). In most of them the server does not
//! wait for the replica, and the replica is never promoted.

use crate::catalogue_reads::{HITS, MISSES};
use crate::configuration::Call::{
    EndMark, OpenMark, Read, ReadBoth, ReadOther, Script, Set, SetDirect, Write, WriteBoth,
    WriteOther,
};
use crate::configuration::Chain::{First, FirstSecond, Second};
use crate::configuration::{Change, Configuration, Goal};

const QUICK: Configuration = Configuration {
    replicas: true,
    goals: &[Goal::AllDone, Goal::Apart],
    ..MISSES
};

/// Returns the small configurations.
pub(crate) fn quick() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "replica",
            about: "replicas: R = 2, updates",
            programs: [&[Write, Write], &[Read, Read]],
            chains: &[FirstSecond],
            ..QUICK
        },
        Configuration {
            name: "replica-set",
            about: "replicas: a bypass that changes state, and an update behind it",
            programs: [&[Set, Write], &[Read, Read]],
            ..QUICK
        },
        Configuration {
            name: "replica-fallback",
            about: "replicas: an update may find no room at any time",
            programs: [&[Write], &[Read, Read]],
            refuses: true,
            ..QUICK
        },
        Configuration {
            name: "replica-restart",
            about: "replicas: a bypass that changes state and an update, a crash of the head",
            programs: [&[Set, Write], &[Read, Read]],
            crashes: 1,
            ..QUICK
        },
        Configuration {
            name: "replica-head-lost",
            about: "replicas and leases: R = 2, the head is declared stopped and lives on",
            programs: [&[Write], &[Read]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            leased: true,
            goals: &[Goal::AllDone, Goal::Apart, Goal::Zombie],
            ..QUICK
        },
        Configuration {
            name: "replica-promoted",
            about: "replicas: the server's replica takes over, the old primary lives on and is read from",
            programs: [&[Set, Set], &[Read]],
            chains: &[First, First],
            changes: &[Change::Server],
            servers: 2,
            impatient: true,
            ..QUICK
        },
    ]
}

/// Larger searches.
pub(crate) fn full() -> Vec<Configuration> {
    const LARGE: Configuration = Configuration {
        quick: false,
        ..QUICK
    };
    vec![
        Configuration {
            name: "replica-set-large",
            about: "replicas: an update, a bypass that changes state and is given up, a crash",
            programs: [&[Write, Set, Write], &[Read, Read]],
            impatient: true,
            crashes: 1,
            ..LARGE
        },
        Configuration {
            name: "replica-script-large",
            about: "replicas: a bypass that may change several keys, reads of either and of both",
            programs: [&[WriteOther, Script], &[Write, ReadOther, ReadBoth]],
            ..LARGE
        },
        Configuration {
            name: "replica-both-large",
            about: "replicas: updates of one key and of both, by either client, a crash",
            programs: [&[WriteBoth, Read], &[WriteOther, ReadBoth]],
            chains: &[FirstSecond],
            crashes: 1,
            ..LARGE
        },
        Configuration {
            name: "replica-fallback-large",
            about: "replicas: R = 2, an update may find no room, a crash",
            programs: [&[Write, Read], &[Read, Read]],
            chains: &[FirstSecond],
            refuses: true,
            crashes: 1,
            ..LARGE
        },
        Configuration {
            name: "replica-other-large",
            about: "replicas: a bypass that changes one key, reads of the other and of both",
            programs: [&[Set, Write], &[WriteOther, ReadOther, ReadBoth]],
            ..LARGE
        },
        Configuration {
            name: "replica-marks",
            about: "replicas: an operation is passed through behind a mark",
            programs: [&[OpenMark, SetDirect, EndMark], &[Read, Read]],
            ..LARGE
        },
        Configuration {
            name: "replica-hits",
            about: "replicas: the head answers with HIT, too, beside a bypass that changes state, a crash",
            programs: [&[Write, Set], &[Read, Read]],
            crashes: 1,
            replicas: true,
            goals: &[Goal::AllDone, Goal::Apart, Goal::Hit],
            quick: false,
            ..HITS
        },
        Configuration {
            name: "replica-head-lost-large",
            about: "replicas and leases: the head is declared stopped and lives on; a bypass that changes state",
            programs: [&[Set], &[Write, Read]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            leased: true,
            goals: &[Goal::AllDone, Goal::Apart, Goal::Zombie],
            ..LARGE
        },
        Configuration {
            name: "replica-promoted-large",
            about: "replicas: the server's replica takes over, the old primary lives on; updates, too",
            programs: [&[Set, Write], &[Set, Read]],
            chains: &[First, First],
            changes: &[Change::Server],
            servers: 2,
            ..LARGE
        },
    ]
}
