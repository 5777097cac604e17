//! Checked load while processes are killed, then the verdict.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::cluster::{Cluster, Role};
use crate::check::{Ledger, Verdict, verify};
use crate::load::{CheckedOptions, Hooks, Options, Progress, Summary, Workload, run};
use crate::resp::{Client, Reply};

/// Time between two updates of the view.
const LOOK: Duration = Duration::from_millis(100);
/// Everything acknowledged must have reached the database this long after the load.
const SETTLE_MAX: Duration = Duration::from_secs(30);
/// One attempt to read through the front while settling.
const SETTLE_TRY: Duration = Duration::from_secs(10);
/// Time between two reads while settling.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// The device that joins the chain for a lost one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joiner {
    /// A device that was not in the chain before.
    Spare,
    /// The lost device, with a new log.
    Repaired,
    /// The lost device, with its old log.
    Returned,
}

/// A device is lost for good, and another one joins.
#[derive(Clone, Copy, Debug)]
pub struct Replacement {
    /// Place in the chain of the one that is lost, from 0.
    pub place: usize,
    /// Who joins at the end.
    pub joiner: Joiner,
}

/// Smallest number of acknowledged operations, however slow the machine is. With fewer, the run proves nothing
/// ([`Options::acknowledged_min`]).
pub const ACKNOWLEDGED_MIN: u64 = 200;

/// What to do.
#[derive(Clone, Debug)]
pub struct ChaosPlan {
    /// How long to load, and on until [`ACKNOWLEDGED_MIN`].
    pub duration: Duration,
    /// Connections.
    pub clients: usize,
    /// Commands in flight on each.
    pub pipeline: usize,
    /// Deadline of one operation.
    pub deadline: Duration,
    /// Killed in turn, as often as the time allows.
    pub victims: Vec<Role>,
    /// From one kill to the next.
    pub interval: Duration,
    /// From a kill to the restart.
    pub down: Duration,
    /// Devices that are lost for good when half of the time has passed ([`Cluster::lose`]).
    pub lose_at_half: Vec<usize>,
    /// Replacements, one after the other during the load, which must be long enough.
    pub replacements: Vec<Replacement>,
    /// Processes that change to another build of the product, one after the other during the load, which must be long
    /// enough.
    pub exchanges: Vec<(Role, PathBuf)>,
    /// Bytes of a SET value (more than a packet: fragments).
    pub value_bytes: usize,
    /// Seed and key prefix.
    pub seed: u64,
}

/// What happened.
#[derive(Clone, Debug)]
pub struct ChaosReport {
    /// The load's own figures.
    pub summary: Summary,
    /// What the database says.
    pub verdict: Verdict,
    /// How often each was killed.
    pub kills: Vec<(Role, u32)>,
}

/// What is going on, for a display.
#[derive(Clone, Debug)]
pub struct ChaosView {
    /// Part of the time that has passed, 0 to 1.
    pub fraction: f64,
    /// Operations acknowledged so far.
    pub acknowledged: u64,
    /// Kills so far.
    pub kills: u32,
    /// What was done last.
    pub event: String,
}

/// Loads, kills, restarts, settles, checks. Must be called from the thread that started the
/// cluster (see [`super`]).
///
/// # Errors
/// A process that does not come back, a load that cannot run, a database that cannot be read.
pub fn chaos(
    cluster: &mut Cluster,
    plan: &ChaosPlan,
    stop: &AtomicBool,
    mut view: impl FnMut(&ChaosView),
) -> anyhow::Result<ChaosReport> {
    let mut options = Options::new(cluster.endpoint()?);
    options.clients = plan.clients;
    options.pipeline = plan.pipeline;
    options.duration = plan.duration;
    options.acknowledged_min = ACKNOWLEDGED_MIN;
    options.deadline = plan.deadline;
    options.seed = plan.seed;
    options.workload = Workload::Checked(CheckedOptions {
        prefix: format!("chk{}:", plan.seed),
        ring: 100_000,
        lists: true,
        value_bytes: plan.value_bytes,
    });
    let ended = AtomicBool::new(false);
    let acknowledged = AtomicU64::new(0);
    let (loaded, kills) = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let loaded = checked_load(&options, stop, &acknowledged);
            ended.store(true, Ordering::Release);
            loaded
        });
        let kills = kill_in_turn(cluster, plan, &ended, &acknowledged, &mut view);
        if kills.is_err() {
            // Otherwise the load would continue against a broken cluster.
            stop.store(true, Ordering::Relaxed);
        }
        let loaded = load
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (loaded, kills)
    });
    let kills = kills?;
    let (summary, ledger) = loaded?;
    settle(cluster)?;
    let verdict = verify(&ledger, &mut cluster.reader()?)?;
    if !verdict.is_clean() {
        cluster.keep_folder();
    }
    Ok(ChaosReport {
        summary,
        verdict,
        kills,
    })
}

fn checked_load(
    options: &Options,
    stop: &AtomicBool,
    acknowledged: &AtomicU64,
) -> anyhow::Result<(Summary, Ledger)> {
    let mut ledger = Ledger::new();
    let mut record = |record: &crate::load::Record| Ok(ledger.add(record)?);
    let mut progress = |progress: &Progress| {
        acknowledged.store(progress.acknowledged, Ordering::Relaxed);
    };
    let hooks = Hooks {
        record: Some(&mut record),
        progress: Some(&mut progress),
    };
    let summary = run(options, hooks, stop)?;
    Ok((summary, ledger))
}

fn kill_in_turn(
    cluster: &mut Cluster,
    plan: &ChaosPlan,
    ended: &AtomicBool,
    acknowledged: &AtomicU64,
    view: &mut impl FnMut(&ChaosView),
) -> anyhow::Result<Vec<(Role, u32)>> {
    let start = Instant::now();
    let mut kills: Vec<(Role, u32)> = plan.victims.iter().map(|role| (*role, 0)).collect();
    let mut total = 0;
    let mut event = "load is running".to_owned();
    let mut look = |event: &str, total| {
        view(&ChaosView {
            fraction: (start.elapsed().as_secs_f64() / plan.duration.as_secs_f64()).min(1.0),
            acknowledged: acknowledged.load(Ordering::Relaxed),
            kills: total,
            event: event.to_owned(),
        });
    };
    let mut turns = (0..kills.len()).cycle();
    let mut next_kill = start + plan.interval;
    // The last killed process must be back while the load still runs.
    let last_kill = start + plan.duration.saturating_sub(plan.down + plan.interval / 2);
    let mut to_lose = Some(plan.lose_at_half.as_slice()).filter(|lost| !lost.is_empty());
    let mut replacements = plan.replacements.iter();
    let mut exchanges = plan.exchanges.iter();
    while !ended.load(Ordering::Acquire) {
        look(&event, total);
        if let Some(replacement) = replacements.next() {
            std::thread::sleep(plan.interval);
            replace(cluster, *replacement)?;
            event = format!("{replacement:?}");
            continue;
        }
        if let Some((role, pmnet)) = exchanges.next() {
            std::thread::sleep(plan.interval);
            cluster.exchange(*role, pmnet)?;
            event = format!("{role} is {}", pmnet.display());
            continue;
        }
        let now = Instant::now();
        if now >= start + plan.duration / 2
            && let Some(lost) = to_lose.take()
        {
            cluster.lose(lost)?;
            event = format!("{} devices lost for good, {total} kills", lost.len());
            continue;
        }
        if now < next_kill || now > last_kill {
            std::thread::sleep(LOOK.min(plan.interval));
            continue;
        }
        let Some(turn) = turns.next() else {
            next_kill = last_kill + LOOK;
            continue;
        };
        let role = kills[turn].0;
        cluster.kill(role)?;
        kills[turn].1 += 1;
        total += 1;
        event = format!("killed {role}");
        look(&event, total);
        std::thread::sleep(plan.down);
        cluster.restart(role)?;
        event = format!("{role} is back");
        next_kill = (next_kill + plan.interval).max(Instant::now());
    }
    anyhow::ensure!(
        replacements.next().is_none() && exchanges.next().is_none(),
        "the load ended before every device was replaced, or every process exchanged"
    );
    Ok(kills)
}

/// Loses a device for good, goes on without it for a moment, and lets another one join.
fn replace(cluster: &mut Cluster, replacement: Replacement) -> anyhow::Result<()> {
    let chain = cluster.chain();
    let lost = *chain
        .get(replacement.place)
        .context("no device at this place of the chain")?;
    cluster.lose(&[lost])?;
    std::thread::sleep(LOOK);
    match replacement.joiner {
        Joiner::Spare => {
            let spare = cluster.spare();
            cluster.join(spare, false)
        }
        Joiner::Repaired => cluster.join(lost, false),
        Joiner::Returned => cluster.join(lost, true),
    }
}

/// Waits until everything acknowledged has reached the database.
///
/// # Errors
/// It does not happen within its time.
pub fn settle(cluster: &Cluster) -> anyhow::Result<()> {
    drained(cluster.endpoint()?)
}

/// Waits in the same manner for the front at `endpoint`. It uses a read without keys, which is answered only when
/// everything before it is applied (`docs/spec/protocol.md` §2 rule 8).
///
/// # Errors
/// It does not happen within its time.
pub fn drained(endpoint: SocketAddr) -> anyhow::Result<()> {
    let is_count = |reply: &Reply| matches!(reply, Reply::Integer(_));
    answered(endpoint, SETTLE_MAX, &["DBSIZE"], is_count).context("the log does not drain")
}

/// Waits until `endpoint` gives the right answer to `command`, for this long.
///
/// # Errors
/// The last answer, or why there was none.
pub fn answered(
    endpoint: SocketAddr,
    wait: Duration,
    command: &[&str],
    is_right: impl Fn(&Reply) -> bool,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + wait;
    loop {
        let answer = Client::connect(endpoint, wait.min(SETTLE_TRY))
            .and_then(|mut client| client.call(command));
        match answer {
            Ok(reply) if is_right(&reply) => return Ok(()),
            Ok(other) if Instant::now() >= deadline => {
                anyhow::bail!("a read is answered with {other:?}")
            }
            Err(error) if Instant::now() >= deadline => {
                return Err(error).context("a read is not answered");
            }
            _ => std::thread::sleep(ASK_AGAIN),
        }
    }
}
