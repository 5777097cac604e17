//! Worlds whose devices have leases (`docs/spec/protocol.md` §14): the settings under which a world can have leases,
//! and worlds in which a rule about leases is switched off.

use crate::config::{WorldConfig, one_of};
use crate::without::Place;
use pmnet_proto::Random;
use pmnet_proto::lease::DRIFT;
use pmnet_proto::rules::Rule;
use pmnet_proto::time::{MILLISECOND, Nanos, SECOND};

/// Unit of clock rates: millionths.
const PARTS: i64 = 1_000_000;

impl WorldConfig {
    /// Returns this world with leases, and with a chain that can continue without one of its devices.
    #[must_use]
    pub fn with_leases(self, random: &mut Random) -> WorldConfig {
        let lease = one_of(random, &[20, 60, 200]) * MILLISECOND;
        if self.lost_clients || self.declared_losses {
            return self;
        }
        let world = self.of_devices(2).of_lease(lease);
        WorldConfig {
            accident_every: match world.accident_every {
                0 => 10 * MILLISECOND,
                every => every,
            },
            ..world
        }
    }

    fn of_lease(self, lease: Nanos) -> WorldConfig {
        WorldConfig {
            lease,
            clock_rates: PARTS / i64::try_from(DRIFT).expect("small"),
            lose_devices: self.lose_devices.max(1),
            zombies: true,
            // A device with a wrong image is down for long, and is declared stopped. Then the remaining device must not
            // also get a wrong image.
            exchanges: 0,
            ..self
        }
    }

    /// Returns this world with leases, and with devices that are cut off from all nodes except
    /// their clients.
    pub(crate) fn lacking_of_leases(self, place: Place) -> WorldConfig {
        let chain = WorldConfig {
            lost_clients: false,
            declared_losses: false,
            aim: None,
            reads: true,
            wait_replicas: false,
            directs: false,
            hangs: false,
            calls: 150,
            payload_max: 100,
            deadline: 50 * MILLISECOND,
            session_idle: 5 * SECOND,
            outage_max: 0,
            accident_every: self.accident_every.clamp(1, 10 * MILLISECOND),
            ..self.of_devices(2)
        };
        if matches!(
            place,
            Place::Waited | Place::Machine(Rule::LeaseCoversReads)
        ) {
            // Clients send READs all the time, so that a device is asked at every moment of its lease. Other faults are
            // rare.
            let asked = WorldConfig {
                clients: chain.clients.max(3),
                calls: 400,
                updates: 30,
                loss: 0,
                duplication: 0,
                long_delay: 0,
                corruption: 0,
                injection: 0,
                store_trouble: 0,
                store_storms: false,
                clocks: false,
                partitions: false,
                power_cuts: false,
                detours: false,
                recovery_crashes: 0,
                down_max: MILLISECOND,
                accident_every: 30 * MILLISECOND,
                ..chain
            };
            return asked.of_lease(200 * MILLISECOND);
        }
        if place != Place::Drift {
            return chain.of_lease(20 * MILLISECOND);
        }
        // The lease is longer, so that clients ask while a device is already declared stopped but its deadline by a
        // slow clock is not reached.
        WorldConfig {
            clock_rates: PARTS / 2,
            ..chain.of_lease(100 * MILLISECOND)
        }
    }
}
