//! The results of the demo.

use serde::Serialize;

use crate::check::Verdict;
use crate::load::Op;

/// The results of the demo.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// What was used and what was missing.
    pub notes: Vec<String>,
    /// The measurements.
    pub cells: Vec<Cell>,
    /// How often each process was killed.
    pub kills: Vec<(String, u32)>,
    /// Longest time from a kill until load went on is part of the load's own maximum, in ms.
    pub longest_call_ms: f64,
    /// The verdict.
    pub verdict: Verdict,
    /// All of it, in seconds.
    pub seconds: f64,
}

/// One combination of stack, operation and number of clients.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Name of the stack, with medium and R.
    pub stack: &'static str,
    /// The operation.
    pub operation: Op,
    /// Number of clients.
    pub clients: usize,
    /// Operations a second (median over the rounds).
    pub throughput: f64,
    /// Medians over the rounds, in microseconds.
    pub p50_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Operations that failed or stayed unknown, all rounds.
    pub errors: u64,
    /// Longest time from the end of the load until everything was in the database, in ms.
    pub drain_ms: f64,
    /// CPU time per operation, in microseconds, by process (all rounds).
    pub cpu_us: Vec<(String, f64)>,
    /// The same from redis-benchmark.
    pub benchmark: Option<BenchRow>,
    /// Distribution of the round with the median p50: (microseconds, fraction).
    #[serde(skip)]
    pub cdf: Vec<(f64, f64)>,
}

/// A line of redis-benchmark, latencies in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchRow {
    /// Requests a second.
    pub throughput: f64,
    /// Median.
    pub p50_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
}
