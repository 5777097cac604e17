//! The checks (gates) that each command passes before it is carried out.
//!
//! A gate lets a command continue, answers it, or makes it wait. A command that waits stays in the input and starts at
//! the first gate again. So a gate that makes a command wait must not have changed any state on which the gates depend.

use pmnet_resp::reply;

use super::Connection;
use super::back::pack::{Company, Kind, Part};
use super::command::Command;
use super::context::{Env, Later};
use super::errors::arity_error;
use super::mode::Mode;
use super::rights::admit::{Admission, Applicant, REMOTE};
use super::transaction::{Handled, Own, Queuer};
use crate::table::{Action, Facts, Local, MODULE, Pass};

/// Why a command does not continue.
#[derive(Debug)]
pub(super) enum Stop {
    /// The command has its reply, or has been sent.
    Answered,
    /// The command waits.
    Wait(Later),
}

impl From<Later> for Stop {
    fn from(later: Later) -> Stop {
        Stop::Wait(later)
    }
}

impl Connection {
    /// Passes a command through all gates, in their order.
    ///
    /// # Errors
    /// [`Stop`]: the command must not be carried out now.
    pub(super) fn pass_gates(
        &mut self,
        command: &Command<'_>,
        env: &mut Env<'_>,
    ) -> Result<(), Stop> {
        // The first gate: a browser gets no answer, whatever its rights are.
        self.close_http(command)?;
        // This gate precedes all work for the command, so that a client without the right to a command learns nothing
        // and delays no other client.
        self.look_at_rights(command, env)?;
        // This gate follows the check of rights, as in Redis: during a pause, too, a client without rights gets its
        // error. The gate of the pause precedes all gates that change something, because the state may be different
        // after the pause.
        self.wait_in_pause(command, env)?;
        // This gate follows the pause, because a script may have ended during the pause. The gate for a busy Redis
        // precedes all gates that ask Redis about the command.
        self.refuse_while_busy(command, env)?;
        // SCRIPT KILL is the only command that a busy Redis executes, so its gate follows the gate for a busy Redis.
        // The gate of SCRIPT KILL precedes the gate of the modes, because a client that waits may send SCRIPT KILL,
        // too.
        self.kill_script(command, env)?;
        // This gate precedes all reads: a key must be registered before its value is read.
        self.register_keys(command, env)?;
        // On the client's own connection, Redis itself handles MULTI and wrong numbers of arguments.
        self.pass_by_mode(command, env)?;
        // The transaction checks the number of arguments itself, because a wrong number makes the transaction
        // fail.
        self.queue_in_multi(command, env)?;
        // The last gate, as in Redis: errors of the earlier gates come first.
        self.look_at_arity(command, env)
    }

    /// Closes the connection of a web page that makes a browser connect to the front. Like Redis, the front
    /// sends no answer.
    fn close_http(&mut self, command: &Command<'_>) -> Result<(), Stop> {
        let is = |name| command.arguments.is(0, name);
        if !is("POST") && !is("HOST:") {
            return Ok(());
        }
        tracing::warn!(
            client = self.face.peer,
            "PM3308 closing: HTTP request, possibly an attack through a browser"
        );
        self.back.abandon(&mut self.face);
        Err(Stop::Answered)
    }

    /// Checks the rights of the client's user.
    fn look_at_rights(&mut self, command: &Command<'_>, env: &mut Env<'_>) -> Result<(), Stop> {
        let verdict = &command.verdict;
        // The command may belong to a module that was loaded later, so the store is asked for its commands
        // again.
        let may_have_come = |facts: &Facts| facts.has(MODULE) && !verdict.is_named();
        if verdict.facts.is_none_or(may_have_come) {
            self.face.wishes.learn_commands();
        }
        let applicant = Applicant {
            command,
            mode: &mut self.face.mode,
            passing: &mut self.back.passing,
            selected: self.face.settings.selected,
        };
        match self.rights.admit(applicant, env.shared) {
            Admission::Admitted => return Ok(()),
            Admission::Denied(error) => self.deny(error, verdict.facts, env)?,
            Admission::Awaits(asking) => self.await_answer(asking, verdict.facts, env)?,
            Admission::FailsWhenRun(error) => match self.face.mode.transaction() {
                Some(queue) => {
                    let queued = queue.add_own(Own::Reply(error));
                    self.reply(queued);
                }
                None => self.deny(error, verdict.facts, env)?,
            },
            Admission::Answered(answer) => match self.face.mode.transaction() {
                Some(queue) => {
                    let queued = queue.add_own(Own::Reply(answer));
                    self.reply(queued);
                }
                None => {
                    self.submit_all(env)?;
                    self.reply(answer);
                }
            },
            Admission::Remote => {
                self.submit_all(env)?;
                self.reply(reply::error(REMOTE));
                self.face.end.cut_off();
            }
            Admission::Gone => {
                tracing::debug!(client = self.face.peer, "closing: its user is deleted");
                self.back.abandon(&mut self.face);
            }
        }
        Err(Stop::Answered)
    }

    /// Makes a command wait during CLIENT PAUSE. A command with a wrong number of arguments does not wait: it
    /// gets its error at once.
    fn wait_in_pause(&mut self, command: &Command<'_>, env: &mut Env<'_>) -> Result<(), Stop> {
        let Command {
            arguments, verdict, ..
        } = command;
        if !verdict.arity_fits(arguments) {
            return Ok(());
        }
        let (pause, now) = (&env.shared.pause, env.shared.now);
        let paused = pause.holds(verdict, &self.face.mode, now);
        self.face.pending.hold.set_paused(paused);
        if !paused {
            return Ok(());
        }
        // The time of the client's later commands begins when this command continues.
        self.face.pending.times.make_way();
        // The client's earlier commands do not wait for the end of the pause.
        self.submit_all(env)?;
        Err(Later::Paused.into())
    }

    /// Refuses a command that Redis would not execute, because Redis is running a long script.
    fn refuse_while_busy(&mut self, command: &Command<'_>, env: &mut Env<'_>) -> Result<(), Stop> {
        let (busy, now) = (&env.shared.busy, env.shared.now);
        let (mode, passing) = (&mut self.face.mode, &self.back.passing);
        let Some(error) = busy.holds_up(command, mode, passing, now) else {
            return Ok(());
        };
        self.deny(error, command.verdict.facts, env)?;
        Err(Stop::Answered)
    }

    /// Passes SCRIPT KILL to the store at once.
    fn kill_script(&mut self, command: &Command<'_>, env: &mut Env<'_>) -> Result<(), Stop> {
        let verdict = &command.verdict;
        let kills =
            verdict.action == Action::Pass(Pass::Kill) && verdict.arity_fits(command.arguments);
        let (mode, protocol) = (&self.face.mode, self.face.protocol());
        if !kills || !self.back.passing.may_kill(mode, protocol) {
            return Ok(());
        }
        self.submit_all(env)?;
        let passing = &mut self.back.passing;
        if let Err(error) = passing.start(&mut self.face, Pass::Kill, command) {
            self.reply(error);
        }
        Err(Stop::Answered)
    }

    /// Registers the keys of a command of a client with CLIENT TRACKING.
    fn register_keys(&mut self, command: &Command<'_>, env: &mut Env<'_>) -> Result<(), Stop> {
        if !self.tracks.on {
            return Ok(());
        }
        match self.tracks.track(command, &mut self.face, env.shared) {
            Ok(None) => Ok(()),
            Ok(Some(error)) => {
                self.submit_all(env)?;
                self.reply(error);
                Err(Stop::Answered)
            }
            Err(later) => {
                self.submit_all(env)?;
                Err(later.into())
            }
        }
    }

    /// Passes the commands of a client that watches or monitors, or that is subscribed with RESP2.
    fn pass_by_mode(&mut self, command: &Command<'_>, env: &mut Env<'_>) -> Result<(), Stop> {
        let (face, passing) = (&mut self.face, &mut self.back.passing);
        if !passing.takes_all(&face.mode, face.protocol()) {
            return Ok(());
        }
        let Command {
            arguments, verdict, ..
        } = command;
        self.submit_all(env)?;
        let (mode, action) = (&self.face.mode, verdict.action);
        if matches!(mode, Mode::Watching) && action == Action::Local(Local::Client) {
            match arity_error(verdict, arguments) {
                Some(error) => self.reply(error),
                None => self.client(command, env)?,
            }
        } else if mode.leaves_to_server(verdict) && arity_error(verdict, arguments).is_none() {
            let kind = match action {
                Action::Bypass {
                    read_only: true, ..
                } => Kind::Reads,
                _ => Kind::Writes,
            };
            let part = Part::of(command, kind, Company::Alone);
            self.back.pack(part, &mut self.face.context(env))?;
        } else if let Action::Local(local @ (Local::Quit | Local::Reset)) = action {
            self.local(local, command, env)?;
        } else if let Err(error) = self.back.passing.pass_command(&mut self.face, command) {
            self.face.mode.fail();
            self.reply(error);
        }
        Err(Stop::Answered)
    }

    /// Queues a command between a MULTI that the front answered and its EXEC.
    fn queue_in_multi(&mut self, command: &Command<'_>, env: &mut Env<'_>) -> Result<(), Stop> {
        let Some(queue) = self.face.mode.transaction() else {
            return Ok(());
        };
        let by = Queuer {
            selected: self.face.settings.selected,
            passing: &self.back.passing,
            shared: env.shared,
        };
        match queue.queue(command, by) {
            Handled::Reply(queued) => self.reply(queued),
            Handled::Ended(error) => {
                self.face.mode = Mode::Ordinary;
                self.back.passing.unwatch();
                self.reply(error);
            }
            Handled::Runs(local) => {
                if matches!(local, Local::Quit | Local::Reset) {
                    self.submit_all(env)?;
                }
                self.local(local, command, env)?;
            }
            Handled::Asks(question, purpose) => {
                self.back
                    .ask(question, purpose, &mut self.face.context(env))?;
            }
        }
        Err(Stop::Answered)
    }

    /// Checks the number of arguments. A command that pmnet refuses is refused with any number of arguments.
    fn look_at_arity(&mut self, command: &Command<'_>, env: &mut Env<'_>) -> Result<(), Stop> {
        let Command {
            arguments, verdict, ..
        } = command;
        if matches!(verdict.action, Action::Refuse(_)) {
            return Ok(());
        }
        let Some(error) = arity_error(verdict, arguments) else {
            return Ok(());
        };
        self.back.make_room_for_reply(&mut self.face.context(env))?;
        self.reply(error);
        Err(Stop::Answered)
    }
}
