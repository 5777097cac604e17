//! The configurations of reads (docs/spec/reads.md). Each is as small as its rules allow.

use crate::catalogue::BASE;
use crate::configuration::Call::{
    End, Expire, Fence, Read, ReadBoth, ReadBypass, ReadOther, Script, Set, SetOther, Write,
    WriteBoth, WriteOther,
};
use crate::configuration::Chain::{First, FirstSecond, Second};
use crate::configuration::{Change, Configuration, Goal, Reads};

pub(crate) const HITS: Configuration = Configuration {
    reads: Reads::Hits,
    goals: &[Goal::AllDone, Goal::Hit, Goal::Missed],
    ..BASE
};

pub(crate) const MISSES: Configuration = Configuration {
    reads: Reads::Misses,
    goals: &[Goal::AllDone, Goal::Missed],
    ..BASE
};

/// Returns the small configurations.
pub(crate) fn quick() -> Vec<Configuration> {
    let mut quick = updates();
    quick.extend(bypasses());
    quick.extend(chains());
    quick
}

/// Configurations with reads at the same time as updates.
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

/// Configurations with reads at the same time as bypasses that change state.
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
            name: "reads-merged",
            about: "bypasses of one session that change the one key, then the other, and are given up",
            programs: [&[Set, SetOther], &[Write, Read, Read]],
            impatient: true,
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
            name: "reads-both",
            about: "the same, reads of both keys by either client",
            programs: [&[Script, ReadBoth], &[Write, ReadOther, ReadBoth]],
            goals: &[Goal::AllDone, Goal::Missed],
            ..HITS
        },
        Configuration {
            name: "reads-both-set",
            about: "a bypass that changes one key, an update of the other, reads of both",
            programs: [&[Set, WriteOther], &[WriteOther, ReadBoth, Read, ReadOther]],
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

/// Configurations with reads while the chain or the store changes.
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

/// Larger searches.
pub(crate) fn full() -> Vec<Configuration> {
    let mut full = one_chain();
    full.extend(changes());
    full
}

const LARGE: Configuration = Configuration {
    quick: false,
    ..HITS
};

/// Larger searches of chains that do not change.
fn one_chain() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "reads-large",
            about: "R = 1, an update, a bypass that changes state and is given up, a crash",
            programs: [&[Write, Set], &[Write, Read, Read]],
            crashes: 1,
            impatient: true,
            ..LARGE
        },
        Configuration {
            name: "reads-two-large",
            about: "the same, R = 2, an index that is built from the log",
            programs: [&[Set, Write], &[Write, Read]],
            chains: &[FirstSecond],
            crashes: 1,
            rebuilds: true,
            impatient: true,
            ..LARGE
        },
        Configuration {
            name: "reads-sets-large",
            about: "bypasses of two clients that change state, a session ends",
            programs: [&[Set, End], &[Set, Write, Read, Read]],
            impatient: true,
            ..LARGE
        },
        Configuration {
            name: "reads-fence-large",
            about: "bypasses are given up, a fence, reads by bypasses and others",
            programs: [&[Set, Set, Fence, ReadBypass], &[Write, Read, Read]],
            impatient: true,
            ..LARGE
        },
        Configuration {
            name: "reads-collision-large",
            about: "two keys in one bucket, a bypass that is given up, a crash",
            programs: [&[Set, WriteOther], &[WriteOther, Read, ReadOther]],
            buckets: 1,
            crashes: 1,
            impatient: true,
            ..LARGE
        },
        Configuration {
            name: "reads-script-large",
            about: "a bypass that may change several keys is given up, a crash",
            programs: [&[Script, WriteOther], &[Write, ReadOther, Read]],
            crashes: 1,
            impatient: true,
            ..LARGE
        },
        Configuration {
            name: "reads-both-large",
            about: "R = 2, reads of both keys, a crash",
            programs: [&[Write, ReadBoth], &[WriteOther, ReadBoth, ReadBoth]],
            chains: &[FirstSecond],
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Missed],
            ..LARGE
        },
        Configuration {
            name: "reads-fallback-large",
            about: "R = 2, an update may find no room, a crash, an index that is built from the log",
            programs: [&[Write], &[Write, Read]],
            chains: &[FirstSecond],
            refuses: true,
            crashes: 1,
            rebuilds: true,
            goals: &[Goal::AllDone, Goal::Hit, Goal::FallenBack],
            ..LARGE
        },
        Configuration {
            name: "reads-refused-large",
            about: "R = 1, two updates may find no room, a crash",
            programs: [&[Write, Write], &[Read, Read]],
            refuses: true,
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Hit, Goal::FallenBack],
            ..LARGE
        },
        Configuration {
            name: "reads-merged-large",
            about: "the same as `reads-merged`, a crash",
            programs: [&[Set, SetOther, Write], &[Write, Read, ReadOther]],
            impatient: true,
            crashes: 1,
            ..LARGE
        },
        Configuration {
            name: "reads-abandoned",
            about: "an update is given up, its session goes on with a read by a bypass, then another",
            programs: [&[Write, ReadBypass, Read], &[Write, Read]],
            abandons: true,
            crashes: 1,
            ..LARGE
        },
        Configuration {
            name: "reads-expire",
            about: "the head ends the session of a client that waits for a bypass",
            programs: [&[Set, Expire], &[Write, Read, Read]],
            goals: &[Goal::Hit, Goal::Missed],
            ..LARGE
        },
    ]
}

/// Larger searches of changing chains and stores.
fn changes() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "reads-head-lost-large",
            about: "R = 2, the head is removed and lives on, with a lease; a bypass is given up, its session ends",
            programs: [&[Set, End], &[Write, Read]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            impatient: true,
            goals: &[Goal::AllDone, Goal::Hit, Goal::Zombie],
            ..LARGE
        },
        Configuration {
            name: "reads-fallback-head-lost",
            about: "R = 2, an update may find no room, the head is removed and lives on, with a lease",
            programs: [&[Write], &[Write, Read, Read]],
            refuses: true,
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            goals: &[Goal::AllDone, Goal::Hit, Goal::FallenBack, Goal::Zombie],
            ..LARGE
        },
        Configuration {
            name: "reads-misses-large",
            about: "no HITs: R = 2, the head is removed and lives on without a lease, a crash",
            programs: [&[Set, Write], &[Read, Read]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            crashes: 1,
            impatient: true,
            quick: false,
            goals: &[Goal::AllDone, Goal::Missed, Goal::Zombie, Goal::Recovered],
            ..MISSES
        },
        Configuration {
            name: "reads-own-head-lost",
            about: "no HITs: the same, both clients read behind their own updates",
            programs: [&[Write, Read], &[Write, Read]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            crashes: 1,
            quick: false,
            goals: &[Goal::AllDone, Goal::Missed, Goal::Zombie, Goal::Recovered],
            ..MISSES
        },
        Configuration {
            name: "reads-misses-failover",
            about: "no HITs: the head is removed, and the server's replica takes over",
            programs: [&[Write, Set], &[Read, Read]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Server],
            servers: 2,
            quick: false,
            goals: &[
                Goal::AllDone,
                Goal::Missed,
                Goal::Zombie,
                Goal::ReplicaServes,
            ],
            ..MISSES
        },
        Configuration {
            name: "reads-tail-lost",
            about: "R = 2, the tail is removed and lives on, bypasses that change state",
            programs: [&[Set], &[Write, Read, Read]],
            chains: &[FirstSecond, First],
            changes: &[Change::Plain],
            goals: &[Goal::AllDone, Goal::Hit, Goal::Zombie],
            ..LARGE
        },
        Configuration {
            name: "reads-join",
            about: "a device joins at the tail, then is left alone; with leases",
            programs: [&[Set], &[Write, Read]],
            chains: &[First, FirstSecond, Second],
            changes: &[Change::Plain, Change::PromoteJoined],
            goals: &[Goal::AllDone, Goal::Hit, Goal::CaughtUp],
            ..LARGE
        },
        Configuration {
            name: "reads-moved-large",
            about: "the head is removed, then the server moves; both old ones live on",
            programs: [&[Write, Set], &[Read, Read]],
            chains: &[FirstSecond, Second, Second],
            changes: &[Change::Plain, Change::Moved],
            servers: 2,
            goals: &[Goal::AllDone, Goal::Hit, Goal::Zombie],
            ..LARGE
        },
        Configuration {
            name: "reads-replica-large",
            about: "the server's replica takes over, a bypass that changes state, a crash",
            programs: [&[Write, Set], &[Read, Read]],
            chains: &[First, First],
            changes: &[Change::Server],
            servers: 2,
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Hit, Goal::ReplicaServes],
            ..LARGE
        },
    ]
}
