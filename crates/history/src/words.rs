//! Operations and reports as text.

use std::fmt;

use crate::check::{KeyReport, Report, Verdict};
use crate::operation::{Action, Operation};

/// Longest value that is shown, in characters.
const VALUE_CHARACTERS_MAX: usize = 40;
/// Maximum number of operations of a window that are shown.
const WINDOW_MAX: usize = 24;

/// Returns one operation as text, with times in milliseconds from `origin` (ns).
#[must_use]
pub fn describe(operation: &Operation, origin: u64) -> String {
    let key = &operation.key;
    let known = operation.returned.is_some();
    let (asked, told) = match &operation.action {
        Action::Set(value) => (format!("SET {key} {}", short(value)), "OK".to_owned()),
        Action::Get(reply) => (
            format!("GET {key}"),
            reply.as_deref().map_or_else(|| "nil".to_owned(), short),
        ),
        Action::Incr(reply) => (format!("INCR {key}"), reply.to_string()),
        Action::Lock { token, taken } => (
            format!("SET {key} {} NX", short(token)),
            (if *taken { "OK" } else { "nil" }).to_owned(),
        ),
        Action::Release { token, released } => (
            format!("release {key} of {}", short(token)),
            i32::from(*released).to_string(),
        ),
    };
    let told = if known {
        told
    } else {
        "outcome unknown".to_owned()
    };
    let returned = operation
        .returned
        .map_or_else(|| "…".to_owned(), |at| milliseconds(at, origin));
    format!(
        "{} to {returned} ms, client {}: {asked} → {told}",
        milliseconds(operation.invoked, origin),
        operation.client
    )
}

fn short(value: &str) -> String {
    let mut text: String = value.chars().take(VALUE_CHARACTERS_MAX).collect();
    if text.len() < value.len() {
        text.push('…');
    }
    text
}

fn milliseconds(at: u64, origin: u64) -> String {
    let microseconds = at.saturating_sub(origin) / 1_000;
    format!("{}.{:03}", microseconds / 1_000, microseconds % 1_000)
}

impl fmt::Display for Report {
    /// Writes the faults of each key, and then one line with the sums.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for key in &self.keys {
            write_key(f, key, self.origin)?;
        }
        write!(
            f,
            "{} operations, {} of unknown outcome; {} keys: {} linearizable, {} not, {} undecided",
            self.operations(),
            self.unknown(),
            self.keys.len(),
            self.keys.len() - self.not_linearizable() - self.undecided(),
            self.not_linearizable(),
            self.undecided()
        )
    }
}

fn write_key(f: &mut fmt::Formatter<'_>, report: &KeyReport, origin: u64) -> fmt::Result {
    let KeyReport { key, verdict, .. } = report;
    let model = report.model.map_or("key", super::check::Model::name);
    match verdict {
        Verdict::Linearizable => Ok(()),
        Verdict::Undecided(why) => writeln!(f, "{model} {key}: undecided, {why}"),
        Verdict::NotLinearizable { offender, window } => {
            writeln!(
                f,
                "{model} {key}: not linearizable; nothing explains this reply:\n  {}\nthese \
                 contradict each other:",
                describe(offender, origin)
            )?;
            let hidden = window.len().saturating_sub(WINDOW_MAX);
            if hidden > 0 {
                writeln!(f, "  ({hidden} earlier ones)")?;
            }
            for operation in &window[hidden..] {
                writeln!(f, "  {}", describe(operation, origin))?;
            }
            Ok(())
        }
    }
}
