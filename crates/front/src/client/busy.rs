//! Whether Redis is running a long script and therefore answers every client with BUSY.
//!
//! The front learns from the replies to its own questions that Redis is busy. Once Redis is busy, the front answers
//! some commands with Redis's own error. These are commands that would have to wait for Redis and have not been sent,
//! and plain reads that have been sent. A plain read changes nothing, even if Redis executes it after the error. A
//! write that was sent waits, because only the pmnet server knows whether it is executed. While Redis is busy, the
//! front repeats its question.

use bytes::Bytes;

use super::back::calls::{Purpose, repeated};
use super::back::passing::Passing;
use super::command::Command;
use super::face::Pending;
use super::mode::Mode;
use super::replies::Slot;
use crate::table::{Action, Facts, Local, Pass};
use crate::upstream::Time;

/// Time for which the last BUSY reply counts, in nanoseconds. The front asks several times in this period.
const HEARD_FOR: Time = 1_000_000_000;
/// The longest time for which a BUSY reply may be under way after Redis has stopped being busy, in nanoseconds.
const UNDER_WAY_FOR: Time = 50_000_000;
/// Time without an answer to a call after which the front asks whether Redis is busy, in nanoseconds.
const DOUBT_AFTER: Time = 500_000_000;
/// Commands that run code.
const CODE: [&str; 6] = [
    "EVAL",
    "EVALSHA",
    "EVAL_RO",
    "EVALSHA_RO",
    "FCALL",
    "FCALL_RO",
];

/// Whether this command runs code, which may be the reason why Redis is busy.
pub(super) fn runs_code(facts: Option<&Facts>) -> bool {
    facts.is_some_and(|facts| CODE.contains(&facts.name))
}

/// Whether this reply says that Redis is busy with a script.
#[must_use]
pub fn says_busy(reply: &[u8]) -> bool {
    reply.starts_with(b"-BUSY ")
}

/// The last known answer to the question whether Redis is busy.
#[derive(Debug, Default)]
pub struct Busy {
    error: Bytes,
    until: Time,
    /// Until this time a BUSY reply is ignored, because Redis may have sent it before the script ended.
    deaf_until: Time,
}

impl Busy {
    /// Notes that Redis has just sent this BUSY error.
    pub fn heard(&mut self, error: &Bytes, now: Time) {
        if now < self.deaf_until {
            return;
        }
        if now >= self.until {
            tracing::info!("Redis is busy with a script; what has to wait for it is answered so");
        }
        self.error = error.clone();
        self.until = now.saturating_add(HEARD_FOR);
    }

    /// Notes that Redis executes commands again, or that a script was killed.
    pub fn over(&mut self, now: Time) {
        if now < self.until {
            self.deaf_until = now.saturating_add(UNDER_WAY_FOR);
        }
        self.until = 0;
    }

    /// Returns Redis's error, if Redis is busy.
    #[must_use]
    pub fn error(&self, now: Time) -> Option<&Bytes> {
        (now < self.until).then_some(&self.error)
    }
}

impl Busy {
    /// If Redis is busy and this command would have to wait for Redis, returns Redis's error. A read is no such
    /// command, because it may be answered without Redis.
    pub(super) fn holds_up(
        &self,
        command: &Command<'_>,
        mode: &mut Mode,
        passing: &Passing,
        now: Time,
    ) -> Option<Bytes> {
        let error = self.error(now)?;
        let verdict = &command.verdict;
        if mode.watches() || mode.monitors() || !verdict.arity_fits(command.arguments) {
            return None;
        }
        let held_up = match verdict.action {
            Action::Local(Local::Exec) => mode.transaction().is_some_and(|t| t.is_sent()),
            _ if mode.transaction().is_some() => false,
            Action::Bypass { read_only, .. } => !read_only || runs_code(verdict.facts),
            Action::Pass(kind) => kind != Pass::Kill && passing.subscriptions() == 0,
            _ => false,
        };
        held_up.then(|| error.clone())
    }
}

impl Pending {
    /// Whether the front waits for the store on behalf of this client.
    pub(super) fn asks_store(&self) -> bool {
        match self.replies.slots.front() {
            Some(Slot::Call { purpose, .. }) => !matches!(purpose, Purpose::Update { .. }),
            _ => false,
        }
    }

    /// Whether this client has waited longer than [`DOUBT_AFTER`], so that the store may be busy.
    pub(super) fn doubts_store(&self, now: Time) -> bool {
        let since = self.times.since(self.times.begun());
        self.asks_store() && now >= since.saturating_add(DOUBT_AFTER)
    }

    /// Answers plain reads that wait for a busy Redis with Redis's error. Returns whether there were such reads.
    pub(super) fn refuse_reads(&mut self, error: &Bytes) -> bool {
        let mut refused = false;
        for index in 0..self.replies.slots.len() {
            let Slot::Call { purpose, .. } = &self.replies.slots[index] else {
                continue;
            };
            if !matches!(purpose, Purpose::Bypass { plain: true, .. }) {
                continue;
            }
            if let Some((_, purpose)) = self.replies.take_call(index) {
                if purpose.holds() {
                    self.hold.release();
                }
                let replies = purpose.bypassed().unwrap_or(1);
                self.replies.fill(index, repeated(error, replies));
                refused = true;
            }
        }
        self.replies.drain();
        refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_before_the_end_counts_no_more() {
        let error = Bytes::from_static(b"-BUSY x\r\n");
        let mut busy = Busy::default();
        busy.over(1);
        busy.heard(&error, 2);
        assert_eq!(busy.error(3), Some(&error));
        assert_eq!(busy.error(2 + HEARD_FOR), None);
        busy.heard(&error, 4);
        busy.over(5);
        busy.heard(&error, 6);
        assert_eq!(busy.error(7), None);
        busy.heard(&error, 5 + UNDER_WAY_FOR);
        assert_eq!(busy.error(6 + UNDER_WAY_FOR), Some(&error));
    }
}
