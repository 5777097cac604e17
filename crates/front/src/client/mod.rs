//! One client connection: commands in, calls out, replies back in the order of the commands.
//!
//! Purpose: everything about a client but its socket, so that it can be driven by bytes alone.
//! Invariants: a reply leaves only after the replies of all commands before it; a command is taken
//! from the input only when it could be submitted, so refusal by the endpoint loses nothing; while
//! a command is passed through to the store's own connection, no later command is looked at.
//! It may not touch sockets or clocks.

mod about;
mod arrivals;
pub(crate) mod back;
mod backlog;
mod busy;
mod client_command;
mod clients_asked;
mod deadline;
mod end;
mod gates;
mod guard;
mod hold;
mod input;
mod local;
mod mode;
mod output;
mod pause;
mod replies;
mod rights;
mod shared;
mod times;
mod tracking;
mod transaction;

use std::net::SocketAddr;

use bytes::Bytes;
use pmnet_resp::{Arguments, ProtocolError, Status, reply};

use crate::table::{Action, Facts, Local, Sub, Verdict};
use crate::upstream::{SessionHandle, Upstream};
use crate::users::Users;
use back::embedded::Watching;
pub(crate) use back::embedded::integers;
use back::pack::{Company, Kind, Packs};
use back::passing::Passing;
use back::reads::Reads;
pub use back::reads::{BATCH_REPLY_BYTES_MAX, Freshness, StoreRead, Unread};
pub use back::replicas::{ReadFrom, ReplicaReads};
pub use busy::{Busy, says_busy};
pub(crate) use client_command::{ClientSocket, ClientsAsk, ClientsTold};
use client_command::{Life, Skip};
pub use deadline::HALF_CLOSED_TIMEOUT;
use end::End;
use gates::{Command, Stop};
use hold::Hold;
use input::{Input, Sender};
use local::Settings;
use mode::Mode;
pub use output::{Output, Waiting};
use output::{Reported, Wishes};
pub use pause::Pause;
use replies::Replies;
use rights::Rights;
pub use shared::{Counters, Shared, lane};
use times::Times;
use tracking::Tracks;
pub(crate) use transaction::{EXECABORT, unknown_command};

/// Most commands of one connection whose replies are outstanding.
pub const SLOTS_MAX: usize = 1024;
/// Replies of one connection that wait for one before them, above which no further command is taken from it,
/// in bytes. A single reply may exceed it. Also what a client may have to read above which messages to it wait at the
/// store.
pub const READY_BYTES_SOFT_MAX: usize = 1024 * 1024;
/// Payload bytes of one connection in flight, and what is set aside for replies, above which no
/// further command is taken from it.
pub const FLIGHT_BYTES_SOFT_MAX: usize = 32 * 1024 * 1024;
/// What is set aside for a reply whose length is not known, in bytes: some 128 such are in flight,
/// however many commands a client sends without reading.
pub const REPLY_BYTES_EXPECTED: usize = 256 * 1024;
/// Input of one connection above which no more is read, unless one command needs more, in bytes.
pub const INPUT_BYTES_SOFT_MAX: usize = 256 * 1024;
/// The same while a client waits for something that may never come, in bytes: that it has gone away shows only behind all that
/// it has sent.
pub const WAITING_INPUT_BYTES_SOFT_MAX: usize = 16 * 1024 * 1024;
/// Commands taken from one connection before the others get their turn.
pub const COMMANDS_PER_TURN: usize = 256;
/// Why [`Connection::advance`] came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing to do until something arrives or is written.
    Idle,
    /// There is more to do; others first.
    More,
    /// The endpoint's queue is full: again after a `Done` event.
    Busy,
}

/// Why a command stays where it is for now.
#[derive(Debug)]
enum Later {
    /// The endpoint refused a call.
    Busy,
    /// Reads that were packed together, or are a batch, have no reply yet. It may be that they have to be sent again,
    /// one by one, and then all that is behind them must come after that.
    Reads,
    /// It is not known what its client may do.
    Rights,
    /// It is to come behind changes of subscriptions of other clients that are under way.
    Subscriptions,
    /// The same, and some may be there that nobody has looked at yet.
    OthersFirst,
    /// There is a pause (CLIENT PAUSE).
    Paused,
    /// Redis does not tell of changed keys now (CLIENT TRACKING).
    Tracking,
}

/// Commands whose result depends on who is subscribed.
const ABOUT_SUBSCRIPTIONS: [&str; 3] = ["PUBLISH", "SPUBLISH", "PUBSUB"];

/// The state of one client connection.
pub struct Connection {
    id: u64,
    peer: String,
    rights: Rights,
    settings: Settings,
    input: Input,
    times: Times,
    replies: Replies,
    session: Option<SessionHandle>,
    packs: Packs,
    reads: Reads,
    hold: Hold,
    mode: Mode,
    /// Keys that it watches at a store that is no Redis.
    watching: Option<Watching>,
    passing: Passing,
    end: End,
    life: Life,
    skip: Skip,
    tracks: Tracks,
    /// What the front has to ask its other clients for.
    clients_ask: Option<ClientsAsk>,
    wishes: Wishes,
    reported: Reported,
}

impl Connection {
    /// A fresh connection; `id` is what CLIENT ID says, `peer` the client's address.
    #[must_use]
    pub fn new(id: u64, peer: SocketAddr) -> Connection {
        Connection {
            id,
            peer: peer.to_string(),
            rights: Rights::new(peer.ip()),
            settings: Settings::default(),
            input: Input::default(),
            times: Times::default(),
            replies: Replies::default(),
            session: None,
            packs: Packs::default(),
            reads: Reads::default(),
            hold: Hold::default(),
            mode: Mode::Ordinary,
            watching: None,
            passing: Passing::default(),
            end: End::default(),
            life: Life::default(),
            skip: Skip::default(),
            tracks: Tracks::default(),
            clients_ask: None,
            wishes: Wishes::default(),
            reported: Reported::default(),
        }
    }

    /// What CLIENT ID says.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The client's address.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The session of the endpoint that this connection uses now.
    #[must_use]
    pub fn session(&self) -> Option<SessionHandle> {
        self.session
    }

    /// Takes in bytes from the client.
    pub fn receive(&mut self, bytes: &[u8]) {
        if !self.end.ends() {
            self.input.receive(bytes);
        }
    }

    /// Whether more input is welcome now.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        let most = if self.endless() {
            WAITING_INPUT_BYTES_SOFT_MAX
        } else {
            INPUT_BYTES_SOFT_MAX
        };
        !self.end.eof() && !self.end.ends() && self.input.has_room(most)
    }

    /// Bytes to write to the client.
    #[must_use]
    pub fn unwritten(&self) -> &[u8] {
        self.replies.unwritten()
    }

    /// `count` of the unwritten bytes were written.
    pub fn wrote(&mut self, count: usize) {
        self.replies.wrote(count);
    }

    /// Bytes of replies that are held for the client.
    #[must_use]
    pub fn held(&self) -> usize {
        self.replies.held()
    }

    /// Whether so many replies are unread that no further command is taken.
    #[must_use]
    pub fn congested(&self) -> bool {
        self.replies.congested()
    }

    /// Whether it is congested, and the client has sent more: it may be writing all before it reads anything.
    #[must_use]
    pub fn held_up(&self) -> bool {
        self.congested() && !self.end.ends() && !self.input.starved()
    }

    /// Whether bytes of the store are welcome now. What a subscriber does not read waits there, as without us; the
    /// reply to a command has room.
    #[must_use]
    pub fn wants_direct(&self) -> bool {
        let replies = self.passing.is_under_way() && !self.congested();
        replies || !self.replies.holds_much()
    }

    /// The client has read too little for too long: drops what is outstanding, and ends the connection behind
    /// an error that says so. What was submitted may take effect.
    pub fn end_unread(&mut self, limit: usize) {
        let error = format!(
            "ERR pmnet: closing: more than {limit} bytes of replies are unread (--unread-max); read replies while sending, \
             or send shorter pipelines"
        );
        self.drop_outstanding();
        self.replies.cut(&reply::error(&error));
        self.end.cut_off();
    }

    /// All clients together that have still to log in have sent too much: throws away what this one has sent, and ends the connection
    /// behind an error that says so.
    pub(crate) fn end_stranger(&mut self) {
        self.drop_outstanding();
        self.input.clear();
        self.replies.cut(&reply::error(
            "ERR pmnet: closing: clients that have not logged in have sent too much; log in before sending more",
        ));
        self.end.cut_off();
    }

    /// Takes commands from the input and submits them, a bounded number.
    pub fn advance<U: Upstream>(&mut self, up: &mut U, shared: &mut Shared) -> Turn {
        self.replies.set_unread_max(shared.unread_max());
        // Taken out, so that a command can be borrowed from it while the rest changes.
        let mut input = std::mem::take(&mut self.input);
        if self.passing.take_killed() {
            shared.busy.over(shared.now);
        }
        let turn = self
            .take_commands(&mut input, up, shared)
            .unwrap_or_else(|later| match later {
                Later::Busy => Turn::Busy,
                Later::Reads
                | Later::Rights
                | Later::Subscriptions
                | Later::Paused
                | Later::Tracking => Turn::Idle,
                Later::OthersFirst => Turn::More,
            });
        self.hold.end_turn();
        // What is submitted may leave now.
        shared.own_writes.forget();
        self.hand_out_told();
        self.times.pause(self.congested());
        if self.end.ends() {
            input.clear();
        }
        self.input = input;
        turn
    }

    fn take_commands<U: Upstream>(
        &mut self,
        input: &mut Input,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<Turn, Later> {
        let mut budget = COMMANDS_PER_TURN;
        input.note_arrivals(shared.now, shared.call_timeout);
        self.times.resume(self.congested(), shared.now);
        self.drop_stale_fence();
        self.life.note(input.len(), shared.now);
        if self.hold.is_for_repeats() {
            self.repeat_reads(up, shared)?;
        }
        self.hand_out_told();
        if !self.packs.is_out() {
            self.begin_pack(up, shared)?;
        }
        self.hand_out_told();
        loop {
            self.go_on_skipping(up, shared)?;
            if self.end.closed() && self.endless() {
                self.abandon();
                break;
            }
            self.advance_passage(up, shared)?;
            if self.passing.is_under_way()
                || self.hold.is_for_outcome()
                || self.end.ends()
                || self.replies.full()
            {
                break;
            }
            match self.poll_input(input, up, shared)? {
                Ok(Status::Incomplete) => break,
                Ok(Status::Complete) => {
                    if budget == 0 {
                        if !self.packs.is_out() {
                            self.begin_pack(up, shared)?;
                        }
                        return Ok(Turn::More);
                    }
                    budget -= 1;
                    if let Some(loss) = self.end.take_loss() {
                        self.reply(loss);
                        break;
                    }
                    self.times.begin(input.arrived().unwrap_or(shared.now));
                    let arguments = input.arguments();
                    if !arguments.is_empty() {
                        let tracks = self.tracks.on;
                        self.command(&arguments, input.frame(), up, shared)?;
                        if tracks {
                            self.tracked(&arguments, shared);
                        }
                    }
                    input.consume();
                    self.rights.command_over();
                    self.skip.command_over();
                }
                Err(error) => {
                    self.flush_pack(up, shared)?;
                    tracing::debug!(client = self.peer, %error, "closing: not RESP");
                    self.reply(reply::error(&format!("ERR {error}")));
                    self.end.cut_off();
                }
            }
        }
        self.flush_pack(up, shared)?;
        Ok(Turn::Idle)
    }

    /// Whether there is a whole command. What only a client may send that needs no login, or has logged in, is looked at as that
    /// of a stranger until it is known who it is.
    fn poll_input<U: Upstream>(
        &mut self,
        input: &mut Input,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<Result<Status, ProtocolError>, Later> {
        let from = match self.rights.may_be_stranger(&shared.users) {
            true => Sender::Stranger,
            false => Sender::Known,
        };
        let polled = input.poll(from);
        if let Err(ProtocolError::StrangerMultibulk | ProtocolError::StrangerBulk) = polled {
            self.times.begin(input.arrived().unwrap_or(shared.now));
            if !self.is_stranger(up, shared)? {
                return Ok(input.poll(Sender::Known));
            }
        }
        Ok(polled)
    }

    /// Bytes that it has sent and that nobody has looked at, if it has still to log in.
    pub(crate) fn stranger_bytes(&self, users: &Users) -> usize {
        if self.rights.may_be_stranger(users) && !self.rights.is_admitted() {
            self.input.len()
        } else {
            0
        }
    }

    fn command<U: Upstream>(
        &mut self,
        arguments: &Arguments<'_>,
        frame: &[u8],
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let verdict = self.on_its_connection(shared.table.verdict(arguments));
        let verdict = self.as_its_user(verdict, shared);
        self.life.command = match verdict.sub {
            Sub::Known(sub) => Some(sub),
            Sub::No | Sub::Unknown => verdict.facts,
        };
        let command = Command {
            arguments,
            frame,
            verdict,
        };
        match self.pass_gates(&command, up, shared) {
            Ok(()) => self.carry_out(&command, up, shared),
            Err(Stop::Answered) => Ok(()),
            Err(Stop::Wait(later)) => Err(later),
        }
    }

    /// Carries out a command that has passed all gates.
    fn carry_out<U: Upstream>(
        &mut self,
        command: &Command<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let Command {
            arguments,
            frame,
            verdict: Verdict { action, facts, sub },
        } = *command;
        match action {
            Action::Update => self.submit_update(frame, facts, arguments, up, shared),
            Action::Bypass {
                read_only: true,
                alone,
            } => self.read(command, Company::of(alone), up, shared),
            Action::Bypass {
                read_only: false,
                alone,
            } => {
                shared.own_writes.forget();
                if is_about_subscriptions(facts) {
                    self.wait_for_subscriptions(up, shared)?;
                    if self.passing.subscriptions() > 0 {
                        self.flush_pack(up, shared)?;
                        return self.publish_to_itself(frame, arguments, up, shared);
                    }
                }
                self.bypass(command, Kind::Writes, Company::of(alone), up, shared)
            }
            Action::Local(local) => {
                // It may change what the next command means.
                shared.own_writes.forget();
                if local == Local::Multi {
                    self.make_room_for_reply(up, shared)?;
                } else {
                    self.flush_pack(up, shared)?;
                }
                self.local(local, sub, arguments, up, shared)
            }
            Action::Pass(kind) => {
                // It may change a key.
                shared.own_writes.forget();
                self.flush_pack(up, shared)?;
                self.start_passage(kind, facts, arguments, frame);
                Ok(())
            }
            Action::Refuse(why) => {
                self.flush_pack(up, shared)?;
                self.reply(refusal(arguments, why));
                Ok(())
            }
        }
    }

    /// A command that only reads: what can answer it, the nearest first.
    fn read<U: Upstream>(
        &mut self,
        command: &Command<'_>,
        company: Company,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let Command {
            arguments,
            frame,
            verdict: Verdict { facts, .. },
        } = *command;
        if self.read_own_write(facts, arguments, shared) {
            return Ok(());
        }
        shared.own_writes.forget();
        if is_about_subscriptions(facts) {
            self.wait_for_subscriptions(up, shared)?;
        }
        if self.goes_beside_writes(frame, facts, shared.now) {
            shared.counters.bypassed_reads += 1;
            self.pack_bypass(command, Kind::Writes, company, up, shared)?;
            self.packs.count_detour();
            return Ok(());
        }
        if company == Company::Any && self.batch_read(frame, facts, arguments, up, shared)? {
            return Ok(());
        }
        self.bypass(command, Kind::Reads, company, up, shared)
    }

    /// A command that Redis executes, unless it says that it is busy.
    fn bypass<U: Upstream>(
        &mut self,
        command: &Command<'_>,
        kind: Kind,
        company: Company,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        if let Some(busy) = shared.busy.error(shared.now).cloned() {
            self.deny(busy, command.verdict.facts, up, shared)?;
            return Ok(());
        }
        self.pack_bypass(command, kind, company, up, shared)?;
        self.packs.count_own();
        Ok(())
    }
}

fn is_about_subscriptions(facts: Option<&Facts>) -> bool {
    facts.is_some_and(|facts| ABOUT_SUBSCRIPTIONS.contains(&facts.name))
}

/// Redis' own error if the number of arguments does not fit.
fn arity_error(verdict: &Verdict, arguments: &Arguments<'_>) -> Option<Bytes> {
    let name = verdict.misfit(arguments)?.name.to_ascii_lowercase();
    if name == "exec" {
        return Some(transaction::EXEC_ARITY);
    }
    Some(reply::error(&format!(
        "ERR wrong number of arguments for '{name}' command"
    )))
}

fn refusal(arguments: &Arguments<'_>, why: &str) -> Bytes {
    reply::error(&format!(
        "ERR pmnet: {} is not possible through the front: {why}",
        shown(arguments)
    ))
}

/// The command's name for an error text, in capitals and cut to a sensible length.
pub(crate) fn shown(arguments: &Arguments<'_>) -> String {
    let name = arguments.get(0);
    String::from_utf8_lossy(&name[..name.len().min(64)]).to_ascii_uppercase()
}
