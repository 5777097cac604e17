//! The types of the demo's results.

use serde::Serialize;

use crate::check::Verdict;
use crate::load::Op;

/// The results of the demo.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Programs that were used, and programs that were missing.
    pub notes: Vec<String>,
    /// The measured cells.
    pub cells: Vec<Cell>,
    /// Number of kills of each process.
    pub kills: Vec<(String, u32)>,
    /// The longest call of the load in ms; it includes the longest time from a kill until the load
    /// went on.
    pub longest_call_ms: f64,
    /// The verdict about the checked load.
    pub verdict: Verdict,
    /// Duration of the whole demo in seconds.
    pub seconds: f64,
}

/// One combination of stack, operation and number of clients.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The name of the stack, with medium and R.
    pub stack: &'static str,
    /// The operation.
    pub operation: Op,
    /// Number of clients.
    pub clients: usize,
    /// Operations per second (median over the rounds).
    pub throughput: f64,
    /// Median latency in microseconds (median over the rounds).
    pub p50_us: f64,
    /// 95th percentile of the latency in microseconds.
    pub p95_us: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: f64,
    /// Number of operations in all rounds that failed or had an unknown outcome.
    pub errors: u64,
    /// Longest time in ms from the end of the load until all operations were in the database.
    pub drain_ms: f64,
    /// CPU time per operation in microseconds, by process (all rounds).
    pub cpu_us: Vec<(String, f64)>,
    /// The results of redis-benchmark for this cell.
    pub benchmark: Option<BenchRow>,
    /// The latency distribution of the round with the median p50: (microseconds, fraction).
    #[serde(skip)]
    pub cdf: Vec<(f64, f64)>,
}

/// A line of redis-benchmark, latencies in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchRow {
    /// Requests per second.
    pub throughput: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
}
