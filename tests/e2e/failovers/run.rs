//! One run: clients work while faults happen. Afterwards every acknowledged update must exist exactly once, and the
//! history must be linearizable.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pmnet_history::{Limits, Op, Outcome, Record, operations};
use pmnet_lab::check::{Ledger, check_history, verify};
use pmnet_lab::clock::now_ns;
use pmnet_lab::harness::drained;
use pmnet_lab::harness::histories::{self, Contention, Shared, read_all_within};
use pmnet_lab::load::{self, CheckedOptions, HistoryFile, Hooks, Options, Workload};

use super::plan::Plan;
use super::world::{Begun, World};
use crate::support::connect;

/// Number of clients of each kind. There are clients that contend for few keys, clients that only set, and clients with
/// keys of their own.
const WORKERS: u64 = 3;
const WRITERS: u64 = 2;
const OWNERS: usize = 4;
/// Pause between two operations of a client that only sets.
const WRITE_PAUSE: Duration = Duration::from_millis(10);
/// Operations per second of the clients with keys of their own.
const OWNERS_RATE: f64 = 300.0;
/// Deadline of a call. The deadline is longer than every fault, so that a call has an unknown outcome only if its front
/// is killed.
const CALL_MAX: Duration = Duration::from_secs(70);
const CONTENTION: Contention = Contention {
    slots: [3, 2, 2],
    key_operations: 240,
    operations_max: 5_000,
    call_max: CALL_MAX,
};
/// Time for which clients work before the first fault, and again after the shard is whole.
const BEFORE: Duration = Duration::from_millis(800);
const AFTER: Duration = Duration::from_millis(500);
/// Longest wait until the shard is whole again.
const WHOLE_MAX: Duration = Duration::from_secs(180);
/// Maximum duration of a run.
const RUN_MAX: Duration = Duration::from_secs(300);
/// Interval at which the run checks the progress, and the longer interval of questions to etcd, because these need more
/// time.
const LOOK: Duration = Duration::from_millis(20);
const ASK: Duration = Duration::from_millis(200);
/// Number of operations that must be acknowledged, and number that the store must execute, after the end of the last
/// fault.
const ACKNOWLEDGED_AFTER: u64 = 50;
const EXECUTED_AFTER: u64 = 10;
const HISTORY: &str = "history.jsonl";

/// The results of a completed run.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    /// Numbers of operations: acknowledged, refused, of unknown outcome.
    pub counts: [u64; 3],
    /// The longest time in which no client got an acknowledgement, and the longest time without an acknowledgement that
    /// needs the store.
    pub gap: Duration,
    pub executed_gap: Duration,
    /// Time from the first fault until the wanted number of devices serve, and time until the shard is as before.
    pub restored: Duration,
    pub whole: Duration,
    /// Descriptions of the violations that were found.
    pub findings: Vec<String>,
}

/// The report of a run.
#[derive(Clone, Debug)]
pub struct RunReport {
    pub seed: u64,
    pub plan: Plan,
    /// The results. `Err`: the reason why the run could not be completed.
    pub outcomes: Result<Outcomes, String>,
    /// The folder of the run, if it did not pass.
    pub folder: Option<PathBuf>,
}

impl RunReport {
    /// Returns the report of a run that could not begin.
    pub fn of_none(seed: u64, plan: Plan, why: String) -> RunReport {
        RunReport {
            seed,
            plan,
            outcomes: Err(why),
            folder: None,
        }
    }

    pub fn passed(&self) -> bool {
        matches!(&self.outcomes, Ok(outcomes) if outcomes.findings.is_empty())
    }
}

/// State that the clients of a run share, and the times of answers to the clients with keys of their own.
struct Load<'a> {
    shared: &'a Shared,
    stop: AtomicBool,
    ledger: std::sync::Mutex<(Ledger, Vec<(u64, bool)>)>,
}

/// Makes a run with this plan. The run is number `turn` in its world.
pub fn run(world: &mut World, plan: Plan, seed: u64, turn: u32) -> RunReport {
    let done = || play(world, &plan, seed, turn);
    let outcomes = caught(done);
    let mut report = RunReport {
        seed,
        plan,
        outcomes,
        folder: None,
    };
    if !report.passed() {
        world.keep_folder();
        report.folder = Some(world.folder().to_owned());
    }
    report
}

/// Returns the result of `work`. A panic becomes an error.
pub fn caught<T>(work: impl FnOnce() -> anyhow::Result<T>) -> Result<T, String> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| format!("{error:#}")),
        Err(panic) => Err(match panic.downcast_ref::<String>() {
            Some(text) => text.clone(),
            None => "it panicked".to_owned(),
        }),
    }
}

fn play(world: &mut World, plan: &Plan, seed: u64, turn: u32) -> anyhow::Result<Outcomes> {
    let fronts = world.fronts().to_vec();
    let shared = Shared::group(&fronts, turn, CONTENTION);
    let load = Load {
        shared: &shared,
        stop: AtomicBool::new(false),
        ledger: std::sync::Mutex::default(),
    };
    let mut options = Options::new(fronts[0]);
    options.clients = OWNERS;
    options.rate = Some(OWNERS_RATE);
    options.duration = RUN_MAX;
    options.deadline = CALL_MAX;
    options.seed = seed;
    options.workload = Workload::Checked(CheckedOptions {
        prefix: format!("chk{turn}-{seed}:"),
        ring: 100_000,
        lists: true,
        value_bytes: 0,
    });
    let (began, outcomes) = std::thread::scope(|scope| {
        for client in 0..WORKERS + WRITERS {
            let seed = seed.wrapping_mul(WORKERS + WRITERS).wrapping_add(client);
            let shared = load.shared;
            scope.spawn(move || {
                if client < WORKERS {
                    histories::work(shared, seed);
                } else {
                    histories::write(shared, seed, WRITE_PAUSE);
                }
            });
        }
        let owners = scope.spawn(|| own(&options, &load));
        // When this value is dropped, also by a panic, the clients stop.
        let stop = StopOnDrop(&load);
        let suffered = suffer(world, plan, &load);
        drop(stop);
        owners
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        suffered
    })?;
    let (ledger, owned) = load
        .ledger
        .into_inner()
        .unwrap_or_else(|poison| poison.into_inner());
    let mut records = shared.into_records();
    let outcomes = measured(outcomes, began, &records, &owned);
    judge(world, outcomes, &mut records, &ledger)
}

struct StopOnDrop<'a>(&'a Load<'a>);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.shared.stop();
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Runs the clients with keys of their own.
fn own(options: &Options, load: &Load<'_>) -> anyhow::Result<()> {
    let mut record = |record: &load::Record| {
        let mut ledger = load
            .ledger
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        if record.outcome == Outcome::Ok {
            let executed = record.op != load::Op::Set;
            ledger.1.push((record.return_ns, executed));
        }
        Ok(ledger.0.add(record)?)
    };
    let hooks = Hooks {
        record: Some(&mut record),
        progress: None,
    };
    load::run(options, hooks, &load.stop).map(|_| ())
}

/// Carries out the plan, and waits until the shard is whole. Returns the time of the first fault, and the duration
/// until the shard was whole.
fn suffer(world: &mut World, plan: &Plan, load: &Load<'_>) -> anyhow::Result<(u64, Outcomes)> {
    std::thread::sleep(BEFORE);
    let (began, began_ns) = (Instant::now(), now_ns());
    let mut to_come = plan.faults.clone();
    let mut going_on: Vec<(Instant, Begun)> = Vec::new();
    let mut outcomes = Outcomes::default();
    let mut over: Option<(u64, u64)> = None;
    let mut asked = began;
    // Time at which the chain was restored.
    let mut restored = Some(Duration::ZERO);
    loop {
        let now = Instant::now();
        while let Some(fault) = to_come.first().copied().filter(|one| now >= began + one.at) {
            to_come.remove(0);
            let choice = usize::try_from(fault.lasts.as_millis())?;
            let begun = world.begin(fault.kind, choice)?;
            going_on.push((Instant::now() + fault.lasts, begun));
        }
        let (ended, rest) = going_on.into_iter().partition(|(end, _)| now >= *end);
        going_on = rest;
        let ended: Vec<(Instant, Begun)> = ended;
        for (_, begun) in ended {
            world.end(begun)?;
        }
        world.tend()?;
        ensure!(
            now < began + WHOLE_MAX,
            "not whole within {WHOLE_MAX:?}: {:?}",
            world.state()?
        );
        std::thread::sleep(LOOK);
        if asked.elapsed() < ASK {
            continue;
        }
        asked = Instant::now();
        restored = match world.is_restored()? {
            true => restored.or_else(|| Some(began.elapsed())),
            false => None,
        };
        if to_come.is_empty() && going_on.is_empty() {
            let now = counts(load);
            let since = *over.get_or_insert(now);
            let serves = now.0 >= since.0 + ACKNOWLEDGED_AFTER && now.1 >= since.1 + EXECUTED_AFTER;
            if let (true, Some(restored), true) = (serves, restored, world.is_whole()?) {
                outcomes.restored = restored;
                outcomes.whole = began.elapsed();
                break;
            }
        }
    }
    std::thread::sleep(AFTER);
    world.nobody_panicked()?;
    Ok((began_ns, outcomes))
}

/// Returns two counts for the clients with keys of their own: their acknowledged operations, and those that the store
/// executed.
fn counts(load: &Load<'_>) -> (u64, u64) {
    let ledger = load
        .ledger
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    let all = ledger.1.len();
    let executed = ledger.1.iter().filter(|(_, executed)| *executed).count();
    let number = |count| u64::try_from(count).unwrap_or(u64::MAX);
    (number(all), number(executed))
}

/// Computes the longest times without an acknowledgement.
fn measured(
    outcomes: Outcomes,
    began_ns: u64,
    records: &[Record],
    owned: &[(u64, bool)],
) -> Outcomes {
    let answered = records.iter().filter(|one| one.outcome == Outcome::Ok);
    let writes = answered.filter(|one| one.op != Op::Get);
    let shared = writes.map(|one| (one.return_ns, one.op != Op::Set));
    let mut all: Vec<(u64, bool)> = shared.chain(owned.iter().copied()).collect();
    all.sort_unstable();
    let executed: Vec<u64> = all.iter().filter(|one| one.1).map(|one| one.0).collect();
    let all: Vec<u64> = all.iter().map(|one| one.0).collect();
    Outcomes {
        gap: gap(&all, began_ns),
        executed_gap: gap(&executed, began_ns),
        ..outcomes
    }
}

/// Returns the longest interval between two successive times. Only intervals that end after `from` count.
fn gap(times: &[u64], from: u64) -> Duration {
    let pairs = times.windows(2).filter(|pair| pair[1] >= from);
    let longest = pairs.map(|pair| pair[1] - pair[0]).max();
    Duration::from_nanos(longest.unwrap_or(u64::MAX))
}

/// Checks that no update is lost or applied twice, and that some order of all operations explains every reply.
fn judge(
    world: &World,
    mut outcomes: Outcomes,
    records: &mut Vec<Record>,
    ledger: &Ledger,
) -> anyhow::Result<Outcomes> {
    let front = world.fronts()[0];
    let master = || world.master().context("no majority of the Sentinels");
    // The first read goes through the front. The value in the front's answer may be only in the log, so the run waits
    // until the database has it.
    read_all_within(records, front, CALL_MAX)?;
    drained(front)?;
    read_all_within(records, master()?, CALL_MAX)?;
    let verdict = verify(ledger, &mut connect(master()?))?;
    if !verdict.is_clean() {
        outcomes.findings.push(verdict.to_string());
    }
    outcomes.counts = [verdict.acknowledged, verdict.failed, verdict.unknown];
    for record in records.iter() {
        outcomes.counts[match record.outcome {
            Outcome::Ok => 0,
            Outcome::Failed => 1,
            Outcome::Unknown => 2,
        }] += 1;
    }
    let report = check_history(&operations(records)?, &Limits::default());
    if !report.is_linearizable() {
        let mut file = HistoryFile::create(&world.folder().join(HISTORY))?;
        for record in records.iter() {
            file.write(record)?;
        }
        file.finish()?;
        outcomes.findings.push(report.to_string());
    }
    if outcomes.counts[1] > 0 {
        let text = records.iter().find(|one| one.outcome == Outcome::Failed);
        let why = text.and_then(|one| one.reply.clone()).unwrap_or_default();
        outcomes
            .findings
            .push(format!("{} refused: {why}", outcomes.counts[1]));
    }
    Ok(outcomes)
}
