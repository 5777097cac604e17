//! `pmnet-lab bench micro`.

use std::path::PathBuf;

use clap::Args;
use pmnet_cli::{ConfigError, on_signals};

use super::values::{ROUNDS_MAX, between, each_once, times};
use crate::bench::micro::{
    self, ClientIo, Handler, Medium, Output, PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MIN, Plan,
    SESSIONS_MAX, System,
};

const EXAMPLES: &str = "\
Examples:
  pmnet-lab bench micro
  pmnet-lab bench micro --payloads 50,100,400,1000,1400 --clients 1,4,16,64 --seconds 3 --rounds 5
  pmnet-lab bench micro --client-io af-xdp,socket --clients 1
  pmnet-lab bench micro --systems limit,client-server,relay --media file --json
  pmnet-lab bench micro --systems limit-router,router,limit-router-3,router-3 --clients 1
  pmnet-lab bench micro --systems nic,nic-keyed,router-3,router-3-keyed --clients 1
  pmnet-lab bench micro --systems nic,relay --client-io session,libpmnet --rounds 20

Needs root, iproute2, util-linux and ethtool, and a pmnet that was built with clang; for libpmnet also cc, and \
libpmnet.so beside pmnet (or in PMNET_LIBRARY). Prints a table on stdout, and writes curves to OUT/micro.html and \
numbers to OUT/micro.json.";

/// Maximum duration of one run in seconds.
const SECONDS_MAX: f64 = 600.0;

/// Options of `pmnet-lab bench micro`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct MicroArgs {
    /// Systems to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = System::DEFAULT.to_vec())]
    systems: Vec<System>,
    /// Sizes of an update's payload in bytes. Above 1344 bytes an update has several packets.
    #[arg(long, value_delimiter = ',', default_values_t = [50, 100, 1000], value_name = "BYTES")]
    payloads: Vec<usize>,
    /// Numbers of clients (sessions), each with one update in flight.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16], value_name = "N")]
    clients: Vec<usize>,
    /// How clients send and receive packets. Each value is measured separately.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [ClientIo::AfXdp], value_name = "IO")]
    client_io: Vec<ClientIo>,
    /// Duration of one run's measurement in seconds.
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Number of runs of each combination. Figures are medians over the runs.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=i64::from(ROUNDS_MAX)))]
    rounds: u16,
    /// How the ideal handler waits for updates.
    #[arg(long, value_enum, default_value_t = Handler::Spins)]
    handler: Handler,
    /// Medium of a device's log.
    #[arg(long, value_enum, default_value_t = Medium::Dram)]
    media: Medium,
    /// Folder for the report and, with --media file, for the log during the measurement.
    #[arg(long, default_value = "target/bench", value_name = "FOLDER")]
    out: PathBuf,
    /// Print the result as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark.
pub fn main(args: &MicroArgs) -> anyhow::Result<bool> {
    let plan = plan(args)?;
    let output = Output {
        folder: args.out.clone(),
        json: args.json,
    };
    micro::main(&plan, &output, &*on_signals()?)?;
    Ok(true)
}

fn plan(args: &MicroArgs) -> Result<Plan, ConfigError> {
    let (duration, warmup) = times(args.seconds, SECONDS_MAX)?;
    let systems = each_once(&args.systems);
    if args.client_io.iter().any(|io| io.is_program())
        && let Some(system) = systems.iter().find(|system| !system.has_device())
    {
        return Err(ConfigError(format!(
            "--client-io session and libpmnet need a device, which {} does not have: name others in --systems",
            system.name()
        )));
    }
    Ok(Plan {
        systems,
        payloads: between(
            "--payloads",
            &args.payloads,
            PAYLOAD_BYTES_MIN,
            PAYLOAD_BYTES_MAX,
        )?,
        clients: between("--clients", &args.clients, 1, SESSIONS_MAX)?,
        client_io: each_once(&args.client_io),
        duration,
        warmup,
        rounds: usize::from(args.rounds),
        handler: args.handler,
        medium: args.media,
    })
}
