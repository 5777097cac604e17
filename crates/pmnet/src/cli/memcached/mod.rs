//! `pmnet memcached`: the memcached front.

mod args;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use pmnet_cli::{ConfigError, address, bytes};
use pmnet_client::{ClientConfig, Clock};
use pmnet_fleet::FollowConfig;
use pmnet_memcached::{Front, FrontConfig};
use pmnet_wire::MESSAGE_BYTES_MAX;
use serde_json::json;

use super::common::{CommonArgs, copies, required, size_max};
use super::keys::{OfFront, Reach, key_args};
use super::names::{Named, wait_until_known};
use super::process::{Part, Process};
use super::ready::Line;
use super::redis::{
    CONNECTIONS_MAX, DEADLINE_MS_MAX, KEEPALIVE_SECONDS_MAX, SPIN_US_MAX, Way, name, places,
    within, within_files,
};
use super::reload::{self, Again};
use super::stop::unless_asked_to_stop;
use crate::status::{self, MemcachedBoard};
pub use args::MemcachedArgs;

const EXAMPLES: &str = "\
Examples:
  pmnet memcached --listen 127.0.0.1:11211 --via 127.0.0.1:51000
  pmnet memcached --listen 127.0.0.1:11211 --udp 127.0.0.1:11211 \\
    --via 127.0.0.1:51000 --copies 2
  pmnet memcached --listen 10.0.0.5:11211 --anyone-may-connect \\
    --key /etc/pmnet/cache.key \\
    --fleet prod --etcd http://10.0.0.7:2379

memcached clients connect to the front, with the text or the meta protocol. A set is acknowledged as soon as every \
device of the chain holds it; so is an ms without flags that depend on the item. The database executes all other \
commands, exactly once. Nothing is evicted.";

/// Minimum value of `--item-size-max`, as in memcached.
const ITEM_SIZE_MIN: u64 = 1024;
/// Maximum database number: that of Redis with its default configuration.
const DATABASE_MAX: u32 = 15;
/// Number of open files that a front needs in addition to those of its clients.
const FILES_OF_A_FRONT: u64 = 32;

/// The command line of `pmnet memcached`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct MemcachedCommand {
    #[command(flatten)]
    args: MemcachedArgs,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Settings of the front and of its client.
struct Settings {
    front: FrontConfig,
    client: ClientConfig,
    hosts: Vec<Named>,
    follow: Option<FollowConfig>,
    keys: Option<OfFront>,
    reach: Reach,
}

/// Serves until the process is asked to end.
pub fn main(command: &MemcachedCommand, file: MemcachedArgs) -> anyhow::Result<bool> {
    let args = command.args.clone().over(file);
    let line = Line::alone(command.common.json);
    let file = command.common.config.as_deref();
    let process = Process::open("memcached", args.status.as_deref(), line, file)?;
    let flags = command.args.clone();
    let again = reload::alone(move |file| flags.clone().over(file));
    run(args, again, &process.alone()?)
}

/// Serves until `part` is asked to end.
pub fn run(
    args: MemcachedArgs,
    again: Again<MemcachedArgs>,
    part: &Part<'_>,
) -> anyhow::Result<bool> {
    serve(args, again, part).or_else(|error| unless_asked_to_stop(error).map(|()| true))
}

fn serve(
    args: MemcachedArgs,
    again: Again<MemcachedArgs>,
    part: &Part<'_>,
) -> anyhow::Result<bool> {
    if !wait_until_known("--via", args.via.as_deref())? {
        return Ok(true);
    }
    let in_use = args.clone();
    let mut settings = settings(args)?;
    settings.front.connections_max = within_files(settings.front.connections_max, clients_within)?;
    let copies = settings.client.copies_min;
    let board = Arc::new(MemcachedBoard::new(
        settings.client.shard,
        copies,
        settings.front.call_timeout,
        Arc::clone(&settings.front.pulse),
    ));
    part.show(board.clone());
    let way = Way::find(
        settings.client,
        settings.hosts,
        settings.follow,
        settings.keys,
        settings.reach,
    )?;
    let via = way.via();
    let (_follower, _watch) = (way.follower, way.watch);
    let (front, stopper) = Front::bind(&settings.front, way.node)?;
    part.on_end(move || stopper.stop());
    part.on_new_settings(&in_use, again, {
        let (limits, board) = (front.limits(), Arc::clone(&board));
        move |new| {
            check(new.clone())?;
            let mut new = self::settings(new)?.front.limits();
            new.connections_max = within_files(new.connections_max, clients_within)?;
            let (limits, board) = (limits.clone(), Arc::clone(&board));
            Ok(Box::new(move || {
                board.set_deadline(new.call_timeout);
                limits.replace(new);
            }))
        }
    });
    let udp = front.udp_addr()?.map(|address| address.to_string());
    let mut fields = vec![("listen", json!(front.local_addr()?.to_string()))];
    fields.extend(udp.map(|udp| ("udp", json!(udp))));
    fields.extend([("via", json!(via)), ("copies", json!(copies))]);
    part.announce("memcached", &fields);
    let counters = front.run_observed(|turn| {
        if part.is_shown() {
            board.turn(turn);
        }
    })?;
    tracing::info!(
        clients = counters.connections_ever,
        refused = counters.connections_refused,
        errors = counters.errors,
        datagrams_dropped = counters.datagrams_dropped,
        "the memcached front ends"
    );
    Ok(true)
}

/// Checks these settings in the same way as [`main`].
pub fn check(args: MemcachedArgs) -> Result<(), ConfigError> {
    status::at(args.status.as_deref())?;
    settings(args).map(drop)
}

/// Returns the checked settings for these flags and keys of the file.
fn settings(args: MemcachedArgs) -> Result<Settings, ConfigError> {
    let etcd = args.etcd();
    let listen = address("--listen", &required("--listen", "memcached", args.listen)?)?;
    let udp = args.udp.map(|udp| address("--udp", &udp)).transpose()?;
    for (flag, address) in [("--listen", Some(listen)), ("--udp", udp)] {
        may_be_reached(flag, address, args.anyone_may_connect)?;
    }
    let shard = args.shard.unwrap_or(0);
    let hosts = args.via.as_deref().map_or_else(Vec::new, Named::all);
    let (mut client, follow) = places("memcached", args.via, args.fleet, &etcd, shard)?;
    let mut front = FrontConfig::new(listen);
    front.udp = udp;
    let name = name(listen);
    front.id = Clock::boottime().now().0 ^ u64::from(std::process::id()) ^ name.0;
    front.database = args.database.unwrap_or(0);
    within("--database", front.database, 0, DATABASE_MAX)?;
    if let Some(size) = args.item_size_max {
        front.item_max = bytes("--item-size-max", &size)?;
        let most = u64::try_from(MESSAGE_BYTES_MAX).unwrap_or(u64::MAX);
        within("--item-size-max", front.item_max, ITEM_SIZE_MIN, most)?;
    }
    if let Some(micros) = args.spin_us {
        within("--spin-us", micros, 0, SPIN_US_MAX)?;
        front.spin_micros = micros;
    }
    if let Some(millis) = args.deadline_ms {
        within("--deadline-ms", millis, 1, DEADLINE_MS_MAX)?;
        front.call_timeout = Duration::from_millis(millis);
    }
    if let Some(most) = args.connections_max {
        within("--connections-max", most, 1, CONNECTIONS_MAX)?;
        front.connections_max = most;
    }
    if let Some(seconds) = args.tcp_keepalive {
        within("--tcp-keepalive", seconds, 0, KEEPALIVE_SECONDS_MAX)?;
        front.keepalive = (seconds > 0).then(|| Duration::from_secs(seconds));
    }
    let copies = copies(args.copies)?;
    client.name = name;
    client.shard = shard;
    // In a fleet, the addresses of the devices are not known yet.
    let known = client.heads().filter(|_| follow.is_none());
    let keys = key_args!(args);
    let reach = keys.reach();
    let keys = keys.of_front(&known.collect::<Vec<SocketAddr>>())?;
    client.keys = keys.as_ref().map(|keys| keys.keys.follow().0);
    client.size_max = size_max(args.mtu, client.head.is_ipv6())?;
    client.copies_min = copies;
    Ok(Settings {
        front,
        client,
        hosts,
        follow,
        keys,
        reach,
    })
}

/// Returns an error if other machines can connect and the operator has not permitted this. The memcached front has no
/// passwords.
fn may_be_reached(
    flag: &str,
    address: Option<SocketAddr>,
    anyone: bool,
) -> Result<(), ConfigError> {
    match address {
        Some(address) if !anyone && !address.ip().to_canonical().is_loopback() => {
            Err(ConfigError(format!(
                "{flag} {address}: others than this machine can connect there, and clients of memcached have no passwords here: \
                 say so with --anyone-may-connect, and keep the address in a network of your own"
            )))
        }
        _ => Ok(()),
    }
}

/// Returns the number of clients for which this number of open files is enough. Each client needs one socket.
fn clients_within(files: u64) -> usize {
    usize::try_from(files.saturating_sub(FILES_OF_A_FRONT)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> MemcachedArgs {
        MemcachedArgs {
            listen: Some("127.0.0.1:11211".into()),
            via: Some("127.0.0.1:51000".into()),
            ..MemcachedArgs::default()
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_sentence() {
        type Change = fn(&mut MemcachedArgs);
        let changes: [(Change, &str); 7] = [
            (|args| args.listen = None, "--listen is missing"),
            (|args| args.via = None, "--via is missing"),
            (
                |args| args.listen = Some("0.0.0.0:1".into()),
                "--anyone-may-connect",
            ),
            (
                |args| args.udp = Some("10.0.0.1:1".into()),
                "--udp 10.0.0.1:1: others than this machine",
            ),
            (
                |args| args.item_size_max = Some("17M".into()),
                "--item-size-max 17825792: it must be from 1024",
            ),
            (
                |args| args.database = Some(16),
                "--database 16: it must be from 0 to 15",
            ),
            (|args| args.copies = Some(0), "--copies 0"),
        ];
        for (change, says) in changes {
            let mut wrong = args();
            change(&mut wrong);
            let error = settings(wrong).err().unwrap().to_string();
            assert!(error.contains(says), "{error}");
        }
        let open = MemcachedArgs {
            listen: Some("0.0.0.0:1".into()),
            anyone_may_connect: true,
            ..args()
        };
        assert!(settings(open).is_ok());
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let file = MemcachedArgs {
            via: Some("127.0.0.1:51001".into()),
            item_size_max: Some("2M".into()),
            database: Some(3),
            ..MemcachedArgs::default()
        };
        let flags = MemcachedArgs {
            database: Some(4),
            ..args()
        };
        let found = settings(flags.over(file)).unwrap();
        assert_eq!((found.front.database, found.front.item_max), (4, 2 << 20));
        assert_eq!(found.client.head, "127.0.0.1:51000".parse().unwrap());
    }
}
