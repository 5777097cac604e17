//! The types of the demo's results.

use serde::Serialize;

use crate::check::Verdict;
use crate::load::Op;

/// The results of the demo.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Notes about programs that were used, and about programs that were missing.
    pub notes: Vec<String>,
    /// The measured cells.
    pub cells: Vec<Cell>,
    /// Number of kills of each process.
    pub kills: Vec<(String, u32)>,
    /// The longest call of the load in milliseconds. So this value includes the longest
    /// interruption after a kill.
    pub longest_call_ms: f64,
    /// The verdict about the checked load.
    pub verdict: Verdict,
    /// Duration of the whole demo in seconds.
    pub seconds: f64,
}

/// The figures for one stack, one operation and one number of clients.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Name of the stack, with medium and R.
    pub stack: &'static str,
    /// The operation that was measured.
    pub operation: Op,
    /// Number of clients.
    pub clients: usize,
    /// Operations per second, as the median over the rounds.
    pub throughput: f64,
    /// Median latency in microseconds, as the median over the rounds.
    pub p50_us: f64,
    /// 95th percentile of the latency in microseconds.
    pub p95_us: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: f64,
    /// Number of operations in all rounds that failed or had an unknown outcome.
    pub errors: u64,
    /// Longest time in milliseconds from the end of the load until the database had applied all
    /// operations.
    pub drain_ms: f64,
    /// CPU time per operation in microseconds, over all rounds, by process.
    pub cpu_us: Vec<(String, f64)>,
    /// The results of redis-benchmark for this cell.
    pub benchmark: Option<BenchRow>,
    /// The distribution of latencies in the round with the median p50, as points (microseconds,
    /// fraction).
    #[serde(skip)]
    pub cdf: Vec<(f64, f64)>,
}

/// The figures of one line of redis-benchmark. Latencies are in microseconds.
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
