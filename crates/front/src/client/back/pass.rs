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
use crate::client::guard::{names_record, objection};
use crate::client::local::parse_database;
use crate::client::mode::Mode;
use crate::client::replies::Slot;
use crate::client::transaction::{unknown_command, unknown_subcommand};
use crate::client::{Connection, Later, arity_error, refusal, shown};
use crate::table::{Action, Facts, Local, MODULE, Pass, READONLY, Sub, Verdict};
use crate::users::Users;
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

impl Connection {
    /// The verdict on a command of this client. If the store keeps a state for its connection that pmnet does not know, commands of
    /// modules run on that connection.
    pub(in crate::client) fn on_its_connection(&self, mut verdict: Verdict) -> Verdict {
        if matches!(verdict.action, Action::Bypass { .. })
            && verdict.facts.is_some_and(|facts| facts.has(MODULE))
            && verdict.is_named()
            && matches!(self.mode, Mode::Ordinary)
            && self.passing.has_state()
        {
            verdict.action = Action::Pass(Pass::State);
        }
        verdict
    }

    /// Whether SCRIPT KILL of this client goes to the store at once, whatever the client waits for.
    pub(in crate::client) fn may_kill(&mut self) -> bool {
        let subscribed =
            self.passing.subscriptions() > 0 && self.settings.protocol == Protocol::Resp2;
        let queues = self.mode.transaction().is_some() || self.mode.passed_multi();
        !subscribed && !queues && !self.mode.monitors()
    }

    /// Whether this client waits for something that may never come.
    pub(in crate::client) fn endless(&self) -> bool {
        let waits = |passage: &Passage| {
            passage.blocks || matches!(passage.effect, Effect::Subscribe | Effect::Monitor)
        };
        self.passing.passage.as_ref().is_some_and(waits)
            || self.mode.monitors()
            || self.passing.subscriptions() > 0
    }

    /// Begins to pass a command; everything after it waits.
    pub(in crate::client) fn start_passage(
        &mut self,
        kind: Pass,
        facts: Option<&Facts>,
        arguments: &Arguments<'_>,
        frame: &[u8],
    ) {
        let error = match kind {
            Pass::Blocking | Pass::Watch => names_record(arguments),
            Pass::State | Pass::User => objection(arguments),
            // Channels are not keys.
            Pass::Subscribe | Pass::Monitor | Pass::Wait | Pass::Kill => None,
        };
        if let Some(error) = error {
            return self.reply(error);
        }
        let effect = match kind {
            Pass::Blocking | Pass::Wait | Pass::Kill | Pass::User => Effect::None,
            Pass::Subscribe => Effect::Subscribe,
            Pass::Monitor => Effect::Monitor,
            Pass::Watch => Effect::Watch,
            Pass::State => Effect::State,
        };
        let reads = facts.is_some_and(|facts| facts.has(READONLY));
        let writes = matches!(kind, Pass::Blocking | Pass::State | Pass::User) && !reads;
        let marks = Marks::of(kind == Pass::Watch || writes);
        self.begin(effect, Some(kind), marks, arguments, frame);
    }

    fn begin(
        &mut self,
        effect: Effect,
        kind: Option<Pass>,
        marks: Marks,
        arguments: &Arguments<'_>,
        frame: &[u8],
    ) {
        let sentinel = if effect == Effect::Subscribe {
            self.passing.new_sentinel(self.id)
        } else {
            Vec::new()
        };
        // Inside a passed MULTI commands are only queued; their barrier is that of EXEC.
        let queued = self.mode.passed_multi() && effect != Effect::End;
        // A RESP2 client that is subscribed writes nothing that a barrier could wait for: its last
        // write came before its first subscription, which had one.
        let subscribed = effect == Effect::Subscribe
            && self.settings.protocol == Protocol::Resp2
            && self.passing.subscriptions() > 0;
        let failed = matches!(self.mode, Mode::WatchingMulti { failed: true });
        self.replies.slots.push_back(Slot::Passage);
        self.passing.passage = Some(Passage {
            effect,
            stage: Stage::Address(None),
            begun: self.times.begun(),
            marks: marks == Marks::Yes,
            // Nothing blocks inside MULTI.
            blocks: matches!(kind, Some(Pass::Blocking | Pass::Wait)) && !self.mode.passed_multi(),
            kills: kind == Some(Pass::Kill) && !self.mode.passed_multi(),
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
            self.send_passed();
        }
    }

    /// A subscriber goes back to RESP2: so does its connection to the store, and messages from then on.
    pub(in crate::client) fn begin_resp2(&mut self, arguments: &Arguments<'_>) {
        let mut frame = Vec::new();
        write_command(&mut frame, &["HELLO", "2"]);
        self.begin(Effect::Protocol, None, Marks::No, arguments, &frame);
    }

    /// Which change of this client's subscriptions is under way, counted since it came.
    pub(in crate::client) fn changes_subscriptions(&self) -> Option<u64> {
        let passage = self.passing.passage.as_ref()?;
        let changes = passage.effect == Effect::Subscribe && passage.name != "PING";
        changes.then(|| self.passing.sentinels())
    }

    /// Whether the server runs this although the client watches keys, because it has to do with pmnet's records: a flush keeps them,
    /// and Redis sees to it that EXEC fails; what lists keys leaves them out; the scripts of clients are among them.
    pub(in crate::client) fn goes_by_server_watching(&self, verdict: &Verdict) -> bool {
        let minds_records = |facts: &Facts| {
            let names = ["FLUSHALL", "FLUSHDB", "DBSIZE", "KEYS", "RANDOMKEY", "SCAN"];
            names.contains(&facts.name)
        };
        let asks_for_scripts =
            matches!(verdict.sub, Sub::Known(sub) if sub.name == "SCRIPT|EXISTS");
        matches!(self.mode, Mode::Watching)
            && (asks_for_scripts || verdict.facts.is_some_and(minds_records))
    }

    /// A command while WATCHing, MONITORing, or (RESP2) subscribed.
    pub(in crate::client) fn pass_command(
        &mut self,
        arguments: &Arguments<'_>,
        frame: &[u8],
        verdict: &Verdict,
        users: &Users,
    ) -> Result<(), Later> {
        let alone = arguments.len() == 1;
        let effect = match verdict.action {
            Action::Local(Local::Quit) => {
                let answer = self.quit();
                self.reply(answer);
                return Ok(());
            }
            Action::Local(Local::Reset) => {
                let answer = self.reset(users);
                self.reply(answer);
                return Ok(());
            }
            _ if self.mode.monitors() => {
                return self.refuse_passed(arguments, "after MONITOR only QUIT and RESET are");
            }
            Action::Refuse(why) => return self.refuse_passed(arguments, why),
            // EXEC ends the transaction, however many arguments it has.
            action
                if self.mode.watches()
                    && action != Action::Local(Local::Exec)
                    && let Some(error) = arity_error(verdict, arguments) =>
            {
                return self.fail_command(error);
            }
            _ if let Some(error) = objection(arguments) => return self.fail_command(error),
            // A command that the front has not heard of could do anything.
            _ if self.mode.watches() && verdict.facts.is_none() => {
                return self.fail_command(unknown_command(arguments));
            }
            // Redis itself runs nothing then but what has to do with subscriptions.
            _ if !self.mode.watches() => Effect::Subscribe,
            Action::Local(Local::Hello | Local::Auth)
            | Action::Pass(Pass::Subscribe | Pass::Monitor) => {
                return self.refuse_passed(
                    arguments,
                    "finish WATCH with EXEC, DISCARD or UNWATCH first",
                );
            }
            Action::Local(Local::Client) if matches!(verdict.sub, Sub::Unknown) => {
                return self.fail_command(unknown_subcommand(arguments));
            }
            Action::Local(Local::Client) => {
                return self.refuse_passed(arguments, "it is not supported inside MULTI");
            }
            Action::Local(Local::Select) if self.mode.passed_multi() => {
                return self.refuse_passed(arguments, "it is not supported inside MULTI");
            }
            Action::Local(Local::Select) => {
                parse_database(arguments.get(1)).map_or(Effect::None, Effect::Select)
            }
            Action::Local(Local::Multi) if alone && !self.mode.passed_multi() => Effect::Multi,
            // EXEC with arguments ends the transaction, too.
            Action::Local(Local::Exec) if self.mode.passed_multi() => Effect::End,
            Action::Local(Local::Discard) if alone && self.mode.passed_multi() => Effect::End,
            Action::Local(Local::Unwatch) if alone && !self.mode.passed_multi() => Effect::Unwatch,
            Action::Pass(Pass::State) => Effect::State,
            _ => Effect::None,
        };
        let kind = match verdict.action {
            Action::Pass(kind) => Some(kind),
            _ => None,
        };
        let marks = Marks::of(self.mode.watches());
        self.begin(effect, kind, marks, arguments, frame);
        Ok(())
    }

    fn refuse_passed(&mut self, arguments: &Arguments<'_>, why: &str) -> Result<(), Later> {
        self.fail_command(refusal(arguments, why))
    }

    /// Answers a command with an error, which also makes a transaction fail.
    pub(in crate::client) fn fail_command(&mut self, error: Bytes) -> Result<(), Later> {
        self.fail_transaction();
        self.reply(error);
        Ok(())
    }

    /// The store has answered the command with `reply`.
    pub(in crate::client) fn apply_effect(
        &mut self,
        passage: &Passage,
        reply: &[u8],
        direct: &mut Direct,
    ) {
        let ok = reply.starts_with(b"+");
        match passage.effect {
            Effect::Watch if ok => self.mode = Mode::Watching,
            Effect::Unwatch if ok => self.mode = Mode::Ordinary,
            Effect::Multi if ok => self.mode = Mode::WatchingMulti { failed: false },
            // EXEC always ends the transaction and the watch. A DISCARD that Redis refuses, because of its user's rights, does not.
            Effect::End if ok || passage.name == "EXEC" => self.mode = Mode::Ordinary,
            Effect::Select(database) if ok => {
                self.settings.database = database;
                direct.database = database;
            }
            Effect::Monitor if ok => self.mode = Mode::Monitoring,
            Effect::State => direct.has_state |= !reply.starts_with(b"-"),
            Effect::Protocol if !reply.starts_with(b"-") => {
                self.settings.protocol = Protocol::Resp2;
                direct.protocol = Protocol::Resp2;
            }
            _ => {}
        }
    }
}
