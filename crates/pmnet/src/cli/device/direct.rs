//! `pmnet device --mode af-xdp`: packets are received into the buffers that are the log.

use std::os::unix::fs::FileTypeExt;

use anyhow::Context;
use pmnet_cli::ConfigError;
use pmnet_client::Stop;
use pmnet_dataplane::direct::{Bound, BusyPoll, DirectConfig, DirectDevice, Mode as Copying, Part};
use pmnet_log::{Log, Parameters};
use pmnet_media::{AnyMedia, Kind};
use serde_json::{Value, json};

use super::args::{DeviceArgs, Mode, ZeroCopy};
use super::interfaces::Interfaces;
use super::relay::{announce, open_log};
use super::settings::Settings;

/// Most interfaces of one device.
const INTERFACES_MAX: usize = 16;
/// Most microseconds of --busy-poll.
const BUSY_POLL_MAX: u32 = 10_000;
/// Packets of one poll: as many as are taken from a queue at once.
const BUSY_POLL_BUDGET: u16 = 64;

/// Settings of this mode.
#[derive(Clone, Debug)]
pub struct DirectSettings {
    pub interfaces: Vec<String>,
    pub copying: Copying,
    pub busy_poll: Option<BusyPoll>,
    /// Which of the shards of this process.
    pub part: Part,
}

impl DirectSettings {
    /// The settings of this mode; `None` in the others.
    pub fn new(
        flags: &DeviceArgs,
        file: &DeviceArgs,
    ) -> Result<Option<DirectSettings>, ConfigError> {
        let zero_copy = flags.zero_copy.or(file.zero_copy);
        let busy_poll = flags.busy_poll.or(file.busy_poll);
        if flags.mode.or(file.mode) != Some(Mode::AfXdp) {
            return match (zero_copy, busy_poll) {
                (Some(_), _) => Err(ConfigError("--zero-copy belongs to --mode af-xdp".into())),
                (_, Some(_)) => Err(ConfigError("--busy-poll belongs to --mode af-xdp".into())),
                (None, None) => Ok(None),
            };
        }
        if busy_poll.is_some_and(|micros| !(1..=BUSY_POLL_MAX).contains(&micros)) {
            return Err(ConfigError(format!(
                "--busy-poll: 1 to {BUSY_POLL_MAX} microseconds"
            )));
        }
        let busy_poll = busy_poll.map(|micros| BusyPoll {
            micros,
            budget: BUSY_POLL_BUDGET,
        });
        let interfaces = flags.dev.clone().or_else(|| file.dev.clone());
        let Some(interfaces) = interfaces.filter(|names| !names.is_empty()) else {
            return Err(ConfigError(
                "--mode af-xdp needs --dev: the network interface by which packets come".into(),
            ));
        };
        if interfaces.len() > INTERFACES_MAX {
            return Err(ConfigError(format!(
                "--dev: at most {INTERFACES_MAX} interfaces"
            )));
        }
        let copying = match zero_copy.unwrap_or(ZeroCopy::Auto) {
            ZeroCopy::Auto => Copying::PreferZeroCopy,
            ZeroCopy::Always => Copying::ZeroCopy,
            ZeroCopy::Never => Copying::Copy,
        };
        Ok(Some(DirectSettings {
            interfaces,
            copying,
            busy_poll,
            part: Part::alone(),
        }))
    }

    /// The same settings for each of several shards.
    pub fn divided(&self, shards: u16) -> Result<Vec<DirectSettings>, ConfigError> {
        let parts = Part::all(shards, &self.interfaces);
        let parts = parts.map_err(|error| ConfigError(format!("--shards {shards}: {error}")))?;
        let settings = |part| DirectSettings {
            part,
            ..self.clone()
        };
        Ok(parts.into_iter().map(settings).collect())
    }
}

/// The same size as packet buffers. On a file one buffer is one block, because blocks are what is written.
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

/// Serves until asked to end.
pub fn serve(settings: Settings, stop: &Stop, json: bool) -> anyhow::Result<()> {
    serve_if(settings, stop, json, |_| Ok(true))
}

/// The same, if it may: that is asked when its sockets are bound, and before anybody hears of it.
pub fn serve_if(
    settings: Settings,
    stop: &Stop,
    json: bool,
    may_run: impl FnOnce(&Log<AnyMedia>) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let direct = settings.direct.clone().context("--mode af-xdp")?;
    let device = std::fs::metadata(&settings.path).is_ok_and(|it| it.file_type().is_char_device());
    if settings.kind == Kind::Pmem && !device {
        return Err(ConfigError(format!(
            "--log {}: the kernel takes no packet buffers in a file of persistent memory (fsdax): use a devdax device \
             there, --media file or dram, or another --mode",
            settings.path.display()
        ))
        .into());
    }
    if !settings.path.exists() {
        // No log is made that could not be used.
        let parameters = settings.wanted.unwrap_or_else(|| settings.usual());
        let (buffers, needed) = (
            parameters.buffer_count(),
            direct.part.buffers_needed(&direct.interfaces),
        );
        if buffers < needed {
            let text = format!(
                "--log-size: a log of {parameters} has {buffers} of them, and the queues of {} need {needed}",
                direct.interfaces.join(", ")
            );
            return Err(ConfigError(text).into());
        }
    }
    let (log, made) = open_log(&settings)
        .with_context(|| format!("cannot use the log {}", settings.path.display()))?;
    let memory = log.medium().memory();
    let about = (settings.relay.device.id, settings.relay.device.shard);
    let (media, survives) = (log.media_name(), log.survives());
    let names = direct.interfaces.clone();
    let config = DirectConfig {
        relay: settings.relay,
        interfaces: direct.interfaces,
        mode: direct.copying,
        busy_poll: direct.busy_poll,
        part: direct.part,
    };
    let opened = DirectDevice::open(config, &log, memory, stop).inspect_err(|_| {
        // Whether sockets can be had is known only with their memory. Nobody has heard of this log yet, and it is ours alone.
        if made && let Err(error) = std::fs::remove_file(&settings.path) {
            tracing::warn!(path = %settings.path.display(), %error, "cannot remove the new log");
        }
    })?;
    if !may_run(&log)? {
        drop(opened);
        return Ok(log.close()?);
    }
    let _watched = Interfaces::watch(names, false);
    opened.serve(log, |address, node, bound| {
        let more = described(bound, direct.busy_poll);
        announce(json, address, node, about, (media, survives), &more);
    })?;
    Ok(())
}

/// What is said of the sockets.
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
