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
mod carry_out;
mod client_command;
mod clients_asked;
mod deadline;
mod end;
mod face;
mod gates;
mod guard;
mod hold;
pub(crate) mod input;
mod local;
mod mode;
mod outcome;
mod output;
mod pause;
mod replies;
mod replying;
mod rights;
mod shared;
mod times;
mod tracking;
mod transaction;

use std::net::SocketAddr;

use bytes::Bytes;
use pmnet_resp::{Arguments, ProtocolError, Status, reply};
use pmnet_tls::ClientTls;
use pmnet_wire::StoreName;

use crate::shell::socket::Unwritten;
use crate::store::rights::Answer;
use crate::table::{Sub, Verdict};
use crate::tracking::Told;
use crate::upstream::{CallId, Calls, ReadAnswer, SessionHandle, Time};
use crate::users::{Credentials, Users};
pub use back::batch::{BATCH_REPLY_BYTES_MAX, Freshness, StoreRead, Unread};
pub(crate) use back::embedded::integers;
use back::embedded::unblocked;
pub use back::replicas::{ReadFrom, ReplicaReads};
use back::{Back, again};
pub use busy::{Busy, says_busy};
pub(crate) use client_command::{ClientSocket, ClientsAsk, ClientsTold};
use client_command::{Life, Portrait};
pub use deadline::HALF_CLOSED_TIMEOUT;
use end::Sent;
use face::Face;
use gates::{Command, Stop};
use input::{Input, Sender};
use output::Reported;
pub use output::{Output, Waiting};
pub use pause::Pause;
use replies::Muted;
pub(crate) use replying::Replying;
use rights::Rights;
pub use shared::{Counters, Shared, lane};
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
    /// It is to come after changes of subscriptions of other clients that are under way. `advance` asks to be woken.
    Subscriptions,
    /// The same, and some may be there that nobody has looked at yet.
    OthersFirst,
    /// There is a pause (CLIENT PAUSE).
    Paused,
    /// Redis does not tell of changed keys now (CLIENT TRACKING).
    Tracking,
}

/// The network, and what all connections of the front have in common, while a client takes its turn.
struct Env<'a> {
    up: &'a mut dyn Calls,
    shared: &'a mut Shared,
}

/// The state of one client connection.
pub struct Connection {
    input: Input,
    face: Face,
    back: Back,
    rights: Rights,
    tracks: Tracks,
    life: Life,
    replying: Replying,
    /// What the front has to ask its other clients for.
    clients_ask: Option<ClientsAsk>,
    reported: Reported,
}

impl Connection {
    /// A fresh connection; `id` is what CLIENT ID says, `peer` the client's address.
    #[must_use]
    pub fn new(id: u64, peer: SocketAddr) -> Connection {
        Connection {
            input: Input::default(),
            face: Face::new(id, peer),
            back: Back::default(),
            rights: Rights::new(peer.ip()),
            tracks: Tracks::default(),
            life: Life::default(),
            replying: Replying::default(),
            clients_ask: None,
            reported: Reported::default(),
        }
    }

    /// What CLIENT ID says.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.face.id
    }

    /// The client's address.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.face.peer
    }

    /// The session of the endpoint that this connection uses now.
    #[must_use]
    pub fn session(&self) -> Option<SessionHandle> {
        self.back.session.handle()
    }

    /// Takes in bytes from the client.
    pub fn receive(&mut self, bytes: &[u8]) {
        if !self.face.end.ends() {
            self.input.receive(bytes);
        }
    }

    /// Whether more input is welcome now.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        let most = if self.back.passing.endless(&self.face.mode) {
            WAITING_INPUT_BYTES_SOFT_MAX
        } else {
            INPUT_BYTES_SOFT_MAX
        };
        let end = &self.face.end;
        !end.eof() && !end.ends() && self.input.has_room(most)
    }

    /// The client closed its sending side. Commands that it sent before are still executed and answered,
    /// unless it waits for something that may never come.
    pub fn receive_eof(&mut self) {
        self.close(Sent::Read);
    }

    /// The client has closed its sending side, and perhaps is gone; bytes of it may still have to be
    /// taken in. It waits for nothing that may never come.
    pub fn client_closed(&mut self) {
        self.close(Sent::MayFollow);
    }

    fn close(&mut self, sent: Sent) {
        self.face.end.close(sent);
        if self.back.passing.endless(&self.face.mode) {
            self.back.abandon(&mut self.face);
        }
    }

    /// Bytes to write to the client.
    #[must_use]
    pub fn unwritten(&self) -> &[u8] {
        self.face.pending.replies.unwritten()
    }

    /// `count` of the unwritten bytes were written.
    pub fn wrote(&mut self, count: usize) {
        self.face.pending.replies.wrote(count);
    }

    /// Bytes of replies that are held for the client.
    #[must_use]
    pub fn held(&self) -> usize {
        self.face.pending.replies.held()
    }

    /// Whether so many replies are unread that no further command is taken.
    #[must_use]
    pub fn congested(&self) -> bool {
        self.face.pending.replies.congested()
    }

    /// Whether it is congested, and the client has sent more: it may be writing all before it reads anything.
    #[must_use]
    pub fn held_up(&self) -> bool {
        self.congested() && !self.face.end.ends() && !self.input.starved()
    }

    /// Whether everything is answered and written and the connection is to be closed.
    #[must_use]
    pub fn finished(&self) -> bool {
        let end = &self.face.end;
        let last = end.ends() || (end.eof() && self.input.starved());
        last && self.back.is_idle() && self.face.pending.replies.is_empty()
    }

    /// Whether the connection ends with an error, and the client may not have sent everything yet.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.face.end.is_cut_off()
    }

    /// No further command is taken; what is outstanding is answered.
    pub(crate) fn end_after_reply(&mut self) {
        self.face.end.end();
    }

    /// The client has read too little for too long: drops what is outstanding, and ends the connection behind
    /// an error that says so. What was submitted may take effect.
    pub fn end_unread(&mut self, limit: usize) {
        self.end_with(&format!(
            "ERR pmnet: closing: more than {limit} bytes of replies are unread (--unread-max); read replies while sending, \
             or send shorter pipelines"
        ));
    }

    /// All clients together that have still to log in have sent too much: throws away what this one has sent, and ends the connection
    /// behind an error that says so.
    pub(crate) fn end_stranger(&mut self) {
        self.input.clear();
        self.end_with(
            "ERR pmnet: closing: clients that have not logged in have sent too much; log in before sending more",
        );
    }

    fn end_with(&mut self, error: &str) {
        self.back.drop_outstanding(&mut self.face.pending);
        self.face.pending.replies.cut(&reply::error(error));
        self.face.end.cut_off();
    }

    /// Bytes that it has sent and the front has not looked at, if it has still to log in.
    pub(crate) fn stranger_bytes(&self, users: &Users) -> usize {
        if self.rights.may_be_stranger(users) && !self.rights.is_admitted() {
            self.input.len()
        } else {
            0
        }
    }

    /// The next thing that it wants of the front; `None`: nothing more.
    pub fn poll_output(&mut self) -> Option<Output> {
        let Connection {
            face,
            back,
            reported,
            ..
        } = self;
        if let Some(output) = face.wishes.take() {
            return Some(output);
        }
        // Answering this one may open a session.
        if let Some(ask) = self.clients_ask.take() {
            return Some(Output::Clients(ask));
        }
        let passing = &back.passing;
        reported
            .session(back.session.handle())
            .or_else(|| face.wishes.take_behind_subscriptions())
            .or_else(|| reported.change(passing.changes_subscriptions()))
            .or_else(|| reported.waiting(passing.waiting()))
            .or_else(|| reported.direct(passing.target()))
            .or_else(|| {
                let read = back.reads.take_store_read(face.id, face.settings.selected);
                read.map(Output::Read)
            })
            .or_else(|| self.rights.take_question(face.id).map(Output::Ask))
    }

    /// Takes commands from the input and submits them, a bounded number.
    pub fn advance(&mut self, up: &mut dyn Calls, shared: &mut Shared) -> Turn {
        let replies = &mut self.face.pending.replies;
        replies.set_unread_max(shared.unread_max());
        // Taken out, so that a command can be borrowed from it while the rest changes.
        let mut input = std::mem::take(&mut self.input);
        if self.back.passing.take_killed() {
            shared.busy.over(shared.now);
        }
        let mut env = Env { up, shared };
        let turn = self
            .take_commands(&mut input, &mut env)
            .unwrap_or_else(|later| match later {
                Later::Busy => Turn::Busy,
                Later::Reads | Later::Rights | Later::Paused | Later::Tracking => Turn::Idle,
                Later::Subscriptions => {
                    self.face.wishes.come_behind_subscriptions();
                    Turn::Idle
                }
                Later::OthersFirst => Turn::More,
            });
        // What is submitted may leave now.
        shared.own_writes.forget();
        self.hand_out_told();
        let pending = &mut self.face.pending;
        pending.hold.end_turn();
        pending.times.pause(pending.replies.congested());
        if self.face.end.ends() {
            input.clear();
        }
        self.input = input;
        turn
    }

    fn take_commands(&mut self, input: &mut Input, env: &mut Env<'_>) -> Result<Turn, Later> {
        let mut budget = COMMANDS_PER_TURN;
        let now = env.shared.now;
        input.note_arrivals(now, env.shared.call_timeout);
        let pending = &mut self.face.pending;
        pending.times.resume(pending.replies.congested(), now);
        self.back.passing.drop_stale_fence(pending);
        self.life.note(input.len(), now);
        if self.face.pending.hold.is_for_repeats() {
            let (packs, session) = (&mut self.back.packs, &mut self.back.session);
            again::repeat(packs, session, &mut self.face.context(env))?;
        }
        self.hand_out_told();
        self.begin_pack(env)?;
        self.hand_out_told();
        loop {
            self.go_on_skipping(env)?;
            if self.face.end.closed() && self.back.passing.endless(&self.face.mode) {
                self.back.abandon(&mut self.face);
                break;
            }
            let (passing, session) = (&mut self.back.passing, &mut self.back.session);
            passing.advance(&mut self.face, session, env.up, env.shared)?;
            let pending = &self.face.pending;
            if self.back.passing.is_under_way()
                || pending.hold.is_for_outcome()
                || self.face.end.ends()
                || pending.replies.full()
            {
                break;
            }
            match self.poll_input(input, env)? {
                Ok(Status::Incomplete) => break,
                Ok(Status::Complete) => {
                    if budget == 0 {
                        self.begin_pack(env)?;
                        return Ok(Turn::More);
                    }
                    budget -= 1;
                    if let Some(loss) = self.face.end.take_loss() {
                        self.reply(loss);
                        break;
                    }
                    let arrived = input.arrived().unwrap_or(now);
                    self.face.pending.times.begin(arrived);
                    let arguments = input.arguments();
                    if !arguments.is_empty() {
                        let tracks = self.tracks.on;
                        self.command(&arguments, input.frame(), env)?;
                        if tracks {
                            self.tracks.tracked(&arguments, &self.face, env.shared);
                        }
                    }
                    input.consume();
                    self.rights.command_over();
                    self.replying.command_over();
                }
                Err(error) => {
                    self.flush(env)?;
                    tracing::debug!(client = self.face.peer, %error, "closing: not RESP");
                    self.reply(reply::error(&format!("ERR {error}")));
                    self.face.end.cut_off();
                }
            }
        }
        self.flush(env)?;
        Ok(Turn::Idle)
    }

    /// Sends what waits to be sent, unless a pack is under way; the next one is put together meanwhile.
    fn begin_pack(&mut self, env: &mut Env<'_>) -> Result<(), Later> {
        if self.back.packs.is_out() {
            return Ok(());
        }
        self.back.begin_pack(&mut self.face.context(env))
    }

    /// The command whose reply is thrown away is over: the next one has a reply.
    fn go_on_skipping(&mut self, env: &mut Env<'_>) -> Result<(), Later> {
        if self.replying == Replying::Skipped {
            self.flush(env)?;
            self.face.pending.replies.mute(Muted::No);
            self.replying = Replying::On;
        }
        Ok(())
    }

    /// Whether there is a whole command. What only a client may send that needs no login, or has logged in, is looked at as that
    /// of a stranger until it is known who it is.
    fn poll_input(
        &mut self,
        input: &mut Input,
        env: &mut Env<'_>,
    ) -> Result<Result<Status, ProtocolError>, Later> {
        let from = match self.rights.may_be_stranger(&env.shared.users) {
            true => Sender::Stranger,
            false => Sender::Known,
        };
        let polled = input.poll(from);
        if let Err(ProtocolError::StrangerMultibulk | ProtocolError::StrangerBulk) = polled {
            let times = &mut self.face.pending.times;
            times.begin(input.arrived().unwrap_or(env.shared.now));
            match self.rights.is_stranger(times.begun(), env.shared) {
                Some(true) => {}
                Some(false) => return Ok(input.poll(Sender::Known)),
                None => {
                    self.flush(env)?;
                    self.rights.await_list();
                    return Err(Later::Rights);
                }
            }
        }
        Ok(polled)
    }

    fn command(
        &mut self,
        arguments: &Arguments<'_>,
        frame: &[u8],
        env: &mut Env<'_>,
    ) -> Result<(), Later> {
        let (mode, shared) = (&self.face.mode, &mut *env.shared);
        let verdict = shared.table.verdict(arguments);
        let verdict = self.back.passing.on_its_connection(mode, verdict);
        let verdict = self.rights.as_its_user(verdict, mode, shared);
        self.life.command = match verdict.sub {
            Sub::Known(sub) => Some(sub),
            Sub::No | Sub::Unknown => verdict.facts,
        };
        let command = Command {
            arguments,
            frame,
            verdict,
        };
        match self.pass_gates(&command, env) {
            Ok(()) => self.carry_out(&command, env),
            Err(Stop::Answered) => Ok(()),
            Err(Stop::Wait(later)) => Err(later),
        }
    }

    /// Whether [`Connection::look`] has to be called now and then.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.back.passing.is_under_way()
            || self.waits_on_store()
            || self.rights.waits()
            || self.tracks.waits()
            || self.face.pending.asks_store()
    }

    /// Whether something is waited for that the store may send much later.
    #[must_use]
    pub fn waits_on_store(&self) -> bool {
        self.back.passing.waits_on_store(&self.face.mode)
    }

    /// Whether it has waited long enough for the store to be busy.
    #[must_use]
    pub fn doubts_store(&self, now: Time) -> bool {
        self.face.pending.doubts_store(now)
    }

    /// Whether it waits for the end of a pause.
    pub(crate) fn is_paused(&self) -> bool {
        self.face.pending.hold.is_paused()
    }

    /// Ends what has waited for too long. `shared.alive` says when the store last gave a sign of life;
    /// `pardon`: this process could not have noticed one. Returns whether anything has changed.
    pub fn look(&mut self, shared: &Shared, pardon: bool) -> bool {
        let (face, passing) = (&mut self.face, &mut self.back.passing);
        if passing.is_under_way()
            && let Some(since) = face.end.closed_since(shared.now)
            && shared.now >= since.saturating_add(HALF_CLOSED_TIMEOUT)
        {
            self.back.abandon(face);
            return true;
        }
        let late = shared.now >= shared.deadline(face.pending.times.begun());
        if late && (self.rights.waits() || self.tracks.waits()) {
            return true;
        }
        let busy = shared.busy.error(shared.now);
        let refused = busy.is_some_and(|error| face.pending.refuse_reads(error));
        let overdue = passing.is_overdue(&face.mode, shared, pardon);
        if overdue {
            passing.expire(face);
        }
        overdue || refused
    }

    /// The server now uses the store with this name. A command that waits for another store ends as if its
    /// connection were lost. Returns whether anything has changed.
    pub fn store_named(&mut self, name: &StoreName) -> bool {
        self.back.passing.store_named(&mut self.face, name)
    }

    /// It comes now.
    pub(crate) fn comes(&mut self, users: &Users) {
        self.rights.reset(users);
    }

    /// As whom it has logged in, if it has; and which of all logins that was.
    pub(crate) fn login(&self) -> Option<(&Credentials, u64)> {
        self.rights.login()
    }

    /// Whether it waits until it is known what its client may do.
    pub(crate) fn waits_for_rights(&self) -> bool {
        self.rights.waits()
    }

    /// Redis has answered the question of this number.
    pub(crate) fn question_answered(&mut self, number: u64, answer: Answer) {
        self.rights.answered(number, answer);
    }

    /// The list of users came or changed. Whether its user is gone, and it with that.
    pub(crate) fn users_changed(&mut self, shared: &mut Shared) -> bool {
        self.rights.users_changed(shared)
    }

    /// Whether it waits until Redis tells the front of changed keys.
    pub(crate) fn waits_for_tracking(&self) -> bool {
        self.tracks.waits()
    }

    /// It is told something about keys: its own, or those of a client that has named it (`redirected`). Whether it listens.
    pub(crate) fn told_of_keys(&mut self, told: &Told, redirected: bool) -> bool {
        let (protocol, passing) = (self.face.protocol(), &self.back.passing);
        let listens = self.tracks.tell(told, redirected, protocol, passing);
        self.hand_out_told();
        listens
    }

    /// The client is gone that it wanted to be told in its place. Whether it is told that.
    pub(crate) fn told_of_no_redirect(&mut self, redirect: u64) -> bool {
        let protocol = self.face.protocol();
        let listens = self.tracks.tell_of_no_redirect(redirect, protocol);
        self.hand_out_told();
        listens
    }

    fn hand_out_told(&mut self) {
        let replies = &mut self.face.pending.replies;
        self.tracks.hand_out(&self.back, replies);
    }

    /// All of it that others can ask about.
    pub(crate) fn portrait(&self) -> Portrait<'_> {
        Portrait {
            face: &self.face,
            life: &self.life,
            passing: &self.back.passing,
            user: self.rights.name(),
        }
    }

    /// Which client of Redis it is while it waits there for others.
    pub(crate) fn blocked_as(&self) -> Option<i64> {
        self.back.passing.blocked_as()
    }

    /// The head answered a READ, or has not in time.
    pub fn read_answered(&mut self, call: CallId, answer: ReadAnswer, shared: &mut Shared) {
        let (selected, pending) = (self.face.settings.selected, &mut self.face.pending);
        let reads = &mut self.back.reads;
        reads.answered(call, answer, selected, pending, shared);
    }

    /// The store's record, for reads that were handed out before the head had answered.
    pub fn store_recorded(&mut self, number: u64, epoch: u32, watermark: u64, shared: &mut Shared) {
        let (protocol, pending) = (self.face.protocol(), &mut self.face.pending);
        let (reads, record) = (&mut self.back.reads, (epoch, watermark));
        reads.store_recorded(number, record, protocol, pending, shared);
    }

    /// The store's reply to the next read of this batch.
    pub fn store_replied(&mut self, number: u64, reply: Bytes, shared: &mut Shared) {
        let (protocol, pending) = (self.face.protocol(), &mut self.face.pending);
        let reads = &mut self.back.reads;
        reads.store_replied(number, reply, protocol, pending, shared);
    }

    /// The rest of this batch cannot be read from the store, or from the replica that was asked.
    pub fn store_unread(&mut self, number: u64, why: Unread, shared: &mut Shared) {
        let protocol = self.face.protocol();
        self.back.reads.store_unread(number, why, protocol, shared);
    }

    /// Whether something passes, or may pass, that changes the store.
    #[must_use]
    pub fn needs_mark(&self) -> bool {
        self.back.passing.needs_mark(&self.face.mode)
    }

    /// Whether something was passed, and given up without an answer, since this was last asked.
    pub fn take_unanswered(&mut self) -> bool {
        self.back.passing.take_unanswered()
    }

    /// The client goes. Whether something that was passed has no answer.
    pub fn close_unanswered(&mut self) -> bool {
        self.back.passing.close_unanswered()
    }

    /// The mark is open no longer. Whether something has changed here.
    pub fn mark_lost(&mut self) -> bool {
        self.back.passing.mark_lost(&mut self.face)
    }

    /// The keys that it waits for at an embedded store, and until when it waits.
    pub(crate) fn waits_for(&self) -> Option<(&[i64], Option<Time>)> {
        self.back.passing.waits_for()
    }

    /// One of its keys may have arrived.
    pub(crate) fn wake(&mut self) {
        self.back.passing.wake();
    }

    /// Ends its wait with this, unless it finds something before.
    pub(crate) fn stop_waiting(&mut self, answer: Bytes, shared: &Shared) {
        let passing = &mut self.back.passing;
        passing.stop_waiting(&mut self.face, answer, shared.now);
    }

    /// The reply that CLIENT UNBLOCK gives it.
    pub(crate) fn unblocked(&self, error: bool) -> Bytes {
        unblocked(error, self.face.protocol())
    }

    /// The address for this client's connection to the store, and the connection's number: a new number
    /// means a new socket. `None`: there must be no connection.
    #[must_use]
    pub fn direct_target(&self) -> Option<(u64, SocketAddr)> {
        self.back.passing.target()
    }

    /// How that connection speaks TLS, if it does.
    #[must_use]
    pub fn direct_tls(&self) -> Option<&ClientTls> {
        self.back.passing.direct.as_ref()?.tls.as_ref()
    }

    /// Whether bytes of the store are welcome now. Messages that a subscriber does not read wait there, as without us; the
    /// reply to a command has room.
    #[must_use]
    pub fn wants_direct(&self) -> bool {
        let replies = &self.face.pending.replies;
        let waits = self.back.passing.is_under_way() && !replies.congested();
        waits || !replies.holds_much()
    }

    /// Bytes to be written to the store.
    #[must_use]
    pub fn direct_unwritten(&self) -> &[u8] {
        let direct = self.back.passing.direct.as_ref();
        direct
            .map(|direct| direct.line.unwritten())
            .unwrap_or_default()
    }

    /// `count` bytes were written to the store.
    pub fn direct_wrote(&mut self, count: usize) {
        if let Some(direct) = &mut self.back.passing.direct {
            direct.used = true;
            direct.line.wrote(count);
        }
    }

    /// The connection to the store could not be made, or is lost.
    pub fn direct_lost(&mut self, why: &str) {
        self.back.passing.lost(&mut self.face, why);
    }

    /// Takes in bytes from the store.
    pub fn direct_receive(&mut self, bytes: &[u8], shared: &Shared) {
        self.back.passing.receive(bytes, &mut self.face, shared);
    }
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
