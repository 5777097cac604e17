//! The result tables for the terminal.

use super::measure::{Cell, Outcome};

/// Returns all tables.
pub fn text(outcome: &Outcome) -> String {
    let mut text = format!("\n{}\n", outcome.title);
    let mut last = None;
    for cell in &outcome.cells {
        let group = group(cell);
        if last.as_ref() != Some(&group) {
            text += &format!(
                "\n{group:<38} {:>10} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9}\n",
                "updates/s",
                "p50 µs",
                "p99 µs",
                "p99.9 µs",
                "faster",
                "of limit",
                "of Rust",
                "updates"
            );
            last = Some(group);
        }
        text += &row(cell);
    }
    text += "\nfaster: than client-server on the same path (p50). of limit: so many times the p50 of limit. \
             of Rust: so many times the p50 of the Rust client.\n";
    for note in &outcome.notes {
        text += &format!("note: {note}\n");
    }
    text
}

/// Returns the title of the group of cells to which this cell belongs.
pub fn group(cell: &Cell) -> String {
    let clients = match cell.client_io {
        io if io.is_program() => "program",
        io => io.title(),
    };
    format!("{} B, {} {clients}(s)", cell.payload_bytes, cell.clients)
}

/// Returns the name that distinguishes this cell from the other cells of its group.
pub fn name(cell: &Cell) -> String {
    match cell.client_io {
        io if io.is_program() => format!("{}, {}", cell.title, io.title()),
        _ => cell.title.clone(),
    }
}

fn row(cell: &Cell) -> String {
    let mut line = format!(
        "{:<38} {:>10.0} {:>8.2} {:>8.2} {:>8.2} {:>8} {:>9} {:>9} {:>9}\n",
        name(cell),
        cell.throughput,
        cell.p50_us,
        cell.p99_us,
        cell.p999_us,
        times(cell.faster),
        times(cell.of_limit),
        times(cell.of_rust),
        cell.updates
    );
    if !cell.troubles.none() {
        line += &format!("  {}\n", cell.troubles);
    }
    line
}

/// Returns a ratio as text; for `None`, an empty text.
pub fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}×"))
}
