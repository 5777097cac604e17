//! The part that all drivers of the load generator share: the operations, their times, and the
//! results.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::generator::{Generator, Issued, Lane};
use super::history::{Outcome, Record};
use super::options::{Hooks, Options, PATIENCE, Progress};
use super::summary::{Recorder, Summary, float};
use crate::clock::{nanos, now_ns};
use crate::resp::Reply;

/// Interval at which deadlines, reconnects and progress are checked.
const TICK_NS: u64 = 50_000_000;
/// Number of ticks between two progress reports.
const TICKS_PER_REPORT: u64 = 2;

/// An operation without a known outcome.
#[derive(Debug)]
pub struct Pending {
    pub issued: Issued,
    /// Time at which the operation was sent. In open loop: the time at which the operation was due.
    pub invoke_ns: u64,
    /// Time at which the operation is given up.
    pub deadline_ns: u64,
    /// Number of replicas for which the `WAIT` after the command waits; 0: no `WAIT`.
    pub replicas: u8,
    /// The reply to the command, while the reply to the `WAIT` is missing.
    pub first: Option<Reply>,
    /// The operation counts for the percentiles.
    measured: bool,
}

/// The state of one run of the load generator.
pub struct Run<'a, 'h> {
    pub options: &'a Options,
    pub recorder: Recorder,
    pub start_ns: u64,
    hooks: Hooks<'h>,
    generator: Generator,
    next_client: u64,
    issued: u64,
    /// Open loop: the time at which the next operation is due.
    due_ns: u64,
    interval_ns: f64,
    measure_ns: u64,
    end_ns: u64,
    /// The time at which the run ends even if too few operations were acknowledged.
    end_max_ns: u64,
    stopped_ns: u64,
    tick_ns: u64,
    ticks: u64,
    last_report: (u64, u64),
}

impl<'a, 'h> Run<'a, 'h> {
    /// Creates a run, and starts its clock.
    pub fn new(options: &'a Options, hooks: Hooks<'h>) -> Run<'a, 'h> {
        let start_ns = now_ns();
        let measure_ns = start_ns + nanos(options.warmup);
        Run {
            options,
            recorder: Recorder::new(),
            start_ns,
            generator: Generator::new(
                options.workload.clone(),
                options.seed,
                options.clients,
                hooks.record.is_some(),
            ),
            hooks,
            next_client: 0,
            issued: 0,
            due_ns: start_ns,
            interval_ns: options.rate.map_or(0.0, |rate| 1e9 / rate),
            measure_ns,
            end_ns: measure_ns.saturating_add(nanos(options.duration)),
            end_max_ns: measure_ns.saturating_add(nanos(options.duration.saturating_mul(PATIENCE))),
            stopped_ns: 0,
            tick_ns: 0,
            ticks: 0,
            last_report: (start_ns, 0),
        }
    }

    /// Returns the number of a new logical client.
    pub fn new_client(&mut self) -> u64 {
        let client = self.next_client;
        self.next_client += 1;
        client
    }

    /// Returns whether further operations may be issued.
    pub fn goes_on(&mut self, now: u64, stop: &AtomicBool) -> bool {
        let enough = self.recorder.acknowledged >= self.options.acknowledged_min;
        let over = now >= self.end_ns && (enough || now >= self.end_max_ns)
            || stop.load(Ordering::Relaxed)
            || self
                .options
                .operations
                .is_some_and(|limit| self.issued >= limit);
        if over && self.stopped_ns == 0 {
            self.stopped_ns = now;
        }
        self.stopped_ns == 0
    }

    /// Returns whether the run is over, so that no further operation may be issued.
    pub fn is_over(&self) -> bool {
        self.stopped_ns > 0
    }

    /// Returns whether deadlines must be checked now. Also reports the progress.
    pub fn tick(&mut self, now: u64) -> bool {
        if now < self.tick_ns {
            return false;
        }
        self.tick_ns = now + TICK_NS;
        self.ticks += 1;
        if self.ticks.is_multiple_of(TICKS_PER_REPORT) {
            self.report(now);
        }
        true
    }

    /// Returns the time of the next tick.
    pub fn next_tick_ns(&self) -> u64 {
        self.tick_ns
    }

    /// Returns the time at which the next operation is due, in open loop.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Issues the next operation of a client: appends its command to `out`. `invoke_ns` is the
    /// present time, or in open loop the time at which the operation was due.
    pub fn issue(
        &mut self,
        client: u64,
        lane: &mut Lane,
        invoke_ns: u64,
        out: &mut Vec<u8>,
    ) -> Pending {
        let issued = self.generator.issue(client, lane, out);
        self.issued += 1;
        self.due_ns = self.start_ns + round(float(self.issued) * self.interval_ns);
        Pending {
            issued,
            invoke_ns,
            deadline_ns: now_ns().saturating_add(nanos(self.options.deadline)),
            replicas: 0,
            first: None,
            measured: invoke_ns >= self.measure_ns,
        }
    }

    /// Records the outcome of an operation.
    pub fn ended(
        &mut self,
        client: u64,
        pending: Pending,
        outcome: Outcome,
        reply: Option<String>,
    ) -> anyhow::Result<()> {
        let now = now_ns();
        let latency = now.saturating_sub(pending.invoke_ns);
        self.recorder.count(
            pending.issued.op,
            outcome,
            pending.measured.then_some(latency),
        );
        if let (Some(hook), Some((key, value))) = (&mut self.hooks.record, pending.issued.label) {
            hook(&Record {
                client,
                op: pending.issued.op,
                key,
                value,
                reply,
                invoke_ns: pending.invoke_ns,
                return_ns: now,
                outcome,
            })?;
        }
        Ok(())
    }

    fn report(&mut self, now: u64) {
        let Some(hook) = &mut self.hooks.progress else {
            return;
        };
        let (then, before) = self.last_report;
        let seconds = float(now.saturating_sub(then)) / 1e9;
        let whole = float(self.end_ns.saturating_sub(self.start_ns).max(1));
        hook(&Progress {
            fraction: (float(now - self.start_ns) / whole).min(1.0),
            acknowledged: self.recorder.acknowledged,
            failed: self.recorder.failed,
            unknown: self.recorder.unknown,
            rate: float(self.recorder.acknowledged - before) / seconds.max(1e-9),
        });
        self.last_report = (now, self.recorder.acknowledged);
    }

    /// Returns the results of the run.
    pub fn finish(self) -> Summary {
        let open = self.options.rate.is_some();
        let measured = self.stopped_ns.saturating_sub(self.measure_ns);
        let backlog = if open && self.stopped_ns > self.due_ns {
            round(float(self.stopped_ns - self.due_ns) / self.interval_ns)
        } else {
            0
        };
        self.recorder
            .summary(Duration::from_nanos(measured), open, backlog)
    }
}

/// Rounds a non-negative float to an integer. `Duration` does the conversion without a cast.
fn round(value: f64) -> u64 {
    Duration::try_from_secs_f64(value.max(0.0) / 1e9).map_or(u64::MAX, nanos)
}
