//! An attack on a chain with keys, from inside its network. Each link has an adversary, who sees, withholds, changes,
//! redirects and repeats all packets, makes further packets, and has the key of another front (`docs/spec/keys.md` §6).
//!
//! Purpose: figures for [`docs/operate/security.md`], with real processes. Invariants: the machine's own network stays
//! untouched; the adversary does not know the key of the attacked front. This module must not depend on the way in
//! which a role verifies packets.
//!
//! An attack has three parts. First, checked load runs while roles are killed and restarted, so that the adversary sees
//! packets of every kind. Second, no client writes, and the adversary sends packets of all kinds, but repeats no
//! packet. Afterwards no log, order or epoch may have changed. Third, checked load runs again, and the adversary also
//! sends repeated packets. Afterwards no update may be lost, applied twice, out of order or invented, and each read
//! must have returned the last acknowledged value. During the second and the third part the adversary also tries the
//! TCP doors and the status ports of all roles.
//!
//! During the second part some clients stay connected and silent, and keep their sessions.

mod clients;
mod doors;
pub mod packets;
mod quiet;
mod report;
mod stand;
mod tap;
mod witness;

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::check::{Ledger, Verdict, verify};
use crate::harness::Binaries;
use crate::harness::namespaces::enter;
use crate::load::{CheckedOptions, Hooks, Options, Record, Workload};
use crate::resp::{Client, Reply};
pub use clients::Reads;
use clients::Silent;
pub use doors::{DoorKind, DoorReport};
use packets::{Field, Hoard};
use quiet::States;
use report::Look;
pub use report::{Report, RoleReport};
use stand::Stand;
pub use stand::{Cache, Mode};
use tap::Shared;
use witness::Witness;

/// The role of the front.
const FRONT: &str = "client1";
/// The front's counter of reads that the head answered.
const HITS: &str = "pmnet_front_reads_total{shard=\"0\",answer=\"head\"}";
/// Prefix of all keys of the load.
const PREFIX: &str = "attack:";
/// Duration of the checked load during which the adversary records packets.
const LEARN: Duration = Duration::from_secs(2);
const CLIENTS: usize = 8;
/// Deadline of one call of a client. The deadline is long, because an attack delays calls.
const CALL_MAX: Duration = Duration::from_secs(30);
/// Time after the attack within which all acknowledged updates must reach the database.
const SETTLE_MAX: Duration = Duration::from_secs(60);
/// Number of clients that stay connected and silent while no client writes.
const SILENT: usize = 8;
const LOOK: Duration = Duration::from_millis(100);

/// Plan of an attack.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How the devices process packets.
    pub mode: Mode,
    /// Which updates the head shows to readers.
    pub cache: Cache,
    /// Number of devices in the chain, 1 to 3.
    pub devices: u8,
    /// Number of packets that the adversary sends in total.
    pub packets: u64,
    /// Packets per second that all taps send together.
    pub rate: u64,
    /// The chain runs without keys, to show that the attack then has effects.
    pub insecure: bool,
    /// Folder for the output of the processes.
    pub out: PathBuf,
}

/// Runs an attack. `progress` receives a description of the present step, and the fraction of the
/// packets that have been sent.
///
/// The calling thread must outlive the attack.
///
/// # Errors
/// This machine lacks a program or right that the attack needs, or a process does not serve.
pub fn run(
    plan: &Plan,
    binaries: &Binaries,
    progress: &mut dyn FnMut(&str, f64),
) -> anyhow::Result<Report> {
    progress("starting", 0.0);
    let mut stand = Stand::start(plan, binaries)?;
    let shared = shared(plan, &stand)?;
    let taps = stand.taps()?;
    let (doors, key) = (stand.doors(), stand.cluster_key()?);
    let report = std::thread::scope(|scope| {
        let _ends = Ends(&shared);
        let mut threads = Vec::new();
        for (namespace, ends) in &taps {
            let shared = &shared;
            threads.push(scope.spawn(move || tap::look(namespace, &ends[0].name, shared)));
            threads.push(scope.spawn(move || tap::send(namespace, ends, shared)));
        }
        let tries = key.map(|key| {
            let (doors, shared) = (&doors, &shared);
            scope.spawn(move || doors::attack(doors, &key, shared))
        });
        let attacked = attack(plan, &mut stand, &shared, taps.len(), progress);
        shared.over.store(true, Ordering::Relaxed);
        let tried = tries.map(|tries| tries.join()).transpose();
        let tried = tried.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        for thread in threads {
            let ended = thread.join();
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        let doors = tried.transpose()?.unwrap_or_default();
        let report = Report { doors, ..attacked? };
        let untried = report.doors.iter().find(|door| !door.was_tried());
        ensure!(
            untried.is_none() || !report.ended.is_empty(),
            "the adversary has not tried each door: {untried:?}"
        );
        anyhow::Ok(report)
    });
    let report =
        report.map(|report| report.with_sent(&shared.sent.lock().expect("all threads have ended")));
    if !report.as_ref().is_ok_and(Report::is_clean) {
        let folder = stand.keep().display();
        eprintln!("what the processes said is in {folder}");
    }
    report
}

/// Ends the taps when this value is dropped, even if the attack fails.
struct Ends<'a>(&'a Shared);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

fn shared(plan: &Plan, stand: &Stand) -> anyhow::Result<Shared> {
    let client = stand.ip("client1");
    let mut roles = vec![SocketAddrV4::new(client, 0)];
    for device in 1..=plan.devices + 1 {
        let std::net::SocketAddr::V4(at) = stand.address(device) else {
            continue;
        };
        roles.push(at);
    }
    Ok(Shared {
        hoard: RwLock::new(Hoard::default()),
        witness: Mutex::new(Witness::default()),
        field: Field {
            roles,
            own: stand.adversary()?,
        },
        client,
        client_port: AtomicU16::new(0),
        sent: Mutex::new(BTreeMap::new()),
        rate: AtomicU64::new(0),
        repeats: AtomicBool::new(false),
        left: AtomicU64::new(0),
        over: AtomicBool::new(false),
    })
}

fn attack(
    plan: &Plan,
    stand: &mut Stand,
    shared: &Shared,
    taps: usize,
    progress: &mut dyn FnMut(&str, f64),
) -> anyhow::Result<Report> {
    let mut ledger = Ledger::new();
    progress("learning: checked load while each role is killed once", 0.0);
    let (kinds, mut reads) = learn(stand, shared, &mut ledger)?;
    let first = looks(stand)?;

    progress("waiting until nothing moves", 0.0);
    let silent = stand.at_front(|endpoint| Silent::connect(endpoint, SILENT))?;
    let before = quiet::rested(stand, silent.count())?;
    witness(shared).watch(before.last_order()?);
    let per_tap = plan.rate / u64::try_from(taps)?;
    shared.rate.store(per_tap, Ordering::Relaxed);
    shared.left.store(plan.packets / 2, Ordering::Relaxed);
    let ended = until_sent(plan, shared, (0.0, "no client writes"), stand, progress)?;
    // Packets that are still in flight arrive within this time.
    std::thread::sleep(LOOK);
    let mut report = Report {
        mode: plan.mode,
        cache: plan.cache,
        devices: plan.devices,
        kinds,
        roles: stand.roles().map(|role| RoleReport::new(role)).collect(),
        moved: Vec::new(),
        entries: Vec::new(),
        ended,
        invented: 0,
        reads: Reads::default(),
        doors: Vec::new(),
        verdict: Verdict::default(),
    };
    if !report.ended.is_empty() {
        return Ok(report);
    }
    report.moved = before.moved(&States::read(stand)?);
    report.entries = witness(shared).told();
    drop(silent);

    shared.repeats.store(true, Ordering::Relaxed);
    let rest = plan.packets - plan.packets / 2;
    shared.left.store(rest, Ordering::Relaxed);
    let (during, ended) = loaded(stand, "b", &mut ledger, |stand| {
        until_sent(plan, shared, (0.5, "beside checked load"), stand, progress)
    });
    shared.rate.store(0, Ordering::Relaxed);
    report.ended = ended?;
    if !report.ended.is_empty() {
        return Ok(report);
    }
    reads.add(during?);
    report.reads = reads;
    progress("comparing with the database", 1.0);
    settle(stand)?;
    report.reads.hits = hits(stand)?;
    report.verdict = stand.at_redis(|redis| verify(&ledger, redis))?;
    report.invented = stand.at_redis(invented)?;
    let last = looks(stand)?;
    for (role, looks) in report.roles.iter_mut().zip(first.iter().zip(&last)) {
        role.count(looks);
    }
    Ok(report)
}

/// Returns the number of reads that the head answered with an update, from the front's counter.
fn hits(stand: &Stand) -> anyhow::Result<u64> {
    let hits = stand.metrics(FRONT)?.get(HITS).copied();
    let hits = hits.context("the front does not count its reads")?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count"
    )]
    let hits = hits as u64;
    Ok(hits)
}

fn witness(shared: &Shared) -> std::sync::MutexGuard<'_, Witness> {
    shared.witness.lock().expect("no tap panics")
}

/// Runs checked load and a reading client until `meanwhile` returns. Returns the results of the reading client, and the
/// result of `meanwhile`.
fn loaded<T>(
    stand: &mut Stand,
    part: &str,
    ledger: &mut Ledger,
    meanwhile: impl FnOnce(&mut Stand) -> T,
) -> (anyhow::Result<Reads>, T) {
    let stop = AtomicBool::new(false);
    let (client, endpoint) = (stand.namespace("client1"), stand.endpoint());
    let (client, stop) = (&client, &stop);
    std::thread::scope(|scope| {
        let load = scope.spawn(move || load(client, endpoint, part, ledger, stop));
        let reads = scope.spawn(move || clients::read(client, endpoint, part, stop));
        let result = meanwhile(stand);
        stop.store(true, Ordering::Relaxed);
        let (load, reads) = (load.join(), reads.join());
        let load = load.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let reads = reads.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (load.and(reads), result)
    })
}

/// Runs checked load, and meanwhile kills each role except the front once. Returns the names of the packet kinds that
/// the adversary saw, and the results of the reading client.
fn learn(
    stand: &mut Stand,
    shared: &Shared,
    ledger: &mut Ledger,
) -> anyhow::Result<(Vec<String>, Reads)> {
    let (reads, restarted) = loaded(stand, "a", ledger, |stand| {
        std::thread::sleep(LEARN);
        let roles: Vec<String> = stand.roles().cloned().collect();
        for role in roles.iter().filter(|role| *role != FRONT) {
            stand.restart(role)?;
            std::thread::sleep(LEARN / 2);
        }
        anyhow::Ok(())
    });
    let reads = reads?;
    restarted?;
    settle(stand)?;
    let seen = shared.hoard.read().expect("no tap panics").seen();
    ensure!(!seen.is_empty(), "the taps have seen nothing");
    let kinds = seen.iter().map(|(kind, _)| format!("{kind:?}")).collect();
    Ok((kinds, reads))
}

/// Runs checked load from the client's machine until it is stopped.
fn load(
    client: &str,
    endpoint: std::net::SocketAddr,
    part: &str,
    ledger: &mut Ledger,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    enter(client)?;
    let mut options = Options::new(endpoint);
    options.clients = CLIENTS;
    options.pipeline = 4;
    options.duration = Duration::from_secs(24 * 3_600);
    options.deadline = CALL_MAX;
    options.workload = Workload::Checked(CheckedOptions {
        prefix: format!("{PREFIX}{part}:"),
        ring: 100_000,
        lists: true,
        value_bytes: 300,
    });
    let mut record = |record: &Record| Ok(ledger.add(record)?);
    let hooks = Hooks {
        record: Some(&mut record),
        progress: None,
    };
    crate::load::run(&options, hooks, stop)?;
    Ok(())
}

/// Waits until the adversary has sent all its packets. Returns the roles whose process ended in the meantime.
fn until_sent(
    plan: &Plan,
    shared: &Shared,
    (from, what): (f64, &str),
    stand: &mut Stand,
    progress: &mut dyn FnMut(&str, f64),
) -> anyhow::Result<Vec<String>> {
    let all = shared.left.load(Ordering::Relaxed);
    // The attack is given up if the machine sends less than a hundredth of the rate.
    let patience = Duration::from_secs(60 + 100 * plan.packets / plan.rate.max(1));
    let begin = Instant::now();
    loop {
        let left = shared.left.load(Ordering::Relaxed);
        let sent = all.saturating_sub(left);
        #[expect(clippy::cast_precision_loss, reason = "a part, to be shown")]
        let part = from + 0.5 * sent as f64 / all.max(1) as f64;
        progress(what, part);
        if left == 0 {
            return stand.ended();
        }
        ensure!(
            begin.elapsed() < patience,
            "the adversary could not send its packets: {left} are left"
        );
        std::thread::sleep(LOOK);
    }
}

/// Waits until the database has all acknowledged updates.
fn settle(stand: &Stand) -> anyhow::Result<()> {
    let endpoint = stand.endpoint();
    stand.network.inside("client1", || {
        let is_value = |reply: &Reply| matches!(reply, Reply::Nil | Reply::Bulk(_));
        crate::harness::answered(endpoint, SETTLE_MAX, &["GET", "pmnet-settle"], is_value)
    })
}

/// Reads the counters of all roles.
fn looks(stand: &Stand) -> anyhow::Result<Vec<Look>> {
    let look = |role: &String| {
        anyhow::Ok(Look {
            metrics: stand.metrics(role)?,
            overrun: stand.overrun(role)?,
        })
    };
    stand.roles().map(look).collect()
}

/// Returns the number of keys in the database that no client wrote.
fn invented(redis: &mut Client) -> anyhow::Result<u64> {
    let (mut cursor, mut found) = ("0".to_owned(), 0);
    loop {
        let reply = redis.ask(&["SCAN", &cursor, "COUNT", "1000"])?;
        let Reply::Array(parts) = &reply else {
            anyhow::bail!("Redis answered SCAN with {reply:?}");
        };
        let [next, Reply::Array(keys)] = parts.as_slice() else {
            anyhow::bail!("Redis answered SCAN with {reply:?}");
        };
        let is_known = |key: &[u8]| key.starts_with(PREFIX.as_bytes()) || key.starts_with(b"pmnet");
        let others = keys
            .iter()
            .filter_map(Reply::bytes)
            .filter(|key| !is_known(key));
        found += u64::try_from(others.count())?;
        cursor = String::from_utf8_lossy(next.bytes().context("a cursor")?).into_owned();
        if cursor == "0" {
            return Ok(found);
        }
    }
}
