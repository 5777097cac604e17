//! Faults beyond those of a plain world: starts with old media, wrong images, the loss of all devices at once, and
//! wrong routes to the head.
//!
//! Fault model: a device that was given up is started again with its old medium. An operator starts a device with a
//! wrong image: an older copy, a blank image, or another device's image. The device must be refused, and then the
//! operator restores the right image. The end of a log is damaged while its computer is off. This happens only while
//! other devices have the same entries, and none of these devices is lost before the damaged device has the entries
//! again. All devices are lost with their media, and the operator declares the loss. Then only updates that were
//! acknowledged and not applied may be lost, together with all later updates of their sessions. For a while, packets of
//! clients reach another device, or the server, instead of the head.

use crate::cells::Fault;
use crate::hosts::{Image, device_id};
use crate::media::Handle;
use crate::world::{Event, World, address};
use pmnet_proto::Peer;
use pmnet_proto::time::{MILLISECOND, Nanos};

/// Longest duration of a detour.
const DETOUR_MAX: Nanos = 20 * MILLISECOND;
/// Longest pause until an image that was refused is replaced by the right one.
const SECOND_LOOK: Nanos = 3 * MILLISECOND;

impl World {
    /// Draws one of the accidents that only wide worlds have.
    pub(crate) fn wide_accident(&mut self) {
        if self.config.joins && self.below(3) == 0 {
            self.begin_join();
            return;
        }
        match self.below(if self.config.failovers { 5 } else { 3 }) {
            0 if self.config.returns => self.old_medium_returns(),
            1 if self.config.detours => self.detour(),
            2 if self.config.declared_losses => self.lose_everything(),
            3 if self.config.failovers => self.fail_store_over(),
            4 if self.config.failovers => self.cut_replica(),
            _ => {}
        }
    }

    /// Starts a device that was given up with its old medium.
    pub(crate) fn old_medium_returns(&mut self) {
        let lost: Vec<usize> = (0..self.config.devices)
            .filter(|&n| {
                // A spare that was never started has no log that could come back.
                let device = &self.devices[n];
                device.lost && device.running.is_none() && device.life > 0
            })
            .collect();
        if lost.is_empty() {
            if self.lost < self.config.lose_devices {
                self.lose_devices(None);
            }
            return;
        }
        let node = self.pick(&lost);
        let moments = self.moments();
        self.hit(Fault::OldMedium, moments);
        self.happened("old media that came back");
        let seed = self.random.next_u64();
        let now = self.clocks[node].local(self.now);
        let next = self.devices[node].next.unwrap_or(address(node + 1));
        self.tell(|| format!("device {} is back with its old medium", node + 1));
        self.devices[node].media.set_fuse(None);
        if self.devices[node]
            .start(next, 0, None, &self.config, seed, now)
            .is_err()
        {
            self.happened("old media that did not start");
        }
        self.turn_at.remove(&node);
        self.wake(node, 0);
    }

    /// Sends the clients' packets to another node than the head for a while.
    fn detour(&mut self) {
        let nodes = u64::try_from(self.config.devices + 1).expect("few nodes");
        let node = usize::try_from(self.below(nodes)).expect("few nodes");
        self.happened("detours");
        self.detour = Some(address(node));
        let after = self.below(DETOUR_MAX);
        self.schedule(after, Event::DetourEnds);
    }

    /// Returns the node that really gets a packet, which differs from `to` during a detour.
    pub(crate) fn routed(&self, from: Peer, to: Peer) -> Peer {
        let is_client = (0..=self.config.devices).all(|node| address(node) != from);
        match self.detour {
            Some(instead) if is_client && to == address(self.head()) => instead,
            _ => to,
        }
    }

    /// All devices are lost with their media; the operator starts new ones and declares the loss.
    fn lose_everything(&mut self) {
        let in_service = self
            .server
            .running
            .as_ref()
            .is_some_and(|c| c.machine().chain().is_some());
        if self.server.store.is_fresh() || !in_service {
            return;
        }
        self.happened("losses declared");
        self.tell(|| "all devices are lost; the operator declares it".to_owned());
        let applied = self.server.store.certainly_applied();
        for client in &self.clients {
            let updates = client.updates().filter(|id| !applied.contains_key(id));
            self.excused.extend(updates);
        }
        for node in self.order.clone() {
            let moments = self.moments_at(node);
            self.hit(Fault::DeviceLost, moments);
            self.kill(node);
            let uuid = u128::from(self.random.next_u64());
            self.devices[node].reformat(&self.config, uuid);
            self.start_later(node, 20 * MILLISECOND);
        }
    }

    /// By chance, gives a wrong image to a device that is about to start.
    pub(crate) fn exchange_image(&mut self, node: usize) {
        let own_image = matches!(self.devices[node].image, Image::Own);
        if !self.chance(self.config.exchanges) || self.devices[node].declares || !own_image {
            return;
        }
        let own = self.devices[node].media.clone();
        let others: Vec<usize> = (0..self.config.devices).filter(|&n| n != node).collect();
        let (what, image) = match self.below(4) {
            0 => match self.devices[node].earlier.clone() {
                Some(bytes) => ("an earlier copy", own.copy_of(bytes)),
                None => return,
            },
            1 => {
                let uuid = u128::from(self.random.next_u64());
                (
                    "a blank medium",
                    self.devices[node].blank(&self.config, uuid),
                )
            }
            2 if !others.is_empty() => {
                let other = self.pick(&others);
                let bytes = self.devices[other].media.durable();
                ("the medium of another device", own.copy_of(bytes))
            }
            3 if self.lost < self.config.lose_devices
                && self.is_formed()
                && self.may_be_damaged(node) =>
            {
                self.damage(node, &own);
                return;
            }
            _ => return,
        };
        if !self.is_formed() {
            // Before the chain exists, no process knows which log is right.
            return;
        }
        self.happened("wrong images");
        self.tell(|| format!("device {} gets {what}", node + 1));
        self.devices[node].image = Image::Wrong { right: own };
        self.devices[node].media = image;
    }

    /// Whether the server's chain is the one that the operator wants.
    pub(crate) fn is_formed(&self) -> bool {
        !self.server.store.is_fresh()
            && self
                .server
                .running
                .as_ref()
                .and_then(|running| running.machine().chain())
                .is_some_and(|chain| {
                    let members = chain.members.iter().map(|member| member.device);
                    members.eq(self.order.iter().map(|&node| device_id(node)))
                })
    }

    /// Whether other devices have all data, so that the log of this device may be damaged.
    fn may_be_damaged(&self, node: usize) -> bool {
        let others: Vec<usize> = self.order.iter().copied().filter(|&n| n != node).collect();
        self.order.contains(&node) && self.has_everything(&others)
    }

    /// Damages a part of a log whose computer is off. From now on the device counts as lost. If the device itself does
    /// not notice the damage, the other devices must.
    fn damage(&mut self, node: usize, media: &Handle) {
        // If the log cannot be started even now, its end counts as 0.
        let end = self.devices[node].end_of_log(&self.config).unwrap_or(0);
        self.lost += 1;
        self.happened("media damaged");
        let moments = self.moments();
        self.hit(Fault::Corruption, moments);
        self.tell(|| format!("the medium of device {} is damaged", node + 1));
        self.devices[node].image = Image::Damaged { end };
        let bytes = u64::try_from(media.durable().len()).expect("small media");
        for _ in 0..=self.below(20) {
            let at = usize::try_from(self.below(bytes)).expect("small media");
            let noise = self.random.next_u64();
            media.damage(at, noise);
        }
    }

    /// Returns whether a device has stopped because of a wrong or damaged image. If so, the operator remedies it.
    pub(crate) fn image_refused(&mut self, node: usize, text: &str) -> bool {
        match std::mem::replace(&mut self.devices[node].image, Image::Own) {
            Image::Wrong { right } => {
                self.happened("wrong images refused");
                self.tell(|| format!("device {} refuses: {text}", node + 1));
                self.devices[node].media = right;
                self.start_later(node, SECOND_LOOK);
                true
            }
            Image::Damaged { .. } => {
                self.happened("damaged media refused");
                self.give_up(node);
                true
            }
            Image::Own => {
                let damaged = (0..self.config.devices).find(|&n| {
                    matches!(self.devices[n].image, Image::Damaged { .. }) && !self.devices[n].lost
                });
                match damaged {
                    // Two logs have different entries at one order, and the operator knows which log was damaged.
                    Some(damaged) if text.contains("two histories met") => {
                        self.happened("damaged media noticed by another device");
                        self.kill(damaged);
                        self.devices[damaged].image = Image::Own;
                        self.give_up(damaged);
                        self.start_later(node, SECOND_LOOK);
                        true
                    }
                    _ => false,
                }
            }
        }
    }

    /// The operator gives up a device, and continues with the other devices.
    fn give_up(&mut self, node: usize) {
        self.leave_out(node);
        self.reconfigure();
    }
}
