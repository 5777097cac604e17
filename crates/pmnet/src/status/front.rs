//! The status port's view of a front for Redis clients.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pmnet_client::{ClientCounters, LinkCounters, Pulse, SocketCounters};
use pmnet_front::FrontTurn;
use pmnet_front::client::Counters;
use pmnet_front::upstream::UpstreamCounters;
use pmnet_status::{Board, Histogram, Kind, Look, Metric, Source, numbers};

use super::seconds;
use super::waiting::Waiting;

numbers! {
    /// Counters of a front's loop.
    pub(crate) struct FrontNumbers {
        Counter "pmnet_front_reads" ["answer"] "Reads that were answered, by the part that answered. Reads in transactions are not counted." {
            /// The front, with the value that the same pipeline had just set.
            own_write,
            /// The head device.
            head,
            /// The store, read directly.
            store,
            /// The store, after a request through the chain.
            bypass,
        }
        Counter "pmnet_front_reads_at_once" [""] "Direct reads for which the front asked head and store at the same time." { reads_at_once }
        Counter "pmnet_front_replica_reads" [""] "Direct reads that a replica of the store answered." { replica_reads }
        Counter "pmnet_front_clients_closed_unread" [""] "Clients that were disconnected because too many of their replies were unread." { closed_unread }
        Counter "pmnet_front_failed_logins" [""] "Logins with a wrong password." { failed_logins }
        Counter "pmnet_front_tls_failed" [""] "Clients whose TLS handshake failed." { tls_failed }
        Counter "pmnet_front_clients_accepted" [""] "Clients that have connected since the loop began." { clients_ever }
        Counter "pmnet_front_dropped" ["reason"] "Packets from devices that were dropped, by reason." {
            /// Packets that were malformed, damaged, or of another program.
            rejected,
            /// Packets with a wrong token, session, shard or sender.
            unexpected,
            /// With keys: packets with a wrong MAC. Their sender did not have the session's key, or they were changed.
            forged,
            /// Packets of a lower epoch than the highest that the front has seen.
            stale_epoch,
            /// Packets from port 0, to which no answer can be sent.
            from_nowhere,
        }
        Counter "pmnet_front_resent" [""] "Update packets that were sent again." { resent }
        Counter "pmnet_front_fallbacks" [""] "Updates that the server executed as requests, because a log was full." { fallbacks }
        Counter "pmnet_front_sessions_crowded" [""] "Sessions for which the device had no room." { crowded }
        Counter "pmnet_front_send_problems" ["problem"] "Problems in sending datagrams, by kind." {
            /// Datagrams for which the operating system had no buffer. The protocol sends them again.
            send_dropped,
            /// Errors that the operating system reported for an earlier datagram.
            send_errors,
            /// Datagrams that were longer than their path's MTU, and were sent as IP fragments.
            fragmented,
        }
        Counter "pmnet_front_rdma" ["event"] "Events of the link by RDMA (--rdma)." {
            /// Connections that were made.
            made,
            /// Connections that broke, and attempts that failed.
            broken,
            /// Messages that were passed to the NIC.
            sent,
            /// Messages that were dropped: there was no connection or no space, or the message was out of turn. The
            /// protocol sends them again.
            dropped,
            /// RDMA reads that have completed. Each acknowledges all messages that were sent before it.
            completed,
            /// Attempts that the device refused because of the front's key, or because it has none.
            refused,
            /// With a key: connections that ended because the device's answer was not made with that key.
            unproven,
        }
        Gauge "pmnet_front_clients" [""] "Clients that are connected." { clients }
        Gauge "pmnet_front_sessions" [""] "Open sessions of the front's clients." { sessions }
        Gauge "pmnet_front_copies" [""] "Number of copies that the last acknowledgement stated; 0 before the first acknowledgement." { copies }
    }
}

const COPIES_WANTED: Metric = Metric::new(
    Kind::Gauge,
    "pmnet_front_copies_wanted",
    "Number of copies that an acknowledgement must state to count (--copies).",
);
const UNANSWERED: Metric = Metric::new(
    Kind::Gauge,
    "pmnet_front_unanswered_seconds",
    "Time for which requests have waited without any packet from the devices, at the last turn of the loop.",
);
const CALL: [Metric; 5] = [
    call(
        "early",
        "An early acknowledged write, until every device of the chain has it.",
    ),
    call(
        "write",
        "A request that changes the store, until the store's reply.",
    ),
    call(
        "read",
        "A request through the chain that changes nothing, until the store's reply.",
    ),
    call(
        "head",
        "A question to the head, before a read of the store or instead of that read.",
    ),
    call(
        "store",
        "A direct read of the store, until the store's reply; the question to the head before it is not included.",
    ),
];

const fn call(class: &'static str, part: &'static str) -> Metric {
    Metric {
        label: Some(("class", class)),
        part,
        ..Metric::new(
            Kind::Histogram,
            "pmnet_front_call_seconds",
            "Time of a call from its submission to its answer, measured at turns of the loop, by class. If more than 1024 calls to the devices are under way, some are not measured.",
        )
    }
}

/// Metrics of a front that are not in [`FrontNumbers`].
pub(super) const MORE: [Metric; 7] = [
    COPIES_WANTED,
    UNANSWERED,
    CALL[0],
    CALL[1],
    CALL[2],
    CALL[3],
    CALL[4],
];

/// The counters and times that the loop of a front publishes.
#[derive(Debug)]
pub(crate) struct FrontBoard {
    shard: u32,
    /// Position of the shard in the map file, counted from 1; `None`: the front has no map file.
    number: Option<usize>,
    pulse: Arc<Pulse>,
    numbers: Board<{ FrontNumbers::METRICS.len() }>,
    waiting: Waiting,
    calls: [Histogram; 5],
}

impl FrontBoard {
    pub(crate) fn new(
        shard: u32,
        number: Option<usize>,
        wanted: u8,
        deadline: Duration,
        pulse: Arc<Pulse>,
    ) -> FrontBoard {
        FrontBoard {
            shard,
            number,
            pulse,
            numbers: Board::default(),
            waiting: Waiting::new(wanted, deadline),
            calls: Default::default(),
        }
    }

    /// Sets the time limit of each command, from now on.
    pub(crate) fn set_deadline(&self, deadline: Duration) {
        self.waiting.set_deadline(deadline);
    }

    /// Publishes a turn.
    pub(crate) fn turn(&self, turn: &mut FrontTurn<'_>) {
        for (class, took) in &mut *turn.took {
            self.calls[class as usize].record(took, 1);
        }
        self.numbers.publish(numbers(turn).words());
        self.waiting.turn(turn.unanswered);
    }
}

impl Source for FrontBoard {
    fn labels(&self) -> Vec<(&'static str, String)> {
        let mut labels = vec![("shard", self.shard.to_string())];
        labels.extend(self.number.map(|number| ("entry", number.to_string())));
        labels
    }

    fn pulse(&self) -> u64 {
        self.pulse.word()
    }

    fn look(&self, _: Instant) -> Look {
        let mut look = Look {
            samples: FrontNumbers::of(self.numbers.read()).samples(),
            ..Look::default()
        };
        self.waiting.look(COPIES_WANTED, UNANSWERED, &mut look);
        let calls = CALL.iter().zip(&self.calls);
        look.samples
            .extend(calls.map(|(metric, calls)| seconds(*metric, calls)));
        look
    }
}

/// Returns the counters of the loop. The code names each counter, so that none is forgotten.
fn numbers(turn: &FrontTurn<'_>) -> FrontNumbers {
    let Counters {
        own_writes,
        hits,
        direct_reads,
        reads_at_once,
        replica_reads,
        bypassed_reads,
        closed_unread,
        failed_logins,
        tls_failed,
    } = turn.counters;
    let UpstreamCounters {
        client,
        socket,
        link,
    } = turn.upstream;
    let ClientCounters {
        rejected,
        unexpected,
        forged,
        stale_epoch,
        resent,
        fallbacks,
        crowded,
    } = client;
    let SocketCounters {
        send_dropped,
        send_errors,
        from_nowhere,
        fragmented,
    } = socket;
    let LinkCounters {
        made,
        broken,
        sent,
        dropped,
        reads,
        refused,
        unproven,
    } = link;
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    FrontNumbers {
        own_write: own_writes,
        head: hits,
        store: direct_reads,
        bypass: bypassed_reads,
        reads_at_once,
        replica_reads,
        closed_unread,
        failed_logins,
        tls_failed,
        clients_ever: turn.clients_ever,
        rejected,
        unexpected,
        forged,
        stale_epoch,
        from_nowhere,
        resent,
        fallbacks,
        crowded,
        send_dropped,
        send_errors,
        fragmented,
        made,
        broken,
        sent,
        dropped,
        completed: reads,
        refused,
        unproven,
        clients: count(turn.clients),
        sessions: count(turn.sessions),
        copies: u64::from(turn.copies),
    }
}

#[cfg(test)]
mod tests {
    use pmnet_front::Class;

    use super::*;

    #[test]
    fn classes_have_their_histograms() {
        for (class, name) in [
            (Class::Early, "early"),
            (Class::Write, "write"),
            (Class::Read, "read"),
            (Class::Head, "head"),
            (Class::Store, "store"),
        ] {
            assert_eq!(CALL[class as usize].label, Some(("class", name)));
        }
    }
}
