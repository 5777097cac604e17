//! Devices that an operator lets join a chain with data (`docs/spec/protocol.md` §5, "Joining").
//!
//! Fault model: a spare, a repaired device with a new medium, or a lost device that returns with its old log is started
//! with `--join`. Later the operator starts the last device of the chain again with the joiner as its next hop, even if
//! the joiner is not ready. Until the joiner has all entries, any process may die, the joiner may be lost permanently
//! at any step, and the chain may shrink in the same step in which it accepts the joiner. The operator never makes a
//! chain whose devices lack entries, because this would be a declared loss.

use crate::cells::Fault;
use crate::hosts::{Image, device_id};
use crate::without::Without;
use crate::world::{Event, World};
use pmnet_proto::rules::Rule;
use pmnet_proto::time::{MILLISECOND, Nanos};
use pmnet_wire::record::Member;

/// Longest time until the operator wires a device that was started to join.
const WIRED_AFTER: Nanos = 20 * MILLISECOND;

impl World {
    /// Starts a device that is to join, if such a device exists and the chain is as the operator
    /// wants it.
    pub(crate) fn begin_join(&mut self) {
        let idle: Vec<usize> = (0..self.config.devices)
            .filter(|&node| self.devices[node].lost && self.may_join(node))
            .collect();
        if idle.is_empty() || self.joiner.is_some() || !self.is_formed() {
            return;
        }
        let node = self.pick(&idle);
        // The old process of the device may still run, cut off from the network.
        self.kill(node);
        self.isolated.remove(&node);
        if self.below(2) == 0 {
            self.new_medium(node);
            self.happened("devices that join with a new medium");
        } else {
            self.happened("devices that join with what they have");
        }
        let device = &mut self.devices[node];
        device.media.set_fuse(None);
        // The operator gives the device the key file that the server has, or will have.
        device.file = self.server.file;
        device.image = Image::Own;
        (device.lost, device.joins, device.gone) = (false, true, false);
        (device.unproven, device.served) = (true, false);
        self.joiner = Some(node);
        self.tell(|| format!("device {} is to join", node + 1));
        self.start_later(node, 5 * MILLISECOND);
        let after = self.below(WIRED_AFTER);
        self.schedule(after, Event::Wire);
    }

    fn new_medium(&mut self, node: usize) {
        let uuid = u128::from(self.random.next_u64());
        let blank = self.devices[node].blank(&self.config, uuid);
        self.devices[node].media = blank;
        self.devices[node].earlier = None;
        self.devices[node].image = Image::Own;
    }

    /// Gives a device that is to join another medium, because its medium was damaged when the device was lost.
    pub(crate) fn give_new_medium(&mut self, node: usize) {
        self.happened("devices that cannot join with what they have");
        self.new_medium(node);
        self.start_later(node, MILLISECOND);
    }

    /// Whether the device was started to join, and is not a member of the server's chain yet.
    pub(crate) fn is_to_join(&self, node: usize) -> bool {
        let server = self.server.running.as_ref();
        let chain = server.and_then(|running| running.machine().chain());
        let known = chain.is_some_and(|chain| {
            let mut members = chain.members.iter();
            members.any(|member| member.device == device_id(node))
        });
        self.devices[node].joins && chain.is_some() && !known
    }

    /// From now on the operator's chain ends with the device that is to join.
    pub(crate) fn admit_joiner(&mut self) {
        let Some(joiner) = self.joiner.take() else {
            return;
        };
        let tail = self.order.last().copied().unwrap_or(0);
        let moments = self.moments_at(tail).with(self.moments_at(joiner));
        self.hit(Fault::Join, moments);
        self.order.push(joiner);
        self.happened("devices wired to join");
        self.tell(|| format!("device {} is wired behind device {}", joiner + 1, tail + 1));
    }

    /// The last device of the chain is started again, with the joiner as its next hop.
    pub(crate) fn wire_joiner(&mut self) {
        let Some(&tail) = self.order.last() else {
            return;
        };
        if self.joiner.is_none() {
            return;
        }
        self.admit_joiner();
        self.kill(tail);
        self.start_later(tail, WIRED_AFTER);
    }

    /// The device that is to join, or is joining now, is lost permanently. The operator wires the chain as it was
    /// before.
    pub(crate) fn lose_joiner(&mut self) {
        let joining = self.order.last().copied();
        let joining = joining.filter(|&node| self.is_to_join(node));
        if let Some(node) = self.joiner.or(joining) {
            self.happened("devices lost while they joined");
            self.leave_out(node);
            self.lost += 1;
            self.kill(node);
            self.reconfigure();
        }
    }

    /// Whether one of these devices has all entries that were acknowledged and are not applied, as far as the server's
    /// record says so.
    pub(crate) fn has_everything(&self, nodes: &[usize]) -> bool {
        let Some(server) = self.server.running.as_ref().map(|it| it.machine()) else {
            return false;
        };
        if !Without::rules(self.config.without).hold(Rule::Synced) {
            // If the server's rule about this is switched off, the operator does not check either.
            return true;
        }
        let members = server.chain().map_or(&[][..], |chain| &chain.members);
        nodes.iter().any(|&node| {
            let durable = self.devices[node].running.as_ref();
            let durable = durable.map_or(0, |running| running.log().durable());
            let has = durable.max(server.watermark());
            // If the end of the device's log was damaged, the device lacks entries until other devices have sent them
            // again.
            let damaged = matches!(self.devices[node].image, Image::Damaged { end } if has < end);
            let mut members = members
                .iter()
                .filter(|member| member.device == device_id(node));
            !damaged
                && members.any(|member| member.flags & Member::JOINED == 0 || has >= member.tail)
        })
    }
}
