//! One run: one thread, some sessions, a closed loop that never sleeps.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use mio::unix::SourceFd;

use super::plan::cores;
use super::session::Session;
use super::system::{Answers, Recipe};
use super::troubles::Troubles;

/// How often resends and the end are looked for.
const LOOK: Duration = Duration::from_millis(1);
/// Longest round trip that is told apart, in nanoseconds; an update is given up before.
const NANOS_MAX: u64 = 60_000_000_000;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Who answers, and where.
    pub recipe: Recipe,
    /// Bytes of an update.
    pub payload_bytes: usize,
    /// Sessions.
    pub clients: usize,
    /// Time before the measurement.
    pub warmup: Duration,
    /// Measured time.
    pub duration: Duration,
}

/// What came of it.
pub struct Sample {
    /// Round trips in nanoseconds, of updates that began in the measured time.
    pub histogram: Histogram<u64>,
    /// The measured time, in seconds.
    pub seconds: f64,
    /// Whatever did not go smoothly, warm-up included.
    pub troubles: Troubles,
    /// Fewest devices that held an update.
    pub copies: u8,
}

/// Runs it in the calling thread's network namespace.
pub fn run(run: &Run, stop: &AtomicBool) -> anyhow::Result<Sample> {
    let mut sessions = (0..run.clients)
        .map(|number| {
            let recipe = &run.recipe;
            Session::open(recipe.target, recipe.answers, run.payload_bytes, number)
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut turn = Turn::new(run, stop)?;
    if let [session] = &mut sessions[..] {
        turn.one(session)?;
    } else {
        turn.many(&mut sessions)?;
    }
    if run.recipe.answers == Answers::Device {
        // The server's share of the work must not disturb the next run.
        if let Some(session) = sessions.first_mut() {
            session.settle()?;
        }
    }
    let mut troubles = Troubles::default();
    let mut copies = u8::MAX;
    for session in &mut sessions {
        session.end()?;
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
    stop: &'a AtomicBool,
}

impl<'a> Turn<'a> {
    fn new(run: &Run, stop: &'a AtomicBool) -> anyhow::Result<Turn<'a>> {
        let now = Instant::now();
        let histogram = Histogram::new_with_bounds(1, NANOS_MAX, 3);
        Ok(Turn {
            histogram: histogram.context("no histogram")?,
            measure: now + run.warmup,
            until: now + run.warmup + run.duration,
            look: now,
            yields: cores() < 2,
            stop,
        })
    }

    /// An update is complete: the next one, if there is time.
    fn complete(
        &mut self,
        session: &mut Session,
        (begun, now): (Instant, Instant),
    ) -> anyhow::Result<()> {
        if begun >= self.measure && now < self.until {
            let nanos = u64::try_from(now.saturating_duration_since(begun).as_nanos());
            self.histogram.saturating_record(nanos.unwrap_or(u64::MAX));
        }
        if now < self.until {
            session.begin()?;
        }
        Ok(())
    }

    /// Whether it is time to look for resends and the end.
    fn due(&mut self) -> anyhow::Result<Option<Instant>> {
        let now = Instant::now();
        if now < self.look {
            return Ok(None);
        }
        ensure!(!self.stop.load(Ordering::Relaxed), "interrupted");
        self.look = now + LOOK;
        Ok(Some(now))
    }

    /// Sends again what is late, unless its answer waits: then it was this thread that was late.
    fn look(&mut self, session: &mut Session, now: Instant) -> anyhow::Result<()> {
        if let Some(times) = session.receive()? {
            self.complete(session, times)?;
        }
        session.look(now)
    }

    fn idle(&self) {
        if self.yields {
            std::thread::yield_now();
        }
    }

    /// One client: nothing but send and receive is between two updates.
    fn one(&mut self, session: &mut Session) -> anyhow::Result<()> {
        session.begin()?;
        while session.busy() {
            if let Some(times) = session.receive()? {
                self.complete(session, times)?;
            } else {
                self.idle();
            }
            if let Some(now) = self.due()? {
                self.look(session, now)?;
            }
        }
        Ok(())
    }

    fn many(&mut self, sessions: &mut [Session]) -> anyhow::Result<()> {
        let mut poll = mio::Poll::new()?;
        let mut events = mio::Events::with_capacity(sessions.len());
        for (index, session) in sessions.iter_mut().enumerate() {
            poll.registry().register(
                &mut SourceFd(&session.socket().as_raw_fd()),
                mio::Token(index),
                mio::Interest::READABLE,
            )?;
            session.begin()?;
        }
        while sessions.iter().any(Session::busy) {
            match poll.poll(&mut events, Some(Duration::ZERO)) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            for event in &events {
                let session = &mut sessions[event.token().0];
                // An event says once that something is there. What comes behind a complete
                // update is old, and is taken in with the next event.
                if let Some(times) = session.receive()? {
                    self.complete(session, times)?;
                }
            }
            if events.is_empty() {
                self.idle();
            }
            if let Some(now) = self.due()? {
                for session in &mut *sessions {
                    self.look(session, now)?;
                }
            }
        }
        Ok(())
    }
}
