//! `bench store` compares the packet store with RocksDB, LMDB, redb and fjall, with equal
//! durability. `bench store` also compares two ways to put 1 KB: with the packet as the record, and
//! by the usual steps.
//!
//! Each run of a store is a separate process. In each round all stores run one after the other, on
//! the same file system; every second round has the opposite order. Figures are medians. No crate
//! may depend on this program. Unless it is killed, the program leaves only the report.

mod engines;
mod keys;
mod measure;
mod page;
mod plan;
mod report;
mod run;
mod steps;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::engines::Engine;
use crate::plan::{
    Cell, Choice, KEYS_MAX, KEYS_MIN, Place, Plan, SCANNED, VALUE_BYTES_MAX, VALUE_BYTES_MIN,
};
use crate::report::Outcome;

const EXAMPLES: &str = "\
Examples:
  pmnet-bench-store --short
  pmnet-bench-store
  pmnet-bench-store --places disk --values 50,1024,4096 --keys 1000,100000 --choices uniform,zipf --every
  pmnet-bench-store --engines packet,lmdb --keys 10000000 --values 100 --places tmpfs --rounds 1

Table on stdout, bars in OUT/store.html, numbers in OUT/store.json.";

/// Maximum duration of a phase, in seconds.
const SECONDS_MAX: f64 = 600.0;
/// Number of keys, seconds of a phase, and puts of the breakdown, with `--short`.
const SHORT_KEYS: u64 = 2000;
const SHORT_SECONDS: f64 = 0.05;
const SHORT_STEPS: u64 = 500;

#[derive(Parser)]
#[command(about = "The packet store beside other stores, and beside the usual steps of a put", after_help = EXAMPLES)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    options: Options,
}

/// Hidden subcommands, with which the measurement starts its own program for each run of a store.
#[derive(Subcommand)]
#[command(hide = true)]
enum Part {
    #[command(hide = true)]
    Run(One),
    #[command(hide = true)]
    Recover(One),
}

#[derive(Args)]
struct One {
    #[arg(long, value_enum)]
    engine: Engine,
    #[arg(long, value_enum)]
    place: Place,
    #[arg(long)]
    keys: u64,
    #[arg(long)]
    value_bytes: usize,
    #[arg(long, value_enum)]
    choice: Choice,
    #[arg(long)]
    group: usize,
    #[arg(long)]
    seconds: f64,
    #[arg(long)]
    folder: PathBuf,
}

#[derive(Args)]
struct Options {
    /// The stores; the packet store is always one of them.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Engine::value_variants().to_vec(), value_name = "STORES")]
    engines: Vec<Engine>,
    /// Where the stores' files are.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Place::Disk, Place::Flushed], value_name = "PLACES")]
    places: Vec<Place>,
    /// Numbers of keys. Each number is measured with the first value size and the first choice.
    #[arg(long, value_delimiter = ',', default_values_t = [100_000, 1000, 1_000_000], value_name = "N")]
    keys: Vec<u64>,
    /// Sizes of a value in bytes. Each size is measured with the first number of keys and the first choice.
    #[arg(long, value_delimiter = ',', default_values_t = [1024, 50, 4096], value_name = "BYTES")]
    values: Vec<usize>,
    /// Distributions of keys. Each is measured with the first number of keys and the first value size.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Choice::value_variants().to_vec(), value_name = "CHOICES")]
    choices: Vec<Choice>,
    /// Measures every combination of keys, values and choices.
    #[arg(long)]
    every: bool,
    /// Number of writes in a group that becomes durable together.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1000))]
    group: u16,
    /// Measured time of one phase, in seconds.
    #[arg(long, default_value_t = 0.4)]
    seconds: f64,
    /// Number of runs of each store in each cell; figures are medians over the runs.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=101))]
    rounds: u16,
    /// Number of puts in a round of the breakdown, for each of its two ways; 0: no breakdown.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    steps: u32,
    /// Folder on a disk for the stores' files, which are removed at the end [default: OUT].
    #[arg(long, value_name = "FOLDER")]
    disk: Option<PathBuf>,
    /// Folder on tmpfs for the stores' files.
    #[arg(long, default_value = "/dev/shm", value_name = "FOLDER")]
    memory: PathBuf,
    /// Runs every part for a few seconds, as a test of the program; the figures mean nothing.
    #[arg(long, conflicts_with_all = ["places", "keys", "values", "choices", "every", "group", "seconds", "rounds", "steps"])]
    short: bool,
    /// Folder for the report.
    #[arg(long, default_value = "target/bench", value_name = "FOLDER")]
    out: PathBuf,
    /// Prints the result as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    match &arguments.part {
        None => bench(&arguments.options),
        Some(Part::Run(one)) => {
            let duration = Duration::try_from_secs_f64(one.seconds)?;
            run::main(one.engine, &cell(one), one.group, duration, &one.folder)
        }
        Some(Part::Recover(one)) => run::recover(one.engine, &cell(one), &one.folder),
    }
}

const fn cell(one: &One) -> Cell {
    Cell {
        place: one.place,
        keys: one.keys,
        value_bytes: one.value_bytes,
        choice: one.choice,
    }
}

fn bench(options: &Options) -> anyhow::Result<()> {
    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot make {}", options.out.display()))?;
    let plan = plan(options)?;
    let quiet = options.json;
    let tell = |words: &str| {
        if !quiet {
            eprintln!("{words}");
        }
    };
    let mut notes = notes(&plan);
    notes.push(format!("load average at the start: {}", load_average()));
    let breakdown = match plan.steps {
        0 => None,
        count => Some(steps::measure(
            &plan.memory,
            plan.steps_keys,
            count,
            plan.rounds,
            &tell,
        )?),
    };
    let rows = measure::all(&plan, &tell)?;
    notes.push(format!(
        "load average at the end: {} (this measurement by itself makes about 1)",
        load_average()
    ));
    let outcome = Outcome {
        title: title(),
        goals: report::goals(breakdown.as_ref(), &rows),
        breakdown,
        rows,
        notes,
    };
    for (name, text) in [
        ("store.html", page::html(&outcome)),
        ("store.json", serde_json::to_string_pretty(&outcome)?),
    ] {
        let path = options.out.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if options.json {
        println!("{}", serde_json::to_string(&outcome)?);
    } else {
        println!("{}", report::text(&outcome));
        println!("report: {}", options.out.join("store.html").display());
    }
    Ok(())
}

fn plan(options: &Options) -> anyhow::Result<Plan> {
    let inside = |flag: &str, all: &[u64], least: u64, most: u64| {
        let fine = !all.is_empty() && all.iter().all(|one| (least..=most).contains(one));
        ensure!(fine, "{flag}: numbers from {least} to {most} are needed");
        Ok(())
    };
    let values: Vec<u64> = options.values.iter().map(|&value| value as u64).collect();
    inside(
        "--keys",
        &options.keys,
        KEYS_MIN.max(SCANNED as u64),
        KEYS_MAX,
    )?;
    inside(
        "--values",
        &values,
        VALUE_BYTES_MIN as u64,
        VALUE_BYTES_MAX as u64,
    )?;
    ensure!(
        (0.01..=SECONDS_MAX).contains(&options.seconds),
        "--seconds {}: 0.01 to {SECONDS_MAX} are needed",
        options.seconds
    );
    let disk = options.disk.clone().unwrap_or_else(|| options.out.clone());
    if !options.short && options.places.contains(&Place::Disk) {
        ensure!(
            !in_memory(&disk)?,
            "{} is in memory: name a folder on a disk with --disk",
            disk.display()
        );
    }
    let mut engines = Engine::value_variants().to_vec();
    engines.retain(|engine| *engine == Engine::Packet || options.engines.contains(engine));
    let cells = match options.short {
        true => plan::cells(
            Place::value_variants(),
            &[SHORT_KEYS],
            &[50, 4096],
            Choice::value_variants(),
            false,
        ),
        false => plan::cells(
            &options.places,
            &options.keys,
            &options.values,
            &options.choices,
            options.every,
        ),
    };
    let short = |short, long| if options.short { short } else { long };
    Ok(Plan {
        engines,
        cells,
        group: usize::from(options.group),
        duration: Duration::from_secs_f64(if options.short {
            SHORT_SECONDS
        } else {
            options.seconds
        }),
        rounds: usize::from(if options.short { 1 } else { options.rounds }),
        steps: short(SHORT_STEPS, u64::from(options.steps)),
        steps_keys: short(SHORT_KEYS, 100_000),
        disk,
        memory: options.memory.clone(),
    })
}

/// Returns whether a folder is on a file system in memory.
fn in_memory(folder: &Path) -> anyhow::Result<bool> {
    let folder = folder.canonicalize()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let mount = mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            Some((words.next()?, words.next()?))
        })
        .filter(|(place, _)| folder.starts_with(place))
        .max_by_key(|(place, _)| place.len());
    Ok(mount.is_some_and(|(_, kind)| matches!(kind, "tmpfs" | "ramfs")))
}

fn title() -> String {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!(
        "The packet store beside other stores, each write durable before its answer: one caller, closed loop, one machine \
         with {cores} cores"
    )
}

fn notes(plan: &Plan) -> Vec<String> {
    let engines = plan.engines.iter();
    let mut notes: Vec<String> = engines
        .map(|engine| format!("{}: {}", engine.name(), engine.meaning()))
        .collect();
    if !Engine::value_variants()
        .iter()
        .any(|engine| engine.name() == "rocksdb")
    {
        notes.push("RocksDB is not measured: this was built without the feature rocksdb".into());
    }
    for place in Place::value_variants() {
        if plan.cells.iter().any(|cell| cell.place == *place) {
            notes.push(format!("{}: {}", place.name(), place.meaning()));
        }
    }
    notes.push(format!(
        "put: one write; group: records a second of {} writes that become durable together; scan: records a second, \
         {SCANNED} in order from a random key; mixed: as many gets as puts; cpu: processor time of a put, threads in the \
         background included. Values are read by copying them out",
        plan.group
    ));
    notes.push(
        "MB: more memory than before the store was opened, mapped files included. The packet store holds its whole image in \
         memory. written: bytes that went to the disk for each byte of keys and values written, from the load to the end; of \
         tmpfs the kernel does not say it. space: bytes of the files for each byte of the newest keys and values; that of \
         the packet store is made at its full size, here with room for half as much again"
            .into(),
    );
    notes.push(
        "open: time of opening and one get, by a new process after the old one was killed. Files are in the page cache"
            .into(),
    );
    if plan.steps > 0 {
        notes.push(format!(
            "the breakdown: {} puts of each way a round, over {} records; DRAM on tmpfs whose lines are flushed as on \
             persistent memory. Both ways read the same request with the same parser and check nothing: that the sender's \
             checksum is right is part of receiving, and has a row of its own. In the row of the whole round trip each \
             server copies a request once, in place of the network interface, and packing is part of it",
            plan.steps, plan.steps_keys
        ));
        notes.push(
            "published: a 1 KB write into NoveLSM on Optane memory, HTTP over TCP between two machines (HotNets 2021, Table 1)"
                .into(),
        );
    }
    notes.push(format!(
        "medians over {} rounds of {:.2} s a phase",
        plan.rounds,
        plan.duration.as_secs_f64()
    ));
    notes
}

/// Returns the load average of the last minute.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.unwrap_or("unknown").to_owned()
}
