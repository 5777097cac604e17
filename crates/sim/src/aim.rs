//! Aimed faults: in a world with an aim, one kind of fault happens repeatedly at one moment in the life of an update.
//! With aimed faults every campaign hits every cell of the failure matrix. Random faults alone would seldom hit some
//! cells.

use crate::cells::{Cell, Fault, Moment};
use crate::world::{Phase, World};
use pmnet_proto::time::{MICROSECOND, MILLISECOND, Nanos};

/// Longest pause between two aimed faults of packets.
const PACKET_PAUSE: Nanos = 300 * MICROSECOND;
/// Longest pause between two aimed deaths of processes.
const DEATH_PAUSE: Nanos = 15 * MILLISECOND;
/// Longest time for which a killed process stays down.
const DOWN: Nanos = 5 * MILLISECOND;

impl World {
    /// Makes the aimed fault happen, if some update is at the aimed moment.
    pub(crate) fn strike(&mut self) {
        let Some(Cell { moment, fault }) = self.config.aim else {
            return;
        };
        if !self.has_accidents() || self.phase != Phase::Load || self.now < self.strike_at {
            return;
        }
        let devices = self.config.devices;
        let mut at: Vec<usize> = (0..devices)
            .filter(|&node| self.moments_at(node).has(moment))
            .collect();
        if moment == Moment::Recovering && self.moments().has(moment) {
            at.push(devices);
        }
        if at.is_empty() || self.below(4) == 0 {
            return;
        }
        let node = self.pick(&at);
        let pause = match fault {
            Fault::Loss | Fault::Disorder | Fault::Corruption => PACKET_PAUSE,
            _ => DEATH_PAUSE,
        };
        self.strike_at = self.now + 1 + self.below(pause);
        match fault {
            Fault::DeviceCrash if node < devices => {
                self.kill(node);
                self.start_later(node, DOWN);
            }
            Fault::DeviceCrash => {}
            Fault::DeviceLost => self.lose_devices(Some(node)),
            Fault::OldMedium => self.old_medium_returns(),
            Fault::ServerCrash => {
                self.kill(devices);
                self.start_later(devices, DOWN);
            }
            Fault::ClientDies => {
                let clients: Vec<usize> = (devices + 1..=devices + self.config.clients).collect();
                let client = self.pick(&clients);
                self.kill(client);
            }
            Fault::Failover => self.fail_store_over(),
            Fault::Join if self.joiner.is_some() => self.wire_joiner(),
            Fault::Join => self.begin_join(),
            Fault::Loss | Fault::Disorder | Fault::Corruption => self.struck = Some(fault),
        }
    }
}
