//! `pmnet-lab bench redis`.

use std::path::PathBuf;

use clap::Args;
use pmnet_cli::{ConfigError, on_signals};

use super::values::{ROUNDS_MAX, between, each_once, times};
use crate::bench::redis::{self, Json, Output, Plan, Reads, Row};
use crate::harness::Medium;
use crate::load;

const EXAMPLES: &str = "\
Examples:
  pmnet-lab bench redis --quick
  pmnet-lab bench redis
  pmnet-lab bench redis --reads 0,50,alternate --clients 1,16 --zipf 0.99
  pmnet-lab bench redis --rows resp-limit,direct,relay-1 --pipeline 16 --json result.json
  pmnet-lab bench redis --rows direct,relay-3 --replicas --reads 0
  pmnet-lab bench redis --rows direct,relay-1 --reads 0,100 --clients 1,16 --beside 2

Needs redis-server. As root, with iproute2, util-linux and ethtool, and a pmnet that was built with clang, it also \
measures the rows with a network link, which include the device in the kernel. Prints a table on stdout, and writes \
curves to OUT/redis.html and numbers to OUT/redis.json.";

/// Maximum duration of one run in seconds.
const SECONDS_MAX: f64 = 600.0;
/// Value of `--json` without a file.
const STDOUT: &str = "-";
/// Maximum value of `--beside`.
const BESIDE_MAX: usize = 256;
/// Maximum number of pairs in the long pipeline.
const PAIRS_MAX: usize = 1_000_000;

/// Default values of options.
struct Defaults {
    clients: &'static [usize],
    pairs: usize,
    seconds: f64,
    rounds: u16,
}

const FULL: Defaults = Defaults {
    clients: &[1, 4, 16, 64],
    pairs: 10_000,
    seconds: 0.3,
    rounds: 3,
};
const QUICK: Defaults = Defaults {
    clients: &[1, 16],
    pairs: 1_000,
    seconds: 0.1,
    rounds: 1,
};

/// Options of `pmnet-lab bench redis`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RedisArgs {
    /// Set-ups to measure [default: those without replicas].
    #[arg(long, value_enum, value_delimiter = ',')]
    rows: Vec<Row>,
    /// Also measure the two rows with replicas: Redis with a WAIT after each write.
    #[arg(long)]
    replicas: bool,
    /// Percentages of GET, the other commands are SET; or alternate: SET of a key, then GET of this key
    /// [default: 0,5,50,100,alternate].
    #[arg(long, value_delimiter = ',', value_name = "PERCENT")]
    reads: Vec<Reads>,
    /// Numbers of connections [default: 1,4,16,64, with --quick 1,16].
    #[arg(long, value_delimiter = ',', value_name = "N")]
    clients: Vec<usize>,
    /// Number of commands that a connection sends together before it waits for all replies.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pipeline: usize,
    /// Number of pairs of SET and GET in one long pipeline; 0: do not measure it [default: 10000, with --quick 1000].
    #[arg(long, value_name = "N")]
    pairs: Option<usize>,
    /// Number of different keys. All of them exist before the first measurement.
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    keys: u64,
    /// Exponent of a Zipf distribution of the keys, such as 0.99 [default: all keys are equally frequent].
    #[arg(long, value_name = "S")]
    zipf: Option<f64>,
    /// Number of other programs that each keep a core busy during the measurement, as on a host with other work.
    #[arg(long, default_value_t = 0, value_name = "N")]
    beside: usize,
    /// Size of a value in bytes.
    #[arg(long, default_value_t = 100, value_name = "N")]
    value_bytes: usize,
    /// Medium of the logs of devices that are processes.
    #[arg(long, value_enum, default_value_t = Medium::Dram)]
    media: Medium,
    /// Duration of one run's measurement in seconds [default: 0.3, with --quick 0.1].
    #[arg(long)]
    seconds: Option<f64>,
    /// Number of runs of each combination. Figures are medians over the runs [default: 3, with --quick 1].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=i64::from(ROUNDS_MAX)))]
    rounds: Option<u16>,
    /// Use smaller defaults, so that the measurement takes less than a minute.
    #[arg(long)]
    quick: bool,
    /// Folder for the report and, during the measurement, for the files of Redis and of the devices.
    #[arg(long, default_value = "target/bench", value_name = "FOLDER")]
    out: PathBuf,
    /// Also write the result as JSON to this file. Without a file: print it as one JSON object on stdout instead of the
    /// table.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = STDOUT)]
    json: Option<PathBuf>,
}

/// Runs the benchmark.
pub fn main(args: &RedisArgs) -> anyhow::Result<bool> {
    let plan = plan(args)?;
    let output = Output {
        folder: args.out.clone(),
        json: args.json.as_ref().map(|path| {
            if path.as_os_str() == STDOUT {
                Json::Stdout
            } else {
                Json::File(path.clone())
            }
        }),
    };
    redis::main(&plan, &output, &*on_signals()?)?;
    Ok(true)
}

fn plan(args: &RedisArgs) -> Result<Plan, ConfigError> {
    let defaults = if args.quick { QUICK } else { FULL };
    let mut rows = args.rows.clone();
    if rows.is_empty() {
        rows.extend(Row::DEFAULT);
    }
    if args.replicas {
        rows.extend([Row::Wait, Row::AlwaysWait]);
    }
    let mut reads = Vec::new();
    for one in &args.reads {
        if !reads.contains(one) {
            reads.push(*one);
        }
    }
    if reads.is_empty() {
        reads.extend([0, 5, 50, 100].map(Reads::Percent));
        reads.push(Reads::Alternate);
    }
    let clients = if args.clients.is_empty() {
        defaults.clients
    } else {
        &args.clients
    };
    let seconds = args.seconds.unwrap_or(defaults.seconds);
    let (duration, warmup) = times(seconds, SECONDS_MAX)?;
    let pairs = args.pairs.unwrap_or(defaults.pairs);
    let value_bytes = args.value_bytes;
    for (flag, value, most) in [
        ("--pairs", pairs, PAIRS_MAX),
        ("--pipeline", args.pipeline, load::PIPELINE_MAX),
        ("--beside", args.beside, BESIDE_MAX),
        ("--value-bytes", value_bytes, load::VALUE_BYTES_MAX),
    ] {
        let least = usize::from(flag == "--pipeline");
        if !(least..=most).contains(&value) {
            return Err(ConfigError(format!(
                "{flag} {value}: it can be {least} to {most}"
            )));
        }
    }
    if let Some(exponent) = args
        .zipf
        .filter(|exponent| !(0.0..=load::ZIPF_MAX).contains(exponent))
    {
        return Err(ConfigError(format!(
            "--zipf {exponent}: it can be 0 to {}",
            load::ZIPF_MAX
        )));
    }
    Ok(Plan {
        rows: each_once(&rows),
        reads,
        clients: between("--clients", clients, 1, load::CLIENTS_MAX)?,
        pipeline: args.pipeline,
        keys: args.keys,
        zipf: args.zipf,
        beside: args.beside,
        value_bytes,
        medium: args.media,
        duration,
        warmup,
        rounds: usize::from(args.rounds.unwrap_or(defaults.rounds)),
        pairs,
    })
}

#[cfg(test)]
mod tests {
    use clap::{Parser, ValueEnum};

    use super::*;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        args: RedisArgs,
    }

    fn parse(line: &str) -> Result<Plan, String> {
        let words = std::iter::once("redis").chain(line.split_whitespace());
        let alone = Alone::try_parse_from(words).map_err(|error| error.to_string())?;
        plan(&alone.args).map_err(|error| error.to_string())
    }

    #[test]
    fn by_default_every_mix_and_every_row_without_replicas() {
        let plan = parse("").unwrap();
        assert_eq!(plan.rows, Row::DEFAULT);
        let reads: Vec<_> = plan.reads.iter().map(ToString::to_string).collect();
        assert_eq!(reads, ["0", "5", "50", "100", "alternate"]);
        assert_eq!((plan.clients, plan.pairs), (vec![1, 4, 16, 64], 10_000));
        let quick = parse("--quick --clients 3 --replicas").unwrap();
        // Rows for a single question are measured only if they are named.
        let named = [Row::Relay1Insecure, Row::Relay2Status, Row::Relay2Scraped];
        let others: Vec<Row> = Row::value_variants()
            .iter()
            .filter(|row| !named.contains(row))
            .copied()
            .collect();
        assert_eq!(quick.rows, others);
        assert_eq!((quick.clients, quick.rounds), (vec![3], 1));
        let some = parse("--rows nic,direct --reads alternate,7,7").unwrap();
        assert_eq!(some.rows, [Row::Direct, Row::Nic]);
        assert_eq!(some.reads, [Reads::Alternate, Reads::Percent(7)]);
    }

    #[test]
    fn what_cannot_be_measured_is_said() {
        for (line, reason) in [
            ("--reads 101", "a number from 0 to 100, or alternate"),
            ("--clients 0", "--clients: numbers from 1 to 4096"),
            ("--pipeline 0", "--pipeline 0: it can be 1 to 10000"),
            ("--pairs 1000001", "--pairs 1000001: it can be 0 to"),
            ("--zipf -1", "unexpected argument"),
            ("--zipf=-1", "--zipf -1: it can be 0 to 3"),
            ("--seconds 0", "--seconds 0"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}
