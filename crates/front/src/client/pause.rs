//! CLIENT PAUSE: the commands of the front's clients wait for a time.

use super::mode::Mode;
use crate::table::{Action, Facts, Local, NEW, READONLY, Verdict, WRITE};
use crate::upstream::Time;

/// Nanoseconds of a millisecond.
const MILLI: Time = 1_000_000;
/// Commands without the flag `write` that nevertheless change data or send a message.
const REPLICATED: [&str; 6] = ["EVAL", "EVALSHA", "FCALL", "PFCOUNT", "PUBLISH", "SPUBLISH"];

/// The state of CLIENT PAUSE.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pause {
    until: Option<Time>,
    all: bool,
    /// Whether the pause has ended, but clients may still be waiting.
    over: bool,
}

impl Pause {
    /// Begins a pause, or extends the present one. As in Redis, a pause is never shortened, and its set of commands
    /// never shrinks.
    pub(super) fn begin(&mut self, millis: u64, all: bool, now: Time) {
        let until = now.saturating_add(millis.saturating_mul(MILLI));
        self.all |= all;
        self.until = Some(self.until.map_or(until, |before| before.max(until)));
    }

    pub(super) fn end(&mut self) {
        self.over |= self.until.is_some();
        self.until = None;
        self.all = false;
    }

    /// Whether the pause holds this command of a client in this mode.
    pub(super) fn holds(&self, verdict: &Verdict, mode: &Mode, now: Time) -> bool {
        self.until.is_some_and(|until| now < until) && (self.all || may_change(verdict, mode))
    }

    /// Returns the time when the pause ends.
    pub(crate) fn until(&self) -> Option<Time> {
        self.until
    }

    /// Returns whether a pause has ended since the last call of this function.
    pub(crate) fn take_over(&mut self, now: Time) -> bool {
        if self.until.is_some_and(|until| now >= until) {
            self.end();
        }
        std::mem::take(&mut self.over)
    }
}

fn may_change(verdict: &Verdict, mode: &Mode) -> bool {
    let Some(facts) = verdict.facts else {
        return true;
    };
    let replicated = |facts: &Facts| REPLICATED.contains(&facts.name);
    let ends = verdict.action == Action::Local(Local::Exec);
    let writes = match mode {
        Mode::Queueing(transaction) => !transaction.is_read_only(),
        Mode::WatchingMulti { .. } => true,
        _ => false,
    };
    let unclear = facts.has(NEW) && !facts.has(READONLY);
    facts.has(WRITE) || unclear || replicated(facts) || (ends && writes)
}
