//! A second barrier that confirms the reply to a command that passed through (`docs/spec/reads.md` §5).
//!
//! If the server waits for replicas or for a sync, its replies promise more than those of the store on the client's own
//! connection: after a reply of the store, the effect can still be lost with the store. So the reply waits for a second
//! barrier, which the server records like a write. The answer to this barrier is as durable as configured, and so is
//! everything that the same store did before the barrier. If the answer names another store, the outcome of the command
//! is unknown.

use bytes::Bytes;

use super::Passing;
use super::embedded::is_nothing;
use super::passage::{Effect, Passage, Stage};
use crate::client::Shared;
use crate::client::back::calls::outcome_reply;
use crate::client::face::Face;
use crate::store::identity::store_name;
use crate::table::Pass;
use crate::upstream::{CallId, Outcome, Time};

/// The store's reply, which is held until the server has confirmed it.
pub(super) struct Answer {
    reply: Bytes,
    /// Whether the time for the confirmation has begun to run.
    timed: bool,
}

/// Whether the reply to this command can show a change that the store may still lose.
pub(super) fn may_need(effect: &Effect, kind: Option<Pass>) -> bool {
    let ends = matches!(effect, Effect::Exec { .. } | Effect::Discard);
    (ends || matches!(effect, Effect::None | Effect::State))
        && matches!(kind, None | Some(Pass::Blocking | Pass::State | Pass::User))
}

/// Whether this reply shows that nothing has changed: an error, a timeout, or a transaction that was not
/// executed.
fn says_nothing(effect: &Effect, reply: &[u8]) -> bool {
    is_nothing(reply)
        || reply.starts_with(b"-")
        || matches!(effect, Effect::Exec { .. } | Effect::Discard) && reply.starts_with(b"+")
}

impl Passage {
    /// Whether the store's `reply` has to wait for the server's confirmation.
    pub(super) fn needs_confirmation(&self, reply: &[u8]) -> bool {
        self.confirm_run_id.is_some() && !says_nothing(&self.effect, reply)
    }

    /// Keeps the store's reply until the server has confirmed it.
    pub(super) fn await_confirmation(&mut self, reply: Bytes) {
        let answer = Answer {
            reply,
            timed: false,
        };
        self.stage = Stage::Confirm { call: None, answer };
    }

    /// Whether a confirmation is needed and its time has not begun.
    pub(super) fn is_just_answered(&self) -> bool {
        matches!(&self.stage, Stage::Confirm { answer, .. } if !answer.timed)
    }
}

impl Passing {
    /// Begins the time for the server's confirmation. The time that the command waited before does not count.
    pub(super) fn time_confirmation(&mut self, now: Time) {
        if let Some(passage) = &mut self.passage
            && let Stage::Confirm { answer, .. } = &mut passage.stage
            && !std::mem::replace(&mut answer.timed, true)
        {
            passage.begun = now;
        }
    }

    /// Returns whether `call` asked for a confirmation. For such a call, the client gets the reply, or the error that
    /// its outcome is unknown.
    pub(super) fn confirm(
        &mut self,
        face: &mut Face,
        call: CallId,
        outcome: &Outcome,
        shared: &mut Shared,
    ) -> bool {
        let Some(Passage {
            stage: Stage::Confirm {
                call: Some(mine), ..
            },
            confirm_run_id: Some(run_id),
            ..
        }) = &self.passage
        else {
            return false;
        };
        if *mine != call {
            return false;
        }
        match outcome_reply(outcome.clone()).map(|reply| store_name(&reply)) {
            Ok(Ok(name)) if name.run_id == *run_id => self.confirmed(face),
            Ok(Ok(name)) => {
                shared.store_named(&name);
                self.unconfirmed(
                    face,
                    &format!("the pmnet server uses the Redis at {} now", name.address),
                );
            }
            Ok(Err(why)) => self.unconfirmed(face, &why),
            Err(_) => self.unconfirmed(face, "the pmnet server did not confirm it in time"),
        }
        true
    }

    fn confirmed(&mut self, face: &mut Face) {
        if let Some(passage) = self.passage.take()
            && let Stage::Confirm { answer, .. } = passage.stage
        {
            face.pending.times.make_way();
            face.pending.settle(answer.reply);
        }
    }
}
