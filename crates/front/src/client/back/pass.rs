//! Commands that pass through to the store on the client's own connection.
//!
//! Purpose: WATCH, blocking commands, WAIT, subscriptions and MONITOR depend on the state of a real
//! connection, and so do commands of newer servers and modules that keep state in a connection: a client that has used one of these sends
//! all commands that only the store knows on its own connection. Before each such command a barrier travels through the log, so that everything
//! acknowledged before is applied when the store sees the command (protocol.md §2 rule 8). Only what
//! cannot depend on that goes without one: commands between MULTI and EXEC, and those of a RESP2
//! client that is subscribed.
//! Invariants: one command at a time; its reply has its place in the order of replies; when the
//! connection to the store is lost with state on it (a watch, a subscription), so is the client's,
//! as it would be with Redis. How a command gets to the store: [`super::passage`].

use bytes::Bytes;
use pmnet_wire::command::Protocol;

use super::confirm::may_need;
use super::direct::Direct;
use super::passage::{Passage, Stage};
use super::passing::Passing;
use crate::client::face::Face;
use crate::client::gates::Command;
use crate::client::guard::{names_record, objection};
use crate::client::local::parse_database;
use crate::client::mode::Mode;
use crate::client::replies::Slot;
use crate::client::transaction::{unknown_command, unknown_subcommand};
use crate::client::{arity_error, refusal, shown};
use crate::table::{Action, Local, MODULE, Pass, READONLY, Sub, Verdict};
use pmnet_resp::{Arguments, write_command};

/// What a passed command does to the state of the connection when it succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Effect {
    None,
    Watch,
    Unwatch,
    Multi,
    /// EXEC or DISCARD.
    End,
    Select(u32),
    Monitor,
    /// The replies end with the sentinel's.
    Subscribe,
    /// HELLO 2 of a client that is subscribed.
    Protocol,
    /// The store may keep state for the connection.
    State,
}

/// A command that begins to pass.
#[derive(Clone, Copy)]
struct Begins {
    effect: Effect,
    kind: Option<Pass>,
    marks: Marks,
}

/// Whether a command may change the store, and so passes under the front's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marks {
    No,
    Yes,
}

impl Marks {
    fn of(changes: bool) -> Marks {
        if changes { Marks::Yes } else { Marks::No }
    }
}

impl Passing {
    /// Whether all that its client sends runs on the client's own connection, where Redis looks.
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

    /// The verdict on a command of this client. If the store keeps a state for its connection that pmnet does not know, commands of
    /// modules run on that connection.
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

    /// Begins to pass a command; everything after it waits.
    ///
    /// # Errors
    /// The reply to a command that may not pass.
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
            Pass::Blocking | Pass::Wait | Pass::Kill | Pass::User => Effect::None,
            Pass::Subscribe => Effect::Subscribe,
            Pass::Monitor => Effect::Monitor,
            Pass::Watch => Effect::Watch,
            Pass::State => Effect::State,
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
        let sentinel = if effect == Effect::Subscribe {
            self.new_sentinel(face.id)
        } else {
            Vec::new()
        };
        // Inside a passed MULTI commands are only queued; their barrier is that of EXEC.
        let queued = face.mode.passed_multi() && effect != Effect::End;
        // A RESP2 client that is subscribed writes nothing that a barrier could wait for: its last
        // write came before its first subscription, which had one.
        let subscribed = effect == Effect::Subscribe
            && face.settings.selected.protocol == Protocol::Resp2
            && self.subscriptions() > 0;
        let failed = matches!(face.mode, Mode::WatchingMulti { failed: true });
        face.pending.replies.slots.push_back(Slot::Passage);
        self.passage = Some(Passage {
            effect,
            stage: Stage::Address(None),
            begun: face.pending.times.begun(),
            marks: marks == Marks::Yes,
            // Nothing blocks inside MULTI.
            blocks: matches!(kind, Some(Pass::Blocking | Pass::Wait)) && !face.mode.passed_multi(),
            kills: kind == Some(Pass::Kill) && !face.mode.passed_multi(),
            identified: false,
            name: shown(arguments),
            frame: frame.to_vec(),
            // A subscriber, who may not wait, may not select either.
            fresh: kind == Some(Pass::Wait) && effect != Effect::Subscribe,
            aborted: effect == Effect::End && failed && arguments.is(0, "EXEC"),
            sentinel,
            confirms: (may_need(effect, kind) && !queued).then(String::new),
            answer: None,
            handed_on: false,
            waits: None,
        });
        if queued || subscribed || effect == Effect::Protocol {
            self.send_passed(face);
        }
    }

    /// A subscriber goes back to RESP2: so does its connection to the store, and messages from then on.
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

    /// Which change of this client's subscriptions is under way, counted since it came.
    pub(in crate::client) fn changes_subscriptions(&self) -> Option<u64> {
        let passage = self.passage.as_ref()?;
        let changes = passage.effect == Effect::Subscribe && passage.name != "PING";
        changes.then(|| self.sentinels())
    }

    /// Passes a command while its client watches, monitors, or (RESP2) is subscribed.
    ///
    /// # Errors
    /// The reply to a command that may not pass; a transaction fails with it.
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
            // A command that the front has not heard of could do anything.
            _ if face.mode.watches() && verdict.facts.is_none() => {
                return Err(unknown_command(arguments));
            }
            // Redis itself runs nothing then but what has to do with subscriptions.
            _ if !face.mode.watches() => Effect::Subscribe,
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
            // EXEC with arguments ends the transaction, too.
            Action::Local(Local::Exec) if face.mode.passed_multi() => Effect::End,
            Action::Local(Local::Discard) if alone && face.mode.passed_multi() => Effect::End,
            Action::Local(Local::Unwatch) if alone && !face.mode.passed_multi() => Effect::Unwatch,
            Action::Pass(Pass::State) => Effect::State,
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

    /// Whether this client waits for something that may never come.
    pub(in crate::client) fn endless(&self, mode: &Mode) -> bool {
        let waits = |passage: &Passage| {
            passage.blocks || matches!(passage.effect, Effect::Subscribe | Effect::Monitor)
        };
        self.passage.as_ref().is_some_and(waits) || mode.monitors() || self.subscriptions() > 0
    }
}

impl Passage {
    /// The store has answered the command with `reply`.
    pub(super) fn apply(&self, reply: &[u8], direct: &mut Direct, face: &mut Face) {
        let ok = reply.starts_with(b"+");
        match self.effect {
            Effect::Watch if ok => face.mode = Mode::Watching,
            Effect::Unwatch if ok => face.mode = Mode::Ordinary,
            Effect::Multi if ok => face.mode = Mode::WatchingMulti { failed: false },
            // EXEC always ends the transaction and the watch. A DISCARD that Redis refuses, because of its user's rights, does not.
            Effect::End if ok || self.name == "EXEC" => face.mode = Mode::Ordinary,
            Effect::Select(database) if ok => {
                face.settings.selected.database = database;
                direct.database = database;
            }
            Effect::Monitor if ok => face.mode = Mode::Monitoring,
            Effect::State => direct.has_state |= !reply.starts_with(b"-"),
            Effect::Protocol if !reply.starts_with(b"-") => {
                face.settings.selected.protocol = Protocol::Resp2;
                direct.protocol = Protocol::Resp2;
            }
            _ => {}
        }
    }
}
