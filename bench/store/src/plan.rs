//! The measurements of a run, and the number of their rounds.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::engines::Engine;

/// Smallest size of a value in bytes: the number of its key, and its version.
pub const VALUE_BYTES_MIN: usize = 16;
/// Largest size of a value in bytes.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// Minimum number of keys.
pub const KEYS_MIN: u64 = 100;
/// Maximum number of keys.
pub const KEYS_MAX: u64 = 10_000_000;
/// Number of records that one scan returns.
pub const SCANNED: usize = 100;

/// Where the stores' files are. The place determines which failures a completed write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Files on a disk: a write survives a loss of power.
    Disk,
    /// Files on tmpfs: a write survives the death of the process. The packet store maps its file.
    Tmpfs,
    /// Files on tmpfs. Each persist of the packet store flushes the written cache lines, as
    /// persistent memory needs it.
    Flushed,
}

impl Place {
    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Place::Disk => "disk",
            Place::Tmpfs => "tmpfs",
            Place::Flushed => "flushed",
        }
    }

    /// Returns a sentence that describes the place.
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

/// The distribution with which keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// All keys equally often.
    Uniform,
    /// Zipf with an exponent of 0.99.
    Zipf,
}

impl Choice {
    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Choice::Uniform => "uniform",
            Choice::Zipf => "zipf",
        }
    }
}

/// A combination of parameters that is measured for each store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// The place of the files.
    pub place: Place,
    /// Number of keys.
    pub keys: u64,
    /// Size of each value in bytes.
    pub value_bytes: usize,
    /// The distribution with which keys are chosen.
    pub choice: Choice,
}

/// The parameters of a measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The stores to measure.
    pub engines: Vec<Engine>,
    /// The measured combinations.
    pub cells: Vec<Cell>,
    /// Number of writes that become durable together in a group.
    pub group: usize,
    /// Measured time of each phase.
    pub duration: Duration,
    /// Number of rounds; figures are medians.
    pub rounds: usize,
    /// Number of puts in each round of the breakdown, for each of its two ways. 0: no breakdown.
    pub steps: u64,
    /// Number of records in the store for the breakdown.
    pub steps_keys: u64,
    /// Folder for files on a disk.
    pub disk: PathBuf,
    /// Folder for files in memory.
    pub memory: PathBuf,
}

/// Returns the combinations to measure: each value of a list, together with the first value of each
/// other list; or, if `every`, all combinations.
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
