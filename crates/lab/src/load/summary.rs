//! The result of a run: counts, percentiles and the latency distribution.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::history::{Op, Outcome};

/// Longest latency that the histogram can hold, in nanoseconds. Longer latencies count as this latency.
const LATENCY_NS_MAX: u64 = 120_000_000_000;
/// Maximum number of different error texts that are kept.
const ERRORS_MAX: usize = 8;
/// Number of points of a CDF.
const CDF_POINTS: u32 = 400;

/// Latency percentiles of operations, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Number of acknowledged operations that were measured.
    pub count: u64,
    /// Shortest latency.
    pub min_us: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Longest latency.
    pub max_us: f64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Latency {
        if histogram.is_empty() {
            return Latency::default();
        }
        let at = |quantile| micros(histogram.value_at_quantile(quantile));
        Latency {
            count: histogram.len(),
            min_us: micros(histogram.min()),
            mean_us: (histogram.mean() / 10.0).round() / 100.0,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: micros(histogram.max()),
        }
    }
}

/// The result of a run. The counts include the warm-up; latencies and throughput exclude it.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Measured time in seconds.
    pub seconds: f64,
    /// Number of measured operations that were acknowledged, per second.
    pub throughput: f64,
    /// `closed` or `open`. In open loop, a latency begins at the moment at which the operation was due.
    pub mode: &'static str,
    /// Number of acknowledged operations.
    pub acknowledged: u64,
    /// Number of refused operations.
    pub failed: u64,
    /// Number of operations of unknown outcome.
    pub unknown: u64,
    /// Number of reconnects.
    pub reconnects: u64,
    /// In open loop: number of operations that were due at the end and not sent.
    pub backlog: u64,
    /// The first error texts, each with its number of occurrences.
    pub errors: BTreeMap<String, u64>,
    /// Latencies of all operations together.
    pub latency: Latency,
    /// Latencies by operation.
    pub by_operation: BTreeMap<&'static str, Latency>,
    /// Distribution of `latency`, as points (microseconds, fraction of operations at or below this time).
    #[serde(skip)]
    pub cdf: Vec<(f64, f64)>,
}

/// Collects the outcomes of a run.
pub struct Recorder {
    all: Histogram<u64>,
    by_operation: BTreeMap<Op, Histogram<u64>>,
    pub acknowledged: u64,
    pub failed: u64,
    pub unknown: u64,
    pub reconnects: u64,
    pub measured: u64,
    errors: BTreeMap<String, u64>,
}

impl Recorder {
    pub fn new() -> Recorder {
        Recorder {
            all: histogram(),
            by_operation: BTreeMap::new(),
            acknowledged: 0,
            failed: 0,
            unknown: 0,
            reconnects: 0,
            measured: 0,
            errors: BTreeMap::new(),
        }
    }

    /// Counts an outcome. `latency_ns` is `None` if the operation is not measured.
    pub fn count(&mut self, op: Op, outcome: Outcome, latency_ns: Option<u64>) {
        match outcome {
            Outcome::Ok => self.acknowledged += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::Unknown => self.unknown += 1,
        }
        if let Some(latency) = latency_ns.filter(|_| outcome == Outcome::Ok) {
            self.measured += 1;
            self.all.saturating_record(latency);
            self.by_operation
                .entry(op)
                .or_insert_with(histogram)
                .saturating_record(latency);
        }
    }

    /// Counts an error text. If there are already too many different texts, ignores a new text.
    pub fn error(&mut self, text: &str) {
        if self.errors.contains_key(text) || self.errors.len() < ERRORS_MAX {
            *self.errors.entry(text.to_owned()).or_default() += 1;
        }
    }

    /// Returns one of the kept error texts.
    pub fn first_error(&self) -> Option<String> {
        self.errors.keys().next().cloned()
    }

    pub fn summary(self, measured: Duration, open: bool, backlog: u64) -> Summary {
        let seconds = measured.as_secs_f64().max(1e-9);
        Summary {
            seconds: (seconds * 1e3).round() / 1e3,
            throughput: (float(self.measured) / seconds).round(),
            mode: if open { "open" } else { "closed" },
            acknowledged: self.acknowledged,
            failed: self.failed,
            unknown: self.unknown,
            reconnects: self.reconnects,
            backlog,
            errors: self.errors,
            latency: Latency::of(&self.all),
            by_operation: self
                .by_operation
                .iter()
                .map(|(op, histogram)| (op.name(), Latency::of(histogram)))
                .collect(),
            cdf: cdf(&self.all),
        }
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("constant bounds are valid")
}

fn micros(nanos: u64) -> f64 {
    (float(nanos) / 10.0).round() / 100.0
}

/// Converts a count to a float. The conversion is exact for counts up to 2^53, and no run has more.
pub fn float(count: u64) -> f64 {
    u32::try_from(count).map_or_else(
        |_| {
            let high = u32::try_from(count >> 32).unwrap_or(u32::MAX);
            let low = u32::try_from(count & 0xffff_ffff).unwrap_or(u32::MAX);
            f64::from(high) * 4_294_967_296.0 + f64::from(low)
        },
        f64::from,
    )
}

fn cdf(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    if histogram.is_empty() {
        return Vec::new();
    }
    let mut points = vec![(micros(histogram.min()), 0.0)];
    for step in 1..CDF_POINTS {
        let quantile = f64::from(step) / f64::from(CDF_POINTS);
        points.push((micros(histogram.value_at_quantile(quantile)), quantile));
    }
    // The tail is the most important part of the distribution, so it has finer steps.
    for quantile in [0.998, 0.999, 0.9995, 0.9999, 1.0] {
        points.push((micros(histogram.value_at_quantile(quantile)), quantile));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_counts() {
        let mut recorder = Recorder::new();
        for step in 1..=1000_u64 {
            recorder.count(Op::Set, Outcome::Ok, Some(step * 1000));
        }
        recorder.count(Op::Get, Outcome::Unknown, Some(7));
        recorder.count(Op::Get, Outcome::Ok, None);
        for number in 0..100 {
            recorder.error(&format!("ERR {}", number % 20));
        }
        let summary = recorder.summary(Duration::from_secs(2), true, 5);
        assert_eq!(summary.acknowledged, 1001);
        assert_eq!(summary.unknown, 1);
        assert!((summary.throughput - 500.0).abs() < 1e-6);
        assert!((summary.latency.p50_us - 500.0).abs() < 1.0);
        assert!((summary.latency.p99_us - 990.0).abs() < 2.0);
        assert_eq!(summary.errors.len(), ERRORS_MAX);
        assert!(
            summary
                .cdf
                .windows(2)
                .all(|w| w[0].0 <= w[1].0 && w[0].1 <= w[1].1)
        );
        assert_eq!(float(1 << 40), 1_099_511_627_776.0);
    }
}
