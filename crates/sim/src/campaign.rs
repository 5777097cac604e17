//! Many seeds on many threads. The run of a seed does not depend on other seeds or on the threads.

use crate::cells::{Cell, Hits};
use crate::report::Report;
use crate::without::Without;
use crate::{World, run};
use pmnet_proto::time::Nanos;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of threads of a campaign.
const JOBS_MAX: usize = 1024;
/// Maximum number of violations that a summary keeps; further violations are only counted.
const KEPT_MAX: usize = 1000;
const HOUR: f64 = 3600e9;

/// The settings that all worlds of a campaign share.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// The only cell of the failure matrix at which worlds aim; `None`: every seed draws its aim.
    pub only: Option<Cell>,
    /// The rule that is switched off, if any.
    pub without: Option<Without>,
    /// True: every world that can have a packet store has one. False: a quarter of these worlds has one.
    pub packet_store: bool,
    /// Whether the store sometimes reports that it is short of space.
    pub short_store: bool,
    /// Whether packets are sealed with keys.
    pub keyed: bool,
}

/// The results of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Number of seeds that were run.
    pub seeds: u64,
    /// Number of seeds with a violation.
    pub failing: u64,
    /// The first violation of each failing seed, in the order of the seeds (the first 1000).
    pub violations: Vec<(u64, String)>,
    /// Numbers of calls: made, acknowledged, failed, unknown.
    pub calls: [u64; 4],
    /// Number of simulated events.
    pub events: u64,
    /// Simulated time in nanoseconds.
    pub simulated: Nanos,
    /// Number of occurrences of each named event.
    pub happened: BTreeMap<&'static str, u64>,
    /// How often each cell of the failure matrix was hit.
    pub cells: Hits,
    /// One hash over the trace hashes of all seeds. It does not depend on the order in which the
    /// seeds ran.
    pub trace_hash: u64,
}

impl Summary {
    fn add(&mut self, report: Report) {
        self.seeds += 1;
        self.events += report.events;
        self.simulated += report.simulated;
        for (sum, calls) in self.calls.iter_mut().zip(report.calls) {
            *sum += calls;
        }
        self.trace_hash ^= report.trace_hash.wrapping_mul(report.seed | 1);
        for (sums, hits) in self.cells.iter_mut().zip(report.cells) {
            for (sum, hit) in sums.iter_mut().zip(hits) {
                *sum += hit;
            }
        }
        for (name, count) in report.happened {
            *self.happened.entry(name).or_default() += count;
        }
        if let Some(first) = report.violations.into_iter().next() {
            self.failing += 1;
            if self.violations.len() < KEPT_MAX {
                self.violations.push((report.seed, first));
            }
        }
    }

    /// Simulated time in hours.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a figure to be read")]
    pub fn hours(&self) -> f64 {
        self.simulated as f64 / HOUR
    }
}

/// Runs one seed. A panic becomes a violation in the report.
#[must_use]
pub fn run_caught(seed: u64, plan: &Plan) -> Report {
    catch_unwind(|| run(seed, plan)).unwrap_or_else(|panic| panicked(seed, panic.as_ref()))
}

fn panicked(seed: u64, panic: &(dyn std::any::Any + Send)) -> Report {
    let words = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without words");
    Report {
        seed,
        violations: vec![format!("panic: {words}")],
        ..Report::default()
    }
}

/// Runs the seeds `from .. from + count` on `jobs` threads. `progress` is called after every seed, by the thread that
/// ran it, and returns whether to continue.
pub fn campaign(
    plan: &Plan,
    from: u64,
    count: u64,
    jobs: usize,
    progress: impl Fn(&Summary) -> bool + Sync,
) -> Summary {
    let next = AtomicU64::new(0);
    let total = Mutex::new(Summary::default());
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return;
            }
            let report = run_caught(from.wrapping_add(at), plan);
            let mut total = total
                .lock()
                .expect("nothing in here panics with the lock held");
            total.add(report);
            if !progress(&total) {
                next.store(count, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, JOBS_MAX) {
            scope.spawn(work);
        }
    });
    let mut total = total
        .into_inner()
        .expect("nothing in here panics with the lock held");
    total.violations.sort();
    total
}

/// Runs the world of one seed and writes its trace, one line for each event; a panic ends the trace
/// and counts as a violation.
#[must_use]
pub fn run_with_trace(seed: u64, plan: &Plan) -> (Report, Vec<String>) {
    let mut story = Vec::new();
    let report = catch_unwind(AssertUnwindSafe(|| {
        World::new(seed, plan, true).run_into(&mut story)
    }))
    .unwrap_or_else(|panic| panicked(seed, panic.as_ref()));
    (report, story)
}
