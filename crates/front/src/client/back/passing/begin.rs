//! How a command begins to pass: its expected effect, whether it needs the front's mark, and its place among
//! the replies.

use bytes::Bytes;
use pmnet_resp::{Arguments, write_command};
use pmnet_wire::command::Protocol;

use super::Passing;
use super::confirm::may_need;
use super::passage::{Confirmations, Effect, Marks, Passage, Stage};
use crate::client::command::Command;
use crate::client::errors::{arity_error, refusal, shown, unknown_command, unknown_subcommand};
use crate::client::face::Face;
use crate::client::guard::{names_record, objection};
use crate::client::mode::Mode;
use crate::client::replies::Slot;
use crate::client::settings::parse_database;
use crate::table::{Action, Local, MODULE, Pass, READONLY, Sub, Verdict};

/// Prefix of the command that marks the end of the replies to a subscription command. Redis does not know
/// this command, and sends the error for an unknown command to every client. A known command would need a
/// right, or would be refused to a subscriber.
const SENTINEL: &str = "pmnet-end";

/// Properties of a command that begins to pass.
struct Begins {
    effect: Effect,
    kind: Option<Pass>,
    marks: Marks,
}

impl Passing {
    /// Whether all commands of this client go to Redis on its own connection, where Redis checks rights.
    pub(in crate::client) fn takes_all(&self, mode: &Mode, protocol: Protocol) -> bool {
        mode.watches()
            || mode.monitors()
            || (self.subscriptions() > 0 && protocol == Protocol::Resp2)
    }

    /// Whether SCRIPT KILL of this client goes to the store at once, whatever the client waits for.
    pub(in crate::client) fn may_kill(&self, mode: &Mode, protocol: Protocol) -> bool {
        let subscribed = self.subscriptions() > 0 && protocol == Protocol::Resp2;
        !subscribed && !mode.queues() && !mode.monitors()
    }

    /// Returns the verdict on a command of this client. If the client's connection to the store may have
    /// state that pmnet does not know, commands of modules run on that connection.
    pub(in crate::client) fn on_its_connection(
        &self,
        mode: &Mode,
        mut verdict: Verdict,
    ) -> Verdict {
        if matches!(verdict.action, Action::Bypass { .. })
            && verdict.facts.is_some_and(|facts| facts.has(MODULE))
            && verdict.is_named()
            && matches!(*mode, Mode::Ordinary)
            && self.has_state()
        {
            verdict.action = Action::Pass(Pass::State);
        }
        verdict
    }

    /// Begins to pass a command. All later commands of the client wait.
    ///
    /// # Errors
    /// The reply to a command that must not pass.
    pub(in crate::client) fn start(
        &mut self,
        face: &mut Face,
        kind: Pass,
        command: &Command<'_>,
    ) -> Result<(), Bytes> {
        let arguments = command.arguments;
        let error = match kind {
            Pass::Blocking | Pass::Watch => names_record(arguments),
            Pass::State | Pass::User => objection(arguments),
            // Channels are not keys.
            Pass::Subscribe | Pass::Monitor | Pass::Wait | Pass::Kill => None,
        };
        if let Some(error) = error {
            return Err(error);
        }
        let effect = match kind {
            Pass::Blocking | Pass::Wait | Pass::User => Effect::None,
            Pass::Subscribe => self.with_sentinel(face.id),
            Pass::Monitor => Effect::Monitor,
            Pass::Watch => Effect::Watch,
            Pass::State => Effect::State,
            Pass::Kill => Effect::Kill,
        };
        let reads = command
            .verdict
            .facts
            .is_some_and(|facts| facts.has(READONLY));
        let writes = matches!(kind, Pass::Blocking | Pass::State | Pass::User) && !reads;
        let marks = Marks::of(kind == Pass::Watch || writes);
        let begins = Begins {
            effect,
            kind: Some(kind),
            marks,
        };
        self.begin(face, begins, arguments, command.frame);
        Ok(())
    }

    fn begin(&mut self, face: &mut Face, begins: Begins, arguments: &Arguments<'_>, frame: &[u8]) {
        let Begins {
            effect,
            kind,
            marks,
        } = begins;
        let (in_multi, subscribes) = (
            face.mode.passed_multi(),
            matches!(effect, Effect::Subscribe(_)),
        );
        // Inside a passed MULTI, Redis only queues the command. The barrier before EXEC covers all queued commands.
        let queued = in_multi && !matches!(effect, Effect::Exec { .. } | Effect::Discard);
        // A subscribed RESP2 client cannot write, so there is no write for which a barrier would wait. The client's
        // last write came before its first subscription, and the barrier of that subscription covered the write.
        let subscribed = subscribes
            && face.settings.selected.protocol == Protocol::Resp2
            && self.subscriptions() > 0;
        let goes_at_once = queued || subscribed || effect == Effect::Protocol;
        face.pending.replies.slots.push_back(Slot::Passage);
        self.passage = Some(Passage {
            stage: Stage::Address(None),
            begun: face.pending.times.begun(),
            marks,
            // No command blocks inside MULTI.
            blocks: matches!(kind, Some(Pass::Blocking | Pass::Wait)) && !in_multi,
            last_try: false,
            name: shown(arguments),
            frame: frame.to_vec(),
            // A subscriber may send neither WAIT nor SELECT.
            fresh: kind == Some(Pass::Wait) && !subscribes,
            confirm_run_id: (may_need(&effect, kind) && !queued).then(String::new),
            effect,
        });
        if goes_at_once {
            self.send_passed(face);
        }
    }

    /// Returns the effect of a command whose replies end with a sentinel. No other command of any client has
    /// the same sentinel.
    fn with_sentinel(&mut self, client: u64) -> Effect {
        self.sentinels += 1;
        Effect::Subscribe(Confirmations {
            sentinel: format!("{SENTINEL}-{client}-{}", self.sentinels).into_bytes(),
            handed_on: false,
        })
    }

    /// A subscriber changes to RESP2. Its connection to the store changes too, and later messages come in
    /// RESP2.
    pub(in crate::client) fn begin_resp2(&mut self, face: &mut Face, arguments: &Arguments<'_>) {
        let mut frame = Vec::new();
        write_command(&mut frame, &["HELLO", "2"]);
        let begins = Begins {
            effect: Effect::Protocol,
            kind: None,
            marks: Marks::No,
        };
        self.begin(face, begins, arguments, &frame);
    }

    /// Passes a command of a client that watches or monitors, or that is subscribed with RESP2.
    ///
    /// # Errors
    /// The reply to a command that must not pass. If the client is in a transaction, the transaction fails, too.
    pub(in crate::client) fn pass_command(
        &mut self,
        face: &mut Face,
        command: &Command<'_>,
    ) -> Result<(), Bytes> {
        let Command {
            arguments,
            frame,
            verdict,
        } = command;
        let alone = arguments.len() == 1;
        let effect = match verdict.action {
            _ if face.mode.monitors() => {
                return Err(refusal(arguments, "after MONITOR only QUIT and RESET are"));
            }
            Action::Refuse(why) => return Err(refusal(arguments, why)),
            // EXEC ends the transaction, however many arguments it has.
            action
                if face.mode.watches()
                    && action != Action::Local(Local::Exec)
                    && let Some(error) = arity_error(verdict, arguments) =>
            {
                return Err(error);
            }
            _ if let Some(error) = objection(arguments) => return Err(error),
            // A command that the front does not know could do anything.
            _ if face.mode.watches() && verdict.facts.is_none() => {
                return Err(unknown_command(arguments));
            }
            // For a client in this mode, Redis itself executes only commands about subscriptions.
            _ if !face.mode.watches() => self.with_sentinel(face.id),
            Action::Local(Local::Hello | Local::Auth)
            | Action::Pass(Pass::Subscribe | Pass::Monitor) => {
                return Err(refusal(
                    arguments,
                    "finish WATCH with EXEC, DISCARD or UNWATCH first",
                ));
            }
            Action::Local(Local::Client) if matches!(verdict.sub, Sub::Unknown) => {
                return Err(unknown_subcommand(arguments));
            }
            Action::Local(Local::Client) => {
                return Err(refusal(arguments, "it is not supported inside MULTI"));
            }
            Action::Local(Local::Select) if face.mode.passed_multi() => {
                return Err(refusal(arguments, "it is not supported inside MULTI"));
            }
            Action::Local(Local::Select) => {
                parse_database(arguments.get(1)).map_or(Effect::None, Effect::Select)
            }
            Action::Local(Local::Multi) if alone && !face.mode.passed_multi() => Effect::Multi,
            // EXEC ends the transaction even with arguments.
            Action::Local(Local::Exec) if face.mode.passed_multi() => Effect::Exec {
                aborts: matches!(face.mode, Mode::WatchingMulti { failed: true }),
            },
            Action::Local(Local::Discard) if alone && face.mode.passed_multi() => Effect::Discard,
            Action::Local(Local::Unwatch) if alone && !face.mode.passed_multi() => Effect::Unwatch,
            Action::Pass(Pass::State) => Effect::State,
            Action::Pass(Pass::Kill) if !face.mode.passed_multi() => Effect::Kill,
            _ => Effect::None,
        };
        let kind = match verdict.action {
            Action::Pass(kind) => Some(kind),
            _ => None,
        };
        let marks = Marks::of(face.mode.watches());
        let begins = Begins {
            effect,
            kind,
            marks,
        };
        self.begin(face, begins, arguments, frame);
        Ok(())
    }
}
