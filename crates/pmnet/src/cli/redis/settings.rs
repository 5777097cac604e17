//! Checks the settings of a front. Combinations that contradict each other are refused.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pmnet_cli::{ConfigError, Family, address, bytes, open_files};
use pmnet_client::ClientConfig;
use pmnet_fleet::{FollowConfig, Follower};
use pmnet_front::limits::REPLY_BYTES_MAX;
use pmnet_front::store::StoreAddress;
use pmnet_front::table::Table;
use pmnet_front::{Cache, FrontConfig, ReadFrom};
use pmnet_wire::Payloads;
use pmnet_wire::record::CHAIN_MAX;

use super::super::access::access;
use super::super::common::{copies, hop_addresses, required, size_max};
use super::super::etcd::EtcdArgs;
use super::super::keys::{OfFront, Reach, key_args};
use super::super::names::Named;
use super::super::passwords::secret;
use super::super::tls::server_tls;
use super::args::{CacheArg, ReadFromArg, RedisArgs};
use super::name::name;

/// Maximum value of `--spin-us`: a second. A longer time would occupy a core completely.
pub const SPIN_US_MAX: u64 = 1_000_000;
/// Maximum value of `--deadline-ms`: a day.
pub const DEADLINE_MS_MAX: u64 = 24 * 60 * 60 * 1000;
/// Maximum value of `--connections-max`. A client may need two ports: its own, and one for its connection to the
/// database.
pub const CONNECTIONS_MAX: usize = 1_000_000;

/// Maximum value of `--tcp-keepalive` in seconds. Linux accepts no larger value.
pub const KEEPALIVE_SECONDS_MAX: u64 = 32_767;

/// Placeholder for the head's address until etcd has named the head ([`located`]).
pub const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Configuration of a front.
#[derive(Clone)]
pub struct Settings {
    pub(super) front: FrontConfig,
    pub client: ClientConfig,
    /// The hosts of `--via`, if at least one of them is a name, because the address of a name may change.
    pub hosts: Vec<Named>,
    pub follow: Option<FollowConfig>,
    /// The front's key and its file, if it has a key.
    pub keys: Option<OfFront>,
    /// The hosts on which the devices may be.
    pub(super) reach: Reach,
}

impl Settings {
    /// Returns the addresses of the devices as text.
    pub fn devices(&self) -> String {
        match &self.follow {
            None => via_text(self.client.heads()),
            Some(follow) => format!("fleet {}", follow.names.prefix().trim_matches('/')),
        }
    }
}

/// Checks the address of `--direct`, as the front does when it starts.
pub(super) fn check_direct(front: &FrontConfig) -> Result<(), ConfigError> {
    let address = front.direct.as_deref().map(StoreAddress::parse);
    let checked = address.transpose().map(drop);
    checked.map_err(|error| ConfigError(format!("--direct: {error}")))
}

/// Returns addresses in the form of the value of `--via`.
pub fn via_text(devices: impl Iterator<Item = SocketAddr>) -> String {
    let devices: Vec<String> = devices.map(|device| device.to_string()).collect();
    devices.join(",")
}

/// Returns the configuration of a client with the addresses of its devices. In a fleet, waits until etcd names a
/// device, or until `stop` is set.
pub fn located(
    mut client: ClientConfig,
    follow: Option<&FollowConfig>,
    wait: Duration,
    stop: &AtomicBool,
) -> Result<ClientConfig, String> {
    if let Some(follow) = follow {
        let found = Follower::first(follow, wait, stop)?;
        let (head, others) = found.split_first().ok_or("no device is known")?;
        (client.head, client.others) = (*head, others.to_vec());
    }
    Ok(client)
}

/// Returns the configuration of a front with these settings.
pub(super) fn settings(args: RedisArgs) -> Result<Settings, ConfigError> {
    let said = args.who_may_connect();
    let tls = args.tls_files();
    let etcd = args.etcd();
    let listen = required("--listen", "redis", args.listen)?;
    let shard = args.shard.unwrap_or(0);
    let hosts = args.via.as_deref().map_or_else(Vec::new, Named::all);
    let (mut client, follow) = places("redis", args.via, args.fleet, &etcd, shard)?;
    let mut front = FrontConfig::new(address("--listen", &listen)?);
    front.access = access(said, front.listen)?;
    front.tls = server_tls(tls)?;
    front.direct = args.direct;
    if let Some(path) = args.direct_password_file {
        if front.direct.is_none() {
            return Err(ConfigError(
                "--direct-password-file is the password for --direct: give that too".into(),
            ));
        }
        front.direct_password = Some(secret("--direct-password-file", &path)?);
    }
    front.assume_ok = args.assume_ok.unwrap_or_default();
    Table::new(&front.assume_ok).map_err(|error| ConfigError(error.to_string()))?;
    if let Some(micros) = args.spin_us {
        within("--spin-us", micros, 0, SPIN_US_MAX)?;
        front.spin_micros = micros;
    }
    if let Some(millis) = args.deadline_ms {
        within("--deadline-ms", millis, 1, DEADLINE_MS_MAX)?;
        front.call_timeout = Duration::from_millis(millis);
    }
    if let Some(cache) = args.cache {
        front.cache = match cache {
            CacheArg::Pending => Cache::Pending,
            CacheArg::Log => Cache::Log,
            CacheArg::Off => Cache::Off,
        };
    }
    if let Some(from) = args.read_from {
        front.read_from = match from {
            ReadFromArg::Master => ReadFrom::Master,
            ReadFromArg::Any => ReadFrom::Any,
        };
    }
    if (front.cache, front.read_from) == (Cache::Off, ReadFrom::Any) {
        return Err(ConfigError(
            "--read-from any does not go with --cache off: where the head is not asked, nobody knows what a replica must have".into(),
        ));
    }
    if let Some(most) = args.connections_max {
        within("--connections-max", most, 1, CONNECTIONS_MAX)?;
        front.connections_max = most;
    }
    if let Some(seconds) = args.tcp_keepalive {
        within("--tcp-keepalive", seconds, 0, KEEPALIVE_SECONDS_MAX)?;
        front.keepalive = (seconds > 0).then(|| Duration::from_secs(seconds));
    }
    if let Some(size) = args.unread_max {
        front.unread_max = unread("--unread-max", &size)?;
    }
    if let Some(size) = args.unread_total_max {
        front.unread_total_max = unread("--unread-total-max", &size)?;
    }
    let copies = copies(args.copies)?;
    client.name = name(front.listen);
    client.shard = shard;
    // In a fleet, the addresses of the devices are not known yet.
    let known = client.heads().filter(|_| follow.is_none());
    let keys = key_args!(args);
    let reach = keys.reach();
    let keys = keys.of_front(&known.collect::<Vec<SocketAddr>>())?;
    client.keys = keys.as_ref().map(|keys| keys.keys.follow().0);
    client.size_max = size_max(args.mtu, client.head.is_ipv6())?;
    client.copies_min = copies;
    client.kept = front.cache == Cache::Log;
    Ok(Settings {
        front,
        client,
        hosts,
        follow,
        keys,
        reach,
    })
}

/// Returns the limit of clients. The limit is reduced so that every client can have all connections that its commands
/// may need. `clients`: a function that returns the number of clients for which a given number of open files is enough.
pub fn within_files(
    wanted: usize,
    clients: impl FnOnce(u64) -> usize,
) -> Result<usize, ConfigError> {
    let Some(files) = open_files() else {
        return Ok(wanted);
    };
    let can = clients(files);
    if can == 0 {
        return Err(ConfigError(format!(
            "this process may have {files} files open, which is not enough for one client: raise the limit (LimitNOFILE= in \
             systemd, ulimit -Hn, docker --ulimit nofile=)"
        )));
    }
    if can < wanted {
        tracing::warn!(
            "PM3003 this process may have {files} files open, so at most {can} clients may connect, and not the {wanted} of \
             --connections-max: raise the limit (LimitNOFILE= in systemd, ulimit -Hn, docker --ulimit nofile=)"
        );
    }
    Ok(wanted.min(can))
}

/// Returns the configuration of a client. In a fleet, etcd must still name its devices; otherwise they are those of
/// `via`. `role`: the role that has these settings.
pub fn places(
    role: &str,
    via: Option<String>,
    fleet: Option<String>,
    etcd: &EtcdArgs,
    shard: u32,
) -> Result<(ClientConfig, Option<FollowConfig>), ConfigError> {
    let (client, follow) = match (via, fleet) {
        (Some(_), Some(_)) => {
            return Err(ConfigError(
                "--via and --fleet say both where the devices are: leave one out".into(),
            ));
        }
        (None, Some(name)) => {
            let (members, names) = etcd.of(&name, shard)?;
            let follow = FollowConfig { members, names };
            (ClientConfig::new(NOWHERE), Some(follow))
        }
        (via, None) => {
            etcd.nothing()?;
            (devices(&required("--via", role, via)?)?, None)
        }
    };
    let payloads = Payloads::COMMANDS;
    Ok((ClientConfig { payloads, ..client }, follow))
}

/// Returns the configuration of a client with the devices of `via`.
pub fn devices(via: &str) -> Result<ClientConfig, ConfigError> {
    let found: Vec<Vec<SocketAddr>> = via
        .split(',')
        .map(|address| hop_addresses("--via", address.trim()))
        .collect::<Result<_, _>>()?;
    within("the addresses of --via:", found.len(), 1, CHAIN_MAX)?;
    client_of(&found)
}

/// Returns the configuration of a client with these devices, each given by its addresses.
fn client_of(found: &[Vec<SocketAddr>]) -> Result<ClientConfig, ConfigError> {
    let all = Family::common(found).map_or_else(Vec::new, |family| together(found, family));
    let Some((head, others)) = all.split_first() else {
        let head = found[0][0];
        let lacks = |host: &&Vec<SocketAddr>| Family::of(&head).first(host).is_none();
        let other = found.iter().find(lacks).map_or(head, |host| host[0]);
        return Err(ConfigError(format!(
            "--via: {head} and {other} are of different families; give IPv4 or IPv6 addresses only"
        )));
    };
    let mut client = ClientConfig::new(*head);
    client.others = others.to_vec();
    Ok(client)
}

/// Returns the addresses of one family, each once: the first address of each host, then the second address of each
/// host, and so on. The result has at most as many addresses as a chain can have devices.
pub fn together(found: &[Vec<SocketAddr>], family: Family) -> Vec<SocketAddr> {
    let mut all: Vec<SocketAddr> = Vec::new();
    let longest = found.iter().map(Vec::len).max().unwrap_or(0);
    for place in 0..longest {
        for of_one in found {
            let mut fitting = of_one.iter().filter(|at| Family::of(at) == family);
            if let Some(at) = fitting.nth(place)
                && !all.contains(at)
                && all.len() < CHAIN_MAX
            {
                all.push(*at);
            }
        }
    }
    all
}

/// Returns the limit of unread bytes. The limit must be at least the size of the largest reply.
fn unread(flag: &str, text: &str) -> Result<usize, ConfigError> {
    usize::try_from(bytes(flag, text)?)
        .ok()
        .filter(|size| *size >= REPLY_BYTES_MAX)
        .ok_or_else(|| {
            ConfigError(format!(
                "{flag} {text}: it must be at least {}M, the largest reply",
                REPLY_BYTES_MAX >> 20
            ))
        })
}

/// Returns an error with the bounds if the value is out of them.
pub fn within<N: PartialOrd + Display>(
    flag: &str,
    value: N,
    least: N,
    most: N,
) -> Result<(), ConfigError> {
    if (&least..=&most).contains(&&value) {
        return Ok(());
    }
    Err(ConfigError(format!(
        "{flag} {value}: it must be from {least} to {most}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut RedisArgs);

    fn args() -> RedisArgs {
        RedisArgs {
            listen: Some("127.0.0.1:6380".into()),
            via: Some("127.0.0.1:51000".into()),
            ..RedisArgs::default()
        }
    }

    #[test]
    fn reads_are_bypasses_only_if_that_is_asked_for() {
        let off = RedisArgs {
            cache: Some(CacheArg::Off),
            ..args()
        };
        for (flags, file, cache) in [
            (args(), RedisArgs::default(), Cache::Pending),
            (off.clone(), RedisArgs::default(), Cache::Off),
            (args(), off, Cache::Off),
        ] {
            assert_eq!(settings(flags.over(file)).unwrap().front.cache, cache);
        }
    }

    #[test]
    fn how_much_may_be_unread_is_said_in_sizes() {
        let some = RedisArgs {
            unread_max: Some("64M".into()),
            unread_total_max: Some("3G".into()),
            ..args()
        };
        for (flags, file, most) in [
            (args(), RedisArgs::default(), (1 << 30, 2 << 30)),
            (some.clone(), RedisArgs::default(), (64 << 20, 3 << 30)),
            (args(), some, (64 << 20, 3 << 30)),
        ] {
            let front = settings(flags.over(file)).unwrap().front;
            assert_eq!((front.unread_max, front.unread_total_max), most);
        }
    }

    #[test]
    fn silent_clients_are_checked_after_redis_s_time_unless_another_is_set() {
        let with = |seconds| RedisArgs {
            tcp_keepalive: Some(seconds),
            ..args()
        };
        for (flags, file, after) in [
            (args(), RedisArgs::default(), Some(300)),
            (with(0), with(60), None),
            (args(), with(60), Some(60)),
        ] {
            let front = settings(flags.over(file)).unwrap().front;
            assert_eq!(front.keepalive, after.map(Duration::from_secs));
        }
    }

    #[test]
    fn devices_are_given_or_asked_for_and_the_command_line_wins_as_a_whole() {
        let fleet = RedisArgs {
            via: None,
            fleet: Some("f".into()),
            etcd: Some("http://10.0.0.7:2379".into()),
            insecure: true,
            ..args()
        };
        assert!(settings(args()).unwrap().follow.is_none());
        let follow = settings(fleet.clone().over(args()))
            .unwrap()
            .follow
            .unwrap();
        assert_eq!(follow.names.prefix(), "/pmnet/f/0/");
        assert!(
            settings(args().over(fleet.clone()))
                .unwrap()
                .follow
                .is_none()
        );
        assert!(
            settings(RedisArgs::default().over(fleet.clone()))
                .unwrap()
                .follow
                .is_some()
        );
        for (args, says) in [
            (
                RedisArgs {
                    via: Some("127.0.0.1:1".into()),
                    ..fleet.clone()
                },
                "say both where",
            ),
            (
                RedisArgs {
                    etcd: None,
                    ..fleet.clone()
                },
                "--etcd is missing",
            ),
            (
                RedisArgs {
                    fleet: None,
                    ..fleet
                },
                "--etcd belongs to --fleet",
            ),
        ] {
            let error = settings(args).err().unwrap().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    /// Regression test: `localhost` was `::1` alone, and the device listened on `127.0.0.1`.
    #[test]
    fn devices_have_one_family_and_ipv4_if_all_have_it() {
        let devices = |hosts: &[&str]| {
            let host = |addresses: &&str| -> Vec<SocketAddr> {
                let each = addresses.split_whitespace();
                each.map(|at| at.parse().unwrap()).collect()
            };
            let hosts: Vec<_> = hosts.iter().map(host).collect();
            let client = client_of(&hosts).map_err(|error| error.to_string())?;
            Ok::<String, String>(via_text(client.heads()))
        };
        let (both, v4, v6) = ("[::1]:1 127.0.0.1:1", "127.0.0.2:2", "[::2]:2");
        let all = |text: &str| Ok(text.to_owned());
        assert_eq!(devices(&[both]), all("127.0.0.1:1"));
        assert_eq!(devices(&[both, v4]), all("127.0.0.1:1,127.0.0.2:2"));
        assert_eq!(devices(&[both, v6]), all("[::1]:1,[::2]:2"));
        assert_eq!(devices(&[v6]), all(v6));
        for hosts in [&[v6, v4][..], &[both, v4, v6], &[v4, both, v6]] {
            let error = devices(hosts).unwrap_err();
            assert!(error.contains("are of different families"), "{error}");
        }
    }

    #[test]
    fn settings_that_cannot_be_are_refused_by_name() {
        assert!(settings(args()).is_ok());
        let cases: [(&str, Change); 12] = [
            ("--copies 0:", |args| args.copies = Some(0)),
            ("--copies 9: it must be from 1 to 8", |args| {
                args.copies = Some(9);
            }),
            ("--via 127.0.0.1:0: port 0", |args| {
                args.via = Some("127.0.0.1:0".into());
            }),
            ("--deadline-ms 0:", |args| args.deadline_ms = Some(0)),
            ("--deadline-ms 8", |args| {
                args.deadline_ms = Some(DEADLINE_MS_MAX + 1);
            }),
            ("--connections-max 0:", |args| {
                args.connections_max = Some(0);
            }),
            ("--connections-max 1", |args| {
                args.connections_max = Some(CONNECTIONS_MAX + 1);
            }),
            (
                "--tcp-keepalive 32768: it must be from 0 to 32767",
                |args| {
                    args.tcp_keepalive = Some(KEEPALIVE_SECONDS_MAX + 1);
                },
            ),
            ("--spin-us 1", |args| args.spin_us = Some(SPIN_US_MAX + 1)),
            ("--unread-max 63M: it must be at least 64M", |args| {
                args.unread_max = Some("63M".into());
            }),
            ("--unread-max 0: a size", |args| {
                args.unread_max = Some("0".into());
            }),
            ("--unread-total-max x: a size", |args| {
                args.unread_total_max = Some("x".into());
            }),
        ];
        for (said, change) in cases {
            let mut changed = args();
            change(&mut changed);
            // A setting in the flags and the same setting in the file must have the same effect.
            for (flags, file) in [
                (changed.clone(), RedisArgs::default()),
                (RedisArgs::default(), changed),
            ] {
                let error = settings(flags.over(file)).err().unwrap().to_string();
                assert!(error.starts_with(said), "{error}");
            }
        }
    }
}
