//! Actions of operators on the store, and checks that requests are executed only when they may be.
//!
//! Fault model: the operator promotes the store's replica. The server continues in the same process or in a new
//! process. Its connections to the old master are closed; if the server waits for replicas, the connections may also
//! stay open. Clients keep their own connections, and the old master answers on them. In other worlds the replica was
//! cut off, and lacks data whose durability was reported to the server. Then the server must stop, and the operator
//! goes back to the old master.

use crate::cells::Fault;
use crate::store::{Asked, TOOK_OVER};
use crate::without::{Place, Without};
use crate::world::World;
use pmnet_proto::Time;
use pmnet_proto::time::{MILLISECOND, Nanos};
use pmnet_wire::Header;
use pmnet_wire::packet::Bypass;

/// Longest time of a packet from one hop to the next.
const WAY_MAX: Nanos = 310 * MILLISECOND;

/// The world's knowledge about a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asking {
    /// Whether the request has arrived again since its last execution failed.
    again: bool,
    /// Time until which the caller waits, by the packets that have arrived.
    until: Time,
    /// Time until which the caller really waits.
    deadline: Option<Time>,
}

impl World {
    /// Notes that a request arrives at the server.
    pub(crate) fn asked_again(&mut self, id: u64, header: &Header) {
        let now = self.now;
        let asking = self.asked.entry(id).or_default();
        asking.again = true;
        let left = Bypass::read(header).left.nanos();
        let left = left.unwrap_or(Nanos::MAX >> 1);
        asking.until = asking.until.max(now + left);
    }

    /// Notes until when callers wait for their latest calls.
    pub(crate) fn note_calls(&mut self, at: usize) {
        for (id, deadline) in self.clients[at].take_called() {
            self.asked.entry(id).or_default().deadline = Some(deadline);
        }
    }

    /// Returns the latest time at which the execution of a request may begin. `None`: this world has no such bound.
    fn begins_until(&self, asking: Asking) -> Option<Time> {
        // With wrong clocks there is no bound. With replayed packets, the bound follows only from the packets that
        // arrived, not from the call's deadline.
        if self.config.clocks {
            return None;
        }
        let rounding = self.config.deadline / 8 + MILLISECOND;
        let deadline = asking.deadline.filter(|_| self.config.injection == 0);
        let hops = u64::try_from(self.config.devices).expect("few devices") + 1;
        let at_most = deadline.map(|deadline| deadline + rounding + hops * WAY_MAX);
        Some(at_most.map_or(asking.until, |at_most| at_most.min(asking.until)))
    }

    /// Checks that no request is executed for a caller that has given up (`docs/spec/protocol.md`
    /// §2).
    pub(crate) fn look_at_executions(&mut self) {
        for words in self.server.store.take_wrong() {
            self.violation(words);
        }
        for asked in self.server.store.take_asked() {
            match asked {
                Asked::Begun(id) => {
                    let asking = self.asked.get(&id).copied().unwrap_or_default();
                    if !asking.again {
                        self.violation(format!(
                            "request {id} failed and was executed again, though nobody asked again"
                        ));
                    }
                    if self
                        .begins_until(asking)
                        .is_some_and(|until| self.now > until)
                    {
                        self.violation(format!(
                            "request {id} was executed, though its caller had given up"
                        ));
                    }
                }
                Asked::Failed(id) => self.asked.entry(id).or_default().again = false,
            }
        }
    }

    /// The server process has stopped by itself. This is right only if the store lacks data.
    pub(crate) fn server_stopped(&mut self, text: &str) {
        let node = self.config.devices;
        if self.config.standby && text.contains(TOOK_OVER) {
            // The earlier server had not written anything yet, and has read the records later than this server.
            self.happened("servers refused from which an earlier one took over");
            self.kill(node);
            self.start_later(node, self.config.down_max);
            return;
        }
        if !self.server.store.is_lagging() {
            self.violation(format!("the server stopped: {text}"));
            self.server.running = None;
            return;
        }
        self.tell(|| format!("the server stops: {text}"));
        self.happened("stores that lack something refused");
        self.kill(node);
        self.start_later(node, self.config.down_max);
    }

    /// The operator notices that the promoted replica lacks data.
    pub(crate) fn leave_lagging_store(&mut self) {
        if self.server.store.is_lagging() {
            self.tell(|| "the operator goes back to the old master".to_owned());
            self.server.store.go_back();
        }
    }

    /// Cuts the store's replica off from its master. This happens only if the server does not wait for the replica, or
    /// if the world checks data that is shown meanwhile.
    pub(crate) fn cut_replica(&mut self) {
        let waits =
            self.config.wait_replicas && !Without::breaks(self.config.without, Place::ReadDurable);
        if !waits && !self.server.store.is_lagging() {
            self.happened("replicas of the store cut off");
            self.server.store.cut_replica();
        }
    }

    /// The operator promotes the store's replica.
    pub(crate) fn fail_store_over(&mut self) {
        let store = &self.server.store;
        if store.is_lagging() {
            return;
        }
        let running = self
            .server
            .running
            .as_ref()
            .map(pmnet_server::ServerNode::machine);
        let lags = !self.config.wait_replicas
            && running.is_some_and(|machine| {
                store.would_lack(machine.watermark(), machine.confirmed_requests())
            });
        let lagging = lags && self.below(2) == 0;
        let lives_on = self.config.wait_replicas && !self.config.directs && self.below(2) == 0;
        let another = !lagging && self.below(2) == 0;
        let moments = self.moments();
        self.hit(Fault::Failover, moments);
        self.server.store.promote(!lives_on, lagging);
        self.happened(match lagging {
            true => "stores failed over to a replica that lags",
            false => "stores failed over",
        });
        self.tell(|| {
            let words = if lagging { ", which lags" } else { "" };
            format!("the store's replica is promoted{words}")
        });
        if another {
            let node = self.config.devices;
            self.kill(node);
            self.start_later(node, self.config.down_max);
        }
    }
}
