//! Devices with leases: the lease store, the agents that renew, and two controllers that say who is stopped
//! (`docs/spec/protocol.md` §14).
//!
//! Fault model: what goes to the lease store and back is slow, or lost, or takes longer than a lease; the store is gone for a
//! while, and may then extend the leases that it had, as etcd does. Or it is full for a while, as etcd is with the alarm NOSPACE: it can be read, refuses
//! all writes, also leases, and the leases that it gave run out. The clocks of devices, store and controllers run at
//! different rates, within what the margin is for. A device breaks, or is cut off from all machines and perhaps from the
//! store, while its clients still reach it; later it is back. An agent alone is cut off from the store. Controllers know nothing
//! of each other, look rarely, and act on what they were told a while ago. No device that was declared stopped may say
//! anything to a client that its chain would have to stand for: that is looked at in every packet.

use crate::cells::Fault;
use crate::clock::Clock;
use crate::hosts::device_id;
use crate::without::{Place, Without};
use crate::world::{Event, World};
use pmnet_proto::lease::{Seen, Watch, Word};
use pmnet_proto::time::{MICROSECOND, Nanos};
use pmnet_proto::{Outbox, Time};
use pmnet_wire::record::Member;
use pmnet_wire::{Kind, Packet};

/// Controllers.
const CONTROLLERS: usize = 2;
/// How long a message to or from the lease store takes, at most, if it is not late.
const WAY_MAX: Nanos = 200 * MICROSECOND;
/// Messages that are late, and that are lost, of 1000.
const LATE: u64 = 50;
const LOST: u64 = 50;

/// What happens about leases.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// An agent renews its device's lease.
    Renew { node: usize },
    /// The store is asked for it.
    Asked {
        node: usize,
        life: u32,
        epoch: u32,
        sent_at: Time,
    },
    /// The agent has the answer; `given`: the lease, and not that the store is full.
    Granted {
        node: usize,
        life: u32,
        epoch: u32,
        sent_at: Time,
        given: bool,
    },
    /// A controller looks.
    Look { controller: usize },
    /// The store is asked by it.
    Read { controller: usize },
    /// The controller has the answer: one row for each device.
    Told { controller: usize, rows: Vec<Row> },
    /// A controller declares a device stopped whose last lease is this.
    Declare { node: usize, lease: u64 },
    /// A controller has seen the chain of this epoch, without the device of this word.
    LeftOut { node: usize, word: u64, epoch: u32 },
    /// The store is there again; leases that were not over then may be extended.
    Back { since: Time },
    /// An agent can reach the store again.
    AgentBack { node: usize },
}

/// What the store has about a device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Row {
    /// Number of its last lease; 0: none.
    lease: u64,
    /// Until when it has that, by the store's clock.
    until: Time,
    /// When this row was read: whether the lease was there.
    held: bool,
    word: Word,
    /// Number of the word.
    words: u64,
}

/// The lease store and the controllers.
pub(crate) struct Fleet {
    length: Nanos,
    clock: Clock,
    rows: Vec<Row>,
    /// The store answers nobody before this moment of the world.
    gone_until: Time,
    /// The store takes no writes before this moment of the world.
    full_until: Time,
    /// Agents that do not reach the store.
    cut: Vec<bool>,
    controllers: Vec<(Clock, Watch)>,
    /// The epoch that the head was last told to end.
    named: Option<u32>,
}

impl World {
    /// The lease store is there, and everybody begins to ask it.
    pub(crate) fn begin_fleet(&mut self) {
        let (length, devices) = (self.config.lease, self.config.devices);
        if length == 0 {
            return;
        }
        for node in 0..devices {
            self.clocks[node] = self.any_clock();
            let after = self.below(length / 3);
            self.schedule(after, Event::Fleet(Step::Renew { node }));
        }
        let mut controllers = Vec::new();
        let waits = !Without::breaks(self.config.without, Place::Waited);
        let longest = if waits { length } else { 0 };
        for controller in 0..CONTROLLERS {
            controllers.push((self.any_clock(), Watch::new(longest)));
            let after = self.below(length);
            self.schedule(after, Event::Fleet(Step::Look { controller }));
        }
        let mut clock = self.any_clock();
        if !waits {
            // The worst that is allowed, or hardly any moment is left in which it matters.
            clock = Clock::of_rate(self.config.clock_rates);
            self.clocks[..devices].fill(Clock::of_rate(-self.config.clock_rates));
        }
        self.fleet = Some(Fleet {
            length,
            clock,
            rows: vec![Row::default(); devices],
            gone_until: Time(0),
            full_until: Time(0),
            cut: vec![false; devices],
            controllers,
            named: None,
        });
    }

    /// A clock that is as fast or as slow as they are in this world, or true.
    fn any_clock(&mut self) -> Clock {
        let rates = [-self.config.clock_rates, 0, self.config.clock_rates];
        let at = self.below(3);
        Clock::of_rate(rates[usize::try_from(at).expect("small")])
    }

    fn fleet(&mut self) -> &mut Fleet {
        self.fleet.as_mut().expect("only a world with leases asks")
    }

    /// Something is on its way to the store or back, if it is not lost.
    fn on_its_way(&mut self, step: Step) {
        if self.chance(LOST) {
            return;
        }
        let length = self.config.lease;
        let mut after = self.below(WAY_MAX);
        if self.chance(LATE) {
            self.happened("messages of the lease store that were late");
            after += self.below(2 * length);
        }
        self.schedule(after, Event::Fleet(step));
    }

    pub(crate) fn fleet_goes_on(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::Renew { node } => {
                let after = self.config.lease / 3 - self.below(self.config.lease / 12);
                self.schedule(after, Event::Fleet(Step::Renew { node }));
                self.renew(node);
            }
            Step::Asked {
                node,
                life,
                epoch,
                sent_at,
            } => {
                if let Some(given) = self.gives_lease(node, epoch) {
                    self.on_its_way(Step::Granted {
                        node,
                        life,
                        epoch,
                        sent_at,
                        given,
                    });
                }
            }
            Step::Granted {
                node,
                life,
                epoch,
                sent_at,
                given,
            } => {
                if !given && !Without::breaks(self.config.without, Place::Refused) {
                    return;
                }
                let length = self.config.lease;
                let device = &mut self.devices[node];
                if let Some(running) = device.running.as_mut().filter(|_| device.life == life) {
                    running.renewed(epoch, sent_at, length);
                }
            }
            Step::Look { controller } => {
                let after = 1 + self.config.lease / 8 + self.below(self.config.lease / 2);
                self.schedule(after, Event::Fleet(Step::Look { controller }));
                self.on_its_way(Step::Read { controller });
            }
            Step::Read { controller } => {
                let fleet = self.fleet();
                let local = fleet.clock.local(now);
                if now >= fleet.gone_until {
                    let seen = |row: &Row| Row {
                        held: row.until > local,
                        ..*row
                    };
                    let rows = fleet.rows.iter().map(seen).collect();
                    self.on_its_way(Step::Told { controller, rows });
                }
            }
            Step::Told { controller, rows } => self.controller_acts(controller, &rows),
            Step::Declare { node, lease } => self.declare_stopped(node, lease),
            Step::LeftOut { node, word, epoch } => {
                let fleet = self.fleet();
                let takes = now >= fleet.gone_until.max(fleet.full_until);
                let row = &mut fleet.rows[node];
                if takes && (row.word, row.words) == (Word::Stopped, word) {
                    row.word = Word::LeftOut(epoch);
                    self.tell(|| format!("device {} was left out in epoch {epoch}", node + 1));
                }
            }
            Step::Back { since } => {
                let extends = self.below(2) == 0;
                let fleet = self.fleet();
                let local = fleet.clock.local(now);
                for row in fleet.rows.iter_mut().filter(|row| row.until > since) {
                    if extends {
                        row.until = row.until.max(local + fleet.length);
                    }
                }
            }
            Step::AgentBack { node } => self.fleet().cut[node] = false,
        }
    }

    fn renew(&mut self, node: usize) {
        let device = &self.devices[node];
        let machine = device.running.as_ref().map(|running| running.machine());
        let epoch = machine.and_then(|machine| machine.needs_lease());
        let life = device.life;
        let sent_at = self.clocks[node].local(self.now);
        if let Some(epoch) = epoch.filter(|_| !self.fleet().cut[node]) {
            self.on_its_way(Step::Asked {
                node,
                life,
                epoch,
                sent_at,
            });
        }
    }

    /// Whether the store gives the lease, or renews it; `None`: it answers nothing.
    fn gives_lease(&mut self, node: usize, epoch: u32) -> Option<bool> {
        let (now, rules) = (self.now, Without::rules(self.config.without));
        let fleet = self.fleet();
        if now < fleet.gone_until {
            return None;
        }
        if now < fleet.full_until {
            self.happened("leases refused by a store that is full");
            return Some(false);
        }
        let local = fleet.clock.local(now);
        let row = &mut fleet.rows[node];
        if !row.word.allows(epoch, rules) {
            self.happened("leases refused to who was declared stopped");
            return None;
        }
        if row.until <= local {
            row.lease += 1;
        }
        let is_again = row.lease > 1 && row.until <= local;
        row.until = local + fleet.length;
        if is_again {
            self.happened("leases given anew");
        }
        Some(true)
    }

    /// The chain as the server has it: epoch, and devices by node.
    fn server_chain(&self) -> Option<(u32, Vec<usize>)> {
        let chain = self.server.running.as_ref()?.machine().chain()?;
        let members = chain.members.iter();
        let nodes = members.filter_map(|member| {
            (0..self.config.devices).find(|&node| device_id(node) == member.device)
        });
        Some((chain.epoch, nodes.collect()))
    }

    /// A controller hears what the store has, and does what follows from it.
    fn controller_acts(&mut self, controller: usize, rows: &[Row]) {
        let now = self.now;
        let seen: Vec<Seen> = (0..)
            .zip(rows)
            .map(|(node, row)| Seen {
                device: device_id(node),
                lease: row.lease,
                held: row.held,
            })
            .collect();
        let (clock, watch) = &mut self.fleet().controllers[controller];
        let local = clock.local(now);
        watch.look(local, &seen);
        let gone: Vec<Option<u64>> = seen
            .iter()
            .map(|seen| watch.may_stop(local, seen.device))
            .collect();
        let Some((epoch, members)) = self.server_chain() else {
            return;
        };
        for (node, row) in rows.iter().enumerate() {
            if row.word == Word::Stopped && !members.contains(&node) {
                let word = row.words;
                self.on_its_way(Step::LeftOut { node, word, epoch });
            }
        }
        if !self.calm && self.is_formed() {
            for &node in &members {
                if let Some(lease) = gone[node]
                    && rows[node].word != Word::Stopped
                    && self.goes_on_without(node, rows)
                {
                    self.on_its_way(Step::Declare { node, lease });
                }
            }
        }
        self.leave_stopped_out(epoch, &members);
    }

    /// Whether somebody who has everything holds a lease beside this device.
    fn goes_on_without(&self, node: usize, rows: &[Row]) -> bool {
        if Without::breaks(self.config.without, Place::Beside) {
            return true;
        }
        let others = self.order.iter().copied().filter(|&other| other != node);
        let alive = others.filter(|&other| rows[other].held && rows[other].word != Word::Stopped);
        self.has_everything(&alive.collect::<Vec<_>>())
    }

    fn declare_stopped(&mut self, node: usize, lease: u64) {
        let now = self.now;
        let looks = !Without::breaks(self.config.without, Place::LastLease);
        let fleet = self.fleet();
        let local = fleet.clock.local(now);
        let row = &mut fleet.rows[node];
        let late = row.until > local || row.lease != lease;
        if now < fleet.full_until {
            self.happened("words refused by a store that is full");
        } else if now < fleet.gone_until || late && looks {
            self.happened("words that came too late");
        } else if row.word == Word::Stopped {
            self.happened("words that another controller had said");
        } else {
            (row.word, row.words) = (Word::Stopped, row.words + 1);
            self.happened("members declared stopped");
            self.tell(|| format!("device {} is declared stopped", node + 1));
            if let Some(running) = &self.devices[node].running {
                let may_answer = running.machine().may_answer(self.clocks[node].local(now));
                self.happened("members declared stopped that live on");
                if may_answer {
                    self.violation(format!(
                        "device {} is declared stopped while it may answer",
                        node + 1
                    ));
                }
            }
        }
    }

    /// The devices that are left are started again as a chain of their own, with the word.
    fn leave_stopped_out(&mut self, epoch: u32, members: &[usize]) {
        let mut changed = false;
        for &node in members {
            let rest: Vec<usize> = self.order.iter().copied().filter(|&n| n != node).collect();
            let stopped = self.fleet().rows[node].word == Word::Stopped;
            if stopped && self.order.contains(&node) && self.has_everything(&rest) {
                self.happened("members left out by a controller");
                self.leave_out(node);
                self.lost += 1;
                changed = true;
            }
        }
        let more = members.iter().any(|node| !self.order.contains(node));
        if changed || more && self.fleet().named != Some(epoch) {
            self.reconfigure();
        }
    }

    /// What is stated when a device starts, and about which epoch: in a world with leases only what is known at this moment.
    pub(crate) fn fleet_word(&mut self, node: usize, flags: u32) -> (u32, Option<u32>) {
        if self.fleet.is_none() || flags & Member::SHRINK == 0 {
            return (flags, None);
        }
        let chain = self.server_chain().filter(|(_, members)| {
            members.iter().all(|&member| {
                let stopped = self.fleet.as_ref().map(|fleet| fleet.rows[member].word);
                // An operator has stopped it and knows that.
                let dead = self.devices[member].running.is_none();
                self.order.contains(&member) || stopped == Some(Word::Stopped) || dead
            })
        });
        let epoch = chain.map(|(epoch, _)| epoch);
        self.tell(|| format!("device {} shrinks the chain of epoch {epoch:?}", node + 1));
        if self.head() == node {
            self.fleet().named = epoch;
        }
        match epoch {
            Some(epoch) => (flags, Some(epoch)),
            None => (flags & !Member::SHRINK, None),
        }
    }

    /// Whether nobody is about to leave this device out.
    pub(crate) fn may_join(&self, node: usize) -> bool {
        let word = self.fleet.as_ref().map(|fleet| fleet.rows[node].word);
        word != Some(Word::Stopped)
    }

    /// A device breaks, or is cut off and goes on. Nobody is told.
    pub(crate) fn fall(&mut self, first: Option<usize>) {
        let order = self.order.clone();
        let fallen = |&node: &usize| {
            self.devices[node].gone || self.isolated.contains(&node) || !self.may_join(node)
        };
        if order.len() < 2 || !self.is_formed() || order.iter().any(fallen) {
            return;
        }
        let victim = match first.filter(|first| order.contains(first)) {
            Some(first) => first,
            None => self.pick(&order),
        };
        let rest: Vec<usize> = order.iter().copied().filter(|&n| n != victim).collect();
        if !self.has_everything(&rest) {
            return;
        }
        let moments = self.moments_at(victim);
        self.hit(Fault::DeviceLost, moments);
        if self.below(2) == 0 {
            self.happened("devices broken that have leases");
            self.tell(|| format!("device {} breaks", victim + 1));
            self.kill(victim);
            self.devices[victim].gone = true;
            return;
        }
        self.happened("devices cut off that have leases");
        self.tell(|| format!("device {} is cut off", victim + 1));
        self.isolated.insert(victim);
        let after = self.below(4 * self.config.lease);
        self.schedule(after, Event::Reconnect { node: victim });
        if self.below(4) != 0 {
            self.fleet().cut[victim] = true;
            let after = self.below(4 * self.config.lease);
            self.schedule(after, Event::Fleet(Step::AgentBack { node: victim }));
        }
    }

    /// Something goes wrong with the lease store.
    pub(crate) fn fleet_accident(&mut self) {
        let (now, length) = (self.now, self.config.lease);
        let after = self.below(2 * length);
        match self.below(5) {
            4 => {
                self.happened("lease store full");
                self.tell(|| "the lease store is full".to_owned());
                let fleet = self.fleet();
                fleet.full_until = fleet.full_until.max(now + after);
            }
            0 => {
                self.happened("lease store gone");
                let fleet = self.fleet();
                let since = fleet.clock.local(now);
                fleet.gone_until = fleet.gone_until.max(now + after);
                self.schedule(after, Event::Fleet(Step::Back { since }));
            }
            1 => {
                let devices = u64::try_from(self.config.devices).expect("few devices");
                let node = usize::try_from(self.below(devices)).expect("few devices");
                self.happened("agents cut off");
                self.fleet().cut[node] = true;
                self.schedule(after, Event::Fleet(Step::AgentBack { node }));
            }
            _ => self.fall(None),
        }
    }

    /// All trouble ends: what is broken and was not given up is repaired.
    pub(crate) fn heal_fleet(&mut self) {
        let Some(fleet) = &mut self.fleet else {
            return;
        };
        fleet.gone_until = self.now;
        fleet.full_until = self.now;
        fleet.cut.fill(false);
        for (device, row) in self.devices.iter_mut().zip(&fleet.rows) {
            device.gone &= row.word == Word::Stopped;
        }
    }

    /// What a device is about to send: nothing that answers a client, if it was declared stopped.
    pub(crate) fn look_at_answers(&mut self, node: usize, out: &Outbox) {
        let Some(fleet) = &self.fleet else { return };
        let running = self.devices[node].running.as_ref();
        let epoch = running.map_or(0, |running| running.machine().epoch());
        let stopped = match fleet.rows[node].word {
            Word::None => false,
            Word::Stopped => true,
            Word::LeftOut(since) => epoch <= since,
        };
        let answers = |bytes: &[u8]| {
            let kind = Packet::parse(bytes).map(|packet| packet.header.kind);
            matches!(
                kind,
                Ok(Kind::Ack | Kind::OpenReply | Kind::Hit | Kind::Miss)
            )
        };
        if stopped && out.iter().any(|(_, bytes)| answers(bytes)) {
            let words = format!("device {} answers after it was declared stopped", node + 1);
            self.violation(words);
        }
    }
}
