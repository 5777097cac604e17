//! `pmnet device`.

mod kernel;

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use pmnet_client::Stop;
use pmnet_dataplane::relay::{RelayConfig, run};
use pmnet_device::{DeviceConfig, FastPath};
use pmnet_log::{Expected, Identity, Log, Media, Parameters, Scan};
use pmnet_media::{AnyMedia, Kind};
use pmnet_wire::record::Member;
use serde::Deserialize;
use serde_json::json;

use self::kernel::{KernelSettings, Mode};
use super::config::{CommonArgs, ConfigError, bytes, required, udp_address};
use super::{ready, shutdown};

/// Poll for so long after activity.
const SPIN_US: u64 = 50;
/// Frame ring of a new log, in bytes.
const FRAME_BYTES: u64 = 64 << 20;
/// Bytes of frame ring for each entry of a new log: small updates fill both about equally.
const FRAME_BYTES_PER_ENTRY: u64 = 512;

const EXAMPLES: &str = "\
Examples
  one device, log on an ordinary file (survives a power cut):
    pmnet device --listen 127.0.0.1:51000 --next 127.0.0.1:51500 --log /var/lib/pmnet/d.log --media file
  a chain of three in memory (survives the death of processes; two of three machines):
    pmnet device --listen 127.0.0.1:51003 --next 127.0.0.1:51500 --log /dev/shm/d3.log --media dram
    pmnet device --listen 127.0.0.1:51002 --next 127.0.0.1:51003 --log /dev/shm/d2.log --media dram
    pmnet device --listen 127.0.0.1:51001 --next 127.0.0.1:51002 --log /dev/shm/d1.log --media dram

--next is the next device of the chain, or the server. The length R of the chain is found out and
part of every acknowledgement. Clients send to the first device.

--shrink-chain: you state that devices which were in the chain and are no longer on the path are
stopped for good (removed, not partitioned). Without it a shorter chain is refused, because a
device that is only cut off could go on acknowledging.

--declare-data-loss: the last device that held acknowledged writes is gone with its log, and you
accept that writes which had not reached the server are lost. Without it the shard stays stopped.
Sessions that lost something are told so (DATA_LOSS).

  in the kernel, in front of the server's own network interface (needs root):
    pmnet device --mode nic --dev eth0 --listen 10.0.0.2:51000 --next 127.0.0.1:51500
    pmnet device --mode nic --dev eth0 --listen 10.0.0.2:51000 --next 127.0.0.1:51500 --detach

--mode nic and --mode router: an XDP program on --dev logs and acknowledges updates of open sessions
before the network stack sees them; this process does all the rest. The log is memory of the kernel:
it survives the death of this process, and the kernel goes on logging and acknowledging meanwhile
(start the process again, and it takes over). A loss of power takes it, unless the machine has a
battery and --spill. --detach takes everything out of the kernel again.

A log is made if the file is not there; its size is fixed then. A file that is not a log, is of
another device, version or size, or is damaged, is refused and not touched.";

/// Where a log lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MediaArg {
    /// An ordinary file, O_DIRECT and O_DSYNC: an acknowledgement survives a power cut.
    File,
    /// A mapped file on tmpfs or hugetlbfs: it survives the death of the process only.
    Dram,
}

/// Settings of `pmnet device`; section `[device]` of the configuration file.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DeviceArgs {
    /// UDP address to listen on.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// UDP address of the next device, or of the server.
    #[arg(long, value_name = "HOST:PORT")]
    next: Option<String>,
    /// File of the log.
    #[arg(long, value_name = "PATH")]
    log: Option<PathBuf>,
    /// Kind of medium that the log is on.
    #[arg(long, value_enum)]
    media: Option<MediaArg>,
    /// Number of this device, unique in its shard and not 0 [default: the listen port; with
    /// devices on several machines that use the same port, give it].
    #[arg(long)]
    id: Option<u32>,
    /// Number of the shard [default: 0].
    #[arg(long)]
    shard: Option<u32>,
    /// Shards served by this process, each by a thread of its own: shard S + i listens on the
    /// listen port + i, sends to the next port + i and has its log in PATH.S+i [default: 1].
    #[arg(long, value_name = "N")]
    shards: Option<u16>,
    /// Frame space of a new log, such as 64M; the number of entries follows from it [default: 64M].
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["entries", "frame_bytes"])]
    log_size: Option<String>,
    /// Entries of the log, a power of two.
    #[arg(long, requires = "frame_bytes", value_name = "N")]
    entries: Option<u64>,
    /// Frame space of the log in bytes, a multiple of 4096.
    #[arg(long, requires = "entries", value_name = "N")]
    frame_bytes: Option<u64>,
    /// Where updates are logged and acknowledged: by this process, or by the kernel in front of it.
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// Network interfaces by which clients come, in a kernel mode.
    #[arg(long, value_name = "IF", value_delimiter = ',', alias = "ports")]
    dev: Option<Vec<String>>,
    /// With --mode switch: this machine's own address in the bridge; its UDP port is that of --listen.
    #[arg(long, value_name = "IPV4")]
    address: Option<std::net::Ipv4Addr>,
    /// Name of the device in the BPF file system, in a kernel mode [default: IF-PORT].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// In a kernel mode: save the log in this file at the end (SIGTERM, SIGINT, SIGPWR, --detach),
    /// and load it from there at the start. Without it the kernel goes on when this process ends.
    #[arg(long, value_name = "FILE")]
    spill: Option<PathBuf>,
    /// The server reads the log by itself (its --device-log): it is sent no updates.
    #[arg(long)]
    server_reads_log: bool,
    /// Attach in the generic mode of the kernel: slow, for interfaces whose driver has no native one.
    #[arg(long)]
    xdp_generic: bool,
    /// Take the device out of the kernel: interfaces are then as they were before.
    #[arg(long)]
    detach: bool,
    /// With --detach: give up acknowledged writes that the server has not applied yet.
    #[arg(long, requires = "detach")]
    discard: bool,
    /// Poll for so long after activity before sleeping [default: 50].
    #[arg(long, value_name = "US")]
    spin_us: Option<u64>,
    /// The missing devices of a longer chain are stopped for good (see below).
    #[arg(long)]
    shrink_chain: bool,
    /// Accept that acknowledged writes are gone with the last device that held them (see below).
    #[arg(long)]
    declare_data_loss: bool,
}

/// The command line of `pmnet device`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DeviceCommand {
    #[command(flatten)]
    args: DeviceArgs,
    #[command(flatten)]
    common: CommonArgs,
}

/// Shards of one process, at most.
const SHARDS_MAX: u16 = 64;

#[derive(Clone)]
struct Settings {
    relay: RelayConfig,
    path: PathBuf,
    kind: Kind,
    /// The kernel's part, in a kernel mode.
    kernel: Option<KernelSettings>,
    /// Given explicitly: an existing log must have exactly these.
    wanted: Option<Parameters>,
}

fn settings(flags: DeviceArgs, file: DeviceArgs) -> Result<Settings, ConfigError> {
    let listen = flags.listen.clone().or_else(|| file.listen.clone());
    let listen = udp_address("--listen", &required("--listen", "device", listen)?)?;
    let kernel = KernelSettings::new(&flags, &file, listen)?;
    let next = required("--next", "device", flags.next.or(file.next))?;
    let next = udp_address("--next", &next)?;
    if next.is_ipv4() != listen.is_ipv4() {
        return Err(ConfigError(format!(
            "--listen {listen} and --next {next}: one is IPv4 and the other IPv6; give both the same way"
        )));
    }
    let switch = kernel.as_ref().is_some_and(KernelSettings::is_switch);
    if next == listen && !switch {
        return Err(ConfigError(format!(
            "--next {next} is this device itself: it must be the next device or the server"
        )));
    }
    if next.is_ipv4() != listen.is_ipv4() {
        return Err(ConfigError(format!(
            "--listen {listen} and --next {next} must be of one address family: both IPv4 or both IPv6"
        )));
    }
    let (log, media) = (flags.log.or(file.log), flags.media.or(file.media));
    let (path, media) = match &kernel {
        Some(kernel) => {
            if log.is_some() || media.is_some() {
                return Err(ConfigError(
                    "--log and --media do not go with a kernel mode: its log is memory of the kernel (--spill FILE \
                     saves it)"
                        .into(),
                ));
            }
            (PathBuf::from(&kernel.name), MediaArg::Dram)
        }
        None => (
            required("--log", "device", log)?,
            required("--media", "device", media)?,
        ),
    };
    let id = flags
        .id
        .or(file.id)
        .unwrap_or_else(|| u32::from(listen.port()));
    if id == 0 {
        return Err(ConfigError(
            "--id must not be 0 (and is the listen port by default: give --id with port 0)".into(),
        ));
    }
    let size = match flags.log_size.or(file.log_size) {
        Some(size) => Some(from_size(bytes("--log-size", &size)?)),
        None => None,
    };
    let entries = flags.entries.or(file.entries);
    let frame_bytes = flags.frame_bytes.or(file.frame_bytes);
    let wanted = match (entries, frame_bytes) {
        (Some(entries), Some(frame_bytes)) => Some(Parameters {
            entries,
            frame_bytes,
        }),
        (None, None) => size,
        _ => {
            return Err(ConfigError(
                "--entries and --frame-bytes belong together (or use --log-size)".into(),
            ));
        }
    };
    if let Some(parameters) = &wanted {
        parameters
            .validate()
            .map_err(|error| ConfigError(error.to_string()))?;
    }
    let mut device = DeviceConfig::new(id, flags.shard.or(file.shard).unwrap_or(0), next);
    device.server_reads_log = flags.server_reads_log || file.server_reads_log;
    if flags.shrink_chain || file.shrink_chain {
        device.flags |= Member::SHRINK;
    }
    if flags.declare_data_loss || file.declare_data_loss {
        device.flags |= Member::DECLARE_LOSS;
    }
    Ok(Settings {
        relay: RelayConfig {
            listen,
            known_as: None,
            device,
            spin_micros: flags.spin_us.or(file.spin_us).unwrap_or(SPIN_US),
        },
        path,
        kind: match media {
            MediaArg::File => Kind::File,
            MediaArg::Dram => Kind::Dram,
        },
        kernel,
        wanted,
    })
}

/// Frame space rounded up to whole blocks, and the entries that go with it.
fn from_size(size: u64) -> Parameters {
    // Too much for a number is too much for a log: its check says so.
    let frame_bytes = size.checked_next_multiple_of(4096).unwrap_or(u64::MAX);
    let entries = (frame_bytes / FRAME_BYTES_PER_ENTRY)
        .next_power_of_two()
        .clamp(pmnet_log::ENTRIES_MIN, pmnet_log::ENTRIES_MAX);
    Parameters {
        entries,
        frame_bytes,
    }
}

/// The settings of shard `index` of several.
fn nth(first: &Settings, index: u16) -> Result<Settings, ConfigError> {
    let mut settings = first.clone();
    let relay = &mut settings.relay;
    for address in [&mut relay.listen, &mut relay.device.next] {
        let port = address.port().checked_add(index).ok_or_else(|| {
            ConfigError(format!(
                "--shards: port {} + {index} is not a port",
                address.port()
            ))
        })?;
        address.set_port(port);
    }
    let shard = relay.device.shard.checked_add(u32::from(index));
    relay.device.shard = shard.ok_or_else(|| {
        ConfigError(format!(
            "--shards: shard {} + {index} is not a shard number",
            relay.device.shard
        ))
    })?;
    let mut path = first.path.clone().into_os_string();
    path.push(format!(".{}", relay.device.shard));
    settings.path = path.into();
    Ok(settings)
}

/// Serves until asked to end.
pub fn main(command: &DeviceCommand) -> anyhow::Result<bool> {
    let file = command.common.file()?.device;
    let shards = command.args.shards.or(file.shards).unwrap_or(1);
    let first = settings(command.args.clone(), file)?;
    if command.args.detach {
        return kernel::detach(&first, command.args.discard);
    }
    let stop = shutdown::stop_on_signals()?;
    let json = command.common.json;
    if shards > 1 && first.kernel.is_some() {
        let text = "--shards does not go with a kernel mode yet: an interface has one pipeline";
        return Err(ConfigError(text.into()).into());
    }
    match shards {
        1 => serve(first, &stop, json).map(|()| true),
        2..=SHARDS_MAX => serve_all(&first, shards, &stop, json),
        _ => Err(ConfigError(format!("--shards must be 1 to {SHARDS_MAX}")).into()),
    }
}

/// Serves several shards. One that stops says so and does not take the others with it.
fn serve_all(first: &Settings, shards: u16, stop: &Stop, json: bool) -> anyhow::Result<bool> {
    let all: Vec<Settings> = (0..shards)
        .map(|index| nth(first, index))
        .collect::<Result<_, _>>()?;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for settings in all {
            let shard = settings.relay.device.shard;
            let stop = stop.try_clone().context("cannot share the stop")?;
            let serving = std::thread::Builder::new()
                .name(format!("shard-{shard}"))
                .spawn_scoped(scope, move || {
                    serve(settings, &stop, json)
                        .inspect_err(|error| tracing::error!("shard {shard} stopped: {error:#}"))
                })
                .context("cannot start a thread")?;
            threads.push(serving);
        }
        // Every one is waited for, also after one that failed.
        let failed = threads
            .into_iter()
            .filter_map(|thread| thread.join().map_or(Some(()), |end| end.err().map(drop)))
            .count();
        Ok(failed == 0)
    })
}

fn serve(settings: Settings, stop: &Stop, json: bool) -> anyhow::Result<()> {
    if settings.kernel.is_some() {
        return kernel::serve(settings, stop, json);
    }
    let log = open_log(&settings)
        .with_context(|| format!("cannot use the log {}", settings.path.display()))?;
    run_relay(settings.relay, log, None, stop, json, || ())
}

fn run_relay<M: Media>(
    relay: RelayConfig,
    log: Log<M>,
    fast_path: Option<Box<dyn FastPath>>,
    stop: &Stop,
    json: bool,
    serving: impl FnOnce(),
) -> anyhow::Result<()> {
    let device = relay.device.id;
    let shard = relay.device.shard;
    let (media, survives) = (log.media_name(), log.survives());
    run(relay, log, fast_path, stop, |address, pipeline| {
        serving();
        ready::announce(
            json,
            "device",
            &[
                ("listen", json!(address.to_string())),
                ("id", json!(device)),
                ("shard", json!(shard)),
                ("epoch", json!(pipeline.machine().epoch())),
                ("copies", json!(pipeline.machine().copies())),
                ("media", json!(media)),
                ("survives", json!(survives)),
            ],
        );
    })?;
    Ok(())
}

fn new_identity(device: u32, shard: u32) -> Identity {
    Identity {
        log_uuid: u128::from(fastrand::u64(..)) << 64 | u128::from(fastrand::u64(..)),
        device,
        shard,
    }
}

fn open_log(settings: &Settings) -> anyhow::Result<Log<AnyMedia>> {
    let device = settings.relay.device.id;
    let shard = settings.relay.device.shard;
    let new = !settings.path.exists();
    let media = if new {
        let parameters = settings.wanted.unwrap_or_else(|| from_size(FRAME_BYTES));
        let mut media =
            pmnet_media::create(&settings.path, settings.kind, parameters.image_bytes())?;
        let identity = new_identity(device, shard);
        pmnet_log::format(&mut media, &identity, &parameters)?;
        tracing::info!(path = %settings.path.display(), ?parameters, "made a new log");
        media
    } else {
        pmnet_media::open(&settings.path, settings.kind)?
    };
    let expected = Expected {
        device,
        shard,
        parameters: settings.wanted,
    };
    let scan = Scan::open(media, Some(expected))?;
    let decision = scan.decide();
    if !new {
        let report = scan.report();
        tracing::info!(
            entries = report.slots_valid,
            invalid = report.slots_invalid,
            epoch = report.epoch,
            incarnation = report.incarnation,
            ?decision,
            "read the log"
        );
    }
    Ok(scan.repair(decision)?)
}
