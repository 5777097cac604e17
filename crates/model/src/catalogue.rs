//! All configurations, by name.

use crate::configuration::Call::{
    Confirm, End, Open, Read, ReadDirect, Set, SetDirect, Write, WriteIfNone,
};
use crate::configuration::Chain::{First, FirstSecond, Second, SecondFirst};
use crate::configuration::{Change, Configuration, Goal, Reads, Rollover};
use crate::{
    catalogue_at_once, catalogue_keys, catalogue_leases, catalogue_marks, catalogue_queue,
    catalogue_reads, catalogue_replicas,
};

pub(crate) const BASE: Configuration = Configuration {
    name: "",
    about: "",
    programs: [&[], &[]],
    window: 1,
    chains: &[First],
    changes: &[],
    crashes: 0,
    capacity: 8,
    servers: 1,
    leased: false,
    reads: Reads::Bypasses,
    replicas: false,
    at_once: false,
    buckets: 2,
    rebuilds: false,
    refuses: false,
    store_fails: false,
    successive: false,
    impatient: false,
    abandons: false,
    foreign: false,
    adversary: false,
    rollover: Rollover::None,
    forgetful: true,
    goals: &[Goal::AllDone],
    queue: None,
    quick: true,
};

/// Returns all configurations, the quick ones first.
#[must_use]
pub fn all() -> Vec<Configuration> {
    let mut all = quick();
    all.extend(catalogue_reads::quick());
    all.extend(catalogue_marks::quick());
    all.extend(catalogue_at_once::quick());
    all.extend(catalogue_leases::quick());
    all.extend(catalogue_replicas::quick());
    all.extend(catalogue_keys::quick());
    all.extend(catalogue_queue::quick());
    all.extend(full());
    all.extend(catalogue_reads::full());
    all.extend(catalogue_marks::full());
    all.extend(catalogue_at_once::full());
    all.extend(catalogue_leases::full());
    all.extend(catalogue_replicas::full());
    all.extend(catalogue_keys::full());
    all.extend(catalogue_queue::full());
    all
}

/// Returns the configuration with this name.
#[must_use]
pub fn named(name: &str) -> Option<Configuration> {
    all()
        .into_iter()
        .find(|configuration| configuration.name == name)
}

fn quick() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "one-device",
            about: "R = 1, a writer and a reader, a crash",
            programs: [&[Write], &[Write, Read]],
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Reclaimed, Goal::Recovered],
            ..BASE
        },
        Configuration {
            name: "pipelined",
            about: "R = 1, two updates under way and a read behind them, a crash",
            programs: [&[Write, Write, Read], &[Read]],
            window: 2,
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Reclaimed, Goal::Recovered],
            ..BASE
        },
        Configuration {
            name: "two-devices",
            about: "R = 2, a crash of either device",
            programs: [&[Write], &[Write]],
            chains: &[FirstSecond],
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Reclaimed, Goal::Recovered],
            ..BASE
        },
        Configuration {
            name: "head-lost",
            about: "R = 2, the head is removed and lives on",
            programs: [&[Write], &[Read]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            goals: &[Goal::AllDone, Goal::Zombie, Goal::NewEpochCommits],
            ..BASE
        },
        Configuration {
            name: "tail-lost",
            about: "R = 2, the tail is removed and lives on",
            programs: [&[Write], &[Read]],
            chains: &[FirstSecond, First],
            changes: &[Change::Plain],
            goals: &[Goal::AllDone, Goal::Zombie, Goal::NewEpochCommits],
            ..BASE
        },
        Configuration {
            name: "join",
            about: "a device joins at the tail, then is left alone",
            programs: [&[Write], &[Read]],
            chains: &[First, FirstSecond, Second],
            changes: &[Change::Plain, Change::PromoteJoined],
            goals: &[Goal::AllDone, Goal::CaughtUp, Goal::NewEpochCommits],
            ..BASE
        },
        Configuration {
            name: "join-given-up",
            about: "a device joins at the tail, is removed at any moment, and lives on",
            programs: [&[Write], &[Write, Read]],
            chains: &[First, FirstSecond, First],
            changes: &[Change::Plain, Change::Plain],
            goals: &[Goal::AllDone, Goal::CaughtUp, Goal::Zombie],
            ..BASE
        },
        Configuration {
            name: "return",
            about: "the head is removed, lives on, and comes back at the tail",
            programs: [&[Write], &[Write]],
            chains: &[FirstSecond, Second, SecondFirst],
            changes: &[Change::Plain, Change::Plain],
            goals: &[Goal::AllDone, Goal::CaughtUp, Goal::Zombie],
            ..BASE
        },
        Configuration {
            name: "last-removed",
            about: "the only device is replaced by another",
            programs: [&[Write], &[Write, Read]],
            chains: &[First, Second],
            changes: &[Change::LastRemoved],
            goals: &[Goal::AllDone, Goal::Declared, Goal::NewEpochCommits],
            ..BASE
        },
        Configuration {
            name: "medium-replaced",
            about: "the only device comes back with a blank medium",
            programs: [&[Write], &[Write, Read]],
            chains: &[First, First],
            changes: &[Change::Replaced],
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Declared, Goal::NewEpochCommits],
            ..BASE
        },
        Configuration {
            name: "sessions",
            about: "a session ends, another begins",
            programs: [&[Open, Write, End], &[Open, Write]],
            successive: true,
            ..BASE
        },
        Configuration {
            name: "foreign",
            about: "R = 2, a client whose updates the server would skip; a crash, the head is removed and lives on",
            programs: [&[Write, Read], &[Open, Write]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            crashes: 1,
            foreign: true,
            goals: &[
                Goal::Refused,
                Goal::Acknowledged,
                Goal::Recovered,
                Goal::Zombie,
            ],
            ..BASE
        },
        Configuration {
            name: "conditional",
            about: "bypasses that change state, under request ids",
            programs: [&[WriteIfNone, Write], &[WriteIfNone]],
            goals: &[Goal::AllDone, Goal::Reclaimed],
            ..BASE
        },
        Configuration {
            name: "late-bypass",
            about: "a client gives a bypass up and goes on",
            programs: [&[WriteIfNone, Write], &[Read]],
            impatient: true,
            goals: &[Goal::AllDone, Goal::Reclaimed],
            ..BASE
        },
        Configuration {
            name: "fallback",
            about: "a log of one entry: updates fall back",
            programs: [&[Write], &[Write, Read]],
            capacity: 1,
            goals: &[Goal::AllDone, Goal::FallenBack, Goal::Reclaimed],
            ..BASE
        },
        Configuration {
            name: "server-replica",
            about: "the server's replica takes over, the old primary lives on",
            programs: [&[WriteIfNone], &[Read, Write, Read]],
            chains: &[First, First],
            changes: &[Change::Server],
            servers: 2,
            goals: &[Goal::AllDone, Goal::ReplicaServes, Goal::Reclaimed],
            ..BASE
        },
        Configuration {
            name: "store-fails",
            about: "the store fails behind the effect of a bypass",
            programs: [&[WriteIfNone, Write], &[Set, Read]],
            store_fails: true,
            goals: &[Goal::AllDone, Goal::Begun, Goal::Reclaimed],
            ..BASE
        },
        Configuration {
            name: "store-named",
            about: "the store's replica takes over, a client reads on a connection of its own",
            programs: [&[Write, ReadDirect], &[ReadDirect, ReadDirect]],
            chains: &[First, First],
            changes: &[Change::Server],
            servers: 2,
            goals: &[Goal::AllDone, Goal::ReplicaServes, Goal::Reclaimed],
            ..BASE
        },
        Configuration {
            name: "late-direct",
            about: "a client gives bypasses up, and writes on a connection of its own",
            programs: [&[WriteIfNone, Set, SetDirect, Confirm], &[Read]],
            impatient: true,
            goals: &[Goal::AllDone],
            ..BASE
        },
        Configuration {
            name: "direct-set",
            about: "the same, and a client writes on a connection of its own",
            programs: [&[SetDirect, Confirm], &[Write, Read]],
            chains: &[First, First],
            changes: &[Change::Server],
            servers: 2,
            goals: &[Goal::AllDone, Goal::ReplicaServes],
            ..BASE
        },
    ]
}

fn full() -> Vec<Configuration> {
    let mut full = one_chain();
    full.extend(changes());
    full.extend(extensions());
    full
}

const LARGE: Configuration = Configuration {
    quick: false,
    crashes: 1,
    ..BASE
};

/// Larger searches of chains that do not change.
fn one_chain() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "one-device-large",
            about: "R = 1, pipelined updates, two crashes",
            programs: [&[Write, Write, Read], &[Write, Read]],
            window: 2,
            crashes: 2,
            goals: &[Goal::AllDone, Goal::Reclaimed, Goal::Recovered],
            ..LARGE
        },
        Configuration {
            name: "two-devices-large",
            about: "R = 2, pipelined updates, a crash",
            programs: [&[Write, Write], &[Write, Read]],
            window: 2,
            chains: &[FirstSecond],
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Reclaimed, Goal::Recovered],
            ..LARGE
        },
        Configuration {
            name: "sessions-large",
            about: "R = 2, sessions end and begin, a crash",
            programs: [&[Open, Write, Write, End], &[Open, Write, Read]],
            window: 2,
            chains: &[FirstSecond],
            successive: true,
            goals: &[Goal::AllDone, Goal::Recovered],
            ..LARGE
        },
        Configuration {
            name: "bypasses-large",
            about: "R = 2, updates, reads, conditional writes, impatient clients, a crash",
            programs: [&[WriteIfNone, Write], &[Write, Read]],
            chains: &[FirstSecond],
            impatient: true,
            goals: &[Goal::AllDone, Goal::Recovered],
            ..LARGE
        },
        Configuration {
            name: "fallback-large",
            about: "R = 2, a log of one entry, pipelined updates, a crash",
            programs: [&[Write, Write], &[Read]],
            window: 2,
            chains: &[FirstSecond],
            capacity: 1,
            goals: &[Goal::AllDone, Goal::FallenBack, Goal::Recovered],
            ..LARGE
        },
    ]
}

/// Larger searches of changing chains.
fn changes() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "head-lost-large",
            about: "R = 2, the head is removed and lives on, pipelined updates, a crash",
            programs: [&[Write, Write], &[Write, Read]],
            window: 2,
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            goals: &[
                Goal::AllDone,
                Goal::Zombie,
                Goal::Recovered,
                Goal::NewEpochCommits,
            ],
            ..LARGE
        },
        Configuration {
            name: "tail-lost-large",
            about: "R = 2, the tail is removed and lives on, pipelined updates, a crash",
            programs: [&[Write, Write], &[Write, Read]],
            window: 2,
            chains: &[FirstSecond, First],
            changes: &[Change::Plain],
            goals: &[
                Goal::AllDone,
                Goal::Zombie,
                Goal::Recovered,
                Goal::NewEpochCommits,
            ],
            ..LARGE
        },
        Configuration {
            name: "join-large",
            about: "a device joins at the tail, then is left alone, a crash",
            programs: [&[Write], &[Write, Read]],
            chains: &[First, FirstSecond, Second],
            changes: &[Change::Plain, Change::PromoteJoined],
            goals: &[
                Goal::AllDone,
                Goal::CaughtUp,
                Goal::Recovered,
                Goal::NewEpochCommits,
            ],
            ..LARGE
        },
        Configuration {
            name: "return-large",
            about: "the head is removed, lives on, and comes back at the tail, a crash",
            programs: [&[Write], &[Write, Read]],
            chains: &[FirstSecond, Second, SecondFirst],
            changes: &[Change::Plain, Change::Plain],
            goals: &[Goal::AllDone, Goal::CaughtUp, Goal::Zombie, Goal::Recovered],
            ..LARGE
        },
        Configuration {
            name: "replaced-large",
            about: "R = 1, the medium is replaced, pipelined updates, a crash",
            programs: [&[Write, Write], &[Write, Read]],
            window: 2,
            chains: &[First, First],
            changes: &[Change::Replaced],
            goals: &[Goal::AllDone, Goal::Declared, Goal::NewEpochCommits],
            ..LARGE
        },
        Configuration {
            name: "fallback-failover",
            about: "R = 2, a log of one entry, the head is removed and lives on",
            programs: [&[Write, Write], &[Read]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            capacity: 1,
            crashes: 0,
            goals: &[Goal::AllDone, Goal::FallenBack, Goal::Zombie],
            ..LARGE
        },
    ]
}

/// Larger searches with a replica of the server, which is not implemented yet.
fn extensions() -> Vec<Configuration> {
    vec![Configuration {
        name: "server-replica-large",
        about: "R = 2, the server's replica takes over, the old primary lives on, a crash",
        programs: [&[WriteIfNone, Write], &[Read, Write]],
        chains: &[FirstSecond, FirstSecond],
        changes: &[Change::Server],
        servers: 2,
        goals: &[Goal::AllDone, Goal::ReplicaServes, Goal::Recovered],
        ..LARGE
    }]
}
