//! A device on its UDP socket, with a log that was opened or made for it.

use pmnet_client::Stop;
use pmnet_dataplane::relay::{RelayConfig, run};
use pmnet_device::FastPath;
use pmnet_log::{Expected, Identity, Log, Media, Scan};
use pmnet_media::AnyMedia;
use serde_json::json;

use super::settings::{FRAME_BYTES, Settings, from_size};
use crate::cli::ready;

/// Serves until asked to end; `serving` is called once it does.
pub fn run_relay<M: Media>(
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
    run(relay, log, fast_path, stop, |address, node| {
        serving();
        ready::announce(
            json,
            "device",
            &[
                ("listen", json!(address.to_string())),
                ("id", json!(device)),
                ("shard", json!(shard)),
                ("epoch", json!(node.machine().epoch())),
                ("copies", json!(node.machine().copies())),
                ("media", json!(media)),
                ("survives", json!(survives)),
            ],
        );
    })?;
    Ok(())
}

/// Opens the log, or makes it where there is none.
pub fn open_log(settings: &Settings) -> anyhow::Result<Log<AnyMedia>> {
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

/// A new log's identity, drawn at random.
pub fn new_identity(device: u32, shard: u32) -> Identity {
    Identity {
        log_uuid: u128::from(fastrand::u64(..)) << 64 | u128::from(fastrand::u64(..)),
        device,
        shard,
    }
}
