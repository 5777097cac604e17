//! Tests whether a NIC takes slots in the order in which they were posted, across connections (`docs/spec/verbs.md` §3,
//! 9).
//!
//! Several QPs, each on a thread of its own, send to one queue of the same NIC. A shared counter rises when a message
//! begins, and when the READ after it has completed, which ends the message. If a message began after the end of
//! another message, it must be in a later slot.

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pmnet_log::Identity;
use pmnet_log::slots::{Oldest, Outcome, SlotParameters, SlotQueue, SlotScan, format};
use pmnet_media::{AnyMedia, Kind};
use pmnet_proto::Random;
use rustc_hash::FxHashMap;

use crate::connections::Parts;
use crate::nic::{Completion, Completions, Nic, NicError, QueuePair, Readable, SendBuffers};

const SLOTS: SlotParameters = SlotParameters {
    slots: 64,
    slot_bytes: 4096,
};
const IDENTITY: Identity = Identity {
    log_uuid: 1,
    device: 1,
    shard: 0,
};
/// Length of the longest message, in bytes. The shortest one consists of its number.
const MESSAGE_MAX: u64 = 4000;
/// Time after which a missing message counts as lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result of the test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Messages that were acknowledged.
    pub messages: u64,
    /// Completions that came while an earlier slot was still open.
    pub overtaken: u64,
    /// Messages that began after the end of another message, but are in an earlier slot.
    pub violations: u64,
    /// Acknowledged messages that are in no slot.
    pub lost: u64,
    /// Messages that are in two slots.
    pub twice: u64,
}

impl Report {
    /// Returns whether the NIC may be used for the ordered queue.
    #[must_use]
    pub const fn is_good(&self) -> bool {
        self.messages > 0 && self.violations == 0 && self.lost == 0 && self.twice == 0
    }
}

/// The values of the counter at the begin and at the end of a message.
#[derive(Clone, Copy, Debug)]
struct Life {
    id: u64,
    begun: u64,
    ended: u64,
}

/// Counters of all senders.
struct Clock {
    now: AtomicU64,
    /// Number of the next message.
    next: AtomicU64,
    messages: u64,
}

/// A connection to the queue, and the buffers from which it sends.
struct Sender {
    near: QueuePair,
    _far: QueuePair,
    buffers: SendBuffers,
    completions: Completions,
    byte: Readable,
    random: Random,
}

impl Sender {
    fn new(nic: &Nic, parts: &Parts, number: u32) -> Result<Sender, NicError> {
        let completions = Completions::new(nic, 64)?;
        let near = QueuePair::new(nic, &completions, None, 8, number)?;
        let far = QueuePair::new(nic, &parts.completions, Some(&parts.receiver), 1, number)?;
        far.connect(&near.whereto(), nic.mtu())?;
        near.connect(&far.whereto(), nic.mtu())?;
        Ok(Sender {
            near,
            _far: far,
            buffers: SendBuffers::new(nic, 1, 4096)?,
            completions,
            byte: parts.memory.readable(),
            random: Random::new(u64::from(number)),
        })
    }

    /// Sends one message after the other, until all messages of the test are sent. Returns the messages that this
    /// sender has sent.
    fn run(&mut self, clock: &Clock) -> Result<Vec<Life>, NicError> {
        let mut lives = Vec::new();
        loop {
            let id = clock.next.fetch_add(1, Ordering::SeqCst);
            if id >= clock.messages {
                return Ok(lives);
            }
            let length = 8 + self.random.next_u64() % (MESSAGE_MAX - 8);
            let mut bytes = vec![0; usize::try_from(length).expect("small")];
            bytes[..8].copy_from_slice(&id.to_le_bytes());
            let begun = clock.now.fetch_add(1, Ordering::SeqCst);
            self.buffers.send(&self.near, 0, &bytes)?;
            self.buffers.read_byte(&self.near, self.byte, id)?;
            self.wait()?;
            let ended = clock.now.fetch_add(1, Ordering::SeqCst);
            lives.push(Life { id, begun, ended });
        }
    }

    /// Waits until the READ has completed.
    fn wait(&self) -> Result<(), NicError> {
        let (begun, mut polled) = (Instant::now(), Vec::new());
        while begun.elapsed() < PATIENCE {
            self.completions.poll(&mut polled)?;
            match polled.pop().map(|Completion { outcome, .. }| outcome) {
                Some(Ok(_)) => return Ok(()),
                Some(Err(status)) => {
                    return Err(NicError::said(&format!("a message failed: error {status}")));
                }
                None => std::thread::yield_now(),
            }
        }
        Err(NicError::said("a message was not acknowledged within 10 s"))
    }
}

/// Tests the RDMA device with this name and address, with these numbers of QPs and messages. `memory`: name of a file
/// on tmpfs that this function creates and removes.
///
/// # Errors
/// [`NicError`]: the device could not be tested.
pub fn test(
    rdma: &str,
    address: IpAddr,
    memory: &Path,
    (qps, messages): (u32, u64),
) -> Result<Report, NicError> {
    let mut media = pmnet_media::create(memory, Kind::Dram, SLOTS.image_bytes()).map_err(failed)?;
    std::fs::remove_file(memory).map_err(failed)?;
    format(&mut media, IDENTITY, SLOTS).map_err(failed)?;
    let scan = SlotScan::open(media, None).map_err(failed)?;
    let mut queue = scan.begin().map_err(failed)?;
    let nic = Nic::open(rdma, address)?;
    let memory = queue.media_mut().memory();
    let parts = Parts::make(&nic, memory, SLOTS.slots, SLOTS.slot_bytes)?;
    let senders: Result<Vec<Sender>, NicError> = (0..qps)
        .map(|number| Sender::new(&nic, &parts, number))
        .collect();
    let mut senders = senders?;
    let clock = Clock {
        now: AtomicU64::new(0),
        next: AtomicU64::new(0),
        messages,
    };
    let mut report = Report::default();
    let (order, lives) = std::thread::scope(|scope| {
        let running: Vec<_> = senders
            .iter_mut()
            .map(|sender| scope.spawn(|| sender.run(&clock)))
            .collect();
        let order = receive(&parts, &mut queue, messages, &mut report);
        let mut lives = Vec::new();
        for sender in running {
            let sent = sender.join();
            lives.extend(sent.map_err(|_| NicError::said("a sender ended in a panic"))??);
        }
        Ok::<_, NicError>((order?, lives))
    })?;
    judge(&mut report, &order, &lives);
    Ok(report)
}

fn failed(error: impl std::fmt::Display) -> NicError {
    NicError::said(&error.to_string())
}

/// Takes messages from the slots, in order, until all have arrived, or until none has arrived for [`PATIENCE`].
fn receive(
    parts: &Parts,
    queue: &mut SlotQueue<AnyMedia>,
    messages: u64,
    report: &mut Report,
) -> Result<Vec<u64>, NicError> {
    let (mut polled, mut order, mut seen) = (Vec::new(), Vec::new(), Instant::now());
    loop {
        while let Some(posting) = queue.post() {
            parts.receiver.post(posting.number, &posting.place)?;
        }
        parts.completions.poll(&mut polled)?;
        if polled.is_empty() {
            std::thread::yield_now();
        } else {
            seen = Instant::now();
        }
        for Completion { id, outcome, qpn } in polled.drain(..) {
            let slot_failed = |status| failed(format!("a slot failed: error {status}"));
            let bytes = outcome.map_err(slot_failed)?;
            let complete = queue.complete(id, qpn, Outcome::Message(bytes));
            complete.map_err(failed)?;
            report.overtaken += u64::from(queue.blocked().is_some());
        }
        while let Some(Oldest::Message { bytes, .. }) = queue.oldest() {
            let id = bytes.first_chunk().map(|id| u64::from_le_bytes(*id));
            order.push(id.unwrap_or(u64::MAX));
            queue.advance();
        }
        let processed = queue.processed();
        queue.keep_start(processed).map_err(failed)?;
        queue.keep_poll(true).map_err(failed)?;
        let all = u64::try_from(order.len()).is_ok_and(|count| count >= messages);
        if all || seen.elapsed() > PATIENCE {
            return Ok(order);
        }
    }
}

/// Compares the order of the messages in the slots with the notes of the senders, and enters the result into the
/// report.
fn judge(report: &mut Report, order: &[u64], lives: &[Life]) {
    let mut by_id: FxHashMap<u64, (Life, u64)> =
        lives.iter().map(|life| (life.id, (*life, 0))).collect();
    report.messages = u64::try_from(lives.len()).expect("64 bits");
    let mut latest = 0;
    for id in order {
        let Some((Life { begun, ended, .. }, found)) = by_id.get_mut(id) else {
            // The message was not acknowledged, or no connection sent it.
            continue;
        };
        *found += 1;
        report.twice += u64::from(*found == 2);
        report.violations += u64::from(*ended < latest);
        latest = latest.max(*begun);
    }
    let lost = by_id.values().filter(|(_, found)| *found == 0).count();
    report.lost = u64::try_from(lost).expect("64 bits");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(order: &[u64], lives: &[(u64, u64)]) -> (u64, u64, u64) {
        let lives = (0..).zip(lives);
        let lives: Vec<Life> = lives
            .map(|(id, &(begun, ended))| Life { id, begun, ended })
            .collect();
        let mut report = Report::default();
        judge(&mut report, order, &lives);
        assert_eq!(
            report.is_good(),
            report.violations + report.lost + report.twice == 0
        );
        (report.violations, report.lost, report.twice)
    }

    #[test]
    fn what_ended_before_another_began_must_be_in_an_earlier_slot() {
        let apart = [(0, 1), (2, 3)];
        assert_eq!(judged(&[0, 1], &apart), (0, 0, 0));
        assert_eq!(judged(&[1, 0], &apart), (1, 0, 0));
        // The messages overlap in time, so any order is right.
        let together = [(0, 2), (1, 3)];
        assert_eq!(judged(&[1, 0], &together), (0, 0, 0));
        assert_eq!(judged(&[0], &together), (0, 1, 0));
        assert_eq!(judged(&[0, 1, 1], &together), (0, 0, 1));
    }
}
