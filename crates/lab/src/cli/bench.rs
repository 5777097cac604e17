//! `pmnet-lab bench`.

mod traffic;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use pmnet_cli::{ConfigError, bytes, on_signals};
use pmnet_log::Parameters;

use crate::bench::micro::{
    self, ClientIo, Handler, Medium, Output, PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MIN, Plan,
    SESSIONS_MAX, System,
};
use crate::bench::pipeline::{self, Packet};

const EXAMPLES: &str = "\
Examples:
  pmnet-lab bench micro
  pmnet-lab bench micro --payloads 50,100,400,1000,1400 --clients 1,4,16,64 --seconds 3 --rounds 5
  pmnet-lab bench micro --client-io af-xdp,socket --clients 1
  pmnet-lab bench micro --systems limit,client-server,relay --media file --json

Needs root, iproute2, util-linux and ethtool, and a pmnet that was built with clang. Table on
stdout, curves in OUT/micro.html, numbers in OUT/micro.json.";

const PIPELINE_EXAMPLES: &str = "\
Examples:
  pmnet-lab bench pipeline
  pmnet-lab bench pipeline --packets update --payloads 100 --rounds 1001
  pmnet-lab bench pipeline --packets update,duplicate,tcp --sessions 1,64,4096 --json
  pmnet-lab bench pipeline --packets update --log-size 1M --batch 200

Needs root, Linux 5.18 and a pmnet that was built with clang; no interface, no namespace. It can run beside
devices that serve, and leaves nothing behind. Table or JSON on stdout.";

/// Frame bytes of a log for each of its entries.
const FRAME_BYTES_PER_ENTRY: u64 = 512;
/// Most frame bytes of a log in the kernel.
const FRAME_BYTES_MAX: u64 = 256 << 20;
/// Rounds of `pmnet-lab bench pipeline`, at most.
const PIPELINE_ROUNDS_MAX: u16 = 10_001;
/// Rounds, at most.
const ROUNDS_MAX: u16 = 101;
/// Seconds of one run, at most.
const SECONDS_MAX: f64 = 600.0;
/// Part of a run before its measured time.
const WARMUP_PART: f64 = 0.2;
/// Least time before the measured time.
const WARMUP_MIN: Duration = Duration::from_millis(50);

/// The command line of `pmnet-lab bench`.
#[derive(Debug, Args)]
pub struct BenchCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Round trip of an update, with an ideal handler: how far from the least possible?
    Micro(MicroArgs),
    /// What one packet costs the pipeline in the kernel: its program alone, on one core.
    Pipeline(PipelineArgs),
    /// Traffic of others through the switch, with and without a device: what does pmnet cost them?
    Traffic(traffic::TrafficArgs),
}

/// Options of `pmnet-lab bench pipeline`.
#[derive(Debug, Args)]
#[command(after_help = PIPELINE_EXAMPLES)]
struct PipelineArgs {
    /// Kinds of packets.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Packet::value_variants().to_vec(), value_name = "KINDS")]
    packets: Vec<Packet>,
    /// Payloads of `update` in bytes, 0 to 1344; other updates have 100.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 50, 100, 400, 1000, 1344], value_name = "BYTES")]
    payloads: Vec<usize>,
    /// Numbers of sessions, whose packets take turns.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64], value_name = "N")]
    sessions: Vec<usize>,
    /// Packets of one run, one system call.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=i64::from(pipeline::BATCH_MAX)))]
    batch: u32,
    /// Runs of each row, with the pipeline and without it; figures are medians over them.
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u16).range(1..=i64::from(PIPELINE_ROUNDS_MAX)))]
    rounds: u16,
    /// Frame space of the log, a power of two; the larger, the less of it is in the caches.
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    log_size: String,
    /// The result as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

/// Options of `pmnet-lab bench micro`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct MicroArgs {
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = System::value_variants().to_vec())]
    systems: Vec<System>,
    /// Payloads of an update in bytes; above 1344 it is several packets.
    #[arg(long, value_delimiter = ',', default_values_t = [50, 100, 1000], value_name = "BYTES")]
    payloads: Vec<usize>,
    /// Numbers of clients (sessions), each with one update on its way.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16], value_name = "N")]
    clients: Vec<usize>,
    /// What clients send and receive with; each is measured by itself.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [ClientIo::AfXdp], value_name = "IO")]
    client_io: Vec<ClientIo>,
    /// Measured seconds of one run.
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Runs of each combination; figures are medians over them.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=i64::from(ROUNDS_MAX)))]
    rounds: u16,
    /// How the ideal handler waits for updates.
    #[arg(long, value_enum, default_value_t = Handler::Spins)]
    handler: Handler,
    /// Where the log of a device is.
    #[arg(long, value_enum, default_value_t = Medium::Dram)]
    media: Medium,
    /// Where the report goes; with --media file the log is there too, while it lasts.
    #[arg(long, default_value = "target/bench", value_name = "FOLDER")]
    out: PathBuf,
    /// The result as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

/// Measures.
pub fn main(command: &BenchCommand) -> anyhow::Result<bool> {
    match &command.what {
        What::Micro(args) => {
            let plan = plan(args)?;
            let output = Output {
                folder: args.out.clone(),
                json: args.json,
            };
            micro::main(&plan, &output, &*on_signals()?)?;
        }
        What::Traffic(args) => return traffic::main(args),
        What::Pipeline(args) => {
            let plan = pipeline_plan(args)?;
            pipeline::main(&plan, args.json, &*on_signals()?)?;
        }
    }
    Ok(true)
}

/// The values in order, each once.
fn between(
    flag: &str,
    values: &[usize],
    least: usize,
    most: usize,
) -> Result<Vec<usize>, ConfigError> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.iter().all(|value| (least..=most).contains(value)) && !sorted.is_empty() {
        Ok(sorted)
    } else {
        Err(ConfigError(format!(
            "{flag}: numbers from {least} to {most} are needed"
        )))
    }
}

/// The values in the order of their declaration, each once.
fn each_once<T: ValueEnum + PartialEq>(values: &[T]) -> Vec<T> {
    let mut all = T::value_variants().to_vec();
    all.retain(|value| values.contains(value));
    all
}

fn pipeline_plan(args: &PipelineArgs) -> Result<pipeline::Plan, ConfigError> {
    let least = pipeline::BATCHES_IN_LOG * pipeline::TAKEN_MAX * u64::from(args.batch);
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
    Ok(pipeline::Plan {
        packets: each_once(&args.packets),
        payloads: between("--payloads", &args.payloads, 0, pmnet_wire::FRAGMENT_BYTES)?,
        sessions: between("--sessions", &args.sessions, 1, pipeline::SESSIONS_MAX)?,
        batch: args.batch,
        rounds: usize::from(args.rounds),
        log: Parameters {
            entries,
            frame_bytes,
        },
    })
}

fn plan(args: &MicroArgs) -> Result<Plan, ConfigError> {
    if !(0.01..=SECONDS_MAX).contains(&args.seconds) {
        return Err(ConfigError(format!(
            "--seconds {}: 0.01 to {SECONDS_MAX} are needed",
            args.seconds
        )));
    }
    let duration = Duration::from_secs_f64(args.seconds);
    Ok(Plan {
        systems: each_once(&args.systems),
        payloads: between(
            "--payloads",
            &args.payloads,
            PAYLOAD_BYTES_MIN,
            PAYLOAD_BYTES_MAX,
        )?,
        clients: between("--clients", &args.clients, 1, SESSIONS_MAX)?,
        client_io: each_once(&args.client_io),
        duration,
        warmup: duration.mul_f64(WARMUP_PART).max(WARMUP_MIN),
        rounds: usize::from(args.rounds),
        handler: args.handler,
        medium: args.media,
    })
}
