//! The result tables for the terminal.

use super::outcome::{Cell, Outcome};
use super::plan::Plan;

/// Returns the baseline's figure divided by this figure, as text; empty for the baseline itself.
pub fn ratio(base: Option<f64>, this: f64) -> String {
    match base {
        Some(base) if this > 0.0 => format!("{:.1}×", base / this),
        _ => String::new(),
    }
}

/// Returns the baseline's cell for the same operation and number of clients.
pub fn base<'a>(plan: &Plan, outcome: &'a Outcome, cell: &Cell) -> Option<&'a Cell> {
    let name = plan.stack(cell.stack)?.base?;
    outcome.cells.iter().find(|other| {
        other.stack == name && other.operation == cell.operation && other.clients == cell.clients
    })
}

/// Returns all tables as text.
pub fn text(plan: &Plan, outcome: &Outcome) -> String {
    let mut text = String::new();
    for operation in &plan.operations {
        for clients in &plan.clients {
            let plural = if *clients == 1 { "" } else { "s" };
            let title = format!(
                "{}, {clients} client{plural}",
                operation.name().to_uppercase()
            );
            text += &format!(
                "\n{title:<36} {:>9} {:>8} {:>8} {:>8} {:>7} {:>7} {:>8}  {:>9} {:>8}\n",
                "ops/s",
                "p50 µs",
                "p95 µs",
                "p99 µs",
                "p50",
                "p99",
                "drain ms",
                "bench/s",
                "p50 µs"
            );
            for cell in &outcome.cells {
                if cell.operation == *operation && cell.clients == *clients {
                    text += &row(cell, base(plan, outcome, cell));
                }
            }
        }
    }
    text += "p50 and p99 with ×: so many times lower than direct, over the same path. drain: from the end of the load until \
             all of it was in the database. bench: redis-benchmark.\n";
    text += "\nCPU time per SET and process, µs\n";
    for cell in &outcome.cells {
        if cell.operation == crate::load::Op::Set {
            let parts: Vec<_> = cell
                .cpu_us
                .iter()
                .map(|(name, micros)| format!("{name} {micros:.1}"))
                .collect();
            text += &format!(
                "{:<36} {:>2} client(s): {}\n",
                cell.stack,
                cell.clients,
                parts.join(", ")
            );
        }
    }
    let kills: Vec<_> = outcome
        .kills
        .iter()
        .map(|(role, count)| format!("{role} {count}×"))
        .collect();
    text += &format!(
        "\nkill -9 under load: {}; longest call {:.0} ms\n{}\n",
        kills.join(", "),
        outcome.longest_call_ms,
        outcome.verdict
    );
    for note in &outcome.notes {
        text += &format!("note: {note}\n");
    }
    text + &format!(
        "{} in {:.0} s\n",
        if outcome.verdict.is_clean() {
            "nothing lost, nothing twice, nothing out of order"
        } else {
            "VIOLATION"
        },
        outcome.seconds
    )
}

fn row(cell: &Cell, base: Option<&Cell>) -> String {
    let (bench, bench_p50) = cell.benchmark.as_ref().map_or_else(
        || ("-".to_owned(), "-".to_owned()),
        |row| {
            (
                format!("{:.0}", row.throughput),
                format!("{:.0}", row.p50_us),
            )
        },
    );
    let mut line = format!(
        "{:<36} {:>9.0} {:>8.0} {:>8.0} {:>8.0} {:>7} {:>7} {:>8.0}  {bench:>9} {bench_p50:>8}\n",
        cell.stack,
        cell.throughput,
        cell.p50_us,
        cell.p95_us,
        cell.p99_us,
        ratio(base.map(|base| base.p50_us), cell.p50_us),
        ratio(base.map(|base| base.p99_us), cell.p99_us),
        cell.drain_ms,
    );
    if cell.errors > 0 {
        line += &format!(
            "{:<36} {} operations failed or stayed unknown\n",
            "", cell.errors
        );
    }
    line
}
