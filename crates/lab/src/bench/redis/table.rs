//! The result tables for the terminal.

use super::counts::Counts;
use super::measure::Cell;
use super::outcome::Outcome;
use super::pairs::PairsCell;
use super::plan::{Plan, Reads};

/// Returns all tables.
pub fn text(plan: &Plan, outcome: &Outcome) -> String {
    let mut text = format!("\n{}\n", outcome.title);
    for cells in outcome.groups() {
        if let Some(first) = cells.first() {
            text += &heading(first.reads, first.clients);
        }
        for cell in cells {
            text += &row(cell);
        }
    }
    if let Some(first) = outcome.pairs.first() {
        let title = format!("{} pairs, one pipeline", first.pairs);
        text += &format!("\n{title:<32} {:>9} {:>10}\n", "ms", "pairs/s");
    }
    for cell in &outcome.pairs {
        text += &pairs(cell);
    }
    for counts in &outcome.fronts {
        text += &fronts(plan, counts);
    }
    text.push('\n');
    for refused in &outcome.refused {
        text += &format!(
            "not to be had: {}: {}\n",
            refused.row.name(),
            refused.reason
        );
    }
    for note in &outcome.notes {
        text += &format!("note: {note}\n");
    }
    text
}

fn heading(reads: Reads, clients: usize) -> String {
    let title = format!("{}, {clients} client(s)", reads.title());
    format!(
        "\n{title:<32} {:>9} {:>8} {:>8} {:>8} {:>7} {:>8} {:>8} {:>8} {:>8}  CPU µs\n",
        "ops/s",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "lower",
        "of limit",
        "SET p50",
        "GET p50",
        "drain ms"
    )
}

fn row(cell: &Cell) -> String {
    let mut line = format!(
        "{:<32} {:>9.0} {:>8.0} {:>8.0} {:>8.0} {:>7} {:>8} {:>8} {:>8} {:>8.0}  {}\n",
        cell.title,
        cell.throughput,
        cell.all.p50_us,
        cell.all.p99_us,
        cell.all.p999_us,
        times(cell.lower),
        times(cell.of_limit),
        p50(cell, "set"),
        p50(cell, "get"),
        cell.drain_ms,
        cpu(&cell.cpu_us)
    );
    if cell.errors > 0 {
        line += &errors(cell.errors, cell.first_error.as_deref());
    }
    line
}

fn pairs(cell: &PairsCell) -> String {
    let mut line = format!(
        "{:<32} {:>9.1} {:>10.0}  CPU µs: {}\n",
        cell.title,
        cell.ms,
        cell.per_second(),
        cpu(&cell.cpu_us)
    );
    if cell.unfinished > 0 {
        line += &format!("  {}\n", unfinished(cell));
    }
    if cell.errors > 0 {
        line += &errors(cell.errors, cell.first_error.as_deref());
    }
    line
}

/// Returns a note about the rounds that were given up.
pub fn unfinished(cell: &PairsCell) -> String {
    format!(
        "{} of {} rounds were given up and count as long as that took",
        cell.unfinished,
        cell.rounds_ms.len()
    )
}

fn fronts(plan: &Plan, counts: &Counts) -> String {
    let parts = counts.counts.iter();
    let parts: Vec<String> = parts
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    format!(
        "\nthe front of {} counted: {}\n",
        counts.row.title(plan.medium),
        parts.join(", ")
    )
}

fn errors(count: u64, first: Option<&str>) -> String {
    let first = first.map_or_else(String::new, |first| format!(", such as: {first}"));
    format!("  {count} failed or stayed unknown{first}\n")
}

/// Returns the CPU time of each process as text.
pub fn cpu(parts: &[(String, f64)]) -> String {
    let parts: Vec<_> = parts
        .iter()
        .map(|(name, micros)| format!("{name} {micros:.1}"))
        .collect();
    parts.join(", ")
}

/// Returns a ratio as text; for `None`, an empty text.
pub fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(String::new, |ratio| format!("{ratio:.1}×"))
}

/// Returns the median of one operation as text. If the mix does not have the operation, the text is
/// empty.
pub fn p50(cell: &Cell, operation: &str) -> String {
    let found = cell.by_operation.get(operation);
    found.map_or_else(String::new, |figures| format!("{:.0}", figures.p50_us))
}
