//! The configurations of reads (docs/spec/reads.md): each is as small as its rules allow.

use crate::catalogue::{BASE, LARGE};
use crate::configuration::Call::{
    End, Expire, Read, ReadBoth, ReadOther, Script, ScriptMarked, Set, SetMarked, Unmark, Write,
    WriteBoth, WriteOther,
};
use crate::configuration::Chain::{First, FirstSecond, Second};
use crate::configuration::{Change, Configuration, Goal, Reads};

const HITS: Configuration = Configuration {
    reads: Reads::Hits,
    goals: &[Goal::AllDone, Goal::Hit, Goal::Missed],
    ..BASE
};

const MISSES: Configuration = Configuration {
    reads: Reads::Misses,
    goals: &[Goal::AllDone, Goal::Missed],
    ..BASE
};

const MARKS: Configuration = Configuration {
    goals: &[Goal::AllDone, Goal::Hit, Goal::Missed, Goal::Marked],
    ..HITS
};

/// The small ones.
pub(crate) fn quick() -> Vec<Configuration> {
    let mut quick = updates();
    quick.extend(bypasses());
    quick.extend(chains());
    quick.extend(marks());
    quick
}

/// Reads beside updates.
fn updates() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "reads",
            about: "R = 1, the head answers HIT or MISS",
            programs: [&[Write, Write], &[Read, Read]],
            ..HITS
        },
        Configuration {
            name: "reads-own",
            about: "a client reads behind its own update",
            programs: [&[Write, Read], &[Read]],
            ..HITS
        },
        Configuration {
            name: "reads-collision",
            about: "two keys in one bucket",
            programs: [&[Write, WriteOther], &[Read, ReadOther]],
            buckets: 1,
            ..HITS
        },
        Configuration {
            name: "reads-unknown",
            about: "an update of both keys, a read of both",
            programs: [&[Write, WriteBoth], &[Read, ReadBoth]],
            ..HITS
        },
        Configuration {
            name: "reads-restart",
            about: "R = 1, a crash",
            programs: [&[Write], &[Read, Read]],
            crashes: 1,
            ..HITS
        },
        Configuration {
            name: "reads-restart-two",
            about: "R = 2, a crash of either device",
            programs: [&[Write], &[Read]],
            chains: &[FirstSecond],
            crashes: 1,
            rebuilds: true,
            ..HITS
        },
    ]
}

/// Reads beside bypasses that change state.
fn bypasses() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "reads-set",
            about: "an update, then a bypass that changes state",
            programs: [&[Write, Set], &[Read, Read]],
            ..HITS
        },
        Configuration {
            name: "reads-sets",
            about: "two bypasses that change state",
            programs: [&[Set, Set], &[Write, Read, Read]],
            ..HITS
        },
        Configuration {
            name: "reads-end",
            about: "a bypass is given up, its session ends",
            programs: [&[Write, Set, End], &[Read, Read]],
            impatient: true,
            ..HITS
        },
        Configuration {
            name: "reads-given-up",
            about: "a bypass is given up, its session goes on with another key",
            programs: [&[Set, WriteOther], &[Read, Read]],
            impatient: true,
            goals: &[Goal::AllDone, Goal::Missed],
            ..HITS
        },
        Configuration {
            name: "reads-settled",
            about: "a bypass may be given up, its session would go on with a read",
            programs: [&[Set, Read], &[Read]],
            impatient: true,
            goals: &[Goal::AllDone, Goal::Missed],
            ..HITS
        },
        Configuration {
            name: "reads-script",
            about: "a bypass that changes one key if the other one is unset",
            programs: [&[Script], &[Write, ReadOther]],
            goals: &[Goal::AllDone, Goal::Missed],
            ..HITS
        },
        Configuration {
            name: "reads-fallback",
            about: "an update may find no room at any time",
            programs: [&[Write], &[Write, Read, Read]],
            refuses: true,
            goals: &[Goal::AllDone, Goal::Hit, Goal::FallenBack],
            ..HITS
        },
        Configuration {
            name: "reads-rebuild",
            about: "the same, and a crash, behind which the index is built from the log",
            programs: [&[Write], &[Write, Read, Read]],
            refuses: true,
            rebuilds: true,
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Hit, Goal::FallenBack],
            ..HITS
        },
        Configuration {
            name: "reads-stamps",
            about: "a bypass that changes state, a crash of the head",
            programs: [&[Set], &[Write, Read, Read]],
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Hit, Goal::Recovered],
            ..HITS
        },
    ]
}

/// Reads while the chain or the store changes.
fn chains() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "reads-head-lost",
            about: "no HITs: R = 2, the head is removed and lives on",
            programs: [&[Write], &[Read, Read]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            goals: &[Goal::AllDone, Goal::Missed, Goal::Zombie],
            ..MISSES
        },
        Configuration {
            name: "reads-lease",
            about: "R = 2, the head is removed and lives on, with a lease",
            programs: [&[Write, Write], &[Read, Read]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            goals: &[Goal::AllDone, Goal::Hit, Goal::Zombie],
            ..HITS
        },
        Configuration {
            name: "reads-anew",
            about: "R = 2, an update, a bypass that changes state, the head is removed",
            programs: [&[Write, Set], &[Read]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            goals: &[Goal::AllDone, Goal::Hit, Goal::Zombie],
            ..HITS
        },
        Configuration {
            name: "reads-moved",
            about: "no HITs: R = 2, the server moves to another store, the head is removed; both old ones live on",
            programs: [&[Write], &[Read]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Moved],
            servers: 2,
            goals: &[Goal::AllDone, Goal::Missed, Goal::Zombie],
            ..MISSES
        },
        Configuration {
            name: "reads-replica",
            about: "the server's replica takes over, the old primary lives on",
            programs: [&[Set], &[Read, Read]],
            chains: &[First, First],
            changes: &[Change::Server],
            servers: 2,
            goals: &[Goal::AllDone, Goal::Missed],
            ..HITS
        },
        Configuration {
            name: "reads-recover",
            about: "the same, and a crash of the only device",
            programs: [&[Write], &[Read]],
            chains: &[First, First],
            changes: &[Change::Server],
            servers: 2,
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Hit, Goal::Recovered],
            ..HITS
        },
    ]
}

/// What is passed through between marks.
fn marks() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "marks",
            about: "an operation is passed through between marks",
            programs: [&[SetMarked, Unmark], &[Write, Read, Read]],
            ..MARKS
        },
        Configuration {
            name: "marks-script",
            about: "the same, of both keys",
            programs: [&[ScriptMarked, Unmark], &[Write, ReadOther]],
            goals: &[Goal::AllDone, Goal::Missed, Goal::Marked],
            ..MARKS
        },
        Configuration {
            name: "marks-restart",
            about: "the same, and a crash of the head",
            programs: [&[SetMarked, Unmark], &[Write, Read, Read]],
            crashes: 1,
            ..MARKS
        },
        Configuration {
            name: "marks-end",
            about: "the head ends the session, the server ends the mark",
            programs: [&[SetMarked, Expire], &[Write, Read, Read]],
            ends_marks: true,
            goals: &[Goal::Hit, Goal::Missed, Goal::MarkEnded],
            ..MARKS
        },
        Configuration {
            name: "marks-failover",
            about: "the server's replica takes over, the old primary lives on",
            programs: [&[SetMarked, Unmark], &[Read, Read]],
            chains: &[First, First],
            changes: &[Change::Server],
            servers: 2,
            goals: &[Goal::AllDone, Goal::Missed, Goal::Marked],
            ..MARKS
        },
        Configuration {
            name: "marks-moved",
            about: "the server moves to another store, the old one lives on",
            programs: [&[SetMarked, Unmark], &[Read, Read]],
            chains: &[First, First],
            changes: &[Change::Moved],
            servers: 2,
            goals: &[Goal::AllDone, Goal::Missed, Goal::Marked],
            ..MARKS
        },
    ]
}

/// Larger searches.
pub(crate) fn full() -> Vec<Configuration> {
    vec![Configuration {
        name: "reads-large",
        about: "R = 1, an update and a bypass that changes state, a crash",
        programs: [&[Write, Set], &[Read, Read]],
        reads: Reads::Hits,
        goals: &[Goal::AllDone, Goal::Hit, Goal::Recovered],
        ..LARGE
    }]
}
