//! The result tables for the terminal.

use super::measure::{Cell, Outcome};

/// Returns all tables.
pub fn text(outcome: &Outcome) -> String {
    let mut text = format!("\n{}\n", outcome.title);
    let mut last = None;
    for cell in &outcome.cells {
        let group = (cell.payload_bytes, cell.clients, cell.client_io);
        if last != Some(group) {
            last = Some(group);
            let title = format!("{} B, {} {}(s)", group.0, group.1, group.2.title());
            text += &format!(
                "\n{title:<28} {:>10} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9}\n",
                "updates/s", "p50 µs", "p99 µs", "p99.9 µs", "faster", "of limit", "updates"
            );
        }
        text += &row(cell);
    }
    text += "\nfaster: than client-server on the same path (p50). of limit: so many times the p50 of limit.\n";
    for note in &outcome.notes {
        text += &format!("note: {note}\n");
    }
    text
}

fn row(cell: &Cell) -> String {
    let mut line = format!(
        "{:<28} {:>10.0} {:>8.2} {:>8.2} {:>8.2} {:>8} {:>9} {:>9}\n",
        cell.title,
        cell.throughput,
        cell.p50_us,
        cell.p99_us,
        cell.p999_us,
        times(cell.faster),
        times(cell.of_limit),
        cell.updates
    );
    if !cell.troubles.none() {
        line += &format!("  {}\n", cell.troubles);
    }
    line
}

/// Returns a ratio as text, empty for `None`.
pub fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}×"))
}
