//! The gates that each command passes before it is carried out.
//!
//! A gate lets a command go on, has answered it, or makes it wait. A command that waits stays in the input, and comes to the first
//! gate again; so a gate that makes it wait has changed nothing that counts.

use pmnet_resp::Arguments;

use super::back::pack::{Company, Kind};
use super::{Connection, Later, Shared, arity_error};
use crate::table::{Action, Facts, Local, MODULE, Pass, Verdict};
use crate::upstream::Upstream;

/// A command that is being taken.
#[derive(Clone, Copy)]
pub(super) struct Command<'a> {
    pub(super) arguments: &'a Arguments<'a>,
    pub(super) frame: &'a [u8],
    pub(super) verdict: Verdict,
}

/// Why a command goes no further.
#[derive(Debug)]
pub(super) enum Stop {
    /// It has its answer, or is on its way.
    Answered,
    /// It waits.
    Wait(Later),
}

impl From<Later> for Stop {
    fn from(later: Later) -> Stop {
        Stop::Wait(later)
    }
}

impl Connection {
    /// All gates, in their order.
    ///
    /// # Errors
    /// [`Stop`]: the command is not to be carried out now.
    pub(super) fn pass_gates<U: Upstream>(
        &mut self,
        command: &Command<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Stop> {
        // First of all: a browser gets no answer, whatever its rights.
        self.close_http(command)?;
        // Before anything is done for the command: a client that may not run it learns nothing, and delays no other client.
        self.look_at_rights(command, up, shared)?;
        // After rights, as in Redis: a client without them has its error during a pause, too. Before all gates that do something, for
        // after the pause everything may be different.
        self.wait_in_pause(command, up, shared)?;
        // After the pause: the script may be over by then. Before all that asks Redis for the command.
        self.refuse_while_busy(command, up, shared)?;
        // The only command for a Redis that is busy, so after its gate. Before the modes: it helps a client that waits, too.
        self.kill_script(command, up, shared)?;
        // Before all that reads: a key is registered before its value is read.
        self.register_keys(command, up, shared)?;
        // Redis runs what comes on the client's own connection, MULTI and wrong numbers of arguments included.
        self.pass_by_mode(command, up, shared)?;
        // A transaction looks at the number of arguments by itself: a wrong one makes it fail.
        self.queue_in_multi(command, up, shared)?;
        // Last, as in Redis: errors that the gates before give come before this one.
        self.look_at_arity(command, up, shared)
    }

    /// A web page that makes a browser talk to us. Redis, too, closes without an answer.
    fn close_http(&mut self, command: &Command<'_>) -> Result<(), Stop> {
        let is = |name| command.arguments.is(0, name);
        if !is("POST") && !is("HOST:") {
            return Ok(());
        }
        tracing::warn!(
            client = self.peer,
            "closing: HTTP request, possibly an attack through a browser"
        );
        self.abandon();
        Err(Stop::Answered)
    }

    /// Checks the rights of the client's user.
    fn look_at_rights<U: Upstream>(
        &mut self,
        command: &Command<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Stop> {
        let verdict = &command.verdict;
        // Of a module that was loaded since, or of none: the store is asked again, now and then.
        let may_have_come = |facts: &Facts| facts.has(MODULE) && !verdict.is_named();
        if verdict.facts.is_none_or(may_have_come) {
            self.wishes.learn_commands();
        }
        if self.admit(verdict, command.arguments, up, shared)? {
            Ok(())
        } else {
            Err(Stop::Answered)
        }
    }

    /// CLIENT PAUSE. An error about the number of arguments does not wait.
    fn wait_in_pause<U: Upstream>(
        &mut self,
        command: &Command<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Stop> {
        if !command.verdict.arity_fits(command.arguments) {
            return Ok(());
        }
        let pause = shared.pause;
        let waits = self.wait_for_pause(&command.verdict, &pause, shared.now);
        // The commands before it do not wait.
        Ok(waits.or_else(|later| self.flush_pack(up, shared).and(Err(later)))?)
    }

    /// Redis runs a long script, and would not execute the command.
    fn refuse_while_busy<U: Upstream>(
        &mut self,
        command: &Command<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Stop> {
        let Some(busy) = self.held_up_by_script(&command.verdict, command.arguments, shared) else {
            return Ok(());
        };
        self.deny(busy, command.verdict.facts, up, shared)?;
        Err(Stop::Answered)
    }

    /// SCRIPT KILL.
    fn kill_script<U: Upstream>(
        &mut self,
        command: &Command<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Stop> {
        let Command {
            arguments,
            frame,
            verdict,
        } = command;
        let kills = verdict.action == Action::Pass(Pass::Kill) && verdict.arity_fits(arguments);
        if !kills || !self.may_kill() {
            return Ok(());
        }
        self.flush_pack(up, shared)?;
        self.start_passage(Pass::Kill, verdict.facts, arguments, frame);
        Err(Stop::Answered)
    }

    /// CLIENT TRACKING.
    fn register_keys<U: Upstream>(
        &mut self,
        command: &Command<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Stop> {
        if self.tracks.on && self.track(&command.verdict, command.arguments, up, shared)? {
            return Err(Stop::Answered);
        }
        Ok(())
    }

    /// A client that watches, monitors, or (RESP2) is subscribed.
    fn pass_by_mode<U: Upstream>(
        &mut self,
        command: &Command<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Stop> {
        if !self.is_passed_on() {
            return Ok(());
        }
        let Command {
            arguments,
            frame,
            verdict,
        } = command;
        self.flush_pack(up, shared)?;
        if self.mode.watches()
            && !self.mode.passed_multi()
            && matches!(verdict.action, Action::Local(Local::Client))
        {
            match arity_error(verdict, arguments) {
                Some(error) => self.reply(error),
                None => self.client(verdict.sub, arguments, up, shared)?,
            }
        } else if self.goes_by_server_watching(verdict) && arity_error(verdict, arguments).is_none()
        {
            let kind = match verdict.action {
                Action::Bypass {
                    read_only: true, ..
                } => Kind::Reads,
                _ => Kind::Writes,
            };
            self.pack_bypass(command, kind, Company::Alone, up, shared)?;
        } else {
            self.pass_command(arguments, frame, verdict, &shared.users)?;
        }
        Err(Stop::Answered)
    }

    /// MULTI was answered here.
    fn queue_in_multi<U: Upstream>(
        &mut self,
        command: &Command<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Stop> {
        if self.mode.transaction().is_none() {
            return Ok(());
        }
        self.queue_command(command, up, shared)?;
        Err(Stop::Answered)
    }

    /// The number of arguments. A command that is refused is so with any.
    fn look_at_arity<U: Upstream>(
        &mut self,
        command: &Command<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Stop> {
        let Command {
            arguments, verdict, ..
        } = command;
        if matches!(verdict.action, Action::Refuse(_)) {
            return Ok(());
        }
        let Some(error) = arity_error(verdict, arguments) else {
            return Ok(());
        };
        self.make_room_for_reply(up, shared)?;
        self.reply(error);
        Err(Stop::Answered)
    }
}
