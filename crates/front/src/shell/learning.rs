//! Asks the store for its commands, through the pmnet server, once for each store process.
//!
//! The server is connected to the store on which commands run, so the question reaches this store even if the front
//! cannot. The question is a read, on the session that asks for the store's name. Until the store has answered, the
//! front uses the compiled table. A command that the table does not have is a write after a barrier. Bounded: one
//! question is under way at a time, and unknown commands cause at most one question in [`AGAIN_AFTER`].

use bytes::Bytes;
use pmnet_resp::{Scanner, write_command};
use pmnet_wire::command::{Form, Protocol, preamble};

use super::Front;
use crate::limits::REPLIES;
use crate::store::identity::run_id_of;
use crate::table::Learned;
use crate::upstream::{Call, CallId, Calls, Outcome, Refused, Time, Upstream};

/// Nanoseconds from an unusable answer to the next question.
const RETRY_AFTER: Time = 1_000_000_000;
/// Nanoseconds between two questions that unknown commands cause.
const AGAIN_AFTER: Time = 3_000_000_000;

/// The question for the store's commands, and the time of the next question.
#[derive(Default)]
pub(super) struct Learning {
    pub(super) call: Option<CallId>,
    /// Earliest time of the next question.
    after: Time,
    /// Earliest time of the next question that is asked because of unknown commands.
    again_after: Time,
    /// Whether a client has sent a command that the table does not have.
    pub(super) wanted: bool,
    /// Whether the warning that the store's answer is unusable was logged.
    warned: bool,
}

impl Learning {
    /// Notes that the question will get no answer.
    pub(super) fn give_up(&mut self, now: Time) {
        if self.call.take().is_some() {
            self.after = now.saturating_add(RETRY_AFTER);
        }
    }
}

impl<U: Upstream> Front<U> {
    /// Returns the time of the next question, if one is needed.
    pub(super) fn next_learning(&self) -> Option<Time> {
        let learning = &self.learning;
        if learning.call.is_some() || self.shared.name.is_none() {
            return None;
        }
        if self.shared.has_to_learn() {
            return Some(learning.after);
        }
        learning
            .wanted
            .then(|| learning.after.max(learning.again_after))
    }

    /// Asks the store for its commands, if it is time.
    pub(super) fn learn_commands(&mut self) {
        let now = self.shared.now;
        if self.next_learning().is_none_or(|after| now < after) {
            return;
        }
        let Some(session) = self.vigil.session(&mut self.up, now) else {
            return self.learning.after = now.saturating_add(RETRY_AFTER);
        };
        let mut payload = preamble(Form::Pipeline, Protocol::Resp2, 0).to_vec();
        // The reply to INFO names the process that has these commands.
        write_command(&mut payload, &["INFO", "server"]);
        write_command(&mut payload, &["COMMAND"]);
        let deadline = now.saturating_add(self.shared.call_timeout);
        let payload = Bytes::from(payload);
        let call = Call::question(&payload, deadline);
        match self.up.submit(now, session, call) {
            Ok(call) => {
                self.learning.call = Some(call);
                self.learning.again_after = now.saturating_add(AGAIN_AFTER);
                self.learning.wanted = false;
            }
            Err(error) => {
                if matches!(error, Refused::Closed) && self.vigil.lost(session) {
                    self.learning.give_up(now);
                }
                tracing::debug!(%error, "cannot ask the store which commands it has");
                self.learning.after = now.saturating_add(RETRY_AFTER);
            }
        }
    }

    /// Takes the outcome of the question.
    pub(super) fn learned(&mut self, outcome: Outcome) {
        self.learning.call = None;
        let why = match outcome {
            Outcome::Reply(reply) => match self.learn(&reply) {
                Ok(()) => return self.learning.warned = false,
                Err(why) => why,
            },
            Outcome::Failed(why) => why.to_owned(),
            Outcome::Committed { .. } | Outcome::Unknown => "no answer".to_owned(),
        };
        if self.shared.has_to_learn() {
            self.learning.after = self.shared.now.saturating_add(RETRY_AFTER);
            if !std::mem::replace(&mut self.learning.warned, true) {
                tracing::warn!(
                    why,
                    "PM3209 the store does not say which commands it has: commands of modules, and those that are newer than this \
                     program, run one by one; asking again"
                );
            }
        }
    }

    fn learn(&mut self, reply: &[u8]) -> Result<(), String> {
        let head = Scanner::new(REPLIES).poll(reply).ok().flatten();
        let (info, commands) = reply.split_at(head.unwrap_or(0));
        let Some(run_id) = run_id_of(info) else {
            let text = String::from_utf8_lossy(&reply[..reply.len().min(64)]);
            return Err(format!("its INFO has no run_id: {}", text.trim_end()));
        };
        let learned = Learned::parse(commands).map_err(|error| error.to_string())?;
        if !self.shared.learn_commands(&run_id, &learned) {
            return Err("the server works on another store by now".into());
        }
        self.learning.wanted = false;
        let (commands, new) = learned.counts();
        tracing::info!(
            commands,
            new,
            "the store has said which commands it has; new: those without a name in this program"
        );
        if let Some(shelf) = &self.shelf {
            shelf.put(learned);
        }
        Ok(())
    }
}
