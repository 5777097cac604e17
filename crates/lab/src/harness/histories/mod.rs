//! Runs whose histories are checked. Every process has a machine of its own. Clients contend for few keys, processes
//! are killed, and networks fail. Then everything is repaired, and every key is read once more. The whole history must
//! be linearizable (`docs/spec/protocol.md` §10).
//!
//! Purpose: make the simulator's check with real processes. Invariants: a run ends within its bounds, and leaves no
//! processes or networks; a run does not pass if it is undecided or has almost no operations. A seed repeats the plan
//! of a run. A seed does not repeat the exact course of a run, because the timing of real processes differs.

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

/// Number of clients of a run.
const CLIENTS: u64 = 8;
/// Time for which the clients continue after the repair.
const AFTER: Duration = Duration::from_millis(500);
/// Minimum number of acknowledged operations. A run with fewer is continued, because few operations prove little.
const ACKNOWLEDGED_MIN: u64 = 400;
/// Minimum number of operations that must be acknowledged after the repair.
const ACKNOWLEDGED_AFTER_MIN: u64 = 50;
/// Time after the repair within which `ACKNOWLEDGED_AFTER_MIN` operations must be acknowledged.
const BACK_MAX: Duration = Duration::from_secs(15);
/// Interval at which progress is checked.
const LOOK: Duration = Duration::from_millis(20);
/// Name of the history file in the folder of a run.
const HISTORY: &str = "history.jsonl";

/// The result of a run.
#[derive(Debug)]
pub struct RunReport {
    /// The seed of the run.
    pub seed: u64,
    /// The plan of the run.
    pub plan: Plan,
    /// The verdict on the history; `Err`: the reason why the run could not be completed.
    pub verdict: Result<Report, String>,
    /// Numbers of operations: acknowledged, refused, of unknown outcome.
    pub outcomes: [u64; 3],
    /// Numbers of processes killed, directions cut, and links taken down.
    pub faults: [u64; 3],
    /// Numbers of datagrams dropped, repeated and delayed.
    pub troubled: [u64; 3],
    /// The folder with the history and the output of all processes, if the run did not pass.
    pub folder: Option<PathBuf>,
}

impl RunReport {
    /// Returns whether the run was completed and its history is linearizable.
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
    /// Number of runs.
    pub runs: u64,
    /// Number of runs whose history is linearizable.
    pub linearizable: u64,
    /// Number of runs whose history is not linearizable.
    pub not: u64,
    /// Number of runs that could not be decided.
    pub undecided: u64,
    /// Number of runs that were not completed.
    pub broken: u64,
    /// Numbers of operations: acknowledged, refused, of unknown outcome.
    pub outcomes: [u64; 3],
    /// Numbers of processes killed, directions cut, and links taken down.
    pub faults: [u64; 3],
    /// Numbers of datagrams dropped, repeated and delayed.
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

    /// Returns whether there were runs, and all of them were completed and are linearizable.
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

/// Runs `count` seeds, beginning with `first`, and at most `jobs` at a time. Passes each report to `each`.
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

/// Makes one run with this plan and this seed.
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
    // The run has a thread of its own. The thread moves between machines, and the processes end with the thread.
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
    // The first read goes through the front. The value in the front's answer may be only in the log, so the run waits
    // until the database has it.
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

/// Runs the clients, and carries out the plan meanwhile.
fn live(fleet: &mut Fleet, report: &mut RunReport, shared: &Shared) -> anyhow::Result<()> {
    let machine = fleet.clients()?;
    let seed = report.seed;
    std::thread::scope(|scope| {
        let work = |index| {
            let machine = &machine;
            scope.spawn(move || -> anyhow::Result<()> {
                machine.enter()?;
                // Each value begins with the number of its client, so that no two clients write equal values.
                clients::work(shared, seed.wrapping_mul(CLIENTS).wrapping_add(index));
                Ok(())
            })
        };
        let workers: Vec<_> = (0..CLIENTS).map(work).collect();
        // When this value is dropped, also by a panic, the clients stop.
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

/// Carries out the plan, repairs the fleet, and waits until the service works again.
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
