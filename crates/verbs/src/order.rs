//! Does a NIC take slots in the order in which they were posted, across connections? (`docs/spec/verbs.md` §3, 9.)
//!
//! Several QPs send to one queue of the same NIC. A counter goes up when a message begins and when its READ has completed. A message that began after
//! another one had ended must be in a later slot.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use pmnet_log::Identity;
use pmnet_log::slots::{Outcome, SlotParameters, SlotScan, format};
use pmnet_media::{AnyMedia, Kind};
use pmnet_proto::Random;

use crate::connections::Parts;
use crate::nic::{Completion, Completions, Nic, NicError, QueuePair, SendBuffers};

const SLOTS: SlotParameters = SlotParameters {
    slots: 64,
    slot_bytes: 4096,
};
const IDENTITY: Identity = Identity {
    log_uuid: 1,
    device: 1,
    shard: 0,
};
/// The longest message; the shortest is its number.
const MESSAGE_MAX: u64 = 4000;
/// A message that is not there after so long is lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Messages that were acknowledged.
    pub messages: u64,
    /// Completions that came while an earlier slot was open.
    pub overtaken: u64,
    /// Messages in an earlier slot than one that had ended before they began.
    pub violations: u64,
    /// Acknowledged messages that are in no slot.
    pub lost: u64,
    /// Messages that are in two slots.
    pub twice: u64,
}

impl Report {
    /// Whether such a NIC may be used.
    #[must_use]
    pub const fn is_good(&self) -> bool {
        self.messages > 0 && self.violations == 0 && self.lost == 0 && self.twice == 0
    }
}

/// When a message began and ended, and in which slot it is.
#[derive(Clone, Copy, Debug, Default)]
struct Life {
    begun: u64,
    ended: Option<u64>,
    slot: Option<u64>,
}

struct Sender {
    near: QueuePair,
    _far: QueuePair,
    buffers: SendBuffers,
    under_way: Option<u64>,
}

/// Tests the RDMA device with this name and address: so many QPs and messages. `memory`: a name of a file on tmpfs, which is made and removed.
///
/// # Errors
/// [`NicError`]: it could not be tested.
pub fn test(
    rdma: &str,
    address: IpAddr,
    memory: &Path,
    (qps, messages): (u32, u64),
) -> Result<Report, NicError> {
    let failed = |error: &dyn std::fmt::Display| NicError::said(&error.to_string());
    let made = pmnet_media::create(memory, Kind::Dram, SLOTS.image_bytes());
    let media = made.map_err(|error| failed(&error))?;
    let removed = std::fs::remove_file(memory);
    removed.map_err(|error| failed(&error))?;
    run(rdma, address, media, (qps, messages))
}

fn run(
    rdma: &str,
    address: IpAddr,
    mut media: AnyMedia,
    (qps, messages): (u32, u64),
) -> Result<Report, NicError> {
    let failed = |error: &dyn std::fmt::Display| NicError::said(&error.to_string());
    format(&mut media, IDENTITY, SLOTS).map_err(|error| failed(&error))?;
    let scan = SlotScan::open(media, None).map_err(|error| failed(&error))?;
    let mut queue = scan.begin().map_err(|error| failed(&error))?;
    let nic = Nic::open(rdma, address)?;
    let memory = queue.media_mut().memory();
    let parts = Parts::make(&nic, memory, SLOTS.slots, SLOTS.slot_bytes)?;
    let own = Completions::new(&nic, 2 * qps + 64)?;
    let mut senders = Vec::new();
    for number in 0..qps {
        let near = QueuePair::new(&nic, &own, None, 8, number)?;
        let far = QueuePair::new(&nic, &parts.completions, Some(&parts.receiver), 1, number)?;
        far.connect(&near.whereto(), nic.mtu())?;
        near.connect(&far.whereto(), nic.mtu())?;
        senders.push(Sender {
            near,
            _far: far,
            buffers: SendBuffers::new(&nic, 1, 4096)?,
            under_way: None,
        });
    }
    let mut lives: Vec<Life> = Vec::new();
    let mut report = Report::default();
    let mut random = Random::new(1);
    let (mut clock, mut polled, mut seen) = (0, Vec::new(), Instant::now());
    let mut order = VecDeque::new();
    loop {
        while let Some(posting) = queue.post() {
            parts.receiver.post(posting.number, &posting.place)?;
        }
        for sender in senders.iter_mut().filter(|it| it.under_way.is_none()) {
            let number = u64::try_from(lives.len()).expect("64 bits");
            if number == messages {
                break;
            }
            let length = 8 + random.next_u64() % (MESSAGE_MAX - 8);
            let mut bytes = vec![0; usize::try_from(length).expect("small")];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            clock += 1;
            lives.push(Life {
                begun: clock,
                ..Life::default()
            });
            sender.buffers.send(&sender.near, 0, &bytes)?;
            let byte = parts.memory.readable();
            sender.buffers.read_byte(&sender.near, byte, number)?;
            sender.under_way = Some(number);
        }
        own.poll(&mut polled)?;
        for Completion { id, outcome, .. } in polled.drain(..) {
            outcome.map_err(|error| failed(&format!("a message failed: error {error}")))?;
            clock += 1;
            seen = Instant::now();
            report.messages += 1;
            life(&mut lives, id)?.ended = Some(clock);
            let sender = senders.iter_mut().find(|it| it.under_way == Some(id));
            if let Some(sender) = sender {
                sender.under_way = None;
            }
        }
        parts.completions.poll(&mut polled)?;
        for Completion { id, outcome, qpn } in polled.drain(..) {
            let bytes =
                outcome.map_err(|error| failed(&format!("a slot failed: error {error}")))?;
            let complete = queue.complete(id, qpn, Outcome::Message(bytes));
            complete.map_err(|odd| failed(&odd))?;
            report.overtaken += u64::from(queue.blocked().is_some());
        }
        while let Some(pmnet_log::slots::Oldest::Message { number, bytes, .. }) = queue.oldest() {
            let id = bytes.first_chunk().map(|id| u64::from_le_bytes(*id));
            let life = life(&mut lives, id.unwrap_or(u64::MAX))?;
            report.twice += u64::from(life.slot.replace(number).is_some());
            order.push_back(id.unwrap_or(0));
            queue.advance();
        }
        let processed = queue.processed();
        queue
            .keep_start(processed)
            .map_err(|error| failed(&error))?;
        queue.keep_poll(true).map_err(|error| failed(&error))?;
        let all = u64::try_from(order.len()).expect("64 bits") >= messages;
        if report.messages == messages && (all || seen.elapsed() > PATIENCE) {
            break;
        }
        if seen.elapsed() > PATIENCE {
            return Err(NicError::said("messages were not acknowledged within 10 s"));
        }
    }
    report.lost = count(&lives, |life| life.ended.is_some() && life.slot.is_none());
    let mut latest = 0;
    for id in order {
        let Life { begun, ended, .. } = *life(&mut lives, id)?;
        report.violations += u64::from(ended.is_some_and(|ended| ended < latest));
        latest = latest.max(begun);
    }
    Ok(report)
}

fn life(lives: &mut [Life], id: u64) -> Result<&mut Life, NicError> {
    let at = usize::try_from(id).unwrap_or(usize::MAX);
    lives
        .get_mut(at)
        .ok_or_else(|| NicError::said("a slot has a message that nobody sent"))
}

fn count(lives: &[Life], is: impl Fn(&&Life) -> bool) -> u64 {
    u64::try_from(lives.iter().filter(is).count()).expect("64 bits")
}
