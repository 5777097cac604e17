//! `pmnet device --mode nic|router|switch`: the device's fast path in the kernel.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::Context;
use clap::ValueEnum;
use pmnet_client::Stop;
use pmnet_dataplane::xdp::{self, Found, KernelConfig, OpenConfig, Own, Pins};
use serde::Deserialize;

use super::{DeviceArgs, FRAME_BYTES, Settings, from_size, new_identity, run_relay};
use crate::cli::config::ConfigError;

/// Sessions that the kernel serves, at most: as many as a device admits.
const SESSIONS_MAX: u32 = 65_536;

/// Where updates are logged and acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By this process, on its UDP socket: no privilege, any medium.
    Relay,
    /// By the kernel, on the server's own network interface.
    Nic,
    /// By the kernel, in a switch (a Linux bridge) between clients and server: clients send to the server.
    Switch,
    /// By the kernel, on a machine of its own between clients and server, to which clients send.
    Router,
}

/// Settings of a kernel mode.
#[derive(Clone, Debug)]
pub struct KernelSettings {
    /// Interfaces.
    pub interfaces: Vec<String>,
    /// Folder in the BPF file system.
    pub name: String,
    spill: Option<PathBuf>,
    generic: bool,
    /// In a switch: its own address.
    own: Option<Ipv4Addr>,
}

impl KernelSettings {
    /// Whether clients send to the server behind the device.
    pub const fn is_switch(&self) -> bool {
        self.own.is_some()
    }

    /// The settings of a kernel mode; `None` in the others.
    pub fn new(
        flags: &DeviceArgs,
        file: &DeviceArgs,
        listen: SocketAddr,
    ) -> Result<Option<KernelSettings>, ConfigError> {
        let mode = flags.mode.or(file.mode).unwrap_or(Mode::Relay);
        let interfaces = flags.dev.clone().or_else(|| file.dev.clone());
        let spill = flags.spill.clone().or_else(|| file.spill.clone());
        let generic = flags.xdp_generic || file.xdp_generic;
        if mode == Mode::Relay {
            let reads = flags.server_reads_log || file.server_reads_log;
            return if interfaces.is_some() || spill.is_some() || generic || flags.detach || reads {
                Err(ConfigError(
                    "--dev, --spill, --xdp-generic, --server-reads-log and --detach need a kernel mode: give --mode nic, router or switch"
                        .into(),
                ))
            } else {
                Ok(None)
            };
        }
        let Some(interfaces) = interfaces.filter(|names| !names.is_empty()) else {
            return Err(ConfigError(
                "a kernel mode needs --dev: the network interface by which clients come".into(),
            ));
        };
        if listen.ip().is_unspecified() || listen.port() == 0 {
            return Err(ConfigError(format!(
                "--listen {listen}: in a kernel mode it must be the address and port to which clients send"
            )));
        }
        let name = flags
            .name
            .clone()
            .or_else(|| file.name.clone())
            .unwrap_or_else(|| format!("{}-{}", interfaces[0], listen.port()));
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            return Err(ConfigError(format!(
                "--name {name}: 1 to 64 letters, digits, - and _ (give one, if the interface has others)"
            )));
        }
        let own = flags.address.or(file.address);
        match (mode, own, listen.ip()) {
            (Mode::Switch, Some(own), IpAddr::V4(address)) if own != address => {}
            (Mode::Switch, ..) => {
                return Err(ConfigError(
                    "--mode switch needs --address: an IPv4 address of this machine's bridge, other than --listen, which \
                     is the server's address that clients know"
                        .into(),
                ));
            }
            (_, None, _) => {}
            _ => return Err(ConfigError("--address belongs to --mode switch".into())),
        }
        Ok(Some(KernelSettings {
            interfaces,
            name,
            spill,
            generic,
            own,
        }))
    }
}

fn own(kernel: &KernelSettings) -> anyhow::Result<Option<Own>> {
    let Some(address) = kernel.own else {
        return Ok(None);
    };
    let mac = xdp::hardware_address(address).context("--address")?;
    Ok(Some(Own { address, mac }))
}

/// Where the device itself is counts only for a pipeline that is to be attached.
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
    }
}

/// Serves until asked to end.
pub fn serve(settings: Settings, stop: &Stop, json: bool) -> anyhow::Result<()> {
    let kernel = settings.kernel.clone().context("a kernel mode")?;
    let device = &settings.relay.device;
    let pins = Pins::open(&kernel.name)?;
    let config = OpenConfig {
        kernel: kernel_config(&settings, own(&kernel)?),
        identity: new_identity(device.id, device.shard),
        exactly: settings.wanted.is_some(),
        spill: kernel.spill.clone(),
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
            tracing::info!(folder = %pins.folder().display(), "made a new log in the kernel")
        }
        Found::TakenOver => tracing::info!(
            folder = %pins.folder().display(),
            last = log.last(),
            "took over the log in the kernel, which goes on meanwhile"
        ),
        Found::Loaded => tracing::info!(last = log.last(), "loaded the saved log"),
    }
    if kernel.generic {
        tracing::warn!("generic XDP, as asked for: slower than the native one by far");
    }
    if let Err(error) = part.attach(&kernel.interfaces, !kernel.generic) {
        if found == Found::New {
            // Nothing was there before, and nothing is left behind.
            drop(part);
            drop(lock);
            end(&settings, true).context("cannot take back what was begun")?;
        }
        return Err(error.into());
    }
    let mut relay = settings.relay.clone();
    if let Some(own) = kernel.own {
        relay.known_as = Some(relay.listen.ip());
        relay.listen.set_ip(own.into());
    }
    let mut was_serving = false;
    let served = run_relay(relay, log, Some(Box::new(part)), stop, json, || {
        was_serving = true;
    });
    drop(lock);
    if served.is_ok() && kernel.spill.is_some() {
        return end(&settings, false).map(drop);
    }
    if served.is_err() && found == Found::New && !was_serving {
        // Refused before it served: nothing is left behind. Afterwards the server knows this log.
        match end(&settings, false) {
            Ok(_) => return served,
            Err(error) => tracing::warn!("{error:#}"),
        }
    }
    tracing::info!(
        "the kernel keeps the log{}; start this device again to take over, or take it out with --detach",
        if served.is_ok() {
            " and goes on acknowledging"
        } else {
            ""
        }
    );
    served
}

/// Takes the device out of the kernel.
pub fn detach(settings: &Settings, discard: bool) -> anyhow::Result<bool> {
    let unapplied = end(settings, discard)?;
    println!("detached; acknowledged updates that were not applied: {unapplied}");
    Ok(true)
}

fn end(settings: &Settings, discard: bool) -> anyhow::Result<u64> {
    let kernel = settings
        .kernel
        .as_ref()
        .context("--detach needs a kernel mode")?;
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
    Ok(done.unapplied)
}
