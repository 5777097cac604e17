//! The checkers answer two questions. First: was an acknowledged operation lost, applied twice, or applied out of
//! order? Second: is a history linearizable? The second question needs no database: `pmnet-history` answers this
//! question, from files that [`read_history`] and [`check_history`] read. The following text is about the first
//! question.
//!
//! Purpose: compare a history of the checked workload ([`crate::load::CheckedOptions`]) with the final contents of the
//! database (`docs/spec/protocol.md` §10, invariants 1 to 3). Invariants: the checker asks the database directly, not
//! through pmnet; an operation of unknown outcome may have had its effect once, in its place, or not at all. The
//! checker never writes to the database.
//!
//! Each logical client has keys of its own, and writes increasing numbers to them. So the final contents show which
//! operations took effect:
//!
//! | operation | the database must show |
//! |---|---|
//! | `SET key n` | the last acknowledged n, or a later one of unknown outcome |
//! | `RPUSH key n` | every acknowledged n once, unknown ones at most once, rising, and nothing else |
//! | `INCR key` | each reply is one higher than the reply before, plus at most one for each unknown INCR between them; the final value likewise |
//! | `SET key attempt NX` | at most one attempt got OK, and this attempt is the holder; a refused attempt is not the holder |

mod ledger;
mod linear;
mod series;
mod verify;

pub use ledger::{Ledger, LedgerError};
pub use linear::{check_history, read_history, report_json, report_table};
pub use verify::verify;

use serde::Serialize;

/// Maximum number of findings that are described.
const DETAILS_MAX: usize = 20;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Number of acknowledged operations.
    pub acknowledged: u64,
    /// Number of refused operations.
    pub failed: u64,
    /// Number of operations of unknown outcome.
    pub unknown: u64,
    /// Number of keys that were compared.
    pub keys: u64,
    /// Number of acknowledged operations whose effect the database lacks.
    pub lost: u64,
    /// Number of effects that the database has more than once.
    pub twice: u64,
    /// Number of effects that took place before an earlier effect of the same client.
    pub out_of_order: u64,
    /// Number of effects that come from refused operations, or from operations that no client issued.
    pub invented: u64,
    /// Number of locks that more than one client got.
    pub shared_locks: u64,
    /// Descriptions of the first findings.
    pub details: Vec<String>,
}

impl Verdict {
    /// Returns whether the check found no violation.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violations() == 0
    }

    /// Returns the number of all violations.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.lost + self.twice + self.out_of_order + self.invented + self.shared_locks
    }

    fn detail(&mut self, text: impl FnOnce() -> String) {
        if self.details.len() < DETAILS_MAX {
            self.details.push(text());
        }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "acknowledged {}, refused {}, unknown {}; {} keys compared: lost {}, applied twice {}, \
             out of order {}, invented {}, shared locks {}",
            self.acknowledged,
            self.failed,
            self.unknown,
            self.keys,
            self.lost,
            self.twice,
            self.out_of_order,
            self.invented,
            self.shared_locks
        )?;
        for detail in &self.details {
            write!(f, "\n  {detail}")?;
        }
        Ok(())
    }
}
