//! `pmnet-lab bench pipeline`.

use clap::{Args, ValueEnum};
use pmnet_cli::{ConfigError, bytes, on_signals};
use pmnet_log::Parameters;

use super::values::{between, each_once};
use crate::bench::pipeline::{
    self, BATCH_MAX, BATCHES_IN_LOG, BESIDE_MAX, Packet, Plan, SESSIONS_MAX, TAKEN_MAX, Tags,
};

const EXAMPLES: &str = "\
Examples:
  pmnet-lab bench pipeline
  pmnet-lab bench pipeline --packets update --payloads 100 --rounds 1001
  pmnet-lab bench pipeline --packets update,duplicate,tcp --sessions 1,64,4096 --json
  pmnet-lab bench pipeline --packets update --log-size 1M --batch 200
  pmnet-lab bench pipeline --packets update,tcp --beside 3
  pmnet-lab bench pipeline --packets update,duplicate,read-hit --payloads 0,100,1000,1344 --keyed

Needs root, Linux 5.18 and a pmnet that was built with clang, but no interface and no namespace. It can run while \
devices on this machine serve, and removes everything at its end. Prints a table or JSON on stdout.";

/// Bytes for frames that a log has for each of its entries.
const FRAME_BYTES_PER_ENTRY: u64 = 512;
/// Maximum number of bytes for frames that a log in the kernel has.
const FRAME_BYTES_MAX: u64 = 256 << 20;
/// Maximum number of rounds.
const ROUNDS_MAX: u16 = 10_001;

/// Options of `pmnet-lab bench pipeline`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PipelineArgs {
    /// Kinds of packets to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Packet::value_variants().to_vec(), value_name = "KINDS")]
    packets: Vec<Packet>,
    /// Sizes of the payload of `update` in bytes, 0 to 1344. The payload of other updates has 100 bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 50, 100, 400, 1000, 1344], value_name = "BYTES")]
    payloads: Vec<usize>,
    /// Numbers of sessions. Successive packets belong to different sessions.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64], value_name = "N")]
    sessions: Vec<usize>,
    /// Number of packets of one run, which is one system call.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=i64::from(BATCH_MAX)))]
    batch: u32,
    /// Number of runs of each row, with and without the pipeline. Figures are medians over the runs.
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u16).range(1..=i64::from(ROUNDS_MAX)))]
    rounds: u16,
    /// Size of the log's frames, a power of two. The larger the log, the less of it fits into the processor's caches.
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    log_size: String,
    /// Number of other devices at the same interface. A first program compares the packet's port with the port of each
    /// of them, and then calls the measured device's program.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=i64::from(BESIDE_MAX)))]
    beside: u16,
    /// Give the device a lease, as in a fleet. The pipeline then reads the clock before each answer.
    #[arg(long)]
    leased: bool,
    /// Also measure a shard with keys, in turn with the shard without keys. Its packets have MACs, which are verified.
    #[arg(long)]
    keyed: bool,
    /// Print the result as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark.
pub fn main(args: &PipelineArgs) -> anyhow::Result<bool> {
    let plan = plan(args)?;
    pipeline::main(&plan, args.json, &*on_signals()?)?;
    Ok(true)
}

fn plan(args: &PipelineArgs) -> Result<Plan, ConfigError> {
    let least = BATCHES_IN_LOG * TAKEN_MAX * u64::from(args.batch);
    let frame_bytes = bytes("--log-size", &args.log_size)?;
    if !frame_bytes.is_power_of_two() || !(least..=FRAME_BYTES_MAX).contains(&frame_bytes) {
        return Err(ConfigError(format!(
            "--log-size {}: a power of two is needed, at least {least} bytes for --batch {}, at most {} MiB",
            args.log_size,
            args.batch,
            FRAME_BYTES_MAX >> 20
        )));
    }
    let entries =
        (frame_bytes / FRAME_BYTES_PER_ENTRY).clamp(pmnet_log::ENTRIES_MIN, pmnet_log::ENTRIES_MAX);
    Ok(Plan {
        packets: each_once(&args.packets),
        payloads: between("--payloads", &args.payloads, 0, pmnet_wire::FRAGMENT_BYTES)?,
        sessions: between("--sessions", &args.sessions, 1, SESSIONS_MAX)?,
        batch: args.batch,
        rounds: usize::from(args.rounds),
        log: Parameters::ring(entries, frame_bytes),
        beside: args.beside,
        leased: args.leased,
        tags: if args.keyed {
            vec![Tags::Token, Tags::Mac]
        } else {
            vec![Tags::Token]
        },
    })
}
