//! `pmnet device --mode nic|router|switch`: a device whose fast path is in the kernel.

use std::fs::File;

use anyhow::Context;
use pmnet_cli::tell;
use pmnet_client::Stop;
use pmnet_dataplane::xdp::{
    self, Detached, Found, Kernel, KernelConfig, MapMedia, OpenConfig, Own, Pins,
};
use pmnet_device::FastPath;
use pmnet_fleet::Facts;
use pmnet_log::Log;

use super::interfaces::Interfaces;
use super::kernel_settings::KernelSettings;
use super::relay::{new_identity, run_relay};
use super::settings::{FRAME_BYTES, Settings, from_size};
use super::supervisor::facts;
use crate::cli::process::Part;
use crate::doctor::interface::vanishing;
use crate::status::DeviceWriter;

/// Maximum number of sessions that the kernel serves. A device admits this number of sessions.
const SESSIONS_MAX: u32 = 65_536;

fn own(kernel: &KernelSettings) -> anyhow::Result<Option<Own>> {
    let Some(address) = kernel.own else {
        return Ok(None);
    };
    let mac = xdp::hardware_address(address).context("--address")?;
    Ok(Some(Own { address, mac }))
}

/// Returns the configuration of the device's part in the kernel. `own`: the device's own address, which is used only if
/// the pipeline is to be attached.
fn kernel_config(settings: &Settings, own: Option<Own>) -> KernelConfig {
    KernelConfig {
        address: settings.relay.listen,
        own,
        parameters: settings.wanted.unwrap_or_else(|| {
            let size = from_size(FRAME_BYTES);
            pmnet_log::Parameters {
                frame_bytes: size.frame_bytes.next_power_of_two(),
                ..size
            }
        }),
        sessions_max: SESSIONS_MAX,
        read_buckets: u32::try_from(settings.relay.device.read_buckets)
            .ok()
            .and_then(u32::checked_next_power_of_two)
            .unwrap_or(1),
        keys: settings
            .relay
            .device
            .keys
            .as_ref()
            .map(|keys| keys.cluster.print()),
    }
}

/// A device in the kernel that belongs to this process and is attached to its interfaces.
struct Taken {
    part: Kernel,
    log: Log<MapMedia>,
    found: Found,
    lock: File,
}

/// Makes a device in the kernel, or takes over an existing one. An existing device either continues, or begins anew
/// ([`OpenConfig::anew`]).
fn take(settings: &Settings, kernel: &KernelSettings, anew: bool) -> anyhow::Result<Taken> {
    let device = &settings.relay.device;
    let pins = Pins::open(&kernel.name)?;
    let config = OpenConfig {
        kernel: kernel_config(settings, own(kernel)?),
        identity: new_identity(device.id, device.shard)?,
        exactly: settings.wanted.is_some(),
        spill: kernel.spill.clone(),
        anew,
    };
    let opened = xdp::open(&config, &pins)
        .with_context(|| format!("cannot use the device in {}", pins.folder().display()))?;
    let xdp::Opened {
        kernel: mut part,
        log,
        found,
        lock,
    } = opened;
    match found {
        Found::New => {
            tracing::info!(folder = %pins.folder().display(), "made a new log in the kernel");
        }
        Found::TakenOver => tracing::info!(
            folder = %pins.folder().display(),
            last = log.last(),
            "took over the log in the kernel{}",
            if anew { "" } else { ", which goes on meanwhile" }
        ),
        Found::Loaded => tracing::info!(last = log.last(), "loaded the saved log"),
    }
    if !pins.outlives_the_process() {
        tracing::warn!(
            "PM1420 {} is mounted only where this process is (a container, ip netns exec, unshare): the log is gone when the process ends, and the kernel \
             does not go on acknowledging. Mount it for the whole machine (mount -t bpf bpf /sys/fs/bpf), and let this process see that one: docker \
             -v /sys/fs/bpf:/sys/fs/bpf, nsenter --net in place of ip netns exec",
            pins.folder().display()
        );
    }
    if kernel.generic {
        tracing::warn!("PM1421 generic XDP, as asked for: slower than the native one by far");
    }
    for name in &kernel.interfaces {
        if let Some(text) = vanishing(name) {
            tracing::warn!("{text}");
        }
    }
    if let Err(error) = part.attach(&kernel.interfaces, !kernel.generic) {
        if found != Found::TakenOver {
            // Before the attempt the kernel had no such device, so the part that was made is removed.
            drop(part);
            drop(lock);
            end(settings, kernel, found == Found::New)
                .context("cannot take back what was begun")?;
        }
        return Err(error.into());
    }
    Ok(Taken {
        part,
        log,
        found,
        lock,
    })
}

impl Taken {
    /// Serves until the process is asked to end. `serving` is called as soon as the device serves. After the return the
    /// device no longer belongs to this process.
    fn run(
        self,
        settings: &Settings,
        kernel: &KernelSettings,
        writer: DeviceWriter,
        stop: &Stop,
        part: &Part<'_>,
        serving: impl FnOnce(),
    ) -> anyhow::Result<()> {
        let mut relay = settings.relay.clone();
        if let Some(own) = kernel.own {
            relay.known_as = Some(relay.listen.ip());
            relay.listen.set_ip(own.into());
        }
        let _watched = Interfaces::watch(kernel.interfaces.clone(), true);
        let fast_path = Some(Box::new(self.part) as Box<dyn FastPath>);
        let served = run_relay(relay, self.log, fast_path, writer, stop, part, serving);
        drop(self.lock);
        served
    }
}

/// The state in the kernel when this process started, and whether the device has served since then.
pub struct InKernel {
    found: Found,
    was_serving: bool,
}

/// Makes one run, which lasts until the process is asked to end. `may_serve` is called after the device is attached.
/// Outside a fleet, the first run continues with the device that it finds in the kernel. Every other run begins anew,
/// so that another device can join after it.
pub fn run(
    settings: &Settings,
    kernel: &KernelSettings,
    writer: DeviceWriter,
    state: &mut Option<InKernel>,
    stop: &Stop,
    part: &Part<'_>,
    may_serve: impl FnOnce(Facts) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let anew = settings.fleet.is_some() || state.is_some();
    let taken = take(settings, kernel, anew)?;
    let state = state.get_or_insert(InKernel {
        found: taken.found,
        was_serving: false,
    });
    if !may_serve(facts(&taken.log))? {
        return Ok(());
    }
    taken.run(settings, kernel, writer, stop, part, || {
        state.was_serving = true;
    })
}

impl InKernel {
    /// At the end of the process, removes the device from the kernel, or leaves it there.
    pub fn leave(
        self,
        settings: &Settings,
        kernel: &KernelSettings,
        served: anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if served.is_ok() && kernel.spill.is_some() {
            return end(settings, kernel, false).map(drop);
        }
        if served.is_err() && self.found != Found::TakenOver && !self.was_serving {
            // The server refused the device before the device served, so it is removed from the kernel. A log that was
            // loaded from a file is saved to the file again, as the message about the refusal says. A new log is
            // discarded, because the server does not know it.
            match end(settings, kernel, false) {
                Ok(_) => return served,
                Err(error) => tracing::warn!("{error:#}"),
            }
        }
        if !Pins::existing(&kernel.name).outlives_the_process() {
            tracing::warn!(
                "PM1423 the log in the kernel ends with this process, since its BPF file system is mounted only here"
            );
            return served;
        }
        let goes_on = match (&served, &settings.fleet) {
            (Err(_), _) => "",
            (Ok(()), None) => " and goes on acknowledging",
            (Ok(()), Some(_)) => " and goes on acknowledging until the lease ends",
        };
        tracing::info!(
            "the kernel keeps the log{goes_on}; start this device again to take over, or take it out with --detach"
        );
        served
    }
}

/// Removes the device from the kernel.
pub fn detach(settings: &Settings, kernel: &KernelSettings, discard: bool) -> anyhow::Result<bool> {
    let done = end(settings, kernel, discard)?;
    if !done.found {
        tell(format_args!(
            "there is no such device in the kernel: nothing was detached"
        ));
        return Ok(true);
    }
    let unapplied = done.unapplied;
    tell(format_args!(
        "detached; acknowledged updates that were not applied: {unapplied}"
    ));
    if kernel.spill.is_none() {
        tell(format_args!(
            "the log was not saved (--spill FILE does): if this device starts again, the server takes that for the loss of its log"
        ));
    }
    Ok(true)
}

fn end(settings: &Settings, kernel: &KernelSettings, discard: bool) -> anyhow::Result<Detached> {
    let pins = Pins::open(&kernel.name)?;
    let done = xdp::detach(
        kernel_config(settings, None),
        &pins,
        kernel.spill.as_deref(),
        discard,
    )
    .with_context(|| format!("cannot detach the device in {}", pins.folder().display()))?;
    if let Some(path) = &kernel.spill {
        tracing::info!(file = %path.display(), unapplied = done.unapplied, "saved the log");
    }
    Ok(done)
}
