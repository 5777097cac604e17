//! Whether a command is run: asked of the rights of its client's user before it is looked at any further.

use bytes::Bytes;
use pmnet_resp::{Arguments, Parser, Status, reply};
use pmnet_wire::command::Protocol;

use super::{Asking, Standing};
use crate::client::busy::runs_code;
use crate::client::mode::Mode;
use crate::client::transaction::{
    Own, Transaction, not_allowed_any_more, not_in_multi, unknown_command, unknown_subcommand,
};
use crate::client::{Connection, Later, Shared, shown};
use crate::limits::REQUESTS;
use crate::store::rights::About;
use crate::table::{Action, Facts, Local, MODULE, OPAQUE, Pass, Sub, Verdict, sort_options};
use crate::upstream::Upstream;
use crate::users::{Access, Reads, Ruling};

const NOAUTH: &str = "NOAUTH Authentication required.";
const REMOTE: &str = "DENIED pmnet: this user needs no password, so it can be used from the front's own machine only. Give it a \
                      password in Redis (ACL SETUSER), or start the front with --requirepass-file or --anyone-may-connect";
/// Commands that need no rights, not even a login.
const FREE: [&str; 4] = ["AUTH", "HELLO", "QUIT", "RESET"];

impl Connection {
    /// Whether the client may run this command. If not, it has the error.
    ///
    /// # Errors
    /// [`Later`]: it is not known yet.
    pub(in crate::client) fn admit<U: Upstream>(
        &mut self,
        verdict: &Verdict,
        arguments: &Arguments<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        if matches!(shared.users.access, Access::Anyone) {
            return Ok(true);
        }
        // CLIENT is answered here, even while keys are watched.
        let own = self.mode.watches() && matches!(verdict.action, Action::Local(Local::Client));
        if self.is_passed_on() && !own && !self.goes_by_server_watching(verdict) {
            return Ok(true);
        }
        if let Action::Pass(_) = verdict.action {
            let acts_as = self.rights.acts_as(&shared.users, shared.store.as_ref());
            self.passing.set_acts_as(acts_as);
        }
        let standing = self
            .rights
            .standing(&mut shared.users, shared.now, shared.call_timeout);
        let facts = verdict.facts;
        match standing {
            Standing::All { changed } => {
                self.rights.forget_ruling();
                self.admit_in_time(changed, None, facts, arguments, up, shared)
            }
            _ if is_free(verdict, arguments) => Ok(true),
            // Its error comes first.
            _ if self.mode.transaction().is_some() && not_in_multi(verdict).is_some() => Ok(true),
            Standing::Some { at } => self.rule(at, verdict, arguments, up, shared),
            Standing::NotLoggedIn => self.deny(reply::error(NOAUTH), facts, up, shared),
            Standing::Remote => {
                self.flush_pack(up, shared)?;
                self.reply(reply::error(REMOTE));
                self.end.cut_off();
                Ok(false)
            }
            Standing::Gone => {
                tracing::debug!(client = self.peer, "closing: its user is deleted");
                self.abandon();
                Ok(false)
            }
            // It runs on a connection that logs in as the client, even while Redis is busy and says nothing about users.
            Standing::Unknown
                if verdict.action == Action::Pass(Pass::Kill)
                    && self.rights.user.is_some()
                    && shared.users.is_known() =>
            {
                Ok(true)
            }
            Standing::Unknown => self.await_answer(Asking::List, facts, up, shared),
        }
    }

    /// The action for a command of this client. A command that may check the rights of its user itself runs as that user, unless the user
    /// may do everything. Not one that the store has not named: it could change keys that it does not name, and nothing would keep it from
    /// pmnet's records.
    pub(in crate::client) fn as_its_user(
        &mut self,
        mut verdict: Verdict,
        shared: &mut Shared,
    ) -> Verdict {
        let may_look = matches!(verdict.action, Action::Bypass { .. })
            && verdict.is_named()
            && may_look_at_user(verdict.facts)
            && matches!(self.mode, Mode::Ordinary);
        if may_look
            && let Standing::Some { .. } =
                self.rights
                    .standing(&mut shared.users, shared.now, shared.call_timeout)
        {
            verdict.action = Action::Pass(Pass::User);
        }
        verdict
    }

    /// What it sends runs on a connection of its own, where Redis looks.
    pub(in crate::client) fn is_passed_on(&self) -> bool {
        self.mode.watches()
            || self.mode.monitors()
            || (self.passing.subscriptions() > 0 && self.settings.protocol == Protocol::Resp2)
    }

    /// The user may run the command, under rules that `changed` then last. `at`: where it is, if it may not do everything.
    fn admit_in_time<U: Upstream>(
        &mut self,
        changed: u64,
        at: Option<usize>,
        facts: Option<&'static Facts>,
        arguments: &Arguments<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        match facts.map(|facts| facts.name) {
            Some("MULTI") if self.mode.transaction().is_none() => self.rights.multi = changed,
            Some("EXEC") if self.mode.transaction().is_some() && self.rights.multi != changed => {
                if let Some(at) = at
                    && !self.check_queue(at, facts, up, shared)?
                {
                    return Ok(false);
                }
                self.rights.multi = changed;
            }
            // The store would name the user of the pmnet server.
            Some("ACL") if arguments.is(1, "WHOAMI") && arguments.len() == 2 => {
                let name = reply::bulk(self.rights.name());
                if self.mode.transaction().is_some() {
                    self.queue_own(Own::Reply(name))?;
                    return Ok(false);
                }
                self.flush_pack(up, shared)?;
                self.reply(name);
                return Ok(false);
            }
            _ => {}
        }
        Ok(true)
    }

    /// Whether the user at this place may run the command.
    fn rule<U: Upstream>(
        &mut self,
        at: usize,
        verdict: &Verdict,
        arguments: &Arguments<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        let facts = verdict.facts;
        let queues = self.mode.transaction().is_some();
        // Where it runs, in a transaction behind a SELECT as well.
        let selected = self.mode.transaction().and_then(|queue| queue.database());
        let database = selected.unwrap_or(self.settings.database);
        let Some(user) = shared.users.user(at) else {
            return self.await_answer(Asking::List, facts, up, shared);
        };
        let (changed, reads) = (user.changed, user.reads());
        if matches!(verdict.action, Action::Pass(_)) && !queues {
            return Ok(true);
        }
        let is_checked =
            |mode: &mut Mode| mode.transaction().is_some_and(|queue| queue.is_rechecked());
        let ruling = if facts.is_some_and(|facts| facts.name == "EXEC")
            && is_checked(&mut self.mode)
        {
            // It was allowed, and now its commands are looked at.
            Ruling::Allowed
        } else if let Some(ruling) = self.rights.take_ruling() {
            ruling
        } else if let Err((major, minor)) = shared.users.can_be_asked() {
            let error = reply::error(&format!(
                "ERR pmnet: Redis {major}.{minor} does not say what a user may do: with it only users that may do everything \
                 (~* &* +@all) can use the front; Redis 7.0 and newer say it"
            ));
            return self.deny(error, facts, up, shared);
        } else if let Some(about) =
            user.unknown(facts, arguments, database, self.rights.asks_others)
        {
            return self.await_answer(Asking::New(about), facts, up, shared);
        } else {
            Ruling::Allowed
        };
        if ruling == Ruling::Allowed
            && reads == Reads::Some
            && !self.rights.asks_others
            && reads_others(facts, arguments).is_some()
        {
            // Redis, too, looks at its key first, and at those of its options when it runs.
            self.rights.asks_others = true;
            return self.rule(at, verdict, arguments, up, shared);
        }
        match ruling {
            Ruling::Denied(error) if facts.is_none() && error.starts_with(b"-ERR Command ") => {
                self.deny(unknown_command(arguments), facts, up, shared)
            }
            Ruling::Denied(error)
                if matches!(verdict.sub, Sub::Unknown) && error.starts_with(b"-ERR Command ") =>
            {
                self.deny(unknown_subcommand(arguments), facts, up, shared)
            }
            Ruling::Denied(error) => {
                let of_options = reads_others(facts, arguments).filter(|_| self.rights.asks_others);
                match of_options {
                    Some(error) => self.fail_when_run(error, facts, up, shared),
                    None => self.deny(error, facts, up, shared),
                }
            }
            Ruling::Allowed => {
                let runs = runs_others_code(verdict, arguments);
                let reads = reads_others(facts, arguments).filter(|_| reads == Reads::None);
                if (runs.is_some() || reads.is_some())
                    && self.rights.needs_newer_list(&mut shared.users)
                {
                    return self.await_answer(Asking::List, facts, up, shared);
                }
                if let Some(error) = runs {
                    return self.deny(error, facts, up, shared);
                }
                if let Some(error) = reads {
                    return self.fail_when_run(error, facts, up, shared);
                }
                self.admit_in_time(changed, Some(at), facts, arguments, up, shared)
            }
        }
    }

    /// Looks at the queued commands again, as Redis does at EXEC. False: the client has an error instead.
    ///
    /// # Errors
    /// [`Later`]: one has still to be asked about.
    fn check_queue<U: Upstream>(
        &mut self,
        at: usize,
        exec: Option<&'static Facts>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        if !self.mode.transaction().is_some_and(Transaction::recheck) {
            return Ok(true);
        }
        while let Some(frame) = self.mode.transaction().and_then(Transaction::unchecked) {
            let mut parser = Parser::new(REQUESTS);
            let Ok(Status::Complete) = parser.poll(&frame) else {
                return self.deny(
                    reply::error("ERR pmnet: a queued command cannot be read"),
                    exec,
                    up,
                    shared,
                );
            };
            let arguments = parser.arguments(&frame);
            let verdict = shared.table.verdict(&arguments);
            let selected = self
                .mode
                .transaction()
                .and_then(|queue| queue.checked_database());
            let database = selected.unwrap_or(self.settings.database);
            let Some(user) = shared.users.user(at) else {
                return self.await_answer(Asking::List, exec, up, shared);
            };
            let reads = user.reads();
            let others = reads_others(verdict.facts, &arguments);
            let asks_others = others.is_some() && reads == Reads::Some;
            // First what was asked: it may be remembered as well.
            let ruling = if let Some(ruling) = self.rights.take_ruling() {
                ruling
            } else if is_free(&verdict, &arguments) {
                Ruling::Allowed
            } else if let Some(about) =
                user.unknown(verdict.facts, &arguments, database, asks_others)
            {
                return self.await_answer(Asking::New(about), exec, up, shared);
            } else {
                Ruling::Allowed
            };
            let by_list = runs_others_code(&verdict, &arguments)
                .or(others.clone().filter(|_| reads == Reads::None));
            if ruling == Ruling::Allowed
                && by_list.is_some()
                && self.rights.needs_newer_list(&mut shared.users)
            {
                return self.await_answer(Asking::List, exec, up, shared);
            }
            let denied = match ruling {
                Ruling::Allowed => by_list,
                Ruling::Denied(_) if asks_others => others,
                Ruling::Denied(error) => Some(not_allowed_any_more(&error)),
            };
            if let Some(transaction) = self.mode.transaction() {
                transaction.checked(frame.len(), denied);
            }
        }
        if let Some(transaction) = self.mode.transaction() {
            transaction.drop_denied();
        }
        Ok(true)
    }

    /// Answers a command that Redis takes, and gives this error when it runs it.
    fn fail_when_run<U: Upstream>(
        &mut self,
        error: Bytes,
        facts: Option<&'static Facts>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        if self.mode.transaction().is_none() {
            return self.deny(error, facts, up, shared);
        }
        self.queue_own(Own::Reply(error))?;
        Ok(false)
    }

    /// Answers a command that is not run with an error, as Redis does: inside MULTI, the transaction fails as well.
    pub(in crate::client) fn deny<U: Upstream>(
        &mut self,
        error: Bytes,
        facts: Option<&'static Facts>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        self.make_room_for_reply(up, shared)?;
        if facts.is_some_and(|facts| facts.name == "EXEC") {
            self.mode.take_transaction();
            let why = String::from_utf8_lossy(error.strip_prefix(b"-").unwrap_or(&error));
            let text = format!(
                "EXECABORT Transaction discarded because of: {}",
                why.trim_end()
            );
            self.reply(reply::error(&text));
            return Ok(false);
        }
        self.fail_transaction();
        self.reply(error);
        Ok(false)
    }

    /// The command waits, as long as it has time.
    pub(super) fn await_answer<U: Upstream>(
        &mut self,
        stage: Asking,
        facts: Option<&'static Facts>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        // What is in front of it does not wait.
        self.flush_pack(up, shared)?;
        let logs_in = matches!(stage, Asking::New(About::Login { .. }));
        if !logs_in && let Some(busy) = shared.busy.error(shared.now).cloned() {
            // Redis says nothing about rights now, but it would say this.
            self.rights.stage = Asking::Nothing;
            return self.deny(busy, facts, up, shared);
        }
        if self.rights_are_overdue(shared) {
            self.rights.stage = Asking::Nothing;
            self.times.fail();
            let error = reply::error(&format!(
                "ERR pmnet: it is not known what this client may do: the front could not ask Redis{}; the command was not \
                 executed",
                because(shared.why_users_are_unknown())
            ));
            return self.deny(error, facts, up, shared);
        }
        // It has one question at a time: that is its answer which is under way.
        if !matches!(self.rights.stage, Asking::Asked | Asking::New(_)) {
            self.rights.stage = stage;
        }
        Err(Later::Rights)
    }

    /// Whether its command has waited for an answer as long as it may.
    pub(in crate::client) fn rights_are_overdue(&self, shared: &Shared) -> bool {
        shared.now >= self.times.begun().saturating_add(shared.call_timeout)
    }
}

/// What Redis runs without looking at rights, or refuses whoever sends it.
fn is_free(verdict: &Verdict, arguments: &Arguments<'_>) -> bool {
    let free = |facts: &Facts| FREE.contains(&facts.name);
    verdict.facts.is_some_and(free) || !verdict.arity_fits(arguments)
}

/// Whether the command may check the rights of its user itself, beside Redis: a module can, and does where the keys that it reads are not
/// among its arguments.
fn may_look_at_user(facts: Option<&Facts>) -> bool {
    let names_all = |facts: &Facts| !facts.keys.is_empty() && !facts.has(OPAQUE);
    facts.is_some_and(|facts| facts.has(MODULE) && !names_all(facts))
}

/// The error for a command that does more than its arguments say, which the pmnet server would do with its own rights.
fn runs_others_code(verdict: &Verdict, arguments: &Arguments<'_>) -> Option<Bytes> {
    let facts = verdict.facts;
    if matches!(verdict.action, Action::Refuse(_)) {
        // Nobody may run it, which is the better error.
        return None;
    }
    if facts.is_none() || (may_look_at_user(facts) && !verdict.is_named()) {
        return Some(reply::error(&format!(
            "ERR pmnet: the front has not heard of {} yet, and runs it only for a user that may do everything (~* &* +@all): \
             Redis may have it from a module that was loaded a moment ago; the command was not executed; try again in 3 seconds, \
             when the front has asked Redis for its commands",
            shown(arguments)
        )));
    }
    if may_look_at_user(facts) {
        return Some(reply::error(&format!(
            "ERR pmnet: {} is possible in a MULTI only for a user that may do everything (~* &* +@all): it may check the rights \
             of its user, and in a MULTI it would see those of the pmnet server",
            shown(arguments)
        )));
    }
    runs_code(facts).then(|| {
        reply::error(&format!(
            "ERR pmnet: {} is possible only for a user that may do everything (~* &* +@all): the rights of other users \
             cannot be checked for what its code does",
            shown(arguments)
        ))
    })
}

/// Redis's error for a SORT that reads other keys than its own, if it does, and its user may not.
fn reads_others(facts: Option<&Facts>, arguments: &Arguments<'_>) -> Option<Bytes> {
    let option = facts
        .filter(|facts| matches!(facts.name, "SORT" | "SORT_RO"))
        .and_then(|_| sort_options(arguments).others)?;
    Some(reply::error(&format!(
        "ERR {option} option of SORT denied due to insufficient ACL permissions."
    )))
}

fn because(trouble: &str) -> String {
    if trouble.is_empty() {
        String::new()
    } else {
        format!(" ({trouble})")
    }
}
