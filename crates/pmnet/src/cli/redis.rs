//! `pmnet redis`: the RESP front.

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use pmnet_cli::{ConfigError, address, bytes, call_on_signals, password, warn_of_password};
use pmnet_client::{ClientConfig, ClientNode, Whereabouts};
use pmnet_fleet::{FollowConfig, Follower};
use pmnet_front::connection::Counters;
use pmnet_front::limits::REPLY_BYTES_MAX;
use pmnet_front::{Cache, Front, FrontConfig, Secret};
use pmnet_wire::record::CHAIN_MAX;
use serde::Deserialize;
use serde_json::json;

use super::access::{Hidden, Said, access};
use super::common::{CommonArgs, hop_address, in_etcd, required};
use super::ready;
use super::tls::{TlsClients, server_tls};

const EXAMPLES: &str = "\
Examples:
  pmnet redis --listen 127.0.0.1:6380 --via 127.0.0.1:51000
  pmnet redis --listen 127.0.0.1:6380 --via 127.0.0.1:51000 --copies 3 --assume-ok HMSET
  pmnet redis --listen 127.0.0.1:6380 --fleet prod --etcd http://10.0.0.7:2379,http://10.0.0.8:2379
  pmnet redis --listen 10.0.0.5:6380 --via 10.0.0.6:51000 --users-of-redis \\
      --direct redis://front:@10.0.0.7:6379 --direct-password-file /etc/pmnet/front.password \\
      --tls-cert /etc/pmnet/front.pem --tls-key /etc/pmnet/front.key

Redis clients connect here and see their Redis. SET (without NX, XX, GET), MSET, SETEX and PSETEX
are acknowledged as soon as every device of the chain holds them; everything else is executed by
the database, exactly once. --assume-ok names more commands to acknowledge early: their reply is
then always +OK, and an error that the database finds later is only counted and logged.";

/// Longest `--spin-us`: a second. Who wants more wants a core to do nothing else.
const SPIN_US_MAX: u64 = 1_000_000;
/// Longest `--deadline-ms`: a day.
const DEADLINE_MS_MAX: u64 = 24 * 60 * 60 * 1000;
/// Largest `--connections-max`: each may need a port, and a second one towards the database.
const CONNECTIONS_MAX: usize = 1_000_000;

/// A front waits so long for the first device in etcd.
const DEVICES_WAIT: Duration = Duration::from_secs(30);

/// Settings of `pmnet redis`; section `[redis]` of the configuration file.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RedisArgs {
    /// TCP address for Redis clients.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// UDP address of the head device; or those of all devices of the chain, separated by commas: then the front finds the head
    /// again when the chain has changed.
    #[arg(long, value_name = "HOST:PORT[,HOST:PORT…]")]
    via: Option<String>,
    /// Instead of --via: the devices of this fleet, as etcd knows them, also when they change.
    #[arg(long, value_name = "NAME", conflicts_with = "via")]
    fleet: Option<String>,
    /// With --fleet: the members of etcd, http://HOST:2379, with commas between them.
    #[arg(long, value_name = "URL,…")]
    etcd: Option<String>,
    /// Number of the shard [default: 0].
    #[arg(long)]
    shard: Option<u32>,
    /// Accept acknowledgements only if at least so many devices hold the write [default: 1].
    #[arg(long, value_name = "R")]
    copies: Option<u8>,
    /// More commands to acknowledge early, separated by commas (see below).
    #[arg(long, value_name = "COMMANDS", value_delimiter = ',')]
    assume_ok: Option<Vec<String>>,
    /// Address of the database for commands that need a connection of their own (blocking,
    /// pub/sub, WATCH) [default: what the server says].
    #[arg(long, value_name = "HOST:PORT")]
    direct: Option<String>,
    /// The password for --direct is the first line of this file.
    #[arg(long, value_name = "FILE")]
    direct_password_file: Option<PathBuf>,
    /// Clients are the users of Redis, with their passwords and rights there [default, if only this machine can connect].
    #[arg(long)]
    users_of_redis: bool,
    /// Clients need the password in the first line of this file, and may then do everything.
    #[arg(long, value_name = "FILE")]
    requirepass_file: Option<PathBuf>,
    /// That password; in the configuration file only.
    #[arg(skip)]
    requirepass: Option<Hidden>,
    /// Everybody who can connect may do everything: no users, no passwords.
    #[arg(long)]
    anyone_may_connect: bool,
    /// Speak TLS with clients, with this certificate (PEM; those that lead to its authority behind it).
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Key of --tls-cert (PEM).
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Authorities (PEM) for the certificates of clients.
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Whether clients must show a certificate [default: required with --tls-ca, otherwise no].
    #[arg(long, value_enum)]
    tls_clients: Option<TlsClients>,
    /// Poll for so long after activity before sleeping.
    #[arg(long, value_name = "US")]
    spin_us: Option<u64>,
    /// A command without an outcome after this long is answered as unknown.
    #[arg(long, value_name = "MS")]
    deadline_ms: Option<u64>,
    /// Most clients at a time.
    #[arg(long, value_name = "N")]
    connections_max: Option<usize>,
    /// Who answers commands that only read [default: pending].
    #[arg(long, value_enum)]
    cache: Option<CacheArg>,
    /// How much of its replies a client may leave unread; beyond that its commands wait, and who reads nothing for a second
    /// is closed [default: 1G].
    #[arg(long, value_name = "SIZE")]
    unread_max: Option<String>,
    /// The same for all clients together; who has left most unread is closed [default: 2G].
    #[arg(long, value_name = "SIZE")]
    unread_total_max: Option<String>,
}

impl RedisArgs {
    fn who_may_connect(&self) -> Said {
        Said {
            users_of_redis: self.users_of_redis,
            anyone_may_connect: self.anyone_may_connect,
            requirepass: self.requirepass.clone(),
            requirepass_file: self.requirepass_file.clone(),
        }
    }
}

/// Values of `--cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CacheArg {
    /// The head device, with a write that the database may not have yet; else the database, read directly where it is
    /// as fresh as the head says that it must be.
    Pending,
    /// The same, and the head device also shows writes that the database has, as long as its log keeps them. Only where every
    /// program that writes to the database does so through pmnet: what others write is not seen.
    Log,
    /// The database, behind everything acknowledged before. Only a GET right behind a SET of its key, in the same pipeline,
    /// is answered with that.
    Off,
}

/// The command line of `pmnet redis`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RedisCommand {
    #[command(flatten)]
    args: RedisArgs,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// What the command line and the configuration say, if it can be.
fn settings(
    flags: RedisArgs,
    file: RedisArgs,
) -> Result<(FrontConfig, ClientConfig, Option<FollowConfig>), ConfigError> {
    // Flags win as a whole, since they exclude each other.
    let said = [flags.who_may_connect(), file.who_may_connect()];
    let said = said
        .into_iter()
        .find(Said::is_something)
        .unwrap_or_default();
    let listen = required("--listen", "redis", flags.listen.or(file.listen))?;
    let shard = flags.shard.or(file.shard).unwrap_or(0);
    // What the command line says of the devices wins as a whole.
    let (via, fleet, etcd) = match (flags.via, flags.fleet, flags.etcd) {
        (None, None, etcd) => (file.via, file.fleet, etcd.or(file.etcd)),
        (None, fleet, etcd) => (None, fleet, etcd.or(file.etcd)),
        said => said,
    };
    let (mut client, follow) = places(via, fleet, etcd, shard)?;
    let mut front = FrontConfig::new(address("--listen", &listen)?);
    front.access = access(said, front.listen)?;
    front.tls = server_tls(
        flags.tls_cert.or(file.tls_cert),
        flags.tls_key.or(file.tls_key),
        flags.tls_ca.or(file.tls_ca),
        flags.tls_clients.or(file.tls_clients),
    )?;
    if let Some(url) = &flags.direct {
        let instead =
            "give it with --direct-password-file, or put the URL into the configuration file";
        warn_of_password("--direct", url, instead);
    }
    front.direct = flags.direct.or(file.direct);
    if let Some(path) = flags.direct_password_file.or(file.direct_password_file) {
        let text = password("--direct-password-file", &path)?;
        front.direct_password = Some(Secret::new(text.as_bytes()));
    }
    front.assume_ok = flags.assume_ok.or(file.assume_ok).unwrap_or_default();
    if let Some(micros) = flags.spin_us.or(file.spin_us) {
        within("--spin-us", micros, 0, SPIN_US_MAX)?;
        front.spin = Duration::from_micros(micros);
    }
    if let Some(millis) = flags.deadline_ms.or(file.deadline_ms) {
        within("--deadline-ms", millis, 1, DEADLINE_MS_MAX)?;
        front.call_timeout = Duration::from_millis(millis);
    }
    if let Some(cache) = flags.cache.or(file.cache) {
        front.cache = match cache {
            CacheArg::Pending => Cache::Pending,
            CacheArg::Log => Cache::Log,
            CacheArg::Off => Cache::Off,
        };
    }
    if let Some(most) = flags.connections_max.or(file.connections_max) {
        within("--connections-max", most, 1, CONNECTIONS_MAX)?;
        front.connections_max = most;
    }
    if let Some(size) = flags.unread_max.or(file.unread_max) {
        front.unread_max = unread("--unread-max", &size)?;
    }
    if let Some(size) = flags.unread_total_max.or(file.unread_total_max) {
        front.unread_total_max = unread("--unread-total-max", &size)?;
    }
    let copies = flags.copies.or(file.copies).unwrap_or(1);
    within("--copies", usize::from(copies), 1, CHAIN_MAX)?;
    client.shard = shard;
    client.copies_min = copies;
    client.kept = front.cache == Cache::Log;
    Ok((front, client, follow))
}

/// A client of these devices, or one whose devices are still to be asked for.
fn places(
    via: Option<String>,
    fleet: Option<String>,
    etcd: Option<String>,
    shard: u32,
) -> Result<(ClientConfig, Option<FollowConfig>), ConfigError> {
    match (via, fleet) {
        (Some(_), Some(_)) => Err(ConfigError(
            "--via and --fleet say both where the devices are: leave one out".into(),
        )),
        (None, Some(name)) => {
            let (endpoints, names) = in_etcd(&required("--etcd", "redis", etcd)?, &name, shard)?;
            let follow = FollowConfig { endpoints, names };
            let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            Ok((ClientConfig::new(nowhere), Some(follow)))
        }
        (_, None) if etcd.is_some() => Err(ConfigError(
            "--etcd belongs to --fleet: give the fleet's name".into(),
        )),
        (via, None) => Ok((devices(&required("--via", "redis", via)?)?, None)),
    }
}

/// A client of these devices.
fn devices(via: &str) -> Result<ClientConfig, ConfigError> {
    let addresses: Vec<SocketAddr> = via
        .split(',')
        .map(|address| hop_address("--via", address.trim()))
        .collect::<Result<_, _>>()?;
    within("the addresses of --via:", addresses.len(), 1, CHAIN_MAX)?;
    let (head, others) = addresses.split_first().expect("one at least");
    if let Some(other) = others.iter().find(|o| o.is_ipv4() != head.is_ipv4()) {
        return Err(ConfigError(format!(
            "--via: {head} and {other} are of different families; give IPv4 or IPv6 addresses only"
        )));
    }
    let mut client = ClientConfig::new(*head);
    client.others = others.to_vec();
    Ok(client)
}

/// How much may be unread: at least one reply, whatever its size.
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

/// A sentence that says what is possible if `value` is not.
fn within<N: PartialOrd + Display>(
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

/// Serves until asked to end.
pub fn main(command: &RedisCommand, file: RedisArgs) -> anyhow::Result<bool> {
    let (config, mut client, follow) = settings(command.args.clone(), file)?;
    if let Some(follow) = &follow {
        let found = Follower::first(follow, DEVICES_WAIT).map_err(|text| anyhow!(text))?;
        let (head, others) = found.split_first().context("no device is known")?;
        (client.head, client.others) = (*head, others.to_vec());
    }
    let known: Vec<SocketAddr> = client.heads().collect();
    let via: Vec<String> = known.iter().map(SocketAddr::to_string).collect();
    let copies = client.copies_min;
    let mut node = ClientNode::bind(client)?;
    // It looks until the front ends.
    let _follower = follow
        .map(|follow| {
            let whereabouts = Arc::new(Whereabouts::default());
            node.follow(whereabouts.clone());
            Follower::start(follow, known, move |peers| whereabouts.tell(peers))
        })
        .transpose()
        .context("cannot start the thread that asks etcd")?;
    let front = Front::bind(&config, node)?;
    let stopper = front.stopper();
    call_on_signals(move || stopper.stop())?;
    ready::announce(
        command.common.json,
        "redis",
        &[
            ("listen", json!(front.local_addr()?.to_string())),
            ("via", json!(via.join(","))),
            ("copies", json!(copies)),
        ],
    );
    let Counters {
        own_writes,
        hits,
        direct_reads,
        reads_at_once,
        bypassed_reads,
        closed_unread,
        failed_logins,
        tls_failed,
    } = front.run()?;
    if closed_unread > 0 {
        tracing::info!(
            closed_unread,
            "so many connections were closed because their clients did not read their replies"
        );
    }
    tracing::info!(
        own_writes,
        hits,
        direct_reads,
        reads_at_once,
        bypassed_reads,
        failed_logins,
        tls_failed,
        "the front ends; its reads were answered so"
    );
    Ok(true)
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
            assert_eq!(settings(flags, file).unwrap().0.cache, cache);
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
            let front = settings(flags, file).unwrap().0;
            assert_eq!((front.unread_max, front.unread_total_max), most);
        }
    }

    #[test]
    fn devices_are_given_or_asked_for_and_the_command_line_wins_as_a_whole() {
        let fleet = RedisArgs {
            via: None,
            fleet: Some("f".into()),
            etcd: Some("http://10.0.0.7:2379".into()),
            ..args()
        };
        assert!(settings(args(), RedisArgs::default()).unwrap().2.is_none());
        let follow = settings(fleet.clone(), args()).unwrap().2.unwrap();
        assert_eq!(follow.names.prefix(), "/pmnet/f/0/");
        assert!(settings(args(), fleet.clone()).unwrap().2.is_none());
        assert!(
            settings(RedisArgs::default(), fleet.clone())
                .unwrap()
                .2
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
            let error = settings(args, RedisArgs::default())
                .unwrap_err()
                .to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn settings_that_cannot_be_are_refused_by_name() {
        assert!(settings(args(), RedisArgs::default()).is_ok());
        let cases: [(&str, Change); 11] = [
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
            // Wherever it was set.
            for (flags, file) in [
                (changed.clone(), RedisArgs::default()),
                (RedisArgs::default(), changed),
            ] {
                let error = settings(flags, file).unwrap_err().to_string();
                assert!(error.starts_with(said), "{error}");
            }
        }
    }
}
