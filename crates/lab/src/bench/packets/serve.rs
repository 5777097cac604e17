//! The server under test. AF_XDP sockets receive into packet buffers, and the server handles each
//! request in one of three ways.
//!
//! The server must not answer a request before the request is as durable as the medium makes it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use pmnet_log::{Identity, Log, NewEntry, Parameters, Scan};
use pmnet_media::AnyMedia;
use pmnet_packets::{Options, Region};

use super::plan::{Place, Store};
use super::request;

/// Bytes of frame space that each entry of the log for copies gets.
const BYTES_PER_ENTRY: u64 = 2_048;
/// Maximum number of stored requests that are checked after a run.
const CHECKED_MAX: usize = 1_000;

/// Longest time for one request that the histogram can hold, in nanoseconds.
const NANOS_MAX: u64 = 60_000_000_000;

/// A server of the benchmark. One server serves several runs, one after the other.
pub struct Server {
    store: Store,
    region: Region,
    /// The log for copies; `None` if the server does not copy.
    log: Option<Log<AnyMedia>>,
    /// Number of stored requests that the log keeps.
    kept: u64,
}

/// The result of a server's run.
#[derive(Clone, Debug)]
pub struct Served {
    /// Number of requests that the server handled.
    pub requests: u64,
    /// Number of loop turns in which the server received requests.
    pub turns: u64,
    /// Server time for one request in nanoseconds. For each loop turn, the mean time counts once
    /// for each request of the turn. If the thread lost its core to another program during a turn,
    /// this turn is an outlier.
    pub nanos: Histogram<u64>,
    /// The last order that the server assigned.
    pub last: u64,
}

impl Server {
    /// Opens the region and the log in the calling thread's network namespace.
    pub fn open(
        store: Store,
        place: Place,
        folder: &Path,
        options: Options,
        kept: Option<u64>,
    ) -> anyhow::Result<Server> {
        let log_bytes = options.bytes;
        let region = Region::open(&options)?;
        let log = (store == Store::Copied)
            .then(|| make_log(place, &folder.join("copied.log"), log_bytes))
            .transpose()?;
        let buffers = log_bytes / if place == Place::File { 4_096 } else { 2_048 };
        let most = buffers * 3 / 4;
        Ok(Server {
            store,
            region,
            log,
            kept: kept.map_or(most, |kept| kept.min(most)),
        })
    }

    /// Returns what the server does with a request.
    pub const fn store(&self) -> Store {
        self.store
    }

    /// Serves until `done` is set. While no request arrives, the thread spins, or yields its core
    /// if `yields` is set.
    pub fn serve(&mut self, yields: bool, done: &AtomicBool) -> anyhow::Result<Served> {
        let mut served = Served {
            requests: 0,
            turns: 0,
            nanos: Histogram::new_with_bounds(1, NANOS_MAX, 3).context("no histogram")?,
            last: 0,
        };
        let (mut burst, mut answers) = (Vec::new(), Vec::new());
        loop {
            let begun = Instant::now();
            if self.region.receive(Duration::ZERO, &mut burst)? == 0 {
                if done.load(Ordering::Relaxed) {
                    return Ok(served);
                }
                if yields {
                    std::thread::yield_now();
                }
                continue;
            }
            for packet in burst.drain(..) {
                let to = packet.from();
                let bytes = self.region.bytes(&packet);
                let number = request::number(bytes).context("a request without a number")?;
                let order = match (self.store, &mut self.log) {
                    (Store::Buffers, _) => {
                        let kept = self.region.keep(packet, number);
                        kept.map_err(|(full, _)| anyhow::anyhow!("the region is full: {full:?}"))?
                    }
                    (Store::Copied, Some(log)) => {
                        let order = append(log, number, bytes)?;
                        self.region.release(packet);
                        order
                    }
                    _ => {
                        self.region.release(packet);
                        0
                    }
                };
                served.last = order;
                answers.push((to, request::answer(number, order)));
            }
            self.persist()?;
            let requests = u64::try_from(answers.len())?;
            for (to, answer) in answers.drain(..) {
                ensure!(self.region.send(to, &answer)?, "no way back to {to}");
            }
            self.region.flush()?;
            served.turns += 1;
            served.requests += requests;
            let each = u64::try_from(begun.elapsed().as_nanos())? / requests.max(1);
            served.nanos.saturating_record_n(each, requests);
        }
    }

    /// Makes all stored requests durable. Drops the oldest ones that the log need not keep.
    fn persist(&mut self) -> anyhow::Result<()> {
        match (self.store, &mut self.log) {
            (Store::Buffers, _) => {
                let durable = self.region.persist()?;
                self.region.forget(durable.saturating_sub(self.kept));
            }
            (Store::Copied, Some(log)) => {
                log.persist_start()?;
                log.persist_poll(true)?;
                log.reclaim(log.durable().saturating_sub(self.kept));
            }
            _ => {}
        }
        Ok(())
    }

    /// After a run, checks that the newest requests up to `last` are stored as they were sent.
    pub fn check(&self, payload_bytes: usize, last: u64) -> anyhow::Result<()> {
        let good = |order: u64, tag: u64, bytes: &[u8]| {
            let read = request::read(bytes, payload_bytes);
            ensure!(read == Some(tag), "request {order} is not as it was sent");
            Ok(())
        };
        let first = last.saturating_sub(u64::try_from(CHECKED_MAX)?) + 1;
        match (self.store, &self.log) {
            (Store::Buffers, _) => {
                let mut newest = 0;
                let newer = self.region.kept().filter(|one| one.order >= first);
                for one in newer {
                    // A request of another size belongs to an earlier run.
                    if one.bytes.len() == payload_bytes {
                        good(one.order, one.tag, one.bytes)?;
                    }
                    newest = one.order;
                }
                ensure!(newest == last, "{newest} is stored last, and not {last}");
            }
            (Store::Copied, Some(log)) => {
                for order in first.max(log.applied() + 1)..=last {
                    let entry = log.entry(order).context("an order is not there")?;
                    let frame = log.frame(order).context("a frame is not there")?;
                    if frame.len() == payload_bytes {
                        good(order, entry.session, frame)?;
                    }
                }
                ensure!(log.durable() == last, "not all is durable");
            }
            _ => {}
        }
        Ok(())
    }
}

/// Copies a request into a log, in the layout in which [`Region::keep`] keeps a request in place:
/// the first byte takes the place of the header.
fn append(log: &mut Log<AnyMedia>, number: u64, bytes: &[u8]) -> anyhow::Result<u64> {
    let (first, rest) = bytes.split_first().context("an empty request")?;
    let new = NewEntry {
        session: number,
        seq: 0,
        kind: 0,
        fragment_index: 0,
        fragment_count: 1,
    };
    let order = log.append(&new, &[*first], rest, crc32c::crc32c(rest));
    order.map_err(|full| anyhow::anyhow!("the log is full: {full:?}"))
}

/// Makes an empty log whose frame space is a ring.
fn make_log(place: Place, path: &Path, frame_bytes: u64) -> anyhow::Result<Log<AnyMedia>> {
    let frame_bytes = frame_bytes.next_power_of_two();
    let entries = (frame_bytes / BYTES_PER_ENTRY).max(pmnet_log::ENTRIES_MIN);
    let parameters = Parameters::ring(entries, frame_bytes);
    let mut media = pmnet_media::create(path, place.kind(), parameters.image_bytes())?;
    if let (true, AnyMedia::Dram(memory)) = (place.flushes(), &mut media) {
        memory.rehearse_flushes(path)?;
    }
    let identity = Identity {
        log_uuid: fastrand::u128(1..),
        device: 0,
        shard: 0,
    };
    pmnet_log::format(&mut media, &identity, &parameters)?;
    let scan = Scan::open(media, None)?;
    let decision = scan.decide();
    Ok(scan.repair(decision)?)
}
