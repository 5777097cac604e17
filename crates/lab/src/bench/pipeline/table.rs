//! The result table for the terminal.

use super::measure::Outcome;

/// Returns the table.
pub fn text(outcome: &Outcome) -> String {
    let mut text = format!(
        "\n{}\n\n{:<12} {:<6} {:>9} {:>9} {:>9} {:>9} {:>12} {:>11}\n",
        outcome.title,
        "packet",
        "tag",
        "payload",
        "sessions",
        "ns",
        "least ns",
        "packets/s",
        "subtracted"
    );
    for row in &outcome.rows {
        text += &format!(
            "{:<12} {:<6} {:>7} B {:>9} {:>9.0} {:>9.0} {:>12.0} {:>11.0}\n",
            row.packet.name(),
            row.tags.name(),
            row.payload_bytes,
            row.sessions,
            row.ns,
            row.ns_min,
            row.per_second,
            row.subtracted_ns
        );
    }
    text.push('\n');
    for note in &outcome.notes {
        text += &format!("note: {note}\n");
    }
    text
}
