//! The demo's measurements with redis-benchmark, the tool that Redis users know.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::outcome::{BenchRow, Cell};
use super::plan::{KEYS, Plan, VALUE_BYTES};
use super::view::View;
use crate::setup::Running;

/// Approximate duration of one run.
const RUN_SECONDS: f64 = 0.5;
/// Minimum and maximum number of requests of a run.
const REQUESTS: (u64, u64) = (200, 200_000);
/// Time after which a run is given up.
const RUN_MAX: Duration = Duration::from_secs(15);
/// Interval at which this process checks whether a run has ended.
const LOOK: Duration = Duration::from_millis(5);

/// Runs redis-benchmark for every cell. The number of requests follows from the measured rate.
pub fn all(
    plan: &Plan,
    running: &[Running],
    cells: &mut [Cell],
    stop: &AtomicBool,
    view: &View,
) -> anyhow::Result<()> {
    for cell in cells {
        anyhow::ensure!(!stop.load(Ordering::Relaxed), "interrupted");
        let name = cell.operation.name();
        view.step(
            &format!("redis-benchmark {name}, {}: {}", cell.clients, cell.stack),
            1,
        );
        let index = plan
            .stacks
            .iter()
            .position(|stack| stack.name == cell.stack)
            .context("a measurement of no stack")?;
        let requests = Duration::try_from_secs_f64(cell.throughput * RUN_SECONDS)
            .map_or(REQUESTS.0, |count| count.as_secs())
            .clamp(REQUESTS.0, REQUESTS.1);
        let running = &running[index];
        let endpoint = running.endpoint()?;
        match running.inside(|| one(endpoint, name, cell.clients, requests)) {
            Ok(row) => cell.benchmark = Some(row),
            Err(error) => view.say(&format!("redis-benchmark, {}: {error:#}", cell.stack)),
        }
        running.settle()?;
    }
    Ok(())
}

fn one(
    endpoint: SocketAddr,
    test: &str,
    clients: usize,
    requests: u64,
) -> anyhow::Result<BenchRow> {
    let mut child = Command::new("redis-benchmark")
        .args(["-h", &endpoint.ip().to_string()])
        .args(["-p", &endpoint.port().to_string(), "-t", test])
        .args(["-c", &clients.to_string(), "-n", &requests.to_string()])
        .args(["-d", &VALUE_BYTES.to_string(), "-r", &KEYS.to_string()])
        .arg("--csv")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start it")?;
    let deadline = Instant::now() + RUN_MAX;
    // redis-benchmark prints only a few lines. The lines fit into the pipe, so they can be read
    // after its end.
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("did not end within {} s", RUN_MAX.as_secs());
        }
        std::thread::sleep(LOOK);
    }
    let output = child.wait_with_output()?;
    parse(&String::from_utf8_lossy(&output.stdout))
        .context("its output was not understood (Redis 6.2 or later is needed)")
}

fn parse(csv: &str) -> Option<BenchRow> {
    let mut lines = csv.lines().filter(|line| line.starts_with('"'));
    let header: Vec<_> = lines.next()?.split(',').map(unquote).collect();
    let row: Vec<_> = lines.next()?.split(',').map(unquote).collect();
    let field = |name: &str| -> Option<f64> {
        let column = header.iter().position(|title| *title == name)?;
        row.get(column)?.parse().ok()
    };
    Some(BenchRow {
        throughput: field("rps")?,
        p50_us: field("p50_latency_ms")? * 1e3,
        p95_us: field("p95_latency_ms")? * 1e3,
        p99_us: field("p99_latency_ms")? * 1e3,
    })
}

fn unquote(field: &str) -> &str {
    field.trim().trim_matches('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_csv_of_redis_benchmark() {
        let csv = "WARNING: something\n\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\
                   \"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                   \"SET\",\"5000.00\",\"0.190\",\"0.1\",\"0.183\",\"0.215\",\"0.311\",\"0.9\"\n";
        let row = parse(csv).unwrap();
        assert!((row.throughput - 5000.0).abs() < 1e-9);
        assert!((row.p50_us - 183.0).abs() < 1e-6);
        assert!((row.p99_us - 311.0).abs() < 1e-6);
        assert_eq!(parse("SET: 5000.0"), None);
    }
}
