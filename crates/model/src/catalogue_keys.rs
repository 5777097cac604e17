//! The configurations with keys and an adversary (docs/spec/keys.md). In the small configurations the network removes
//! no packets.

use crate::catalogue::BASE;
use crate::catalogue_reads::HITS;
use crate::configuration::Call::{End, Open, Read, Set, Write, WriteIfNone};
use crate::configuration::Chain::{First, FirstSecond, Second, SecondFirst};
use crate::configuration::{Change, Configuration, Goal, Rollover};

const KEYED: Configuration = Configuration {
    adversary: true,
    forgetful: false,
    ..BASE
};

/// Returns the small configurations.
pub(crate) fn quick() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "keyed",
            about: "keys: R = 1, a writer and a reader, a crash",
            programs: [&[Write], &[Write, Read]],
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Reclaimed, Goal::Recovered],
            ..KEYED
        },
        Configuration {
            name: "keyed-pipelined",
            about: "keys: R = 1, two updates under way and a read behind them",
            programs: [&[Write, Write, Read], &[]],
            window: 2,
            goals: &[Goal::AllDone, Goal::Reclaimed],
            ..KEYED
        },
        Configuration {
            name: "keyed-two-devices",
            about: "keys: R = 2, a crash of either device",
            programs: [&[Write], &[Write]],
            chains: &[FirstSecond],
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Reclaimed, Goal::Recovered],
            ..KEYED
        },
        Configuration {
            name: "keyed-head-lost",
            about: "keys: R = 2, the head is removed and lives on",
            programs: [&[Write], &[Read]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            goals: &[Goal::AllDone, Goal::Zombie, Goal::NewEpochCommits],
            ..KEYED
        },
        Configuration {
            name: "keyed-sessions",
            about: "keys: a session of a front ends, another of the same front begins",
            programs: [&[Open, Write, End], &[Open, Write]],
            successive: true,
            ..KEYED
        },
        Configuration {
            name: "keyed-conditional",
            about: "keys: bypasses that change state, under request ids",
            programs: [&[WriteIfNone, Write], &[WriteIfNone]],
            goals: &[Goal::AllDone, Goal::Reclaimed],
            ..KEYED
        },
        Configuration {
            name: "keyed-fallback",
            about: "keys: a log of one entry: updates fall back",
            programs: [&[Write], &[Write, Read]],
            capacity: 1,
            goals: &[Goal::AllDone, Goal::FallenBack, Goal::Reclaimed],
            forgetful: true,
            ..KEYED
        },
        Configuration {
            name: "keyed-rollover",
            about: "keys: R = 2, the cluster's key changes in the documented order, a crash of either device",
            programs: [&[Write], &[Write]],
            chains: &[FirstSecond],
            crashes: 1,
            rollover: Rollover::Ordered,
            goals: &[Goal::Rolled, Goal::Reclaimed, Goal::Recovered],
            forgetful: true,
            ..KEYED
        },
        Configuration {
            name: "keyed-stolen",
            about: "keys: R = 2, the cluster's key changes in no order; when all have forgotten the old one, a thief has it",
            programs: [&[Write], &[Write]],
            chains: &[FirstSecond],
            rollover: Rollover::Hurried,
            goals: &[Goal::Rolled, Goal::Reclaimed],
            forgetful: true,
            ..KEYED
        },
    ]
}

/// Larger searches.
pub(crate) fn full() -> Vec<Configuration> {
    const LARGE: Configuration = Configuration {
        forgetful: true,
        quick: false,
        ..KEYED
    };
    vec![
        Configuration {
            name: "keyed-reads",
            about: "keys: R = 1, the head answers HIT or MISS, an update, then a bypass that changes state; a crash",
            programs: [&[Write, Set], &[Read, Read]],
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Hit],
            adversary: true,
            quick: false,
            ..HITS
        },
        Configuration {
            name: "keyed-return",
            about: "keys: the head is removed, lives on, and comes back at the tail",
            programs: [&[Write], &[Write]],
            chains: &[FirstSecond, Second, SecondFirst],
            changes: &[Change::Plain, Change::Plain],
            goals: &[Goal::AllDone, Goal::CaughtUp, Goal::Zombie],
            ..LARGE
        },
        Configuration {
            name: "keyed-tail-lost",
            about: "keys: R = 2, the tail is removed and lives on, a crash",
            programs: [&[Write], &[Write, Read]],
            chains: &[FirstSecond, First],
            changes: &[Change::Plain],
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Zombie],
            ..LARGE
        },
    ]
}
