//! The client of the benchmark: one thread with one AF_XDP socket for each queue. The loop of the client is closed: the
//! number of requests in flight on each queue is fixed.

use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use pmnet_dataplane::af_xdp::{Anonymous, Config, Received, Redirect, Socket, Wake};

use super::plan::Store;
use super::request;
use crate::bench::micro::bypass::resolve;
use crate::bench::micro::frame::{self, HEADERS, Path};
use crate::testbed::END_INTERFACE;

/// Range from which a run draws the client's port. Each run uses another port, so that late answers find no socket.
const PORTS: std::ops::Range<u16> = 20_000..40_000;
const FRAME_BYTES: u32 = 2048;
/// Minimum size of a ring. Few requests need few frames, which then stay in the CPU's caches.
const RING_MIN: usize = 16;
/// Position of the UDP checksum in a frame. The checksum stays 0, because computing it would be most of this thread's
/// work.
const CHECKSUM: std::ops::Range<usize> = HEADERS - 2..HEADERS;
/// Time after which a request without an answer is sent again.
const RESEND: Duration = Duration::from_millis(50);
/// Time without any answer after which the measurement ends with an error.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval at which the client checks for overdue requests and for the end of the run.
const LOOK: Duration = Duration::from_millis(1);
/// Maximum number of attempts to wake the kernel while its queue is full.
const WAKES_MAX: usize = 100;
/// Longest round trip that the histogram can hold, in nanoseconds.
const NANOS_MAX: u64 = 60_000_000_000;

/// Settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The server's address.
    pub target: SocketAddrV4,
    /// The server's work for a request.
    pub store: Store,
    /// Number of queues.
    pub queues: usize,
    /// Number of requests in flight on each queue.
    pub in_flight: usize,
    /// Size of a request in bytes.
    pub payload_bytes: usize,
    /// Duration of the warm-up.
    pub warmup: Duration,
    /// Duration of the measurement.
    pub duration: Duration,
    /// The machine has only one core, so an idle thread must yield it.
    pub yields: bool,
}

/// The result of a run.
pub struct Sample {
    /// Round trips, in nanoseconds, of requests that began and were answered in the measured time.
    pub histogram: Histogram<u64>,
    /// Number of requests that were sent again.
    pub resends: u64,
    /// The highest order that an answer has stated.
    pub last: u64,
}

/// A request in flight.
#[derive(Clone, Copy)]
struct Slot {
    number: u64,
    begun: Instant,
    sent: Instant,
    busy: bool,
}

/// One queue with its socket and requests.
struct Lane {
    socket: Socket<Anonymous>,
    path: Path,
    /// The headers of a frame, without a UDP checksum.
    headers: [u8; HEADERS],
    /// Number of frames that are reserved for sending.
    kept: usize,
    slots: Vec<Slot>,
    burst: Vec<Received>,
    unsent: bool,
}

impl Lane {
    fn open(run: &Run, queue: usize, path: Path, redirect: &mut Redirect) -> anyhow::Result<Lane> {
        let kept = (2 * run.in_flight).max(RING_MIN).next_power_of_two();
        let ring = u32::try_from(kept)?;
        let number = u32::try_from(queue)?;
        let memory = Anonymous::new(usize::try_from(FRAME_BYTES)? * kept * 2)?;
        let mut socket = Socket::bind(
            memory,
            &Config {
                frame_bytes: FRAME_BYTES,
                receive_ring: ring,
                send_ring: ring,
                ..Config::new(END_INTERFACE, number)
            },
        )?;
        socket.refill(ring, kept)?;
        redirect.serve(number, &socket)?;
        let mut example = vec![0; HEADERS + run.payload_bytes];
        let datagram = vec![0; run.payload_bytes];
        path.write(&datagram, &mut example)?;
        example[CHECKSUM].fill(0);
        let now = Instant::now();
        let slot = Slot {
            number: 0,
            begun: now,
            sent: now,
            busy: false,
        };
        Ok(Lane {
            socket,
            path,
            headers: *example.first_chunk().context("a frame has headers")?,
            kept,
            slots: vec![slot; run.in_flight],
            burst: Vec::with_capacity(RING_MIN),
            unsent: false,
        })
    }

    /// Puts the request of a slot into the send queue.
    fn send(&mut self, slot: usize, payload_bytes: usize, now: Instant) -> anyhow::Result<()> {
        if self.socket.reserve(1)? == 0 {
            // The ring is full of requests that were sent again. A later turn sends this request.
            return Ok(());
        }
        let Some(frame) = self.socket.take() else {
            return Ok(());
        };
        let bytes = self.socket.bytes_mut(&frame);
        bytes[..HEADERS].copy_from_slice(&self.headers);
        let end = HEADERS + payload_bytes;
        let one = &mut self.slots[slot];
        request::write(&mut bytes[HEADERS..end], one.number);
        one.sent = now;
        self.socket.queue(frame, end);
        self.unsent = true;
        Ok(())
    }

    fn begin(&mut self, slot: usize, number: u64, run: &Run, now: Instant) -> anyhow::Result<()> {
        self.slots[slot] = Slot {
            number,
            begun: now,
            sent: now,
            busy: true,
        };
        self.send(slot, run.payload_bytes, now)
    }

    /// Sends the queued frames.
    fn flush(&mut self) -> anyhow::Result<()> {
        if self.unsent {
            self.unsent = false;
            self.socket.submit();
            let mut wakes = 0;
            while self.socket.wake()? == Wake::Again && wakes < WAKES_MAX {
                wakes += 1;
            }
        }
        self.socket.complete()?;
        Ok(())
    }
}

struct Client<'a> {
    run: &'a Run,
    sample: Sample,
    measure: Instant,
    until: Instant,
    /// The number of the next request.
    next: u64,
    busy: usize,
}

/// Runs the load in the calling thread's network namespace.
pub fn run(run: &Run, stop: &AtomicBool) -> anyhow::Result<Sample> {
    let (own, own_mac, far_mac) = resolve(run.target)?;
    let first = fastrand::u16(PORTS);
    let last = first + u16::try_from(run.queues - 1)?;
    let mut redirect = Redirect::attach(END_INTERFACE, first..=last)?;
    let mut lanes = (first..=last)
        .enumerate()
        .map(|(queue, port)| {
            let path = Path {
                own_mac,
                far_mac,
                own: SocketAddrV4::new(own, port),
                far: run.target,
            };
            Lane::open(run, queue, path, &mut redirect)
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let now = Instant::now();
    let mut client = Client {
        run,
        sample: Sample {
            histogram: Histogram::new_with_bounds(1, NANOS_MAX, 3).context("no histogram")?,
            resends: 0,
            last: 0,
        },
        measure: now + run.warmup,
        until: now + run.warmup + run.duration,
        // The random start makes the requests of different runs differ.
        next: fastrand::u64(..1 << 48) << 8,
        busy: 0,
    };
    client.go(&mut lanes, stop)?;
    Ok(client.sample)
}

impl Client<'_> {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn go(&mut self, lanes: &mut [Lane], stop: &AtomicBool) -> anyhow::Result<()> {
        for lane in &mut *lanes {
            for slot in 0..lane.slots.len() {
                let number = self.number();
                lane.begin(slot, number, self.run, Instant::now())?;
                self.busy += 1;
            }
            lane.flush()?;
        }
        let mut heard = Instant::now();
        let mut look = heard;
        while self.busy > 0 {
            let now = Instant::now();
            let mut any = false;
            for lane in &mut *lanes {
                any |= self.take(lane)?;
                lane.flush()?;
            }
            if any {
                heard = now;
            } else if self.run.yields {
                std::thread::yield_now();
            }
            if now >= look {
                ensure!(!stop.load(Ordering::Relaxed), "interrupted");
                ensure!(
                    now.duration_since(heard) < PATIENCE,
                    "no answer within {} s",
                    PATIENCE.as_secs()
                );
                look = now + LOOK;
                for lane in &mut *lanes {
                    self.look(lane, now)?;
                }
            }
        }
        Ok(())
    }

    /// Handles the answers on one queue, and sends the next requests. Returns whether an answer was received.
    fn take(&mut self, lane: &mut Lane) -> anyhow::Result<bool> {
        let mut burst = std::mem::take(&mut lane.burst);
        lane.socket.receive(&mut burst)?;
        let (any, now) = (!burst.is_empty(), Instant::now());
        for received in burst.drain(..) {
            let bytes = &lane.socket.bytes(&received.frame)[received.bytes.clone()];
            let parsed = frame::parse(bytes).context("an answer is damaged")?;
            ensure!(
                parsed.from == lane.path.far && parsed.to == lane.path.own,
                "an answer from {} to {}",
                parsed.from,
                parsed.to
            );
            let answer = request::read_answer(parsed.datagram);
            let (number, order) = answer.context("an answer that is none")?;
            lane.socket.give_back(received.frame);
            // A request that was sent twice is answered twice. When the second answer arrives, the request is no longer
            // in flight.
            let mut slots = lane.slots.iter();
            let slot = slots.position(|slot| slot.busy && slot.number == number);
            self.sample.last = self.sample.last.max(order);
            ensure!(
                (order == 0) == (self.run.store == Store::Nothing),
                "order {order} from a server that stores {}",
                self.run.store.name()
            );
            let Some(slot) = slot else {
                continue;
            };
            let begun = lane.slots[slot].begun;
            if begun >= self.measure && now < self.until {
                let nanos = u64::try_from(now.saturating_duration_since(begun).as_nanos());
                let nanos = nanos.unwrap_or(u64::MAX);
                self.sample.histogram.saturating_record(nanos);
            }
            if now < self.until {
                let number = self.number();
                // Each request gets a start time of its own, because the requests of a burst do not start at
                // one moment.
                lane.begin(slot, number, self.run, Instant::now())?;
            } else {
                lane.slots[slot].busy = false;
                self.busy -= 1;
            }
        }
        lane.burst = burst;
        lane.socket.refill(u32::MAX, lane.kept)?;
        Ok(any)
    }

    fn look(&mut self, lane: &mut Lane, now: Instant) -> anyhow::Result<()> {
        for slot in 0..lane.slots.len() {
            let one = lane.slots[slot];
            if one.busy && now.saturating_duration_since(one.sent) >= RESEND {
                self.sample.resends += 1;
                lane.send(slot, self.run.payload_bytes, now)?;
            }
        }
        Ok(())
    }
}
