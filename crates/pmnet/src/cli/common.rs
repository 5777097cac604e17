//! Parts that the command lines of several roles share.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use pmnet_cli::{ConfigError, addresses};
use pmnet_fleet::{Members, Names};
use pmnet_wire::FragmentSize;
use pmnet_wire::record::CHAIN_MAX;

use super::etcd::EtcdArgs;
use super::redis::within;

/// Settings that every role has besides its own.
#[derive(Debug, Args)]
pub struct CommonArgs {
    /// TOML file with the settings that the command line does not give.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the ready line on stdout as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Help of `--status`, which every role has.
pub const STATUS_HELP: &str = "Address of the status port, which serves metrics, liveness, readiness and the state \
                               of the process: HOST:PORT with a loopback address; unix:PATH; \
                               https://HOST:PORT?cert=FILE&key=FILE&ca=FILE, for clients with a certificate of an \
                               authority in ca; or http://HOST:PORT, for every client that reaches it [default: \
                               none]";

/// Returns the value. If there is none, returns an error that says how to give it.
pub fn required<T>(flag: &str, section: &str, value: Option<T>) -> Result<T, ConfigError> {
    value.ok_or_else(|| {
        let key = flag.trim_start_matches('-');
        ConfigError(format!(
            "{flag} is missing: give it, or {key} = … in section [{section}] of --config"
        ))
    })
}

/// Returns the value of `--copies`; 1 by default.
pub fn copies(wanted: Option<u8>) -> Result<u8, ConfigError> {
    let copies = wanted.unwrap_or(1);
    within("--copies", usize::from(copies), 1, CHAIN_MAX)?;
    Ok(copies)
}

/// Flags of a command for one shard of a fleet.
#[derive(Clone, Debug, Args)]
pub struct InFleet {
    /// Name of the fleet.
    #[arg(long, value_name = "NAME")]
    pub fleet: String,
    #[command(flatten)]
    pub etcd: EtcdArgs,
    /// Number of the shard.
    #[arg(long, default_value_t = 0)]
    pub shard: u32,
}

impl InFleet {
    /// Returns the members of etcd, and the names of the shard's keys there.
    pub fn in_etcd(&self) -> Result<(Members, Names), ConfigError> {
        self.etcd.of(&self.fleet, self.shard)
    }
}

/// Returns the maximum size of a message's fragments if a packet may have at most `mtu` bytes.
pub fn size_max(mtu: Option<u32>, ipv6: bool) -> Result<FragmentSize, ConfigError> {
    let Some(mtu) = mtu else {
        return Ok(FragmentSize::MAX);
    };
    let bytes = usize::try_from(mtu).unwrap_or(usize::MAX);
    if bytes < FragmentSize::MTU_MIN {
        return Err(ConfigError(format!(
            "--mtu {mtu}: at least {}, which IPv6 guarantees on every path",
            FragmentSize::MTU_MIN
        )));
    }
    Ok(FragmentSize::of_mtu(bytes, ipv6))
}

/// Returns the UDP address of another process, of which only one address is used.
pub fn hop_address(flag: &str, text: &str) -> Result<SocketAddr, ConfigError> {
    Ok(hop_addresses(flag, text)?[0])
}

/// Returns all UDP addresses of another process, at least one. If `text` is a name, the result has all addresses of the
/// name.
pub fn hop_addresses(flag: &str, text: &str) -> Result<Vec<SocketAddr>, ConfigError> {
    let found = udp_addresses(flag, text)?;
    if found[0].port() == 0 {
        return Err(ConfigError(format!(
            "{flag} {}: port 0 is nobody's port",
            found[0]
        )));
    }
    Ok(found)
}

/// Returns the UDP address on which pmnet listens, for a process whose socket need not have the family of another host.
pub fn udp_address(flag: &str, text: &str) -> Result<SocketAddr, ConfigError> {
    Ok(udp_addresses(flag, text)?[0])
}

/// Returns all UDP addresses of a host, at least one. If the port is outside the reserved range, logs a warning.
pub fn udp_addresses(flag: &str, text: &str) -> Result<Vec<SocketAddr>, ConfigError> {
    let found = addresses(flag, text)?;
    let address = found[0];
    let (first, last) = (pmnet_wire::PORT_FIRST, pmnet_wire::PORT_LAST);
    if !(first..=last).contains(&address.port()) {
        tracing::warn!(
            "PM6007 {flag} {address}: the reserved ports are {first} to {last}; devices in the kernel or \
             in a switch will pass others on unseen"
        );
    }
    Ok(found)
}
