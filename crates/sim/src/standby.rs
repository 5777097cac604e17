//! Several servers of one shard, of which only one should serve (`docs/spec/protocol.md` §14): a standby server begins
//! to serve while the earlier server still runs.
//!
//! Fault model: the standby server wrongly counts the serving server as dead, because that server was suspended or cut
//! off from the lease store. Then both servers run. For a while the devices still send to the earlier server. Then the
//! devices are wired to the later server, and the earlier server still processes the packets that it has received. Only
//! the store decides which of the two servers may write. Redis may refuse all writes when the later server begins, and
//! accept writes of the earlier server afterwards. In some worlds the earlier server is suspended while the later
//! server serves, and continues when no request is under way. Packets to the earlier server have waited meanwhile, and
//! a device that starts again with its old command line first asks the earlier server.

use crate::store::{SimStore, TOOK_OVER};
use crate::world::{Event, World, address};
use pmnet_proto::keys::ClusterKeys;
use pmnet_proto::time::{MICROSECOND, MILLISECOND, Nanos};
use pmnet_proto::{Outbox, Peer};
use pmnet_server::ServerNode;

/// Longest time until the devices are wired to the later server.
const WIRED_AFTER: Nanos = 20 * MILLISECOND;
/// Longest time until the earlier server runs its next turn.
const TURN_MAX: Nanos = 500 * MICROSECOND;

/// Longest time for which an earlier server is suspended.
const SLEEPS_MAX: Nanos = 200 * MILLISECOND;
/// Maximum number of packets that wait for a suspended server.
const INBOX_MAX: usize = 64;

/// An event that concerns two servers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// The earlier server runs a turn.
    Turn,
    /// The devices are wired to the later server.
    Wired,
    /// The earlier server is no longer suspended.
    Wakes,
}

/// A server from which another server has taken over.
pub(crate) struct Earlier {
    running: ServerNode<SimStore>,
    /// Whether the devices still send to this server.
    pub(crate) wired: bool,
    /// Packets that have arrived while the server is suspended; `None`: it is not suspended.
    inbox: Option<Vec<(Peer, Vec<u8>)>>,
}

impl World {
    /// A standby server begins while the serving server still runs.
    pub(crate) fn take_over(&mut self) {
        let node = self.config.devices;
        if self.earlier.is_some() || !self.server.is_loaded {
            return;
        }
        let Some(running) = self.server.die() else {
            return;
        };
        let sleeps = self.below(2) == 0;
        self.earlier = Some(Earlier {
            running,
            wired: true,
            inbox: sleeps.then(Vec::new),
        });
        self.happened("servers that took over from one that lives on");
        self.tell(|| "a second server takes over, and the first one lives on".to_owned());
        self.restart(node);
        let after = self.below(WIRED_AFTER);
        self.schedule(after, Event::Standby(Step::Wired));
        if sleeps {
            self.happened("servers that slept while another one had its turn");
            let after = self.below(SLEEPS_MAX);
            self.schedule(after, Event::Standby(Step::Wakes));
        } else {
            self.schedule(1, Event::Standby(Step::Turn));
        }
    }

    /// Also gives changed keys to the earlier server.
    pub(crate) fn rekey_earlier(&mut self, keys: ClusterKeys) {
        if let Some(earlier) = &mut self.earlier {
            earlier.running.machine_mut().rekey(keys);
        }
    }

    pub(crate) fn standby_goes_on(&mut self, step: Step) {
        match step {
            Step::Turn => self.earlier_turn(),
            Step::Wired => {
                if let Some(earlier) = &mut self.earlier {
                    earlier.wired = false;
                }
            }
            Step::Wakes => self.earlier_wakes(),
        }
    }

    /// Gives a packet to the earlier server, if the devices still send to this server. Returns whether they do.
    pub(crate) fn earlier_receives(&mut self, from: Peer, bytes: &[u8]) -> bool {
        let now = self.clocks[self.config.devices].local(self.now);
        let Some(earlier) = self.earlier.as_mut().filter(|earlier| earlier.wired) else {
            return false;
        };
        if let Some(inbox) = &mut earlier.inbox {
            if inbox.len() < INBOX_MAX {
                inbox.push((from, bytes.to_vec()));
            }
            return true;
        }
        let mut out = Outbox::new();
        let received = earlier.running.receive(now, from, bytes, &mut out);
        self.note_session(bytes);
        self.earlier_says(&out);
        if let Err(stop) = received {
            self.earlier_ends(&stop.0);
        }
        true
    }

    /// The earlier server continues with its old state. At this moment a device is started again, and asks this server.
    fn earlier_wakes(&mut self) {
        let Some(earlier) = &mut self.earlier else {
            return;
        };
        let waited = earlier.inbox.take().unwrap_or_default();
        let was_wired = std::mem::replace(&mut earlier.wired, true);
        self.tell(|| "the first server wakes up".to_owned());
        for (from, bytes) in waited {
            self.earlier_receives(from, &bytes);
        }
        if !self.calm && !self.order.is_empty() {
            let node = self.pick(&self.order.clone());
            self.kill(node);
            self.start_later(node, MILLISECOND);
            let after = self.below(WIRED_AFTER);
            self.schedule(after, Event::Standby(Step::Wired));
        } else if let Some(earlier) = &mut self.earlier {
            earlier.wired = was_wired;
        }
        self.schedule(1, Event::Standby(Step::Turn));
    }

    fn earlier_turn(&mut self) {
        let now = self.clocks[self.config.devices].local(self.now);
        self.server.store.set_now(self.now);
        let Some(earlier) = &mut self.earlier else {
            return;
        };
        let mut out = Outbox::new();
        let worked = earlier.running.step(now, &mut out);
        // It is unknown which of the two servers executed these requests; repeated executions are
        // checked in worlds with a single server.
        drop(self.server.store.take_asked());
        while earlier.running.machine_mut().poll_notice().is_some() {}
        self.earlier_says(&out);
        match worked {
            Ok(_) => {
                let after = 1 + self.below(TURN_MAX);
                self.schedule(after, Event::Standby(Step::Turn));
            }
            Err(stop) => self.earlier_ends(&stop.0),
        }
    }

    fn earlier_says(&mut self, out: &Outbox) {
        let node = self.config.devices;
        let packets = out.iter().map(|(to, bytes)| (to, bytes.to_vec()));
        for (to, bytes) in packets.collect::<Vec<_>>() {
            self.send(address(node), to, &bytes);
        }
    }

    /// The earlier server has stopped by itself. This is right only if the store has refused it.
    fn earlier_ends(&mut self, text: &str) {
        if let Some(earlier) = self.earlier.take() {
            self.take_server_counters(earlier.running.machine());
        }
        self.tell(|| format!("the first server stops: {text}"));
        if text.contains(TOOK_OVER) {
            self.happened("servers refused from which another one took over");
        } else {
            self.violation(format!("the first server stopped: {text}"));
        }
    }
}
