//! `pmnet redis`: the RESP front.

mod args;
mod fresh;
mod name;
mod settings;
mod sharded;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use pmnet_cli::{ConfigError, Family, is_name, on_signals, warn_of_password};
use pmnet_client::{ClientConfig, ClientNode, Latest, Whereabouts};
use pmnet_fleet::{FollowConfig, Follower};
use pmnet_front::client::Counters;
use pmnet_front::store::StoreAddress;
use pmnet_front::{Access, DirectMover, Front, FrontConfig, Limits, clients_within};
use serde_json::json;

use super::common::CommonArgs;
use super::keys::{OfFront, Reach};
use super::names::{Named, Watch, wait_until_known};
use super::process::{Part, Process};
use super::ready::Line;
use super::reload::{self, Again};
use super::stop::unless_asked_to_stop;
use crate::status::{self, FrontBoard};
pub use args::RedisArgs;
use fresh::keep_fresh;
pub(super) use name::name;
pub(super) use settings::{
    CONNECTIONS_MAX, DEADLINE_MS_MAX, KEEPALIVE_SECONDS_MAX, NOWHERE, SPIN_US_MAX, Settings,
    devices, located, places, within, within_files,
};
use settings::{check_direct, settings, together, via_text};
#[cfg(test)]
pub(super) use sharded::look_at;
pub(super) use sharded::{Shards, is_same, look};

const EXAMPLES: &str = "\
Examples:
  pmnet redis --listen 127.0.0.1:6380 --via 127.0.0.1:51000
  pmnet redis --listen 127.0.0.1:6380 --via 127.0.0.1:51000 \\
      --copies 3 --assume-ok HMSET
  pmnet redis --listen 127.0.0.1:6380 --key /etc/pmnet/front.key \\
      --fleet prod --etcd http://10.0.0.7:2379,http://10.0.0.8:2379
  pmnet redis --listen 127.0.0.1:6380 --shards /etc/pmnet/shards.toml
  pmnet redis --listen 10.0.0.5:6380 --via 10.0.0.6:51000 --users-of-redis \\
      --key /etc/pmnet/web.key \\
      --direct redis://front:@10.0.0.7:6379 \\
      --direct-password-file /etc/pmnet/front.password \\
      --tls-cert /etc/pmnet/front.pem --tls-key /etc/pmnet/front.key

Redis clients connect to the front as to their Redis. SET (without NX, XX, GET), MSET, SETEX and PSETEX are \
acknowledged as soon as every device of the chain holds them. The database executes all other commands, exactly \
once.

--assume-ok names further commands to acknowledge early. The reply to these commands is always +OK. If the database \
later finds an error, pmnet only counts and logs it.

--shards: one address serves many shards, by the hash slots of Redis Cluster. The file states for each shard its \
slots and its address. An entry can have any other setting of a shard, under the name of the setting's flag. \
Settings that an entry does not have come from the command line.

  [[shard]]
  slots = \"0-8191\"
  via = \"10.0.0.6:51000\"

  [[shard]]
  slots = \"8192-16383\"
  fleet = \"prod\"
  etcd = \"http://10.0.0.7:2379\"
  shard = 1";

/// Longest time that a front waits until etcd names a device.
const DEVICES_WAIT: Duration = Duration::from_secs(30);

/// The command line of `pmnet redis`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RedisCommand {
    #[command(flatten)]
    args: RedisArgs,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Serves until the process is asked to end.
pub fn main(command: &RedisCommand, file: RedisArgs) -> anyhow::Result<bool> {
    if let Some(url) = &command.args.direct {
        let instead =
            "give it with --direct-password-file, or put the URL into the configuration file";
        warn_of_password("--direct", url, instead);
    }
    let args = command.args.clone().over(file);
    let line = Line::alone(command.common.json);
    let file = command.common.config.as_deref();
    let process = Process::open("redis", args.status.as_deref(), line, file)?;
    let flags = command.args.clone();
    let again = reload::alone(move |file| flags.clone().over(file));
    run(args, again, &process.alone()?)
}

/// Serves until `part` is asked to end.
pub fn run(args: RedisArgs, again: Again<RedisArgs>, part: &Part<'_>) -> anyhow::Result<bool> {
    serve(args, again, part).or_else(|error| unless_asked_to_stop(error).map(|()| true))
}

fn serve(args: RedisArgs, again: Again<RedisArgs>, part: &Part<'_>) -> anyhow::Result<bool> {
    let rdma = args.rdma.clone();
    if let Some(path) = args.shards.clone() {
        let known = sharded::vias(&path);
        if !wait_until_known("--via", known.iter().map(String::as_str))? {
            return Ok(true);
        }
        return sharded::serve(&path, args, again, part);
    }
    if !wait_until_known("--via", args.via.as_deref())? {
        return Ok(true);
    }
    let direct = args.direct.as_deref().and_then(StoreAddress::place);
    let direct = direct.map(|(host, port)| Named { host, port });
    let direct = direct.filter(|named| is_name(&named.host));
    let known = direct
        .iter()
        .map(|named| format!("{}:{}", named.host, named.port));
    let known: Vec<String> = known.collect();
    if !wait_until_known("--direct", known.iter().map(String::as_str))? {
        return Ok(true);
    }
    let Settings {
        mut front,
        client,
        hosts,
        follow,
        keys,
        reach,
    } = settings(args.clone())?;
    keep_fresh(part, &args, std::iter::once(&front));
    front.connections_max = within_files(front.connections_max, |files| clients_within(files, 0))?;
    let copies = client.copies_min;
    let access = front.access.clone();
    let board = show(part, &front, &client, None);
    let mut way = Way::find(client, hosts, follow, keys, reach)?;
    if let Some(rdma) = rdma {
        way.node = way.node.by_rdma(&rdma)?;
    }
    let via = way.via();
    let front = Front::bind(&front, way.node)?;
    let _direct = direct
        .map(|named| watch_direct(named, front.direct_mover()))
        .transpose()?;
    let stopper = front.stopper();
    part.on_end(move || stopper.stop());
    part.on_new_settings(&args, again, {
        let running = Running {
            limits: front.limits(),
            board: Arc::clone(&board),
        };
        move |new| {
            let is_password_here = new.requirepass.is_some();
            let mut new = settings(new)?.front;
            new.connections_max =
                within_files(new.connections_max, |files| clients_within(files, 0))?;
            let (running, access) = (running.clone(), access.clone());
            Ok(Box::new(move || {
                running.take(&new);
                if is_password_here {
                    take_password(&access, &new.access);
                }
            }))
        }
    });
    part.announce(
        "redis",
        &[
            ("listen", json!(front.local_addr()?.to_string())),
            ("via", json!(via)),
            ("copies", json!(copies)),
        ],
    );
    let counters = if part.is_shown() {
        front.run_observed(|turn| board.turn(turn))?
    } else {
        front.run()?
    };
    log_end(&counters, 0);
    Ok(true)
}

/// Handles with which the settings of a running front are changed.
#[derive(Clone)]
struct Running {
    limits: Latest<Limits>,
    board: Arc<FrontBoard>,
}

impl Running {
    fn take(&self, new: &FrontConfig) {
        self.board.set_deadline(new.call_timeout);
        self.limits.replace(new.limits());
    }
}

/// Replaces the password in use by the new password.
fn take_password(in_use: &Access, new: &Access) {
    if let (Access::Password(in_use), Access::Password(new)) = (in_use, new) {
        in_use.replace_by(new);
    }
}

/// Checks these settings in the same way as [`main`].
pub fn check(args: RedisArgs) -> Result<(), ConfigError> {
    status::at(args.status.as_deref())?;
    match args.shards.clone() {
        Some(path) => sharded::check(&path, args),
        None => check_direct(&settings(args)?.front),
    }
}

/// Makes the board of a front, and shows it at the status port. `number`: the front's number among several, counted
/// from 1.
fn show(
    part: &Part<'_>,
    front: &FrontConfig,
    client: &ClientConfig,
    number: Option<usize>,
) -> Arc<FrontBoard> {
    let board = Arc::new(FrontBoard::new(
        client.shard,
        number,
        client.copies_min,
        front.call_timeout,
        Arc::clone(&front.pulse),
    ));
    part.show(board.clone());
    board
}

/// The client endpoint for a shard's devices, and the threads that keep the devices' addresses up to date.
pub(super) struct Way {
    pub(super) node: ClientNode,
    known: Vec<SocketAddr>,
    /// The thread that reads the addresses from etcd. The thread runs until the front ends.
    pub(super) follower: Option<Follower>,
    pub(super) watch: Option<Watch>,
}

impl Way {
    /// Finds the addresses of the devices (in a fleet, from etcd), and makes the client endpoint.
    pub(super) fn find(
        client: ClientConfig,
        hosts: Vec<Named>,
        follow: Option<FollowConfig>,
        keys: Option<OfFront>,
        reach: Reach,
    ) -> anyhow::Result<Way> {
        let stop = on_signals()?;
        let client = located(client, follow.as_ref(), DEVICES_WAIT, &stop).map_err(|text| {
            if stop.load(Ordering::Relaxed) {
                io::Error::from(io::ErrorKind::Interrupted).into()
            } else {
                anyhow!(text)
            }
        })?;
        let known: Vec<SocketAddr> = client.heads().collect();
        reach.check(&known)?;
        let mut node = ClientNode::bind(client)?;
        if let Some(keys) = keys {
            node.follow_keys(&keys.keys);
            keys.read_again_on_hangup();
        }
        let whereabouts = Arc::new(Whereabouts::default());
        if follow.is_some() || !hosts.is_empty() {
            node.follow(whereabouts.clone());
        }
        let watch = (follow.is_none() && !hosts.is_empty())
            .then(|| watch(hosts, known.clone(), reach, whereabouts.clone()))
            .transpose()?;
        let follower = follow
            .map(|follow| {
                let known = known.clone();
                Follower::start(follow, known, move |peers| {
                    if let Some(peers) = reach.now(peers) {
                        whereabouts.tell(peers);
                    }
                })
            })
            .transpose()
            .context("cannot start the thread that asks etcd")?;
        Ok(Way {
            node,
            known,
            follower,
            watch,
        })
    }

    pub(super) fn via(&self) -> String {
        via_text(self.known.iter().copied())
    }
}

/// Tells a client the new addresses of its devices, whenever they change. The client also keeps asking the earlier
/// addresses, because the head may still answer at them.
fn watch(
    hosts: Vec<Named>,
    known: Vec<SocketAddr>,
    reach: Reach,
    whereabouts: Arc<Whereabouts>,
) -> anyhow::Result<Watch> {
    // The socket exists already, so its family stays.
    let family = Family::of(&known[0]);
    let (mut before, mut places) = (known.clone(), known);
    Watch::start(hosts, move |found| {
        let now = together(found, family);
        let is_new = now.len() != before.len() || now.iter().any(|at| !before.contains(at));
        if now.is_empty() || !is_new {
            return;
        }
        before = now.clone();
        let Some(now) = reach.now(now) else { return };
        tracing::info!(devices = ?now, "the devices of --via have these addresses now");
        let all = now.into_iter().chain(places.drain(..)).collect();
        places = together(&[all], family);
        whereabouts.tell(places.clone());
    })
}

/// Tells a front the new addresses of the Redis of `--direct`, whenever they change.
fn watch_direct(named: Named, mover: DirectMover) -> anyhow::Result<Watch> {
    let mut known: Vec<SocketAddr> = Vec::new();
    Watch::start(vec![named], move |found| {
        if known != found[0] {
            known.clone_from(&found[0]);
            mover.moved(known.clone());
        }
    })
}

/// When a front ends, logs how the front has answered its reads. `shard`: the front's number among several, counted
/// from 1; 0: there is only one front.
fn log_end(counters: &Counters, shard: usize) {
    let Counters {
        own_writes,
        hits,
        direct_reads,
        reads_at_once,
        replica_reads,
        bypassed_reads,
        closed_unread,
        failed_logins,
        tls_failed,
    } = *counters;
    if closed_unread > 0 {
        tracing::info!(
            closed_unread,
            "so many connections were closed because their clients did not read their replies"
        );
    }
    let shard = (shard > 0).then_some(shard);
    tracing::info!(
        shard,
        own_writes,
        hits,
        direct_reads,
        reads_at_once,
        replica_reads,
        bypassed_reads,
        failed_logins,
        tls_failed,
        "the front ends; its reads were answered so"
    );
}
