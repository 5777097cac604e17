//! The faults of one run, which its seed determines.

use std::fmt;
use std::time::Duration;

use pmnet_lab::harness::Medium;

/// Number of runs in one world. Each block of this many seeds has a world of its own.
pub const WORLD_RUNS: u64 = 25;

/// The properties in which worlds differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorldPlan {
    /// Number of devices in the chain.
    pub devices: usize,
    /// Number of spares.
    pub spares: usize,
    /// Medium of all logs.
    pub medium: Medium,
    /// Number of Redis replicas that must have a write before the write counts as applied: 1 or 2,
    /// out of two.
    pub confirm: u32,
}

impl WorldPlan {
    /// Returns the world for a seed, which all seeds of its block share.
    pub fn draw(seed: u64) -> WorldPlan {
        let mut random = fastrand::Rng::with_seed(seed / WORLD_RUNS);
        WorldPlan {
            devices: random.usize(2..=3),
            spares: random.usize(0..=1),
            medium: if random.bool() {
                Medium::Dram
            } else {
                Medium::File
            },
            confirm: random.u32(1..=2),
        }
    }
}

impl fmt::Display for WorldPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (devices, spares, medium) = (self.devices, self.spares, self.medium.name());
        let confirm = self.confirm;
        write!(
            f,
            "R={devices} spares={spares} {medium} wait_replicas={confirm}"
        )
    }
}

/// The position of a device in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Head,
    Middle,
    Tail,
    Spare,
}

/// What happens to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The process is killed. The process is started again long after its lease has expired.
    Killed,
    /// The process is killed, and is started again at once.
    Restarted,
    /// The process is stopped (SIGSTOP) for longer than its lease.
    Frozen,
    /// For longer than its lease, the device reaches all nodes except etcd.
    CutOff,
}

/// The process that has the fault, and for a device the kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Device(Place, How),
    /// The server is killed, and is started again.
    Server,
    /// The Redis master is killed and started again. Meanwhile Sentinel promotes a replica.
    RedisMaster,
    EtcdLeader,
    Controller,
    Front,
}

impl Kind {
    /// Returns the number of the process, or of its part of the shard. Two faults of one run must
    /// have different numbers.
    fn part(self) -> usize {
        match self {
            Kind::Device(place, _) => place as usize,
            Kind::Server => 4,
            Kind::RedisMaster => 5,
            Kind::EtcdLeader => 6,
            Kind::Controller => 7,
            Kind::Front => 8,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Kind::Device(place, how) => {
                let place = match place {
                    Place::Head => "head",
                    Place::Middle => "middle",
                    Place::Tail => "tail",
                    Place::Spare => "spare",
                };
                let how = match how {
                    How::Killed => "killed",
                    How::Restarted => "killed, back at once",
                    How::Frozen => "frozen",
                    How::CutOff => "cut off from etcd",
                };
                return write!(f, "{place} {how}");
            }
            Kind::Server => "server killed",
            Kind::RedisMaster => "Redis master killed",
            Kind::EtcdLeader => "etcd leader killed",
            Kind::Controller => "controller killed",
            Kind::Front => "front killed",
        };
        f.write_str(text)
    }
}

/// One fault. A fault ends by itself, or when the service manager restarts the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: Kind,
    /// Time from the beginning of the run's first fault to the beginning of this fault.
    pub at: Duration,
    /// Duration of the fault.
    pub lasts: Duration,
}

/// The faults of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub world: WorldPlan,
    /// The faults, in the order of their beginning: one or two, and more in a storm.
    pub faults: Vec<Fault>,
}

/// Maximum number of faults in a storm.
const STORM_MAX: usize = 5;

impl Plan {
    /// Makes the plan of a seed.
    pub fn draw(seed: u64) -> Plan {
        let mut random = fastrand::Rng::with_seed(seed);
        let world = WorldPlan::draw(seed);
        let first = fault(&mut random, world, Duration::ZERO);
        let mut faults = vec![first];
        let second_at = match random.u8(0..10) {
            0..=5 => None,
            6 | 7 => Some(Duration::ZERO),
            _ => Some(millis(&mut random, 300, 6_000)),
        };
        if let Some(at) = second_at {
            let other = (0..100)
                .map(|_| fault(&mut random, world, at))
                .find(|other| other.kind.part() != first.kind.part());
            faults.extend(other);
        }
        Plan { world, faults }
    }

    /// Makes a plan of several short faults within a few seconds. So the chain changes again before
    /// a change is complete, and its devices learn of the changes at different moments.
    pub fn storm(seed: u64) -> Plan {
        let mut random = fastrand::Rng::with_seed(seed);
        let world = WorldPlan {
            confirm: 1,
            ..WorldPlan::draw(seed)
        };
        let count = random.usize(3..=STORM_MAX);
        let mut faults: Vec<Fault> = Vec::new();
        while faults.len() < count {
            let kind = match random.u8(0..10) {
                0..=6 => device(&mut random, world),
                7 => Kind::Server,
                8 => Kind::Controller,
                _ => Kind::EtcdLeader,
            };
            // At least one device has no fault. Every other part has at most one fault.
            let devices = |fault: &&Fault| matches!(fault.kind, Kind::Device(..));
            let fits = match kind {
                Kind::Device(..) => {
                    faults.iter().filter(devices).count() + 1 < world.devices + world.spares
                }
                _ => faults.iter().all(|other| other.kind != kind),
            };
            if fits {
                faults.push(Fault {
                    kind,
                    at: millis(&mut random, 0, 5_000),
                    lasts: millis(&mut random, 200, 4_500),
                });
            }
            if world.devices + world.spares == 2 && faults.len() == 3 {
                break;
            }
        }
        faults.sort_by_key(|fault| fault.at);
        Plan { world, faults }
    }

    /// Returns whether the plan is a storm.
    pub fn is_storm(&self) -> bool {
        self.faults.len() > 2
    }

    /// Returns the kind under which the report counts this run.
    pub fn kind(&self) -> String {
        // Until the old master is back as a replica, only one replica can confirm writes.
        let confirm = format!("wait_replicas={}", self.world.confirm);
        if self.is_storm() {
            return "a storm".to_owned();
        }
        let [first, second] = self.faults[..] else {
            let kind = self.faults[0].kind;
            return match kind {
                Kind::RedisMaster => format!("{kind}, {confirm}"),
                _ => kind.to_string(),
            };
        };
        let when = if second.at.is_zero() {
            "two at once"
        } else {
            "a second one meanwhile"
        };
        let is = |kind| first.kind == kind || second.kind == kind;
        let with = if is(Kind::EtcdLeader) {
            // A new leader of etcd renews all leases to their full length
            // (docs/operate/healing.md).
            ", one is etcd's leader".to_owned()
        } else if is(Kind::RedisMaster) {
            // A chain can change only after its store has confirmed the record of the change.
            format!(", one is Redis's master, {confirm}")
        } else {
            String::new()
        };
        format!("{when}{with}")
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, fault) in self.faults.iter().enumerate() {
            let begins = if number > 0 { ", and " } else { "" };
            let (at, lasts) = (fault.at.as_secs_f64(), fault.lasts.as_secs_f64());
            write!(f, "{begins}{} (at {at:.1} s for {lasts:.1} s)", fault.kind)?;
        }
        Ok(())
    }
}

fn fault(random: &mut fastrand::Rng, world: WorldPlan, at: Duration) -> Fault {
    let kind = match random.u8(0..20) {
        0..=11 => device(random, world),
        12 | 13 => Kind::Server,
        14 | 15 => Kind::RedisMaster,
        16 => Kind::Controller,
        17 => Kind::Front,
        _ => Kind::EtcdLeader,
    };
    let lasts = match kind {
        Kind::Device(_, How::Killed) => millis(random, 5_000, 8_000),
        Kind::Device(_, How::Restarted) => millis(random, 50, 1_500),
        Kind::Device(_, How::Frozen | How::CutOff) => millis(random, 3_500, 7_000),
        Kind::RedisMaster => millis(random, 4_000, 6_000),
        Kind::EtcdLeader => millis(random, 2_000, 6_000),
        Kind::Server | Kind::Controller | Kind::Front => millis(random, 50, 3_000),
    };
    Fault { kind, at, lasts }
}

fn device(random: &mut fastrand::Rng, world: WorldPlan) -> Kind {
    let mut places = vec![Place::Head, Place::Tail];
    if world.devices > 2 {
        places.push(Place::Middle);
    }
    if world.spares > 0 {
        places.push(Place::Spare);
    }
    let place = places[random.usize(..places.len())];
    let how = match random.u8(0..8) {
        0..=2 => How::Killed,
        3 => How::Restarted,
        4 | 5 => How::Frozen,
        _ => How::CutOff,
    };
    Kind::Device(place, how)
}

fn millis(random: &mut fastrand::Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(random.u64(from..to))
}

#[test]
fn a_seed_is_a_plan_and_every_kind_is_drawn() {
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 0..2_000 {
        let plan = Plan::draw(seed);
        assert_eq!(plan, Plan::draw(seed));
        for fault in &plan.faults {
            let Kind::Device(place, _) = fault.kind else {
                kinds.insert(fault.kind.to_string());
                continue;
            };
            kinds.insert(fault.kind.to_string());
            assert!(place != Place::Middle || plan.world.devices == 3);
            assert!(place != Place::Spare || plan.world.spares == 1);
        }
        if let [first, second] = plan.faults[..] {
            assert_ne!(first.kind.part(), second.kind.part());
        }
        kinds.insert(plan.kind());
    }
    for seed in 0..2_000 {
        let storm = Plan::storm(seed);
        assert_eq!(storm, Plan::storm(seed));
        assert!(storm.is_storm() && storm.faults.is_sorted_by_key(|fault| fault.at));
        let world = storm.world;
        let devices = storm
            .faults
            .iter()
            .filter(|fault| matches!(fault.kind, Kind::Device(..)));
        assert!(devices.count() < world.devices + world.spares);
    }
    // The kinds are: four places with four faults each; five other faults; eight kinds of two
    // faults; and Redis's master with each number of replicas.
    assert_eq!(kinds.len(), 16 + 5 + 8 + 2, "{kinds:?}");
}
