//! Runs whose histories are checked. Every process has a machine of its own, clients contend for few keys, processes
//! are killed, and networks fail. Then everything is repaired, every key is read once more, and the whole history must
//! be linearizable (`docs/spec/protocol.md` §10).
//!
//! Purpose: make the simulator's check with real processes. Invariants: a run ends within its bounds and leaves nothing
//! behind; a run that could not be decided, or did almost nothing, does not count as passed. A seed repeats the plan of
//! a run, but not its exact course, because the timing of real processes differs.

mod clients;
mod plan;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use pmnet_history::{Limits, Outcome, Record, Report};

pub use clients::{Contention, Shared, read_all, read_all_within, work, write};
pub use plan::{Plan, Step};

use super::binaries::Binaries;
use super::chaos::drained;
use super::fleet::Fleet;
use crate::check::check_history;
use crate::load::HistoryFile;

/// Clients of a run.
const CLIENTS: u64 = 8;
/// The clients go on for this long after the repair.
const AFTER: Duration = Duration::from_millis(500);
/// Operations that must be acknowledged, or the run goes on: fewer show little.
const ACKNOWLEDGED_MIN: u64 = 400;
/// This many of them after the repair.
const ACKNOWLEDGED_AFTER_MIN: u64 = 50;
/// If that takes longer than this after the repair, the service did not come back.
const BACK_MAX: Duration = Duration::from_secs(15);
/// How often progress is checked.
const LOOK: Duration = Duration::from_millis(20);
/// Name of the history in the folder of a run.
const HISTORY: &str = "history.jsonl";

/// The result of a run.
#[derive(Debug)]
pub struct RunReport {
    /// Its seed.
    pub seed: u64,
    /// Its plan.
    pub plan: Plan,
    /// The verdict; `Err`: the run could not be completed, and why.
    pub verdict: Result<Report, String>,
    /// Operations acknowledged, refused, of unknown outcome.
    pub outcomes: [u64; 3],
    /// Processes killed, directions cut, links taken down.
    pub faults: [u64; 3],
    /// Datagrams dropped, repeated, held back.
    pub troubled: [u64; 3],
    /// The history and the output of all processes, if the run did not pass.
    pub folder: Option<PathBuf>,
}

impl RunReport {
    /// It was completed, and its history is linearizable.
    #[must_use]
    pub fn passed(&self) -> bool {
        matches!(&self.verdict, Ok(report) if report.is_linearizable())
    }
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match &self.verdict {
            Err(_) => "NOT COMPLETED",
            Ok(report) if report.is_linearizable() => "linearizable",
            Ok(report) if report.not_linearizable() > 0 => "NOT LINEARIZABLE",
            Ok(_) => "UNDECIDED",
        };
        let [ok, failed, unknown] = self.outcomes;
        let [kills, cuts, links] = self.faults;
        let fleet = &self.plan.fleet;
        write!(
            f,
            "seed {}: {word}; {ok} acknowledged, {failed} refused, {unknown} unknown; R={} {}{}; \
             {kills} kills, {cuts} cuts, {links} links down",
            self.seed,
            fleet.devices,
            fleet.medium.name(),
            if fleet.trouble.is_some() {
                ", lossy"
            } else {
                ""
            },
        )?;
        match &self.verdict {
            Err(why) => write!(f, "\n  {why}")?,
            Ok(report) if !report.is_linearizable() => write!(f, "\n{report}")?,
            Ok(_) => {}
        }
        if let Some(folder) = &self.folder {
            let history = folder.join(HISTORY);
            write!(
                f,
                "\n  kept: {}\n  check again: pmnet-lab check --history {}",
                folder.display(),
                history.display()
            )?;
        }
        Ok(())
    }
}

/// The sums of many runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Runs; those that passed, are not linearizable, undecided, not completed.
    pub runs: u64,
    /// Linearizable.
    pub linearizable: u64,
    /// Not linearizable.
    pub not: u64,
    /// Undecided.
    pub undecided: u64,
    /// Not completed.
    pub broken: u64,
    /// Operations acknowledged, refused, of unknown outcome.
    pub outcomes: [u64; 3],
    /// Processes killed, directions cut, links taken down.
    pub faults: [u64; 3],
    /// Datagrams dropped, repeated, held back.
    pub troubled: [u64; 3],
}

impl Totals {
    fn add(&mut self, run: &RunReport) {
        self.runs += 1;
        let count = match &run.verdict {
            Err(_) => &mut self.broken,
            Ok(report) if report.is_linearizable() => &mut self.linearizable,
            Ok(report) if report.not_linearizable() > 0 => &mut self.not,
            Ok(_) => &mut self.undecided,
        };
        *count += 1;
        for (sum, more) in [
            (&mut self.outcomes, run.outcomes),
            (&mut self.faults, run.faults),
            (&mut self.troubled, run.troubled),
        ] {
            for (sum, more) in sum.iter_mut().zip(more) {
                *sum += more;
            }
        }
    }

    /// All runs were completed and linearizable, and there were any.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.runs > 0 && self.linearizable == self.runs
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ok, failed, unknown] = self.outcomes;
        let [kills, cuts, links] = self.faults;
        let [dropped, repeated, held] = self.troubled;
        write!(
            f,
            "{} runs: {} linearizable, {} not, {} undecided, {} not completed; {} operations: {ok} \
             acknowledged, {failed} refused, {unknown} unknown; {kills} kills, {cuts} cuts, {links} \
             links down; {dropped} datagrams dropped, {repeated} repeated, {held} held back",
            self.runs,
            self.linearizable,
            self.not,
            self.undecided,
            self.broken,
            ok + failed + unknown,
        )
    }
}

/// Runs `count` seeds from `first` on, `jobs` at a time, and shows each report to `each`.
pub fn runs(
    binaries: &Binaries,
    folder: &Path,
    first: u64,
    count: u64,
    jobs: usize,
    each: impl Fn(&RunReport) + Sync,
) -> Totals {
    let next = AtomicU64::new(0);
    let totals = Mutex::new(Totals::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return;
                    }
                    let seed = first.wrapping_add(index);
                    let report = run(binaries, folder, seed, Plan::draw(seed));
                    let mut totals = totals.lock().unwrap_or_else(|poison| poison.into_inner());
                    totals.add(&report);
                    each(&report);
                }
            });
        }
    });
    totals
        .into_inner()
        .unwrap_or_else(|poison| poison.into_inner())
}

/// The run of a seed, with this plan.
#[must_use]
pub fn run(binaries: &Binaries, folder: &Path, seed: u64, plan: Plan) -> RunReport {
    let mut report = RunReport {
        seed,
        plan,
        verdict: Err("it did not start".to_owned()),
        outcomes: [0; 3],
        faults: [0; 3],
        troubled: [0; 3],
        folder: None,
    };
    // A thread of its own: it moves between machines, and the processes end with it.
    std::thread::scope(|scope| {
        let report = &mut report;
        let story = scope.spawn(move || {
            if let Err(error) = play(binaries, folder, report) {
                report.verdict = Err(format!("{error:#}"));
            }
        });
        story
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    report
}

fn play(binaries: &Binaries, folder: &Path, report: &mut RunReport) -> anyhow::Result<()> {
    let name = format!("history-{}", report.seed);
    let mut fleet = Fleet::start(binaries, folder, &name, &report.plan.fleet)?;
    let shared = Shared::new(fleet.endpoint());
    let lived = live(&mut fleet, report, &shared);
    report.troubled = fleet.troubled();
    let mut records = shared.into_records();
    // Through the front first. What it answers may be in the log only, so that is waited for.
    let read = lived
        .and_then(|()| clients::read_all(&mut records, fleet.endpoint()))
        .and_then(|()| drained(fleet.endpoint()))
        .and_then(|()| clients::read_all(&mut records, fleet.redis()));
    report.verdict = write_and_check(&records, &fleet.folder().join(HISTORY), report)
        .and_then(|verdict| read.map(|()| verdict))
        .map_err(|error| format!("{error:#}"));
    if !report.passed() {
        fleet.keep_folder();
        report.folder = Some(fleet.folder().to_owned());
    }
    Ok(())
}

/// Clients work while the plan happens.
fn live(fleet: &mut Fleet, report: &mut RunReport, shared: &Shared) -> anyhow::Result<()> {
    let machine = fleet.clients()?;
    let seed = report.seed;
    std::thread::scope(|scope| {
        let work = |index| {
            let machine = &machine;
            scope.spawn(move || -> anyhow::Result<()> {
                machine.enter()?;
                // Values begin with their client's number: no two clients write the same.
                clients::work(shared, seed.wrapping_mul(CLIENTS).wrapping_add(index));
                Ok(())
            })
        };
        let workers: Vec<_> = (0..CLIENTS).map(work).collect();
        // Even after a panic, so that no client works for ever.
        let stop = StopOnDrop(shared);
        let suffered = suffer(fleet, report, shared);
        drop(stop);
        workers.into_iter().try_for_each(|worker| {
            worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        suffered
    })
}

struct StopOnDrop<'a>(&'a Shared);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Does what is planned, repairs, and sees the service come back.
fn suffer(fleet: &mut Fleet, report: &mut RunReport, shared: &Shared) -> anyhow::Result<()> {
    let start = Instant::now();
    for (at, step) in report.plan.steps.clone() {
        std::thread::sleep((start + at).saturating_duration_since(Instant::now()));
        let counted = match step {
            Step::Kill(role) => fleet.kill(role)?.then_some(0),
            Step::Cut(from, to) => fleet.cut(from, to)?.then_some(1),
            Step::LinkDown(machine) => fleet.link_down(machine)?.then_some(2),
            Step::Start(role) => fleet.start_again(role).map(|()| None)?,
            Step::Heal(from, to) => fleet.heal(from, to).map(|()| None)?,
            Step::LinkUp(machine) => fleet.link_up(machine).map(|()| None)?,
            Step::Spoil => clients::delete_all(fleet.redis()).map(|()| None)?,
        };
        if let Some(kind) = counted {
            let kind: usize = kind;
            report.faults[kind] += 1;
        }
    }
    std::thread::sleep((start + plan::FAULTS_TIME).saturating_duration_since(Instant::now()));
    fleet.repair().context("after the repair")?;
    let (repaired, before) = (Instant::now(), shared.acknowledged());
    loop {
        std::thread::sleep(LOOK);
        let (waited, all) = (repaired.elapsed(), shared.acknowledged());
        let after = all - before;
        if waited >= AFTER && after >= ACKNOWLEDGED_AFTER_MIN && all >= ACKNOWLEDGED_MIN {
            return Ok(());
        }
        anyhow::ensure!(
            waited < BACK_MAX,
            "only {after} operations acknowledged in {:.0} s after the repair, {all} in all",
            waited.as_secs_f64()
        );
    }
}

fn write_and_check(
    records: &[Record],
    path: &Path,
    report: &mut RunReport,
) -> anyhow::Result<Report> {
    let mut file = HistoryFile::create(path)?;
    for record in records {
        file.write(record)?;
        let outcome = match record.outcome {
            Outcome::Ok => 0,
            Outcome::Failed => 1,
            Outcome::Unknown => 2,
        };
        report.outcomes[outcome] += 1;
    }
    file.finish()?;
    Ok(check_history(
        &pmnet_history::operations(records)?,
        &Limits::default(),
    ))
}
