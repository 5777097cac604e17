//! One client connection. A connection takes commands, makes calls, and returns replies in the order of the commands.
//!
//! Purpose: this module does everything for a client except its socket, so that tests can drive it with bytes alone.
//! Invariants: a reply leaves only after the replies to all earlier commands. A command is taken from the input only
//! when it could be submitted, so a refusal by the endpoint loses nothing. While a command passes through on the
//! client's own connection to the store, the front does not examine later commands. Not allowed here: sockets and
//! clocks.

mod about;
mod answer;
mod arrivals;
pub(crate) mod back;
mod backlog;
mod busy;
mod client_command;
mod clients_asked;
mod command;
mod context;
mod doors;
mod end;
mod errors;
mod face;
mod gates;
mod guard;
mod hold;
pub(crate) mod info;
pub(crate) mod input;
mod local;
mod mode;
mod outcome;
mod output;
mod pause;
mod replies;
mod replying;
mod rights;
mod settings;
mod shared;
mod times;
mod tracking;
mod transaction;

use std::net::SocketAddr;

use pmnet_resp::{Arguments, ProtocolError, Status, reply};

use crate::table::{Action, Local, Sub};
use crate::upstream::Calls;
use crate::users::Users;
pub use back::batch::{BATCH_REPLY_BYTES_MAX, Freshness, StoreRead, Unread};
use back::pack::Company;
pub use back::passing::HALF_CLOSED_TIMEOUT;
pub(crate) use back::passing::embedded::integers;
use back::reads::Kept;
pub use back::replicas::{ReadFrom, ReplicaReads};
use back::{Back, again};
pub use busy::{Busy, says_busy};
use client_command::Life;
pub(crate) use client_command::{ClientSocket, ClientsAsk, ClientsTold};
use command::Command;
use context::{Env, Later};
use end::Sent;
use errors::refusal;
pub(crate) use errors::{EXECABORT, SYNTAX, shown, unknown_command};
use face::Face;
use gates::Stop;
use input::{Input, Sender};
use output::Reported;
pub use output::{Output, Waiting};
pub use pause::Pause;
use replies::Muted;
pub(crate) use replying::Replying;
use rights::Rights;
pub use shared::{Counters, Shared, lane};
use tracking::Tracks;

/// Maximum number of commands of one connection whose replies are outstanding.
pub const SLOTS_MAX: usize = 1024;
/// Maximum number of bytes of one connection's replies that wait for an earlier reply. Above this bound, no further
/// command is taken from the connection. A single reply may exceed the bound. If a client has more unread bytes than
/// the bound, the front leaves messages for this client at the store.
pub const READY_BYTES_SOFT_MAX: usize = 1024 * 1024;
/// Maximum number of payload bytes of one connection in flight, plus the bytes set aside for replies. Above this bound,
/// no further command is taken from the connection.
pub const FLIGHT_BYTES_SOFT_MAX: usize = 32 * 1024 * 1024;
/// Bytes set aside for a reply of unknown length. So about 128 replies of unknown length can be in flight, however many
/// commands a client sends without reading.
pub const REPLY_BYTES_EXPECTED: usize = 256 * 1024;
/// Bound of one connection's input, in bytes. At the bound the front reads no more from the client, unless a single
/// command is longer than the bound.
pub const INPUT_BYTES_SOFT_MAX: usize = 256 * 1024;
/// Bound of the input, in bytes, while a client waits for something that may never come. The front sees the
/// disconnection of a client only after it has read all input of this client.
pub const WAITING_INPUT_BYTES_SOFT_MAX: usize = 16 * 1024 * 1024;
/// Commands taken from one connection before the other connections get their turn.
pub const COMMANDS_PER_TURN: usize = 256;

/// Why [`Connection::advance`] came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The connection has nothing to do until input arrives or output is written.
    Idle,
    /// The connection has more work, but the other clients get their turn first.
    More,
    /// The endpoint's queue is full: try again after a `Done` event.
    Busy,
}

/// The state of one client connection.
pub struct Connection {
    input: Input,
    face: Face,
    back: Back,
    pub(crate) rights: Rights,
    pub(crate) tracks: Tracks,
    life: Life,
    replying: Replying,
    /// A request about the front's clients that the front must answer.
    clients_ask: Option<ClientsAsk>,
    reported: Reported,
}

impl Connection {
    /// Makes a new connection. `id`: the connection's number in CLIENT ID. `peer`: the client's address.
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

    /// Takes bytes from the client.
    pub fn receive(&mut self, bytes: &[u8]) {
        if !self.face.end.ends() {
            self.input.receive(bytes);
        }
    }

    /// Whether more input may be read now.
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

    /// Notes that the client has closed its sending side. The client's earlier commands are still executed and
    /// answered, unless the client waits for something that may never come.
    pub fn receive_eof(&mut self) {
        self.close(Sent::Read);
    }

    /// Notes that the client has closed its sending side and may have disconnected. Some of the client's bytes may not
    /// have been received yet. Must be called only for a client that does not wait for something that may never come.
    pub fn client_closed(&mut self) {
        self.close(Sent::MayFollow);
    }

    fn close(&mut self, sent: Sent) {
        self.face.end.close(sent);
        if self.back.passing.endless(&self.face.mode) {
            self.back.abandon(&mut self.face);
        }
    }

    /// Whether everything is answered and written, so that the connection must be closed.
    #[must_use]
    pub fn finished(&self) -> bool {
        let end = &self.face.end;
        let last = end.ends() || (end.eof() && self.input.starved());
        last && self.back.is_idle() && self.face.pending.replies.is_empty()
    }

    /// Takes no further command. Outstanding commands are answered.
    pub(crate) fn end_after_reply(&mut self) {
        self.face.end.end();
    }

    /// Ends the connection of a client that has read too little for too long: drops all outstanding replies,
    /// and sends an error that states the reason. Submitted commands may still take effect.
    pub fn end_unread(&mut self, limit: usize) {
        self.end_with(&format!(
            "ERR pmnet: closing: more than {limit} bytes of replies are unread (--unread-max); read replies while sending, \
             or send shorter pipelines"
        ));
    }

    /// Ends the connection because all clients that still have to log in have together sent too much. The connection's
    /// input is discarded, and the client gets an error that states the reason.
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

    /// Returns the number of bytes that a client which still has to log in has sent and the front has not parsed.
    pub(crate) fn stranger_bytes(&self, users: &Users) -> usize {
        if self.rights.may_be_stranger(users) && !self.rights.is_admitted() {
            self.input.len()
        } else {
            0
        }
    }

    /// Returns the next request of this client to the front; `None`: there is no further request.
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
        // The answer to this request may open a session, so it comes before the session.
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

    /// Takes a bounded number of commands from the input and submits them.
    pub fn advance(&mut self, up: &mut dyn Calls, shared: &mut Shared) -> Turn {
        let replies = &mut self.face.pending.replies;
        replies.set_unread_max(shared.unread_max());
        // The input is taken out so that a command can borrow from it while the other fields change.
        let mut input = std::mem::take(&mut self.input);
        if self.back.passing.take_killed() {
            shared.busy.over(shared.now);
        }
        let mut env = Env { up, shared };
        let turn = self
            .take_commands(&mut input, &mut env)
            .unwrap_or_else(|later| match later {
                Later::Busy => Turn::Busy,
                Later::Outstanding | Later::Rights | Later::Paused | Later::Tracking => Turn::Idle,
                Later::Subscriptions => {
                    self.face.wishes.come_behind_subscriptions();
                    Turn::Idle
                }
                Later::OthersFirst => Turn::More,
            });
        // From now on submitted calls may be sent.
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
        self.send_pack(env)?;
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
                        self.send_pack(env)?;
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
                    self.submit_all(env)?;
                    tracing::debug!(client = self.face.peer, %error, "closing: not RESP");
                    self.reply(reply::error(&format!("ERR {error}")));
                    self.face.end.cut_off();
                }
            }
        }
        self.submit_all(env)?;
        Ok(Turn::Idle)
    }

    /// Sends all calls that wait to be sent. While a pack is under way nothing is sent, and the next pack is
    /// put together.
    fn send_pack(&mut self, env: &mut Env<'_>) -> Result<(), Later> {
        if self.back.packs.is_out() {
            return Ok(());
        }
        self.back.send_pack(&mut self.face.context(env))
    }

    /// Ends a CLIENT REPLY SKIP once the command whose reply was discarded is over: the next command has a
    /// reply.
    fn go_on_skipping(&mut self, env: &mut Env<'_>) -> Result<(), Later> {
        if self.replying == Replying::Skipped {
            self.submit_all(env)?;
            self.face.pending.replies.mute(Muted::No);
            self.replying = Replying::On;
        }
        Ok(())
    }

    /// Checks whether the input has a complete command. An input that is larger than a stranger may send is
    /// accepted only when the client's identity is known.
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
                    self.submit_all(env)?;
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

    /// Carries out a command that has passed all gates: the back sends it, or the front answers it.
    ///
    /// # Errors
    /// [`Later`]: the command has to wait.
    fn carry_out(&mut self, command: &Command<'_>, env: &mut Env<'_>) -> Result<(), Later> {
        match command.verdict.action {
            Action::Update => self.back.update(command, &mut self.face.context(env)),
            Action::Bypass { .. } if info::wants_section(command.arguments) => {
                self.info(command, env)
            }
            Action::Bypass {
                read_only: true,
                alone,
            } => {
                let (company, kept) = (Company::of(alone), Kept::of(self.tracks.on));
                let cx = &mut self.face.context(env);
                self.back.read(command, company, kept, cx)
            }
            Action::Bypass {
                read_only: false,
                alone,
            } => {
                let cx = &mut self.face.context(env);
                self.back.write(command, Company::of(alone), cx)
            }
            Action::Local(local) => {
                // A local command may change the meaning of the next command.
                env.shared.own_writes.forget();
                if local == Local::Multi {
                    self.back.make_room_for_reply(&mut self.face.context(env))?;
                } else {
                    self.submit_all(env)?;
                }
                self.local(local, command, env)
            }
            Action::Pass(kind) => {
                // A passed command may change a key.
                env.shared.own_writes.forget();
                self.submit_all(env)?;
                if let Err(error) = self.back.passing.start(&mut self.face, kind, command) {
                    self.reply(error);
                }
                Ok(())
            }
            Action::Refuse(why) => {
                self.submit_all(env)?;
                self.reply(refusal(command.arguments, why));
                Ok(())
            }
        }
    }

    /// Whether [`Connection::look`] must be called from time to time.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.back.passing.is_under_way()
            || self.back.passing.waits_on_store(&self.face.mode)
            || self.rights.waits()
            || self.tracks.waits()
            || self.face.pending.asks_store()
    }

    /// Ends commands that have waited for too long. `shared.alive` is the time at which the store last gave a sign of
    /// life. `pardon`: this process could not have noticed a sign of life, so silence proves nothing. Returns whether
    /// anything has changed.
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

    fn hand_out_told(&mut self) {
        let replies = &mut self.face.pending.replies;
        self.tracks.hand_out(&self.back, replies);
    }
}
