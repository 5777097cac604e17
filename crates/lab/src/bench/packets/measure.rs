//! Measures the three servers in turn, in several rounds, with alternating order. Figures are medians over the rounds.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use pmnet_packets::{Options, Transport};
use serde::Serialize;

use super::generate::{self, Run};
use super::plan::{self, Place, Plan, Store};
use super::serve::{Served, Server};
use crate::bench::micro::{cpus, pin};
use crate::demo::view::View;
use crate::harness::namespaces::PREFIX;
use crate::harness::{Scratch, find_program};
use crate::testbed::{END_INTERFACE, Layout, Network};

const CLIENT: &str = "client1";
const SERVER: &str = "server";
const TARGET: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 51, 0, 200), 7_000);

/// One combination of server, log, queues and request size.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The server's work for a request.
    pub store: Store,
    /// The medium of the server's log.
    pub place: Place,
    /// Number of queues.
    pub queues: usize,
    /// Number of requests in flight on each queue.
    pub in_flight: usize,
    /// Size of a request in bytes.
    pub payload_bytes: usize,
    /// Number of measured requests in all rounds.
    pub requests: u64,
    /// Requests per second. The figures from here to `burst` are medians over the rounds.
    pub throughput: f64,
    /// Median round trip in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the round trip in microseconds.
    pub p99_us: f64,
    /// Time of the server's thread for one request in nanoseconds, as the median over the requests.
    pub server_ns: f64,
    /// The part of `server_ns` that storing takes: the difference to the server that stores nothing.
    pub storing_ns: Option<f64>,
    /// Number of requests that the server received in one turn of its loop.
    pub burst: f64,
    /// Gain in throughput over the server that copies into a log, in percent.
    pub more_throughput: Option<f64>,
    /// Reduction of the median latency against the server that copies into a log, in percent.
    pub less_latency: Option<f64>,
    /// The throughput of each round, sorted. The spread shows how far the rounds agree.
    pub rounds: Vec<f64>,
    /// Number of requests that were sent again, in all rounds.
    pub resends: u64,
}

impl Cell {
    /// Returns the properties that all cells of a comparison share.
    #[must_use]
    pub const fn group(&self) -> (Place, usize, usize, usize) {
        (self.place, self.queues, self.in_flight, self.payload_bytes)
    }
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The measurement and the machine.
    pub title: String,
    /// Notes for readers of the figures.
    pub notes: Vec<String>,
    /// The measured cells.
    pub cells: Vec<Cell>,
}

/// A server and its network. The network is dropped last.
struct Stand {
    server: Server,
    network: Network,
}

struct One {
    throughput: f64,
    p50_us: f64,
    p99_us: f64,
    server_ns: f64,
    burst: f64,
    requests: u64,
    resends: u64,
}

/// Measures all cells of the plan. For each cell that is impossible on this machine, adds a note to `notes`.
pub fn all(
    plan: &Plan,
    folder: &Path,
    stop: &AtomicBool,
    view: &View,
    notes: &mut Vec<String>,
) -> anyhow::Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for place in &plan.places {
        let huge = match place
            .is_huge()
            .then(|| plan::hugetlbfs(plan.bytes_together()))
        {
            None => None,
            Some(Ok(path)) => Some(path),
            Some(Err(reason)) => {
                if !notes.contains(&reason) {
                    notes.push(reason);
                }
                continue;
            }
        };
        for queues in &plan.queues {
            cells.extend(measure(
                plan,
                *place,
                *queues,
                huge.as_deref(),
                folder,
                stop,
                view,
            )?);
        }
    }
    Ok(cells)
}

/// A folder on hugetlbfs, which is removed when this value is dropped.
struct Huge(PathBuf);

impl Drop for Huge {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Measures all servers with one medium and this number of queues.
fn measure(
    plan: &Plan,
    place: Place,
    queues: usize,
    huge: Option<&Path>,
    folder: &Path,
    stop: &AtomicBool,
    view: &View,
) -> anyhow::Result<Vec<Cell>> {
    let scratch = Scratch::new(folder, "packets")?;
    let huge = huge.map(|path| Huge(path.join(format!("pmnet-packets-{}", std::process::id()))));
    let logs = match (place, &huge) {
        (Place::File, _) => scratch.disk(),
        (_, Some(huge)) => &huge.0,
        (_, None) => scratch.memory(),
    };
    let mut stands = Vec::new();
    for (number, store) in Store::value_variants().iter().enumerate() {
        view.step(&format!("setting up {}, {}", place.name(), store.name()), 0);
        ensure!(!stop.load(Ordering::Relaxed), "interrupted");
        let folder = logs.join(store.name());
        std::fs::create_dir_all(&folder)?;
        let stand = Stand::build(*store, place, queues, number, &folder, plan);
        stands.push(
            stand.with_context(|| {
                format!("{}, {queues} queue(s), {}", place.name(), store.name())
            })?,
        );
    }
    let mut cells = Vec::new();
    for payload_bytes in &plan.payloads {
        for in_flight in &plan.in_flight {
            let what = format!(
                "{}, {queues} queue(s), {payload_bytes} B, {in_flight} on their way",
                place.name()
            );
            let mut samples: Vec<Vec<One>> = stands.iter().map(|_| Vec::new()).collect();
            for round in 0..plan.rounds {
                let mut order: Vec<usize> = (0..stands.len()).collect();
                // The order of the servers alternates, so that it does not affect the result.
                if round % 2 == 1 {
                    order.reverse();
                }
                for index in order {
                    let store = stands[index].server.store();
                    view.step(
                        &format!(
                            "{what}, round {} of {}: {}",
                            round + 1,
                            plan.rounds,
                            store.name()
                        ),
                        1,
                    );
                    let run = Run {
                        target: TARGET,
                        store,
                        queues,
                        in_flight: *in_flight,
                        payload_bytes: *payload_bytes,
                        warmup: plan.warmup,
                        duration: plan.duration,
                        yields: cpus().len() < 2,
                    };
                    let one = one(&mut stands[index], &run, stop);
                    samples[index].push(one.with_context(|| format!("{}, {what}", store.name()))?);
                }
            }
            let group = stands.iter().zip(samples).map(|(stand, samples)| {
                let store = stand.server.store();
                cell((place, queues, *in_flight, *payload_bytes), store, &samples)
            });
            cells.extend(compare(group.collect()));
        }
    }
    Ok(cells)
}

impl Stand {
    fn build(
        store: Store,
        place: Place,
        queues: usize,
        number: usize,
        folder: &Path,
        plan: &Plan,
    ) -> anyhow::Result<Stand> {
        let prefix = format!("{PREFIX}{}-p{number}-", std::process::id());
        let network = Network::create(Layout::new(&prefix, 1, 0))?;
        for node in [CLIENT, SERVER] {
            network.inside(node, || set_queues(queues))?;
        }
        let options = Options {
            path: folder.join("region"),
            medium: place.medium(),
            bytes: plan.log_bytes,
            interfaces: vec![END_INTERFACE.into()],
            listen: TARGET.into(),
            transport: Transport::Udp,
        };
        let server = network.inside(SERVER, || {
            Server::open(store, place, folder, options, plan.kept)
        })?;
        Ok(Stand { server, network })
    }
}

/// Sets the number of queues of the interface in the calling thread's namespace.
fn set_queues(queues: usize) -> anyhow::Result<()> {
    let ethtool = find_program("ethtool").context("ethtool is not installed")?;
    let queues = queues.to_string();
    let output = Command::new(ethtool)
        .args(["-L", END_INTERFACE, "rx", &queues, "tx", &queues])
        .output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    // `ethtool` fails if the interface already has this number.
    ensure!(
        output.status.success() || error.contains("unmodified") || error.contains("no change"),
        "a veth pair cannot have {queues} queues: {}",
        error.trim()
    );
    Ok(())
}

/// Makes one run. The client uses the first core, and the server the last core.
fn one(stand: &mut Stand, what: &Run, stop: &AtomicBool) -> anyhow::Result<One> {
    let cpus = cpus();
    let (first, last) = (cpus.first().copied(), cpus.last().copied());
    let done = &AtomicBool::new(false);
    let (server, network) = (&mut stand.server, &stand.network);
    let (sample, served) = std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            pin(last);
            server.serve(what.yields, done)
        });
        let generating = scope.spawn(move || {
            network.enter(CLIENT)?;
            pin(first);
            generate::run(what, stop)
        });
        let sample = generating.join();
        done.store(true, Ordering::Relaxed);
        let served = serving.join();
        let served: anyhow::Result<Served> =
            served.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let sample = sample.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // If the server has failed, its error explains why the client got no answers.
        let served = served?;
        anyhow::Ok((sample?, served))
    })?;
    ensure!(
        served.last >= sample.last,
        "order {} was answered, and the server came to {}",
        sample.last,
        served.last
    );
    server.check(what.payload_bytes, served.last)?;
    let count = as_f64(sample.histogram.len());
    let micros = |quantile| {
        let nanos = sample.histogram.value_at_quantile(quantile);
        Duration::from_nanos(nanos).as_secs_f64() * 1e6
    };
    Ok(One {
        throughput: count / what.duration.as_secs_f64(),
        p50_us: micros(0.5),
        p99_us: micros(0.99),
        server_ns: as_f64(served.nanos.value_at_quantile(0.5)),
        burst: as_f64(served.requests) / as_f64(served.turns).max(1.0),
        requests: sample.histogram.len(),
        resends: sample.resends,
    })
}

/// All counts of a run are below 2^32.
fn as_f64(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn cell(group: (Place, usize, usize, usize), store: Store, samples: &[One]) -> Cell {
    let sorted = |figure: &dyn Fn(&One) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let median = |figure: &dyn Fn(&One) -> f64| {
        let values = sorted(figure);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    let (place, queues, in_flight, payload_bytes) = group;
    Cell {
        store,
        place,
        queues,
        in_flight,
        payload_bytes,
        requests: samples.iter().map(|one| one.requests).sum(),
        throughput: median(&|one| one.throughput),
        p50_us: median(&|one| one.p50_us),
        p99_us: median(&|one| one.p99_us),
        server_ns: median(&|one| one.server_ns),
        storing_ns: None,
        burst: median(&|one| one.burst),
        more_throughput: None,
        less_latency: None,
        rounds: sorted(&|one| one.throughput),
        resends: samples.iter().map(|one| one.resends).sum(),
    }
}

/// Computes the percentages for the cells of one group.
fn compare(mut cells: Vec<Cell>) -> Vec<Cell> {
    let nothing = cells.iter().find(|cell| cell.store == Store::Nothing);
    if let Some(server_ns) = nothing.map(|cell| cell.server_ns) {
        for cell in cells.iter_mut().filter(|cell| cell.store != Store::Nothing) {
            cell.storing_ns = Some(cell.server_ns - server_ns);
        }
    }
    let copied = cells.iter().find(|cell| cell.store == Store::Copied);
    let Some((throughput, p50)) = copied.map(|cell| (cell.throughput, cell.p50_us)) else {
        return cells;
    };
    for cell in cells.iter_mut().filter(|cell| cell.store != Store::Copied) {
        cell.more_throughput =
            (throughput > 0.0).then(|| (cell.throughput / throughput - 1.0) * 100.0);
        cell.less_latency = (p50 > 0.0).then(|| (1.0 - cell.p50_us / p50) * 100.0);
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(throughput: f64, p50_us: f64) -> One {
        One {
            throughput,
            p50_us,
            p99_us: 0.0,
            server_ns: p50_us * 100.0,
            burst: 1.0,
            requests: 10,
            resends: 1,
        }
    }

    #[test]
    fn figures_are_medians_and_percentages_are_of_copying() {
        let near = |value: Option<f64>, wanted: f64| (value.unwrap() - wanted).abs() < 1e-9;
        let group = (Place::Tmpfs, 1, 32, 64);
        let copied = [one(50.0, 20.0), one(100.0, 10.0), one(120.0, 8.0)];
        let buffers = [one(150.0, 5.0), one(10.0, 90.0), one(151.0, 4.0)];
        let mut cells = compare(vec![
            cell(group, Store::Nothing, &[one(200.0, 2.0)]),
            cell(group, Store::Copied, &copied),
            cell(group, Store::Buffers, &buffers),
        ]);
        let nothing = cells.remove(0);
        assert!(near(nothing.more_throughput, 100.0) && nothing.storing_ns.is_none());
        assert!(near(cells[0].storing_ns, 800.0) && near(cells[1].storing_ns, 300.0));
        assert!(near(cells[1].more_throughput, 50.0), "{cells:?}");
        assert!(near(cells[1].less_latency, 50.0), "{cells:?}");
        assert_eq!(cells[0].more_throughput, None);
        assert_eq!((cells[1].requests, cells[1].resends), (30, 3));
        assert_eq!(cells[0].rounds, [50.0, 100.0, 120.0]);
    }
}
