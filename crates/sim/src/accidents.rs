//! Faults of computers and processes, and the reactions of operators.
//!
//! Fault model: a device, the server or a client dies at any moment, and loses everything that it had not sent or
//! persisted. All computers may lose power at once. The server may be down for long. A device may die repeatedly while
//! it starts. A device and its medium may be lost permanently. The operator then starts the new head with
//! `--shrink-chain`; if the lost device was in the middle of the chain, the operator starts the previous device with
//! another next hop. A lost device may also only be cut off: it still runs, and its clients may still reach it. Later
//! it is back on the network, where it must be fenced. Clocks stand still and jump. The faults of devices that join are
//! in `joins`.

use crate::cells::Fault;
use crate::hosts::StartError;
use crate::world::{Event, World, address};
use pmnet_proto::time::{MILLISECOND, Nanos, SECOND};
use pmnet_proto::{Peer, Time};
use pmnet_wire::record::Member;

/// Longest forward jump of a clock.
const JUMP_MAX: Nanos = 8 * SECOND;
/// Longest time for which a clock stands still, and longest time for which every step of a store fails.
const SPELL_MAX: Nanos = 50 * MILLISECOND;
/// Clients of most worlds finish their work within seconds. If the store fails over every few milliseconds, clients may
/// never finish. So no new accident begins after this time.
const ACCIDENTS_UNTIL: Time = Time(300 * SECOND);
/// Longest time until a lost device is cut off, and longest time until clients learn of the loss.
const RUMOUR_MAX: Nanos = 60 * MILLISECOND;
/// The refusal of a device that tries to join a chain in use.
const LATECOMER: &str = "a device joins a chain only before its first session";
/// The refusal of a device whose log differs from the one that the server has recorded for it.
const OTHER_LOG: &str = "comes with another log than the one it registered";
/// Approximate number of persists during the start of a device. A crash interrupts one of them.
const START_PERSISTS: u64 = 9;

impl World {
    /// Starts a device or the server, unless it runs or must not be started.
    pub(crate) fn restart(&mut self, node: usize) {
        let seed = self.random.next_u64();
        let now = self.now;
        if node == self.config.devices {
            let local = self.clocks[node].local(now);
            self.server.start(&self.config, seed, now);
            self.tell(|| format!("server starts, its clock shows {}", local.0));
        } else {
            let (next, flags) = self.next_hop(node);
            let dies = self.chance(self.config.recovery_crashes);
            let fuse = u32::try_from(self.below(START_PERSISTS)).expect("small");
            let local = self.clocks[node].local(now);
            let device = &mut self.devices[node];
            if device.lost || device.gone || device.running.is_some() {
                return;
            }
            self.exchange_image(node);
            if self.devices[node].lost {
                return;
            }
            let (flags, word_epoch) = self.fleet_word(node, flags);
            let device = &mut self.devices[node];
            let fate = pmnet_proto::Random::new(seed.rotate_left(17));
            device.media.set_fuse(dies.then_some((fuse, fate)));
            match device.start(next, flags, word_epoch, &self.config, seed, local) {
                Ok(()) => {
                    device.unproven = false;
                    self.tell(|| format!("device {} starts", node + 1));
                }
                Err(StartError::Died) => {
                    self.happened("devices died while starting");
                    self.start_later(node, MILLISECOND);
                }
                Err(StartError::Refused(text)) if self.image_refused(node, &text) => {}
                Err(StartError::Refused(_)) if self.devices[node].unproven => {
                    self.give_new_medium(node);
                }
                Err(StartError::Refused(text)) => {
                    self.violation(format!("device {} cannot start: {text}", node + 1));
                    self.leave_out(node);
                }
            }
        }
        self.turn_at.remove(&node);
        self.wake(node, 0);
    }

    pub(crate) fn start_later(&mut self, node: usize, bound: Nanos) {
        let after = self.below(bound);
        self.schedule(after, Event::Restart { node });
    }

    /// Returns the next hop of a device when the lost devices are left out, and the flags with which the operator
    /// starts the device.
    fn next_hop(&self, node: usize) -> (Peer, u32) {
        let at = self.order.iter().position(|&n| n == node);
        let next = at.and_then(|at| self.order.get(at + 1).copied());
        let next = next.unwrap_or(self.config.devices);
        let shrinks = self.head() == node && self.lost > 0;
        if self.devices[node].declares {
            return (address(next), Member::DECLARE_LOSS);
        }
        let says = |said: bool, flag: u32| if said { flag } else { 0 };
        // A device that was once started to join is always started with `--join` afterwards.
        let joins = says(self.devices[node].joins, Member::JOIN);
        (address(next), says(shrinks, Member::SHRINK) | joins)
    }

    /// Returns the first device of the operator's chain.
    pub(crate) fn head(&self) -> usize {
        self.order.first().copied().unwrap_or(0)
    }

    /// The operator gives a device up.
    pub(crate) fn leave_out(&mut self, node: usize) {
        self.devices[node].lost = true;
        self.devices[node].joins = false;
        self.devices[node].unproven = false;
        self.order.retain(|&n| n != node);
        if self.joiner == Some(node) {
            self.joiner = None;
        }
    }

    /// A process dies.
    pub(crate) fn kill(&mut self, node: usize) {
        let server = self.config.devices;
        if node < server {
            let moments = self.moments_at(node);
            if let Some(running) = self.devices[node].running.take() {
                self.hit(Fault::DeviceCrash, moments);
                self.take_device_counters(&running);
                let medium = running.into_media();
                self.devices[node].media.crash(&medium, &mut self.random);
                self.happened("devices died");
                self.tell(|| format!("device {} dies", node + 1));
            }
        } else if node == server {
            let moments = self.moments();
            self.leave_lagging_store();
            if let Some(running) = self.server.die() {
                self.hit(Fault::ServerCrash, moments);
                self.take_server_counters(running.machine());
                self.happened("servers died");
                self.tell(|| "server dies".to_owned());
            }
        } else {
            let moments = self.moments_at(self.head());
            let client = &mut self.clients[node - server - 1];
            if client.alive {
                client.die();
                self.hit(Fault::ClientDies, moments);
                self.happened("clients died");
                self.tell(|| format!("client {node} dies"));
                if self.config.rebirths {
                    let after = self.below(20 * MILLISECOND);
                    self.schedule(after, Event::Rebirth { node });
                }
            }
        }
    }

    /// A device has stopped by itself. This is right only if its computer died, or the device no longer belongs to the
    /// chain.
    pub(crate) fn device_stopped(&mut self, node: usize, text: &str) {
        let Some(running) = self.devices[node].running.take() else {
            return;
        };
        self.take_device_counters(&running);
        self.tell(|| format!("device {} stops: {text}", node + 1));
        if !self.devices[node].media.is_blown() && self.image_refused(node, text) {
            return;
        }
        if self.devices[node].joins && !self.devices[node].served && text.contains(OTHER_LOG) {
            // The operator had given up the device, and had replaced its medium. Only then the server decided about the
            // device's first attempt to join.
            self.happened("devices that joined with an earlier medium");
            self.leave_out(node);
            self.lost += 1;
            self.reconfigure();
        } else if self.devices[node].lost {
            self.happened("zombies fenced");
            if text.contains(LATECOMER) && !self.order.is_empty() {
                // The chain was to form with the lost device, and the head still waits for it and reports this. So the
                // operator starts the head again.
                self.reconfigure();
            }
        } else if (self.config.lost_clients || self.config.detours) && text.contains(LATECOMER) {
            // A client has opened the chain's first session at the wrong device, so the other devices can no longer
            // join. The operator continues with the chain that has formed.
            self.happened("latecomers refused");
            self.leave_out(node);
            self.lost += 1;
            self.reconfigure();
        } else if self.devices[node].media.is_blown() {
            self.happened("devices died while recovering");
            self.start_later(node, MILLISECOND);
        } else {
            self.leave_out(node);
            self.violation(format!("device {} stopped: {text}", node + 1));
        }
    }

    /// Whether accidents happen in this phase of the world.
    pub(crate) fn has_accidents(&self) -> bool {
        !self.calm && self.now <= ACCIDENTS_UNTIL
    }

    /// Draws an accident, and makes it happen.
    pub(crate) fn accident(&mut self) {
        if !self.has_accidents() {
            return;
        }
        let after = 1 + self.below(2 * self.config.accident_every);
        self.schedule(after, Event::Accident);
        if self.config.standby && self.below(8) == 0 {
            self.take_over();
            return;
        }
        if self.fleet.is_some() && self.below(3) == 0 {
            self.fleet_accident();
            return;
        }
        if self.config.is_wide() && self.below(5) == 0 {
            self.wide_accident();
            return;
        }
        match self.below(14) {
            0..=5 => {
                let node = self.any_node();
                if node > self.config.devices && self.below(4) != 0 {
                    return;
                }
                self.kill(node);
                if node <= self.config.devices {
                    self.start_later(node, self.config.down_max);
                }
            }
            6 if self.lost < self.config.lose_devices => self.lose_devices(None),
            7 if self.config.partitions => {
                let cut = (address(self.any_node()), address(self.any_node()));
                self.cut.insert(cut);
                self.happened("one-way partitions");
            }
            8 => self.cut.clear(),
            9 if self.config.outage_max > 0 => self.outage(),
            10 if self.config.power_cuts => {
                self.happened("power cuts");
                for node in 0..=self.config.devices {
                    self.kill(node);
                    self.start_later(node, self.config.down_max);
                }
            }
            11 if self.config.store_storms => {
                self.happened("store storms");
                self.server.store.set_storm(true);
                let after = self.below(SPELL_MAX);
                self.schedule(after, Event::StormEnds);
            }
            12 if self.config.clocks => {
                let (node, jump) = (self.any_node(), self.below(JUMP_MAX));
                self.happened("clocks jumped");
                self.clocks[node].jump(jump);
                self.tell(|| format!("clock of node {node} jumps by {jump} ns"));
                self.turn_at.remove(&node);
                self.wake(node, 0);
            }
            13 if self.config.clocks => {
                let node = self.any_node();
                if self.fleet.is_some() && node < self.config.devices {
                    return;
                }
                self.happened("clocks stood still");
                self.clocks[node].stand(self.now, true);
                let after = self.below(SPELL_MAX);
                self.schedule(after, Event::ClockGoesOn { node });
            }
            _ => {}
        }
    }

    /// The server is down long enough to fill the logs.
    fn outage(&mut self) {
        let node = self.config.devices;
        let after = self.below(self.config.outage_max);
        self.kill(node);
        self.server.down_until = self.now + after;
        self.schedule(after, Event::Restart { node });
        self.happened("server outages");
    }

    /// One or two devices are lost permanently. Only a chain that serves loses devices, because the operator makes only
    /// one change at a time. A device that is about to join may be lost at any time.
    pub(crate) fn lose_devices(&mut self, first: Option<usize>) {
        if self.fleet.is_some() {
            self.fall(first);
            return;
        }
        let mut left = self.order.clone();
        // Before the first session, the remaining device may wait for the lost device until an operator starts the
        // remaining device again.
        if left.len() < 2 || self.server.store.is_fresh() || self.lost >= self.config.lose_devices {
            return;
        }
        if !self.is_formed() {
            self.lose_joiner();
            return;
        }
        let both =
            left.len() > 2 && self.lost + 2 <= self.config.lose_devices && self.below(3) == 0;
        for _ in 0..if both { 2 } else { 1 } {
            let pick = self.below(u64::try_from(left.len()).expect("few devices"));
            let aimed = first.and_then(|first| left.iter().position(|&node| node == first));
            let pick = aimed.unwrap_or(usize::try_from(pick).expect("few devices"));
            let victim = left.remove(pick);
            if !self.has_everything(&left) {
                // A device that has just joined holds no copy yet, so this loss would destroy all
                // copies.
                left.insert(pick, victim);
                continue;
            }
            self.lose(victim);
        }
        if self.order.len() == left.len() {
            if self.joiner.is_some() && self.below(2) == 0 {
                self.happened("devices replaced in one step");
                self.admit_joiner();
            }
            self.reconfigure();
        }
    }

    /// Loses this device permanently. Either its medium is lost, or the device is cut off and still runs.
    fn lose(&mut self, victim: usize) {
        let moments = self.moments_at(victim);
        self.hit(Fault::DeviceLost, moments);
        self.leave_out(victim);
        self.lost += 1;
        self.happened("devices lost for good");
        self.tell(|| format!("device {} is lost", victim + 1));
        if self.config.zombies && self.below(2) == 0 {
            self.happened("zombies");
            self.isolated.insert(victim);
            let after = self.below(RUMOUR_MAX);
            self.schedule(after, Event::Reconnect { node: victim });
        } else {
            self.kill(victim);
        }
    }

    /// The operator starts the remaining devices with the next hops of the present chain, and tells
    /// the clients.
    pub(crate) fn reconfigure(&mut self) {
        let head = self.head();
        for node in self.order.clone() {
            let must = node == head || self.devices[node].next != Some(self.next_hop(node).0);
            if must || !self.config.gentle_operator {
                self.kill(node);
                self.start_later(node, 20 * MILLISECOND);
            }
        }
        for at in 0..self.clients.len() {
            let after = self.below(RUMOUR_MAX);
            self.schedule(
                after,
                Event::Redirect {
                    node: self.config.devices + 1 + at,
                },
            );
        }
    }

    /// A client learns the address of the head.
    pub(crate) fn redirect(&mut self, node: usize) {
        let head = address(self.head());
        let client = &mut self.clients[node - self.config.devices - 1];
        if client.redirect(head, &self.config) {
            self.happened("clients that found another head");
        }
        self.wake(node, 0);
    }

    /// Ends all faults: starts every process that can run, and removes all detours and cuts of the network.
    pub(crate) fn heal(&mut self) {
        self.tell(|| "everything is healed".to_owned());
        self.calm = true;
        self.cut.clear();
        self.detour = None;
        self.struck = None;
        self.isolated.clear();
        self.earlier = None;
        self.mend_keys();
        self.heal_fleet();
        self.wire_joiner();
        self.server.store.calm();
        self.server.down_until = self.now;
        for node in 0..self.clocks.len() {
            self.clocks[node].stand(self.now, false);
        }
        for node in 0..=self.config.devices {
            if node < self.config.devices {
                self.devices[node].media.set_fuse(None);
            }
            self.schedule(0, Event::Restart { node });
        }
        for node in self.config.devices + 1..=self.config.devices + self.clients.len() {
            self.redirect(node);
        }
        if let Some(probe) = self.clients.last_mut() {
            probe.begin_probe();
        }
    }
}
