//! One run of one store, in a separate process. Its phases are: load, put, put in groups, get, scan, and half puts and
//! half gets. After the phases the process waits until it is killed; then another process opens the files of the store.

use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::engines::{self, Engine, Size, Store};
use crate::keys::{self, Keys, Values};
use crate::plan::{Cell, SCANNED};

/// Number of records that one step of the load makes durable together.
const LOADED: u64 = 1000;
/// Longest latency that the histogram distinguishes, in ns.
const LATENCY_MAX: u64 = 60_000_000_000;
/// Warm-up of a phase, as a fraction of its measured time.
const WARM_UP: f64 = 0.15;

/// The results of a phase.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Phase {
    /// Number of records written or read.
    pub operations: u64,
    /// Median time of one operation in µs. An operation is one put or get, one commit of a group,
    /// or one whole scan.
    pub p50_us: f64,
    /// 99th percentile of the time of one operation, in µs.
    pub p99_us: f64,
    /// Records per second.
    pub per_second: f64,
    /// CPU time of the whole process per record, in µs.
    pub cpu_us: f64,
}

/// The results of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// The phase of single durable writes.
    pub put: Phase,
    /// The phase of groups of writes that become durable together.
    pub group: Phase,
    /// The phase of reads by key.
    pub get: Phase,
    /// The phase of scans of records in the order of keys.
    pub scan: Phase,
    /// The phase with equal numbers of gets and puts.
    pub mixed: Phase,
    /// Memory that the process uses in addition to its memory before it opened the store, in bytes.
    /// Shared and mapped memory counts.
    pub memory_bytes: u64,
    /// Bytes written to the disk per byte of keys and values, including the load.
    pub write_amplification: Option<f64>,
    /// Size of the store's files per byte of the newest keys and values.
    pub space_amplification: f64,
    /// Time in ms from the start of opening the files of a killed run to the first answer.
    pub recovery_ms: f64,
}

/// Runs the phases, prints the result as JSON, and waits.
///
/// # Errors
/// The store fails, or a value differs from the written one.
pub fn main(
    engine: Engine,
    cell: &Cell,
    group: usize,
    duration: Duration,
    folder: &Path,
) -> anyhow::Result<()> {
    let mut keys = Keys::new(cell.keys, cell.choice, 5);
    let mut values = Values::new(cell.value_bytes);
    let before = status("VmRSS")?;
    let mut store = engines::open(engine, folder, cell.place, size(cell), true)?;
    let written = written_bytes()?;
    let mut records = load(&mut *store, cell.keys, &keys, &mut values)?;
    let mut run = Run {
        put: phase(duration, 1, || {
            let key = keys.draw();
            let record = (keys::name(key), values.next(key));
            timed(|| store.put(std::slice::from_ref(&record)))
        })?,
        group: phase(duration, group, || {
            let records: Vec<_> = (0..group)
                .map(|_| {
                    let key = keys.draw();
                    (keys::name(key), values.next(key))
                })
                .collect();
            timed(|| store.put(&records))
        })?,
        ..Run::default()
    };
    records += run.put.operations + run.group.operations;
    let mut value = Vec::new();
    run.get = phase(duration, 1, || {
        get(&mut *store, keys.draw(), &values, &mut value)
    })?;
    let scannable = cell.keys - u64::try_from(SCANNED)? + 1;
    run.scan = phase(duration, SCANNED, || {
        let from = keys::name(keys.draw() % scannable);
        let mut found = 0;
        let took = timed(|| {
            found = store.scan(&from, SCANNED, &mut value)?;
            Ok(())
        })?;
        ensure!(
            found == SCANNED && value.len() == found * cell.value_bytes,
            "a scan found something else"
        );
        Ok(took)
    })?;
    run.mixed = phase(duration, 1, || match keys.coin() {
        true => get(&mut *store, keys.draw(), &values, &mut value),
        false => {
            records += 1;
            let key = keys.draw();
            let record = (keys::name(key), values.next(key));
            timed(|| store.put(std::slice::from_ref(&record)))
        }
    })?;
    let record_bytes = f64_of(u64::try_from(keys::name(0).len() + cell.value_bytes)?);
    run.memory_bytes = status("VmRSS")?.saturating_sub(before);
    let wrote = written_bytes()? - written;
    run.write_amplification = (wrote > 0).then(|| f64_of(wrote) / (f64_of(records) * record_bytes));
    run.space_amplification = f64_of(disk_bytes(folder)?) / (f64_of(cell.keys) * record_bytes);
    println!("{}", serde_json::to_string(&run)?);
    std::io::stdout().flush()?;
    // Waits until the parent kills this process, so that the next open is a recovery after a crash.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Opens the files of a killed run, and prints in ms how long this took.
///
/// # Errors
/// The store fails, or a record is missing.
pub fn recover(engine: Engine, cell: &Cell, folder: &Path) -> anyhow::Result<()> {
    let values = Values::new(cell.value_bytes);
    let started = Instant::now();
    let mut store = engines::open(engine, folder, cell.place, size(cell), false)?;
    get(&mut *store, 0, &values, &mut Vec::new())?;
    println!("{}", millis(started.elapsed()));
    Ok(())
}

const fn size(cell: &Cell) -> Size {
    Size {
        keys: cell.keys,
        value_bytes: cell.value_bytes,
    }
}

fn load(
    store: &mut dyn Store,
    count: u64,
    keys: &Keys,
    values: &mut Values,
) -> anyhow::Result<u64> {
    let mut rank = 0;
    while rank < count {
        let end = count.min(rank + LOADED);
        let group: Vec<_> = (rank..end)
            .map(|rank| keys.at(rank))
            .map(|key| (keys::name(key), values.next(key)))
            .collect();
        store.put(&group)?;
        rank = end;
    }
    Ok(count)
}

fn get(
    store: &mut dyn Store,
    key: u64,
    values: &Values,
    value: &mut Vec<u8>,
) -> anyhow::Result<Duration> {
    let name = keys::name(key);
    let mut found = false;
    let took = timed(|| {
        found = store.get(&name, value)?;
        Ok(())
    })?;
    ensure!(
        found && values.is_of(value, key),
        "key {key} has not what was written"
    );
    Ok(took)
}

fn timed(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed())
}

/// Repeats an operation on `records` records until this time has passed.
fn phase(
    duration: Duration,
    records: usize,
    mut operation: impl FnMut() -> anyhow::Result<Duration>,
) -> anyhow::Result<Phase> {
    let records = u64::try_from(records)?;
    let mut operations = 0;
    let started = Instant::now();
    while started.elapsed() < duration.mul_f64(WARM_UP) {
        operation()?;
        operations += records;
    }
    let mut latencies = Histogram::<u64>::new_with_max(LATENCY_MAX, 3)?;
    let (started, cpu) = (Instant::now(), processor_time());
    while started.elapsed() < duration {
        latencies.saturating_record(u64::try_from(operation()?.as_nanos())?);
    }
    let (wall, cpu) = (started.elapsed(), processor_time() - cpu);
    let measured = latencies.len() * records;
    let at = |quantile| f64_of(latencies.value_at_quantile(quantile)) / 1000.0;
    Ok(Phase {
        operations: operations + measured,
        p50_us: at(0.5),
        p99_us: at(0.99),
        per_second: f64_of(measured) / wall.as_secs_f64(),
        cpu_us: cpu.as_secs_f64() * 1e6 / f64_of(measured.max(1)),
    })
}

fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// Converts a number for a ratio.
#[must_use]
#[expect(clippy::cast_precision_loss)]
pub const fn f64_of(number: u64) -> f64 {
    number as f64
}

/// Returns a duration in milliseconds.
#[must_use]
pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Returns the value of a line of `/proc/self/status`, in bytes.
fn status(name: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kib.context("no such line")?.parse::<u64>()? << 10)
}

/// Returns the number of bytes that this process has caused to be written to disks.
fn written_bytes() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/io")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(line.context("no such line")?.parse()?)
}

/// Returns how many bytes of the disk the files in a folder use.
fn disk_bytes(folder: &Path) -> anyhow::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        // The store may remove files during this loop.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        bytes += match metadata.is_dir() {
            true => disk_bytes(&entry.path())?,
            false => metadata.blocks() * 512,
        };
    }
    Ok(bytes)
}
