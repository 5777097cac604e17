//! One address for many shards, by Redis Cluster's hash slots.
//!
//! Purpose: each shard has a complete [`Front`](crate::Front), which runs in a thread of its own and does not know the
//! other shards. The router accepts the clients' connections and looks at each command's keys ([`crate::table::keys`]).
//! The router sends each command to the front of its shard over a pair of sockets within the process. It returns the
//! replies in the order of the client's commands (`docs/use/sharding.md`, `docs/spec/sharding.md`).
//!
//! | module | what it does |
//! |---|---|
//! | [`slot`] | hash slots, and the shard that serves each |
//! | `route` | how a command is handled, by its name and keys |
//! | `client` | one client: its socket, its parts, its turn |
//! | `take` | taking commands: the shard of each |
//! | `answer` | what the links send, replies |
//! | `backs`, `link` | the shards as a client uses them; the pair of sockets to one front, and its owed replies |
//! | `replies`, `merge`, `scan` | replies in order; one reply from those of all shards; SCAN |
//! | `trust`, `end` | whether a client may do everything; how its connection ends |
//! | `state` | a client's settings, which are the same in all shards |
//! | `transaction` | MULTI, WATCH |
//! | `subscribe` | subscriptions |
//! | `cluster` | CLUSTER |
//! | `tally` | counters and times |
//!
//! Invariants: a client's commands for one shard reach the shard's front in their order, and each command reaches the
//! front once. Between commands for different shards no order is promised. Every buffer and table is bounded. The
//! outstanding commands of a client are bounded in number, and in bytes for each shard. The router reads nothing from a
//! client above these bounds. If a shard is slow or down, only its own replies and the replies after them are delayed.
//! Not allowed here: acknowledging a command, or knowing its effect on its keys.

mod answer;
mod backs;
mod client;
mod cluster;
mod end;
mod link;
mod merge;
mod replies;
mod route;
mod scan;
pub mod slot;
mod state;
mod subscribe;
mod take;
mod tally;
mod transaction;
mod trust;

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Events, Poll, Token, Waker};
use pmnet_tls::ServerTls;

use crate::shell::accept::{Door, welcome};
use crate::shell::limiting::Limiting;
use crate::shell::pace::Pace;
use crate::shell::seats::Seats;
use crate::shell::shaking::{Admits, Shaking};
use crate::shell::stopper::Ending;
use crate::shell::wire::Seen;
use crate::shell::{Entrance, FrontConfig, FrontError, Limits, Stopper};
use crate::table::Table;
use crate::upstream::Time;
use backs::{Fronts, Who};
use client::{Client, Common, Turn};
use pmnet_client::{Latest, Pulse};
use slot::SlotMap;
use tally::Tally;
pub use tally::{RouterClass, RouterCounters, RouterTurn};

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
/// First token of client 0. Each client has one token for its own socket, and then one for each shard's link.
const FIRST_CLIENT: usize = 16;
/// Events taken from the operating system at once.
const EVENTS_MAX: usize = 1024;
/// Bytes of the buffer into which all sockets are read.
const SCRATCH_BYTES: usize = 64 * 1024;
/// Interval of the search for clients that have missed their deadlines, in nanoseconds.
const LOOK_EVERY: Time = 1_000_000_000;

/// Configuration of a router.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    /// Address on which the router listens for Redis clients.
    pub listen: SocketAddr,
    /// Maximum number of clients at a time. A further client gets an error and is closed.
    pub connections_max: usize,
    /// Microseconds of polling without sleeping after activity ([`pmnet_client::Spin`]).
    pub spin_micros: u64,
    /// TLS settings for clients; `None`: no TLS.
    pub tls: Option<ServerTls>,
    /// Keepalive of the clients' connections, with the meaning of [`crate::FrontConfig::keepalive`].
    pub keepalive: Option<Duration>,
    /// Whether every client may do everything ([`crate::Access::Anyone`]).
    pub anyone: bool,
    /// The shard of each slot.
    pub map: SlotMap,
    /// Whether the Redis servers of all shards are masters of one Redis Cluster. In a Redis Cluster each node gets every
    /// message that a client publishes with PUBLISH.
    pub cluster: bool,
    /// Signals that the event loop is running.
    pub pulse: Arc<Pulse>,
}

/// A handle that gives a running router another map.
#[derive(Clone)]
pub struct MapChanger {
    next: Arc<Mutex<Option<SlotMap>>>,
    waker: Arc<Waker>,
}

impl MapChanger {
    /// Makes the router replace its map by this map, soon after the call. The new map must have the same shards in the
    /// same order as the present map.
    pub fn change(&self, map: SlotMap) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        *next = Some(map);
        drop(next);
        if let Err(error) = self.waker.wake() {
            tracing::warn!(%error, "PM3321 the router cannot be woken for its new map");
        }
    }
}

/// A router that listens on its address; [`Router::run`] serves.
pub struct Router {
    common: Common,
    poll: Poll,
    door: Door,
    stopper: Stopper,
    /// A map that will replace the present one.
    next_map: Arc<Mutex<Option<SlotMap>>>,
    /// Number of commands that were taken before the last change of the map and still wait for their replies. `None`:
    /// all such commands have their replies, and their number needs no further report.
    taken_before: Option<usize>,
    pace: Pace,
    now: Time,
    connections_max: usize,
    limiting: Limiting,
    pulse: Arc<Pulse>,
    tls: Option<ServerTls>,
    keepalive: Option<Duration>,
    clients: Seats<Client>,
    shaking: Shaking,
    clients_ever: u64,
    /// Number of slots that no shard serves, and number of slots that are moving.
    slots: (usize, usize),
    /// Time of the next check of the clients with a deadline; `None`: no client has one.
    next_look: Option<Time>,
    scratch: Vec<u8>,
}

impl Router {
    /// Opens the router's address. `entrances`: the fronts, one for each shard of the map, in the map's order. Nothing
    /// is served before [`Router::run`].
    ///
    /// # Errors
    /// [`FrontError`], which says what to do.
    ///
    /// # Panics
    /// If the numbers of fronts and shards differ.
    pub fn bind(config: &RouterConfig, entrances: Vec<Entrance>) -> Result<Router, FrontError> {
        assert_eq!(
            entrances.len(),
            config.map.shards(),
            "a front for each shard"
        );
        let mut door = Door::open(config.listen, config.tls.is_some())?;
        let poll = Poll::new()?;
        door.register(poll.registry(), LISTENER)?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        Ok(Router {
            common: Common {
                table: Table::new::<&str>(&[])?,
                map: config.map.clone(),
                fronts: Arc::new(Fronts {
                    entrances,
                    registry: poll.registry().try_clone()?,
                }),
                trusting: config.anyone,
                cluster: config.cluster,
                tally: Tally::default(),
            },
            poll,
            door,
            stopper: Stopper(Ending::new(AtomicBool::new(false), waker)),
            next_map: Arc::default(),
            taken_before: None,
            now: 0,
            pace: Pace::new(config.spin_micros),
            connections_max: config.connections_max,
            limiting: Limiting::new(Limits {
                connections_max: config.connections_max,
                keepalive: config.keepalive,
                ..FrontConfig::new(config.listen).limits()
            }),
            pulse: Arc::clone(&config.pulse),
            tls: config.tls.clone(),
            keepalive: config.keepalive,
            clients: Seats::new(),
            shaking: Shaking::default(),
            clients_ever: 0,
            slots: (config.map.unserved(), config.map.moving_count()),
            next_look: None,
            scratch: vec![0; SCRATCH_BYTES],
        })
    }

    /// Returns the address to which clients connect (the chosen port, if port 0 was configured).
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.door.local_addr()
    }

    /// Returns a handle that ends [`Router::run`].
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Returns a handle that changes the map while [`Router::run`] serves.
    #[must_use]
    pub fn map_changer(&self) -> MapChanger {
        MapChanger {
            next: self.next_map.clone(),
            waker: self.stopper.0.waker(),
        }
    }

    /// Returns a handle that changes the limits of a running router. Of the limits in [`Limits`], a router has only
    /// `connections_max` and `keepalive`.
    #[must_use]
    pub fn limits(&self) -> Latest<Limits> {
        self.limiting.newest()
    }

    /// Serves until stopped. Returns the number of clients served.
    ///
    /// # Errors
    /// [`FrontError::Loop`] if the operating system's event queue fails.
    pub fn run(self) -> Result<u64, FrontError> {
        self.run_turns(|_| ())
    }

    /// Serves like [`Router::run`], with an observer. The router calls `observe` once a turn, at the end of the turn.
    /// Commands are timed for the observer.
    ///
    /// # Errors
    /// The errors of [`Router::run`].
    pub fn run_observed(
        self,
        mut observe: impl FnMut(&mut RouterTurn<'_>),
    ) -> Result<u64, FrontError> {
        self.common.tally.time();
        self.run_turns(|router| router.observed(&mut observe))
    }

    /// Shows the turn to `observe`.
    fn observed(&self, observe: &mut impl FnMut(&mut RouterTurn<'_>)) {
        let mut took = self.common.tally.take_took();
        observe(&mut RouterTurn {
            counters: self.common.tally.counters(),
            clients: self.clients.count(),
            clients_ever: self.clients_ever,
            unserved: self.slots.0,
            moving: self.slots.1,
            before_map: self.taken_before.unwrap_or(0),
            took: &mut took.drain(..),
        });
        self.common.tally.put_back(took);
    }

    /// Takes turns until stopped. `after_each` is called at the end of each turn.
    fn run_turns(mut self, mut after_each: impl FnMut(&mut Router)) -> Result<u64, FrontError> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        while !self.stopper.0.is_asked() {
            let work = self.door.is_due(self.now) || self.clients.turns() > 0;
            let waits = self.pace.waits(self.now, work, || self.sleep());
            self.pulse.rests();
            let waited = self.pace.wait(&mut self.poll, &mut events, waits);
            self.pulse.works();
            let Some(now) = waited? else {
                continue;
            };
            self.now = now;
            self.common.tally.begin(now);
            for event in &events {
                match event.token() {
                    LISTENER => self.door.ready = true,
                    WAKER => {}
                    _ => self.note(event),
                }
            }
            self.take_limits();
            self.change_map();
            self.learn_commands();
            self.accept();
            for _ in 0..self.clients.turns() {
                if let Some(index) = self.clients.next_turn() {
                    self.serve(index);
                }
            }
            self.look_for_late();
            after_each(&mut self);
        }
        Ok(self.clients_ever)
    }

    /// If there is a new map, uses it from now on. Commands that were already taken stay with their shards.
    fn change_map(&mut self) {
        let next = self.next_map.lock();
        let Some(map) = next.unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        if map.shards() != self.common.map.shards() {
            tracing::error!("PM3322 the new map has another number of shards: it is not used");
            return;
        }
        let old = std::mem::replace(&mut self.common.map, map);
        let map = &self.common.map;
        let (moved, moving) = (old.differing(map), map.moving());
        let mut elsewhere = Vec::new();
        let mut taken = 0;
        for (index, client) in self.clients.iter_mut() {
            taken += client.note_map();
            if client.listens_elsewhere(&old, map) {
                elsewhere.push(index);
            }
        }
        self.slots = (map.unserved(), map.moving_count());
        self.common.tally.count(|counters| counters.maps += 1);
        tracing::info!(
            to_others = moved,
            moving,
            under_way = taken,
            closed = elsewhere.len(),
            "the map of slots has changed"
        );
        self.taken_before = Some(taken);
        for index in elsewhere {
            self.close(index);
        }
        self.note_taken(0);
    }

    /// Applies the new limits, if the limits have changed.
    fn take_limits(&mut self) {
        if let Some(limits) = self.limiting.take() {
            self.connections_max = limits.connections_max;
            self.keepalive = limits.keepalive;
        }
    }

    /// Takes the commands that fronts have learned of their stores. The stores of all shards are assumed to
    /// have the same commands; a store without a command refuses it.
    fn learn_commands(&mut self) {
        for entrance in &self.common.fronts.entrances {
            if let Some(learned) = entrance.take_learned() {
                self.common.table = self.common.table.with(&learned);
            }
        }
    }

    /// Notes that `over` commands of those taken before the last change of the map have got their replies.
    fn note_taken(&mut self, over: usize) {
        let Some(left) = &mut self.taken_before else {
            return;
        };
        *left = left.saturating_sub(over);
        if *left == 0 {
            self.taken_before = None;
            tracing::info!(
                moving = self.common.map.moving(),
                "all commands that were taken before the map of slots changed are over"
            );
        }
    }

    fn sleep(&self) -> Option<Duration> {
        let next = self.door.due().into_iter().chain(self.next_look).min()?;
        Some(Duration::from_nanos(next.saturating_sub(self.now)))
    }

    /// Notes an event of one of a client's sockets.
    fn note(&mut self, event: &mio::event::Event) {
        let stride = self.common.fronts.entrances.len() + 1;
        let Some(place) = event.token().0.checked_sub(FIRST_CLIENT) else {
            return;
        };
        let (index, socket) = (place / stride, place % stride);
        let Some(client) = self.clients.get_mut(index) else {
            return;
        };
        let seen = Seen::of(event);
        if socket == 0 && seen.hung_up {
            return self.close(index);
        }
        client.note(socket, &seen);
        self.clients.enqueue(index);
    }

    fn serve(&mut self, index: usize) {
        let Some(client) = self.clients.get_mut(index) else {
            return;
        };
        let before = client.taken_before();
        let turn = client.serve(&self.common, &mut self.scratch, self.now);
        let over = before.saturating_sub(client.taken_before());
        if !client.is_handshaking() {
            self.shaking.ends(client.who().id);
        }
        if client.is_timed() && self.next_look.is_none() {
            self.next_look = Some(self.now + LOOK_EVERY);
        }
        match turn {
            Turn::Idle => {}
            Turn::More => self.clients.enqueue(index),
            Turn::Closed => self.close(index),
        }
        if over > 0 {
            self.note_taken(over);
        }
    }

    fn close(&mut self, index: usize) {
        let Some(client) = self.clients.take(index) else {
            return;
        };
        // Dropping the client closes its links, so the fronts see that the client has ended.
        let Who { id, peer, .. } = client.who();
        tracing::debug!(client = %peer, id, "client closed");
        self.clients.release(index);
        self.shaking.ends(*id);
        self.note_taken(client.taken_before());
    }

    /// Closes clients whose TLS handshake takes too long, or that send for too long after an error.
    fn look_for_late(&mut self) {
        if self.next_look.is_none_or(|time| self.now < time) {
            return;
        }
        let is_late = |client: &Client| client.is_late(self.now);
        let late: Vec<usize> = self
            .clients
            .iter()
            .filter_map(|(index, client)| is_late(client).then_some(index))
            .collect();
        for index in late {
            self.common.tally.count(|counters| counters.late += 1);
            self.close(index);
        }
        let timed = self.clients.iter().any(|(_, client)| client.is_timed());
        self.next_look = timed.then_some(self.now + LOOK_EVERY);
    }

    fn accept(&mut self) {
        for (stream, peer) in self.door.accept(self.now) {
            if let Err(error) = self.admit(stream, peer) {
                tracing::debug!(client = %peer, %error, "lost before it was served");
            }
        }
    }

    fn admit(&mut self, stream: TcpStream, peer: SocketAddr) -> std::io::Result<()> {
        match (self.shaking).admits(peer.ip(), self.clients.count(), self.connections_max) {
            Admits::Yes => {}
            Admits::InPlaceOf(index, from) => {
                self.door.note_shaking(from, self.now);
                self.common.tally.count(|counters| counters.late += 1);
                self.close(index);
            }
            Admits::No => {
                self.door.note_shaking(peer, self.now);
                return Ok(());
            }
        }
        if self.clients.count() >= self.connections_max {
            self.common.tally.count(|counters| counters.refused += 1);
            return self
                .door
                .refuse(stream, peer, self.connections_max, self.now);
        }
        let mut wire = welcome(stream, self.tls.as_ref(), self.keepalive)?;
        let index = self.clients.reserve();
        let token = FIRST_CLIENT + index * (self.common.fronts.entrances.len() + 1);
        if let Err(error) = wire.register(&self.common.fronts.registry, Token(token)) {
            self.clients.release(index);
            return Err(error);
        }
        self.clients_ever += 1;
        let who = Who {
            id: self.clients_ever,
            peer,
            local: wire.local_addr(),
        };
        let client = Client::new(who, wire, token, self.now, &self.common);
        if client.is_handshaking() {
            self.shaking.begins(self.clients_ever, index, peer);
        }
        self.clients.put(index, client);
        self.clients.enqueue(index);
        Ok(())
    }
}
