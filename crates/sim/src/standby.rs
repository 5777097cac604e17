//! Several servers of one shard, of which one serves (`docs/spec/protocol.md` §14): one that stood by begins, and the one before it
//! lives on.
//!
//! Fault model: who stands by is wrong about the one that serves: it stood still, or was cut off from the lease store. Now both run.
//! For a while the devices send to the earlier one still; then they are wired to the later one, and the earlier one goes on with what it has
//! got. Nothing but the store says which of them may write. Redis may refuse all writes when the later one begins, and take them from the earlier one afterwards.

use crate::store::{SimStore, TOOK_OVER};
use crate::world::{Event, World, address};
use pmnet_proto::time::{MICROSECOND, MILLISECOND, Nanos};
use pmnet_proto::{Outbox, Peer};
use pmnet_server::ServerNode;

/// Until the devices send to the later one, at most.
const WIRED_AFTER: Nanos = 20 * MILLISECOND;
/// Until the earlier one gets on with its work, at most.
const TURN_MAX: Nanos = 500 * MICROSECOND;

/// What happens about two servers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// The earlier one gets on.
    Turn,
    /// The devices are wired to the later one.
    Wired,
}

/// A server from which another one has taken over.
pub(crate) struct Earlier {
    running: ServerNode<SimStore>,
    /// The devices send to it.
    pub(crate) wired: bool,
}

impl World {
    /// A server that stood by begins beside the one that serves.
    pub(crate) fn take_over(&mut self) {
        let node = self.config.devices;
        if self.earlier.is_some() || !self.server.is_loaded {
            return;
        }
        let Some(running) = self.server.die() else {
            return;
        };
        self.earlier = Some(Earlier {
            running,
            wired: true,
        });
        self.happened("servers that took over from one that lives on");
        self.tell(|| "a second server takes over, and the first one lives on".to_owned());
        self.restart(node);
        let after = self.below(WIRED_AFTER);
        self.schedule(after, Event::Standby(Step::Wired));
        self.schedule(1, Event::Standby(Step::Turn));
    }

    pub(crate) fn standby_goes_on(&mut self, step: Step) {
        match step {
            Step::Turn => self.earlier_turn(),
            Step::Wired => {
                if let Some(earlier) = &mut self.earlier {
                    earlier.wired = false;
                }
            }
        }
    }

    /// Whether the earlier one got this packet, since the devices send to it.
    pub(crate) fn earlier_receives(&mut self, from: Peer, bytes: &[u8]) -> bool {
        let now = self.clocks[self.config.devices].local(self.now);
        let Some(earlier) = self.earlier.as_mut().filter(|earlier| earlier.wired) else {
            return false;
        };
        let mut out = Outbox::new();
        let received = earlier.running.receive(now, from, bytes, &mut out);
        self.note_session(bytes);
        self.earlier_says(&out);
        if let Err(stop) = received {
            self.earlier_ends(&stop.0);
        }
        true
    }

    fn earlier_turn(&mut self) {
        let now = self.clocks[self.config.devices].local(self.now);
        self.server.store.set_now(self.now);
        let Some(earlier) = &mut self.earlier else {
            return;
        };
        let mut out = Outbox::new();
        let worked = earlier.running.step(now, &mut out);
        // Who asked which of the two is not known: what is begun again is looked at where one server is alone.
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

    /// It ends by itself: right only because the store has refused it.
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
