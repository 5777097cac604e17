//! The status port's view of the router of a front with many shards.

use std::sync::Arc;
use std::time::Instant;

use pmnet_client::Pulse;
use pmnet_front::shards::{RouterCounters, RouterTurn};
use pmnet_status::{Board, Histogram, Kind, Look, Metric, Source, numbers};

use super::seconds;

numbers! {
    /// Counters of a router's loop.
    pub(crate) struct RouterNumbers {
        Counter "pmnet_router_commands" ["to"] "Commands of clients, by their receiver." {
            /// One shard.
            one,
            /// All shards.
            all,
            /// All connections of the client to shards: AUTH, HELLO, RESET, CLIENT with a setting.
            state,
            /// The shards of the client's channels: commands that change subscriptions.
            subscriptions,
            /// No shard: the router answered.
            router,
            /// No shard: the keys are in several slots (CROSSSLOT).
            cross_slot,
            /// No shard: the keys' slot is not served (CLUSTERDOWN).
            cluster_down,
            /// No shard: the keys' slot is moving (TRYAGAIN).
            try_again,
        }
        Counter "pmnet_router_held" [""] "How often a command had to wait before the router took it: for its shard, a login, or an earlier change of the connection's state." { held }
        Counter "pmnet_router_clients_accepted" [""] "Clients that have connected since the loop began." { clients_ever }
        Counter "pmnet_router_clients_refused" [""] "Clients that were refused, because as many were connected as --connections-max allows." { refused }
        Counter "pmnet_router_clients_late" [""] "Clients that were closed, because their TLS handshake took too long, or because they read nothing after they had closed their sending side." { late }
        Counter "pmnet_router_map_changes" [""] "How often a new map of slots replaced the old one." { maps }
        Gauge "pmnet_router_clients" [""] "Clients that are connected." { clients }
        Gauge "pmnet_router_slots_unserved" [""] "Slots that no shard serves." { unserved }
        Gauge "pmnet_router_slots_moving" [""] "Slots that are being moved: commands for their keys are refused meanwhile." { moving }
        Gauge "pmnet_router_before_map" [""] "Unanswered commands that the router took before the last change of the map." { before_map }
    }
}

const COMMAND: [Metric; 2] = [
    command("one", "The command went to one shard."),
    command(
        "all",
        "The command went to all shards; the time ends when the last of them has replied.",
    ),
];

const fn command(to: &'static str, part: &'static str) -> Metric {
    Metric {
        label: Some(("to", to)),
        part,
        ..Metric::new(
            Kind::Histogram,
            "pmnet_router_command_seconds",
            "Time from the moment when the router takes a command until it passes the reply to the client, measured at turns of the loop. Replies are passed on in the order of the client's commands.",
        )
    }
}

/// Metrics of a router that are not in [`RouterNumbers`].
pub(super) const MORE: [Metric; 2] = COMMAND;

/// The counters and times that the loop of a router publishes.
#[derive(Debug)]
pub(crate) struct RouterBoard {
    pulse: Arc<Pulse>,
    numbers: Board<{ RouterNumbers::METRICS.len() }>,
    commands: [Histogram; 2],
}

impl RouterBoard {
    pub(crate) fn new(pulse: Arc<Pulse>) -> RouterBoard {
        RouterBoard {
            pulse,
            numbers: Board::default(),
            commands: Default::default(),
        }
    }

    /// Publishes a turn.
    pub(crate) fn turn(&self, turn: &mut RouterTurn<'_>) {
        for (class, took) in &mut *turn.took {
            self.commands[class as usize].record(took, 1);
        }
        self.numbers.publish(numbers(turn).words());
    }
}

impl Source for RouterBoard {
    fn labels(&self) -> Vec<(&'static str, String)> {
        vec![("loop", "router".to_owned())]
    }

    fn pulse(&self) -> u64 {
        self.pulse.word()
    }

    fn look(&self, _: Instant) -> Look {
        let mut look = Look {
            samples: RouterNumbers::of(self.numbers.read()).samples(),
            ..Look::default()
        };
        let commands = COMMAND.iter().zip(&self.commands);
        let commands = commands.map(|(metric, commands)| seconds(*metric, commands));
        look.samples.extend(commands);
        look
    }
}

/// Returns the counters of the loop. The code names each counter, so that none is forgotten.
fn numbers(turn: &RouterTurn<'_>) -> RouterNumbers {
    let RouterCounters {
        one,
        all,
        state,
        subscriptions,
        own,
        cross_slot,
        cluster_down,
        try_again,
        held,
        refused,
        late,
        maps,
    } = turn.counters;
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    RouterNumbers {
        one,
        all,
        state,
        subscriptions,
        router: own,
        cross_slot,
        cluster_down,
        try_again,
        held,
        clients_ever: turn.clients_ever,
        refused,
        late,
        maps,
        clients: count(turn.clients),
        unserved: count(turn.unserved),
        moving: count(turn.moving),
        before_map: count(turn.before_map),
    }
}

#[cfg(test)]
mod tests {
    use pmnet_front::shards::RouterClass;

    use super::*;

    #[test]
    fn classes_have_their_histograms() {
        for (class, name) in [(RouterClass::One, "one"), (RouterClass::All, "all")] {
            assert_eq!(COMMAND[class as usize].label, Some(("to", name)));
        }
    }
}
