//! A client process of the world: the production client machine (`pmnet_proto::client`) with a random load.
//!
//! Fault model: the process may die at any moment with calls in flight, even in the middle of a fragmented update, and
//! return as another process at the same address. At first it may talk to the wrong device. Its clock may stand still
//! or jump. Some operations use its own connection to the store, after a barrier that names the store. The process also
//! checks that every call has exactly one outcome, at its deadline at the latest.

use crate::check::{Observed, Result as Seen};
use crate::clock::Clock;
use crate::config::WorldConfig;
use crate::direct::Direct;
use crate::hosts::CLUSTER;
use crate::reads::{Mark, Reading, hash};
use crate::rollover::{Rollover, front_key};
use crate::store::{Act, OPERATION_BYTES, Operation, Reply, SimStore};
use crate::without::{Place, Without};
use crate::world::address;
use pmnet_proto::client::{
    CallId, Client, ClientConfig, ClientCounters, Event, Outcome, Refused, SessionHandle,
};
use pmnet_proto::keys::ClusterKey;
use pmnet_proto::time::{MILLISECOND, SECOND, earliest};
use pmnet_proto::{Outbox, Peer, Random, Time};
use std::collections::BTreeMap;

/// Longest time by which an outcome may come after its deadline: one turn.
const LATE_MAX: u64 = MILLISECOND;
/// Number of calls of the probe, which shows at the end that the service works again.
const PROBE_CALLS: u32 = 6;
/// Longest time that a call of the probe may take.
const PROBE_DEADLINE: u64 = 20 * SECOND;

/// A client process: it has one session after another, each with several concurrent calls.
pub(crate) struct ClientHost {
    pub(crate) node: usize,
    /// The cluster key from which the key of this client's front is derived.
    pub(crate) cluster: ClusterKey,
    pub(crate) machine: Client,
    pub(crate) life: u32,
    pub(crate) alive: bool,
    /// Whether the client knows the addresses of all devices.
    follows: bool,
    head: Peer,
    pub(crate) session: Option<SessionHandle>,
    sessions: u32,
    left: u32,
    pub(crate) next_id: u64,
    pub(crate) calls: BTreeMap<CallId, usize>,
    pub(crate) observed: Vec<(Observed, Time)>,
    violations: Vec<String>,
    pipeline: usize,
    pub(crate) random: Random,
    next_call: Time,
    probe: bool,
    /// Whether every call must succeed, as the probe's calls must.
    strict: bool,
    closing: bool,
    counters: ClientCounters,
    pub(crate) store: SimStore,
    pub(crate) direct: Option<Direct>,
    /// The name of the store to which the client's own connection leads.
    pub(crate) connection: Option<u64>,
    /// Number of direct operations that an old master answered after it was replaced, although the barrier had named
    /// it.
    pub(crate) windows: u64,
    pub(crate) reading: Option<Reading>,
    /// Whether the next call is a read that waits until all other calls are answered.
    wants_read: bool,
    pub(crate) mark: Option<Mark>,
    /// Whether a call of this session has an unknown outcome, and no bypass was answered since then.
    pub(crate) doubtful: bool,
    /// The store that the last barrier named.
    pub(crate) named: u64,
    /// Number of reads that the head answered with an update (HIT).
    pub(crate) hits: u64,
    /// Number of reads that the store answered.
    pub(crate) direct_reads: u64,
    /// Number of direct reads that were made before the head answered.
    pub(crate) reads_at_once: u64,
    /// Number of direct reads that a replica of the store answered.
    pub(crate) replica_reads: u64,
    /// Epoch and version of the head's index, as the head stated them last.
    pub(crate) version: Option<(u32, u64)>,
    /// Bypasses called since the last [`ClientHost::take_called`], each with the time until which the client waits for
    /// it.
    pub(crate) called: Vec<(u64, Time)>,
}

impl ClientHost {
    pub(crate) fn new(
        node: usize,
        head: Peer,
        config: &WorldConfig,
        store: SimStore,
        seed: u64,
    ) -> ClientHost {
        let mut random = Random::new(seed);
        let follows = random.next_u64().is_multiple_of(2);
        let settings = client_config(node, 0, head, follows, &CLUSTER, config);
        let seed = seed_of(node, &mut random, config);
        ClientHost {
            node,
            cluster: CLUSTER,
            machine: Client::new(settings, Random::new(seed)),
            follows,
            life: 0,
            alive: true,
            head,
            session: None,
            sessions: 0,
            left: config.calls,
            next_id: (u64::try_from(node).expect("few nodes") + 1) << 32,
            calls: BTreeMap::new(),
            observed: Vec::new(),
            violations: Vec::new(),
            pipeline: [1, 4, 32][usize::try_from(random.next_u64() % 3).expect("small")],
            random,
            next_call: Time(0),
            probe: false,
            // If a session may be silent only for less than a retransmission timeout, the session can expire at any
            // time, even during a call.
            strict: config.session_idle > ClientConfig::new(head).timeout_ceiling,
            closing: false,
            counters: ClientCounters::default(),
            store,
            direct: None,
            connection: None,
            windows: 0,
            reading: None,
            wants_read: false,
            mark: None,
            doubtful: false,
            named: 0,
            hits: 0,
            direct_reads: 0,
            reads_at_once: 0,
            replica_reads: 0,
            version: None,
            called: Vec::new(),
        }
    }

    /// A client that sleeps until [`ClientHost::begin_probe`].
    pub(crate) fn probe(
        node: usize,
        head: Peer,
        config: &WorldConfig,
        store: SimStore,
        seed: u64,
    ) -> ClientHost {
        let mut client = ClientHost::new(node, head, config, store, seed);
        (client.left, client.pipeline, client.probe) = (0, 1, true);
        client
    }

    /// Lets the client make `calls` further calls, if it makes any.
    pub(crate) fn calls_more(&mut self, calls: u32) {
        if !self.probe && !self.closing {
            self.left += calls;
        }
    }

    /// Lets the client make exactly `calls` further calls.
    pub(crate) fn calls_only(&mut self, calls: u32) {
        self.left = calls;
    }

    pub(crate) fn begin_probe(&mut self) {
        self.left = PROBE_CALLS;
    }

    /// Tells the client that the head has another address. If the client does not find the head by itself, its process
    /// ends, and a new process begins. Returns whether the client finds the head by itself.
    pub(crate) fn redirect(&mut self, head: Peer, config: &WorldConfig) -> bool {
        if self.head == head {
            return false;
        }
        self.head = head;
        if !self.follows {
            self.begin_again(config);
        }
        self.follows && self.alive
    }

    /// Ids of the updates that the client has sent or is about to send.
    pub(crate) fn updates(&self) -> impl Iterator<Item = u64> {
        self.observed.iter().filter_map(|(observed, _)| observed.id)
    }

    pub(crate) fn die(&mut self) {
        self.alive = false;
        self.calls.clear();
        self.direct = None;
        (self.reading, self.mark) = (None, None);
    }

    pub(crate) fn is_born_again(&mut self, config: &WorldConfig) -> bool {
        if self.alive || self.probe {
            return false;
        }
        self.alive = true;
        self.begin_again(config);
        true
    }

    /// Ends the client's process and begins a new process. The open calls of the old process are abandoned.
    fn begin_again(&mut self, config: &WorldConfig) {
        self.life += 1;
        self.calls.clear();
        (self.direct, self.connection) = (None, None);
        (self.reading, self.mark) = (None, None);
        self.session = None;
        self.take_counters();
        let random = Random::new(seed_of(self.node, &mut self.random, config));
        let (life, cluster) = (self.life, self.cluster);
        let settings = client_config(self.node, life, self.head, self.follows, &cluster, config);
        self.machine = Client::new(settings, random);
    }

    fn take_counters(&mut self) {
        let last = self.machine.counters();
        self.counters.rejected += last.rejected;
        self.counters.unexpected += last.unexpected;
        self.counters.forged += last.forged;
        self.counters.stale_epoch += last.stale_epoch;
        self.counters.resent += last.resent;
        self.counters.fallbacks += last.fallbacks;
    }

    /// Whether the client has made all its calls and has their outcomes.
    pub(crate) fn is_done(&self) -> bool {
        !self.alive || (self.left == 0 && self.calls.is_empty() && self.waits_for_nothing())
    }

    /// Whether the client has no session any more.
    pub(crate) fn is_closed(&self) -> bool {
        !self.alive || (self.is_done() && self.machine.sessions() == 0)
    }

    /// Ends the client's session.
    pub(crate) fn close(&mut self) {
        self.closing = true;
    }

    /// Runs one turn. Returns the local time at which the next turn must run at the latest.
    pub(crate) fn turn(
        &mut self,
        clock: &Clock,
        world: Time,
        config: &WorldConfig,
        out: &mut Outbox,
    ) -> Option<Time> {
        let now = clock.local(world);
        self.machine.flush(now, out);
        self.events(now, world, clock, config);
        self.go_direct(now, world, config);
        self.go_on_reading(now, world, config);
        if self.direct.is_none() && self.mark.is_some() && self.random.next_u64().is_multiple_of(8)
        {
            self.unmark(now + config.deadline);
        }
        while self.may_call() && now >= self.next_call {
            if !self.call(now, world, config) {
                self.next_call = now + MILLISECOND;
                break;
            }
            if self.random.next_u64().is_multiple_of(8) {
                self.next_call = now + self.random.next_u64() % MILLISECOND;
            }
            if !self.probe && self.random.next_u64().is_multiple_of(40) {
                self.end(now + config.deadline);
            }
        }
        if self.closing && self.is_done() {
            self.unmark(now + PROBE_DEADLINE);
            self.end(now + PROBE_DEADLINE);
        }
        self.machine.flush(now, out);
        self.events(now, world, clock, config);
        let mut next = self.machine.next_timeout();
        if let Some((_, at)) = self.direct.as_ref().and_then(|direct| direct.named) {
            next = earliest(next, Some(at.max(now + 1)));
        }
        next = earliest(next, self.reading_due(now));
        if self.may_call() {
            next = earliest(next, Some(self.next_call.max(now + 1)));
        }
        next
    }

    /// Whether the client may make another call now. While a direct operation is under way, all later calls wait.
    fn may_call(&self) -> bool {
        let calls_max = if self.wants_read { 1 } else { self.pipeline };
        self.left > 0 && self.calls.len() < calls_max && self.waits_for_nothing()
    }

    /// Whether no direct operation or read is under way for which all later calls must wait.
    fn waits_for_nothing(&self) -> bool {
        self.direct.is_none() && self.reading.is_none()
    }

    /// Returns the bypasses that were called since the last use of this method, each with the time until which the
    /// client waits for it.
    pub(crate) fn take_called(&mut self) -> Vec<(u64, Time)> {
        std::mem::take(&mut self.called)
    }

    /// Returns the number of direct operations that an old master answered after it was replaced.
    pub(crate) const fn windows(&self) -> u64 {
        self.windows
    }

    /// Chooses the next operation.
    fn act(&mut self, update: bool, config: &WorldConfig) -> (Act, bool) {
        if update {
            return (Act::Append, false);
        }
        let read = self.random.next_u64().is_multiple_of(2);
        let more = config.publishes || config.hangs || config.directs;
        if more && !self.probe {
            let by_script = self.random.next_u64().is_multiple_of(2);
            match self.random.next_u64() % 16 {
                0..=3 if config.publishes && !read => return (Act::Publish, false),
                4 if config.publishes => return (Act::Read, false),
                5 if config.hangs => return (Act::Hang, by_script),
                6..=9 if config.directs => return (Act::Name, true),
                _ => {}
            }
        }
        let conditional = config.conditionals && !read && self.random.next_u64().is_multiple_of(2);
        match (read, conditional) {
            (true, _) => (Act::Read, true),
            (false, true) => (Act::AppendIfEven, false),
            (false, false) => (Act::AppendRead, false),
        }
    }

    fn end(&mut self, deadline: Time) {
        if let Some(session) = self.session.take() {
            self.machine.end(session, deadline);
        }
    }

    /// Makes one call. Returns false if no call can be made now.
    fn call(&mut self, now: Time, world: Time, config: &WorldConfig) -> bool {
        let session = match self.session {
            Some(session) => session,
            None => {
                let Ok(session) = self.machine.open(now) else {
                    return false;
                };
                self.sessions += 1;
                self.session = Some(session);
                self.doubtful = false;
                session
            }
        };
        let key = u8::try_from(self.random.next_u64() % u64::from(config.keys)).expect("few keys");
        let id = self.next_id;
        let update = match self.probe {
            true => self.left > PROBE_CALLS / 2,
            false => self.random.next_u64() % 100 < config.updates,
        };
        let (update, (act, read)) = match std::mem::take(&mut self.wants_read) {
            true => (false, (Act::Read, true)),
            false => (update, self.act(update, config)),
        };
        if config.reads && act == Act::Read && read && !self.calls.is_empty() {
            self.wants_read = true;
            return true;
        }
        let conditional = act == Act::AppendIfEven;
        let bound = u64::try_from(config.payload_max).expect("bounded");
        let padding = usize::try_from(self.random.next_u64() % bound).expect("bounded");
        let size = OPERATION_BYTES + padding;
        let deadline = now
            + if self.probe {
                PROBE_DEADLINE
            } else {
                config.deadline
            };
        let operation = Operation { act, key, id };
        if act == Act::Name && !self.mark(now, config) {
            return false;
        }
        if act == Act::Read && read && self.begin_read(key, now, deadline, config) {
            self.left -= 1;
            self.next_id += 1;
            self.observe(operation, world, deadline);
            return true;
        }
        // One call in eight does not name its key.
        let key_hash = match config.reads && !id.is_multiple_of(8) {
            true => hash(key),
            false => 0,
        };
        let early = conditional && Without::breaks(config.without, Place::Nilext);
        let result = if update || early {
            self.machine
                .update(session, operation.payload(size), key_hash, deadline)
        } else {
            self.machine
                .bypass(session, operation.payload(size), key_hash, read, deadline)
        };
        match result {
            Ok(call) => {
                self.left -= 1;
                self.next_id += 1;
                if !update {
                    self.called.push((id, deadline));
                }
                self.calls.insert(call, self.observed.len());
                let operation = match act {
                    Act::Name => self.begin_direct(key),
                    _ => operation,
                };
                self.observe(operation, world, deadline);
                true
            }
            Err(Refused::Closed) => {
                self.session = None;
                true
            }
            Err(_) => false,
        }
    }

    /// Notes the call that was just made.
    fn observe(&mut self, operation: Operation, world: Time, deadline: Time) {
        let observed = Observed {
            session: (self.node, self.sessions),
            key: operation.key,
            id: operation.appends().then_some(operation.id),
            published: (operation.act == Act::Publish).then_some(operation.id),
            conditional: operation.act == Act::AppendIfEven,
            invoked: world,
            returned: None,
            result: Seen::Unknown,
        };
        self.observed.push((observed, deadline));
    }

    fn events(&mut self, now: Time, world: Time, clock: &Clock, config: &WorldConfig) {
        while let Some(event) = self.machine.poll_event() {
            self.read_event(&event, now, world, config);
            match event {
                Event::Done { call, outcome, .. } => {
                    let node = self.node;
                    let Some(at) = self.calls.remove(&call) else {
                        let words =
                            format!("a call of client {node} has a second outcome: {outcome:?}");
                        self.violations.push(words);
                        continue;
                    };
                    self.doubtful = match &outcome {
                        Outcome::Unknown => true,
                        Outcome::Reply(_) => false,
                        _ => self.doubtful,
                    };
                    // Refusals by the store and losses on the client's own connection are allowed, because pmnet does
                    // not cause them.
                    let failed = matches!(outcome, Outcome::Failed(_) | Outcome::Unknown);
                    if failed && config.rollover == Rollover::Quiet {
                        let words = format!(
                            "a call of client {node} ended as {outcome:?}, and nothing but keys has changed"
                        );
                        self.violations.push(words);
                    }
                    let is_barrier = self.barrier_ends(at, &outcome, now);
                    let (observed, deadline) = &mut self.observed[at];
                    // If a clock has jumped past the deadline, the outcome may be late by the length of the jump.
                    if now > *deadline + LATE_MAX + clock.longest_jump() {
                        let late = now.since(*deadline);
                        let words = format!("a call of client {node} ended {late} ns late");
                        self.violations.push(words);
                    }
                    if is_barrier == Some(true) {
                        continue;
                    }
                    observed.result = match is_barrier {
                        Some(_) => Seen::Failed,
                        None => seen(outcome),
                    };
                    if !matches!(observed.result, Seen::Unknown | Seen::Failed) {
                        observed.returned = Some(world);
                    } else if self.probe && self.strict {
                        self.violations.push(format!(
                            "no service after everything was healed: a call ended as {:?}",
                            observed.result
                        ));
                    }
                }
                Event::SessionClosed { session, .. } => {
                    if self.session == Some(session) {
                        self.session = None;
                    }
                }
                Event::Read { .. } | Event::Marked { .. } => {}
            }
        }
    }

    /// Returns the calls of the client, its counters, and the violations that it has found.
    pub(crate) fn history(&mut self) -> (Vec<Observed>, ClientCounters, Vec<String>) {
        if self.alive && !self.is_done() {
            let (open, left) = (self.calls.len(), self.left);
            let words = format!(
                "{open} calls of client {} never ended, {left} were never made",
                self.node
            );
            self.violations.push(words);
        }
        self.take_counters();
        let observed = std::mem::take(&mut self.observed);
        let observed = observed.into_iter().map(|(observed, _)| observed).collect();
        (
            observed,
            self.counters,
            std::mem::take(&mut self.violations),
        )
    }
}

/// Returns the seed of a client's process. Each process has another seed, unless [`Place::Nonce`] is switched off.
fn seed_of(node: usize, random: &mut Random, config: &WorldConfig) -> u64 {
    let seed = random.next_u64();
    match Without::breaks(config.without, Place::Nonce) {
        true => u64::try_from(node).expect("few nodes"),
        false => seed,
    }
}

fn client_config(
    node: usize,
    life: u32,
    head: Peer,
    follows: bool,
    cluster: &ClusterKey,
    config: &WorldConfig,
) -> ClientConfig {
    // Every second client has a name.
    let name = u64::try_from(node / 2 * (node % 2)).expect("few nodes");
    let others = if follows { config.devices } else { 0 };
    ClientConfig {
        others: (0..others).map(address).collect(),
        ping_every: config.ping_every,
        name: (name, life.into()),
        kept: config.kept_reads,
        size_max: config.paths.of(node, config.devices),
        rules: Without::rules(config.without),
        keys: config.keyed.then(|| front_key(node, cluster)),
        ..ClientConfig::new(head)
    }
}

fn seen(outcome: Outcome) -> Seen {
    match outcome {
        Outcome::Committed { .. } => Seen::Done,
        Outcome::Reply(reply) => match Reply::read(&reply) {
            Some(Reply::List(list)) => Seen::Read(list),
            Some(Reply::Refused) => Seen::Failed,
            Some(Reply::Unsure) => Seen::Unknown,
            Some(Reply::Store(_)) | None => Seen::Garbled,
        },
        Outcome::Failed(_) => Seen::Failed,
        Outcome::Unknown => Seen::Unknown,
    }
}
