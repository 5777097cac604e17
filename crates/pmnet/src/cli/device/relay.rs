//! A device on its UDP socket, with a log that was opened or made for it.

use anyhow::Context;
use pmnet_client::Stop;
use pmnet_dataplane::relay::{RelayConfig, run};
use pmnet_device::{DeviceNode, FastPath};
use pmnet_log::{Expected, Identity, Log, Media, Scan};
use pmnet_media::AnyMedia;
use serde_json::{Value, json};
use std::net::SocketAddr;

use super::settings::Settings;
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
        announce(json, address, node, (device, shard), (media, survives), &[]);
    })?;
    Ok(())
}

/// Says that a device serves: where, which one, on which medium.
pub fn announce<M: Media>(
    json: bool,
    address: SocketAddr,
    node: &DeviceNode<M>,
    (device, shard): (u32, u32),
    (media, survives): (&str, &str),
    more: &[(&str, Value)],
) {
    let machine = node.machine();
    let mut fields = vec![
        ("listen", json!(address.to_string())),
        ("id", json!(device)),
        ("shard", json!(shard)),
        ("epoch", json!(machine.epoch())),
        ("copies", json!(machine.copies())),
        ("media", json!(media)),
        ("survives", json!(survives)),
        ("fragment", json!(machine.fragment_size().bytes())),
    ];
    fields.extend_from_slice(more);
    ready::announce(json, "device", &fields);
}

/// Opens the log, or makes it where there is none; whether its file was made.
pub fn open_log(settings: &Settings) -> anyhow::Result<(Log<AnyMedia>, bool)> {
    let device = settings.relay.device.id;
    let shard = settings.relay.device.shard;
    let made = !settings.path.exists();
    let unused = made || pmnet_media::is_unused_device(&settings.path, settings.kind)?;
    let parameters = settings.wanted.unwrap_or_else(|| settings.usual());
    let mut media = if unused {
        pmnet_media::create(&settings.path, settings.kind, parameters.image_bytes())?
    } else {
        pmnet_media::open(&settings.path, settings.kind)?
    };
    // Whoever made a log of zeros died before it had written anything.
    let blank = !unused && media.bytes().iter().all(|byte| *byte == 0);
    anyhow::ensure!(
        !blank || media.bytes().len() == parameters.image_bytes(),
        "the log {} is blank, and of another size than it would be made with: delete it",
        settings.path.display()
    );
    let new = unused || blank;
    if new {
        pmnet_log::format(&mut media, &new_identity(device, shard)?, &parameters)?;
        tracing::info!(path = %settings.path.display(), ?parameters, "made a new log");
    }
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
    Ok((scan.repair(decision)?, made))
}

/// A new log's identity: no two logs may ever have the same, so the operating system draws it.
pub fn new_identity(device: u32, shard: u32) -> anyhow::Result<Identity> {
    let mut log_uuid = [0; 16];
    getrandom::fill(&mut log_uuid).context(
        "the operating system gives no random numbers, which a new log's identity is made of",
    )?;
    Ok(Identity {
        log_uuid: u128::from_be_bytes(log_uuid),
        device,
        shard,
    })
}

#[cfg(test)]
mod tests {
    use super::new_identity;

    #[test]
    fn no_two_logs_have_the_same_identity() {
        let (one, other) = (new_identity(1, 2).unwrap(), new_identity(1, 2).unwrap());
        assert_eq!((one.device, one.shard), (1, 2));
        let halves = |uuid: u128| [uuid >> 64, uuid & u128::from(u64::MAX)];
        let pairs = halves(one.log_uuid).into_iter().zip(halves(other.log_uuid));
        for (one, other) in pairs {
            assert_ne!(one, other, "drawn anew each time, both halves");
        }
    }
}
