//! Runs checked load while processes are killed, then checks the data.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::cluster::{Cluster, Role};
use crate::check::{Ledger, Verdict, verify};
use crate::load::{CheckedOptions, Hooks, Options, Progress, Summary, Workload, run};
use crate::resp::{Client, Reply};

/// Interval between two updates of the display.
const LOOK: Duration = Duration::from_millis(100);
/// Time after the load within which the database must have applied all acknowledged updates.
const SETTLE_MAX: Duration = Duration::from_secs(30);
/// Deadline of one attempt to read through the front after the load.
const SETTLE_TRY: Duration = Duration::from_secs(10);
/// Pause between two such attempts.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// The device that replaces a lost device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joiner {
    /// A device that was not in the chain before.
    Spare,
    /// The lost device, with a new log.
    Repaired,
    /// The lost device, with its old log.
    Returned,
}

/// A device is lost for good, and another device joins the chain.
#[derive(Clone, Copy, Debug)]
pub struct Replacement {
    /// Position of the lost device in the chain, counted from 0.
    pub place: usize,
    /// The device that joins at the end of the chain.
    pub joiner: Joiner,
}

/// Minimum number of acknowledged operations, even on a slow machine. Fewer operations prove nothing
/// ([`Options::acknowledged_min`]).
pub const ACKNOWLEDGED_MIN: u64 = 200;

/// The load and the faults of a run.
#[derive(Clone, Debug)]
pub struct ChaosPlan {
    /// Minimum duration of the load. The load continues until [`ACKNOWLEDGED_MIN`] is reached.
    pub duration: Duration,
    /// Number of connections.
    pub clients: usize,
    /// Number of commands in flight on each connection.
    pub pipeline: usize,
    /// Deadline of one operation.
    pub deadline: Duration,
    /// Processes that are killed by turns until the load ends.
    pub victims: Vec<Role>,
    /// Time from one kill to the next.
    pub interval: Duration,
    /// Time from a kill to the restart.
    pub down: Duration,
    /// Devices that are lost for good at half of the time ([`Cluster::lose`]).
    pub lose_at_half: Vec<usize>,
    /// Replacements, one after the other, during the load. The load must last long enough for all of them.
    pub replacements: Vec<Replacement>,
    /// Processes that are replaced by another build of the product, one after the other, during the load. The load must
    /// last long enough for all of them.
    pub exchanges: Vec<(Role, PathBuf)>,
    /// Size of a SET value in bytes. A value that does not fit into a packet is sent in fragments.
    pub value_bytes: usize,
    /// Seed of the load, and part of its key prefix.
    pub seed: u64,
}

/// The results of a run with faults.
#[derive(Clone, Debug)]
pub struct ChaosReport {
    /// The figures of the load generator.
    pub summary: Summary,
    /// The verdict on the contents of the database.
    pub verdict: Verdict,
    /// Number of kills of each process.
    pub kills: Vec<(Role, u32)>,
}

/// The progress of a run, for display.
#[derive(Clone, Debug)]
pub struct ChaosView {
    /// Fraction of the time that has passed, 0 to 1.
    pub fraction: f64,
    /// Number of acknowledged operations so far.
    pub acknowledged: u64,
    /// Number of kills so far.
    pub kills: u32,
    /// Description of the last event.
    pub event: String,
}

/// Runs the load, kills and restarts processes, waits until the database has applied all updates, and checks the data.
/// Must be called from the thread that started the cluster (see [`super`]).
///
/// # Errors
/// Fails if a process does not come back, if the load cannot run, or if the database cannot be read.
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
            // The flag ends the load. Otherwise the load would continue on a broken cluster.
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
    // The process that is killed last must serve again before the load ends.
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

/// Loses a device for good, continues without it for a moment, and lets another device join.
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

/// Waits until the database has applied all acknowledged updates.
///
/// # Errors
/// Fails if the database still lacks acknowledged updates after [`SETTLE_MAX`].
pub fn settle(cluster: &Cluster) -> anyhow::Result<()> {
    drained(cluster.endpoint()?)
}

/// Waits until the database has applied all acknowledged updates of the front at `endpoint`. For this purpose the
/// function sends a read without keys, which is answered only after all earlier updates are applied
/// (`docs/spec/protocol.md` §2 rule 8).
///
/// # Errors
/// Fails if the read is not answered in time.
pub fn drained(endpoint: SocketAddr) -> anyhow::Result<()> {
    let is_count = |reply: &Reply| matches!(reply, Reply::Integer(_));
    answered(endpoint, SETTLE_MAX, &["DBSIZE"], is_count).context("the log does not drain")
}

/// Waits, at most for this time, until `endpoint` gives the right answer to `command`.
///
/// # Errors
/// Returns the last answer as an error, or the reason why there was no answer.
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
