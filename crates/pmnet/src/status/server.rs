//! The status port's view of a server.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use pmnet_client::{Pulse, SocketCounters};
use pmnet_proto::server::Counters;
use pmnet_server::serve::Turn;
use pmnet_server::{ServerNode, Store};
use pmnet_status::{Board, Histogram, Kind, Look, Metric, Sample, Source, Value, numbers};
use serde_json::json;

use super::lag::Lag;
use super::{lock, seconds};

numbers! {
    /// Counters of a server's loop.
    pub(crate) struct ServerNumbers {
        Counter "pmnet_server_applied" [""] "Updates that the store applied." { applied }
        Counter "pmnet_server_repeated" [""] "Repeated updates. They were not applied again." { repeated }
        Counter "pmnet_server_rejected" [""] "Updates that have no effect, because they are malformed or the store refuses them permanently." { rejected }
        Counter "pmnet_server_batches" [""] "Batches of updates that the store applied." { batches }
        Counter "pmnet_server_executed" [""] "Requests that the store executed." { executed }
        Counter "pmnet_server_answered_again" [""] "Repeated requests that were answered with the stored reply of their first execution." { answered_again }
        Counter "pmnet_server_expired" [""] "Requests that were not executed, because their clients no longer waited for them." { expired }
        Counter "pmnet_server_abandoned" [""] "Waiting requests that were dropped, because their remaining fragments did not come, their front had more than its share, or their deadline had passed." { abandoned }
        Counter "pmnet_server_replies_let_go" [""] "Long replies of commands that change data, which the server dropped although their clients may ask for them again." { replies_let_go }
        Counter "pmnet_server_fallbacks" [""] "Updates that clients sent to the server as requests, because a log was full." { fallbacks }
        Counter "pmnet_server_retransmissions" [""] "Ranges of entries that the server asked for again." { retransmissions }
        Counter "pmnet_server_other_mode" [""] "Packets with a MAC if this server has no key, and packets without one if it has a key." { other_mode }
        Counter "pmnet_server_dropped" ["reason"] "Packets that were dropped, by reason." {
            /// Packets of another shard or epoch, with a wrong token, or of a kind that a server does not take; and
            /// packets for which there was no room.
            refused,
            /// With keys: packets with a wrong MAC. Their sender did not have the key, or they were changed.
            forged,
            /// With keys: packets that were sealed for another hop.
            misled,
            /// With keys: packets of another epoch that were not verified, because too many of them came at once.
            other_epoch,
            /// Packets of requests that were dropped, because too many requests were waiting.
            no_room,
            /// Malformed or damaged packets.
            malformed,
            /// Packets from port 0, to which no answer can be sent.
            from_nowhere,
        }
        Counter "pmnet_server_send_problems" ["problem"] "Problems in sending datagrams, by kind." {
            /// Datagrams for which the operating system had no buffer. The protocol sends them again.
            send_dropped,
            /// Errors that the operating system reported for an earlier datagram.
            send_errors,
            /// Datagrams that were longer than their path's MTU, and were sent as IP fragments.
            fragmented,
        }
        Gauge "pmnet_server_loaded" [""] "1 if the server has loaded the store's records and the store has not failed since, 0 if not." { loaded }
        Gauge "pmnet_server_epoch" [""] "Epoch of the chain that the store has on record." { epoch }
        Gauge "pmnet_server_copies" [""] "Number of devices in the chain that the store has on record." { copies }
        Gauge "pmnet_server_sessions" [""] "Sessions that the store has on record." { sessions }
        Gauge "pmnet_server_kept_reply_bytes" [""] "Size of the long replies of commands that change data, which the server keeps in case their clients ask for them again." { kept_bytes }
        Gauge "pmnet_server_unapplied_orders" [""] "Entries that the server has received and the store has not applied yet." { queued }
        Gauge "pmnet_server_order" ["cursor"] "Cursors of the server, in orders." {
            /// Highest order that was received without a gap.
            received,
            /// Highest order that the store has applied durably.
            watermark,
        }
    }
}

const OLDEST: Metric = Metric::new(
    Kind::Gauge,
    "pmnet_server_oldest_unapplied_seconds",
    "Age of the oldest entry that the server has received and the store has not applied, within 0.25 s.",
);
const PAUSED: Metric = Metric::new(
    Kind::Gauge,
    "pmnet_server_store_paused",
    "1 while the server pauses its use of the store after a failure, otherwise 0. The label reason is the id of the failure's message, such as PM2301, or other; at 0 it is none.",
);
const STORE_SECONDS: Metric = Metric::new(
    Kind::Histogram,
    "pmnet_server_store_seconds",
    "Time of one step of the store: it applies a batch of updates, executes requests, or loads its records.",
);
const BATCH_UPDATES: Metric = Metric::new(
    Kind::Histogram,
    "pmnet_server_batch_updates",
    "Updates that the store applied in one turn of the server's loop.",
);

/// Metrics of a server that are not in [`ServerNumbers`].
pub(super) const MORE: [Metric; 4] = [OLDEST, PAUSED, STORE_SECONDS, BATCH_UPDATES];

/// The counters and times that the loop of a server publishes.
#[derive(Debug)]
pub(crate) struct ServerBoard {
    shard: u32,
    pub(crate) pulse: Arc<Pulse>,
    numbers: Board<{ ServerNumbers::METRICS.len() }>,
    /// 1: the server waits after a failure of the store; 0: the store works.
    paused: AtomicU64,
    store: Histogram,
    batch: Histogram,
    /// The reason for the store's present or last pause. The loop takes the lock only for a new reason.
    why: Mutex<Option<String>>,
    /// Measures the store's lag. Only the status port's thread uses this field.
    lag: Mutex<Lag>,
}

impl ServerBoard {
    pub(crate) fn new(shard: u32) -> ServerBoard {
        ServerBoard {
            shard,
            pulse: Arc::default(),
            numbers: Board::default(),
            paused: AtomicU64::new(0),
            store: Histogram::default(),
            batch: Histogram::default(),
            why: Mutex::default(),
            lag: Mutex::default(),
        }
    }

    /// Publishes that the loop has ended.
    pub(crate) fn ended(&self) {
        self.numbers.publish(ServerNumbers::default().words());
        self.paused.store(0, Relaxed);
        self.pulse.rests();
    }

    fn numbers(&self) -> ServerNumbers {
        ServerNumbers::of(self.numbers.read())
    }
}

/// Returns the id at the beginning of a message; `None` if the message has no id.
fn id(text: &str) -> Option<&str> {
    let id = text.get(..6)?;
    let digits = id.strip_prefix("PM")?;
    digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then_some(id)
}

impl Source for ServerBoard {
    fn labels(&self) -> Vec<(&'static str, String)> {
        vec![("shard", self.shard.to_string())]
    }

    fn pulse(&self) -> u64 {
        self.pulse.word()
    }

    fn tick(&self, now: Instant) {
        let numbers = self.numbers();
        lock(&self.lag).note(numbers.received, numbers.watermark, now);
    }

    fn look(&self, now: Instant) -> Look {
        let numbers = self.numbers();
        let oldest = lock(&self.lag).oldest(numbers.received, numbers.watermark, now);
        let why = lock(&self.why).clone();
        let why = why.filter(|_| self.paused.load(Relaxed) == 1);
        let mut reasons = Vec::new();
        if let Some(why) = &why {
            reasons.push(format!("the store is left alone for a moment: {why}"));
        } else if numbers.loaded == 0 {
            reasons.push("the records of the store are not loaded".into());
        }
        let reason = why
            .as_deref()
            .map_or("none", |why| id(why).unwrap_or("other"));
        let paused = Sample {
            labels: vec![("reason", reason.to_owned())],
            ..Sample::new(PAUSED, Value::Count(u64::from(why.is_some())))
        };
        let mut look = Look {
            samples: numbers.samples(),
            reasons,
            ..Look::default()
        };
        look.samples.extend([
            Sample::new(OLDEST, Value::Number(oldest.as_secs_f64())),
            paused,
            seconds(STORE_SECONDS, &self.store),
            Sample::new(BATCH_UPDATES, Value::Histogram(self.batch.read(1.0, 0, 12))),
        ]);
        look.facts.insert("store_pauses".into(), json!(why));
        look
    }
}

/// The handle with which a loop publishes to its board, during one run.
#[derive(Debug, Default)]
pub(crate) struct ServerWriter {
    /// Number of updates that were applied before this turn.
    applied: u64,
    why: Option<String>,
}

impl ServerWriter {
    /// Publishes a turn.
    pub(crate) fn turn<S: Store>(
        &mut self,
        board: &ServerBoard,
        node: &ServerNode<S>,
        turn: &Turn,
    ) {
        let numbers = numbers(node, turn.socket);
        if let Some(took) = turn.step {
            board.store.record(took, 1);
        }
        let batch = numbers.applied.saturating_sub(self.applied);
        if batch > 0 {
            board.batch.record(batch, 1);
        }
        self.applied = numbers.applied;
        board.numbers.publish(numbers.words());
        let why = node.pauses();
        if why.is_some() && why != self.why.as_deref() {
            self.why = why.map(str::to_owned);
            lock(&board.why).clone_from(&self.why);
        }
        board.paused.store(u64::from(why.is_some()), Relaxed);
    }
}

/// Returns the counters of the loop. The code names each counter, so that none is forgotten.
fn numbers<S: Store>(node: &ServerNode<S>, socket: SocketCounters) -> ServerNumbers {
    let machine = node.machine();
    let Counters {
        applied,
        repeated,
        rejected,
        batches,
        executed,
        answered_again,
        expired,
        fallbacks,
        retransmissions,
        dropped,
        no_room,
        abandoned,
        replies_let_go,
        forged,
        misled,
        other_epoch,
        other_mode,
    } = *machine.counters();
    let SocketCounters {
        send_dropped,
        send_errors,
        from_nowhere,
        fragmented,
    } = socket;
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let chain = machine.chain();
    ServerNumbers {
        applied,
        repeated,
        rejected,
        batches,
        executed,
        answered_again,
        expired,
        fallbacks,
        retransmissions,
        refused: dropped,
        no_room,
        abandoned,
        replies_let_go,
        kept_bytes: count(machine.kept_bytes()),
        forged,
        misled,
        other_epoch,
        other_mode,
        malformed: node.rejected_packets(),
        from_nowhere,
        send_dropped,
        send_errors,
        fragmented,
        loaded: u64::from(machine.is_loaded()),
        epoch: chain.map_or(0, |chain| u64::from(chain.epoch)),
        copies: chain.map_or(0, |chain| count(chain.members.len())),
        sessions: count(machine.sessions()),
        queued: count(machine.queued()),
        received: machine.received(),
        watermark: machine.watermark(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_pause_is_the_id_of_its_message() {
        assert_eq!(id("PM2301 Redis takes no writes now"), Some("PM2301"));
        assert_eq!(id("PMNET is"), None);
        assert_eq!(id("OOM"), None);
        assert_eq!(id("Ünö€ was"), None);
    }
}
