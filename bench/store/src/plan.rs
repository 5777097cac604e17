//! What is measured, and how often.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::engines::Engine;

/// Smallest value: its number and version.
pub const VALUE_BYTES_MIN: usize = 16;
/// Largest value.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// Fewest keys.
pub const KEYS_MIN: u64 = 100;
/// Most keys.
pub const KEYS_MAX: u64 = 10_000_000;
/// Records that one scan gives.
pub const SCANNED: usize = 100;

/// Where the stores are, and so what an answered write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Files on a disk; loss of power.
    Disk,
    /// Files on tmpfs; death of the process. The packet store maps its own.
    Tmpfs,
    /// The same, but each persist of the packet store flushes its lines, as it must on persistent memory.
    Flushed,
}

impl Place {
    /// As on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Place::Disk => "disk",
            Place::Tmpfs => "tmpfs",
            Place::Flushed => "flushed",
        }
    }

    /// A sentence about it.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Place::Disk => {
                "files on a disk; an answered write survives the loss of power (packet: media=file, O_DIRECT and O_DSYNC; \
                 the others: fdatasync or fsync)"
            }
            Place::Tmpfs => {
                "files on tmpfs; an answered write survives the death of the process. No flush has anything to do"
            }
            Place::Flushed => {
                "the same, but each persist of the packet store flushes its lines and fences, as media=pmem does. This is \
                 DRAM: nothing is durable by that, and it is not as slow as persistent memory. The others make their \
                 calls of fdatasync, which cost nothing here but the call"
            }
        }
    }
}

/// How often which key is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// Every key as often.
    Uniform,
    /// Zipf with an exponent of 0.99.
    Zipf,
}

impl Choice {
    /// As on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Choice::Uniform => "uniform",
            Choice::Zipf => "zipf",
        }
    }
}

/// One combination, measured for each store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// Where.
    pub place: Place,
    /// Keys.
    pub keys: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Which keys.
    pub choice: Choice,
}

/// A measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The stores.
    pub engines: Vec<Engine>,
    /// What is measured of them.
    pub cells: Vec<Cell>,
    /// Writes of a group that becomes durable together.
    pub group: usize,
    /// Time of each phase.
    pub duration: Duration,
    /// Runs of each; figures are medians.
    pub rounds: usize,
    /// Puts of each way, for the breakdown, in each round; 0: none.
    pub steps: u64,
    /// Records in the store, for the breakdown.
    pub steps_keys: u64,
    /// Where files on disk are.
    pub disk: PathBuf,
    /// Where files in memory are.
    pub memory: PathBuf,
}

/// Each value of a list with the first of the others, or every combination.
#[must_use]
pub fn cells(
    places: &[Place],
    keys: &[u64],
    values: &[usize],
    choices: &[Choice],
    every: bool,
) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &place in places {
        for (k, &keys) in keys.iter().enumerate() {
            for (v, &value_bytes) in values.iter().enumerate() {
                for (c, &choice) in choices.iter().enumerate() {
                    let others = usize::from(k > 0) + usize::from(v > 0) + usize::from(c > 0);
                    let cell = Cell {
                        place,
                        keys,
                        value_bytes,
                        choice,
                    };
                    if (every || others <= 1) && !cells.contains(&cell) {
                        cells.push(cell);
                    }
                }
            }
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_meets_the_first_of_the_others() {
        let make = |every| {
            cells(
                &[Place::Disk, Place::Tmpfs],
                &[1000, 2000],
                &[50, 60, 70],
                &[Choice::Uniform, Choice::Zipf],
                every,
            )
        };
        assert_eq!(make(true).len(), 2 * 2 * 3 * 2);
        assert_eq!(make(false).len(), 2 * (1 + 1 + 2 + 1));
        let both = |cell: &&Cell| cell.keys == 2000 && cell.value_bytes != 50;
        assert_eq!(make(false).iter().filter(both).count(), 0);
    }
}
