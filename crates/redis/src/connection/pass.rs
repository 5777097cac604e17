//! Commands that pass through to the store on the client's own connection.
//!
//! Purpose: WATCH, blocking commands, WAIT, subscriptions and MONITOR depend on the state of a real
//! connection. Before each such command a barrier travels through the log, so that everything
//! acknowledged before is applied when the store sees the command (protocol.md §2 rule 8).
//! Invariants: one command at a time; its reply has its place in the order of replies; when the
//! connection to the store is lost with state on it (a watch, a subscription), so is the client's,
//! as it would be with Redis.

use bytes::Bytes;
use pmnet_wire::command::{Form, Protocol, preamble, write_command};

use super::calls::{Slot, Submit, outcome_reply};
use super::direct::Direct;
use super::guard::{names_record, objection};
use super::local::parse_database;
use super::{Connection, Later, Shared, StoreAddress, refusal, shown};
use crate::parser::Arguments;
use crate::reply;
use crate::table::{Action, Local, Pass, Verdict};
use crate::upstream::{CallId, Outcome, Upstream};

/// Prefix of the PING argument that marks the end of the replies to a subscription command.
const SENTINEL: &str = "pmnet-end";

/// What a passed command does to the state of the connection when it succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Needs the store's address; asked for with this call.
    Address(Option<CallId>),
    /// Needs everything acknowledged to be applied; asked for with this call.
    Barrier(Option<CallId>),
    /// Sent to the store.
    Sent,
}

/// The command that is being passed.
pub(super) struct Passage {
    pub(super) effect: Effect,
    pub(super) stage: Stage,
    /// The command's name, for error texts.
    pub(super) name: String,
    pub(super) frame: Vec<u8>,
    /// Send SELECT first even if the database is right: WAIT counts what precedes the connection's
    /// last command.
    pub(super) fresh: bool,
    /// An EXEC that must abort: DISCARD is sent in its place.
    pub(super) aborted: bool,
    pub(super) sentinel: Vec<u8>,
    pub(super) replies: Vec<u8>,
}

impl Connection {
    /// Subscriptions that this client has.
    pub(super) fn subscriptions(&self) -> u64 {
        self.direct.as_ref().map_or(0, |direct| {
            direct.subscribed.saturating_add(direct.subscribed_sharded)
        })
    }

    /// Whether this client waits for something that may never come.
    pub(super) fn endless(&self) -> bool {
        let waits = self
            .passage
            .as_ref()
            .is_some_and(|passage| !self.watching && passage.effect != Effect::Watch);
        waits || self.monitoring || self.subscriptions() > 0
    }

    /// Begins to pass a command; everything after it waits.
    pub(super) fn start_passage(&mut self, kind: Pass, arguments: &Arguments<'_>, frame: &[u8]) {
        // Channels are not keys.
        if matches!(kind, Pass::Blocking | Pass::Watch)
            && let Some(error) = names_record(arguments)
        {
            return self.reply(error);
        }
        let effect = match kind {
            Pass::Blocking | Pass::Wait => Effect::None,
            Pass::Subscribe => Effect::Subscribe,
            Pass::Monitor => Effect::Monitor,
            Pass::Watch => Effect::Watch,
        };
        self.begin(effect, kind == Pass::Wait, arguments, frame);
    }

    fn begin(&mut self, effect: Effect, fresh: bool, arguments: &Arguments<'_>, frame: &[u8]) {
        let sentinel = if effect == Effect::Subscribe {
            self.sentinels += 1;
            format!("{SENTINEL}-{}-{}", self.id, self.sentinels).into_bytes()
        } else {
            Vec::new()
        };
        // Inside a passed MULTI commands are only queued; their barrier is that of EXEC.
        let queued = self.direct_multi && effect != Effect::End;
        self.slots.push_back(Slot::Passage);
        self.passage = Some(Passage {
            effect,
            stage: Stage::Address(None),
            name: shown(arguments),
            frame: frame.to_vec(),
            fresh,
            aborted: effect == Effect::End && self.direct_failed && arguments.is(0, "EXEC"),
            sentinel,
            replies: Vec::new(),
        });
        if queued {
            self.send_passed();
        }
    }

    /// A command while WATCHing, MONITORing, or (RESP2) subscribed.
    pub(super) fn pass_command(
        &mut self,
        arguments: &Arguments<'_>,
        frame: &[u8],
        verdict: &Verdict,
    ) -> Result<(), Later> {
        let alone = arguments.len() == 1;
        let effect = match verdict.action {
            Action::Local(Local::Quit) => {
                let answer = self.quit();
                self.reply(answer);
                return Ok(());
            }
            Action::Local(Local::Reset) => {
                let answer = self.reset();
                self.reply(answer);
                return Ok(());
            }
            _ if self.monitoring => {
                return self.refuse_passed(arguments, "after MONITOR only QUIT and RESET are");
            }
            Action::Refuse(why) => return self.refuse_passed(arguments, why),
            _ if let Some(error) = objection(arguments) => return self.fail_passed(error),
            // Redis itself runs nothing then but what has to do with subscriptions.
            _ if !self.watching => Effect::Subscribe,
            Action::Local(Local::Hello | Local::Auth)
            | Action::Pass(Pass::Subscribe | Pass::Monitor) => {
                return self.refuse_passed(
                    arguments,
                    "finish WATCH with EXEC, DISCARD or UNWATCH first",
                );
            }
            Action::Local(Local::Client) if self.direct_multi => {
                return self.refuse_passed(arguments, "it is not supported inside MULTI");
            }
            Action::Local(Local::Client) => {
                let answer = self.client(arguments);
                self.reply(answer);
                return Ok(());
            }
            Action::Local(Local::Select) if self.direct_multi => {
                return self.refuse_passed(arguments, "it is not supported inside MULTI");
            }
            Action::Local(Local::Select) => {
                parse_database(arguments.get(1)).map_or(Effect::None, Effect::Select)
            }
            Action::Local(Local::Multi) if alone && !self.direct_multi => Effect::Multi,
            // EXEC with arguments ends the transaction, too.
            Action::Local(Local::Exec) if self.direct_multi => Effect::End,
            Action::Local(Local::Discard) if alone && self.direct_multi => Effect::End,
            Action::Local(Local::Unwatch) if alone && !self.direct_multi => Effect::Unwatch,
            _ => Effect::None,
        };
        self.begin(effect, arguments.is(0, "WAIT"), arguments, frame);
        Ok(())
    }

    fn refuse_passed(&mut self, arguments: &Arguments<'_>, why: &str) -> Result<(), Later> {
        self.fail_passed(refusal(arguments, why))
    }

    /// Answers a command that is not passed with an error, which also fails a passed MULTI.
    fn fail_passed(&mut self, error: Bytes) -> Result<(), Later> {
        self.direct_failed |= self.direct_multi;
        self.reply(error);
        Ok(())
    }

    /// Gets the passed command on: address, barrier, and then to the store.
    pub(super) fn advance_passage<U: Upstream>(
        &mut self,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        if let Some(Passage {
            stage: stage @ Stage::Address(None),
            ..
        }) = &mut self.passage
        {
            if shared.store.is_some() {
                *stage = Stage::Barrier(None);
            } else {
                let call = self.ask(Form::StoreAddress, up, shared)?;
                self.set_stage(call.map(Stage::Address));
            }
        }
        if let Some(Passage {
            stage: Stage::Barrier(None),
            ..
        }) = &self.passage
        {
            if let (None, Some(store)) = (&self.direct, &shared.store) {
                // The front sees it and connects while the barrier is under way.
                self.direct = Some(Direct::new(store));
            }
            let call = self.ask(Form::Barrier, up, shared)?;
            self.set_stage(call.map(Stage::Barrier));
        }
        Ok(())
    }

    fn ask<U: Upstream>(
        &mut self,
        form: Form,
        up: &mut U,
        shared: &Shared,
    ) -> Result<Result<Option<CallId>, Bytes>, Later> {
        let payload = Bytes::from(preamble(form, Protocol::Resp2, 0).to_vec());
        Ok(self
            .submit(&payload, 0, Submit::Bypass { read_only: true }, up, shared)?
            .map(Some))
    }

    fn set_stage(&mut self, stage: Result<Stage, Bytes>) {
        match (stage, &mut self.passage) {
            (Ok(stage), Some(passage)) => passage.stage = stage,
            (Ok(_), None) => {}
            (Err(error), _) => self.fail_passage(error),
        }
    }

    /// Whether `call` was one of the passage's; if so, gets on with it.
    pub(super) fn passage_done(
        &mut self,
        call: CallId,
        outcome: &Outcome,
        shared: &mut Shared,
    ) -> bool {
        let Some(passage) = &mut self.passage else {
            return false;
        };
        match passage.stage {
            Stage::Address(Some(mine)) if mine == call => match outcome_reply(outcome.clone()) {
                Ok(reply) => match store_address(&reply) {
                    Ok(store) => {
                        shared.store = Some(store);
                        passage.stage = Stage::Barrier(None);
                    }
                    Err(why) => {
                        let text =
                            format!("ERR pmnet: {} needs a Redis store: {why}", passage.name);
                        self.fail_passage(reply::error(&text));
                    }
                },
                Err(error) => self.fail_passage(error),
            },
            Stage::Barrier(Some(mine)) if mine == call => match outcome_reply(outcome.clone()) {
                Ok(reply) if !reply.starts_with(b"-") => self.send_passed(),
                Ok(error) | Err(error) => self.fail_passage(error),
            },
            _ => return false,
        }
        true
    }

    /// The session closed: calls of the passage are lost.
    pub(super) fn passage_session_closed(&mut self) {
        if let Some(Passage {
            stage: Stage::Address(Some(_)) | Stage::Barrier(Some(_)),
            ..
        }) = &self.passage
        {
            self.fail_passage(reply::error(
                "ERR pmnet: the session closed; the command was not executed",
            ));
        }
    }

    /// Puts the command into the store connection's outbox.
    fn send_passed(&mut self) {
        let (Some(passage), Some(direct)) = (&mut self.passage, &mut self.direct) else {
            return self.fail_passage(reply::error(
                "ERR pmnet: the connection to the store was lost",
            ));
        };
        if direct.protocol != self.protocol {
            let version = if self.protocol == Protocol::Resp3 {
                "3"
            } else {
                "2"
            };
            write_command(&["HELLO", version], &mut direct.outbox);
            direct.protocol = self.protocol;
            direct.swallow += 1;
        }
        if !self.direct_multi && (direct.database != self.database || passage.fresh) {
            write_command(&["SELECT", &self.database.to_string()], &mut direct.outbox);
            direct.database = self.database;
            direct.swallow += 1;
        }
        if passage.aborted {
            write_command(&["DISCARD"], &mut direct.outbox);
        } else {
            direct.outbox.append(&mut passage.frame);
        }
        if !passage.sentinel.is_empty() {
            write_command(&[b"PING", &passage.sentinel[..]], &mut direct.outbox);
        }
        passage.stage = Stage::Sent;
    }

    /// Ends the passage with an error. State on the store's connection cannot be trusted then.
    pub(super) fn fail_passage(&mut self, error: Bytes) {
        let name = self
            .passage
            .take()
            .map(|passage| passage.name)
            .unwrap_or_default();
        tracing::debug!(client = self.peer, command = name, "pass-through failed");
        self.settle(error);
        if self.watching || self.subscriptions() > 0 {
            self.ending = true;
        }
        self.direct = None;
    }

    /// Gives the passed command its reply.
    pub(super) fn settle(&mut self, bytes: Bytes) {
        let passage = |slot: &Slot| matches!(slot, Slot::Passage);
        if let Some(index) = self.slots.iter().position(passage) {
            self.fill(index, bytes);
        }
        self.drain();
    }

    pub(super) fn apply_effect(&mut self, passage: &Passage, direct: &mut Direct) {
        let ok = passage.replies.starts_with(b"+");
        match passage.effect {
            Effect::Watch if ok => self.watching = true,
            Effect::Unwatch if ok => self.watching = false,
            Effect::Multi if ok => {
                self.direct_multi = true;
                self.direct_failed = false;
            }
            // Whatever came of it, the transaction and the watch are over.
            Effect::End => {
                self.watching = false;
                self.direct_multi = false;
                self.direct_failed = false;
            }
            Effect::Select(database) if ok => {
                self.database = database;
                direct.database = database;
            }
            Effect::Monitor if ok => self.monitoring = true,
            _ => {}
        }
    }
}

fn store_address(reply: &[u8]) -> Result<StoreAddress, String> {
    let text = reply::bulk_text(reply).ok_or_else(|| {
        let text = String::from_utf8_lossy(reply.strip_prefix(b"-").unwrap_or(reply));
        text.trim().trim_start_matches("ERR ").to_owned()
    })?;
    StoreAddress::told(&String::from_utf8_lossy(text)).map_err(|error| error.to_string())
}
