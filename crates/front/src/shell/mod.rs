//! The event loop of the front: one thread, one listener, its clients, one endpoint.
//!
//! Purpose: moves bytes between sockets and [`Connection`](crate::client::Connection)s, and calls between connections
//! and the endpoint. The loop works in turns: it reads from all ready sockets, submits all commands, sends once, and
//! writes to each client once. After activity the loop polls without sleeping for some time (`spin`), because waking up
//! costs more than a command. An idle loop sleeps until something arrives, or until a timer of the endpoint is due.
//! Invariants: the work for each client in a turn is bounded; there are at most `connections_max` clients.

pub(crate) mod accept;
mod client;
mod clients;
mod config;
mod dial;
mod direct;
mod entrance;
mod lane;
mod learning;
pub(crate) mod limiting;
pub(crate) mod lingering;
mod marks;
mod moving;
mod observed;
mod outputs;
pub(crate) mod pace;
mod reads;
pub(crate) mod seats;
pub(crate) mod shaking;
mod silence;
pub(crate) mod socket;
pub(crate) mod stopper;
mod strangers;
mod subscribing;
mod tracking;
mod turns;
mod unread;
mod users;
mod vigil;
mod waiting;
pub(crate) mod wire;
mod witness;

use std::collections::{BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use mio::{Events, Poll, Token, Waker};
use pmnet_client::Pulse;
use pmnet_tls::ServerTls;
use rustc_hash::FxHashMap;

use crate::client::{Counters, Shared, Turn};
use crate::store::StoreAddress;
use crate::table::Table;
use crate::upstream::{CallId, Event, SessionHandle, Time, Upstream};
use crate::users::Users;
use accept::Door;
pub use accept::clients_within;
use client::{Client, Transfer};
pub use config::{Cache, FrontConfig, FrontError};
pub use entrance::Entrance;
pub(crate) use entrance::Handed;
use entrance::Shelf;
use learning::Learning;
use limiting::Limiting;
pub use limiting::Limits;
use marks::Marks;
pub use moving::DirectMover;
pub use observed::FrontTurn;
use pace::Pace;
use reads::{REPLICA_TOKENS, StoreReads};
use seats::Seats;
use shaking::Shaking;
pub use silence::Class;
use silence::Watched;
use stopper::Ending;
pub use stopper::Stopper;
use tracking::TrackingWire;
use unread::UnreadOfAll;
use users::UserLinks;
use vigil::Vigil;
use waiting::Waiting;
use wire::Seen;
use witness::{WITNESSES_MAX, Witnesses};

const LISTENER: Token = Token(0);
const ENDPOINT: Token = Token(1);
const WAKER: Token = Token(2);
const HEART: Token = Token(3);
const READS_RESP2: Token = Token(4);
const READS_RESP3: Token = Token(5);
const RIGHTS: Token = Token(6);
const LOGINS: Token = Token(7);
const TRACKING: Token = Token(8);
/// First token of the connections to replicas of the store.
const FIRST_REPLICA: usize = 16;
/// First token of the connections that are logged in as users.
const FIRST_WITNESS: usize = FIRST_REPLICA + REPLICA_TOKENS;
/// First token of client 0. Each client has two tokens: one for its own socket, the next for its socket to
/// the store.
const FIRST_CLIENT: usize = FIRST_WITNESS + WITNESSES_MAX;
/// Maximum number of events taken from the operating system at once.
const EVENTS_MAX: usize = 1024;
/// Bytes of the buffer into which all sockets are read.
const SCRATCH_BYTES: usize = 64 * 1024;
/// A front that listens; [`Front::run`] serves.
pub struct Front<U> {
    up: Watched<U>,
    shared: Shared,
    poll: Poll,
    /// The listener. `None`: a router hands clients to this front.
    door: Option<Door>,
    handed: Option<Receiver<Handed>>,
    /// The place where the front puts the commands that it has learned, until the router takes them.
    shelf: Option<Arc<Shelf>>,
    stopper: Stopper,
    mover: DirectMover,
    /// Whether the operator has given the store's address.
    fixed: bool,
    pace: Pace,
    connections_max: usize,
    limiting: Limiting,
    clients: Seats<Client>,
    sessions: FxHashMap<SessionHandle, usize>,
    dirty: Vec<usize>,
    /// Clients whose command the busy endpoint refused, oldest first. Each client is in the list at most once. Some of
    /// these clients may have disconnected.
    busy: VecDeque<usize>,
    /// Connect deadlines of connections to the store: time, client, serial; in order of time.
    connecting: VecDeque<(Time, usize, u64)>,
    serial: u64,
    vigil: Vigil,
    learning: Learning,
    marks: Marks,
    waiting: Waiting,
    reads: StoreReads,
    users: UserLinks,
    tracking: TrackingWire,
    witnesses: Witnesses,
    /// The clients that have asked the head, by call.
    asked: FxHashMap<CallId, usize>,
    clients_ever: u64,
    /// Clients whose next command must follow changes of subscriptions. Some of these clients may have disconnected.
    behind_subscriptions: BTreeSet<usize>,
    unread: UnreadOfAll,
    /// Bytes sent by clients that still have to log in, beyond what each may send in any case.
    strangers_bytes: usize,
    /// The server's side of TLS; `None`: clients connect without TLS.
    tls: Option<ServerTls>,
    keepalive: Option<Duration>,
    pulse: Arc<Pulse>,
    /// Time before which the front asks silent devices no further question.
    ask_again_at: Time,
    shaking: Shaking,
    scratch: Vec<u8>,
}

impl<U: Upstream> Front<U> {
    /// Opens the front's address. Nothing is served before [`Front::run`].
    ///
    /// # Errors
    /// [`FrontError`], which says what to do.
    pub fn bind(config: &FrontConfig, up: U) -> Result<Front<U>, FrontError> {
        let mut door = Door::open(config.listen, config.tls.is_some())?;
        let mut front = Front::new(config, up)?;
        door.register(front.poll.registry(), LISTENER)?;
        front.door = Some(door);
        Ok(front)
    }

    /// Makes a front that does not listen. A router hands clients to this front after it has counted them and completed
    /// their TLS handshakes. The settings for listening, for the number of clients and for TLS have no effect in this
    /// front.
    ///
    /// # Errors
    /// [`FrontError`], which says what to do.
    pub fn behind_router(config: &FrontConfig, up: U) -> Result<(Front<U>, Entrance), FrontError> {
        let mut front = Front::new(config, up)?;
        let shelf = Arc::clone(front.shelf.insert(Arc::default()));
        let (entrance, handed) = Entrance::new(front.stopper.0.waker(), shelf);
        front.handed = Some(handed);
        Ok((front, entrance))
    }

    fn new(config: &FrontConfig, up: U) -> Result<Front<U>, FrontError> {
        let mut up = Watched::new(up);
        let table = Table::new(&config.assume_ok)?;
        let mut store = config
            .direct
            .as_deref()
            .map(StoreAddress::parse)
            .transpose()
            .map_err(FrontError::Direct)?;
        if let (Some(store), Some(password)) = (&mut store, &config.direct_password) {
            store.set_password(password);
        }
        let poll = Poll::new()?;
        up.register(poll.registry(), ENDPOINT)?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let stopper = Stopper(Ending::new(AtomicBool::new(false), waker));
        let fixed = store.is_some();
        let mut shared = Shared::new(
            table,
            nanos(config.call_timeout),
            store,
            config.cache,
            config.read_from,
            config.unread_max,
        );
        shared.users = Users::new(config.access.clone());
        Ok(Front {
            up,
            shared,
            poll,
            door: None,
            handed: None,
            shelf: None,
            mover: DirectMover::new(stopper.0.waker()),
            stopper,
            fixed,
            pace: Pace::new(config.spin_micros),
            connections_max: config.connections_max,
            limiting: Limiting::new(config.limits()),
            clients: Seats::new(),
            sessions: FxHashMap::default(),
            dirty: Vec::new(),
            busy: VecDeque::new(),
            connecting: VecDeque::new(),
            serial: 0,
            vigil: Vigil::new(nanos(config.call_timeout)),
            learning: Learning::default(),
            marks: Marks::default(),
            waiting: Waiting::default(),
            reads: StoreReads::new(
                [READS_RESP2, READS_RESP3],
                FIRST_REPLICA,
                nanos(config.call_timeout),
            ),
            users: UserLinks::new([RIGHTS, LOGINS], nanos(config.call_timeout)),
            tracking: TrackingWire::new(nanos(config.call_timeout)),
            witnesses: Witnesses::new(FIRST_WITNESS, nanos(config.call_timeout)),
            asked: FxHashMap::default(),
            clients_ever: 0,
            behind_subscriptions: BTreeSet::new(),
            unread: UnreadOfAll::new(config.unread_total_max),
            strangers_bytes: 0,
            tls: config.tls.clone(),
            keepalive: config.keepalive,
            pulse: Arc::clone(&config.pulse),
            ask_again_at: 0,
            shaking: Shaking::default(),
            scratch: vec![0; SCRATCH_BYTES],
        })
    }

    /// Returns the address to which clients connect (the chosen port, if port 0 was configured).
    ///
    /// # Errors
    /// An error of the operating system, or the front does not listen.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        let door = self.door.as_ref();
        door.map_or(Err(ErrorKind::NotConnected.into()), Door::local_addr)
    }

    /// Returns a handle that ends [`Front::run`].
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves until stopped, and ends its sessions then. Acknowledged writes stay acknowledged. Returns the number of
    /// reads that each source answered.
    ///
    /// # Errors
    /// [`FrontError::Loop`] if the operating system's event queue fails.
    pub fn run(self) -> Result<Counters, FrontError> {
        self.run_turns(|_| ())
    }

    /// Serves like [`Front::run`], with an observer. The front calls `observe` once a turn, at the end of the turn.
    /// Calls are timed for the observer. Devices that do not answer are asked repeatedly even if no client needs them,
    /// so the observer sees when they answer again.
    ///
    /// # Errors
    /// The errors of [`Front::run`].
    pub fn run_observed(
        mut self,
        mut observe: impl FnMut(&mut FrontTurn<'_>),
    ) -> Result<Counters, FrontError> {
        self.up.time_calls();
        self.run_turns(|front| front.observed(&mut observe))
    }

    /// Takes turns until stopped. `after_each` is called at the end of each turn.
    fn run_turns(
        mut self,
        mut after_each: impl FnMut(&mut Front<U>),
    ) -> Result<Counters, FrontError> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut more_from_endpoint = false;
        // No client waits yet, but the answer shows whether the devices answer.
        self.ask_store_name();
        self.up.flush(self.shared.now);
        while !self.stopper.0.is_asked() {
            let work = more_from_endpoint
                || self
                    .door
                    .as_ref()
                    .is_some_and(|door| door.is_due(self.shared.now))
                || self.clients.turns() > 0
                || self.reads.has_more()
                || self.tracking.has_more();
            let waits = self.pace.waits(self.shared.now, work, || self.sleep());
            self.pulse.rests();
            let waited = self.pace.wait(&mut self.poll, &mut events, waits);
            self.pulse.works();
            let Some(now) = waited? else {
                continue;
            };
            self.shared.now = now;
            let mut endpoint_ready = more_from_endpoint;
            for event in &events {
                match event.token() {
                    LISTENER => self.door.iter_mut().for_each(|door| door.ready = true),
                    ENDPOINT => endpoint_ready = true,
                    WAKER => self.take_moved(),
                    HEART => self.vigil.note(event, &mut self.scratch, &mut self.shared),
                    READS_RESP2 | READS_RESP3 => self.reads.note(event),
                    TRACKING => self.tracking.note(event),
                    RIGHTS | LOGINS => {
                        self.users.note(event, &mut self.scratch, &self.shared);
                    }
                    token if self.reads.own(token) => self.reads.note(event),
                    token if self.witnesses.own(token) => {
                        self.witnesses.note(event, &mut self.scratch, &self.shared);
                    }
                    _ => self.note(event),
                }
            }
            self.take_limits();
            self.accept();
            self.take_handed();
            self.expire_connecting();
            self.keep_vigil();
            more_from_endpoint = endpoint_ready && self.up.receive(self.shared.now);
            self.take_events();
            self.take_store_reads();
            self.take_tracking();
            self.end_pause();
            for _ in 0..self.clients.turns() {
                if let Some(index) = self.clients.next_turn() {
                    self.serve(index);
                }
            }
            self.keep_users();
            self.keep_witnesses();
            self.keep_tracking();
            self.refresh_store_name();
            self.learn_commands();
            self.keep_marks();
            self.keep_waiting();
            self.ask_again();
            self.up.flush(self.shared.now);
            if self.up.take_other_socket() {
                self.up.register(self.poll.registry(), ENDPOINT)?;
            }
            self.take_events();
            self.send_store_reads();
            self.write_dirty();
            if self.shared.busy.error(self.shared.now).is_some() {
                self.vigil.attend(self.shared.now);
            }
            after_each(&mut self);
        }
        self.shut_down();
        Ok(self.counters())
    }

    /// Returns the longest time for which the loop may sleep if nothing arrives; `None`: no limit.
    fn sleep(&self) -> Option<Duration> {
        let accept = self.door.as_ref().and_then(Door::due);
        let connect = self.connecting.front().map(|(time, ..)| *time);
        let next = [
            self.up.next_timeout(),
            accept,
            connect,
            self.vigil.next_look,
            self.reads.next_timeout(),
            self.marks.next_look,
            self.waiting.next_timeout(),
            self.next_asking_again(),
            self.next_question(),
            self.next_learning(),
            self.witnesses.next_timeout(),
            self.tracking.next_timeout(&self.shared),
            self.shared.pause.until(),
        ]
        .into_iter()
        .flatten()
        .min()?;
        Some(Duration::from_nanos(next.saturating_sub(self.shared.now)))
    }

    /// Notes an event of one of a client's sockets.
    fn note(&mut self, event: &mio::event::Event) {
        let Some(slot) = event.token().0.checked_sub(FIRST_CLIENT) else {
            return;
        };
        let index = slot / 2;
        let Some(client) = self.clients.get_mut(index) else {
            return;
        };
        let seen = Seen::of(event);
        if slot.is_multiple_of(2) {
            client.socket.note(&seen);
        } else if let Some(direct) = &mut client.direct {
            direct.socket.note(&seen);
        } else {
            return;
        }
        if seen.hung_up && slot.is_multiple_of(2) {
            self.close(index, "hung up");
        } else {
            self.enqueue(index);
        }
    }

    /// One client's turn: reads, serves its connection to the store, takes its commands.
    fn serve(&mut self, index: usize) {
        let Some(client) = self.clients.get_mut(index) else {
            return;
        };
        match client.read(&mut self.scratch) {
            Transfer::Done => {}
            Transfer::Eof => client.connection.receive_eof(),
            Transfer::Broken(why) => return self.close(index, &why),
        }
        if client.has_agreed() {
            self.shaking.ends(client.connection.id());
        }
        if client.socket.read_closed {
            client.connection.client_closed();
        }
        if let Transfer::Broken(why) = client.serve_direct(&mut self.scratch, &self.shared) {
            client.connection.direct_lost(&why);
        }
        let turn = client.connection.advance(&mut self.up, &mut self.shared);
        let woken = std::mem::take(&mut client.woken);
        if turn == Turn::Busy && !client.waiting {
            client.waiting = true;
            self.busy.push_back(index);
        }
        let mut again = turn == Turn::More;
        if woken && turn != Turn::Busy {
            // The client was woken because the endpoint had a free place, but the client may not have used the place.
            self.wake_waiting();
        }
        self.note_stranger(index);
        self.take_outputs(index);
        if let Some(client) = self.clients.get_mut(index) {
            // Sends the bytes that were put into the outbox for the store just now.
            if let Transfer::Broken(why) = client.serve_direct(&mut self.scratch, &self.shared) {
                client.connection.direct_lost(&why);
                again = true;
            }
            again |= client.has_more();
            if client.connection.is_timed() {
                self.vigil.attend(self.shared.now);
            }
        }
        if again {
            self.enqueue(index);
        }
        self.mark_dirty(index);
    }

    /// Gives the endpoint's events to the connections.
    fn take_events(&mut self) {
        while let Some(event) = self.up.poll_event() {
            let index = match event {
                Event::Done {
                    session,
                    call,
                    outcome,
                } => {
                    let Some(&index) = self.sessions.get(&session) else {
                        self.mark_done(session, call, &outcome);
                        self.waiting_done(session, call, &outcome);
                        self.vigil_done(session, call, outcome);
                        continue;
                    };
                    if let Some(client) = self.clients.get_mut(index) {
                        client.connection.done(call, outcome, &mut self.shared);
                    }
                    // The call may have brought an element for which other clients wait.
                    self.waiting.stir(self.shared.now);
                    // The endpoint has a free place for another call.
                    self.wake_waiting();
                    index
                }
                Event::Read { call, answer } => {
                    let Some(index) = self.asked.remove(&call) else {
                        continue;
                    };
                    if let Some(client) = self.clients.get_mut(index) {
                        let connection = &mut client.connection;
                        connection.read_answered(call, answer, &mut self.shared);
                    }
                    index
                }
                Event::Marked { session } => {
                    self.marked(session);
                    continue;
                }
                Event::SessionClosed { session, reason } => {
                    // The outstanding calls of the closed session are over, too, and have freed their places.
                    self.wake_waiting();
                    let Some(index) = self.sessions.remove(&session) else {
                        self.mark_closed(session);
                        self.waiting_closed(session);
                        self.vigil_closed(session);
                        continue;
                    };
                    if let Some(client) = self.clients.get_mut(index) {
                        client.session = None;
                        client.connection.session_closed(reason, &mut self.shared);
                    }
                    index
                }
            };
            self.enqueue(index);
            self.mark_dirty(index);
        }
    }

    fn write_dirty(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for index in dirty.drain(..) {
            let Some(client) = self.clients.get_mut(index) else {
                continue;
            };
            client.dirty = false;
            let congested = client.connection.congested();
            let held = client.connection.held();
            if let Transfer::Broken(why) = client.write() {
                self.close(index, &why);
                continue;
            }
            self.note_unread(index, held);
            let Some(client) = self.clients.get_mut(index) else {
                continue;
            };
            if client.connection.finished() && client.is_flushed() {
                if !client.lingers(self.shared.now) {
                    self.close(index, "finished");
                } else {
                    self.vigil.attend(self.shared.now);
                    if client.has_more() {
                        self.enqueue(index);
                    }
                }
            } else if congested && !client.connection.congested() {
                self.enqueue(index);
            }
        }
        self.dirty = dirty;
    }

    fn shut_down(&mut self) {
        for index in self.clients.indices() {
            self.close(index, "the front ends");
        }
        self.end_vigil();
        self.leave_marks();
        self.up.end_reads(self.shared.now);
        self.up.flush(self.shared.now);
    }
}

pub(crate) fn nanos(duration: Duration) -> Time {
    Time::try_from(duration.as_nanos()).unwrap_or(Time::MAX)
}
