//! The configurations of leases (protocol.md §14). In the larger configurations a device also crashes.

use crate::catalogue::BASE;
use crate::catalogue_reads::HITS;
use crate::configuration::Call::{Read, Set, Write};
use crate::configuration::Chain::{First, FirstSecond, Second, SecondFirst};
use crate::configuration::{Change, Configuration, Goal};

/// Returns the small configurations.
pub(crate) fn quick() -> Vec<Configuration> {
    vec![
        Configuration {
            name: "lease-head-lost",
            about: "leases: R = 2, the head is declared stopped and lives on",
            programs: [&[Write, Write], &[Read]],
            chains: &[FirstSecond, Second],
            changes: &[Change::Plain],
            leased: true,
            goals: &[Goal::AllDone, Goal::Hit, Goal::Zombie],
            ..HITS
        },
        Configuration {
            name: "lease-last",
            about: "leases: the only device is replaced by another, by a person's word, and lives on",
            programs: [&[Write], &[Write, Read]],
            chains: &[First, Second],
            changes: &[Change::LastRemoved],
            leased: true,
            goals: &[
                Goal::AllDone,
                Goal::Declared,
                Goal::Zombie,
                Goal::NewEpochCommits,
            ],
            ..BASE
        },
    ]
}

/// Larger searches.
pub(crate) fn full() -> Vec<Configuration> {
    const LARGE: Configuration = Configuration {
        leased: true,
        quick: false,
        ..HITS
    };
    vec![
        Configuration {
            name: "lease-tail-lost",
            about: "leases: R = 2, the tail is declared stopped and lives on, a crash",
            programs: [&[Set], &[Write, Read]],
            chains: &[FirstSecond, First],
            changes: &[Change::Plain],
            crashes: 1,
            goals: &[Goal::AllDone, Goal::Hit, Goal::Zombie],
            ..LARGE
        },
        Configuration {
            name: "lease-join",
            about: "leases: a device joins at the tail; then the head is declared stopped and lives on",
            programs: [&[Write], &[Write, Read]],
            chains: &[First, FirstSecond, Second],
            changes: &[Change::Plain, Change::PromoteJoined],
            goals: &[Goal::AllDone, Goal::Hit, Goal::CaughtUp, Goal::Zombie],
            ..LARGE
        },
        Configuration {
            name: "lease-return",
            about: "leases: the head is declared stopped, lives on, and joins anew at the tail",
            programs: [&[Write], &[Write, Read]],
            chains: &[FirstSecond, Second, SecondFirst],
            changes: &[Change::Plain, Change::Plain],
            goals: &[Goal::AllDone, Goal::Hit, Goal::CaughtUp, Goal::LeasedAgain],
            ..LARGE
        },
    ]
}
