//! The result of a run: its goals and its tables.

use serde::Serialize;

use crate::engines::Engine;
use crate::measure::{Row, heading};
use crate::run::Phase;
use crate::steps::Breakdown;

/// Goal: data management with packets as records takes at most this fraction of the time of data
/// management with the usual steps.
const MANAGED_MAX: f64 = 1.0 / 3.0;
/// Goal: a get takes at most this multiple of the time of the fastest store.
const GET_MAX: f64 = 1.5;

/// The result of the whole benchmark.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Description of the measurement and of the machine.
    pub title: String,
    /// Table 1 (the breakdown).
    pub breakdown: Option<Breakdown>,
    /// The results of the stores.
    pub rows: Vec<Row>,
    /// The goals, and whether they are reached.
    pub goals: Vec<Goal>,
    /// Notes for readers of the figures.
    pub notes: Vec<String>,
}

/// A goal of the benchmark, and the measured figure.
#[derive(Debug, Serialize)]
pub struct Goal {
    /// The goal, and the cell to which it applies.
    pub words: String,
    /// The measured figure.
    pub figure: f64,
    /// The upper bound of the figure.
    pub bound: f64,
    /// Whether the figure is within the bound.
    pub reached: bool,
}

fn goal(words: String, figure: f64, bound: f64) -> Goal {
    Goal {
        words,
        figure,
        bound,
        reached: figure <= bound,
    }
}

/// Returns the goals for these figures.
#[must_use]
pub fn goals(breakdown: Option<&Breakdown>, rows: &[Row]) -> Vec<Goal> {
    let mut goals = Vec::new();
    if let Some(breakdown) = breakdown {
        for (words, ratio) in [
            ("", breakdown.ratio),
            (" and packing", breakdown.ratio_with_packing),
        ] {
            let words =
                format!("data management of a 1 KB put{words}, as a part of the usual steps");
            goals.push(goal(words, ratio, MANAGED_MAX));
        }
    }
    for cell in rows.chunk_by(|a, b| a.cell == b.cell) {
        let Some(own) = cell.iter().find(|row| row.engine == Engine::Packet) else {
            continue;
        };
        let fastest = |figure: &dyn Fn(&Row) -> f64| {
            let rivals = cell.iter().filter(|row| row.engine != Engine::Packet);
            rivals
                .map(|row| (figure(row), row.engine))
                .min_by(|a, b| a.0.total_cmp(&b.0))
        };
        let put = |row: &Row| row.median.put.p50_us;
        let get = |row: &Row| row.median.get.p50_us;
        for (what, bound, figure) in [
            ("put", 1.0, &put as &dyn Fn(&Row) -> f64),
            ("get", GET_MAX, &get),
        ] {
            if let Some((rival, engine)) = fastest(figure) {
                let words = format!(
                    "{what} p50 against the fastest other one, {}: {}",
                    engine.name(),
                    heading(&own.cell)
                );
                goals.push(goal(words, figure(own) / rival, bound));
            }
        }
    }
    goals
}

/// Returns the tables for the terminal.
#[must_use]
pub fn text(outcome: &Outcome) -> String {
    let mut text = format!("\n{}\n", outcome.title);
    if let Some(breakdown) = &outcome.breakdown {
        text += &format!(
            "\n{:<16} {:<34} {:>9} {:>9} {:>9}\n",
            format!("µs, {} keys", breakdown.keys),
            "",
            "published",
            "usual",
            "packets"
        );
        for line in &breakdown.lines {
            text += &format!(
                "{:<16} {:<34} {:>9} {:>9} {:>9}\n",
                line.overhead,
                line.operation,
                micros(line.published),
                micros(line.usual),
                micros(line.packets)
            );
        }
    }
    for cell in outcome.rows.chunk_by(|a, b| a.cell == b.cell) {
        text += &format!("\n{}\n{:<8}", heading(&cell[0].cell), "");
        for head in HEADS {
            text += &format!(" {head:>9}");
        }
        text.push('\n');
        for row in cell {
            text += &format!("{:<8}", row.engine.name());
            for figure in figures(row) {
                text += &format!(" {figure:>9}");
            }
            text.push('\n');
        }
    }
    text.push('\n');
    for goal in &outcome.goals {
        let reached = if goal.reached { "reached" } else { "MISSED" };
        text += &format!(
            "{reached:<8} {:.2} (at most {:.2}): {}\n",
            goal.figure, goal.bound, goal.words
        );
    }
    text.push('\n');
    for note in &outcome.notes {
        text += &format!("note: {note}\n");
    }
    text
}

/// The column headings of [`figures`].
pub const HEADS: [&str; 16] = [
    "put/s", "p50 µs", "p99 µs", "cpu µs", "group/s", "get/s", "p50 µs", "p99 µs", "scan/s",
    "mixed/s", "p50 µs", "p99 µs", "MB", "written", "space", "open ms",
];

/// Returns the figures of a row.
#[must_use]
pub fn figures(row: &Row) -> [String; 16] {
    let run = &row.median;
    let rate = |phase: &Phase| format!("{:.0}", phase.per_second);
    let p50 = |phase: &Phase| format!("{:.2}", phase.p50_us);
    let p99 = |phase: &Phase| format!("{:.2}", phase.p99_us);
    [
        rate(&run.put),
        p50(&run.put),
        p99(&run.put),
        format!("{:.2}", run.put.cpu_us),
        rate(&run.group),
        rate(&run.get),
        p50(&run.get),
        p99(&run.get),
        rate(&run.scan),
        rate(&run.mixed),
        p50(&run.mixed),
        p99(&run.mixed),
        format!("{:.0}", crate::run::f64_of(run.memory_bytes) / 1e6),
        run.write_amplification
            .map_or_else(String::new, |factor| format!("{factor:.2}")),
        format!("{:.2}", run.space_amplification),
        format!("{:.1}", run.recovery_ms),
    ]
}

/// Returns a time as text, empty for `None`.
#[must_use]
pub fn micros(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:.2}"))
}
