//! Replies that the front itself gives. Each reply keeps its command's place in the order of replies.

use bytes::Bytes;
use pmnet_resp::reply;

use super::Connection;
use super::context::{Env, Later};
use super::rights::{Asking, Rights};
use crate::table::Facts;

impl Connection {
    /// Submits all of the client's commands that wait to be sent. After success, any call may be submitted.
    ///
    /// # Errors
    /// [`Later`]: no call may be submitted now.
    pub(super) fn submit_all(&mut self, env: &mut Env<'_>) -> Result<(), Later> {
        self.back.submit_all(&mut self.face.context(env))
    }

    /// Puts a reply after all outstanding replies.
    pub(super) fn reply(&mut self, reply: Bytes) {
        self.back.reply(&mut self.face.pending, reply);
    }

    /// Answers a command with an error instead of running it. As in Redis, if the client is queueing a transaction, the
    /// EXEC of this transaction fails, too.
    ///
    /// # Errors
    /// [`Later`]: the earlier commands could not be sent now.
    pub(super) fn deny(
        &mut self,
        error: Bytes,
        facts: Option<&Facts>,
        env: &mut Env<'_>,
    ) -> Result<(), Later> {
        self.back.make_room_for_reply(&mut self.face.context(env))?;
        if facts.is_some_and(|facts| facts.name == "EXEC") {
            self.face.mode.take_transaction();
            let why = String::from_utf8_lossy(error.strip_prefix(b"-").unwrap_or(&error));
            let text = format!(
                "EXECABORT Transaction discarded because of: {}",
                why.trim_end()
            );
            self.reply(reply::error(&text));
            return Ok(());
        }
        self.face.mode.fail();
        self.reply(error);
        Ok(())
    }

    /// Keeps the command waiting for Redis's answer about the rights of its client. If Redis has not answered by the
    /// command's deadline, the command gets an error.
    ///
    /// # Errors
    /// [`Later`]: Redis has not answered yet.
    pub(super) fn await_answer(
        &mut self,
        asking: Asking,
        facts: Option<&Facts>,
        env: &mut Env<'_>,
    ) -> Result<(), Later> {
        // The client's earlier commands are sent without waiting for this answer.
        self.submit_all(env)?;
        if !asking.is_login()
            && let Some(busy) = env.shared.busy.error(env.shared.now).cloned()
        {
            // No answer about rights has come from Redis. The client gets the error that Redis would send for the
            // command.
            self.rights.stop_asking();
            return self.deny(busy, facts, env);
        }
        let times = &mut self.face.pending.times;
        if env.shared.now >= env.shared.deadline(times.begun()) {
            times.fail();
            self.rights.stop_asking();
            return self.deny(Rights::overdue(env.shared), facts, env);
        }
        self.rights.ask(asking);
        Err(Later::Rights)
    }
}
