//! `pmnet-lab bench packets`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pmnet_cli::{ConfigError, bytes, on_signals};

use super::values::{ROUNDS_MAX, between, each_once, times};
use crate::bench::micro::Output;
use crate::bench::packets::{
    self, IN_FLIGHT_MAX, PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MIN, Place, Plan, QUEUES_MAX,
};

const EXAMPLES: &str = "\
Examples:
  pmnet-lab bench packets
  pmnet-lab bench packets --media tmpfs,tmpfs-flushed --payloads 64,256,512,1024,1400 --rounds 7
  pmnet-lab bench packets --media file --seconds 1 --in-flight 1,64 --json

Needs root, iproute2, util-linux and ethtool, a pmnet that was built with clang, and for hugetlbfs a mount with free \
pages. Prints a table on stdout, and writes bars to OUT/packets.html and numbers to OUT/packets.json.";

/// Maximum duration of one run in seconds.
const SECONDS_MAX: f64 = 600.0;
/// Bounds for the size of the packet buffers, in bytes. The minimum is enough for every queue. With the maximum, three
/// such files still fit on usual machines.
const LOG_BYTES: std::ops::RangeInclusive<u64> = (4 << 20)..=(4 << 30);

/// Options of `pmnet-lab bench packets`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PacketsArgs {
    /// Media of the log to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Place::value_variants().to_vec(), value_name = "MEDIA")]
    media: Vec<Place>,
    /// Sizes of a request in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 512, 1400], value_name = "BYTES")]
    payloads: Vec<usize>,
    /// Numbers of queues of the interface; one thread serves all of them.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2], value_name = "N")]
    queues: Vec<usize>,
    /// Numbers of requests in flight on each queue.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 32], value_name = "N")]
    in_flight: Vec<usize>,
    /// Size of the packet buffers, and of the frames of the log that is copied into. The larger they are, the less of
    /// them fits into the processor's caches.
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    log_size: String,
    /// Number of requests that are kept before the oldest is dropped [default: three quarters of the buffers]. A log of
    /// pmnet keeps only a few requests while its server keeps up.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(64..))]
    kept: Option<u64>,
    /// Duration of one run's measurement in seconds.
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Number of runs of each combination. Figures are medians over the runs.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=i64::from(ROUNDS_MAX)))]
    rounds: u16,
    /// Folder for the report and, with --media file, for the logs during the measurement.
    #[arg(long, default_value = "target/bench", value_name = "FOLDER")]
    out: PathBuf,
    /// Print the result as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark.
pub fn main(args: &PacketsArgs) -> anyhow::Result<bool> {
    let plan = plan(args)?;
    let output = Output {
        folder: args.out.clone(),
        json: args.json,
    };
    packets::main(&plan, &output, &*on_signals()?)?;
    Ok(true)
}

fn plan(args: &PacketsArgs) -> Result<Plan, ConfigError> {
    let (duration, warmup) = times(args.seconds, SECONDS_MAX)?;
    let log_bytes = bytes("--log-size", &args.log_size)?;
    if !LOG_BYTES.contains(&log_bytes) {
        return Err(ConfigError(format!(
            "--log-size {}: from {} MiB to {} MiB",
            args.log_size,
            LOG_BYTES.start() >> 20,
            LOG_BYTES.end() >> 20
        )));
    }
    Ok(Plan {
        places: each_once(&args.media),
        payloads: between(
            "--payloads",
            &args.payloads,
            PAYLOAD_BYTES_MIN,
            PAYLOAD_BYTES_MAX,
        )?,
        queues: between("--queues", &args.queues, 1, QUEUES_MAX)?,
        in_flight: between("--in-flight", &args.in_flight, 1, IN_FLIGHT_MAX)?,
        log_bytes,
        kept: args.kept,
        duration,
        warmup,
        rounds: usize::from(args.rounds),
    })
}
