//! `pmnet bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::config::ConfigError;
use super::shutdown;
use crate::bench::micro::{
    self, Handler, Medium, Output, PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MIN, Plan, SESSIONS_MAX, System,
};

const EXAMPLES: &str = "\
Examples:
  pmnet bench micro
  pmnet bench micro --payloads 50,100,400,1000,1400 --clients 1,4,16,64 --seconds 3 --rounds 5
  pmnet bench micro --systems limit,client-server,relay --media file --json

Needs root, iproute2, util-linux and ethtool, and a pmnet that was built with clang. Table on
stdout, curves in OUT/micro.html, numbers in OUT/micro.json.";

/// Rounds, at most.
const ROUNDS_MAX: u16 = 101;
/// Seconds of one run, at most.
const SECONDS_MAX: f64 = 600.0;
/// Part of a run before its measured time.
const WARMUP_PART: f64 = 0.2;
/// Least time before the measured time.
const WARMUP_MIN: Duration = Duration::from_millis(50);

/// The command line of `pmnet bench`.
#[derive(Debug, Args)]
pub struct BenchCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Round trip of an update, with an ideal handler: how far from the least possible?
    Micro(MicroArgs),
}

/// Options of `pmnet bench micro`.
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
    let What::Micro(args) = &command.what;
    let plan = plan(args)?;
    let output = Output {
        folder: args.out.clone(),
        json: args.json,
    };
    let stop = shutdown::on_signals()?;
    micro::main(&plan, &output, &stop)?;
    Ok(true)
}

fn plan(args: &MicroArgs) -> Result<Plan, ConfigError> {
    let mut systems = args.systems.clone();
    let order = |system: &System| System::value_variants().iter().position(|v| v == system);
    systems.sort_by_key(order);
    systems.dedup();
    let between = |flag: &str, values: &[usize], least: usize, most: usize| {
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
    };
    if !(0.01..=SECONDS_MAX).contains(&args.seconds) {
        return Err(ConfigError(format!(
            "--seconds {}: 0.01 to {SECONDS_MAX} are needed",
            args.seconds
        )));
    }
    let duration = Duration::from_secs_f64(args.seconds);
    Ok(Plan {
        systems,
        payloads: between(
            "--payloads",
            &args.payloads,
            PAYLOAD_BYTES_MIN,
            PAYLOAD_BYTES_MAX,
        )?,
        clients: between("--clients", &args.clients, 1, SESSIONS_MAX)?,
        duration,
        warmup: duration.mul_f64(WARMUP_PART).max(WARMUP_MIN),
        rounds: usize::from(args.rounds),
        handler: args.handler,
        medium: args.media,
    })
}
