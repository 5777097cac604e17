//! The end of a world, and its report.

use crate::cells::Hits;
use crate::check::{self, History};
use crate::client::ClientHost;
use crate::world::{Event, IDLE, Phase, QUIETEN, World};
use pmnet_device::DeviceNode;
use pmnet_proto::server::Server;
use pmnet_proto::time::{Nanos, SECOND};
use std::collections::BTreeMap;

/// Maximum number of events of a quiet node in a second, without its pings and its expiry timer.
const IDLE_EVENTS: u64 = 50;
/// Maximum number of idle phases. One of them must be silent.
const IDLE_ATTEMPTS: u32 = 8;
/// Number of events that one ping of a session causes: timer, packet, answer, turns.
const PING_EVENTS: u64 = 12;

/// The result of one seed.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The seed of the world.
    pub seed: u64,
    /// A description of each violation.
    pub violations: Vec<String>,
    /// Numbers of calls: made, acknowledged, failed, unknown.
    pub calls: [u64; 4],
    /// Number of events of the world.
    pub events: u64,
    /// Simulated time in nanoseconds.
    pub simulated: Nanos,
    /// Hash over all events in their order: equal seeds give equal hashes.
    pub trace_hash: u64,
    /// Numbers of occurrences of named events: accidents, and the counters of the machines.
    pub happened: BTreeMap<&'static str, u64>,
    /// How often each cell of the failure matrix was hit.
    pub cells: Hits,
}

impl Report {
    fn add(&mut self, what: &'static str, count: u64) {
        if count > 0 {
            *self.happened.entry(what).or_default() += count;
        }
    }
}

impl World {
    pub(crate) fn take_device_counters<M: pmnet_log::Media>(&mut self, running: &DeviceNode<M>) {
        let counters = running.machine().counters();
        for (name, count) in counters.list() {
            self.report.add(name, count);
        }
        self.report
            .add("device rejects", running.rejects().iter().sum());
    }

    pub(crate) fn take_server_counters(&mut self, server: &Server) {
        let counters = server.counters();
        for (name, count) in [
            ("server applied", counters.applied),
            ("server repeated", counters.repeated),
            ("server rejected", counters.rejected),
            ("server executed", counters.executed),
            ("server answered again", counters.answered_again),
            ("server expired", counters.expired),
            ("server fallbacks", counters.fallbacks),
            ("server retransmissions", counters.retransmissions),
            ("server dropped", counters.dropped),
            ("server forged", counters.forged),
            ("server misled", counters.misled),
        ] {
            self.report.add(name, count);
        }
    }

    /// Begins the next phase, if the present phase is over.
    pub(crate) fn next_phase(&mut self) {
        match self.phase {
            Phase::Load => {
                if self.clients.iter().all(ClientHost::is_done) && self.has_rolled() {
                    self.phase = Phase::Settle {
                        until: self.now + self.config.settle_max(),
                    };
                    self.heal();
                }
            }
            Phase::Settle { until } => {
                if self.now > until {
                    self.not_drained("healed");
                } else if self.clients.iter().all(ClientHost::is_done) && self.is_drained() {
                    // Packets still under way on the network do not count as traffic of the idle phase.
                    self.phase = Phase::Quieten;
                    self.schedule(QUIETEN, Event::IdleBegins);
                }
            }
            Phase::Closing { until } => {
                if self.now > until {
                    self.not_drained("closed");
                } else if self.is_closed() {
                    self.phase = Phase::Done;
                }
            }
            Phase::Quieten | Phase::Idle { .. } | Phase::Done => {}
        }
    }

    fn not_drained(&mut self, when: &str) {
        let devices: Vec<String> = self
            .devices
            .iter()
            .zip(&self.clocks)
            .map(|(device, clock)| match &device.running {
                Some(running) => {
                    let machine = running.machine();
                    let (cursors, sessions) = (machine.cursors(), machine.sessions());
                    format!(
                        "{cursors:?} serving {} epoch {} may answer {} sessions {sessions}",
                        machine.is_serving(),
                        machine.epoch(),
                        machine.may_answer(clock.local(self.now))
                    )
                }
                None => "down".to_owned(),
            })
            .collect();
        let applied = self
            .server
            .running
            .as_ref()
            .map(|running| running.machine().watermark());
        let done: Vec<bool> = self.clients.iter().map(ClientHost::is_done).collect();
        self.violation(format!(
            "not drained after everything was {when}: devices (last, persisted, committed, \
             applied) {devices:?}, server A {applied:?}, clients done {done:?}"
        ));
        self.phase = Phase::Done;
    }

    /// Invariant 8: all logs are empty, and have the same last order.
    fn is_drained(&self) -> bool {
        let Some(running) = &self.server.running else {
            return false;
        };
        let watermark = running.machine().watermark();
        let copies = u8::try_from(self.order.len()).expect("few devices");
        let head = self.devices[self.head()].running.as_ref();
        if head.is_none_or(|head| head.machine().copies() != copies) || self.joiner.is_some() {
            return false;
        }
        self.devices
            .iter()
            .filter(|device| !device.lost)
            .all(|device| {
                device.running.as_ref().is_some_and(|running| {
                    let (last, _, _, applied) = running.machine().cursors();
                    running.machine().is_serving() && last == applied && last == watermark
                })
            })
    }

    /// Returns the number of sessions that are open at the clients.
    fn sessions(&self) -> usize {
        self.clients
            .iter()
            .map(|client| client.machine.sessions())
            .sum()
    }

    /// Begins to check for silence.
    pub(crate) fn idle_begins(&mut self, attempt: u32) {
        self.look_at_sizes();
        let (events, sessions) = (self.busy, self.sessions());
        self.phase = Phase::Idle {
            events,
            sessions,
            attempt,
        };
        self.schedule(IDLE, Event::IdleEnds);
    }

    /// Checks for silence: no process may send packets or wake up without need.
    pub(crate) fn idle_ends(&mut self) {
        let Phase::Idle {
            events,
            sessions,
            attempt,
        } = self.phase
        else {
            return;
        };
        let happened = self.busy - events;
        let seconds = IDLE / SECOND;
        let sessions = u64::try_from(sessions).expect("few sessions");
        let nodes = u64::try_from(self.clocks.len()).expect("few nodes");
        let expiry = 4 * SECOND / self.config.session_idle + 1;
        let pings = sessions * (SECOND / self.config.ping_every + 1) * PING_EVENTS;
        let bound = seconds * (nodes * (IDLE_EVENTS + 2 * expiry) + pings);
        if happened > bound {
            // An update whose caller has given up is still sent until it commits, so the next idle phase is checked
            // instead.
            if attempt < IDLE_ATTEMPTS {
                self.idle_begins(attempt + 1);
                return;
            }
            self.violation(format!(
                "never silent: {happened} events in {seconds} idle seconds, above {bound}"
            ));
        }
        self.look_at_epochs();
        self.phase = Phase::Closing {
            until: self.now + self.config.settle_max(),
        };
        for at in 0..self.clients.len() {
            self.clients[at].close();
            self.wake(self.config.devices + 1 + at, 0);
        }
    }

    /// Checks that each device of an idle chain knows the present epoch.
    fn look_at_epochs(&mut self) {
        let server = self.server.running.as_ref();
        let held = server.and_then(|server| server.machine().chain().map(|chain| chain.epoch));
        let machines = self.devices.iter().filter(|device| !device.lost);
        let machines = machines.filter_map(|device| device.running.as_ref());
        let known: Vec<u32> = machines.map(|device| device.machine().epoch()).collect();
        if held.is_some_and(|held| known.iter().any(|&epoch| epoch != held)) {
            self.violation(format!(
                "idle, the devices are in epochs {known:?}, and the server is in {held:?}"
            ));
        }
    }

    fn is_closed(&self) -> bool {
        self.clients.iter().all(ClientHost::is_closed)
            && self.is_drained()
            && self
                .devices
                .iter()
                .filter(|device| !device.lost)
                .all(|device| {
                    device
                        .running
                        .as_ref()
                        .is_some_and(|p| p.machine().sessions() == 0)
                })
    }

    /// Takes the last counters and judges the history.
    pub(crate) fn finish(&mut self) {
        if self.phase != Phase::Done {
            let events = self.report.events;
            self.violation(format!("no end in {:?} after {events} events", self.phase));
        }
        for node in 0..=self.config.devices {
            if self
                .devices
                .get(node)
                .is_some_and(|device| device.lost && device.running.is_some())
            {
                self.happened("zombies that nobody met");
            }
            if let Some(running) = self.devices.get_mut(node).and_then(|d| d.running.take()) {
                self.take_device_counters(&running);
            }
        }
        if let Some(running) = self.server.die() {
            self.take_server_counters(running.machine());
        }
        self.leave_lagging_store();
        for (name, count) in self.server.store.happened() {
            self.report.add(name, count);
        }
        let mut history = History {
            story: self.server.store.story(),
            sent_in: std::mem::take(&mut self.sent_in),
            excused: std::mem::take(&mut self.excused),
            ..History::default()
        };
        for at in 0..self.clients.len() {
            let (observed, counters, violations) = self.clients[at].history();
            let windows = self.clients[at].windows();
            self.report
                .add("operations that an old master answered", windows);
            let (hits, direct) = (self.clients[at].hits, self.clients[at].direct_reads);
            self.report.add("reads answered by the head", hits);
            self.report
                .add("reads answered by the store itself", direct);
            let at_once = self.clients[at].reads_at_once;
            self.report
                .add("of these, asked together with the head", at_once);
            let replica = self.clients[at].replica_reads;
            self.report
                .add("of these, answered by a replica of the store", replica);
            self.look_at_refused(at, &observed);
            history.calls.extend(observed);
            violations
                .into_iter()
                .for_each(|words| self.violation(words));
            for (name, count) in [
                ("client fallbacks", counters.fallbacks),
                ("client resent", counters.resent),
                ("client rejected", counters.rejected),
                ("client unexpected", counters.unexpected),
                ("client forged", counters.forged),
                ("client stale epoch", counters.stale_epoch),
            ] {
                self.report.add(name, count);
            }
        }
        for observed in &history.calls {
            self.report.calls[0] += 1;
            let column = match observed.result {
                check::Result::Failed => 2,
                check::Result::Unknown => 3,
                _ => 1,
            };
            self.report.calls[column] += 1;
        }
        let left = history.story.records.iter();
        let left: Vec<String> = left
            .filter(|key| ![&b"watermark"[..], b"chain", b"store"].contains(&key.as_slice()))
            .map(|key| key.escape_ascii().to_string())
            .collect();
        if let Some(first) = left.first() {
            self.violation(format!(
                "every session is gone, but not its records: {first} and {} more",
                left.len() - 1
            ));
        }
        check::check(&history)
            .into_iter()
            .for_each(|words| self.violation(words));
        self.history = history;
    }
}
