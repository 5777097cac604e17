//! The world: one thread, one queue of events, and all random draws from one seed.
//!
//! A world has four phases. *Load*: clients make their calls while faults happen. *Settle*: all faults are repaired,
//! logs must drain, and the calls of a probe must succeed. *Idle*: sessions are open and no client makes calls, so
//! processes must be nearly silent. *Closing*: sessions end or expire, and only the watermark and the chain may be left
//! in the store. The faults are described in the modules `network`, `accidents`, `hosts`, `client`, `media`, `store`,
//! `stores`, `wide`, `fleet`, `standby`, `rollover` and `clock`.

use crate::campaign::Plan;
use crate::cells::Fault;
use crate::check::History;
use crate::client::ClientHost;
use crate::clock::Clock;
use crate::config::WorldConfig;
use crate::fleet::{Fleet, Step};
use crate::hosts::{DeviceHost, Image, ServerHost, arrive};
use crate::network::Seen;
use crate::report::Report;
use crate::rollover::{self, Rolling};
use crate::standby;
use crate::store::{Operation, SimStore, StoreConfig};
use crate::stores::Asking;
use pmnet_device::Buffers;
use pmnet_proto::time::{MICROSECOND, MILLISECOND, Nanos, SECOND};
use pmnet_proto::{Outbox, Peer, Random, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Time before the idle phase, in which packets under way arrive.
pub(crate) const QUIETEN: Nanos = SECOND;
/// Length of the idle phase.
pub(crate) const IDLE: Nanos = 2 * SECOND;
/// This number and the seed of a world give the seed of a second generator, from which everything beyond a plain world
/// is drawn.
const WIDE: u64 = 0x5749_4445_0000_0000;
/// One in this number of worlds has a packet store.
const PACKETS_EVERY: u64 = 4;
/// One in this number of worlds has devices with leases, if its other settings allow leases.
const LEASES_EVERY: u64 = 4;
/// One in this number of worlds has a standby server, if its other settings allow this.
const STANDBY_EVERY: u64 = 4;
/// One in this number of worlds has paths that carry only shorter packets.
const PATHS_EVERY: u64 = 4;
/// One in this number of worlds has a small session table.
const CROWDED_EVERY: u64 = 8;
/// Maximum number of events of one world.
const EVENTS_MAX: u64 = 4_000_000;

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Deliver {
        to: Peer,
        from: Peer,
        bytes: Vec<u8>,
    },
    Turn {
        node: usize,
        life: u32,
    },
    Release {
        life: u32,
        packets: Vec<(Peer, Vec<u8>)>,
    },
    Persisted {
        node: usize,
        life: u32,
    },
    Restart {
        node: usize,
    },
    Rebirth {
        node: usize,
    },
    Reconnect {
        node: usize,
    },
    Redirect {
        node: usize,
    },
    ClockGoesOn {
        node: usize,
    },
    StormEnds,
    DetourEnds,
    /// The operator wires the device that is to join as the last hop of the chain.
    Wire,
    PathsShrink,
    PathNoticed {
        node: usize,
    },
    /// An event that concerns leases.
    Fleet(Step),
    /// An event that concerns two servers.
    Standby(standby::Step),
    /// An event that concerns a change of keys.
    Rollover(rollover::Step),
    Accident,
    IdleBegins,
    IdleEnds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Load,
    Settle {
        until: Time,
    },
    Quieten,
    Idle {
        events: u64,
        sessions: usize,
        attempt: u32,
    },
    Closing {
        until: Time,
    },
    Done,
}

/// The world of one seed.
pub struct World {
    pub(crate) config: WorldConfig,
    pub(crate) random: Random,
    pub(crate) now: Time,
    queue: BTreeMap<(Time, u64), Event>,
    next_event: u64,
    pub(crate) devices: Vec<DeviceHost>,
    pub(crate) server: ServerHost,
    /// The server from which the present server has taken over, if the earlier server still runs.
    pub(crate) earlier: Option<standby::Earlier>,
    /// The clients; the last one is the probe.
    pub(crate) clients: Vec<ClientHost>,
    /// One clock for each node: first the devices, then the server, then the clients.
    pub(crate) clocks: Vec<Clock>,
    pub(crate) turn_at: BTreeMap<usize, Time>,
    pub(crate) cut: BTreeSet<(Peer, Peer)>,
    pub(crate) isolated: BTreeSet<usize>,
    pub(crate) memory: Vec<Seen>,
    pub(crate) sent_in: BTreeMap<u64, BTreeSet<u64>>,
    /// Shard tokens that a server has stated.
    pub(crate) lives: BTreeSet<u64>,
    /// Requests that clients have asked the server to execute.
    pub(crate) asked: BTreeMap<u64, Asking>,
    pub(crate) lost: usize,
    /// The devices that the operator wants in the chain, head first.
    pub(crate) order: Vec<usize>,
    /// The device that was started to join, and is not wired into the chain yet.
    pub(crate) joiner: Option<usize>,
    /// The highest A that the server has stated.
    pub(crate) watermark: u64,
    /// For each device, the highest A in a lost packet to the device.
    pub(crate) reclaim_lost: Vec<u64>,
    /// The node to which clients' packets to the head are delivered instead; `None`: there is no detour.
    pub(crate) detour: Option<Peer>,
    /// The fault that the next packet suffers.
    pub(crate) struck: Option<Fault>,
    /// Earliest time of the next aimed fault.
    pub(crate) strike_at: Time,
    /// Updates that a declared loss may have removed.
    pub(crate) excused: BTreeSet<u64>,
    /// The history that was checked at the end.
    pub(crate) history: History,
    pub(crate) calm: bool,
    /// The lease store and its users, if devices have leases.
    pub(crate) fleet: Option<Fleet>,
    /// The change of keys, if there is one.
    pub(crate) rolling: Rolling,
    /// For each node, the time at which it notices that its paths carry less; empty: no path has changed.
    pub(crate) noticed: Vec<Time>,
    pub(crate) phase: Phase,
    hash: rustc_hash::FxHasher,
    /// Number of delivered packets and of turns so far.
    pub(crate) busy: u64,
    pub(crate) report: Report,
    trace: Option<Vec<String>>,
}

/// Returns the address of a node.
pub(crate) fn address(node: usize) -> Peer {
    let last = u8::try_from(node + 1).expect("few nodes");
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), 51_000)
}

impl World {
    /// Returns the world of this seed before its first event. `trace`: the world writes a trace.
    #[must_use]
    pub fn new(seed: u64, plan: &Plan, trace: bool) -> World {
        let mut random = Random::new(seed);
        let mut more = Random::new(seed ^ WIDE);
        let config = WorldConfig::from_seed(&mut random).wide(&mut more);
        let config = match plan.only {
            Some(cell) => config.aimed(cell),
            None => config,
        };
        let packets = more.next_u64().is_multiple_of(PACKETS_EVERY);
        let leased = more.next_u64().is_multiple_of(LEASES_EVERY);
        let config = match plan.without {
            Some(without) => config.lacking(without),
            None if packets || plan.packet_store => config.on_packets(),
            None => config,
        };
        let config = WorldConfig {
            short_store: plan.short_store,
            ..config
        };
        let config = match plan.without {
            None if leased => config.with_leases(&mut more),
            _ => config,
        };
        let standby = more.next_u64().is_multiple_of(STANDBY_EVERY);
        let config = match plan.without {
            None if standby => config.with_standby(),
            _ => config,
        };
        let crowded = more.next_u64().is_multiple_of(CROWDED_EVERY);
        let config = match plan.without {
            None if crowded => config.crowded(),
            _ => config,
        };
        let narrow = more.next_u64().is_multiple_of(PATHS_EVERY);
        let config = match plan.without {
            None if narrow => config.with_paths(&mut more),
            _ => config,
        };
        let config = match plan.without {
            None if plan.keyed => config.with_keys().rolling(&mut more),
            Some(_) if plan.keyed => config.with_keys(),
            _ => config,
        };
        World::with_config(seed, config, random, trace)
    }

    /// Returns the world of this seed without the faults that [`WorldConfig::wide`] adds.
    #[must_use]
    pub fn plain(seed: u64, trace: bool) -> World {
        let mut random = Random::new(seed);
        let config = WorldConfig::from_seed(&mut random);
        World::with_config(seed, config, random, trace)
    }

    /// Returns the world of this seed, changed to test the first moments of a chain ([`WorldConfig::forming`]).
    #[must_use]
    pub fn forming(seed: u64, trace: bool) -> World {
        let mut random = Random::new(seed);
        let config = WorldConfig::from_seed(&mut random).forming();
        World::with_config(seed, config, random, trace)
    }

    fn with_config(seed: u64, config: WorldConfig, mut random: Random, trace: bool) -> World {
        let store_config = StoreConfig {
            trouble: config.store_trouble,
            reply_max: config.reply_max,
            steps: config.store_steps,
            wait: config.wait_replicas,
            packets: config.packet_store,
            short: config.short_store,
            standby: config.standby,
        };
        let store = SimStore::new(random.next_u64(), store_config);
        store.set_broken(config.without.map(|without| without.place));
        if config.reads {
            store.set_stopping_writes();
        }
        let devices = config.devices;
        let first = config.devices + 1;
        let first_spare = config.devices - config.spares;
        let mut clients = Vec::new();
        for at in 0..config.clients {
            let any = random.next_u64() % u64::try_from(config.devices).expect("few devices");
            let wrong = usize::try_from(any).expect("few devices");
            let head = address(if config.lost_clients { wrong } else { 0 });
            clients.push(ClientHost::new(
                first + at,
                head,
                &config,
                store.handle(),
                random.next_u64(),
            ));
        }
        let probe = first + config.clients;
        clients.push(ClientHost::probe(
            probe,
            address(0),
            &config,
            store.handle(),
            random.next_u64(),
        ));
        World {
            devices: (0..config.devices)
                .map(|n| DeviceHost::new(n, &config, n >= first_spare))
                .collect(),
            server: ServerHost::new(store),
            earlier: None,
            clients,
            clocks: vec![Clock::default(); probe + 1],
            config,
            random,
            now: Time(0),
            queue: BTreeMap::new(),
            next_event: 0,
            turn_at: BTreeMap::new(),
            cut: BTreeSet::new(),
            isolated: BTreeSet::new(),
            memory: Vec::new(),
            sent_in: BTreeMap::new(),
            lives: BTreeSet::new(),
            asked: BTreeMap::new(),
            lost: 0,
            order: (0..first_spare).collect(),
            joiner: None,
            watermark: 0,
            reclaim_lost: vec![0; devices],
            detour: None,
            struck: None,
            strike_at: Time(0),
            excused: BTreeSet::new(),
            history: History::default(),
            calm: false,
            fleet: None,
            rolling: Rolling::default(),
            noticed: Vec::new(),
            phase: Phase::Load,
            hash: rustc_hash::FxHasher::default(),
            busy: 0,
            report: Report {
                seed,
                ..Report::default()
            },
            trace: trace.then(Vec::new),
        }
    }

    pub(crate) fn schedule(&mut self, after: Nanos, event: Event) {
        self.queue
            .insert((self.now + after, self.next_event), event);
        self.next_event += 1;
    }

    pub(crate) fn below(&mut self, bound: Nanos) -> Nanos {
        if bound == 0 {
            0
        } else {
            self.random.next_u64() % bound
        }
    }

    pub(crate) fn chance(&mut self, of_1000: u64) -> bool {
        !self.calm && of_1000 > 0 && self.below(1000) < of_1000
    }

    pub(crate) fn happened(&mut self, what: &'static str) {
        *self.report.happened.entry(what).or_default() += 1;
    }

    pub(crate) fn violation(&mut self, words: String) {
        self.tell(|| format!("VIOLATION: {words}"));
        self.report.violations.push(words);
    }

    pub(crate) fn tell(&mut self, words: impl FnOnce() -> String) {
        let now = self.now.0;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>12} ns  {}", now, words()));
        }
    }

    /// Draws one of these nodes; `nodes` is not empty.
    pub(crate) fn pick(&mut self, nodes: &[usize]) -> usize {
        let at = self.below(u64::try_from(nodes.len()).expect("few nodes"));
        nodes[usize::try_from(at).expect("few nodes")]
    }

    /// Draws one of the nodes to which accidents happen.
    pub(crate) fn any_node(&mut self) -> usize {
        let nodes = self.config.devices + 1 + self.config.clients;
        usize::try_from(self.below(u64::try_from(nodes).expect("few nodes"))).expect("few nodes")
    }

    /// Runs the world to its end and checks it.
    #[must_use]
    pub fn run(mut self) -> Report {
        self.live()
    }

    /// Runs the world to its end and checks it. Also returns the history, for other checkers.
    #[must_use]
    pub fn run_with_history(mut self) -> (Report, History) {
        let report = self.live();
        (report, std::mem::take(&mut self.history))
    }

    /// Runs the world to its end and checks it. Writes the trace into `story`, even if the run panics.
    #[must_use]
    pub fn run_into(mut self, story: &mut Vec<String>) -> Report {
        let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.live()));
        story.append(self.trace.as_mut().unwrap_or(&mut Vec::new()));
        lived.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn live(&mut self) -> Report {
        let spread = if self.config.lost_clients { 20 } else { 2 };
        for node in 0..=self.config.devices {
            let after = self.below(spread * MILLISECOND);
            self.schedule(after, Event::Restart { node });
        }
        for node in self.config.devices + 1..self.clocks.len() {
            self.wake(node, 0);
            if self.config.lost_clients {
                let after = self.below(40 * MILLISECOND);
                self.schedule(after, Event::Redirect { node });
            }
        }
        if self.config.accident_every > 0 {
            self.schedule(5 * MILLISECOND, Event::Accident);
        }
        self.begin_fleet();
        self.plan_paths();
        self.plan_rollover();
        while self.phase != Phase::Done
            && self.report.events < EVENTS_MAX
            && let Some(((time, _), event)) = self.queue.pop_first()
        {
            self.now = time;
            self.report.events += 1;
            self.absorb(&event);
            self.handle(event);
            self.strike();
            self.next_phase();
        }
        self.finish();
        self.report.simulated = self.now.0;
        self.report.trace_hash = self.hash.finish();
        std::mem::take(&mut self.report)
    }

    fn absorb(&mut self, event: &Event) {
        self.hash.write_u64(self.now.0);
        match event {
            Event::Deliver { to, bytes, .. } => {
                self.hash.write_u16(to.port());
                self.hash.write(bytes);
            }
            Event::Turn { node, .. } | Event::Restart { node } => self.hash.write_usize(*node),
            _ => self.hash.write_u8(1),
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Deliver { to, from, bytes } => self.deliver(to, from, &bytes),
            Event::Turn { node, life } => {
                // If a turn was planned again for another time, its old event is still in the queue, and is ignored.
                if self.turn_at.get(&node) == Some(&self.now) {
                    self.turn_at.remove(&node);
                    self.busy += 1;
                    self.turn(node, life);
                }
            }
            Event::Release { life, packets } => {
                let node = self.config.devices;
                if self.life(node) == Some(life) {
                    for (to, bytes) in packets {
                        self.send(address(node), to, &bytes);
                    }
                    self.server.busy = false;
                    self.wake(node, 0);
                }
            }
            Event::Persisted { node, life } => {
                if self.life(node) == Some(life) {
                    self.devices[node].media.complete();
                    self.wake(node, 0);
                }
            }
            Event::Restart { node } => self.restart(node),
            Event::Rebirth { node } => {
                let at = node - self.config.devices - 1;
                if !self.calm && self.clients[at].is_born_again(&self.config) {
                    self.wake(node, 0);
                }
            }
            Event::Reconnect { node } => {
                self.isolated.remove(&node);
            }
            Event::Redirect { node } => self.redirect(node),
            Event::ClockGoesOn { node } => {
                self.clocks[node].stand(self.now, false);
                self.turn_at.remove(&node);
                self.wake(node, 0);
            }
            Event::StormEnds => self.server.store.set_storm(false),
            Event::DetourEnds => self.detour = None,
            Event::Wire => self.wire_joiner(),
            Event::PathsShrink => self.paths_shrink(),
            Event::PathNoticed { node } => self.wake(node, 0),
            Event::Fleet(step) => self.fleet_goes_on(step),
            Event::Standby(step) => self.standby_goes_on(step),
            Event::Rollover(step) => self.rollover_goes_on(step),
            Event::Accident => self.accident(),
            Event::IdleBegins => self.idle_begins(1),
            Event::IdleEnds => self.idle_ends(),
        }
    }

    /// Returns the number of the present process of a node; `None`: no process runs.
    fn life(&self, node: usize) -> Option<u32> {
        let server = self.config.devices;
        if node < server {
            self.devices[node]
                .running
                .as_ref()
                .map(|_| self.devices[node].life)
        } else if node == server {
            self.server.running.as_ref().map(|_| self.server.life)
        } else {
            let client = &self.clients[node - server - 1];
            client.alive.then_some(client.life)
        }
    }

    /// Plans a turn of a node after this time.
    pub(crate) fn wake(&mut self, node: usize, after: Nanos) {
        let Some(life) = self.life(node) else { return };
        let at = self.now + after;
        if self.turn_at.get(&node).is_none_or(|&planned| at < planned) {
            self.turn_at.insert(node, at);
            self.schedule(after, Event::Turn { node, life });
        }
    }

    fn deliver(&mut self, to: Peer, from: Peer, bytes: &[u8]) {
        self.busy += 1;
        let server = self.config.devices;
        let IpAddr::V4(ip) = to.ip() else { return };
        let node = usize::from(ip.octets()[3]) - 1;
        if node == server && self.earlier_receives(from, bytes) {
            return;
        }
        if self.life(node).is_none() {
            return;
        }
        if self.trace.is_some() {
            let words = shown(bytes);
            self.tell(|| format!("{} → {} {words}", from.ip(), to.ip()));
        }
        let now = self.clocks[node].local(self.now);
        if node < server {
            if let Some(running) = &mut self.devices[node].running
                && let Err(error) = arrive(running, now, from, bytes)
            {
                self.device_stopped(node, &error.to_string());
                return;
            }
        } else if node == server {
            self.note_session(bytes);
            let mut out = std::mem::take(&mut self.server.out);
            if let Some(running) = &mut self.server.running
                && let Err(stop) = running.receive(now, from, bytes, &mut out)
            {
                self.server_stopped(&stop.0);
            }
            self.server.out = out;
        } else {
            self.clients[node - server - 1]
                .machine
                .receive(now, from, bytes);
        }
        self.wake(node, MICROSECOND / 2);
    }

    fn turn(&mut self, node: usize, life: u32) {
        if self.life(node) != Some(life) {
            // This turn was planned for the node's previous process. The new process may not have planned a turn, so it
            // gets one now.
            self.wake(node, 0);
            return;
        }
        let server = self.config.devices;
        let next = if node < server {
            self.device_turn(node)
        } else if node == server {
            self.server_turn()
        } else {
            self.client_turn(node)
        };
        if let Some(next) = next {
            let local = self.clocks[node].local(self.now);
            self.wake(node, next.since(local).max(1));
        }
    }

    fn device_turn(&mut self, node: usize) -> Option<Time> {
        let now = self.clocks[node].local(self.now);
        let path = self.path_of(node);
        let device = &mut self.devices[node];
        let running = device.running.as_mut()?;
        if let Some(size) = path {
            running.set_path(now, size);
        }
        if running.machine().is_serving() {
            device.declares = false;
            device.served = true;
            if matches!(device.image, Image::Wrong { .. }) {
                // The device serves, so its image was not older than the server's record. From now on it counts as the
                // device's own image.
                device.image = Image::Own;
            }
        }
        let was_persisting = device.media.is_persisting();
        if let Err(error) = running.finish(now) {
            self.device_stopped(node, &error.to_string());
            return None;
        }
        let mut out = Outbox::new();
        for (to, bytes) in running.out().iter() {
            out.send_raw(to, bytes);
        }
        running.sent();
        while let Some(number) = running.buffers().poll_released() {
            running.buffers().give_back(number);
        }
        let next = running.next_timeout();
        let (persisting, life) = (device.media.is_persisting(), device.life);
        if persisting && !was_persisting {
            let after = MICROSECOND + self.below(self.config.persist_max);
            self.schedule(after, Event::Persisted { node, life });
        }
        self.look_at_answers(node, &out);
        self.send_all(node, &out);
        next
    }

    fn server_turn(&mut self) -> Option<Time> {
        if self.server.busy {
            return None;
        }
        let node = self.config.devices;
        let now = self.clocks[node].local(self.now);
        let mut out = std::mem::take(&mut self.server.out);
        self.server.store.set_now(self.now);
        let path = self.path_of(node);
        let running = self.server.running.as_mut()?;
        if let Some(size) = path {
            running.machine_mut().set_path(size);
        }
        let worked = match running.step(now, &mut out) {
            Ok(worked) => worked,
            Err(stop) => {
                self.server_stopped(&stop.0);
                return None;
            }
        };
        if worked {
            self.look_at_executions();
        }
        let running = self.server.running.as_mut()?;
        let next = running.next_timeout();
        self.watermark = running.machine().watermark().max(self.watermark);
        self.server.is_loaded |= running.machine().chain().is_some();
        while running.machine_mut().poll_notice().is_some() {}
        if worked {
            // The store's effects have already happened. The packets that report them are sent later, when the store's
            // answer counts as arrived.
            self.server.busy = true;
            let packets = out.iter().map(|(to, bytes)| (to, bytes.to_vec())).collect();
            let after = MICROSECOND + self.below(self.config.store_max);
            let life = self.server.life;
            self.schedule(after, Event::Release { life, packets });
        } else {
            self.send_all(node, &out);
        }
        next
    }

    fn client_turn(&mut self, node: usize) -> Option<Time> {
        let at = node - self.config.devices - 1;
        let mut out = Outbox::new();
        if let Some(size) = self.path_of(node) {
            self.clients[at].machine.set_path(size);
        }
        let clock = &self.clocks[node];
        let next = self.clients[at].turn(clock, self.now, &self.config, &mut out);
        self.note_calls(at);
        self.send_all(node, &out);
        next
    }
}

/// Returns a packet as a trace shows it.
pub(crate) fn shown(bytes: &[u8]) -> String {
    pmnet_wire::Packet::parse(bytes).map_or_else(
        |reject| reject.to_string(),
        |packet| match Operation::peek(packet.payload) {
            Some(operation) => format!("{} {operation:?}", packet.header),
            None => packet.header.to_string(),
        },
    )
}
