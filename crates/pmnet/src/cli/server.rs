//! `pmnet server`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use pmnet_cli::{ConfigError, warn_of_password};
use pmnet_client::Stop;
use pmnet_dataplane::xdp::LogReader;
use pmnet_fleet::hand::ServerDoor;
use pmnet_fleet::{Candidate, LEASE_SECONDS, LEASE_SECONDS_USUAL, ServerAgentConfig};
use pmnet_front::store::StoreAddress;
use pmnet_server::serve::{DriverError, Ended, ServeConfig, Turn, serve};
use pmnet_server::{Feed, ServerConfig, ServerNode, Stop as Stopped, Store, TAKEN_OVER};
use pmnet_store::{OpenError, Passwords};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::common::{CommonArgs, STATUS_HELP, required, size_max, udp_address};
use super::config::{FileConfig, Sections};
use super::etcd::{
    ETCD_CA_HELP, ETCD_CERT_HELP, ETCD_HELP, ETCD_KEY_HELP, ETCD_PASSWORD_HELP, ETCD_USER_HELP,
    EtcdArgs, etcd_args,
};
use super::keys::{KeyArgs, OfCluster, key_args};
use super::passwords::PasswordFiles;
use super::process::{Part, Process};
use super::ready::Line;
use super::reload::{self, Again, Commit, Section};
use super::stop::unless_asked_to_stop;
use crate::status::{self, ServerBoard, ServerWriter};

/// Default time of polling after activity, in microseconds. The default is 0, because polling would take processor time
/// from the store.
const SPIN_US: u64 = 0;

/// Interval at which a standby server checks whether it may serve. A waiting server logs a message at most once in
/// [`PATIENCE`].
const LOOK: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  pmnet server --listen 127.0.0.1:51500 --store redis://127.0.0.1:6379
  pmnet server --listen 127.0.0.1:51500 \\
      --store 'redis://127.0.0.1:6379?wait_replicas=2' \\
      --store-password-file /etc/pmnet/redis.password
  pmnet server --listen 127.0.0.1:51500 \\
      --store 'rediss://pmnet:@redis.example:6379?ca=/etc/pmnet/ca.pem' \\
      --store-password-file /etc/pmnet/redis.password
  pmnet server --listen 127.0.0.1:51500 \\
      --store 'packet:/var/lib/pmnet/store?size=4G'
  pmnet server --listen 10.0.0.3:51500 --store redis://10.0.0.3:6379 \\
      --key /etc/pmnet/cluster.key \\
      --fleet prod --etcd http://10.0.0.7:2379,http://10.0.0.8:2379
  pmnet server --listen 10.0.0.3:51500 --key /etc/pmnet/cluster.key --store \\
      'redis+sentinel://s1:26379,s2:26379,s3:26379/mymaster?wait_replicas=2'
  pmnet server --listen 10.0.0.3:51500 --key /etc/pmnet/cluster.key --store \\
      'redis+cluster://n1:6379,n2:6379,n3:6379/0-5460?wait_replicas=1'

Stores:
  redis://HOST:PORT      Redis or Valkey; durable with appendfsync always
  rediss://HOST:PORT     Redis with TLS. ca=FILE names the authorities
                         (default: the system's), cert=FILE&key=FILE a
                         certificate to show
  redis+sentinel://HOST:PORT,…/NAME
                         the master that Redis Sentinels name, also after a
                         failover
  redis+cluster://HOST:PORT,…/SLOTS
                         the master of a Redis Cluster that serves these slots
  rediss+sentinel://…, rediss+cluster://…
                         with TLS to all of them. name=NAME if their
                         certificates have one name; sentinel_user=NAME if
                         Sentinels have users
  packet:PATH            pmnet's own store. size=BYTES for a new one,
                         media=file, dram or pmem (default: depends on
                         the path)
  null:                  stores nothing; for measurements

Settings follow the address: ?NAME=VALUE&NAME=VALUE. One server serves one shard. The store keeps the server's \
position in the log, and changes it in the same transaction as the data.

--fleet: the server states in etcd which chain its store has on record; controllers read this. If etcd fails, the \
server continues to serve.

--standby: the shard has several servers. If the lease of the serving server ends in etcd, another server takes over \
the store's records, and the controllers make the chain send to this server.";

/// Writes that wait for the sync of a Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum StoreSync {
    /// Every reply waits, and the devices keep early acknowledged writes until the sync.
    Replies,
    /// The devices keep early acknowledged writes until the sync. Replies do not wait.
    Updates,
    /// No write waits.
    None,
}

impl From<StoreSync> for pmnet_store::StoreSync {
    fn from(sync: StoreSync) -> pmnet_store::StoreSync {
        match sync {
            StoreSync::Replies => pmnet_store::StoreSync::Replies,
            StoreSync::Updates => pmnet_store::StoreSync::Updates,
            StoreSync::None => pmnet_store::StoreSync::None,
        }
    }
}

/// Settings of `pmnet server`; section `[server]` of the configuration file.
#[derive(Clone, Debug, Default, Args, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ServerArgs {
    /// UDP address to listen on.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Address of the store, which holds the data: redis://HOST:PORT, rediss://HOST:PORT,
    /// redis+sentinel://HOST:PORT,…/NAME, redis+cluster://HOST:PORT,…/SLOTS, packet:PATH or null:
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// File whose first line is the password for --store.
    #[arg(long, value_name = "FILE")]
    store_password_file: Option<PathBuf>,
    /// File whose first line is the password of the Sentinels in --store.
    #[arg(long, value_name = "FILE")]
    sentinel_password_file: Option<PathBuf>,
    /// Which writes wait for the sync of a Redis that replies before it syncs (appendfsync everysec; WAITAOF).
    /// `replies`: all writes. `updates`: only early acknowledged writes, which the devices keep until the sync. `none`:
    /// no writes [default: replies].
    #[arg(long, value_name = "WHAT")]
    store_sync: Option<StoreSync>,
    /// Number of the shard [default: 0].
    #[arg(long)]
    shard: Option<u32>,
    /// Read updates directly from the log of this device (its --name, or IF-PORT). The device must be the hop before
    /// this server, on the same machine, in a kernel mode, with --server-reads-log.
    #[arg(long, value_name = "NAME")]
    device_log: Option<String>,
    /// Name of the fleet under which the server states in etcd which chain the store has on record.
    #[arg(long, value_name = "NAME")]
    fleet: Option<String>,
    /// URLs of etcd's members; only with --fleet.
    #[arg(long, value_name = "URL,…", help = ETCD_HELP)]
    etcd: Option<String>,
    /// File with the certificates of the authorities that sign etcd's certificates.
    #[arg(long, value_name = "FILE", help = ETCD_CA_HELP)]
    etcd_ca: Option<PathBuf>,
    /// File with the certificate that this process shows to etcd.
    #[arg(long, value_name = "FILE", help = ETCD_CERT_HELP)]
    etcd_cert: Option<PathBuf>,
    /// File with the private key of `etcd_cert`.
    #[arg(long, value_name = "FILE", help = ETCD_KEY_HELP)]
    etcd_key: Option<PathBuf>,
    /// Name of the user as which this process logs in at etcd.
    #[arg(long, value_name = "NAME", help = ETCD_USER_HELP)]
    etcd_user: Option<String>,
    /// File with the password of `etcd_user`.
    #[arg(long, value_name = "FILE", help = ETCD_PASSWORD_HELP)]
    etcd_password_file: Option<PathBuf>,
    /// Address of the status port.
    #[arg(long, value_name = "HOST:PORT", help = STATUS_HELP)]
    pub(super) status: Option<String>,
    /// Do not answer `pmnet ctl`. Otherwise a server outside a fleet tells it, by TCP at the address of --listen, which
    /// chain the store has on record.
    #[arg(long)]
    no_ctl: bool,
    /// File of the cluster's key (pmnet key new), the same for all devices and servers. The process reads it again on
    /// SIGHUP.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Run without a key although other machines can reach this process. You state that you trust every host that can
    /// send packets to it.
    #[arg(long, conflicts_with = "key")]
    insecure: bool,
    /// With --fleet: seconds for which etcd still shows a server that has stopped [default: 3].
    #[arg(long, value_name = "N")]
    lease_seconds: Option<u64>,
    /// With --fleet: this server is one of several of the shard, on different machines, with the same store. One server
    /// serves; the others wait until it stops.
    #[arg(long)]
    standby: bool,
    /// Longest packet to send, with its IP header, even if routes and interfaces allow longer ones [default: the
    /// longest that they allow].
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Microseconds to poll after activity before sleeping. While other programs want the process's core, it sleeps at
    /// once [default: 0].
    #[arg(long, value_name = "US")]
    spin_us: Option<u64>,
}

/// The command line of `pmnet server`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ServerCommand {
    #[command(flatten)]
    args: ServerArgs,
    #[command(flatten)]
    pub common: CommonArgs,
}

impl Section for ServerArgs {
    const NAME: &'static str = "server";

    fn all_of(file: FileConfig) -> Sections<ServerArgs> {
        file.server
    }
}

impl ServerArgs {
    /// Returns the settings for connections to etcd.
    pub(in crate::cli) fn etcd(&self) -> EtcdArgs {
        etcd_args!(self)
    }

    /// Merges these flags with the configuration file: a setting that the flags do not give comes from the file.
    fn over(self, file: ServerArgs) -> ServerArgs {
        let KeyArgs { key, insecure } = key_args!(self).over(key_args!(file));
        ServerArgs {
            listen: self.listen.or(file.listen),
            key,
            insecure,
            store: self.store.or(file.store),
            store_password_file: self.store_password_file.or(file.store_password_file),
            sentinel_password_file: self.sentinel_password_file.or(file.sentinel_password_file),
            store_sync: self.store_sync.or(file.store_sync),
            shard: self.shard.or(file.shard),
            device_log: self.device_log.or(file.device_log),
            fleet: self.fleet.or(file.fleet),
            etcd: self.etcd.or(file.etcd),
            etcd_ca: self.etcd_ca.or(file.etcd_ca),
            etcd_cert: self.etcd_cert.or(file.etcd_cert),
            etcd_key: self.etcd_key.or(file.etcd_key),
            etcd_user: self.etcd_user.or(file.etcd_user),
            etcd_password_file: self.etcd_password_file.or(file.etcd_password_file),
            status: self.status.or(file.status),
            no_ctl: self.no_ctl || file.no_ctl,
            lease_seconds: self.lease_seconds.or(file.lease_seconds),
            standby: self.standby || file.standby,
            mtu: self.mtu.or(file.mtu),
            spin_us: self.spin_us.or(file.spin_us),
        }
    }
}

/// Settings of a server.
struct Settings {
    serve: ServeConfig,
    store: StoreAt,
    /// The server's keys and their file, if it has keys.
    keys: Option<OfCluster>,
    fleet: Option<ServerAgentConfig>,
    /// The server answers `pmnet ctl`.
    by_hand: bool,
    device_log: Option<String>,
}

/// The address of a store, and the settings for opening it.
struct StoreAt {
    url: String,
    passwords: Passwords,
    sync: Option<pmnet_store::StoreSync>,
    shard: u32,
}

impl StoreAt {
    fn open(&self) -> Result<Box<dyn Store>, OpenError> {
        pmnet_store::open_with(&self.url, &self.passwords, self.sync, self.shard)
    }

    fn check(&self) -> Result<(), OpenError> {
        pmnet_store::check(&self.url, &self.passwords, self.sync, self.shard)
    }
}

fn password_files(args: &ServerArgs) -> PasswordFiles {
    PasswordFiles {
        store: args.store_password_file.clone(),
        sentinel: args.sentinel_password_file.clone(),
    }
}

/// Returns the checked settings for these flags and keys of the file.
fn settings(args: ServerArgs) -> Result<Settings, ConfigError> {
    let files = password_files(&args);
    let etcd = args.etcd();
    let listen = required("--listen", "server", args.listen)?;
    let listen = udp_address("--listen", &listen)?;
    let shard = args.shard.unwrap_or(0);
    let store = StoreAt {
        passwords: files.read()?,
        url: required("--store", "server", args.store)?,
        sync: args.store_sync.map(Into::into),
        shard,
    };
    let fleet = fleet_of(
        args.fleet,
        &etcd,
        args.lease_seconds,
        listen,
        shard,
        args.standby,
    )?;
    let keys = key_args!(args).of_cluster(&[listen])?;
    let by_hand = fleet.is_none() && listen.port() != 0 && !args.no_ctl;
    let mut server = ServerConfig::new(shard);
    server.size_max = size_max(args.mtu, listen.is_ipv6())?;
    server.keys = keys.as_ref().map(|keys| keys.keys.follow().0);
    let words = fleet.is_some() || by_hand;
    Ok(Settings {
        serve: ServeConfig {
            spin_micros: args.spin_us.unwrap_or(SPIN_US),
            words: words.then(Arc::default),
            keys: keys.as_ref().map(|keys| keys.keys.clone()),
            ..ServeConfig::new(listen, server)
        },
        store,
        keys,
        fleet,
        by_hand,
        device_log: args.device_log,
    })
}

/// Checks these settings in the same way as [`main`]. No store is opened, because that would make a packet store's file.
pub fn check(args: ServerArgs) -> Result<(), ConfigError> {
    status::at(args.status.as_deref())?;
    let Settings { store, .. } = settings(args)?;
    let checked = store.check();
    checked.map_err(|error| ConfigError(format!("--store: {error}")))
}

/// A device's log, as the server's source of updates.
struct DeviceLog(LogReader);

impl Feed for DeviceLog {
    fn frame(&mut self, order: u64) -> Option<&[u8]> {
        self.0.frame(order)
    }
}

/// Returns the settings of the agent that reports to etcd; `None` without `--fleet`.
fn fleet_of(
    name: Option<String>,
    etcd: &EtcdArgs,
    seconds: Option<u64>,
    listen: SocketAddr,
    shard: u32,
    standby: bool,
) -> Result<Option<ServerAgentConfig>, ConfigError> {
    let Some(name) = name else {
        return match (etcd.nothing(), seconds, standby) {
            (Ok(()), None, false) => Ok(None),
            _ => Err(ConfigError(
                "--etcd, --lease-seconds and --standby belong to --fleet: give the fleet's name"
                    .into(),
            )),
        };
    };
    if standby && (listen.ip().is_unspecified() || listen.port() == 0) {
        return Err(ConfigError(format!(
            "--listen {listen}: with --standby it must be the address and port to which the devices send"
        )));
    }
    let seconds = seconds.unwrap_or(LEASE_SECONDS_USUAL);
    if !LEASE_SECONDS.contains(&seconds) {
        return Err(ConfigError(format!(
            "--lease-seconds {seconds}: {} to {}",
            LEASE_SECONDS.start(),
            LEASE_SECONDS.end()
        )));
    }
    let (members, names) = etcd.of(&name, shard)?;
    Ok(Some(ServerAgentConfig {
        members,
        names,
        address: listen,
        seconds,
        standby,
        status: None,
    }))
}

/// Waits until no other server serves. Returns false if the process was asked to end.
fn turn_comes(candidate: &mut Candidate, stop: &Stop) -> anyhow::Result<bool> {
    let mut said: Option<(String, Instant)> = None;
    loop {
        let why = match candidate.takes_turn() {
            Ok(true) => return Ok(true),
            Ok(false) => {
                "PM2701 another server of this shard serves: this one stands by".to_owned()
            }
            Err(text) => format!("PM2702 etcd: {text}. This server stands by until it answers"),
        };
        if said
            .as_ref()
            .is_none_or(|(before, at)| *before != why && at.elapsed() >= PATIENCE)
        {
            tracing::info!("{why}");
            said = Some((why, Instant::now()));
        }
        if stop.within(LOOK).context("cannot wait")? {
            return Ok(false);
        }
    }
}

/// Whether only programs of this machine reach the Redis at this address.
fn is_only_here(url: &str) -> bool {
    let is_redis = url.starts_with("redis://") || url.starts_with("rediss://");
    let place = StoreAddress::place(url).filter(|_| is_redis);
    place.is_some_and(|(host, _)| {
        let ip = host.parse::<IpAddr>();
        host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    })
}

/// Serves until the process is asked to end.
pub fn main(command: &ServerCommand, file: ServerArgs) -> anyhow::Result<bool> {
    if let Some(url) = &command.args.store {
        let instead =
            "give it with --store-password-file, or put the URL into the configuration file";
        warn_of_password("--store", url, instead);
    }
    let args = command.args.clone().over(file);
    let line = Line::alone(command.common.json);
    let file = command.common.config.as_deref();
    let process = Process::open("server", args.status.as_deref(), line, file)?;
    let flags = command.args.clone();
    let again = reload::alone(move |file| flags.clone().over(file));
    run(args, again, &process.alone()?)
}

/// Serves until `part` is asked to end.
pub fn run(args: ServerArgs, again: Again<ServerArgs>, part: &Part<'_>) -> anyhow::Result<bool> {
    part.on_new_settings(&args, again, |new| {
        check(new).map(|()| -> Commit { Box::new(|| ()) })
    });
    let files = password_files(&args);
    let Settings {
        serve: mut config,
        store: store_at,
        keys,
        fleet,
        by_hand,
        device_log,
    } = settings(args)?;
    files.keep_fresh(store_at.passwords.clone(), part);
    let (listen, shard) = (config.listen, store_at.shard);
    if is_only_here(&store_at.url) && !listen.ip().is_loopback() {
        tracing::info!(
            "PM2019 --store: only this machine reaches this address, and the server tells it to fronts. Give fronts on other machines --direct with an \
             address of the store that they reach, or give --store such an address"
        );
    }
    let standby = fleet.as_ref().is_some_and(|config| config.standby);
    let fleet = fleet.map(|config| ServerAgentConfig {
        status: part.status_record(listen.ip()),
        ..config
    });
    if let Some(keys) = &keys {
        keys.read_again_on_hangup();
    }
    let stop = part.stop()?;
    let board = Arc::new(ServerBoard::new(shard));
    config.pulse = Arc::clone(&board.pulse);
    part.show(board.clone());
    let door = config.words.clone().filter(|_| by_hand).map(|words| {
        let keys = keys.as_ref().map(|keys| keys.keys.clone());
        ServerDoor::open(listen, shard, words, keys).inspect_err(|error| {
            tracing::warn!("PM2606 `pmnet ctl` cannot reach this server: TCP {listen}: {error}");
        })
    });
    // The drop of this value closes the door.
    let _door = door.and_then(Result::ok);
    let mut candidate = fleet.clone().map(Candidate::new);
    loop {
        let mut present = candidate.transpose().context("no random numbers")?;
        if standby
            && let Some(candidate) = &mut present
            && !turn_comes(candidate, &stop)?
        {
            return Ok(true);
        }
        // When a server begins to serve, it has no valid state, so it opens the store and makes its machine anew.
        let store = store_at.open()?;
        let feed = device_log
            .as_ref()
            .map(|name| -> Box<dyn Feed> { Box::new(DeviceLog(LogReader::new(name))) });
        let agent = present
            .zip(config.words.clone())
            .map(|(candidate, words)| candidate.start(words))
            .transpose();
        let agent = agent.context("cannot start the thread that talks to etcd")?;
        let mut writer = ServerWriter::default();
        let observe = |node: &ServerNode<_>, turn: &Turn| {
            if part.is_shown() {
                writer.turn(&board, node, turn);
            }
        };
        let served = serve(
            config.clone(),
            store,
            feed,
            &stop,
            observe,
            |address, durability| {
                part.announce(
                    "server",
                    &[
                        ("listen", json!(address.to_string())),
                        ("shard", json!(shard)),
                        ("store", json!(durability)),
                    ],
                );
            },
        );
        board.ended();
        let ended = match served {
            // Another server had taken over, and this server tried to write before its agent noticed the takeover.
            Err(DriverError::Stopped(Stopped(why))) if standby && why.starts_with(TAKEN_OVER) => {
                Ended::TurnIsOver
            }
            Err(error) => {
                unless_asked_to_stop(error.into())?;
                Ended::Asked
            }
            Ok(ended) => ended,
        };
        drop(agent);
        if ended == Ended::Asked {
            return Ok(true);
        }
        tracing::warn!(
            "PM2703 the turn of this server is over: it reads everything anew when it gets the next one"
        );
        config.words = config.words.map(|_| Arc::default());
        candidate = fleet.clone().map(Candidate::again);
    }
}

#[cfg(test)]
mod tests {
    use super::{ServerArgs, is_only_here};

    #[test]
    fn a_store_of_this_machine_is_only_here() {
        for url in [
            "redis://127.0.0.1:6379",
            "rediss://u:p@localhost",
            "redis://[::1]",
        ] {
            assert!(is_only_here(url), "{url}");
        }
        for url in [
            "redis://10.0.0.1",
            "redis://store:6379",
            "packet:/127.0.0.1",
            "null:",
        ] {
            assert!(!is_only_here(url), "{url}");
        }
    }

    /// Every key of the section. No value is the default.
    const ALL: &str = r#"
        listen = "127.0.0.1:51500"
        store = "null:"
        store-password-file = "/a"
        store-sync = "updates"
        key = "/k"
        insecure = true
        shard = 1
        device-log = "b"
        fleet = "c"
        etcd = "d"
        status = "e"
        no-ctl = true
        lease-seconds = 2
        standby = true
        mtu = 3
        spin-us = 4
    "#;

    #[test]
    fn flags_win_over_the_file_key_by_key() {
        let all: ServerArgs = toml::from_str(ALL).unwrap();
        let shown = |args: &ServerArgs| format!("{args:#?}");
        let nothing = shown(&ServerArgs::default());
        for (own, default) in shown(&all).lines().zip(nothing.lines()).skip(1) {
            assert!(own == "}" || own != default, "not set: {own}");
        }
        let both_ways = [
            all.clone().over(ServerArgs::default()),
            ServerArgs::default().over(all.clone()),
        ];
        assert_eq!(
            both_ways.map(|args| shown(&args)),
            [(); 2].map(|()| shown(&all))
        );
        let other = ServerArgs {
            spin_us: Some(99),
            ..ServerArgs::default()
        };
        assert_eq!(other.over(all).spin_us, Some(99));
    }
}
