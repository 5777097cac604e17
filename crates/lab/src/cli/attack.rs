//! `pmnet-lab attack`.

use std::path::PathBuf;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::attack::{Cache, Mode, Plan, run};
use crate::harness::Binaries;

const EXAMPLES: &str = "\
Examples:
  pmnet-lab attack
  pmnet-lab attack --mode kernel --devices 3 --packets 10000000

Starts a front, a chain with keys, a server and a Redis in network namespaces, with an adversary in each link. The \
adversary sees all packets and has the key of another front. It forges, changes, redirects and repeats packets. The \
exit code is 1 if any packet had a forbidden effect.
Needs root, iproute2, ethtool, redis-server.";

/// Options of `pmnet-lab attack`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct AttackArgs {
    /// How the devices process packets.
    #[arg(long, value_enum, default_value_t = Mode::Relay)]
    mode: Mode,
    /// Which updates the head shows to readers: the value of `pmnet redis --cache`.
    #[arg(long, value_enum, default_value_t = Cache::Pending)]
    cache: Cache,
    /// Number of devices in the chain.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=3))]
    devices: u8,
    /// Number of packets that the adversary sends.
    #[arg(long, default_value_t = 1_000_000)]
    packets: u64,
    /// Number of packets that the adversary sends per second.
    #[arg(long, default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: u64,
    /// Run the chain without keys, to see the effects of the attack.
    #[arg(long)]
    insecure: bool,
    /// Folder for the output of the processes.
    #[arg(long, value_name = "DIR", default_value = "target/attack")]
    out: PathBuf,
    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the attack. Returns false if a packet had an effect.
pub fn main(args: &AttackArgs) -> anyhow::Result<bool> {
    let plan = Plan {
        mode: args.mode,
        cache: args.cache,
        devices: args.devices,
        packets: args.packets,
        rate: args.rate,
        insecure: args.insecure,
        out: args.out.clone(),
    };
    let bar = ProgressBar::new(1_000);
    if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} {bar:30} {percent:>3}% {msg}") {
        bar.set_style(style);
    }
    let report = run(&plan, &Binaries::own()?, &mut |what, part| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to 1,000"
        )]
        bar.set_position((part * 1_000.0) as u64);
        bar.set_message(what.to_owned());
    })?;
    bar.finish_and_clear();
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{report}");
    }
    Ok(report.is_clean())
}
