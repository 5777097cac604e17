//! `pmnet device --store`: a device that is both the tail of its chain and the server of its shard.

use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use pmnet_cli::{ConfigError, bytes};
use pmnet_client::{SocketCounters, Stop};
use pmnet_dataplane::direct::{BufferSpace, DirectDevice};
use pmnet_dataplane::relay::run_with;
use pmnet_device::{DeviceConfig, DeviceNode, Served as _, Turn};
use pmnet_media::{AnyMedia, Kind};
use pmnet_packet_store::Seat;
use pmnet_proto::Random;
use pmnet_server::serve::Turn as ServerTurn;
use pmnet_server::{Server, ServerConfig, ServerNode, Store as _};
use pmnet_store::{RegionAddress, RegionStore};
use pmnet_tail::{SERVER, StoreDevice};
use pmnet_wire::record::Member;
use serde_json::json;

use super::args::{DeviceArgs, Mode};
use super::direct::{DirectSettings, described, unmake};
use super::interfaces::Interfaces;
use super::relay::announce;
use super::settings::{FRAME_BYTES, Place, Settings, device_keys, id, relay_config};
use crate::cli::common::size_max;
use crate::cli::keys::key_args;
use crate::cli::process::Part;
use crate::status::{DeviceWriter, ServerWriter};

/// Returns the settings of a device with `--store`.
pub fn settings(
    url: &str,
    listen: SocketAddr,
    direct: Option<DirectSettings>,
    args: DeviceArgs,
) -> Result<Settings, ConfigError> {
    goes_with_a_store(&args)?;
    if !url.starts_with("packet:") {
        return Err(ConfigError(format!(
            "--store {url}: a device keeps data in packet:PATH only; other stores are for pmnet server"
        )));
    }
    let id = id(args.id, listen)?;
    let shard = args.shard.unwrap_or(0);
    let size = args.log_size.as_deref();
    let size = size.map(|text| bytes("--log-size", text)).transpose()?;
    let region = RegionAddress::parse(url, id, shard, size.unwrap_or(FRAME_BYTES));
    let region = region.map_err(|error| ConfigError(format!("--store: {error}")))?;
    let mut device = DeviceConfig::new(id, shard, SERVER);
    device.size_max = size_max(args.mtu, listen.is_ipv6())?;
    let keys = key_args!(args).of_cluster(&[listen])?;
    device.keys = device_keys(keys.as_ref(), args.next_id)?;
    if args.shrink_chain {
        device.flags |= Member::SHRINK;
    }
    let mut relay = relay_config(listen, device, &args);
    relay.keys = keys.as_ref().map(|keys| keys.keys.clone());
    Ok(Settings {
        relay,
        keys,
        path: PathBuf::from(region.path()),
        kind: Kind::Dram,
        place: Place::Store(region, direct),
        fleet: None,
        next_name: None,
        // `pmnet ctl` cannot change this device's next hop, because the device is also the server.
        ctl: false,
        wanted: None,
    })
}

/// Refuses flags that contradict `--store`.
fn goes_with_a_store(args: &DeviceArgs) -> Result<(), ConfigError> {
    let in_kernel = matches!(args.mode, Some(Mode::Nic | Mode::Switch | Mode::Router));
    let others = [
        (
            in_kernel,
            "--mode of the kernel",
            "the kernel has no store; use relay or af-xdp",
        ),
        (
            args.next.is_some(),
            "--next",
            "behind this device there is nothing, it is the server",
        ),
        (
            args.log.is_some() || args.media.is_some(),
            "--log or --media",
            "the log is in the region; its medium: packet:PATH?media=…",
        ),
        (
            args.fleet.is_some(),
            "--fleet",
            "a fleet's server is a process of its own",
        ),
        (
            args.next_id.is_some_and(|id| id != 0),
            "--next-id",
            "its next hop is its own server, whose id is 0",
        ),
        (
            args.join || args.declare_data_loss,
            "--join or --declare-data-loss",
            "its log and its data are one, and are there or gone together",
        ),
        (
            args.entries.is_some() || args.frame_bytes.is_some(),
            "--entries or --frame-bytes",
            "give --log-size",
        ),
        (
            args.server_reads_log,
            "--server-reads-log",
            "nobody else reads this log",
        ),
    ];
    match others.into_iter().find(|(said, ..)| *said) {
        Some((_, flag, why)) => Err(ConfigError(format!(
            "{flag} does not go with --store: {why}"
        ))),
        None => Ok(()),
    }
}

type Node = DeviceNode<Seat<AnyMedia>>;

/// Makes one run, which lasts until the process is asked to end.
pub fn run(
    settings: Settings,
    region: &RegionAddress,
    direct: Option<DirectSettings>,
    mut writer: DeviceWriter,
    stop: &Stop,
    part: &Part<'_>,
) -> anyhow::Result<()> {
    let kind = region.medium()?;
    if let Some(direct) = &direct {
        fits(direct, region, kind)?;
    }
    let (shared, made) = region.open()?;
    let start = shared.image_start();
    let memory = direct
        .as_ref()
        .map(|_| shared.log().medium().medium().memory());
    let parameters = *shared.log().parameters();
    let mut store = RegionStore::new(shared, region.to_string())?;
    let durability = store.durability();
    let log = store.region().hand_over();
    let (media, survives) = (log.media_name(), log.survives());
    let about = (settings.relay.device.id, settings.relay.device.shard);
    let random = Random::new(getrandom::u64().context("no random numbers")?);
    let of_server = ServerConfig {
        // The server begins with the device's keys. If the keys change later, server and device get the new keys in the
        // same turn.
        keys: settings
            .relay
            .device
            .keys
            .as_ref()
            .map(|keys| keys.cluster.clone()),
        ..ServerConfig::new(about.1)
    };
    let server = ServerNode::new(Server::new(of_server, random), store);
    let in_place = direct.is_some();
    let make = |device: Node| StoreDevice::new(device, server, in_place);
    let mut counts = [0; 2];
    let mut of_server = ServerWriter::default();
    let observe = |node: &StoreDevice<AnyMedia>, turn: &Turn| {
        counts = node.server().store().counts();
        writer.turn(node.device(), turn);
        if let Some(board) = writer.shown().and_then(|board| board.server.as_ref()) {
            // The server has no socket of its own, and uses the device's socket.
            let turn = ServerTurn {
                step: None,
                socket: SocketCounters::default(),
            };
            of_server.turn(board, node.server(), &turn);
        }
    };
    let store = ("store", json!(durability));
    if let Some((direct, memory)) = direct.zip(memory) {
        let own = u64::from(region.log_frames(kind));
        let space = BufferSpace::beside_a_store(memory, start, &parameters, own)?;
        let (busy_poll, names) = (direct.busy_poll, direct.interfaces.clone());
        let config = direct.config(settings.relay);
        let opened = DirectDevice::open_in(config, space, stop).inspect_err(|_| {
            if made {
                unmake(Path::new(region.path()), "region");
            }
        })?;
        let _watched = Interfaces::watch(names, false);
        opened.serve_with(log, make, observe, |address, node, bound| {
            let mut more = described(bound, busy_poll);
            more.push(store);
            announce(part, address, node, about, (media, survives), &more);
        })?;
    } else {
        run_with(settings.relay, log, stop, make, observe, |address, node| {
            announce(part, address, node, about, (media, survives), &[store]);
        })?;
    }
    let [linked, copied] = counts;
    tracing::info!(
        linked,
        copied,
        "strings of updates that stayed where they came, and that were copied"
    );
    Ok(())
}

/// Refuses a region into whose memory the kernel cannot receive packets. The check comes before any file is made.
fn fits(direct: &DirectSettings, region: &RegionAddress, kind: Kind) -> Result<(), ConfigError> {
    let device = std::fs::metadata(region.path()).is_ok_and(|it| it.file_type().is_char_device());
    if kind == Kind::Pmem && !device {
        return Err(ConfigError(format!(
            "--store {region}: the kernel takes no packet buffers in a file of persistent memory (fsdax): use a devdax device \
             there, media=file or dram, or another --mode"
        )));
    }
    let buffers = u64::from(region.log_frames(kind));
    let needed = direct.part.buffers_needed(&direct.interfaces);
    if buffers < needed {
        return Err(ConfigError(format!(
            "--log-size: the log has {buffers} frames of the region, and the queues of {} need {needed}",
            direct.interfaces.join(", ")
        )));
    }
    Ok(())
}
