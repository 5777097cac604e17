//! A device on a UDP socket, with a log that this module opens or makes.

use anyhow::Context;
use pmnet_client::Stop;
use pmnet_dataplane::log_name::LogName;
use pmnet_dataplane::relay::{self, RelayConfig};
use pmnet_device::{DeviceNode, FastPath, Turn};
use pmnet_fleet::Facts;
use pmnet_log::{Expected, Identity, Log, Media, Parameters, Scan};
use pmnet_media::{AnyMedia, Kind, OpenError};
use serde_json::{Value, json};
use std::net::SocketAddr;

use super::settings::Settings;
use super::supervisor::facts;
use crate::cli::process::Part;
use crate::memory_limit::memory_limit;
use crate::status::DeviceWriter;

/// Makes one run, which lasts until the process is asked to end. `may_serve` is called after the log is open.
pub fn run(
    settings: Settings,
    writer: DeviceWriter,
    stop: &Stop,
    part: &Part<'_>,
    may_serve: impl FnOnce(Facts) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let (log, _) = open_log(&settings)
        .with_context(|| format!("cannot use the log {}", settings.path.display()))?;
    if !may_serve(facts(&log))? {
        return Ok(log.close()?);
    }
    run_relay(settings.relay, log, None, writer, stop, part, || ())
}

/// Serves until the process is asked to end. `serving` is called as soon as the device serves.
pub fn run_relay<M: Media>(
    relay: RelayConfig,
    log: Log<M>,
    fast_path: Option<Box<dyn FastPath>>,
    mut writer: DeviceWriter,
    stop: &Stop,
    part: &Part<'_>,
    serving: impl FnOnce(),
) -> anyhow::Result<()> {
    let device = relay.device.id;
    let shard = relay.device.shard;
    let (media, survives) = (log.media_name(), log.survives());
    let observe = |node: &DeviceNode<M>, turn: &Turn| writer.turn(node, turn);
    relay::run(relay, log, fast_path, stop, observe, |address, node| {
        serving();
        announce(part, address, node, (device, shard), (media, survives), &[]);
    })?;
    Ok(())
}

/// Prints the ready line of a device: its address, its id, and the medium of its log.
pub fn announce<M: Media>(
    part: &Part<'_>,
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
    part.announce("device", &fields);
}

/// Opens the log, or makes a new log. Returns the log, and whether this call made its file.
pub fn open_log(settings: &Settings) -> anyhow::Result<(Log<AnyMedia>, bool)> {
    let device = settings.relay.device.id;
    let shard = settings.relay.device.shard;
    let name = settings.relay.log.as_ref();
    // A file that has lost its name still has the log, also for the next run.
    let settings = &Settings {
        path: name.map_or_else(|| settings.path.clone(), LogName::place),
        ..settings.clone()
    };
    let made = !settings.path.exists();
    let unused = made || pmnet_media::is_unused_device(&settings.path, settings.kind)?;
    let (mut media, parameters) = if unused {
        make_log(settings)?
    } else {
        if settings.kind == Kind::File {
            fits_memory(std::fs::metadata(&settings.path)?.len())?;
        }
        let parameters = settings.wanted.unwrap_or_else(|| settings.usual());
        let media = pmnet_media::open(&settings.path, settings.kind)?;
        (media, parameters)
    };
    // If the file has only zeros, a process ended before it had written to the new log.
    let blank = !unused && media.bytes().iter().all(|byte| *byte == 0);
    let parameters = match settings.wanted {
        // The file may be smaller than the default size.
        None if blank => {
            let same = |one: &Parameters| one.image_bytes() == media.bytes().len();
            settings.smaller().find(same).unwrap_or(parameters)
        }
        _ => parameters,
    };
    anyhow::ensure!(
        !blank || media.bytes().len() == parameters.image_bytes(),
        "PM1216 the log {} is blank, and of another size than it would be made with: delete it",
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
    let log = scan.repair(decision)?;
    if let Some(name) = name {
        name.keep()?;
    }
    Ok((log, made))
}

/// Makes the file of a new log. The file has the size that the operator gave. Without a given size, the file has the
/// default size, or a smaller size if there is not enough space.
fn make_log(settings: &Settings) -> anyhow::Result<(AnyMedia, Parameters)> {
    let create = |parameters: Parameters| {
        pmnet_media::create(&settings.path, settings.kind, parameters.image_bytes())
            .map(|media| (media, parameters))
    };
    let bytes =
        |parameters: &Parameters| u64::try_from(parameters.image_bytes()).unwrap_or(u64::MAX);
    if let Some(wanted) = settings.wanted {
        if settings.kind != Kind::Pmem {
            fits_memory(bytes(&wanted))?;
        }
        return Ok(create(wanted)?);
    }
    let usual = settings.usual();
    // The pages of a log on disk count as memory too. Half of the memory limit is reserved for everything else.
    let limit = memory_limit().filter(|_| settings.kind != Kind::Pmem);
    let room = limit.map_or(u64::MAX, |limit| limit / 2);
    let smallest = settings.smaller().last().unwrap_or(usual);
    let mut sizes = std::iter::once(usual).chain(settings.smaller());
    loop {
        let Some(parameters) = sizes.next() else {
            return Ok(create(smallest)?);
        };
        if bytes(&parameters) > room && parameters != smallest {
            continue;
        }
        match create(parameters) {
            Err(OpenError::NoSpace { .. }) if parameters != smallest => {}
            made => {
                let made = made?;
                if parameters != usual {
                    tracing::warn!(
                        path = %settings.path.display(),
                        "PM1218 there is no room for a log of the usual size (a file of {} bytes{}): this one has {}. --log-size chooses another \
                         size, for a new log",
                        usual.image_bytes(),
                        limit.map_or(String::new(), |limit| format!("; memory limit {limit}")),
                        parameters.image_bytes()
                    );
                }
                return Ok(made);
            }
        }
    }
}

/// Refuses a log that is larger than the memory limit of this process. The kernel would kill the process without a
/// message.
fn fits_memory(bytes: u64) -> anyhow::Result<()> {
    match memory_limit() {
        Some(limit) if bytes >= limit => anyhow::bail!(
            "PM1217 a log of {bytes} bytes is in memory, of which this process may use {limit} (the limit of its control group, or \
             container): raise the limit, or make a smaller log (--log-size); nothing was changed"
        ),
        _ => Ok(()),
    }
}

/// Returns the identity of a new log. The identity consists of random bytes from the operating system, because no two
/// logs may have the same identity.
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
    use super::super::settings::settings;
    use super::*;

    /// Regression test: after the file had been removed, the next run of the same process made a new log, and entries that
    /// were not applied were lost.
    #[test]
    fn the_next_run_finds_a_log_that_has_lost_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let args = format!(
            "listen = \"127.0.0.1:0\"\nnext = \"127.0.0.1:1\"\nid = 1\nlog = \"{}\"\nlog-size = \"1M\"\nmedia = \"dram\"\n",
            path.display()
        );
        let settings = settings(toml::from_str(&args).unwrap()).unwrap();
        let (log, made) = open_log(&settings).unwrap();
        assert!(made);
        let first = log.identity().log_uuid;
        log.close().unwrap();
        for change in [0, 1] {
            match change {
                0 => std::fs::remove_file(&path).unwrap(),
                _ => std::fs::write(&path, "something else").unwrap(),
            }
            // The supervisor starts each run with a copy of the settings.
            let (log, made) = open_log(&settings.clone()).unwrap();
            assert!(!made && log.identity().log_uuid == first);
            log.close().unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"something else");
    }

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
