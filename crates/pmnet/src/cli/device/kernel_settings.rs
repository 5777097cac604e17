//! The settings that only the kernel modes have.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use pmnet_cli::ConfigError;

use super::args::{DeviceArgs, Mode};

/// Settings of a kernel mode.
#[derive(Clone, Debug)]
pub struct KernelSettings {
    /// Names of the network interfaces.
    pub interfaces: Vec<String>,
    /// Name of the device's folder in the BPF file system.
    pub name: String,
    pub spill: Option<PathBuf>,
    pub generic: bool,
    /// The device's own address in the switch; `None` in the other modes.
    pub own: Option<Ipv4Addr>,
}

impl KernelSettings {
    /// Returns whether clients send to the server's address (`--mode switch`).
    pub const fn is_switch(&self) -> bool {
        self.own.is_some()
    }

    /// Returns the settings of a kernel mode; `None` in other modes.
    pub fn new(
        args: &DeviceArgs,
        listen: SocketAddr,
    ) -> Result<Option<KernelSettings>, ConfigError> {
        let mode = args.mode.unwrap_or(Mode::Relay);
        let generic = args.xdp_generic;
        if matches!(mode, Mode::Relay | Mode::AfXdp | Mode::Verbs) {
            let dev = args.dev.is_some() && mode != Mode::AfXdp;
            let kernels = args.spill.is_some() || generic || args.detach || args.server_reads_log;
            return if dev || kernels {
                Err(ConfigError(
                    "--dev (also with af-xdp), --spill, --xdp-generic, --server-reads-log and --detach need a kernel mode: give --mode nic, router or switch"
                        .into(),
                ))
            } else {
                Ok(None)
            };
        }
        let Some(interfaces) = args.dev.clone().filter(|names| !names.is_empty()) else {
            return Err(ConfigError(
                "a kernel mode needs --dev: the network interface by which clients come".into(),
            ));
        };
        if listen.ip().is_unspecified() || listen.port() == 0 {
            return Err(ConfigError(format!(
                "--listen {listen}: in a kernel mode it must be the address and port to which clients send"
            )));
        }
        let usual = || format!("{}-{}", interfaces[0], listen.port());
        let name = args.name.clone().unwrap_or_else(usual);
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            return Err(ConfigError(format!(
                "--name {name}: 1 to 64 letters, digits, - and _ (give one, if the interface has others)"
            )));
        }
        let own = args.address;
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
            spill: args.spill.clone(),
            generic,
            own,
        }))
    }
}
