//! The results of a run.

use serde::Serialize;

use super::counts::Counts;
use super::measure::Cell;
use super::pairs::PairsCell;
use super::stand::Refused;

/// The results of a run of the benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Title: the measurement and the machine.
    pub title: String,
    /// Notes for readers of the figures.
    pub notes: Vec<String>,
    /// The measured cells of the mixes.
    pub cells: Vec<Cell>,
    /// The figures of the long pipeline; empty if it was not requested.
    pub pairs: Vec<PairsCell>,
    /// The counts of each front that has reported them.
    pub fronts: Vec<Counts>,
    /// Rows that cannot be started on this machine.
    pub refused: Vec<Refused>,
}

impl Outcome {
    /// Returns the groups of cells that are compared: each group has one mix and one number of
    /// clients.
    pub fn groups(&self) -> impl Iterator<Item = &[Cell]> {
        let group = |cell: &Cell| (cell.reads, cell.clients);
        self.cells.chunk_by(move |a, b| group(a) == group(b))
    }
}
