//! The configuration of a world, drawn from its seed: its size, its network faults, its accidents. This is swarm
//! testing: most seeds leave out most faults, so that the remaining faults are tested in depth.

use crate::cells::{Cell, Fault, Moment};
use crate::media::Kind;
use crate::paths::Paths;
use crate::rollover::Rollover;
use crate::without::{Place, Without};
use pmnet_proto::Random;
use pmnet_proto::rules::Rule;
use pmnet_proto::time::{MICROSECOND, MILLISECOND, Nanos, SECOND};

/// Clients of worlds with larger payloads than this, in bytes, make fewer calls.
const LARGE_PAYLOAD: usize = 50_000;

/// The configuration of one world. Chances are in 1/1000. A time or number of 0 means "never".
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Number of devices in the chain (R).
    pub devices: usize,
    /// Number of client processes.
    pub clients: usize,
    /// Number of calls of each client.
    pub calls: u32,
    /// Number of keys.
    pub keys: u8,
    /// Kind of the devices' media.
    pub media: Kind,
    /// Number of entries of each log.
    pub log_entries: u64,
    /// Frame space of each log in bytes.
    pub log_frame_bytes: u64,
    /// Whether the frame space of each log consists of packet buffers in which packets arrive.
    pub packet_buffers: bool,
    /// Maximum number of unapplied entries of one session in the log.
    pub session_entries_max: u64,
    /// Length of silence after which a session is ended.
    pub session_idle: Nanos,
    /// Interval at which an idle session of a client sends a ping.
    pub ping_every: Nanos,
    /// Number of packets out of 1000 that are lost.
    pub loss: u64,
    /// Number of packets out of 1000 that are duplicated.
    pub duplication: u64,
    /// Number of packets out of 1000 with an unusually long delay.
    pub long_delay: u64,
    /// Number of packets out of 1000 with flipped bits.
    pub corruption: u64,
    /// Number of packets out of 1000 after which the injector sends a forged, foreign or very old packet.
    pub injection: u64,
    /// Mean time between accidents; 0: none.
    pub accident_every: Nanos,
    /// Longest time that a process stays dead.
    pub down_max: Nanos,
    /// Longest time that the server is down in a long outage.
    pub outage_max: Nanos,
    /// Whether one-way partitions happen.
    pub partitions: bool,
    /// Whether all computers may lose power at once.
    pub power_cuts: bool,
    /// Whether clocks stand still and jump forward.
    pub clocks: bool,
    /// Whether dead clients come back as new processes.
    pub rebirths: bool,
    /// Number of starts of a device out of 1000 in which the device dies.
    pub recovery_crashes: u64,
    /// Number of devices that may be lost permanently; at least one device remains.
    pub lose_devices: usize,
    /// Whether a lost device may still run, cut off from the network, and later be on the network again.
    pub zombies: bool,
    /// After a loss: true: the operator restarts only the devices that need it; false: all devices.
    pub gentle_operator: bool,
    /// Whether a client first talks to any device of the chain, and not to the head.
    pub lost_clients: bool,
    /// One in this number of store steps fails; 0: no step fails.
    pub store_trouble: u64,
    /// Whether there are periods in which every store step fails.
    pub store_storms: bool,
    /// Maximum number of bytes to which a reply is padded.
    pub reply_max: usize,
    /// Largest payload in bytes.
    pub payload_max: usize,
    /// Time within which a call must have an outcome.
    pub deadline: Nanos,
    /// Longest time a persist takes.
    pub persist_max: Nanos,
    /// Longest time a store step takes.
    pub store_max: Nanos,
    /// Number of updates out of 100 calls. The other calls are reads, and bypasses that are executed exactly once.
    pub updates: u64,
    /// Whether some bypasses have an effect that depends on the data that they find.
    pub conditionals: bool,
    /// Whether lost devices may be started again with their old media.
    pub returns: bool,
    /// Number of starts of a device out of 1000 with a damaged image, or with the image of another device.
    pub exchanges: u64,
    /// Whether all devices may be lost at once, so that the operator declares the loss.
    pub declared_losses: bool,
    /// Whether packets of clients sometimes go to another node than the head for a while.
    pub detours: bool,
    /// True: the store can fail at every step, as Redis can. False: the store fails only before or after an operation.
    pub store_steps: bool,
    /// Whether the store is a packet store.
    pub packet_store: bool,
    /// Whether the store sometimes reports that it is short of space.
    pub short_store: bool,
    /// Whether the store waits for its replica before it reports a write as durable.
    pub wait_replicas: bool,
    /// Whether operators promote the store's replica.
    pub failovers: bool,
    /// Whether clients make calls that deliver messages without changing data, and calls that read by scripts.
    pub publishes: bool,
    /// Whether clients call code that never ends.
    pub hangs: bool,
    /// Whether clients have their own connections to the store.
    pub directs: bool,
    /// Whether clients read directly from the store.
    pub reads: bool,
    /// Whether clients also accept HITs with applied updates.
    pub kept_reads: bool,
    /// Number of direct reads out of four that first ask a replica of the store.
    pub replicas: u64,
    /// Number of devices that are spares at the beginning. They have the highest numbers.
    pub spares: usize,
    /// Whether operators let spares and repaired devices join.
    pub joins: bool,
    /// Duration of a device's lease; 0: no leases.
    pub lease: Nanos,
    /// Maximum rate error, in millionths, of the clocks of devices, lease store and controllers.
    pub clock_rates: i64,
    /// Whether a second server takes over from a server that still runs.
    pub standby: bool,
    /// Lengths of the packets that the paths carry.
    pub paths: Paths,
    /// Maximum number of sessions of a device.
    pub sessions_max: usize,
    /// Length of silence after which a device with a full session table may end a session; usually `session_idle`.
    pub session_quiet: Nanos,
    /// Whether packets are sealed with keys. The injector then sends packets that it has seen: changed, repeated, or
    /// redirected to another receiver.
    pub keyed: bool,
    /// Whether keys change, and how.
    pub rollover: Rollover,
    /// A fault that happens again and again at one moment of an update's life.
    pub aim: Option<Cell>,
    /// The rule that is switched off, if any.
    pub without: Option<Without>,
}

fn small(value: u64) -> usize {
    usize::try_from(value).expect("small")
}

pub(crate) fn one_of(random: &mut Random, choices: &[u64]) -> u64 {
    let at = random.next_u64() % u64::try_from(choices.len()).expect("few choices");
    choices[small(at)]
}

impl WorldConfig {
    /// Draws the configuration of a world.
    #[must_use]
    pub fn from_seed(random: &mut Random) -> WorldConfig {
        let mut one_of = |choices: &[u64]| one_of(random, choices);
        let devices = small(one_of(&[1, 1, 2, 3]));
        let lose = small(one_of(&[0, 0, 1, 2]));
        let payload_max = small(one_of(&[100, 100, 1500, 30_000, 200_000]));
        let calls = one_of(&[20, 60, 150]);
        WorldConfig {
            devices,
            clients: small(one_of(&[1, 2, 3, 4])),
            calls: u32::try_from(if payload_max > LARGE_PAYLOAD {
                12
            } else {
                calls
            })
            .expect("small"),
            keys: u8::try_from(one_of(&[1, 2, 5])).expect("small"),
            media: if one_of(&[0, 1]) == 0 {
                Kind::Forgetful
            } else {
                Kind::Dram
            },
            log_entries: one_of(&[64, 64, 256, 4096]),
            log_frame_bytes: one_of(&[16 << 10, 64 << 10, 256 << 10]),
            packet_buffers: false,
            session_entries_max: one_of(&[u64::MAX, u64::MAX, u64::MAX, 3]),
            session_idle: one_of(&[15, 100, 5000, 5000]) * MILLISECOND,
            ping_every: one_of(&[5, 30, 1000]) * MILLISECOND,
            loss: one_of(&[0, 0, 10, 50, 200]),
            duplication: one_of(&[0, 0, 20, 200]),
            long_delay: one_of(&[0, 0, 10, 50]),
            corruption: one_of(&[0, 0, 10, 50]),
            injection: one_of(&[0, 0, 10, 100]),
            accident_every: one_of(&[0, 3, 10, 30]) * MILLISECOND,
            down_max: one_of(&[1, 20, 200]) * MILLISECOND,
            outage_max: one_of(&[0, 0, 300, 3000]) * MILLISECOND,
            partitions: one_of(&[0, 0, 1]) == 1,
            power_cuts: one_of(&[0, 0, 1]) == 1,
            clocks: one_of(&[0, 0, 0, 1]) == 1,
            rebirths: one_of(&[0, 1]) == 1,
            recovery_crashes: one_of(&[0, 0, 300, 700]),
            lose_devices: lose.min(devices - 1),
            zombies: one_of(&[0, 1]) == 1,
            gentle_operator: one_of(&[0, 1]) == 1,
            lost_clients: one_of(&[0, 0, 0, 1]) == 1,
            store_trouble: one_of(&[0, 0, 5, 50]),
            store_storms: one_of(&[0, 0, 0, 1]) == 1,
            reply_max: small(one_of(&[0, 0, 3000, 60_000])),
            payload_max,
            deadline: one_of(&[50, 500, 5000]) * MILLISECOND,
            persist_max: one_of(&[20, 500]) * MICROSECOND,
            store_max: one_of(&[50, 2000]) * MICROSECOND,
            updates: one_of(&[95, 70, 30]),
            conditionals: false,
            returns: false,
            exchanges: 0,
            declared_losses: false,
            detours: false,
            store_steps: false,
            packet_store: false,
            short_store: false,
            wait_replicas: false,
            failovers: false,
            publishes: false,
            hangs: false,
            directs: false,
            reads: false,
            kept_reads: false,
            replicas: 2,
            spares: 0,
            joins: false,
            lease: 0,
            clock_rates: 0,
            standby: false,
            paths: Paths::default(),
            sessions_max: 65_536,
            session_quiet: Nanos::MAX,
            keyed: false,
            rollover: Rollover::Never,
            aim: None,
            without: None,
        }
    }

    /// Returns this world with keys, and with an adversary who has no key.
    pub fn with_keys(self) -> WorldConfig {
        WorldConfig {
            keyed: true,
            injection: self.injection.max(50),
            ..self
        }
    }

    /// Returns this world, changed to test the first moments of a chain: several devices start separately, clients
    /// begin at any of them, and packets can be very late.
    #[must_use]
    pub fn forming(self) -> WorldConfig {
        WorldConfig {
            devices: self.devices.max(2),
            lost_clients: true,
            calls: 1 + self.calls / 10,
            long_delay: 300,
            duplication: self.duplication.max(20),
            payload_max: self.payload_max.min(1500),
            session_entries_max: u64::MAX,
            lose_devices: 0,
            ..self
        }
    }

    /// Returns this world with more faults. `random` is a separate generator, so that the other draws of the seed stay
    /// the same.
    #[must_use]
    pub fn wide(self, random: &mut Random) -> WorldConfig {
        let mut one_of = |choices: &[u64]| one_of(random, choices);
        let base = if one_of(&[1, 0, 0, 0, 0, 0, 0, 0]) == 1 {
            self.forming()
        } else {
            self
        };
        let declared_losses = one_of(&[0, 0, 1]) == 1 && base.devices == 1 && !base.lost_clients;
        let wide = WorldConfig {
            conditionals: one_of(&[0, 1]) == 1,
            returns: one_of(&[0, 1]) == 1,
            exchanges: one_of(&[0, 0, 50, 300]),
            declared_losses,
            detours: one_of(&[0, 0, 1]) == 1,
            ..base
        };
        // Half of the worlds have an aim. Faults that a world survives only once or twice are drawn more often.
        let fault = one_of(&[
            0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 3, 4, 5, 6, 7, 8, 9, 9,
        ]);
        let moment = one_of(&[0, 1, 2, 3, 4, 5, 6, 7]);
        let aim = Cell {
            moment: Moment::ALL[small(moment)],
            fault: Fault::ALL[small(fault)],
        };
        let aimed = one_of(&[0, 1]) == 1;
        let wide = WorldConfig {
            store_steps: true,
            wait_replicas: one_of(&[0, 1]) == 1,
            failovers: one_of(&[0, 0, 1]) == 1,
            publishes: one_of(&[0, 1]) == 1,
            hangs: one_of(&[0, 0, 0, 0, 0, 0, 0, 1]) == 1,
            directs: one_of(&[0, 0, 1]) == 1,
            reads: one_of(&[0, 1]) == 1,
            packet_buffers: one_of(&[0, 0, 1]) == 1,
            kept_reads: one_of(&[0, 1]) == 1,
            ..wide
        };
        let joins = one_of(&[0, 1]) == 1;
        let (spares, losses) = (small(one_of(&[0, 1, 1])), small(one_of(&[0, 2, 4])));
        let wide = if joins {
            wide.joining(spares, losses)
        } else {
            wide
        };
        let wide = if aimed { wide.aimed(aim) } else { wide };
        wide.reading()
    }

    /// Returns this world with `spares` spares, and with operators that lose `losses` devices and let others join.
    /// Worlds stay unchanged if their chain may form from unintended devices, or may be lost with all data.
    #[must_use]
    fn joining(mut self, spares: usize, losses: usize) -> WorldConfig {
        if self.lost_clients || self.declared_losses {
            return self;
        }
        self.joins = true;
        self.spares = spares;
        self.devices += spares;
        self.lose_devices = self.lose_devices.max(losses);
        self
    }

    /// Returns this world with at least this many devices in its first chain.
    #[must_use]
    pub(crate) fn of_devices(mut self, chain: usize) -> WorldConfig {
        self.devices = self.devices.max(chain + self.spares);
        self
    }

    /// Returns this world with the settings under which direct reads are correct: the store does not wait for a
    /// replica, and a session with a mark lives longer than the operation for which the mark was opened.
    #[must_use]
    fn reading(mut self) -> WorldConfig {
        self.reads &= !self.wait_replicas;
        if self.reads && self.directs {
            self.session_idle = 20 * SECOND;
            self.clocks = false;
        }
        self
    }

    /// Returns this world with an aim at this cell of the failure matrix, and with settings under which the cell can be
    /// hit.
    #[must_use]
    pub fn aimed(mut self, cell: Cell) -> WorldConfig {
        self.aim = Some(cell);
        if matches!(cell.fault, Fault::DeviceLost | Fault::OldMedium) {
            // A world survives this fault only a few times, so its chain must exist early in the run.
            self.payload_max = self.payload_max.min(LARGE_PAYLOAD);
        }
        self.calls = self.calls.max(60).min(if self.payload_max > LARGE_PAYLOAD {
            12
        } else {
            150
        });
        match cell.moment {
            Moment::BeforePersist => self.media = Kind::Forgetful,
            Moment::DurableNotAcked => self = self.of_devices(2),
            Moment::ReclaimLost => self.loss = self.loss.max(100),
            Moment::Recovering if self.accident_every == 0 => {
                self.accident_every = 10 * MILLISECOND;
            }
            Moment::LogFull => {
                self.log_entries = 64;
                self.log_frame_bytes = 16 << 10;
                self.outage_max = self.outage_max.max(300 * MILLISECOND);
                if self.accident_every == 0 || self.accident_every > 10 * MILLISECOND {
                    self.accident_every = 10 * MILLISECOND;
                }
            }
            _ => {}
        }
        match cell.fault {
            Fault::DeviceLost | Fault::OldMedium => {
                // The moment must still be able to occur after a device was given up.
                let waits = cell.moment == Moment::DurableNotAcked;
                let others = if waits { 3 } else { 2 };
                self = self.of_devices(others);
                self.lose_devices = self.lose_devices.max(self.devices - 1);
                self.returns = true;
            }
            Fault::Join => {
                self.lost_clients = false;
                self.declared_losses = false;
                if self.spares == 0 {
                    self.devices += 1;
                    self.spares = 1;
                }
                self.joins = true;
                // Before a device can come back with its old medium, it must be lost.
                self.lose_devices = self.lose_devices.max(20);
                if self.accident_every == 0 {
                    self.accident_every = 10 * MILLISECOND;
                }
            }
            Fault::ClientDies => self.rebirths = true,
            Fault::Failover => self.failovers = true,
            _ => {}
        }
        // A declared loss of a chain of several devices is not simulated.
        self.declared_losses &= self.devices == 1 && !self.joins;
        self
    }

    /// Returns this world with a packet store, unless its operators promote a replica, because a packet store has no
    /// replica. Clients have no connections of their own to a packet store, and code in it always ends.
    #[must_use]
    pub fn on_packets(self) -> WorldConfig {
        if self.aim.is_some_and(|aim| aim.fault == Fault::Failover) {
            return self;
        }
        WorldConfig {
            packet_store: true,
            store_steps: false,
            store_trouble: match self.store_trouble {
                0 => 20,
                trouble => trouble,
            },
            wait_replicas: false,
            failovers: false,
            directs: false,
            reads: false,
            hangs: false,
            // The store has space for the reply of every session.
            payload_max: self.payload_max.min(30_000),
            reply_max: self.reply_max.min(3000),
            ..self
        }
    }

    /// Returns this world with a standby server, unless only one process can use the store, or the store may fail over.
    #[must_use]
    pub const fn with_standby(mut self) -> WorldConfig {
        self.standby = !self.packet_store && !self.failovers;
        self
    }

    /// Returns this world with a session table so small that clients which die repeatedly fill it.
    #[must_use]
    pub fn crowded(self) -> WorldConfig {
        WorldConfig {
            sessions_max: 4 * (self.clients + 1),
            // A session in use sends several packets within this time, even while it waits for an answer.
            session_quiet: (5 * self.ping_every).max(SECOND),
            session_idle: 20 * SECOND,
            rebirths: true,
            accident_every: self.accident_every.clamp(1, 10 * MILLISECOND),
            ..self
        }
    }

    /// Whether any fault of [`WorldConfig::wide`] can happen in this world.
    #[must_use]
    pub const fn is_wide(&self) -> bool {
        self.returns || self.detours || self.declared_losses || self.failovers || self.joins
    }

    /// Returns this world without this rule, and with settings under which the missing rule matters.
    #[must_use]
    pub fn lacking(mut self, without: Without) -> WorldConfig {
        self.without = Some(without);
        // The absence of other rules is found in worlds without direct reads.
        self.reads = false;
        match without.place {
            Place::Machine(Rule::AllCopies | Rule::WhoseCopy) => {
                self.declared_losses = false;
                self.joins = false;
                self.spares = 0;
                self.devices = 3;
                self.lose_devices = 2;
                self.zombies = false;
                self.returns = false;
                self.aim = None;
                self.accident_every = self.accident_every.clamp(1, 10 * MILLISECOND);
                self.down_max = self.down_max.max(20 * MILLISECOND);
            }
            Place::Machine(Rule::FragmentSize) => self = self.with_narrow_paths(),
            Place::Machine(Rule::Sealed) => self = self.with_keys(),
            Place::Machine(Rule::SealAnew)
            | Place::Nonce
            | Place::RollAccepted
            | Place::RollSent
            | Place::RollFronts
            | Place::Forgotten
            | Place::RefusedFronts => self = self.lacking_of_keys(without.place),
            Place::Machine(Rule::DurableFirst | Rule::WriteAhead) | Place::Checksum => {
                self.media = Kind::Forgetful;
                self.persist_max = 500 * MICROSECOND;
            }
            Place::RecordFirst | Place::Fenced => {
                self.publishes = true;
                self.store_trouble = 5;
            }
            Place::Machine(Rule::AfterUnknown) => {
                self.directs = true;
                self.payload_max = 100;
                self.calls = 150;
                self.updates = 30;
                self.keys = 1;
                self.loss = self.loss.max(50);
                self.duplication = self.duplication.max(200);
                self.long_delay = 100;
                self.deadline = 50 * MILLISECOND;
                self.session_idle = 5 * SECOND;
                self.accident_every = 10 * MILLISECOND;
                self.down_max = MILLISECOND;
                self.outage_max = 0;
            }
            Place::Machine(Rule::EraseOnJoin | Rule::Synced | Rule::StandsStill) => {
                let cell = Cell {
                    moment: Moment::AckedNotForwarded,
                    fault: Fault::Join,
                };
                self = self.of_devices(1).aimed(cell);
                self.zombies = true;
                self.accident_every = self.accident_every.clamp(1, 10 * MILLISECOND);
            }
            Place::OneServer | Place::OwnRecords | Place::Machine(Rule::FreshRecords) => {
                if without.place == Place::OwnRecords {
                    self.store_steps = true;
                    self.store_storms = true;
                    self.store_trouble = 5;
                    self.wait_replicas = false;
                }
                self.failovers = false;
                self.aim = None;
                self.accident_every = self.accident_every.clamp(1, 10 * MILLISECOND);
                self = self.with_standby();
            }
            Place::Replicas
            | Place::ReplicasLoad
            | Place::ReplicasApply
            | Place::ReplicasExecute
            | Place::StoreNamed => {
                self.failovers = true;
                self.directs = without.place == Place::StoreNamed;
                self.wait_replicas = true;
                self.accident_every = self.accident_every.clamp(1, 10 * MILLISECOND);
            }
            Place::Machine(Rule::Lease | Rule::LeaseCoversReads | Rule::StoppedForGood)
            | Place::Drift
            | Place::Waited
            | Place::LastLease
            | Place::Refused
            | Place::Beside => {
                self = self.lacking_of_leases(without.place);
            }
            Place::Machine(
                Rule::Floor | Rule::HitCommitted | Rule::StoreEpoch | Rule::ShownAbove,
            )
            | Place::ReadEpoch
            | Place::ReadNeed
            | Place::ReadDurable => self = self.lacking_of_reads(without.place),
            Place::Machine(Rule::ReplicaBehind | Rule::ReplicaRecovered | Rule::ReplicaQuiet)
            | Place::ReplicaNeed => {
                self = self.lacking_of_replicas(without.place);
            }
            _ => {}
        }
        self
    }

    /// Returns this world with frequent direct reads, and with few keys, which change often.
    fn lacking_of_reads(self, place: Place) -> WorldConfig {
        let alone = place == Place::ReadDurable;
        let fails_over =
            alone || matches!(place, Place::Machine(Rule::StoreEpoch) | Place::ReadEpoch);
        let reading = WorldConfig {
            reads: true,
            replicas: 0,
            wait_replicas: false,
            aim: None,
            declared_losses: false,
            lose_devices: 0,
            joins: false,
            clients: self.clients.max(3),
            calls: 150,
            keys: 1,
            payload_max: 100,
            updates: 40,
            store_max: 2 * MILLISECOND,
            directs: false,
            publishes: false,
            hangs: false,
            failovers: fails_over || self.failovers,
            loss: self.loss.max(50),
            duplication: self.duplication.max(200),
            long_delay: 100,
            deadline: 50 * MILLISECOND,
            session_idle: 5 * SECOND,
            outage_max: 0,
            accident_every: self.accident_every.clamp(1, 10 * MILLISECOND),
            down_max: self.down_max.min(20 * MILLISECOND),
            ..self
        };
        let reading = reading.reading();
        if !alone {
            return reading;
        }
        // Many effects have no order. They are lost together with a master if the server did not wait for the replica.
        // Other faults are rare.
        WorldConfig {
            wait_replicas: true,
            updates: 20,
            calls: 300,
            deadline: 500 * MILLISECOND,
            store_max: 200 * MICROSECOND,
            store_trouble: 20,
            store_storms: false,
            loss: 0,
            duplication: 0,
            long_delay: 0,
            corruption: 0,
            injection: 0,
            clocks: false,
            partitions: false,
            power_cuts: false,
            recovery_crashes: 0,
            lost_clients: false,
            down_max: MILLISECOND,
            accident_every: 15 * MILLISECOND,
            returns: false,
            detours: false,
            ..reading
        }
    }

    /// Returns this world with reads from replicas of the store, and with a store that seldom fails.
    fn lacking_of_replicas(self, place: Place) -> WorldConfig {
        let reading = WorldConfig {
            replicas: 2,
            store_trouble: 0,
            store_storms: false,
            failovers: false,
            calls: 300,
            injection: 0,
            corruption: 0,
            lost_clients: false,
            power_cuts: false,
            partitions: false,
            ..self.lacking_of_reads(place)
        };
        match place {
            Place::Machine(Rule::ReplicaQuiet) => WorldConfig {
                updates: 3,
                loss: 100,
                clients: 4,
                accident_every: 200 * MILLISECOND,
                deadline: 500 * MILLISECOND,
                ..reading
            },
            Place::Machine(Rule::ReplicaRecovered) => WorldConfig {
                updates: 5,
                loss: 0,
                long_delay: 0,
                accident_every: 3 * MILLISECOND,
                down_max: MILLISECOND,
                deadline: 500 * MILLISECOND,
                replicas: 4,
                ..reading
            },
            _ => WorldConfig {
                replicas: 4,
                ..reading
            },
        }
    }

    /// Returns the longest time after the load phase for the repair, the draining of logs, the expiry of sessions, and
    /// the end.
    #[must_use]
    pub const fn settle_max(&self) -> Nanos {
        60 * SECOND + 4 * self.session_idle
    }
}
