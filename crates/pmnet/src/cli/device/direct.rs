//! `pmnet device --mode af-xdp`: the buffers that receive packets are the log.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::Context;
use pmnet_cli::ConfigError;
use pmnet_client::Stop;
use pmnet_dataplane::direct::{
    Bound, BusyPoll, DirectConfig, DirectDevice, Mode as Copying, Part as Share,
};
use pmnet_dataplane::relay::RelayConfig;
use pmnet_device::{DeviceNode, Turn};
use pmnet_fleet::Facts;
use pmnet_log::Parameters;
use pmnet_media::{AnyMedia, Kind};
use serde_json::{Value, json};

use super::args::{DeviceArgs, Mode, ZeroCopy};
use super::interfaces::Interfaces;
use super::relay::{announce, open_log};
use super::settings::Settings;
use super::supervisor::facts;
use crate::cli::process::Part;
use crate::status::DeviceWriter;

/// Maximum number of interfaces of one device.
const INTERFACES_MAX: usize = 16;
/// Maximum value of --busy-poll, in microseconds.
const BUSY_POLL_MAX: u32 = 10_000;
/// Maximum number of packets of one poll, which is the number that the device takes from a queue at once.
const BUSY_POLL_BUDGET: u16 = 64;

/// Settings of `--mode af-xdp`.
#[derive(Clone, Debug)]
pub struct DirectSettings {
    pub interfaces: Vec<String>,
    pub copying: Copying,
    pub busy_poll: Option<BusyPoll>,
    /// The queues of the interfaces that belong to this shard.
    pub part: Share,
}

impl DirectSettings {
    /// Returns the settings of this mode; `None` in other modes.
    pub fn new(args: &DeviceArgs) -> Result<Option<DirectSettings>, ConfigError> {
        if args.mode != Some(Mode::AfXdp) {
            return match (args.zero_copy, args.busy_poll) {
                (Some(_), _) => Err(ConfigError("--zero-copy belongs to --mode af-xdp".into())),
                (_, Some(_)) => Err(ConfigError("--busy-poll belongs to --mode af-xdp".into())),
                (None, None) => Ok(None),
            };
        }
        let busy_poll = args.busy_poll;
        if busy_poll.is_some_and(|micros| !(1..=BUSY_POLL_MAX).contains(&micros)) {
            return Err(ConfigError(format!(
                "--busy-poll: 1 to {BUSY_POLL_MAX} microseconds"
            )));
        }
        let busy_poll = busy_poll.map(|micros| BusyPoll {
            micros,
            budget: BUSY_POLL_BUDGET,
        });
        let Some(interfaces) = args.dev.clone().filter(|names| !names.is_empty()) else {
            return Err(ConfigError(
                "--mode af-xdp needs --dev: the network interface by which packets come".into(),
            ));
        };
        if interfaces.len() > INTERFACES_MAX {
            return Err(ConfigError(format!(
                "--dev: at most {INTERFACES_MAX} interfaces"
            )));
        }
        let copying = match args.zero_copy.unwrap_or(ZeroCopy::Auto) {
            ZeroCopy::Auto => Copying::PreferZeroCopy,
            ZeroCopy::Always => Copying::ZeroCopy,
            ZeroCopy::Never => Copying::Copy,
        };
        Ok(Some(DirectSettings {
            interfaces,
            copying,
            busy_poll,
            part: Share::alone(),
        }))
    }

    /// Returns the configuration of a device in this mode. `relay`: the configuration of the device's loop.
    pub fn config(self, relay: RelayConfig) -> DirectConfig {
        DirectConfig {
            relay,
            interfaces: self.interfaces,
            mode: self.copying,
            busy_poll: self.busy_poll,
            part: self.part,
        }
    }

    /// Returns the settings for each of several shards. The queues are divided among them.
    pub fn divided(&self, shards: u16) -> Result<Vec<DirectSettings>, ConfigError> {
        let parts = Share::all(shards, &self.interfaces);
        let parts = parts.map_err(|error| ConfigError(format!("--shards {shards}: {error}")))?;
        let settings = |part| DirectSettings {
            part,
            ..self.clone()
        };
        Ok(parts.into_iter().map(settings).collect())
    }
}

/// Returns the parameters of a log of this size that consists of packet buffers. If the medium is a file, a buffer has
/// the size of a block, because files are written in blocks.
pub fn buffers(ring: &Parameters, kind: Kind) -> Parameters {
    let bytes = match kind {
        Kind::File => 4096,
        Kind::Dram | Kind::Pmem => 2048,
    };
    let entries = (ring.frame_bytes / u64::from(bytes))
        .next_power_of_two()
        .clamp(pmnet_log::ENTRIES_MIN, pmnet_log::ENTRIES_MAX);
    Parameters::buffers(entries, ring.frame_bytes, bytes)
}

/// Makes one run, which lasts until the process is asked to end. `may_serve` is called after the sockets are bound.
pub fn run(
    settings: Settings,
    direct: DirectSettings,
    mut writer: DeviceWriter,
    stop: &Stop,
    part: &Part<'_>,
    may_serve: impl FnOnce(Facts) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    fits(&settings, &direct)?;
    let (log, made) = open_log(&settings)
        .with_context(|| format!("cannot use the log {}", settings.path.display()))?;
    let memory = log.medium().memory();
    let about = (settings.relay.device.id, settings.relay.device.shard);
    let (media, survives) = (log.media_name(), log.survives());
    let names = direct.interfaces.clone();
    let busy_poll = direct.busy_poll;
    let config = direct.config(settings.relay);
    let opened = DirectDevice::open(config, &log, memory, stop).inspect_err(|_| {
        if made {
            unmake(&settings.path, "log");
        }
    })?;
    if !may_serve(facts(&log))? {
        drop(opened);
        return Ok(log.close()?);
    }
    let _watched = Interfaces::watch(names, false);
    let observe = |node: &DeviceNode<AnyMedia>, turn: &Turn| writer.turn(node, turn);
    opened.serve(log, observe, |address, node, bound| {
        let more = described(bound, busy_poll);
        announce(part, address, node, about, (media, survives), &more);
    })?;
    Ok(())
}

/// Refuses a log into whose memory the kernel cannot receive packets. The check comes before any file is made.
fn fits(settings: &Settings, direct: &DirectSettings) -> Result<(), ConfigError> {
    let device = std::fs::metadata(&settings.path).is_ok_and(|it| it.file_type().is_char_device());
    if settings.kind == Kind::Pmem && !device {
        return Err(ConfigError(format!(
            "--log {}: the kernel takes no packet buffers in a file of persistent memory (fsdax): use a devdax device \
             there, --media file or dram, or another --mode",
            settings.path.display()
        )));
    }
    if settings.path.exists() {
        return Ok(());
    }
    let parameters = settings.wanted.unwrap_or_else(|| settings.usual());
    let buffers = parameters.buffer_count();
    let needed = direct.part.buffers_needed(&direct.interfaces);
    if buffers < needed {
        return Err(ConfigError(format!(
            "--log-size: a log of {parameters} has {buffers} of them, and the queues of {} need {needed}",
            direct.interfaces.join(", ")
        )));
    }
    Ok(())
}

/// Removes a new log file if its sockets could not be made. The sockets need the file's memory, so the file is made
/// first. No other process knows the file yet.
pub fn unmake(path: &Path, what: &str) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "PM1428 cannot remove the new {what}");
    }
}

/// Returns the fields of the ready line that describe the sockets.
pub fn described(bound: &[Bound], busy_poll: Option<BusyPoll>) -> Vec<(&'static str, Value)> {
    let sockets: Vec<String> = bound
        .iter()
        .map(|one| {
            let copies = if one.zero_copy { "zero-copy" } else { "copy" };
            format!("{}/{}:{copies}", one.interface, one.queue)
        })
        .collect();
    let mut more = vec![("sockets", json!(sockets.join(",")))];
    if let Some(how) = busy_poll {
        more.push(("busy_poll_us", json!(how.micros)));
    }
    more
}
