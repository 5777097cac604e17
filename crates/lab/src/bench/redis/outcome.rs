//! Everything that a run found out.

use serde::Serialize;

use super::counts::Counts;
use super::measure::Cell;
use super::pairs::PairsCell;
use super::stand::Refused;

/// Everything that a run of the benchmark found out.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// What was measured, on what.
    pub title: String,
    /// What to know about the figures.
    pub notes: Vec<String>,
    /// The figures of the mixes.
    pub cells: Vec<Cell>,
    /// Those of the one long pipeline; empty if it was not asked for.
    pub pairs: Vec<PairsCell>,
    /// What fronts counted, where they say.
    pub fronts: Vec<Counts>,
    /// Rows that cannot be started on this machine.
    pub refused: Vec<Refused>,
}

impl Outcome {
    /// What is compared with each other: one mix, one number of clients.
    pub fn groups(&self) -> impl Iterator<Item = &[Cell]> {
        let group = |cell: &Cell| (cell.reads, cell.clients);
        self.cells.chunk_by(move |a, b| group(a) == group(b))
    }
}
