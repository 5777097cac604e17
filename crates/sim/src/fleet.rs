//! Devices with leases: the lease store, the agents that renew leases, and two controllers that
//! declare devices stopped (`docs/spec/protocol.md` §14).
//!
//! Fault model: messages to and from the lease store are slow or lost, or take longer than a lease. The lease store may
//! be down for a while, and may then extend its leases, as etcd does. It may also be full for a while, like an etcd
//! with the alarm NOSPACE: it answers reads and refuses all writes, including renewals, so leases expire. The clocks of
//! devices, lease store and controllers run at different rates, within the differences that the margin covers. A device
//! breaks; or it is cut off from all other computers, and perhaps from the lease store, while its clients still reach
//! it. Later the device can be reached again. Sometimes only an agent is cut off from the lease store. Controllers do
//! not know each other, look rarely, and act on old information. A device that was declared stopped must not send a
//! client an answer that needs a lease. The world checks every packet for this.

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

/// Number of controllers.
const CONTROLLERS: usize = 2;
/// Longest time of a message to or from the lease store, except for late messages.
const WAY_MAX: Nanos = 200 * MICROSECOND;
/// Number of messages out of 1000 that are late (`LATE`), and that are lost.
const LATE: u64 = 50;
const LOST: u64 = 50;

/// An event that concerns leases.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// An agent renews its device's lease.
    Renew { node: usize },
    /// The lease store receives the request for the lease.
    Asked {
        node: usize,
        life: u32,
        epoch: u32,
        sent_at: Time,
    },
    /// The agent receives the answer. `given`: the lease store gave the lease; if false, the lease store was full.
    Granted {
        node: usize,
        life: u32,
        epoch: u32,
        sent_at: Time,
        given: bool,
    },
    /// A controller begins a look at the lease store.
    Look { controller: usize },
    /// The lease store receives the controller's question.
    Read { controller: usize },
    /// The controller receives the answer: one row for each device.
    Told { controller: usize, rows: Vec<Row> },
    /// A controller declares a device stopped. `lease`: number of the device's last lease, as the controller knows it.
    Declare { node: usize, lease: u64 },
    /// A controller has seen that the device does not belong to the chain of this epoch. `word`: number of the
    /// statement *stopped* about the device.
    LeftOut { node: usize, word: u64, epoch: u32 },
    /// The lease store works again. It may extend leases that were valid at `since`.
    Back { since: Time },
    /// An agent can reach the store again.
    AgentBack { node: usize },
}

/// The record of the lease store about one device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Row {
    /// Number of the device's last lease; 0: none.
    lease: u64,
    /// End of this lease by the lease store's clock.
    until: Time,
    /// Whether the lease was valid when this row was read.
    held: bool,
    word: Word,
    /// Number of statements about the device so far, and so the number of the present statement.
    words: u64,
}

/// The lease store and the controllers.
pub(crate) struct Fleet {
    length: Nanos,
    clock: Clock,
    rows: Vec<Row>,
    /// Time of the world until which the lease store is silent.
    gone_until: Time,
    /// Until this time of the world the lease store takes no writes.
    full_until: Time,
    /// For each device: whether its agent is cut off from the lease store.
    cut: Vec<bool>,
    controllers: Vec<(Clock, Watch)>,
    /// The last epoch that a head was started to end by shrinking its chain.
    named: Option<u32>,
}

impl World {
    /// Starts the lease store, and all agents and controllers begin to ask it.
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
            // The clock has the largest allowed error. A smaller error would hardly ever matter.
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

    /// Draws a clock: exact, or fast or slow by the largest error of this world.
    fn any_clock(&mut self) -> Clock {
        let rates = [-self.config.clock_rates, 0, self.config.clock_rates];
        let at = self.below(3);
        Clock::of_rate(rates[usize::try_from(at).expect("small")])
    }

    fn fleet(&mut self) -> &mut Fleet {
        self.fleet.as_mut().expect("only a world with leases asks")
    }

    /// Sends a message to or from the lease store. The message may be lost.
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

    /// Whether the lease store gives or renews the lease. `None`: the lease store sends no answer.
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

    /// Returns the server's chain: the epoch, and the nodes of the devices.
    fn server_chain(&self) -> Option<(u32, Vec<usize>)> {
        let chain = self.server.running.as_ref()?.machine().chain()?;
        let members = chain.members.iter();
        let nodes = members.filter_map(|member| {
            (0..self.config.devices).find(|&node| device_id(node) == member.device)
        });
        Some((chain.epoch, nodes.collect()))
    }

    /// A controller receives the rows of the lease store and acts on them.
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

    /// Whether other devices that hold leases have all entries that must be kept.
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

    /// Leaves stopped members out of the chain, and starts the remaining devices again as the new chain.
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

    /// Returns the flags and the epoch with which a device is started. In a world with leases, an operator's statement
    /// is made only if it is known to be true at this moment.
    pub(crate) fn fleet_word(&mut self, node: usize, flags: u32) -> (u32, Option<u32>) {
        if self.fleet.is_none() || flags & Member::SHRINK == 0 {
            return (flags, None);
        }
        let chain = self.server_chain().filter(|(_, members)| {
            members.iter().all(|&member| {
                let stopped = self.fleet.as_ref().map(|fleet| fleet.rows[member].word);
                // An operator has stopped the member, and so knows that it is stopped.
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

    /// Whether this device may join now, because no controller or operator is about to leave it out.
    pub(crate) fn may_join(&self, node: usize) -> bool {
        let word = self.fleet.as_ref().map(|fleet| fleet.rows[node].word);
        word != Some(Word::Stopped)
    }

    /// A device breaks, or is cut off and still runs. Clients and operators do not know this.
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

    /// Draws a fault of the lease store, and makes it happen.
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

    /// Ends all faults: repairs every broken device that was not given up.
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

    /// Checks the packets that a device is about to send: a device that was declared stopped must
    /// not answer a client.
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
