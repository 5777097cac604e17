//! The status port's view of a front for memcached clients.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pmnet_client::{ClientCounters, Pulse, SocketCounters};
use pmnet_memcached::FrontTurn;
use pmnet_memcached::stats::Counters;
use pmnet_status::{Board, Kind, Look, Metric, Source, numbers};

use super::waiting::Waiting;

numbers! {
    /// Counters of a memcached front's loop.
    pub(crate) struct MemcachedNumbers {
        Counter "pmnet_memcached_commands" ["command"] "Commands, by command and result. They are the counts that clients see in stats, so not every command is counted. A client's stats reset does not reset these counters." {
            /// Commands that stored an item, or tried to.
            set,
            /// flush_all.
            flush,
            /// Gets that found an item.
            get_hit,
            /// Gets that found nothing.
            get_miss,
            /// Touches that found an item.
            touch_hit,
            /// Touches that found nothing.
            touch_miss,
            /// Deletes that found an item.
            delete_hit,
            /// Deletes that found nothing.
            delete_miss,
            /// incr that found an item.
            incr_hit,
            /// incr that found nothing.
            incr_miss,
            /// decr that found an item.
            decr_hit,
            /// decr that found nothing.
            decr_miss,
            /// Compare-and-store with the item's current unique.
            cas_hit,
            /// Compare-and-store with another unique.
            cas_badval,
            /// Compare-and-store that found nothing.
            cas_miss,
        }
        Counter "pmnet_memcached_items_too_large" [""] "Items that were too large." { too_large }
        Counter "pmnet_memcached_errors" [""] "Commands that were answered with SERVER_ERROR." { errors }
        Counter "pmnet_memcached_received_bytes" [""] "Bytes received from clients." { bytes_read }
        Counter "pmnet_memcached_sent_bytes" [""] "Bytes sent to clients." { bytes_written }
        Counter "pmnet_memcached_datagrams_dropped" [""] "UDP requests that were dropped, as a whole or in part." { datagrams_dropped }
        Counter "pmnet_memcached_clients_accepted" [""] "Clients that have connected since the loop began." { connections_ever }
        Counter "pmnet_memcached_clients_refused" [""] "Clients that were refused, because as many were connected as --connections-max allows." { connections_refused }
        Counter "pmnet_memcached_dropped" ["reason"] "Packets from devices that were dropped, by reason." {
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
        Counter "pmnet_memcached_resent" [""] "Update packets that were sent again." { resent }
        Counter "pmnet_memcached_fallbacks" [""] "Updates that the server executed as requests, because a log was full." { fallbacks }
        Counter "pmnet_memcached_sessions_crowded" [""] "Sessions for which the device had no room." { crowded }
        Counter "pmnet_memcached_send_problems" ["problem"] "Problems in sending datagrams, by kind." {
            /// Datagrams for which the operating system had no buffer. The protocol sends them again.
            send_dropped,
            /// Errors that the operating system reported for an earlier datagram.
            send_errors,
            /// Datagrams that were longer than their path's MTU, and were sent as IP fragments.
            fragmented,
        }
        Gauge "pmnet_memcached_clients" [""] "Clients that are connected." { connections }
        Gauge "pmnet_memcached_udp_requests" [""] "UDP requests that are not answered yet." { exchanges }
    }
}

const COPIES_WANTED: Metric = Metric::new(
    Kind::Gauge,
    "pmnet_memcached_copies_wanted",
    "Number of copies that an acknowledgement must state to count (--copies).",
);
const UNANSWERED: Metric = Metric::new(
    Kind::Gauge,
    "pmnet_memcached_unanswered_seconds",
    "Time for which requests have waited without any packet from the devices, at the last turn of the loop.",
);

/// Metrics of a memcached front that are not in [`MemcachedNumbers`].
pub(super) const MORE: [Metric; 2] = [COPIES_WANTED, UNANSWERED];

/// The counters and times that the loop of a memcached front publishes.
#[derive(Debug)]
pub(crate) struct MemcachedBoard {
    shard: u32,
    pulse: Arc<Pulse>,
    numbers: Board<{ MemcachedNumbers::METRICS.len() }>,
    waiting: Waiting,
}

impl MemcachedBoard {
    pub(crate) fn new(
        shard: u32,
        wanted: u8,
        deadline: Duration,
        pulse: Arc<Pulse>,
    ) -> MemcachedBoard {
        MemcachedBoard {
            shard,
            pulse,
            numbers: Board::default(),
            waiting: Waiting::new(wanted, deadline),
        }
    }

    /// Sets the time limit of each command, from now on.
    pub(crate) fn set_deadline(&self, deadline: Duration) {
        self.waiting.set_deadline(deadline);
    }

    /// Publishes a turn.
    pub(crate) fn turn(&self, turn: &FrontTurn<'_>) {
        self.numbers.publish(numbers(turn).words());
        self.waiting.turn(turn.unanswered());
    }
}

impl Source for MemcachedBoard {
    fn labels(&self) -> Vec<(&'static str, String)> {
        vec![("shard", self.shard.to_string())]
    }

    fn pulse(&self) -> u64 {
        self.pulse.word()
    }

    fn look(&self, _: Instant) -> Look {
        let mut look = Look {
            samples: MemcachedNumbers::of(self.numbers.read()).samples(),
            ..Look::default()
        };
        self.waiting.look(COPIES_WANTED, UNANSWERED, &mut look);
        look
    }
}

/// Returns the counters of the loop. The code names each counter, so that none is forgotten.
fn numbers(turn: &FrontTurn<'_>) -> MemcachedNumbers {
    let Counters {
        sets,
        flushes,
        too_large,
        errors,
        gets: [get_miss, get_hit],
        touches: [touch_miss, touch_hit],
        deletes: [delete_miss, delete_hit],
        counts: [[incr_miss, incr_hit], [decr_miss, decr_hit]],
        cas: [cas_hit, cas_badval, cas_miss],
        bytes_read,
        bytes_written,
        datagrams_dropped,
        connections,
        connections_ever,
        connections_refused,
        began: _,
    } = turn.counters();
    let ClientCounters {
        rejected,
        unexpected,
        forged,
        stale_epoch,
        resent,
        fallbacks,
        crowded,
    } = turn.client();
    let SocketCounters {
        send_dropped,
        send_errors,
        from_nowhere,
        fragmented,
    } = turn.socket();
    MemcachedNumbers {
        set: sets,
        flush: flushes,
        get_hit,
        get_miss,
        touch_hit,
        touch_miss,
        delete_hit,
        delete_miss,
        incr_hit,
        incr_miss,
        decr_hit,
        decr_miss,
        cas_hit,
        cas_badval,
        cas_miss,
        too_large,
        errors,
        bytes_read,
        bytes_written,
        datagrams_dropped,
        connections_ever,
        connections_refused,
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
        connections,
        exchanges: u64::try_from(turn.exchanges()).unwrap_or(u64::MAX),
    }
}
