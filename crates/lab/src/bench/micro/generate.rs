//! One run: a thread that never sleeps drives several sessions in a closed loop.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use pmnet_wire::FrontKey;

use super::bypass::Bypass;
use super::carrier::{Arrived, Buffer, Carrier, ClientIo};
use super::plan::cores;
use super::programs::{self, InC};
use super::session::Session;
use super::sockets::Sockets;
use super::system::{Answers, Recipe};
use super::troubles::Troubles;
use crate::testbed::END_INTERFACE;

/// Interval at which the thread checks for overdue updates and for the end of the run.
pub const LOOK: Duration = Duration::from_millis(1);
/// Maximum number of datagrams that the thread receives before it sends overdue updates again.
const BURST_MAX: usize = 64;
/// Longest round trip that the histogram can hold, in nanoseconds. The run ends with an error if an update takes
/// longer.
pub const NANOS_MAX: u64 = 60_000_000_000;

/// Settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The system under test, with the address of the process that answers.
    pub recipe: Recipe,
    /// The clients' key, if the shard has keys.
    pub key: Option<FrontKey>,
    /// The file with the clients' key.
    pub key_file: Option<&'a Path>,
    /// The compiled C client, if clients in C are measured.
    pub in_c: Option<&'a InC>,
    /// How the clients send and receive.
    pub client_io: ClientIo,
    /// Length of an update, in bytes.
    pub payload_bytes: usize,
    /// Number of sessions.
    pub clients: usize,
    /// Duration of the warm-up.
    pub warmup: Duration,
    /// Duration of the measurement.
    pub duration: Duration,
}

/// The result of a run.
pub struct Sample {
    /// Round trips, in nanoseconds, of updates that began in the measured time.
    pub histogram: Histogram<u64>,
    /// The measured time, in seconds.
    pub seconds: f64,
    /// Numbers of resends and other irregularities, including those of the warm-up.
    pub troubles: Troubles,
    /// Smallest number of devices that held an acknowledged update.
    pub copies: u8,
}

/// Runs the load in the calling thread's network namespace.
pub fn run(run: &Run<'_>, stop: &AtomicBool) -> anyhow::Result<Sample> {
    let target = run.recipe.target;
    match run.client_io {
        ClientIo::Socket => by(run, Sockets::open(target, run.clients)?, stop),
        ClientIo::Session => programs::in_rust(run, stop),
        ClientIo::Libpmnet => {
            let in_c = run.in_c.context("the clients in C were not compiled")?;
            in_c.run(run, stop)
        }
        ClientIo::AfXdp => {
            let bypass = Bypass::open(END_INTERFACE, target, run.clients);
            by(
                run,
                bypass.context(
                    "clients cannot use AF_XDP (--client-io socket measures without it)",
                )?,
                stop,
            )
        }
    }
}

fn by<C: Carrier>(run: &Run<'_>, mut carrier: C, stop: &AtomicBool) -> anyhow::Result<Sample> {
    let recipe = &run.recipe;
    let mut sessions = (0..run.clients)
        .map(|client| {
            Session::open(
                &mut carrier,
                recipe.answers,
                run.key,
                run.payload_bytes,
                client,
            )
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut turn = Turn::new(run, stop)?;
    turn.go(&mut carrier, &mut sessions)?;
    if recipe.answers == Answers::Device {
        // Waits until the server has applied the updates of this run, so that this work does not disturb the next run.
        if let Some(session) = sessions.first_mut() {
            session.settle(&mut carrier)?;
        }
    }
    let mut troubles = Troubles::default();
    let mut copies = u8::MAX;
    for session in &mut sessions {
        session.end(&mut carrier)?;
        troubles.add(&session.troubles);
        copies = copies.min(session.copies());
    }
    Ok(Sample {
        histogram: turn.histogram,
        seconds: run.duration.as_secs_f64(),
        troubles,
        copies,
    })
}

struct Turn<'a> {
    histogram: Histogram<u64>,
    measure: Instant,
    until: Instant,
    look: Instant,
    yields: bool,
    /// Number of sessions with an update in flight.
    busy: usize,
    stop: &'a AtomicBool,
}

impl<'a> Turn<'a> {
    fn new(run: &Run<'_>, stop: &'a AtomicBool) -> anyhow::Result<Turn<'a>> {
        let now = Instant::now();
        let histogram = Histogram::new_with_bounds(1, NANOS_MAX, 3);
        Ok(Turn {
            histogram: histogram.context("no histogram")?,
            measure: now + run.warmup,
            until: now + run.warmup + run.duration,
            look: now,
            yields: cores() < 2,
            busy: 0,
            stop,
        })
    }

    /// Receives a datagram, if one has arrived. If the datagram completes an update and time is left, begins the next
    /// update.
    fn step<C: Carrier>(
        &mut self,
        carrier: &mut C,
        sessions: &mut [Session],
        buffer: &mut Buffer,
    ) -> anyhow::Result<bool> {
        let Some(Arrived { client, length, at }) = carrier.receive(buffer)? else {
            return Ok(false);
        };
        let session = &mut sessions[client];
        let Some(begun) = session.receive(&buffer[..length])? else {
            carrier.unfinished(client);
            return Ok(true);
        };
        if begun >= self.measure && at < self.until {
            let nanos = u64::try_from(at.saturating_duration_since(begun).as_nanos());
            self.histogram.saturating_record(nanos.unwrap_or(u64::MAX));
        }
        if at < self.until {
            session.begin(carrier)?;
        } else {
            self.busy -= 1;
        }
        Ok(true)
    }

    /// Returns the present time if the thread must now check for overdue updates and for the end of the run.
    fn due(&mut self) -> anyhow::Result<Option<Instant>> {
        let now = Instant::now();
        if now < self.look {
            return Ok(None);
        }
        ensure!(!self.stop.load(Ordering::Relaxed), "interrupted");
        self.look = now + LOOK;
        Ok(Some(now))
    }

    fn go<C: Carrier>(&mut self, carrier: &mut C, sessions: &mut [Session]) -> anyhow::Result<()> {
        let mut buffer: Buffer = [0; _];
        for session in &mut *sessions {
            session.begin(carrier)?;
            self.busy += 1;
        }
        while self.busy > 0 {
            if !self.step(carrier, sessions, &mut buffer)? && self.yields {
                std::thread::yield_now();
            }
            if let Some(now) = self.due()? {
                // First, waiting datagrams are received: if an answer has already arrived, only this thread was late.
                // Then overdue updates are sent again.
                for _ in 0..BURST_MAX {
                    if !self.step(carrier, sessions, &mut buffer)? {
                        break;
                    }
                }
                for session in &mut *sessions {
                    session.look(carrier, now)?;
                }
            }
        }
        Ok(())
    }
}
