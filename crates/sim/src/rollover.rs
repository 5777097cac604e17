//! Keys that change while all processes run (`docs/spec/keys.md` §7, `docs/operate/keys.md`).
//!
//! In each step an operator replaces the key files of all processes, sends SIGHUP to each process at a different
//! moment, and waits until all have confirmed that they have read their files. In the third step, fronts get their new
//! keys. The fourth step begins when no session has an old key any more, or after a timeout. Meanwhile the adversary
//! repeats packets that were sealed with any key. When all processes have forgotten the old key, a thief gets it.
//!
//! Fault model: a process dies and starts again with its present file, and all other faults of the world happen. In
//! some worlds the operator makes a mistake and corrects it later: he takes the last step before fronts have their
//! keys, or does not tell one process. In quiet worlds no other fault happens, and no call may fail. In some worlds a
//! front is put on the list of refused fronts, and still sends: its later packets must have no effect.

use crate::client::ClientHost;
use crate::config::WorldConfig;
use crate::hosts::{CLUSTER, NEXT};
use crate::without::{Place, Without};
use crate::world::{Event, World};
use pmnet_proto::keys::{ClusterKey, ClusterKeys, FrontKey};
use pmnet_proto::rules::Rule;
use pmnet_proto::time::{MILLISECOND, Nanos, SECOND};
use pmnet_proto::{Random, Time};

/// Latest time at which a rollover begins.
const BEGINS_MAX: Nanos = 8 * MILLISECOND;
/// Interval at which the operator checks whether a step is complete.
const LOOK: Nanos = MILLISECOND;
/// Maximum number of times that the operator checks whether old sessions have ended, in a world in which calls may
/// fail.
const LOOKS_MAX: u32 = 200;
/// Longest time until a mistake is corrected.
const MENDED_MAX: Nanos = 300 * MILLISECOND;
/// Number of calls that each client makes in each step, so that there is load in each step.
const CALLS: u32 = 10;
/// Clients make fewer calls if payloads may be longer than this.
const PAYLOAD_MAX: usize = 50_000;
/// Number of calls that a refused front makes.
const REFUSED_CALLS: u32 = 5;
/// Duration of a step in worlds in which a rule is missed only if the steps take long.
const LONG: Nanos = 400 * MILLISECOND;

/// Whether keys change in a world, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rollover {
    /// Keys do not change.
    #[default]
    Never,
    /// The operator follows the documented order. All faults of the world happen.
    Orderly,
    /// The operator follows the documented order. The only fault is that single processes are started again.
    Quiet,
    /// The operator makes a mistake, and corrects it later.
    Wrong,
    /// The front of the first client is refused.
    Refused,
}

/// The contents of a key file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyFile {
    /// Only the old key.
    #[default]
    Old,
    /// The old key for sending. The new key is also accepted.
    Accepts,
    /// The new key for sending. The old key is also accepted.
    Sends,
    /// Only the new key.
    New,
    /// The old key, and a line that refuses the front of the first client.
    Refuses,
}

impl KeyFile {
    /// Returns the keys in the file.
    pub(crate) fn keys(self, config: &WorldConfig) -> ClusterKeys {
        let both = |present, other| ClusterKeys {
            other: Some(other),
            ..ClusterKeys::new(present)
        };
        match self {
            KeyFile::Old => ClusterKeys::new(CLUSTER),
            KeyFile::Accepts => both(CLUSTER, NEXT),
            KeyFile::Sends => both(NEXT, CLUSTER),
            // If the rule is switched off, the last step does not remove the old key.
            KeyFile::New if Without::breaks(config.without, Place::Forgotten) => {
                both(NEXT, CLUSTER)
            }
            KeyFile::New => ClusterKeys::new(NEXT),
            KeyFile::Refuses => {
                let id = front_key(config.devices + 1, &CLUSTER).id();
                let refused = !Without::breaks(config.without, Place::RefusedFronts);
                ClusterKeys {
                    refused: refused.then_some(id).into_iter().collect(),
                    ..ClusterKeys::new(CLUSTER)
                }
            }
        }
    }
}

/// Returns the key of the front on this node.
pub(crate) fn front_key(node: usize, cluster: &ClusterKey) -> FrontKey {
    let id = cluster.front_id(&node.to_be_bytes());
    cluster.front(id).expect("an id of this cluster")
}

/// An action of the operator that concerns keys.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// The operator begins the next step.
    Begin,
    /// The operator replaces the key file of a device or the server.
    File { node: usize, file: KeyFile },
    /// The process gets SIGHUP.
    Told { node: usize },
    /// A front gets its new key.
    Front { at: usize },
    /// The operator checks whether the step is complete.
    Look,
    /// The operator corrects the mistake.
    Mend,
}

/// One step of a rollover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Files(KeyFile),
    Fronts,
}

/// A rollover under way.
#[derive(Debug, Default)]
pub(crate) struct Rolling {
    stages: Vec<Stage>,
    /// Number of stages that have begun.
    begun: usize,
    looks: u32,
    /// The process to which the operator sends no SIGHUP.
    untold: Option<usize>,
    /// Whether the key file of this process is replaced nevertheless.
    has_file: bool,
    spread: Nanos,
    over: bool,
    /// Time from which on all processes refuse the front of the first client.
    refused_at: Option<Time>,
}

impl WorldConfig {
    /// Returns this world with keys that change.
    pub(crate) fn rolling(self, random: &mut Random) -> WorldConfig {
        let rollover = match random.next_u64() % 8 {
            0 | 1 => Rollover::Orderly,
            2 => Rollover::Quiet,
            3 => Rollover::Wrong,
            4 => Rollover::Refused,
            _ => Rollover::Never,
        };
        self.with_rollover(rollover)
    }

    /// Returns this world with this kind of key change.
    pub(crate) fn with_rollover(self, rollover: Rollover) -> WorldConfig {
        // The load phase continues until the keys have changed. In a world whose accidents follow each other without a
        // pause, this would never happen.
        let accident_every = match self.accident_every {
            0 => 0,
            every => every.max(3 * MILLISECOND),
        };
        let world = match rollover {
            Rollover::Never => self,
            _ => WorldConfig {
                rollover,
                accident_every,
                ..self
            },
        };
        if rollover == Rollover::Quiet {
            world.quiet()
        } else {
            world
        }
    }

    /// Returns this world without other faults, so that no call may fail.
    fn quiet(self) -> WorldConfig {
        WorldConfig {
            aim: None,
            session_idle: 5 * SECOND,
            session_quiet: Nanos::MAX,
            sessions_max: 65_536,
            // A bypass of many fragments may take a second, and up to thirty bypasses wait for each other.
            deadline: 60 * SECOND,
            loss: self.loss.min(10),
            long_delay: 0,
            corruption: self.corruption.min(10),
            accident_every: 0,
            outage_max: 0,
            partitions: false,
            power_cuts: false,
            clocks: false,
            rebirths: false,
            recovery_crashes: 0,
            lose_devices: 0,
            zombies: false,
            lost_clients: false,
            store_trouble: 0,
            store_storms: false,
            short_store: false,
            returns: false,
            exchanges: 0,
            declared_losses: false,
            detours: false,
            failovers: false,
            hangs: false,
            joins: false,
            lease: 0,
            standby: false,
            ..self
        }
    }

    /// Returns this world with settings under which the absence of this rule about keys is found.
    pub(crate) fn lacking_of_keys(self, place: Place) -> WorldConfig {
        let keyed = self.with_keys();
        match place {
            Place::RefusedFronts => keyed.with_rollover(Rollover::Refused),
            Place::Forgotten => WorldConfig {
                injection: 300,
                ..keyed.with_rollover(Rollover::Orderly)
            },
            Place::Machine(Rule::SealAnew) => WorldConfig {
                rollover: Rollover::Orderly,
                ..keyed.with_rollover(Rollover::Quiet)
            },
            Place::Nonce => WorldConfig {
                rebirths: true,
                accident_every: 3 * MILLISECOND,
                ..keyed
            },
            _ => WorldConfig {
                deadline: LONG / 4,
                loss: 0,
                ..keyed.with_rollover(Rollover::Quiet)
            },
        }
    }
}

impl World {
    /// Plans the change of keys, if there is one.
    pub(crate) fn plan_rollover(&mut self) {
        let files = [KeyFile::Accepts, KeyFile::Sends, KeyFile::New].map(Stage::Files);
        let [accepts, sends, new] = files;
        let ordered = vec![accepts, sends, Stage::Fronts, new];
        self.rolling.stages = match self.config.rollover {
            Rollover::Never => {
                self.rolling.over = true;
                return;
            }
            Rollover::Orderly | Rollover::Quiet => ordered,
            Rollover::Refused => vec![Stage::Files(KeyFile::Refuses)],
            Rollover::Wrong => self.plan_mistake(files),
        };
        self.rolling.spread = match self.below(3) {
            0 => MILLISECOND / 5,
            1 => 2 * MILLISECOND,
            _ => 20 * MILLISECOND,
        };
        if self.hurries() {
            self.rolling.spread = LONG;
        }
        let after = self.below(BEGINS_MAX);
        self.schedule(after, Event::Rollover(Step::Begin));
    }

    /// Plans the steps of an operator who takes the last step too early, or sends one process no SIGHUP.
    fn plan_mistake(&mut self, [accepts, sends, new]: [Stage; 3]) -> Vec<Stage> {
        if self.below(2) == 0 {
            return vec![accepts, sends, new, Stage::Fronts];
        }
        let nodes = u64::try_from(self.config.devices + 1).expect("few nodes");
        let node = usize::try_from(self.below(nodes)).expect("few nodes");
        self.rolling.untold = Some(node);
        self.rolling.has_file = self.below(2) == 0;
        vec![accepts, sends, Stage::Fronts, new]
    }

    /// Whether the operator does not wait for the end of a step, because the rule that demands this is switched off.
    fn hurries(&self) -> bool {
        self.config.without.is_some_and(|without| {
            matches!(
                without.place,
                Place::RollAccepted | Place::RollSent | Place::RollFronts
            )
        })
    }

    /// Whether all key changes are over.
    pub(crate) fn has_rolled(&self) -> bool {
        self.rolling.over
    }

    /// Whether all processes have forgotten the old key. From then on a thief may have it.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.rolling.over
            && matches!(self.config.rollover, Rollover::Orderly | Rollover::Quiet)
            && self.all_have(KeyFile::New)
    }

    pub(crate) fn rollover_goes_on(&mut self, step: Step) {
        match step {
            Step::Begin => self.begin_stage(),
            Step::File { node, file } => {
                *self.key_file(node) = file;
                let after = self.below(self.rolling.spread);
                self.schedule(after, Event::Rollover(Step::Told { node }));
            }
            Step::Told { node } => self.tell_keys(node),
            Step::Front { at } => self.give_front_key(at),
            Step::Look => self.look_at_stage(),
            Step::Mend => self.mend_keys(),
        }
    }

    fn key_file(&mut self, node: usize) -> &mut KeyFile {
        match self.devices.get_mut(node) {
            Some(device) => &mut device.file,
            None => &mut self.server.file,
        }
    }

    fn begin_stage(&mut self) {
        let Some(stage) = self.rolling.stages.get(self.rolling.begun).copied() else {
            self.end_rollover();
            return;
        };
        self.rolling.begun += 1;
        self.rolling.looks = 0;
        self.tell(|| format!("keys: {stage:?}"));
        self.let_call_more();
        let spread = self.rolling.spread;
        match stage {
            Stage::Files(file) => {
                for node in 0..=self.config.devices {
                    if self.rolling.untold != Some(node) {
                        let after = self.below(spread);
                        self.schedule(after, Event::Rollover(Step::File { node, file }));
                    } else if self.rolling.has_file {
                        *self.key_file(node) = file;
                    }
                }
            }
            Stage::Fronts => {
                for at in 0..self.clients.len() {
                    let after = self.below(spread);
                    self.schedule(after, Event::Rollover(Step::Front { at }));
                }
            }
        }
        if self.config.rollover == Rollover::Quiet && !self.hurries() {
            self.begin_one_again();
        }
        let rules = Without::rules(self.config.without);
        if self.rolling.begun == 1 && !rules.hold(Rule::SealAnew) {
            // Entries that are stored now will be sent only after the old key is forgotten.
            let server = self.config.devices;
            self.kill(server);
            self.server.down_until = Time(u64::MAX);
        }
        for node in self.config.devices + 1..=self.config.devices + self.clients.len() {
            self.wake(node, 0);
        }
        self.schedule(LOOK, Event::Rollover(Step::Look));
    }

    /// Lets clients make further calls, so that there is load in each step.
    fn let_call_more(&mut self) {
        let calls = match self.config.payload_max {
            ..=PAYLOAD_MAX => CALLS,
            _ => CALLS / 5,
        };
        for client in self.clients.iter_mut().filter(|client| client.alive) {
            client.calls_more(calls);
        }
    }

    /// Starts a process again between two steps, in a world without other faults.
    fn begin_one_again(&mut self) {
        let server = self.config.devices;
        match self.below(4) {
            0 | 1 => {
                let node = self.pick(&self.order.clone());
                self.kill(node);
                self.start_later(node, MILLISECOND);
                self.happened("devices that began again in a rollover");
            }
            // While the store is at work, the server is not restarted, because the store's answer would be lost.
            2 if !self.server.busy => {
                self.kill(server);
                self.start_later(server, MILLISECOND);
                self.happened("servers that began again in a rollover");
            }
            _ => {}
        }
    }

    /// SIGHUP: the process takes the keys of its file between two packets.
    fn tell_keys(&mut self, node: usize) {
        let server = self.config.devices;
        if node == server {
            let file = self.server.file;
            let keys = file.keys(&self.config);
            self.server.used = file;
            if let Some(running) = &mut self.server.running {
                running.machine_mut().rekey(keys.clone());
            }
            self.rekey_earlier(keys);
        } else {
            if self.isolated.contains(&node) && !self.devices[node].lost {
                // The process cannot be reached now, so the operator tries again later.
                self.schedule(LOOK, Event::Rollover(Step::Told { node }));
                return;
            }
            let now = self.clocks[node].local(self.now);
            let keys = self.devices[node].file.keys(&self.config);
            let device = &mut self.devices[node];
            // A device that was given up can be reached only when all faults have ended.
            let reached = self.calm || !device.lost;
            let Some(running) = device.running.as_mut().filter(|_| reached) else {
                return;
            };
            device.used = device.file;
            if let Err(error) = running.rekey(now, keys) {
                self.device_stopped(node, &error.to_string());
                return;
            }
        }
        self.happened("processes told of other keys");
        self.tell(|| format!("node {node} has read its key file again"));
        self.wake(node, 0);
    }

    fn give_front_key(&mut self, at: usize) {
        let node = self.config.devices + 1 + at;
        let now = self.clocks[node].local(self.now);
        self.clients[at].rekey(now, NEXT);
        self.happened("fronts with a new key");
        self.tell(|| format!("client {node} has a new key"));
        self.wake(node, 0);
    }

    /// Whether the server and the devices of the chain have this file and, if they run, use it.
    fn all_have(&self, file: KeyFile) -> bool {
        let in_charge = |node: &usize| !self.devices[*node].lost && self.is_told(*node);
        let devices = (0..self.config.devices).filter(in_charge).all(|node| {
            let device = &self.devices[node];
            device.file == file && (device.running.is_none() || device.used == file)
        });
        let server =
            self.server.file == file && (self.server.running.is_none() || self.server.used == file);
        devices && (server || !self.is_told(self.config.devices))
    }

    fn is_told(&self, node: usize) -> bool {
        self.rolling.untold != Some(node)
    }

    /// Whether no living client has a session with an old key. Marks without an operation under way are ended.
    fn old_sessions_are_over(&mut self) -> bool {
        let mut over = true;
        for at in 0..self.clients.len() {
            let node = self.config.devices + 1 + at;
            let now = self.clocks[node].local(self.now);
            let deadline = now + self.config.deadline;
            if !self.clients[at].leaves_old_key(&NEXT, deadline) {
                over = false;
                self.wake(node, 0);
            }
        }
        over
    }

    fn look_at_stage(&mut self) {
        if self.rolling.over {
            return;
        }
        let stage = self.rolling.stages[self.rolling.begun - 1];
        self.rolling.looks += 1;
        let broken = |place| Without::breaks(self.config.without, place);
        let patient = self.config.rollover == Rollover::Quiet || self.rolling.looks < LOOKS_MAX;
        let done = match stage {
            Stage::Files(KeyFile::Accepts) if broken(Place::RollAccepted) => true,
            Stage::Files(KeyFile::Sends) if broken(Place::RollSent) => true,
            Stage::Fronts if broken(Place::RollFronts) || broken(Place::RollSent) => true,
            Stage::Files(file) => self.all_have(file),
            Stage::Fronts => self.old_sessions_are_over() || !patient,
        };
        let after = if done {
            self.below(self.rolling.spread).min(2 * MILLISECOND)
        } else {
            LOOK
        };
        let step = if done { Step::Begin } else { Step::Look };
        self.schedule(after, Event::Rollover(step));
    }

    fn end_rollover(&mut self) {
        match self.config.rollover {
            Rollover::Wrong => {
                self.happened("mistakes in a rollover");
                let after = self.below(MENDED_MAX);
                self.schedule(after, Event::Rollover(Step::Mend));
                return;
            }
            Rollover::Refused => {
                self.happened("fronts refused");
                self.rolling.refused_at = Some(self.now);
                self.clients[0].calls_only(REFUSED_CALLS);
            }
            _ => {
                self.happened("rollovers");
                self.let_call_more();
            }
        }
        self.rolling.over = true;
        if self.server.down_until == Time(u64::MAX) {
            self.server.down_until = self.now;
            self.start_later(self.config.devices, MILLISECOND);
        }
        for node in self.config.devices + 1..=self.config.devices + self.clients.len() {
            self.wake(node, 0);
        }
    }

    /// Gives the last file to every process that can be reached, also to devices that were given
    /// up.
    pub(crate) fn mend_keys(&mut self) {
        let file = match self.config.rollover {
            Rollover::Never => return,
            Rollover::Refused => KeyFile::Refuses,
            _ => KeyFile::New,
        };
        self.rolling.over = true;
        self.rolling.untold = None;
        for node in 0..=self.config.devices {
            *self.key_file(node) = file;
            self.tell_keys(node);
        }
        if file == KeyFile::New {
            for at in 0..self.clients.len() {
                self.give_front_key(at);
            }
        }
    }

    /// Checks that calls of a front that all processes refuse have no effect.
    pub(crate) fn look_at_refused(&mut self, at: usize, client: &[crate::check::Observed]) {
        let Some(since) = self.rolling.refused_at.filter(|_| at == 0) else {
            return;
        };
        let story = self.server.store.story();
        let applied = |id: &u64| story.lists.values().any(|list| list.contains(id));
        let late = client.iter().filter(|call| call.invoked > since);
        let effective = late.filter(|call| {
            call.id.as_ref().is_some_and(applied) || call.result == crate::check::Result::Done
        });
        let ids: Vec<_> = effective.map(|call| call.id).collect();
        if !ids.is_empty() {
            self.violation(format!(
                "a front that is refused has called {ids:?} with effect"
            ));
        }
    }
}

impl ClientHost {
    /// Gives the client's front a key that is derived from this cluster key.
    pub(crate) fn rekey(&mut self, now: Time, cluster: ClusterKey) {
        self.cluster = cluster;
        if self.alive {
            self.machine.rekey(now, front_key(self.node, &cluster));
        }
    }

    /// Whether the front has a key of this cluster key, and no session with another key. Ends the front's mark, if no
    /// operation is under way under it.
    fn leaves_old_key(&mut self, cluster: &ClusterKey, deadline: Time) -> bool {
        if !self.alive {
            return true;
        }
        if self.cluster != *cluster {
            return false;
        }
        let over = self.machine.sessions_of_other_keys() == 0;
        if !over && self.direct.is_none() {
            self.unmark(deadline);
        }
        over
    }
}
