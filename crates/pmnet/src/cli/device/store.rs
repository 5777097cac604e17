//! `pmnet device --store`: a device that is the tail of its chain and the server of its shard.

use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use anyhow::Context;
use pmnet_cli::{ConfigError, bytes};
use pmnet_client::Stop;
use pmnet_dataplane::direct::{BufferSpace, DirectConfig, DirectDevice};
use pmnet_dataplane::relay::{RelayConfig, can_listen, run_with};
use pmnet_device::{DeviceConfig, DeviceNode};
use pmnet_media::{AnyMedia, Kind};
use pmnet_packet_store::Seat;
use pmnet_proto::Random;
use pmnet_server::{Server, ServerConfig, ServerNode, Store as _};
use pmnet_store::{RegionAddress, RegionStore};
use pmnet_tail::{SERVER, StoreDevice};
use pmnet_wire::record::Member;
use serde_json::json;

use super::args::{DeviceArgs, Mode};
use super::direct::{DirectSettings, described};
use super::interfaces::Interfaces;
use super::relay::announce;
use super::settings::{FRAME_BYTES, SPIN_US, Settings, id};
use crate::cli::common::size_max;

/// Settings of such a device.
pub fn settings(
    url: &str,
    listen: SocketAddr,
    direct: Option<DirectSettings>,
    flags: DeviceArgs,
    file: DeviceArgs,
) -> Result<Settings, ConfigError> {
    let refused = |what: &str, why: &str| {
        Err(ConfigError(format!(
            "{what} does not go with --store: {why}"
        )))
    };
    if let Some(Mode::Nic | Mode::Switch | Mode::Router) = flags.mode.or(file.mode) {
        return refused(
            "--mode of the kernel",
            "the kernel has no store; use relay or af-xdp",
        );
    }
    if flags.next.or(file.next).is_some() {
        return refused(
            "--next",
            "behind this device there is nothing, it is the server",
        );
    }
    if flags.log.or(file.log).is_some() || flags.media.or(file.media).is_some() {
        return refused(
            "--log or --media",
            "the log is in the region; its medium: packet:PATH?media=…",
        );
    }
    if flags.fleet.or(file.fleet).is_some() {
        return refused("--fleet", "a fleet's server is a process of its own");
    }
    if flags.join || file.join || flags.declare_data_loss || file.declare_data_loss {
        return refused(
            "--join or --declare-data-loss",
            "its log and its data are one, and are there or gone together",
        );
    }
    let given = [
        flags.entries.or(file.entries),
        flags.frame_bytes.or(file.frame_bytes),
    ];
    if given.iter().any(Option::is_some) {
        return refused("--entries or --frame-bytes", "give --log-size");
    }
    if flags.server_reads_log || file.server_reads_log {
        return refused("--server-reads-log", "nobody else reads this log");
    }
    if !url.starts_with("packet:") {
        return Err(ConfigError(format!(
            "--store {url}: a device keeps data in packet:PATH only; other stores are for pmnet server"
        )));
    }
    let id = id(flags.id.or(file.id), listen)?;
    let shard = flags.shard.or(file.shard).unwrap_or(0);
    let size = flags.log_size.or(file.log_size);
    let size = size.map(|text| bytes("--log-size", &text)).transpose()?;
    let region = RegionAddress::parse(url, id, shard, size.unwrap_or(FRAME_BYTES));
    let region = region.map_err(|error| ConfigError(format!("--store: {error}")))?;
    let mut device = DeviceConfig::new(id, shard, SERVER);
    device.size_max = size_max(flags.mtu.or(file.mtu), listen.is_ipv6())?;
    if flags.shrink_chain || file.shrink_chain {
        device.flags |= Member::SHRINK;
    }
    Ok(Settings {
        relay: RelayConfig {
            listen,
            known_as: None,
            device,
            spin_micros: flags.spin_us.or(file.spin_us).unwrap_or(SPIN_US),
            lease: None,
        },
        path: PathBuf::from(region.path()),
        kind: Kind::Dram,
        kernel: None,
        direct,
        fleet: None,
        store: Some(region),
        next_name: None,
        // Its chain is another matter: its server is within it.
        ctl: false,
        wanted: None,
    })
}

type Node = DeviceNode<Seat<AnyMedia>>;

/// Serves until asked to end.
pub fn serve(
    settings: Settings,
    region: &RegionAddress,
    stop: &Stop,
    json: bool,
) -> anyhow::Result<()> {
    let kind = region.medium()?;
    if region.is_new() {
        // Nothing is made for a device that could not serve.
        can_listen(settings.relay.listen, stop)?;
    }
    let direct = settings.direct.clone();
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
    let server = ServerNode::new(Server::new(ServerConfig::new(about.1), random), store);
    let in_place = direct.is_some();
    let make = |device: Node| StoreDevice::new(device, server, in_place);
    let mut counts = [0; 2];
    let observe = |node: &StoreDevice<AnyMedia>| counts = node.server().store().counts();
    let store = ("store", json!(durability));
    if let Some((direct, memory)) = direct.zip(memory) {
        let own = u64::from(region.log_frames(kind));
        let space = BufferSpace::beside_a_store(memory, start, &parameters, own)?;
        let busy_poll = direct.busy_poll;
        let names = direct.interfaces.clone();
        let config = DirectConfig {
            relay: settings.relay,
            interfaces: direct.interfaces,
            mode: direct.copying,
            busy_poll,
            part: direct.part,
        };
        let opened = DirectDevice::open_in(config, space, stop).inspect_err(|_| {
            // Nobody has heard of this region yet, and it is ours alone.
            if made && let Err(error) = std::fs::remove_file(region.path()) {
                tracing::warn!(path = %region.path().display(), %error, "cannot remove the new region");
            }
        })?;
        let _watched = Interfaces::watch(names, false);
        opened.serve_with(log, make, observe, |address, node, bound| {
            let mut more = described(bound, busy_poll);
            more.push(store);
            announce(json, address, node, about, (media, survives), &more);
        })?;
    } else {
        run_with(settings.relay, log, stop, make, observe, |address, node| {
            announce(json, address, node, about, (media, survives), &[store]);
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

/// Refuses what the kernel cannot receive into, before anything is made.
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
