//! The configuration of a device, from flags and file. Combinations that contradict each other are refused.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use pmnet_cli::{ConfigError, Family, bytes};
use pmnet_dataplane::log_name::LogName;
use pmnet_dataplane::relay::RelayConfig;
use pmnet_device::DeviceConfig;
use pmnet_log::Parameters;
use pmnet_media::Kind;
use pmnet_proto::device::Acknowledger;
use pmnet_proto::keys::DeviceKeys;
use pmnet_store::RegionAddress;
use pmnet_wire::record::Member;

use super::args::{DeviceArgs, MediaArg};
use super::direct::{DirectSettings, buffers};
use super::fleet::FleetSettings;
use super::kernel_settings::KernelSettings;
use super::store;
use super::verbs::VerbsSettings;
use crate::cli::common::{hop_addresses, required, size_max, udp_addresses};
use crate::cli::keys::{KeyArgs, OfCluster};
use crate::cli::names::Named;

/// Default time of polling after activity, in microseconds.
pub const SPIN_US: u64 = 50;
/// Default size of the frame ring of a new log, in bytes.
pub const FRAME_BYTES: u64 = 64 << 20;
/// Minimum size of the frame ring if there is little space, in bytes. An operator may give a smaller size.
const FRAME_BYTES_LEAST: u64 = 1 << 20;
/// Minimum value of `--log-size` in bytes. A smaller value is probably a mistyped unit.
const FRAME_BYTES_MIN: u64 = 4096;
/// Bytes of the frame ring for each entry of a new log. With this ratio, small updates use up entries and bytes about
/// equally fast.
const FRAME_BYTES_PER_ENTRY: u64 = 512;

/// The settings of a device, after all checks.
#[derive(Clone)]
pub struct Settings {
    pub relay: RelayConfig,
    pub path: PathBuf,
    pub kind: Kind,
    /// The part that turns packets into entries of a log.
    pub place: Place,
    /// Settings for leases in etcd; only with --fleet.
    pub fleet: Option<FleetSettings>,
    /// The value of `--next`, if it is a name, because the address of a name may change.
    pub next_name: Option<Named>,
    /// `pmnet ctl` may ask the device for its state and change its next hop. Never set in a fleet.
    pub ctl: bool,
    /// The device's keys and their file, if it has keys.
    pub keys: Option<OfCluster>,
    /// The size of the log that the operator gave. An existing log must have exactly this size.
    pub wanted: Option<Parameters>,
}

/// The part that turns packets into entries of a log.
#[derive(Clone)]
pub enum Place {
    /// This process, which receives packets at its UDP socket.
    Relay,
    /// This process, which receives packets past the kernel's network stack (--mode af-xdp).
    Direct(DirectSettings),
    /// This process, which takes messages from the slots into which an RDMA NIC has put them (--mode verbs).
    Verbs(VerbsSettings),
    /// In the kernel.
    Kernel(KernelSettings),
    /// This process. The log of the process is in the region that also has the store's data (--store). Packets arrive
    /// at the UDP socket, or past the network stack.
    Store(RegionAddress, Option<DirectSettings>),
}

impl Settings {
    /// Returns the parameters of a new log for which the operator gave no size.
    pub fn usual(&self) -> Parameters {
        self.usual_of(FRAME_BYTES)
    }

    /// Returns smaller and smaller parameters of a log, for a medium without enough space for the default size.
    pub fn smaller(&self) -> impl Iterator<Item = Parameters> {
        let half = |size: &u64| (*size > FRAME_BYTES_LEAST).then(|| size / 2);
        let sizes = std::iter::successors(half(&FRAME_BYTES), half);
        sizes.map(|size| self.usual_of(size))
    }

    fn usual_of(&self, frame_bytes: u64) -> Parameters {
        let ring = from_size(frame_bytes);
        match self.place {
            Place::Direct(_) => buffers(&ring, self.kind),
            Place::Relay | Place::Verbs(_) | Place::Kernel(_) | Place::Store(..) => ring,
        }
    }

    /// Returns the settings of the kernel mode; `None` in other modes.
    pub const fn kernel(&self) -> Option<&KernelSettings> {
        match &self.place {
            Place::Kernel(kernel) => Some(kernel),
            Place::Relay | Place::Direct(_) | Place::Verbs(_) | Place::Store(..) => None,
        }
    }
}

/// Returns the checked settings for these flags and keys of the file.
pub fn settings(args: DeviceArgs) -> Result<Settings, ConfigError> {
    let (listen, next) = addresses(&args)?;
    let kernel = KernelSettings::new(&args, listen)?;
    let direct = DirectSettings::new(&args)?;
    let verbs = VerbsSettings::new(&args)?;
    let knows_place = direct.is_some() || verbs.is_some();
    if knows_place && (listen.ip().is_unspecified() || listen.port() == 0) {
        return Err(ConfigError(format!(
            "--listen {listen}: with --mode af-xdp or verbs it must be the address and port to which clients send"
        )));
    }
    let fleet = FleetSettings::new(&args, listen)?;
    if let Some(url) = args.store.clone() {
        return store::settings(&url, listen, direct, args);
    }
    let is_switch = kernel.as_ref().is_some_and(KernelSettings::is_switch);
    let next = required("--next", "device", next)?;
    if next == listen && !is_switch {
        return Err(ConfigError(format!(
            "--next {next} is this device itself: it must be the next device or the server"
        )));
    }
    let (path, kind) = log_place(&args, kernel.as_ref())?;
    let id = id(args.id, listen)?;
    let mut wanted = size(&args)?;
    if direct.is_some() {
        wanted = wanted.map(|ring| buffers(&ring, kind));
    }
    if let Some(parameters) = &wanted {
        parameters
            .validate()
            .map_err(|error| ConfigError(error.to_string()))?;
    }
    let mut device = DeviceConfig::new(id, args.shard.unwrap_or(0), next);
    device.size_max = size_max(args.mtu, listen.is_ipv6())?;
    device.server_reads_log = args.server_reads_log;
    device.flags = flags(&args, is_switch && fleet.is_some())?;
    // `--detach` only removes a device and sends no packets, so it needs no key.
    let insecure = args.insecure || (args.detach && args.key.is_none());
    let keys = KeyArgs::of(args.key.clone(), insecure).of_cluster(&[listen, next])?;
    device.keys = device_keys(keys.as_ref(), args.next_id)?;
    let place = match (kernel, direct) {
        (Some(kernel), _) => Place::Kernel(kernel),
        (None, Some(direct)) => Place::Direct(direct),
        (None, None) => verbs.map_or(Place::Relay, Place::Verbs),
    };
    let by_nic = matches!(place, Place::Verbs(_));
    if device.keys.is_some() && matches!(place, Place::Kernel(_)) && args.server_reads_log {
        // In this mode the pipeline does not write the MAC into an entry, and leaves it to the process that sends the
        // entry (pipeline.md §10). So the log lacks the MACs.
        let text = "--server-reads-log does not go with --key: entries of the last device in the kernel have no MAC in the log, so the server would \
                    drop each one that it reads there. Leave --server-reads-log out (and --device-log of the server): the device sends them";
        return Err(ConfigError(text.into()));
    }
    if by_nic {
        device.acknowledger = Acknowledger::Nic;
    }
    let mut relay = relay_config(listen, device, &args);
    relay.keys = keys.as_ref().map(|keys| keys.keys.clone());
    relay.log = (!matches!(place, Place::Kernel(_))).then(|| LogName::new(&path));
    Ok(Settings {
        relay,
        path,
        kind,
        place,
        fleet,
        keys,
        next_name: args.next.as_deref().and_then(Named::of),
        // With an RDMA NIC, clients connect to the device's TCP port, so no door can listen at it.
        ctl: !args.no_ctl && !by_nic,
        wanted,
    })
}

/// Returns the keys of a device whose next hop has this id. Without an id, the next hop is the server (id 0).
pub fn device_keys(
    keys: Option<&OfCluster>,
    next_id: Option<u32>,
) -> Result<Option<DeviceKeys>, ConfigError> {
    match (keys, next_id) {
        (None, Some(_)) => Err(ConfigError(
            "--next-id is for a device with keys: give --key, too, or leave it out".into(),
        )),
        (None, None) => Ok(None),
        (Some(keys), next_id) => Ok(Some(DeviceKeys {
            cluster: keys.keys.follow().0,
            next: next_id.unwrap_or(0),
        })),
    }
}

/// Returns the configuration of the loop of this device. Orders and leases are added before the loop begins.
pub fn relay_config(listen: SocketAddr, device: DeviceConfig, args: &DeviceArgs) -> RelayConfig {
    RelayConfig {
        listen,
        known_as: None,
        device,
        spin_micros: args.spin_us.unwrap_or(SPIN_US),
        lease: None,
        keys: None,
        log: None,
        pulse: Arc::default(),
    }
}

/// Returns the addresses of `--listen` and, if it is given, of `--next`.
fn addresses(args: &DeviceArgs) -> Result<(SocketAddr, Option<SocketAddr>), ConfigError> {
    let listen = required("--listen", "device", args.listen.as_deref())?;
    let listen = udp_addresses("--listen", listen)?;
    let next = args.next.as_deref();
    match next.map(|next| hop_addresses("--next", next)).transpose()? {
        None => Ok((listen[0], None)),
        Some(next) => of_one_family(&listen, &next).map(|(listen, next)| (listen, Some(next))),
    }
}

/// Returns an address of `--listen` and an address of `--next`. Both have the same family, because one socket has both.
fn of_one_family(
    listen: &[SocketAddr],
    next: &[SocketAddr],
) -> Result<(SocketAddr, SocketAddr), ConfigError> {
    let family = Family::common(&[listen, next]);
    let both = family.and_then(|family| family.first(listen).zip(family.first(next)));
    both.ok_or_else(|| {
        ConfigError(format!(
            "--listen {} and --next {}: one is IPv4 and the other IPv6; give both the same way",
            listen[0], next[0]
        ))
    })
}

/// Returns the path of the log, and the kind of its medium.
fn log_place(
    args: &DeviceArgs,
    kernel: Option<&KernelSettings>,
) -> Result<(PathBuf, Kind), ConfigError> {
    let (log, media) = (args.log.clone(), args.media);
    let Some(kernel) = kernel else {
        let path = required("--log", "device", log)?;
        if path.as_os_str().is_empty() {
            return Err(ConfigError(
                "--log is empty: give the path of the log".into(),
            ));
        }
        let kind = match required("--media", "device", media)? {
            MediaArg::File => Kind::File,
            MediaArg::Dram => Kind::Dram,
            MediaArg::Pmem => Kind::Pmem,
        };
        return Ok((path, kind));
    };
    if log.is_some() || media.is_some() {
        return Err(ConfigError(
            "--log and --media do not go with a kernel mode: its log is memory of the kernel (--spill FILE \
             saves it)"
                .into(),
        ));
    }
    Ok((PathBuf::from(&kernel.name), Kind::Dram))
}

/// Returns the size of the log that the operator gave, if any.
fn size(args: &DeviceArgs) -> Result<Option<Parameters>, ConfigError> {
    let size = args.log_size.as_deref().map(log_size).transpose()?;
    match (args.entries, args.frame_bytes) {
        (Some(entries), Some(frame_bytes)) => Ok(Some(Parameters::ring(entries, frame_bytes))),
        (None, None) => Ok(size),
        _ => Err(ConfigError(
            "--entries and --frame-bytes belong together (or use --log-size)".into(),
        )),
    }
}

/// Returns the flags with which the device tells the server how it starts. `joins_nowhere`: no other device can be told
/// to send to this one.
fn flags(args: &DeviceArgs, joins_nowhere: bool) -> Result<u32, ConfigError> {
    let mut flags = match (args.shrink_chain, args.declare_data_loss) {
        (true, true) => {
            return Err(ConfigError(
                "--shrink-chain and --declare-data-loss say different things: with the first the missing devices are \
                 stopped and nothing is lost, with the second the last log is gone. Give one"
                    .into(),
            ));
        }
        (true, false) => Member::SHRINK,
        (false, true) => Member::DECLARE_LOSS,
        (false, false) => 0,
    };
    if args.join {
        if args.declare_data_loss {
            return Err(ConfigError(
                "--join is for a device that is no member of a chain, --declare-data-loss for the one that goes on when \
                 the chain is gone. Give one"
                    .into(),
            ));
        }
        if joins_nowhere {
            return Err(ConfigError(
                "--join does not go with --mode switch and --fleet: a spare joins behind other devices, which send to the \
                 address that etcd has, and in a switch that is the server's. Use another --mode"
                    .into(),
            ));
        }
        flags |= Member::JOIN;
    }
    Ok(flags)
}

/// Returns the id of a device: the given id, or its port by default.
pub fn id(given: Option<u32>, listen: SocketAddr) -> Result<u32, ConfigError> {
    let id = given.unwrap_or_else(|| u32::from(listen.port()));
    if id == 0 {
        return Err(ConfigError(
            "--id must not be 0 (and is the listen port by default: give --id with port 0)".into(),
        ));
    }
    Ok(id)
}

fn log_size(text: &str) -> Result<Parameters, ConfigError> {
    let size = bytes("--log-size", text)?;
    if size < FRAME_BYTES_MIN {
        return Err(ConfigError(format!(
            "--log-size {text}: at least {FRAME_BYTES_MIN} bytes (64M is usual)"
        )));
    }
    Ok(from_size(size))
}

/// Returns the parameters of a log with this many bytes of frames, rounded up to whole blocks.
pub fn from_size(size: u64) -> Parameters {
    // If the size overflows, a later check refuses it.
    let frame_bytes = size.checked_next_multiple_of(4096).unwrap_or(u64::MAX);
    let entries = (frame_bytes / FRAME_BYTES_PER_ENTRY)
        .next_power_of_two()
        .clamp(pmnet_log::ENTRIES_MIN, pmnet_log::ENTRIES_MAX);
    Parameters::ring(entries, frame_bytes)
}

/// Returns the settings of each of several shards.
pub fn each(first: &Settings, shards: u16) -> Result<Vec<Settings>, ConfigError> {
    let all: Result<Vec<Settings>, _> = (0..shards).map(|index| nth(first, index)).collect();
    let mut all = all?;
    let (listen, next) = (first.relay.listen, first.relay.device.next);
    let here =
        listen.ip() == next.ip() || (listen.ip().is_unspecified() && next.ip().is_loopback());
    if here && listen.port().abs_diff(next.port()) < shards {
        let more = shards - 1;
        return Err(ConfigError(format!(
            "--shards {shards}: the ports of --listen {listen} (up to {}) and of --next {next} (up to {}) are partly the same: a shard would send to another one; give ports that are at least {shards} apart",
            listen.port() + more,
            next.port() + more
        )));
    }
    if let Place::Direct(direct) = &first.place {
        for (settings, direct) in all.iter_mut().zip(direct.divided(shards)?) {
            settings.place = Place::Direct(direct);
        }
    }
    Ok(all)
}

/// Returns the settings of shard number `index` of several.
fn nth(first: &Settings, index: u16) -> Result<Settings, ConfigError> {
    let mut settings = first.clone();
    let relay = &mut settings.relay;
    for address in [&mut relay.listen, &mut relay.device.next] {
        let port = address.port().checked_add(index).ok_or_else(|| {
            ConfigError(format!(
                "--shards: port {} + {index} is not a port",
                address.port()
            ))
        })?;
        address.set_port(port);
    }
    let shard = relay.device.shard.checked_add(u32::from(index));
    relay.device.shard = shard.ok_or_else(|| {
        ConfigError(format!(
            "--shards: shard {} + {index} is not a shard number",
            relay.device.shard
        ))
    })?;
    let next_port = relay.device.next.port();
    if let Some(named) = &mut settings.next_name {
        named.port = next_port;
    }
    if let Some(fleet) = &first.fleet {
        settings.fleet = Some(fleet.of_shard(relay.device.shard)?);
    }
    let mut path = first.path.clone().into_os_string();
    path.push(format!(".{}", relay.device.shard));
    settings.path = path.into();
    settings.relay.log = settings.relay.log.map(|_| LogName::new(&settings.path));
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use pmnet_keys::{Cluster, KeyFile};

    use super::*;

    /// Regression test: in a pod with addresses of both families the device refused a next hop that had only IPv4.
    #[test]
    fn listen_and_next_get_the_family_that_both_have() {
        let chosen = |listen: &str, next: &str| {
            let [listen, next] = [listen, next].map(|host| -> Vec<SocketAddr> {
                let each = host.split_whitespace();
                each.map(|at| at.parse().unwrap()).collect()
            });
            let (listen, next) = of_one_family(&listen, &next).map_err(|error| error.0)?;
            Ok::<String, String>(format!("{listen} {next}"))
        };
        let own = "[fd00::1]:1 10.0.0.1:1";
        let is = |text: &str| Ok(text.to_owned());
        assert_eq!(chosen(own, "10.0.0.2:2"), is("10.0.0.1:1 10.0.0.2:2"));
        assert_eq!(chosen(own, "[fd00::2]:2"), is("[fd00::1]:1 [fd00::2]:2"));
        assert_eq!(chosen(own, own), is("10.0.0.1:1 10.0.0.1:1"));
        assert_eq!(chosen("[fd00::2]:2", own), is("[fd00::2]:2 [fd00::1]:1"));
        let refused = "--listen [fd00::2]:2 and --next 10.0.0.2:2: one is IPv4 and the other IPv6";
        let error = chosen("[fd00::2]:2", "10.0.0.2:2").unwrap_err();
        assert!(error.starts_with(refused), "{error}");
    }

    /// Regression test: the server read entries without a MAC from such a log, and counted each of them as forged.
    #[test]
    fn a_device_with_keys_sends_the_server_what_it_logs() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("c.key");
        let cluster = KeyFile::Cluster(Cluster::draw().unwrap());
        cluster.create(&key).unwrap();
        let checked = |reads_log, key: Option<PathBuf>| {
            let text = r#"
                listen = "10.0.0.2:51000"
                next = "127.0.0.1:51500"
                mode = "nic"
                dev = ["eth0"]
            "#;
            let args = DeviceArgs {
                server_reads_log: reads_log,
                insecure: key.is_none(),
                key,
                ..toml::from_str(text).unwrap()
            };
            settings(args).map(drop).map_err(|error| error.0)
        };
        assert_eq!(checked(false, Some(key.clone())), Ok(()));
        assert_eq!(checked(true, None), Ok(()));
        let refused = checked(true, Some(key)).unwrap_err();
        let start = "--server-reads-log does not go with --key: ";
        assert!(refused.starts_with(start), "{refused}");
    }
}
