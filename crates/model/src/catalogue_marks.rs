//! The configurations of operations that bypass the devices under a mark, and of reads that are answered with an update
//! of their own session (docs/spec/reads.md §5, §6).

use crate::catalogue_reads::{HITS, MISSES};
use crate::configuration::Call::{
    Confirm, EndMark, ExpireMark, OpenMark, Read, ReadBoth, ReadDirect, ReadOther, ReadOwn,
    ScriptDirect, Set, SetDirect, Write, WriteOther,
};
use crate::configuration::Chain::{First, FirstSecond, Second};
use crate::configuration::{Change, Configuration, Goal};

const MARKS: Configuration = Configuration {
    goals: &[Goal::AllDone, Goal::Hit, Goal::Missed, Goal::Passed],
    ..HITS
};

const MARK_ENDS: &[Goal] = &[
    Goal::AllDone,
    Goal::Hit,
    Goal::Missed,
    Goal::Passed,
    Goal::MarkEnded,
];

const OWN: &[Goal] = &[Goal::AllDone, Goal::Hit, Goal::Missed, Goal::OwnWrite];

const LARGE: Configuration = Configuration {
    quick: false,
    ..HITS
};

/// Returns the small configurations.
pub(crate) fn quick() -> Vec<Configuration> {
    let mut quick = marks();
    quick.extend(own_writes());
    quick
}

/// Returns the larger configurations.
pub(crate) fn full() -> Vec<Configuration> {
    let mut full = passages();
    full.extend(own());
    full
}

/// Configurations of operations that bypass the devices under a mark.
fn marks() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "marks",
            about: "an operation is passed through behind a mark",
            programs: [&[OpenMark, SetDirect, EndMark], &[Write, Read, Read]],
            goals: MARK_ENDS,
            ..MARKS
        },
        Configuration {
            name: "marks-script",
            about: "the same, of both keys",
            programs: [&[OpenMark, ScriptDirect, EndMark], &[Write, ReadOther]],
            goals: &[Goal::AllDone, Goal::Missed, Goal::Passed],
            ..MARKS
        },
        Configuration {
            name: "marks-two",
            about: "two clients pass operations through",
            programs: [
                &[OpenMark, SetDirect, EndMark],
                &[OpenMark, SetDirect, EndMark, Read],
            ],
            goals: &[Goal::AllDone, Goal::Missed, Goal::Passed, Goal::MarkEnded],
            ..MARKS
        },
        Configuration {
            name: "marks-restart",
            about: "an operation is passed through behind a mark, a crash of the head",
            programs: [&[OpenMark, SetDirect, EndMark], &[Write, Read]],
            crashes: 1,
            goals: MARK_ENDS,
            ..MARKS
        },
        Configuration {
            name: "marks-given-up",
            about: "a client may give its operation up, and ends its mark",
            programs: [&[OpenMark, SetDirect, EndMark], &[Write, Read, Read]],
            impatient: true,
            goals: MARK_ENDS,
            ..MARKS
        },
        Configuration {
            name: "marks-expire",
            about: "the head ends the mark of a client that is silent, or only slow",
            programs: [&[OpenMark, SetDirect, ExpireMark], &[Write, Read, Read]],
            goals: &[Goal::Hit, Goal::Missed, Goal::Passed, Goal::MarkEnded],
            ..MARKS
        },
        Configuration {
            name: "marks-failover",
            about: "the server's replica takes over, the old primary lives on",
            programs: [&[OpenMark, SetDirect, Confirm, EndMark], &[Read, Read]],
            chains: &[First, First],
            changes: &[Change::Server],
            servers: 2,
            goals: &[Goal::AllDone, Goal::Missed, Goal::Passed],
            ..MARKS
        },
        Configuration {
            name: "marks-moved",
            about: "the server moves to another store, the old one lives on, fenced",
            programs: [&[OpenMark, SetDirect, EndMark], &[Read, Read]],
            chains: &[First, First],
            changes: &[Change::Moved],
            servers: 2,
            goals: &[Goal::AllDone, Goal::Missed, Goal::Passed],
            ..MARKS
        },
    ]
}

/// Configurations of reads that are answered with an update of their own session.
fn own_writes() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "own-write",
            about: "a read is called in the turn of its update",
            programs: [&[Write, ReadOwn, Read], &[Write, Read]],
            goals: OWN,
            ..HITS
        },
        Configuration {
            name: "own-writes",
            about: "the same, behind two updates, and another update behind it",
            programs: [&[Write, Write, ReadOwn, Write], &[Write, Read]],
            window: 3,
            goals: OWN,
            ..HITS
        },
        Configuration {
            name: "own-write-apart",
            about: "an update of another key between the two",
            programs: [&[Write, WriteOther, ReadOwn], &[Write, ReadOther]],
            window: 2,
            goals: &[Goal::AllDone, Goal::Hit, Goal::Missed],
            ..HITS
        },
    ]
}

/// Larger searches of operations that bypass the devices under a mark.
fn passages() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "marks-two-devices",
            about: "R = 2, an operation is passed through behind a mark, a crash, an index that is built from the log",
            programs: [&[OpenMark, SetDirect, EndMark], &[Write, Read, Read]],
            chains: &[FirstSecond],
            crashes: 1,
            rebuilds: true,
            goals: MARK_ENDS,
            ..LARGE
        },
        Configuration {
            name: "marks-script-large",
            about: "several keys, reads of both, a crash",
            programs: [
                &[OpenMark, ScriptDirect, EndMark],
                &[Write, ReadOther, ReadBoth, Read],
            ],
            crashes: 1,
            goals: MARK_ENDS,
            ..LARGE
        },
        Configuration {
            name: "marks-write",
            about: "the same client writes before and behind what it passes through, a crash",
            programs: [
                &[OpenMark, Write, ScriptDirect, WriteOther],
                &[Write, Read, ReadOther],
            ],
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Missed, Goal::Passed],
            ..LARGE
        },
        Configuration {
            name: "marks-abandoned",
            about: "the same client gives an update up before what it passes through, a crash",
            programs: [&[OpenMark, Write, SetDirect, Read], &[Write, Read]],
            abandons: true,
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Missed, Goal::Passed],
            ..LARGE
        },
        Configuration {
            name: "marks-own-read",
            about: "the same client reads behind what it passed through, a crash",
            programs: [&[OpenMark, SetDirect, Read, EndMark], &[Write, ReadDirect]],
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Missed, Goal::Passed, Goal::MarkEnded],
            ..LARGE
        },
        Configuration {
            name: "marks-two-large",
            about: "two clients pass operations through, one gives up, a crash",
            programs: [
                &[OpenMark, ScriptDirect, EndMark],
                &[OpenMark, SetDirect, EndMark, ReadBoth],
            ],
            impatient: true,
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Missed, Goal::Passed, Goal::MarkEnded],
            ..LARGE
        },
        Configuration {
            name: "marks-set",
            about: "an operation is passed through, bypasses that change state, one is given up, a crash",
            programs: [&[OpenMark, SetDirect, EndMark], &[Set, Write, Read, Read]],
            impatient: true,
            crashes: 1,
            goals: MARK_ENDS,
            ..LARGE
        },
        Configuration {
            name: "marks-fallback",
            about: "an operation is passed through, an update may find no room",
            programs: [&[Write, Read], &[OpenMark, ScriptDirect, EndMark, ReadBoth]],
            refuses: true,
            rebuilds: true,
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Hit, Goal::FallenBack, Goal::Passed],
            ..LARGE
        },
        Configuration {
            name: "marks-expire-large",
            about: "the head ends the mark of a client that is silent, or only slow; a crash, an index that is built from the log",
            programs: [&[OpenMark, SetDirect, ExpireMark], &[Write, Read, Read]],
            impatient: true,
            rebuilds: true,
            crashes: 1,
            goals: &[Goal::Hit, Goal::Missed, Goal::Passed, Goal::MarkEnded],
            ..LARGE
        },
        Configuration {
            name: "marks-expire-moved",
            about: "the same, the server moves to another store, the old one lives on, fenced",
            programs: [&[OpenMark, SetDirect, ExpireMark], &[Write, Read, Read]],
            chains: &[First, First],
            changes: &[Change::Moved],
            servers: 2,
            goals: &[Goal::Hit, Goal::Missed, Goal::Passed, Goal::MarkEnded],
            ..LARGE
        },
        Configuration {
            name: "marks-head-lost-large",
            about: "R = 2, the head is removed and lives on, with a lease",
            programs: [&[OpenMark, SetDirect, EndMark], &[Write, Read, Read]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            goals: &[Goal::AllDone, Goal::Hit, Goal::Passed, Goal::Zombie],
            ..LARGE
        },
        Configuration {
            name: "marks-tail-lost",
            about: "R = 2, the tail is removed and lives on, a crash",
            programs: [&[OpenMark, SetDirect, EndMark], &[Write, Read]],
            chains: &[FirstSecond, First],
            changes: &[Change::Plain],
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Hit, Goal::Passed, Goal::Zombie],
            ..LARGE
        },
        Configuration {
            name: "marks-join",
            about: "a device joins at the tail, then is left alone; with leases",
            programs: [&[OpenMark, SetDirect, EndMark], &[Write, Read]],
            chains: &[First, FirstSecond, Second],
            changes: &[Change::Plain, Change::PromoteJoined],
            goals: &[Goal::AllDone, Goal::Hit, Goal::Passed, Goal::CaughtUp],
            ..LARGE
        },
        Configuration {
            name: "marks-misses",
            about: "no HITs: R = 2, the head is removed and lives on without a lease, a crash",
            programs: [
                &[OpenMark, ScriptDirect, EndMark],
                &[Write, ReadOther, Read],
            ],
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            crashes: 1,
            quick: false,
            goals: &[Goal::AllDone, Goal::Missed, Goal::Passed, Goal::Zombie],
            ..MISSES
        },
        Configuration {
            name: "marks-failover-large",
            about: "the server's replica takes over, the old primary lives on",
            programs: [
                &[OpenMark, SetDirect, Confirm, EndMark],
                &[Write, Read, Read],
            ],
            chains: &[First, First],
            changes: &[Change::Server],
            servers: 2,
            goals: &[Goal::AllDone, Goal::Hit, Goal::Passed, Goal::ReplicaServes],
            ..LARGE
        },
        Configuration {
            name: "marks-moved-large",
            about: "R = 2, the server moves to another store, the old one lives on, fenced; the head is removed",
            programs: [&[OpenMark, SetDirect, EndMark], &[Write, Read, Read]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Moved],
            servers: 2,
            goals: &[Goal::AllDone, Goal::Hit, Goal::Passed, Goal::Zombie],
            ..LARGE
        },
    ]
}

/// Larger searches of reads that are answered with an update of their own session.
fn own() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "own-write-fallback",
            about: "a read is called in the turn of its update, which may find no room; a crash",
            programs: [&[Write, ReadOwn, Read], &[Write, Read]],
            refuses: true,
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Hit, Goal::FallenBack, Goal::OwnWrite],
            ..LARGE
        },
        Configuration {
            name: "own-write-two",
            about: "R = 2, the same without refusals, an index that is built from the log",
            programs: [&[Write, ReadOwn, Read], &[Write, Read]],
            chains: &[FirstSecond],
            rebuilds: true,
            crashes: 1,
            goals: OWN,
            ..LARGE
        },
        Configuration {
            name: "own-write-set",
            about: "the same beside bypasses that change state and are given up, a crash",
            programs: [&[Write, ReadOwn, Read], &[Set, Write, Read]],
            impatient: true,
            crashes: 1,
            goals: OWN,
            ..LARGE
        },
        Configuration {
            name: "own-write-head-lost",
            about: "R = 2, the head is removed and lives on, with a lease",
            programs: [&[Write, ReadOwn, Read], &[Write, Read]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            goals: &[Goal::AllDone, Goal::Hit, Goal::OwnWrite, Goal::Zombie],
            ..LARGE
        },
        Configuration {
            name: "own-write-marks",
            about: "the same beside what is passed through, a crash",
            programs: [
                &[Write, ReadOwn, Read],
                &[OpenMark, ScriptDirect, EndMark, ReadBoth],
            ],
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Hit, Goal::Passed, Goal::OwnWrite],
            ..LARGE
        },
    ]
}
