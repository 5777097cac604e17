//! The result tables for the terminal.

use super::measure::{Cell, Outcome};
use super::plan::Workload;
use super::share::Share;

/// Returns all tables.
pub fn text(outcome: &Outcome) -> String {
    let mut text = format!("\n{}\n", outcome.title);
    for cells in outcome.cells.chunk_by(|a, b| a.workload == b.workload) {
        if let Some(first) = cells.first() {
            text += &format!(
                "\n{:<26} {:>11}   {:<22} {:<22}\n",
                first.workload.title(),
                first.workload.unit(),
                "of pass",
                "of bare"
            );
        }
        for cell in cells {
            text += &row(cell);
        }
    }
    text.push('\n');
    for refused in &outcome.refused {
        text += &format!(
            "not to be had: {} with MTU {}: {}\n",
            refused.variant.name(),
            refused.mtu,
            refused.reason
        );
    }
    for note in &outcome.notes {
        text += &format!("note: {note}\n");
    }
    text
}

fn row(cell: &Cell) -> String {
    let line = format!(
        "{:<26} {:>11}   {:<22} {:<22} {}",
        cell.variant.name(),
        figure(cell.workload, cell.figure),
        share(cell.of_pass),
        share(cell.of_bare),
        more(cell)
    );
    format!("{}\n", line.trim_end())
}

/// Returns the additional figures of a cell as text.
fn more(cell: &Cell) -> String {
    let parts = [
        cell.sent.map(|sent| format!("sent {sent:.0}/s")),
        cell.p99_us.map(|p99| format!("p99 {p99:.1} µs")),
        cell.acknowledged
            .map(|count| format!("{count} updates acknowledged beside it")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn figure(workload: Workload, figure: f64) -> String {
    if workload.unit() == "packets/s" {
        format!("{figure:.0}")
    } else {
        format!("{figure:.2}")
    }
}

fn share(share: Option<Share>) -> String {
    share.map_or_else(String::new, |share| {
        format!("{:.3} ({:.2} – {:.2})", share.median, share.low, share.high)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::traffic::measure::Refused;
    use crate::bench::traffic::plan::Variant;

    #[test]
    fn a_table_shows_every_cell_and_what_cannot_be_had() {
        let cell = |variant, of_pass| Cell {
            workload: Workload::Udp,
            variant,
            mtu: 1500,
            unit: Workload::Udp.unit(),
            figure: 1234.4,
            rounds: vec![1234.4],
            of_pass,
            of_bare: None,
            bytes: 9,
            sent: Some(2000.0),
            p99_us: None,
            acknowledged: None,
        };
        let left = Share {
            median: 0.987_6,
            low: 0.9,
            high: 1.1,
        };
        let text = text(&Outcome {
            title: "title".into(),
            notes: vec!["a note".into()],
            cells: vec![cell(Variant::Pass, None), cell(Variant::Device, Some(left))],
            refused: vec![Refused {
                variant: Variant::Pass,
                mtu: 9000,
                reason: "too large".into(),
            }],
        });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[3].split_whitespace().next(), Some("UDP,"));
        assert!(lines[4].starts_with("pass ") && lines[4].ends_with("sent 2000/s"));
        assert!(lines[5].contains("0.988 (0.90 – 1.10)"), "{text}");
        assert!(text.contains("pass with MTU 9000: too large"));
        assert!(text.contains("note: a note"));
    }
}
