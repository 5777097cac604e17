//! `pmnet-lab bench traffic`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pmnet_cli::{ConfigError, on_signals};

use super::values::{ROUNDS_MAX, each_once, times};
use crate::bench::traffic::{self, Output, Plan, Variant, Workload};

const EXAMPLES: &str = "\
Examples:
  pmnet-lab bench traffic
  pmnet-lab bench traffic --workloads tcp4,tcp6 --variants bare,pass,device --seconds 1 --rounds 20
  pmnet-lab bench traffic --variants pass,device,loaded --json

Measures a client, a switch and a server in namespaces. The switch has no XDP program (bare), a program that lets \
all packets pass (pass), or a device at its ports. The column `of pass` shows the cost of pmnet, `of bare` the cost \
of XDP on these links and of pmnet together. The command checks no bounds.

Needs root, iproute2, util-linux and ethtool, and a pmnet that was built with clang. Prints a table on stdout, and \
writes numbers to OUT/traffic.json.";

/// Maximum duration of one run in seconds.
const SECONDS_MAX: f64 = 60.0;

/// Options of `pmnet-lab bench traffic`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TrafficArgs {
    /// Programs at the ports of the switch.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Variant::DEFAULT)]
    variants: Vec<Variant>,
    /// Traffic through the switch.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Workload::value_variants().to_vec())]
    workloads: Vec<Workload>,
    /// Duration of one run's measurement in seconds.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Number of runs of each combination. Figures are medians over the runs.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=i64::from(ROUNDS_MAX)))]
    rounds: u16,
    /// Folder for the figures.
    #[arg(long, default_value = "target/bench", value_name = "FOLDER")]
    out: PathBuf,
    /// Print the result as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark.
pub fn main(args: &TrafficArgs) -> anyhow::Result<bool> {
    let plan = plan(args)?;
    let output = Output {
        folder: args.out.clone(),
        json: args.json,
    };
    let stop = on_signals()?;
    traffic::main(&plan, &output, &stop)?;
    Ok(true)
}

fn plan(args: &TrafficArgs) -> Result<Plan, ConfigError> {
    let (duration, warmup) = times(args.seconds, SECONDS_MAX)?;
    Ok(Plan {
        variants: each_once(&args.variants),
        workloads: each_once(&args.workloads),
        duration,
        warmup,
        rounds: usize::from(args.rounds),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        args: TrafficArgs,
    }

    fn parse(line: &str) -> Result<Plan, String> {
        let words = std::iter::once("traffic").chain(line.split_whitespace());
        let alone = Alone::try_parse_from(words).map_err(|error| error.to_string())?;
        plan(&alone.args).map_err(|error| error.to_string())
    }

    #[test]
    fn by_default_everything_but_the_loaded_switch() {
        let plan = parse("").unwrap();
        assert_eq!(plan.variants, Variant::DEFAULT);
        assert_eq!(plan.workloads, Workload::value_variants());
        assert_eq!(plan.warmup, Duration::from_millis(100));
        assert_eq!(plan.steps(), 6 * 7 * 6);
    }

    #[test]
    fn what_is_given_is_put_in_order_once() {
        let plan =
            parse("--variants loaded,bare,bare --workloads tcp-jumbo,tcp4-x4,tcp4 --rounds 2")
                .unwrap();
        assert_eq!(plan.variants, [Variant::Bare, Variant::Loaded]);
        let workloads = [Workload::Tcp4, Workload::Tcp4x4, Workload::TcpJumbo];
        assert_eq!(plan.workloads, workloads);
        assert_eq!(plan.steps(), 12);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for line in [
            "--seconds 0",
            "--seconds 61",
            "--seconds NaN",
            "--seconds x",
            "--rounds 0",
            "--rounds 102",
            "--variants none",
            "--workloads sctp",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
