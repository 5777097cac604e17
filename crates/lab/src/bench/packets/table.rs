//! The result tables for the terminal.

use super::measure::{Cell, Outcome};

/// Returns all tables.
pub fn text(outcome: &Outcome) -> String {
    let mut text = format!("\n{}\n", outcome.title);
    let mut last = None;
    for cell in &outcome.cells {
        if last != Some(cell.group()) {
            last = Some(cell.group());
            text += &format!(
                "\n{:<44} {:>11} {:>8} {:>8} {:>9} {:>10} {:>6} {:>11} {:>7}\n",
                heading(cell),
                "requests/s",
                "p50 µs",
                "p99 µs",
                "server ns",
                "storing ns",
                "burst",
                "throughput",
                "p50"
            );
        }
        text += &format!(
            "  {:<42} {:>11.0} {:>8.2} {:>8.2} {:>9.0} {:>10} {:>6.1} {:>11} {:>7}\n",
            cell.store.name(),
            cell.throughput,
            cell.p50_us,
            cell.p99_us,
            cell.server_ns,
            nanos(cell.storing_ns),
            cell.burst,
            percent(cell.more_throughput, '+'),
            percent(cell.less_latency, '−')
        );
        if cell.resends > 0 {
            text += &format!("  {} were sent again\n", cell.resends);
        }
    }
    text.push('\n');
    for note in &outcome.notes {
        text += &format!("note: {note}\n");
    }
    text
}

/// Returns a time as text; for `None`, an empty text.
pub fn nanos(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:.0}"))
}

/// Returns the heading of the group to which a cell belongs.
pub fn heading(cell: &Cell) -> String {
    format!(
        "{}, {} queue(s), {} × {} B",
        cell.place.name(),
        cell.queues,
        cell.in_flight * cell.queues,
        cell.payload_bytes
    )
}

/// Returns a change in percent as text; for `None`, an empty text. `good` is the sign that marks an
/// improvement.
pub fn percent(value: Option<f64>, good: char) -> String {
    let Some(value) = value else {
        return String::new();
    };
    let bad = if good == '+' { '−' } else { '+' };
    let sign = if value < 0.0 { bad } else { good };
    format!("{sign}{:.0} %", value.abs())
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn a_change_has_the_sign_of_its_quantity() {
        assert_eq!(percent(Some(12.4), '+'), "+12 %");
        assert_eq!(percent(Some(-12.4), '+'), "−12 %");
        assert_eq!(percent(Some(12.4), '−'), "−12 %");
        assert_eq!(percent(Some(-12.4), '−'), "+12 %");
        assert_eq!(percent(None, '+'), "");
    }
}
