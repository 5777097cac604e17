//! Measures all systems in turn, in several rounds. Figures are medians over the rounds.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use super::carrier::ClientIo;
use super::generate::{Run, Sample, run};
use super::handler::Ideal;
use super::plan::Plan;
use super::programs::InC;
use super::stand::{CLIENT, Stand};
use super::system::{Answers, System};
use super::troubles::Troubles;
use crate::demo::view::View;
use crate::harness::Scratch;

/// Longest wait until the handler has bound its socket. Usually this takes far less.
const BIND_MAX: Duration = Duration::from_secs(5);
/// Number of points of a CDF below its tail.
const CDF_POINTS: u32 = 400;
/// Quantiles of the points in the tail of a CDF.
const CDF_TAIL: [f64; 5] = [0.998, 0.999, 0.9995, 0.9999, 1.0];

/// One combination of system, payload and number of clients.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The system under test.
    pub system: System,
    /// Title of the system, with the medium of the log and the number of devices R.
    pub title: String,
    /// How the clients send and receive.
    pub client_io: ClientIo,
    /// Size of an update in bytes.
    pub payload_bytes: usize,
    /// Number of sessions.
    pub clients: usize,
    /// Number of measured updates in all rounds.
    pub updates: u64,
    /// Updates per second. Throughput and the three latencies are medians over the rounds.
    pub throughput: f64,
    /// Median round trip in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the round trip in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile of the round trip in microseconds.
    pub p999_us: f64,
    /// Median round trip of each round in microseconds, sorted. The spread shows how far the rounds agree.
    pub rounds_p50_us: Vec<f64>,
    /// p50 of the baseline divided by p50 of this cell. The baseline is the same path with a device that only forwards.
    pub faster: Option<f64>,
    /// p50 of this cell divided by p50 of [`System::Limit`], which is the minimum.
    pub of_limit: Option<f64>,
    /// For libpmnet: the p50 of libpmnet divided by the p50 of the Rust client in the same round, as the median over
    /// the rounds.
    pub of_rust: Option<f64>,
    /// Number of devices that held each update before its acknowledgement.
    pub copies: u8,
    /// Numbers of resends and other irregularities in all rounds.
    pub troubles: Troubles,
    /// The distribution of round trips in the round with the median p50, as points (microseconds, fraction of updates
    /// at or below this time).
    pub cdf: Vec<(f64, f64)>,
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Title: the measurement and the machine, with medium and R.
    pub title: String,
    /// Facts that a reader of the figures must know.
    pub notes: Vec<String>,
    /// The figures.
    pub cells: Vec<Cell>,
}

/// Measures all cells of the plan.
pub fn all(
    plan: &Plan,
    folder: &Path,
    stop: &AtomicBool,
    view: &View,
) -> anyhow::Result<Vec<Cell>> {
    let scratch = Scratch::new(folder, "micro")?;
    let mut stands = Vec::new();
    for (number, system) in plan.systems.iter().enumerate() {
        view.step(&format!("setting up {}", system.name()), 0);
        ensure!(!stop.load(Ordering::Relaxed), "interrupted");
        let stand = Stand::build(*system, number).and_then(|mut stand| {
            stand.serve(plan.medium, "null:", &scratch)?;
            Ok(stand)
        });
        stands.push(stand.with_context(|| format!("cannot set up {}", system.name()))?);
    }
    let in_c = plan
        .client_io
        .contains(&ClientIo::Libpmnet)
        .then(|| InC::compile(scratch.disk()))
        .transpose()?;
    let mut cells = Vec::new();
    for payload_bytes in &plan.payloads {
        for clients in &plan.clients {
            for client_io in plan
                .client_io
                .chunk_by(|a, b| a.is_program() && b.is_program())
            {
                let group = Group {
                    payload_bytes: *payload_bytes,
                    clients: *clients,
                    client_io,
                    in_c: in_c.as_ref(),
                };
                cells.extend(measure(plan, group, &mut stands, stop, view)?);
            }
        }
    }
    Ok(cells)
}

/// The systems and clients that are compared with each other.
#[derive(Clone, Copy)]
struct Group<'a> {
    payload_bytes: usize,
    clients: usize,
    client_io: &'a [ClientIo],
    in_c: Option<&'a InC>,
}

/// Measures all systems in turn.
fn measure(
    plan: &Plan,
    group: Group<'_>,
    stands: &mut [Stand],
    stop: &AtomicBool,
    view: &View,
) -> anyhow::Result<Vec<Cell>> {
    let mut rows = Vec::new();
    for (index, stand) in stands.iter_mut().enumerate() {
        for client_io in group.client_io {
            // All clients of a group need the same program at the client's end.
            stand.clients_by(*client_io)?;
            rows.push((index, *client_io));
        }
    }
    let mut samples: Vec<Vec<Sample>> = rows.iter().map(|_| Vec::new()).collect();
    for round in 0..plan.rounds {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        // The order of the rows alternates, so that it does not affect the result.
        if round % 2 == 1 {
            order.reverse();
        }
        for row in order {
            let (index, client_io) = rows[row];
            let name = plan.systems[index].name();
            let what = format!(
                "{} B, {} {}(s)",
                group.payload_bytes,
                group.clients,
                client_io.title()
            );
            view.step(
                &format!("{what}, round {} of {}: {name}", round + 1, plan.rounds),
                1,
            );
            let run = Run {
                recipe: stands[index].recipe,
                key: stands[index].front_key()?,
                key_file: stands[index].front_key_file(),
                in_c: group.in_c,
                client_io,
                payload_bytes: group.payload_bytes,
                clients: group.clients,
                warmup: plan.warmup,
                duration: plan.duration,
            };
            let sample = one(&stands[index], &run, plan, stop);
            samples[row].push(sample.with_context(|| format!("{name}, {what}"))?);
        }
    }
    let ratios = of_rust(&rows, &samples);
    let mut cells = Vec::new();
    for (((index, client_io), samples), of_rust) in rows.into_iter().zip(samples).zip(ratios) {
        cells.push(Cell {
            of_rust,
            ..cell(plan.systems[index], client_io, plan, group, samples)
        });
    }
    Ok(compare(cells))
}

/// Returns a ratio for each row of libpmnet: in each round, the p50 of the row is divided by the p50 of the Rust client
/// with the same system. The ratio is the median over the rounds; `None` for rows of other clients.
fn of_rust(rows: &[(usize, ClientIo)], samples: &[Vec<Sample>]) -> Vec<Option<f64>> {
    let p50 = |sample: &Sample| micros(sample.histogram.value_at_quantile(0.5));
    let ratio = |(row, (system, client_io)): (usize, &(usize, ClientIo))| {
        let rust = rows
            .iter()
            .position(|row| *row == (*system, ClientIo::Session));
        let rust = rust.filter(|_| *client_io == ClientIo::Libpmnet)?;
        let pairs = samples[row].iter().zip(&samples[rust]);
        let figures = pairs.map(|(own, rust)| (p50(own), p50(rust)));
        // On a busy machine a short round may have no completed update. Such a round has no ratio.
        let figures = figures.filter(|(own, rust)| *own > 0.0 && *rust > 0.0);
        median(figures.map(|(own, rust)| own / rust).collect())
    };
    rows.iter().enumerate().map(ratio).collect()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Makes one run. The generator runs in the namespace of [`CLIENT`] on the first core. The handler, if the system has
/// one, runs in the namespace of `server` on the last core.
fn one(stand: &Stand, what: &Run<'_>, plan: &Plan, stop: &AtomicBool) -> anyhow::Result<Sample> {
    let cpus = cpus();
    let (first, last) = (cpus.first().copied(), cpus.last().copied());
    let done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut serving = None;
        if what.recipe.answers == Answers::Handler {
            let (ready, listens) = mpsc::channel::<()>();
            serving = Some(scope.spawn(move || {
                stand.network.enter("server")?;
                pin(last);
                let ideal = Ideal::bind(what.recipe.target, plan.handler)?;
                drop(ready);
                ideal.serve(done)
            }));
            // The wait ends when the other thread drops the sender. The thread drops the sender as soon as the handler
            // listens, or fails to listen.
            let _ = listens.recv_timeout(BIND_MAX);
        }
        let generating = scope.spawn(move || {
            stand.network.enter(CLIENT)?;
            pin(first);
            run(what, stop)
        });
        let sample = generating.join();
        done.store(true, Ordering::Relaxed);
        if let Some(serving) = serving {
            let served = serving.join();
            served.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        sample.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Returns the cores that this process may use.
pub fn cpus() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect()
}

/// Pins the calling thread to a core, because the thread never sleeps and a migration to another core would disturb the
/// measurement. If pinning fails, the thread continues unpinned.
pub fn pin(cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        let mut set = CpuSet::new();
        set.set(cpu);
        let _ = sched_setaffinity(None, &set);
    }
}

fn cell(
    system: System,
    client_io: ClientIo,
    plan: &Plan,
    group: Group<'_>,
    mut samples: Vec<Sample>,
) -> Cell {
    samples.sort_by_key(|sample| sample.histogram.value_at_quantile(0.5));
    let median = |figure: &dyn Fn(&Sample) -> f64| {
        median(samples.iter().map(figure).collect()).unwrap_or(0.0)
    };
    let at =
        |quantile: f64| median(&move |sample| micros(sample.histogram.value_at_quantile(quantile)));
    let mut troubles = Troubles::default();
    for sample in &samples {
        troubles.add(&sample.troubles);
    }
    let middle = samples.get(samples.len() / 2);
    Cell {
        system,
        title: system.title(plan.medium),
        client_io,
        payload_bytes: group.payload_bytes,
        clients: group.clients,
        updates: samples.iter().map(|sample| sample.histogram.len()).sum(),
        throughput: median(&|sample| {
            // One round has fewer than 2^32 updates.
            let count = u32::try_from(sample.histogram.len()).unwrap_or(u32::MAX);
            f64::from(count) / sample.seconds
        }),
        p50_us: at(0.5),
        p99_us: at(0.99),
        p999_us: at(0.999),
        rounds_p50_us: samples
            .iter()
            .map(|sample| micros(sample.histogram.value_at_quantile(0.5)))
            .collect(),
        faster: None,
        of_limit: None,
        of_rust: None,
        copies: samples
            .iter()
            .map(|sample| sample.copies)
            .min()
            .unwrap_or(0),
        troubles,
        cdf: middle
            .map(|sample| cdf(&sample.histogram))
            .unwrap_or_default(),
    }
}

/// Computes the ratios of the cells of one group.
fn compare(mut cells: Vec<Cell>) -> Vec<Cell> {
    let medians: Vec<(System, f64)> = cells
        .iter()
        .map(|cell| (cell.system, cell.p50_us))
        .collect();
    let of = |system: System| {
        let mut found = medians
            .iter()
            .filter(|(other, p50)| *other == system && *p50 > 0.0);
        found.next().map(|(_, p50)| *p50)
    };
    for cell in cells.iter_mut().filter(|cell| cell.p50_us > 0.0) {
        let baseline = cell.system.recipe().baseline.and_then(of);
        cell.faster = baseline.map(|baseline| baseline / cell.p50_us);
        cell.of_limit = of(cell.system.limit()).map(|limit| cell.p50_us / limit);
    }
    cells
}

fn cdf(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    if histogram.is_empty() {
        return Vec::new();
    }
    let steps = (0..CDF_POINTS).map(|step| f64::from(step) / f64::from(CDF_POINTS));
    steps
        .chain(CDF_TAIL)
        .map(|quantile| (micros(histogram.value_at_quantile(quantile)), quantile))
        .collect()
}

fn micros(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::micro::{Handler, Medium};

    fn sample(nanos: u64, updates: u64) -> Sample {
        let mut histogram = Histogram::new_with_bounds(1, 1_000_000, 3).unwrap();
        histogram.record_n(nanos, updates).unwrap();
        Sample {
            histogram,
            seconds: 2.0,
            troubles: Troubles {
                resends: 1,
                ..Troubles::default()
            },
            copies: 1,
        }
    }

    #[test]
    fn figures_are_medians_and_ratios_are_of_medians() {
        let plan = Plan {
            systems: vec![System::Limit, System::ClientServer, System::Relay],
            payloads: vec![50],
            clients: vec![1],
            client_io: vec![ClientIo::AfXdp],
            duration: Duration::from_secs(2),
            warmup: Duration::ZERO,
            rounds: 3,
            handler: Handler::Spins,
            medium: Medium::Dram,
        };
        let make = |system, scale: u64| {
            let samples = [30, 10, 20].map(|n| sample(n * scale, 100 * n));
            let group = Group {
                payload_bytes: 50,
                clients: 1,
                client_io: &plan.client_io,
                in_c: None,
            };
            cell(system, ClientIo::AfXdp, &plan, group, samples.into())
        };
        let cells = compare(vec![
            make(System::Limit, 100),
            make(System::ClientServer, 400),
            make(System::Relay, 200),
        ]);
        let relay = &cells[2];
        assert!((relay.p50_us - 4.0).abs() < 0.01);
        assert!((relay.throughput - 1000.0).abs() < 0.01);
        assert_eq!((relay.updates, relay.troubles.resends), (6000, 3));
        assert!((relay.faster.unwrap() - 2.0).abs() < 0.01);
        assert!((relay.of_limit.unwrap() - 2.0).abs() < 0.01);
        assert_eq!(cells[1].faster, None);
        assert_eq!(relay.title, "relay (DRAM, R = 1)");
        assert!(relay.cdf.windows(2).all(|pair| pair[0].1 < pair[1].1));
    }

    #[test]
    fn libpmnet_is_compared_with_the_rust_client_of_the_same_round_and_system() {
        let rows = [
            (0, ClientIo::Session),
            (0, ClientIo::Libpmnet),
            (1, ClientIo::Session),
            (1, ClientIo::Libpmnet),
        ];
        // In this example the machine becomes slower from round to round.
        let rounds =
            |scale: u64| -> Vec<Sample> { [1, 2, 4].map(|slow| sample(scale * slow, 10)).into() };
        let samples = [rounds(100), rounds(110), rounds(1000), rounds(900)];
        let ratios = of_rust(&rows, &samples);
        assert_eq!((ratios[0], ratios[2]), (None, None));
        assert!((ratios[1].unwrap() - 1.1).abs() < 0.01);
        assert!((ratios[3].unwrap() - 0.9).abs() < 0.01);
        assert_eq!(of_rust(&rows[1..2], &samples[1..2]), [None]);
    }
}
