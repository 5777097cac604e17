//! Decides by the rights of a client's user whether a command is run, before the command is examined further.
//!
//! This module sends no reply: [`Admission`] tells the caller what to do.

use bytes::Bytes;
use pmnet_resp::{Arguments, Parser, Status, reply};

use super::{Asking, Rights, Standing};
use crate::client::Shared;
use crate::client::back::passing::Passing;
use crate::client::busy::runs_code;
use crate::client::command::Command;
use crate::client::errors::{shown, unknown_command, unknown_subcommand};
use crate::client::mode::Mode;
use crate::client::settings::Selected;
use crate::client::transaction::{not_allowed_any_more, not_in_multi};
use crate::limits::REQUESTS;
use crate::table::{Action, Facts, Local, MODULE, OPAQUE, Pass, Sub, Verdict, sort_options};
use crate::users::{Access, Reads, Ruling};

const NOAUTH: &str = "NOAUTH Authentication required.";
/// The error for a client whose user cannot be used from the client's machine.
pub(in crate::client) const REMOTE: &str = "DENIED pmnet: this user needs no password, so it can be used from the front's own machine only. Give it a \
                      password in Redis (ACL SETUSER), or start the front with --requirepass-file or --anyone-may-connect";
/// Commands that need no rights, not even a login.
const FREE: [&str; 4] = ["AUTH", "HELLO", "QUIT", "RESET"];

/// The decision about a command, by the rights of its client's user.
#[derive(Debug)]
pub(in crate::client) enum Admission {
    /// The command is carried out.
    Admitted,
    /// The command is refused with this error.
    Denied(Bytes),
    /// Redis would accept the command, run the command later, and then answer with this error.
    FailsWhenRun(Bytes),
    /// The front answers the command with this reply.
    Answered(Bytes),
    /// The command waits for an answer of Redis.
    Awaits(Asking),
    /// The front closes the connection after this command, because the client's user cannot be used from this machine.
    Remote,
    /// The client's user is deleted: the connection ends without an answer.
    Gone,
}

/// A command, and the state of the client that its admission depends on.
pub(in crate::client) struct Applicant<'a> {
    pub(in crate::client) command: &'a Command<'a>,
    pub(in crate::client) mode: &'a mut Mode,
    pub(in crate::client) passing: &'a mut Passing,
    pub(in crate::client) selected: Selected,
}

impl Applicant<'_> {
    fn queues(&mut self) -> bool {
        self.mode.transaction().is_some()
    }

    /// Whether Redis checks the rights for this command, because it runs on a connection of the client's own.
    fn is_looked_at_by_redis(&self) -> bool {
        let verdict = &self.command.verdict;
        // The front answers CLIENT, even while keys are watched.
        let own = self.mode.watches() && matches!(verdict.action, Action::Local(Local::Client));
        let passed = self.passing.takes_all(self.mode, self.selected.protocol);
        passed && !own && !self.mode.leaves_to_server(verdict)
    }
}

impl Rights {
    /// Decides whether the client may run this command.
    pub(in crate::client) fn admit(
        &mut self,
        mut applicant: Applicant<'_>,
        shared: &mut Shared,
    ) -> Admission {
        if matches!(shared.users.access, Access::Anyone) || applicant.is_looked_at_by_redis() {
            return Admission::Admitted;
        }
        let Command {
            arguments, verdict, ..
        } = applicant.command;
        if let Action::Pass(_) = verdict.action {
            let acts_as = self.acts_as(&shared.users, shared.store.as_ref());
            applicant.passing.set_acts_as(acts_as);
        }
        match self.standing(shared) {
            Standing::All { changed } => {
                self.forget_ruling();
                self.admit_in_time(changed, None, &mut applicant, shared)
            }
            _ if is_free(verdict, arguments) => Admission::Admitted,
            // The error for a command that is not possible in MULTI comes first.
            _ if applicant.queues() && not_in_multi(verdict).is_some() => Admission::Admitted,
            Standing::Some { at } => self.rule(at, &mut applicant, shared),
            Standing::NotLoggedIn => Admission::Denied(reply::error(NOAUTH)),
            Standing::Remote => Admission::Remote,
            Standing::Gone => Admission::Gone,
            // The command runs on a connection that is logged in as the client. The connection checks the rights even
            // while Redis is busy and gives no answer about users.
            Standing::Unknown
                if verdict.action == Action::Pass(Pass::Kill)
                    && self.user.is_some()
                    && shared.users.is_known() =>
            {
                Admission::Admitted
            }
            Standing::Unknown => Admission::Awaits(Asking::List),
        }
    }

    /// Returns the verdict for a command of this client. A command of a module may check the rights of the connection's
    /// user. So such a command goes to Redis on a connection of that user, unless the user may do everything. A command
    /// that the store has not named keeps its action. A command that the store has not named could change keys that are
    /// not among its arguments, and on a connection of the user nothing would protect pmnet's records.
    pub(in crate::client) fn as_its_user(
        &mut self,
        mut verdict: Verdict,
        mode: &Mode,
        shared: &mut Shared,
    ) -> Verdict {
        let may_look = matches!(verdict.action, Action::Bypass { .. })
            && verdict.is_named()
            && may_look_at_user(verdict.facts)
            && matches!(mode, Mode::Ordinary);
        if may_look && let Standing::Some { .. } = self.standing(shared) {
            verdict.action = Action::Pass(Pass::User);
        }
        verdict
    }

    /// Admits a command that the user may run. `changed`: the time when the user's rules last changed. `at`: the user's
    /// place in the list, if the user may not do everything.
    fn admit_in_time(
        &mut self,
        changed: u64,
        at: Option<usize>,
        applicant: &mut Applicant<'_>,
        shared: &mut Shared,
    ) -> Admission {
        let Command {
            arguments, verdict, ..
        } = applicant.command;
        let queues = applicant.queues();
        match verdict.facts.map(|facts| facts.name) {
            Some("MULTI") if !queues => self.multi = changed,
            Some("EXEC") if queues && self.multi != changed => {
                if let Some(at) = at
                    && let Some(stop) = self.check_queue(at, applicant, shared)
                {
                    return stop;
                }
                self.multi = changed;
            }
            // The store would answer with the user of the pmnet server.
            Some("ACL") if arguments.is(1, "WHOAMI") && arguments.len() == 2 => {
                return Admission::Answered(reply::bulk(self.name()));
            }
            _ => {}
        }
        Admission::Admitted
    }

    /// Decides whether the user at place `at` of the list may run the command.
    fn rule(&mut self, at: usize, applicant: &mut Applicant<'_>, shared: &mut Shared) -> Admission {
        let Command {
            arguments, verdict, ..
        } = applicant.command;
        let facts = verdict.facts;
        let queues = applicant.queues();
        // The database in which the command runs; inside a transaction, a SELECT may precede it.
        let queue = applicant.mode.transaction();
        let selected = queue.as_ref().and_then(|queue| queue.database());
        let is_checked = queue.is_some_and(|queue| queue.is_rechecked());
        let database = selected.unwrap_or(applicant.selected.database);
        let Some(user) = shared.users.user(at) else {
            return Admission::Awaits(Asking::List);
        };
        let (changed, reads) = (user.changed, user.reads());
        if matches!(verdict.action, Action::Pass(_)) && !queues {
            return Admission::Admitted;
        }
        let ruling = if facts.is_some_and(|facts| facts.name == "EXEC") && is_checked {
            // EXEC itself was allowed before. Now the commands of its queue are being checked.
            Ruling::Allowed
        } else if let Some(ruling) = self.take_ruling() {
            ruling
        } else if let Err((major, minor)) = shared.users.can_be_asked() {
            return Admission::Denied(reply::error(&format!(
                "ERR pmnet: Redis {major}.{minor} does not say what a user may do: with it only users that may do everything \
                 (~* &* +@all) can use the front; Redis 7.0 and newer say it"
            )));
        } else if let Some(about) = user.unknown(facts, arguments, database, self.asks_others) {
            return Admission::Awaits(Asking::New(about));
        } else {
            Ruling::Allowed
        };
        if ruling == Ruling::Allowed
            && reads == Reads::Some
            && !self.asks_others
            && reads_others(facts, arguments).is_some()
        {
            // Like Redis, the front checks the keys that are arguments of the SORT first, and the keys in BY and GET
            // while the command runs.
            self.asks_others = true;
            return self.rule(at, applicant, shared);
        }
        match ruling {
            Ruling::Denied(error) if facts.is_none() && error.starts_with(b"-ERR Command ") => {
                Admission::Denied(unknown_command(arguments))
            }
            Ruling::Denied(error)
                if matches!(verdict.sub, Sub::Unknown) && error.starts_with(b"-ERR Command ") =>
            {
                Admission::Denied(unknown_subcommand(arguments))
            }
            Ruling::Denied(error) => {
                let of_options = reads_others(facts, arguments).filter(|_| self.asks_others);
                of_options.map_or(Admission::Denied(error), Admission::FailsWhenRun)
            }
            Ruling::Allowed => {
                let runs = runs_others_code(verdict, arguments);
                let reads = reads_others(facts, arguments).filter(|_| reads == Reads::None);
                if (runs.is_some() || reads.is_some()) && self.needs_newer_list(&mut shared.users) {
                    return Admission::Awaits(Asking::List);
                }
                if let Some(error) = runs {
                    return Admission::Denied(error);
                }
                if let Some(error) = reads {
                    return Admission::FailsWhenRun(error);
                }
                self.admit_in_time(changed, Some(at), applicant, shared)
            }
        }
    }

    /// Checks the queued commands again, as Redis does at EXEC. Returns `None` if all queued commands have been
    /// checked.
    fn check_queue(
        &mut self,
        at: usize,
        applicant: &mut Applicant<'_>,
        shared: &mut Shared,
    ) -> Option<Admission> {
        let database = applicant.selected.database;
        let queue = applicant.mode.transaction()?;
        if !queue.recheck() {
            return None;
        }
        while let Some(frame) = queue.unchecked() {
            let mut parser = Parser::new(REQUESTS);
            let Ok(Status::Complete) = parser.poll(&frame) else {
                let error = reply::error("ERR pmnet: a queued command cannot be read");
                return Some(Admission::Denied(error));
            };
            let arguments = parser.arguments(&frame);
            let verdict = shared.table.verdict(&arguments);
            let database = queue.checked_database().unwrap_or(database);
            let Some(user) = shared.users.user(at) else {
                return Some(Admission::Awaits(Asking::List));
            };
            let reads = user.reads();
            let others = reads_others(verdict.facts, &arguments);
            let asks_others = others.is_some() && reads == Reads::Some;
            // The answer to the last question is used first, because it may be in the cache as well.
            let ruling = if let Some(ruling) = self.take_ruling() {
                ruling
            } else if is_free(&verdict, &arguments) {
                Ruling::Allowed
            } else if let Some(about) =
                user.unknown(verdict.facts, &arguments, database, asks_others)
            {
                return Some(Admission::Awaits(Asking::New(about)));
            } else {
                Ruling::Allowed
            };
            let by_list = runs_others_code(&verdict, &arguments)
                .or(others.clone().filter(|_| reads == Reads::None));
            if ruling == Ruling::Allowed
                && by_list.is_some()
                && self.needs_newer_list(&mut shared.users)
            {
                return Some(Admission::Awaits(Asking::List));
            }
            let denied = match ruling {
                Ruling::Allowed => by_list,
                Ruling::Denied(_) if asks_others => others,
                Ruling::Denied(error) => Some(not_allowed_any_more(&error)),
            };
            queue.checked(frame.len(), denied);
        }
        queue.drop_denied();
        None
    }

    /// Returns the error for a command whose deadline passes before Redis has answered.
    pub(in crate::client) fn overdue(shared: &Shared) -> Bytes {
        reply::error(&format!(
            "ERR pmnet: it is not known what this client may do: the front could not ask Redis{}; the command was not \
             executed",
            because(shared.why_users_are_unknown())
        ))
    }
}

/// Whether the command needs no rights: Redis runs the command without checking rights, or refuses it to every client.
fn is_free(verdict: &Verdict, arguments: &Arguments<'_>) -> bool {
    let free = |facts: &Facts| FREE.contains(&facts.name);
    verdict.facts.is_some_and(free) || !verdict.arity_fits(arguments)
}

/// Whether the command may check its user itself. Only commands of modules whose keys are not among the arguments may
/// check the user.
fn may_look_at_user(facts: Option<&Facts>) -> bool {
    let names_all = |facts: &Facts| !facts.keys.is_empty() && !facts.has(OPAQUE);
    facts.is_some_and(|facts| facts.has(MODULE) && !names_all(facts))
}

/// Returns the error for a command that can do more than its arguments say. The pmnet server would run the command with
/// the server's own rights.
fn runs_others_code(verdict: &Verdict, arguments: &Arguments<'_>) -> Option<Bytes> {
    let facts = verdict.facts;
    if matches!(verdict.action, Action::Refuse(_)) {
        // The command is refused to every client. For such a command, `carry_out` gives an error that says more.
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

/// Returns Redis's error for a SORT that reads keys in BY or GET without the right to do so.
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
