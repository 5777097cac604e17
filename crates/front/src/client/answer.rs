//! Answers of the front's own, at the places of their commands.

use bytes::Bytes;
use pmnet_resp::reply;

use super::Connection;
use super::context::{Env, Later};
use super::rights::{Asking, Rights};
use crate::table::Facts;

impl Connection {
    /// Sends what waits to be sent. Then anything may be submitted.
    ///
    /// # Errors
    /// [`Later`]: nothing may be submitted after it now.
    pub(super) fn submit_all(&mut self, env: &mut Env<'_>) -> Result<(), Later> {
        self.back.submit_all(&mut self.face.context(env))
    }

    /// Puts a reply after all that are outstanding.
    pub(super) fn reply(&mut self, reply: Bytes) {
        self.back.reply(&mut self.face.pending, reply);
    }

    /// Answers a command that is not run with an error, as Redis does: inside MULTI, the transaction fails as well.
    ///
    /// # Errors
    /// [`Later`]: the commands before it could not be sent now.
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

    /// The command waits for an answer of Redis about its client's rights, as long as it has time. Then it has an error.
    ///
    /// # Errors
    /// [`Later`]: it waits.
    pub(super) fn await_answer(
        &mut self,
        asking: Asking,
        facts: Option<&Facts>,
        env: &mut Env<'_>,
    ) -> Result<(), Later> {
        // The commands before it do not wait.
        self.submit_all(env)?;
        if !asking.is_login()
            && let Some(busy) = env.shared.busy.error(env.shared.now).cloned()
        {
            // Redis says nothing about rights now, but it would say this.
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
