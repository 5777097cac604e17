//! Generates the page about all commands. The matrix in the page is written from the table that the code uses.

use std::fmt::Write as _;

use super::assume::ASSUMABLE;
use super::decide::{Rule, decide};
use super::{FACTS, SERVER_VERSION};

/// The prose of the page. The placeholders in the prose are replaced by generated text.
const GUIDE: &str = include_str!("guide.md");

/// Returns the whole page `docs/use/commands.md`.
#[must_use]
pub fn guide_markdown() -> String {
    let mut matrix = String::from("| command | what the front does | remark |\n|---|---|---|\n");
    for facts in FACTS {
        let decision = decide(facts);
        let class = match decision.rule {
            Rule::Early => "early ack",
            Rule::Read => "read",
            Rule::Write => "write",
            Rule::ReadUnless(_) | Rule::Container { .. } | Rule::Cluster { .. } => "read or write",
            // No command of the compiled facts has this rule.
            Rule::Learned => "as the store says",
            Rule::Scripts { .. } => "read, write or pass-through",
            Rule::BlockOption {
                read_only: true, ..
            } => "read or pass-through",
            Rule::BlockOption {
                read_only: false, ..
            } => "write or pass-through",
            Rule::Local(_) => "local",
            Rule::Pass(_) => "pass-through",
            Rule::Refuse(_) => "refused",
        };
        let mut note = match decision.rule {
            Rule::Refuse(why) => why.to_owned(),
            Rule::Container { reads, .. }
            | Rule::Cluster { reads, .. }
            | Rule::Scripts { reads, .. }
                if !reads.contains(&"*") =>
            {
                let separator = if decision.note.is_empty() { "" } else { "; " };
                format!("reads: {}{separator}{}", reads.join(", "), decision.note)
            }
            Rule::Container { .. } | Rule::Scripts { .. } => {
                format!(
                    "always a read{}{}",
                    if decision.note.is_empty() { "" } else { "; " },
                    decision.note
                )
            }
            _ => decision.note.to_owned(),
        };
        if ASSUMABLE.iter().any(|(name, _)| *name == facts.name) {
            note.push_str(if note.is_empty() {
                "`--assume-ok` possible"
            } else {
                "; `--assume-ok` possible"
            });
        }
        // Writing to a String cannot fail.
        let _ = writeln!(matrix, "| {} | {class} | {note} |", facts.name);
    }
    let mut assumable = String::from("| command | an error that nobody would see |\n|---|---|\n");
    for (name, lost) in ASSUMABLE {
        let _ = writeln!(assumable, "| {name} | {lost} |");
    }
    GUIDE
        .replace("{{VERSION}}", SERVER_VERSION)
        .replace("{{ASSUMABLE}}\n", &assumable)
        .replace("{{MATRIX}}\n", &matrix)
}
