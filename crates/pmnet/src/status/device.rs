//! The status port's view of a device.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pmnet_client::{Clock, Pulse};
use pmnet_device::{Counters, DeviceNode, PortCounters, Rejects, Turn};
use pmnet_log::Media;
use pmnet_proto::Time;
use pmnet_proto::time::SECOND;
use pmnet_status::{Board, Histogram, Kind, Look, Metric, Sample, Source, Value, numbers};
use pmnet_wire::Reject;
use serde_json::json;

use super::advice::is_filling;
use super::kernel;
use super::lag::Lag;
use super::server::ServerBoard;
use super::silence::Silence;
use super::verbs::VerbsBoard;
use super::{lock, seconds};

numbers! {
    /// Counters of a device's loop.
    pub(crate) struct DeviceNumbers {
        Counter "pmnet_device_entries" [""] "Entries that were added to the log: updates, and beginnings and ends of sessions. The head admits them from clients; another device takes them from the hop before." { admitted }
        Counter "pmnet_device_duplicates" [""] "Repeated updates. They were answered again." { duplicates }
        Counter "pmnet_device_acks" [""] "Acknowledgement packets to clients." { acks }
        Counter "pmnet_device_nacks" [""] "NACK packets. Each names an update that is missing to its client." { nacks }
        Counter "pmnet_device_not_logged" [""] "Updates that were refused because the log was full. Their clients send them to the server." { not_logged }
        Counter "pmnet_device_bypasses" [""] "Requests for the store that the head stamped, or that another device passed on." { bypasses }
        Counter "pmnet_device_responses" [""] "Responses of the store that were passed on towards the client." { responses }
        Counter "pmnet_device_reads" ["answer"] "READs that were answered, by answer." {
            /// A HIT, with an update from the log.
            hit,
            /// A MISS, with the order that the store must have applied.
            miss,
        }
        Counter "pmnet_device_forwarded" [""] "Entries that were sent to the next hop, repeats included." { forwarded }
        Counter "pmnet_device_retransmissions" [""] "Ranges of entries that the next hop asked for again." { retransmissions }
        Counter "pmnet_device_foreign" [""] "Datagrams of other programs, or of another version of pmnet. The device forwards them, except those that it cannot address." { foreign }
        Counter "pmnet_device_other_mode" [""] "Packets with a MAC if this device has no key, and packets without one if it has a key." { other_mode }
        Counter "pmnet_device_dropped" ["reason"] "Packets that were dropped, and answers that were not sent, by reason." {
            /// Packets that arrived before the device served.
            not_ready,
            /// Packets for another shard.
            wrong_shard,
            /// Packets with a wrong token: forged, or from a sender that has the token of an older session.
            wrong_token,
            /// With keys: packets with a wrong MAC. Their sender did not have the key, or they were changed.
            forged,
            /// With keys: packets of an unknown session, which cannot be verified.
            unknown_key,
            /// With keys: packets of another epoch that were not verified, because too many of them came at once.
            other_epoch,
            /// With keys: packets that were sealed for another hop.
            misled,
            /// Packets of a kind that this device does not take from this sender.
            unexpected,
            /// Packets of a lower epoch. The device told their senders its own epoch.
            stale_epoch,
            /// Packets that were not passed on, because the address of their receiver is unknown.
            no_route,
            /// Answers to clients that were not sent, because the lease had ended.
            silenced,
            /// Packets that were shorter than a header.
            truncated,
            /// Packets of an unknown kind.
            kind,
            /// Packets whose header has another length than in this version.
            header_length,
            /// Packets whose payload has another length than their header states.
            payload_length,
            /// Packets that were longer than a packet may be.
            oversized,
            /// Packets with a damaged header.
            header_checksum,
            /// Packets with a damaged payload.
            payload_checksum,
            /// Packets with contradictory fields about fragments.
            fragment,
            /// Packets from port 0, to which no answer can be sent.
            from_nowhere,
        }
        Counter "pmnet_device_sessions_ended" ["reason"] "Sessions that the device ended, by reason." {
            /// Sessions that were silent for too long.
            expired,
            /// Silent sessions that made room for new ones in a full table.
            crowded_out,
            /// Sessions whose client was started again.
            succeeded,
            /// Sessions of a front that had more than its share, when another front found no place.
            over_share,
        }
        Counter "pmnet_device_opens_refused" [""] "Sessions that were refused, because the device had as many as it can have." { crowded_opens }
        Counter "pmnet_device_other_payloads" [""] "Sessions that were refused, because the server cannot execute their updates: commands where the server is a program of its own, or updates of a program where the server has Redis." { other_payloads }
        Counter "pmnet_device_over_share" ["what"] "Updates and sessions that were refused, because their front had its share of the log or of the sessions and other fronts needed room." {
            /// Updates. Their clients send them to the server, which executes them at its own pace.
            updates,
            /// New sessions.
            opens,
        }
        Counter "pmnet_device_send_problems" ["problem"] "Problems in sending datagrams, by kind." {
            /// Datagrams for which the operating system had no buffer. The protocol sends them again.
            send_dropped,
            /// Errors that the operating system reported for an earlier datagram (mostly an unreachable next hop).
            send_errors,
            /// Datagrams that were longer than their path's MTU, and were sent as IP fragments.
            fragmented,
        }
        Gauge "pmnet_device_serving" [""] "1 if the device serves, 0 if not." { serving }
        Gauge "pmnet_device_head" [""] "1 if this device is the first one of its chain, to which clients send; 0 if not." { head }
        Gauge "pmnet_device_copies" [""] "Number of devices of the chain, which is the number of copies of each acknowledged write; 0 before the device serves." { copies }
        Gauge "pmnet_device_epoch" [""] "Epoch of the chain." { epoch }
        Gauge "pmnet_device_sessions" [""] "Open sessions." { sessions }
        Gauge "pmnet_device_log_entries_used" [""] "Entries of the log that are in use." { used }
        Gauge "pmnet_device_log_entries_capacity" [""] "Entries that the log can hold." { capacity }
        Gauge "pmnet_device_unapplied_orders" [""] "Entries that the store has not applied yet." { unapplied }
        Gauge "pmnet_device_order" ["cursor"] "Cursors of the log, in orders." {
            /// Highest order in the log.
            last,
            /// Highest order that is durable in this device.
            durable,
            /// Highest order that is durable in every device of the chain. All entries up to this order are
            /// acknowledged.
            committed,
            /// Highest order that the store has applied, as far as this device knows.
            applied,
        }
    }
}

const COPIES_WANTED: Metric = Metric::new(
    Kind::Gauge,
    "pmnet_device_copies_wanted",
    "Number of copies that the device needs to be ready (--copies).",
);
const OLDEST: Metric = Metric::new(
    Kind::Gauge,
    "pmnet_device_oldest_unapplied_seconds",
    "Age of the oldest entry that the store has not applied, within 0.25 s.",
);
const LEASE_LEFT: Metric = Metric::new(
    Kind::Gauge,
    "pmnet_device_lease_seconds_left",
    "Time until the lease ends; without a lease the device sends no answers. Absent without --fleet.",
);
const DURABLE_SECONDS: Metric = Metric::new(
    Kind::Histogram,
    "pmnet_device_durable_seconds",
    "Time from the receipt of an update until it is durable in this device, measured at turns of the loop. Updates that the kernel logged are not measured.",
);
const ACKNOWLEDGED_SECONDS: Metric = Metric::new(
    Kind::Histogram,
    "pmnet_device_acknowledged_seconds",
    "Time from the receipt of an update until this device knows that it is durable in every device of the chain; then the head acknowledges it. Measured at turns of the loop; updates that the kernel logged are not measured.",
);

/// Metrics of a device that are not in [`DeviceNumbers`].
pub(super) const MORE: [Metric; 5] = [
    COPIES_WANTED,
    OLDEST,
    LEASE_LEFT,
    DURABLE_SECONDS,
    ACKNOWLEDGED_SECONDS,
];

/// The counters and times that the loop of a device publishes.
#[derive(Debug)]
pub(crate) struct DeviceBoard {
    shard: u32,
    device: u32,
    /// Number of copies below which the device is not ready.
    wanted: Arc<AtomicU8>,
    /// The device's name in the BPF file system; `None`: the device is not in a kernel mode.
    kernel: Option<String>,
    pub(crate) pulse: Arc<Pulse>,
    numbers: Board<{ DeviceNumbers::METRICS.len() }>,
    /// End of the lease by `CLOCK_BOOTTIME`; [`NO_LEASE`]: the device needs no lease; 0: it has none.
    lease: AtomicU64,
    /// Time of the last packet from the next hop, by the clock of the loop; 0: the device does not serve.
    next_hop_heard: AtomicU64,
    durable: Histogram,
    acknowledged: Histogram,
    /// The operator's decision that the server waits for before the device may serve. The decision rarely changes, and
    /// the loop takes the lock only for a change.
    waits: Mutex<Option<String>>,
    /// Ids of the chain's devices, head first; empty: the device does not serve. Like `waits`, the ids rarely change.
    chain: Mutex<Vec<u32>>,
    /// Measures the store's lag. Only the status port's thread uses this field.
    lag: Mutex<Lag>,
    /// Measures the silence of the next hop. Only the status port's thread uses this field.
    silence: Mutex<Silence>,
    /// The file of the log is gone.
    endangered: AtomicBool,
    /// Board of the server in this process (--store).
    pub(crate) server: Option<ServerBoard>,
    /// Board of the NIC's queue (--mode verbs).
    pub(crate) verbs: Option<VerbsBoard>,
}

/// Value of `lease` for a device that needs no lease.
const NO_LEASE: u64 = u64::MAX;

/// The parts that a device may have in addition to its loop.
#[derive(Debug)]
pub(crate) struct Beside {
    pub(crate) kernel: Option<String>,
    pub(crate) server: Option<ServerBoard>,
    pub(crate) verbs: Option<VerbsBoard>,
}

impl DeviceBoard {
    pub(crate) fn new(
        shard: u32,
        device: u32,
        wanted: Arc<AtomicU8>,
        beside: Beside,
    ) -> DeviceBoard {
        DeviceBoard {
            shard,
            device,
            wanted,
            kernel: beside.kernel,
            pulse: Arc::default(),
            numbers: Board::default(),
            lease: AtomicU64::new(NO_LEASE),
            next_hop_heard: AtomicU64::new(0),
            durable: Histogram::default(),
            acknowledged: Histogram::default(),
            waits: Mutex::default(),
            chain: Mutex::default(),
            lag: Mutex::default(),
            silence: Mutex::default(),
            endangered: AtomicBool::new(false),
            server: beside.server,
            verbs: beside.verbs,
        }
    }

    fn numbers(&self) -> DeviceNumbers {
        DeviceNumbers::of(self.numbers.read())
    }

    /// Returns the time since the last packet from the next hop. In a kernel mode the function returns 0, because the
    /// kernel receives most of these packets without the loop.
    fn silence(&self, now: Instant) -> Duration {
        let heard = self.next_hop_heard.load(Relaxed);
        let silence = lock(&self.silence).note(heard, now);
        if self.kernel.is_some() {
            Duration::ZERO
        } else {
            silence
        }
    }
}

impl Source for DeviceBoard {
    fn labels(&self) -> Vec<(&'static str, String)> {
        vec![
            ("shard", self.shard.to_string()),
            ("device", self.device.to_string()),
        ]
    }

    fn pulse(&self) -> u64 {
        self.pulse.word()
    }

    fn tick(&self, now: Instant) {
        let numbers = self.numbers();
        lock(&self.lag).note(numbers.last, numbers.applied, now);
        self.silence(now);
        if let Some(server) = &self.server {
            server.tick(now);
        }
    }

    fn look(&self, now: Instant) -> Look {
        let numbers = self.numbers();
        let oldest = lock(&self.lag).oldest(numbers.last, numbers.applied, now);
        let waits = lock(&self.waits).clone();
        let lease = match self.lease.load(Relaxed) {
            NO_LEASE => None,
            until => Some(Time(until).since(Clock::boottime().now())),
        };
        let wanted = self.wanted.load(Relaxed);
        let mut look = Look {
            samples: numbers.samples(),
            reasons: reasons(&numbers, wanted, lease, self.silence(now), waits.as_deref()),
            ..Look::default()
        };
        #[allow(clippy::cast_precision_loss)]
        let lease_left =
            lease.map(|left| Sample::new(LEASE_LEFT, Value::Number(left as f64 / SECOND as f64)));
        look.samples.extend(lease_left);
        look.samples.extend([
            Sample::new(COPIES_WANTED, Value::Count(u64::from(wanted))),
            Sample::new(OLDEST, Value::Number(oldest.as_secs_f64())),
            seconds(DURABLE_SECONDS, &self.durable),
            seconds(ACKNOWLEDGED_SECONDS, &self.acknowledged),
        ]);
        if self.endangered.load(Relaxed) {
            look.reasons
                .push("the file of its log is gone (PM1328)".into());
        }
        look.facts.insert("waits".into(), json!(waits));
        look.facts.insert("chain".into(), json!(*lock(&self.chain)));
        if let Some(name) = &self.kernel {
            kernel::look(name, &mut look);
        }
        if let Some(verbs) = &self.verbs {
            look.samples.extend(verbs.samples());
        }
        if let Some(server) = &self.server {
            let of_server = server.look(now);
            look.samples.extend(of_server.samples);
            look.reasons.extend(of_server.reasons);
            look.facts.extend(of_server.facts);
        }
        look
    }
}

/// Time without a packet from the next hop after which a device is not ready. A next hop that runs sends a packet about
/// once a second, even in a chain without clients.
const SILENT_MAX: Duration = Duration::from_millis(1_500);

/// Returns the reasons why a device is not ready: it does not serve, has no lease, or has too few copies; its next hop
/// is silent; or its log is nearly full.
fn reasons(
    numbers: &DeviceNumbers,
    wanted: u8,
    lease: Option<u64>,
    silence: Duration,
    waits: Option<&str>,
) -> Vec<String> {
    let mut reasons = Vec::new();
    if numbers.serving == 0 {
        reasons.push(match waits {
            Some(text) => format!("it does not serve: {text}"),
            None => "it does not serve: the server has not answered".into(),
        });
    } else if silence >= SILENT_MAX {
        let seconds = silence.as_secs_f64();
        reasons.push(format!(
            "its next hop has said nothing for {seconds:.1} s: the device or server after it is lost, busy, or cannot be reached"
        ));
    }
    let (used, capacity) = (numbers.used, numbers.capacity);
    #[allow(clippy::cast_precision_loss)]
    if is_filling(used as f64, capacity as f64) {
        reasons.push(format!(
            "its log is filling up: {used} of {capacity} entries are in use"
        ));
    }
    if lease == Some(0) {
        reasons.push("it has no lease, so it answers nobody".into());
    }
    let copies = numbers.copies;
    if copies < u64::from(wanted) {
        reasons.push(format!(
            "the chain has {copies} copies, and {wanted} are wanted"
        ));
    }
    reasons
}

/// Maximum number of turns whose updates wait for their acknowledgement. The updates of further turns count as those of
/// the last remembered turn.
const MARKS_MAX: usize = 4096;

/// The arrival times of updates: for each turn, the highest order after it, and its time.
#[derive(Debug, Default)]
struct Marks {
    marks: VecDeque<(u64, Time)>,
    /// The highest order that has an arrival time.
    noted: u64,
    /// The highest order whose duration was recorded.
    recorded: u64,
}

impl Marks {
    fn note(&mut self, last: u64, began: Time) {
        if last <= self.noted {
            return;
        }
        if self.marks.is_empty() {
            self.recorded = self.noted;
        }
        self.noted = last;
        let is_full = self.marks.len() == MARKS_MAX;
        match self.marks.back_mut() {
            Some((order, _)) if is_full => *order = last,
            _ => self.marks.push_back((last, began)),
        }
    }

    /// Records the durations of the updates up to `upto`. These updates have just become durable, or were just
    /// acknowledged.
    fn record(&mut self, upto: u64, now: Time, histogram: &Histogram) {
        while let Some(&(order, began)) = self.marks.front()
            && self.recorded < upto
        {
            let done = order.min(upto);
            histogram.record(now.since(began), done - self.recorded);
            self.recorded = done;
            if order <= upto {
                self.marks.pop_front();
            }
        }
    }
}

/// The handle with which a loop publishes to its board, during one run.
pub(crate) struct DeviceWriter {
    board: Arc<DeviceBoard>,
    until_durable: Marks,
    until_acknowledged: Marks,
    waits: Option<String>,
    /// Epoch of the chain that was published last; `None`: the device did not serve.
    epoch: Option<u32>,
    /// The process has a status port. Without a status port the loop publishes nothing.
    is_shown: bool,
}

impl DeviceWriter {
    pub(crate) fn new(board: Arc<DeviceBoard>, is_shown: bool) -> DeviceWriter {
        DeviceWriter {
            board,
            until_durable: Marks::default(),
            until_acknowledged: Marks::default(),
            waits: None,
            epoch: None,
            is_shown,
        }
    }

    /// Publishes a turn.
    pub(crate) fn turn<M: Media>(&mut self, node: &DeviceNode<M>, turn: &Turn) {
        if !self.is_shown {
            return;
        }
        let board = &*self.board;
        let numbers = numbers(node, turn.port);
        if board.kernel.is_none() {
            for (marks, upto, histogram) in [
                (&mut self.until_durable, numbers.durable, &board.durable),
                (
                    &mut self.until_acknowledged,
                    numbers.committed,
                    &board.acknowledged,
                ),
            ] {
                if numbers.serving == 0 {
                    // Entries that a recovery finds arrived before this run, so they have no arrival time.
                    *marks = Marks {
                        noted: numbers.last,
                        ..Marks::default()
                    };
                }
                marks.note(numbers.last, turn.began);
                marks.record(upto, turn.now, histogram);
            }
        }
        board.numbers.publish(numbers.words());
        let machine = node.machine();
        let lease = match machine.deadline() {
            _ if !machine.is_leased() => NO_LEASE,
            Some(deadline) => deadline.0,
            None => 0,
        };
        board.lease.store(lease, Relaxed);
        board.endangered.store(machine.is_endangered(), Relaxed);
        let heard = machine.next_hop_heard().filter(|_| machine.is_serving());
        board
            .next_hop_heard
            .store(heard.map_or(0, |at| at.0.max(1)), Relaxed);
        if machine.waits_for() != self.waits.as_deref() {
            self.waits = machine.waits_for().map(str::to_owned);
            lock(&board.waits).clone_from(&self.waits);
        }
        let epoch = machine.is_serving().then(|| machine.epoch());
        if epoch != self.epoch {
            self.epoch = epoch;
            let mut chain = lock(&board.chain);
            chain.clear();
            if epoch.is_some() {
                chain.extend(machine.chain());
            }
        }
    }

    /// Returns the board; `None` if the process has no status port.
    pub(crate) fn shown(&self) -> Option<&DeviceBoard> {
        self.is_shown.then_some(&*self.board)
    }
}

impl Drop for DeviceWriter {
    /// Publishes that the loop has ended: it serves no client, and waits for another run.
    fn drop(&mut self) {
        self.board.numbers.publish(DeviceNumbers::default().words());
        self.board.next_hop_heard.store(0, Relaxed);
        lock(&self.board.chain).clear();
        if let Some(server) = &self.board.server {
            server.ended();
        }
        self.board.pulse.rests();
    }
}

/// Returns the number of datagrams that were rejected for this reason.
const fn rejected(rejects: &Rejects, reason: Reject) -> u64 {
    let mut at = 0;
    while at < Reject::ALL.len() {
        if Reject::ALL[at] as usize == reason as usize {
            return rejects[at];
        }
        at += 1;
    }
    0
}

/// Returns the counters of the loop. The code names each counter, so that none is forgotten.
fn numbers<M: Media>(node: &DeviceNode<M>, port: PortCounters) -> DeviceNumbers {
    let machine = node.machine();
    let Counters {
        admitted,
        duplicates,
        nacks,
        not_logged,
        bypasses,
        responses,
        read_hits,
        read_misses,
        forwarded,
        retransmissions,
        acks,
        silenced,
        not_ready,
        wrong_shard,
        wrong_token,
        unexpected,
        stale_epoch,
        no_route,
        expired_sessions,
        crowded_out_sessions,
        succeeded_sessions,
        crowded_opens,
        over_share,
        over_share_opens,
        over_share_sessions,
        other_payloads,
        forged,
        unknown_key,
        misled,
        other_epoch,
        other_mode,
    } = *machine.counters();
    let PortCounters {
        send_dropped,
        send_errors,
        from_nowhere,
        fragmented,
    } = port;
    let rejects = node.rejects();
    let (_, _, committed, _) = machine.cursors();
    let log = node.log();
    let (last, applied) = (log.last(), log.applied());
    let capacity = log.entries_max();
    let serving = machine.is_serving();
    DeviceNumbers {
        admitted,
        duplicates,
        acks,
        nacks,
        not_logged,
        bypasses,
        responses,
        hit: read_hits,
        miss: read_misses,
        forwarded,
        retransmissions,
        foreign: rejected(rejects, Reject::Foreign),
        not_ready,
        wrong_shard,
        wrong_token,
        forged,
        unknown_key,
        misled,
        other_epoch,
        other_mode,
        unexpected,
        stale_epoch,
        no_route,
        silenced,
        truncated: rejected(rejects, Reject::Truncated),
        kind: rejected(rejects, Reject::Kind),
        header_length: rejected(rejects, Reject::HeaderLength),
        payload_length: rejected(rejects, Reject::PayloadLength),
        oversized: rejected(rejects, Reject::Oversized),
        header_checksum: rejected(rejects, Reject::HeaderChecksum),
        payload_checksum: rejected(rejects, Reject::PayloadChecksum),
        fragment: rejected(rejects, Reject::Fragment),
        from_nowhere,
        expired: expired_sessions,
        crowded_out: crowded_out_sessions,
        succeeded: succeeded_sessions,
        crowded_opens,
        other_payloads,
        updates: over_share,
        opens: over_share_opens,
        over_share: over_share_sessions,
        send_dropped,
        send_errors,
        fragmented,
        serving: u64::from(serving),
        head: u64::from(serving && machine.is_head()),
        copies: if serving {
            u64::from(machine.copies())
        } else {
            0
        },
        epoch: u64::from(machine.epoch()),
        sessions: u64::try_from(machine.sessions()).unwrap_or(u64::MAX),
        used: capacity.saturating_sub(log.room().entries),
        capacity,
        unapplied: last.saturating_sub(applied),
        last,
        durable: log.durable(),
        committed,
        applied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every reason for a rejection must have a counter. Otherwise the rejections for this reason would not be shown.
    #[test]
    fn every_reason_of_a_reject_has_a_number() {
        let parts: Vec<&str> = DeviceNumbers::METRICS
            .iter()
            .filter_map(|metric| metric.label.map(|(_, part)| part))
            .collect();
        for reason in Reject::ALL
            .iter()
            .filter(|reason| **reason != Reject::Foreign)
        {
            assert!(parts.contains(&reason.name()), "{}", reason.name());
        }
        let mut rejects: Rejects = [0; Reject::ALL.len()];
        for (count, reason) in (1..).zip(Reject::ALL) {
            let at = Reject::ALL.iter().position(|one| one == reason).unwrap();
            rejects[at] = count;
            assert_eq!(rejected(&rejects, *reason), count);
        }
    }

    #[test]
    fn times_are_those_of_the_turns_in_which_updates_came() {
        let histogram = Histogram::default();
        let mut marks = Marks::default();
        marks.note(10, Time(1_000));
        marks.note(10, Time(9_000));
        marks.note(12, Time(2_000));
        marks.record(11, Time(3_000), &histogram);
        marks.record(12, Time(70_000), &histogram);
        marks.record(12, Time(99_000), &histogram);
        let shot = histogram.read(1.0, 10, 17);
        assert_eq!(shot.count(), 12);
        assert_eq!(shot.sum, 10.0 * 2_000.0 + 1_000.0 + 68_000.0);
    }

    #[test]
    fn marks_are_bounded() {
        let histogram = Histogram::default();
        let mut marks = Marks::default();
        let orders = MARKS_MAX as u64 + 100;
        for order in 1..=orders {
            marks.note(order, Time(order));
        }
        assert_eq!(marks.marks.len(), MARKS_MAX);
        marks.record(orders, Time(orders), &histogram);
        assert_eq!(histogram.read(1.0, 10, 20).count(), orders);
    }

    fn ready(serving: u64, copies: u64, wanted: u8, lease: Option<u64>) -> Vec<String> {
        with(serving, copies, wanted, lease, (0, 80))
    }

    /// `log`: the time since the last packet from the next hop in milliseconds, and the number of entries in use, of
    /// 100.
    fn with(
        serving: u64,
        copies: u64,
        wanted: u8,
        lease: Option<u64>,
        (silence, used): (u64, u64),
    ) -> Vec<String> {
        let numbers = DeviceNumbers {
            serving,
            copies,
            used,
            capacity: 100,
            ..DeviceNumbers::default()
        };
        reasons(
            &numbers,
            wanted,
            lease,
            Duration::from_millis(silence),
            None,
        )
    }

    #[test]
    fn a_device_is_ready_that_serves_with_a_lease_and_enough_copies() {
        assert!(ready(1, 2, 2, None).is_empty());
        assert!(ready(1, 2, 2, Some(5)).is_empty());
        assert!(with(1, 2, 2, None, (1_499, 80)).is_empty());
        for (refused, why) in [
            (with(1, 2, 2, None, (1_500, 80)), "nothing for 1.5 s"),
            (with(1, 2, 2, None, (0, 81)), "81 of 100 entries"),
            (ready(0, 2, 2, None), "does not serve"),
            (ready(1, 2, 2, Some(0)), "no lease"),
            (ready(1, 1, 2, None), "1 copies, and 2 are wanted"),
        ] {
            assert_eq!(refused.len(), 1, "{refused:?}");
            assert!(refused[0].contains(why), "{refused:?}");
        }
    }
}
