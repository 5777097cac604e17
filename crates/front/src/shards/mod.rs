//! One address in front of many shards, by Redis Cluster's hash slots.
//!
//! Purpose: each shard has a whole [`Front`](crate::Front) of its own, in a thread of its own, which knows nothing of the others.
//! The router takes the clients' connections, looks at each command's keys ([`crate::table::keys`]), sends it to the front of its
//! shard over a pair of sockets within the process, and returns the replies in the order of the client's commands
//! (`docs/use/sharding.md`, `docs/spec/sharding.md`).
//!
//! | module | what it does |
//! |---|---|
//! | [`slot`] | hash slots, and which shard serves which |
//! | `route` | what is to be done with a command, by its name and keys |
//! | `client` | one client: its socket, its children, its turn |
//! | `take` | its commands: where each goes |
//! | `answer` | what comes of the links, replies |
//! | `backs`, `link` | the shards as a client has them; the pair to one front, and what is owed on it |
//! | `replies`, `merge`, `scan` | replies in order; one of those of all shards; SCAN |
//! | `trust`, `end` | whether it may do anything; how it comes to its end |
//! | `state` | what a client has set for its connection, in all shards the same |
//! | `transaction` | MULTI, WATCH |
//! | `subscribe` | subscriptions |
//! | `cluster` | CLUSTER |
//! | `tally` | counters and times |
//!
//! Invariants: commands of a client for one shard reach its front in their order, each once; nothing is promised between
//! shards. Every buffer and table is bounded: what is outstanding for a client by number and by bytes for each shard, and who has
//! more than that is not read from. A shard that is slow or down holds up replies after its own, nothing else.
//! It may not acknowledge anything, or know what a command does to its keys.

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

use crate::shell::accept::{Door, HANDSHAKES_MAX, welcome};
use crate::shell::limiting::Limiting;
use crate::shell::pace::Pace;
use crate::shell::seats::Seats;
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
/// Tokens of client `i`: this plus `i` times one more than there are shards for its own socket, and those that follow for its
/// links.
const FIRST_CLIENT: usize = 16;
/// Events taken from the operating system at once.
const EVENTS_MAX: usize = 1024;
/// Bytes of the buffer that all sockets are read into.
const SCRATCH_BYTES: usize = 64 * 1024;
/// How often those are looked for who are late, in nanoseconds.
const LOOK_EVERY: Time = 1_000_000_000;

/// How a router is set up.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    /// Where to listen for Redis clients.
    pub listen: SocketAddr,
    /// Most clients at a time; one more is told so and closed.
    pub connections_max: usize,
    /// Microseconds to poll without sleeping after activity ([`pmnet_client::Spin`]).
    pub spin_micros: u64,
    /// With what clients speak TLS; `None`: they do not.
    pub tls: Option<ServerTls>,
    /// As [`crate::FrontConfig::keepalive`].
    pub keepalive: Option<Duration>,
    /// Whether every client may do everything ([`crate::Access::Anyone`]).
    pub anyone: bool,
    /// Which shard serves which slots.
    pub map: SlotMap,
    /// Whether the Redis of all shards are masters of one Redis Cluster, which gives messages to all of them.
    pub cluster: bool,
    /// Sign that the loop lives.
    pub pulse: Arc<Pulse>,
}

/// Gives a running router another map.
#[derive(Clone)]
pub struct MapChanger {
    next: Arc<Mutex<Option<SlotMap>>>,
    waker: Arc<Waker>,
}

impl MapChanger {
    /// From soon on this one counts. It has as many shards, in the same order.
    pub fn change(&self, map: SlotMap) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        *next = Some(map);
        drop(next);
        if let Err(error) = self.waker.wake() {
            tracing::warn!(%error, "PM3321 the router cannot be woken for its new map");
        }
    }
}

/// A router that listens; [`Router::run`] serves.
pub struct Router {
    common: Common,
    poll: Poll,
    door: Door,
    stopper: Stopper,
    /// A map that is to replace the present one.
    next_map: Arc<Mutex<Option<SlotMap>>>,
    /// Commands without a reply that were taken before the map was changed last; `None`: it has been said that there are none left.
    taken_before: Option<usize>,
    pace: Pace,
    now: Time,
    connections_max: usize,
    limiting: Limiting,
    pulse: Arc<Pulse>,
    tls: Option<ServerTls>,
    keepalive: Option<Duration>,
    clients: Seats<Client>,
    clients_ever: u64,
    /// How many slots no shard serves, and how many are moving.
    slots: (usize, usize),
    /// When clients with a deadline are looked at next; `None`: there is none.
    next_look: Option<Time>,
    scratch: Vec<u8>,
}

impl Router {
    /// Listens, before these fronts; one for each shard of the map, in its order. Nothing is served before [`Router::run`].
    ///
    /// # Errors
    /// [`FrontError`], with what to do about it.
    ///
    /// # Panics
    /// If there are not as many fronts as shards.
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
            clients_ever: 0,
            slots: (config.map.unserved(), config.map.moving_count()),
            next_look: None,
            scratch: vec![0; SCRATCH_BYTES],
        })
    }

    /// The address that clients connect to (the port that was chosen, if 0 was asked for).
    ///
    /// # Errors
    /// Of the operating system.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.door.local_addr()
    }

    /// A handle that ends [`Router::run`].
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// A handle that changes the map while [`Router::run`] serves.
    #[must_use]
    pub fn map_changer(&self) -> MapChanger {
        MapChanger {
            next: self.next_map.clone(),
            waker: self.stopper.0.waker(),
        }
    }

    /// A handle that gives a running router other limits: of them it has `connections_max` and `keepalive`.
    #[must_use]
    pub fn limits(&self) -> Latest<Limits> {
        self.limiting.newest()
    }

    /// Serves until stopped, and says how many clients there were.
    ///
    /// # Errors
    /// [`FrontError::Loop`] if the operating system's event queue fails.
    pub fn run(self) -> Result<u64, FrontError> {
        self.run_turns(|_| ())
    }

    /// Returns the same. `observe` is called once a turn, after all that the turn does. Commands are timed for it.
    ///
    /// # Errors
    /// As there.
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

    /// Takes turns until it is stopped. `after_each` is called at the end of each.
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

    /// Takes the next map, if there is one. Commands that were taken before go on as they were.
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

    /// Takes other limits, if there are some.
    fn take_limits(&mut self) {
        if let Some(limits) = self.limiting.take() {
            self.connections_max = limits.connections_max;
            self.keepalive = limits.keepalive;
        }
    }

    /// A front has heard which commands its store has. The stores of all shards are taken to have the same: if one has not, it says so.
    fn learn_commands(&mut self) {
        for entrance in &self.common.fronts.entrances {
            if let Some(learned) = entrance.take_learned() {
                self.common.table = self.common.table.with(&learned);
            }
        }
    }

    /// Notes that `over` of the commands that were taken before the map was changed are over.
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

    /// Remembers what an event says about a client's sockets.
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
        // Its links end with it, which tells the fronts.
        let Who { id, peer, .. } = client.who();
        tracing::debug!(client = %peer, id, "client closed");
        self.clients.release(index);
        self.note_taken(client.taken_before());
    }

    /// Closes those who have not agreed on TLS in time, or go on and on after an error.
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
        if self.clients.count() >= self.connections_max {
            self.common.tally.count(|counters| counters.refused += 1);
            return self
                .door
                .refuse(stream, peer, self.connections_max, self.now);
        }
        let shaking = || {
            let clients = self.clients.iter();
            clients
                .filter(|(_, client)| client.is_handshaking())
                .count()
        };
        if self.tls.is_some() && shaking() >= HANDSHAKES_MAX {
            self.door.note_shaking(peer, self.now);
            return Ok(());
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
        self.clients.put(index, client);
        self.clients.enqueue(index);
        Ok(())
    }
}
