//! Settings of `pmnet redis`: its flags, and the section `[redis]` of the configuration file.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::cli::config::{FileConfig, Sections};
use crate::cli::reload::Section;

use crate::cli::common::STATUS_HELP;
use crate::cli::etcd::{
    ETCD_CA_HELP, ETCD_CERT_HELP, ETCD_HELP, ETCD_KEY_HELP, ETCD_PASSWORD_HELP, ETCD_USER_HELP,
    EtcdArgs, etcd_args,
};

use super::super::access::{Hidden, Said};
use super::super::keys::{KeyArgs, key_args};
use super::super::tls::{TlsClients, TlsFiles};

/// Settings of `pmnet redis`; section `[redis]` of the configuration file.
#[derive(Clone, Debug, Default, Args, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RedisArgs {
    /// TCP address for Redis clients.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) listen: Option<String>,
    /// UDP address of the head device, or the addresses of all devices of the chain, separated by commas. With all
    /// addresses, the front finds the new head when the chain changes. If an address is a name, the front waits until
    /// the name has an address, and looks it up again later.
    #[arg(long, value_name = "HOST:PORT[,HOST:PORT…]")]
    pub(super) via: Option<String>,
    /// Name of the RDMA device from which to send by RDMA. The head must run with --mode verbs.
    #[arg(long, value_name = "NAME", conflicts_with = "shards")]
    pub(super) rdma: Option<String>,
    /// Instead of --via: name of the fleet. The front finds the fleet's devices in etcd, and follows their changes.
    #[arg(long, value_name = "NAME", conflicts_with = "via")]
    pub(super) fleet: Option<String>,
    /// URLs of etcd's members; only with --fleet.
    #[arg(long, value_name = "URL,…", help = ETCD_HELP)]
    pub(super) etcd: Option<String>,
    /// File with the certificates of the authorities that sign etcd's certificates.
    #[arg(long, value_name = "FILE", help = ETCD_CA_HELP)]
    pub(super) etcd_ca: Option<PathBuf>,
    /// File with the certificate that this process shows to etcd.
    #[arg(long, value_name = "FILE", help = ETCD_CERT_HELP)]
    pub(super) etcd_cert: Option<PathBuf>,
    /// File with the private key of `etcd_cert`.
    #[arg(long, value_name = "FILE", help = ETCD_KEY_HELP)]
    pub(super) etcd_key: Option<PathBuf>,
    /// Name of the user as which this process logs in at etcd.
    #[arg(long, value_name = "NAME", help = ETCD_USER_HELP)]
    pub(super) etcd_user: Option<String>,
    /// File with the password of `etcd_user`.
    #[arg(long, value_name = "FILE", help = ETCD_PASSWORD_HELP)]
    pub(super) etcd_password_file: Option<PathBuf>,
    /// File of this front's key (pmnet key front). The process reads it again on SIGHUP.
    #[arg(long, value_name = "FILE")]
    pub(super) key: Option<PathBuf>,
    /// Run without a key although other machines can reach this process. You state that you trust every host that can
    /// send packets to it.
    #[arg(long, conflicts_with = "key")]
    pub(super) insecure: bool,
    /// Instead of --via: TOML file with the addresses of many shards (see below).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["via", "fleet", "shard", "direct", "direct_password_file"])]
    pub(super) shards: Option<PathBuf>,
    /// Number of the shard [default: 0].
    #[arg(long)]
    pub(super) shard: Option<u32>,
    /// Smallest number of devices that must hold a write for its acknowledgement to count [default: 1].
    #[arg(long, value_name = "R")]
    pub(super) copies: Option<u8>,
    /// Further commands to acknowledge early, separated by commas (see below).
    #[arg(long, value_name = "COMMANDS", value_delimiter = ',')]
    pub(super) assume_ok: Option<Vec<String>>,
    /// Address of the database for commands that need a separate connection: blocking commands, pub/sub, WATCH
    /// [default: the address that the server gives].
    #[arg(long, value_name = "HOST:PORT")]
    pub(in crate::cli) direct: Option<String>,
    /// File whose first line is the password for --direct.
    #[arg(long, value_name = "FILE")]
    pub(super) direct_password_file: Option<PathBuf>,
    /// Clients log in as users of Redis, with their passwords and rights in Redis [default, if only this machine can
    /// connect].
    #[arg(long)]
    pub(super) users_of_redis: bool,
    /// Clients log in with the password in the first line of this file. They may then do everything.
    #[arg(long, value_name = "FILE")]
    pub(super) requirepass_file: Option<PathBuf>,
    /// The password itself, which only the configuration file can have.
    #[arg(skip)]
    pub(super) requirepass: Option<Hidden>,
    /// Every client that can connect may do everything, without a user or a password.
    #[arg(long)]
    pub(super) anyone_may_connect: bool,
    /// Use TLS with clients. The PEM file has the front's certificate, and then the certificates up to its authority.
    #[arg(long, value_name = "FILE")]
    pub(super) tls_cert: Option<PathBuf>,
    /// Key of --tls-cert (PEM).
    #[arg(long, value_name = "FILE")]
    pub(super) tls_key: Option<PathBuf>,
    /// Certificates (PEM) of the authorities that issue the clients' certificates.
    #[arg(long, value_name = "FILE")]
    pub(super) tls_ca: Option<PathBuf>,
    /// Whether clients must show a certificate [default: required with --tls-ca, otherwise no].
    #[arg(long, value_enum)]
    pub(super) tls_clients: Option<TlsClients>,
    /// Longest packet to send to the devices, with its IP header, even if routes and interfaces allow longer ones
    /// [default: the longest that they allow].
    #[arg(long, value_name = "BYTES")]
    pub(super) mtu: Option<u32>,
    /// Microseconds to poll after activity before sleeping. While other programs want the process's core, it sleeps at
    /// once.
    #[arg(long, value_name = "US")]
    pub(super) spin_us: Option<u64>,
    /// Milliseconds after which a command without an outcome gets the error that its outcome is unknown.
    #[arg(long, value_name = "MS")]
    pub(super) deadline_ms: Option<u64>,
    /// Largest number of clients at a time; less if the limit of open files is too low [default: 10000].
    #[arg(long, value_name = "N")]
    pub(super) connections_max: Option<usize>,
    /// Address of the status port.
    #[arg(long, value_name = "HOST:PORT", help = STATUS_HELP)]
    pub(in crate::cli) status: Option<String>,
    /// Seconds of silence after which the operating system checks whether a client still exists; 0: never [default:
    /// 300].
    #[arg(long, value_name = "SECONDS")]
    pub(super) tcp_keepalive: Option<u64>,
    /// The part that answers commands which only read [default: pending].
    #[arg(long, value_enum)]
    pub(super) cache: Option<CacheArg>,
    /// Databases that may answer the reads which the head does not answer [default: master].
    #[arg(long, value_enum)]
    pub(super) read_from: Option<ReadFromArg>,
    /// Largest size of the replies that a client leaves unread. Beyond this size the client's commands wait, and a
    /// client that reads nothing for a second is closed [default: 1G].
    #[arg(long, value_name = "SIZE")]
    pub(super) unread_max: Option<String>,
    /// Largest size of the unread replies of all clients together. Beyond it, the client with the most unread replies
    /// is closed [default: 2G].
    #[arg(long, value_name = "SIZE")]
    pub(super) unread_total_max: Option<String>,
}

impl Section for RedisArgs {
    const NAME: &'static str = "redis";

    fn all_of(file: FileConfig) -> Sections<RedisArgs> {
        file.redis
    }

    fn fixed(self) -> RedisArgs {
        RedisArgs {
            deadline_ms: None,
            connections_max: None,
            tcp_keepalive: None,
            unread_max: None,
            unread_total_max: None,
            ..self
        }
    }
}

impl RedisArgs {
    /// Returns the settings for connections to etcd.
    pub(in crate::cli) fn etcd(&self) -> EtcdArgs {
        etcd_args!(self)
    }

    pub(super) fn who_may_connect(&self) -> Said {
        Said {
            users_of_redis: self.users_of_redis,
            anyone_may_connect: self.anyone_may_connect,
            requirepass: self.requirepass.clone(),
            requirepass_file: self.requirepass_file.clone(),
        }
    }

    /// Merges these settings with `below`: a setting that these do not give comes from `below`. If settings exclude
    /// each other, all of them come from these settings, or all of them come from `below`.
    pub(super) fn over(self, below: RedisArgs) -> RedisArgs {
        let said = [self.who_may_connect(), below.who_may_connect()];
        let said = said.into_iter().find(Said::is_something);
        let said = said.unwrap_or_default();
        let own_etcd = self.etcd();
        let etcd = own_etcd.clone().over(below.etcd());
        let KeyArgs { key, insecure } = key_args!(self).over(key_args!(below));
        let (via, fleet, etcd, shards) = match (self.via, self.fleet, self.shards) {
            (None, None, None) => (below.via, below.fleet, etcd, below.shards),
            (None, fleet, shards) => (None, fleet, etcd, shards),
            (via, fleet, shards) => (via, fleet, own_etcd, shards),
        };
        let EtcdArgs {
            etcd,
            etcd_ca,
            etcd_cert,
            etcd_key,
            etcd_user,
            etcd_password_file,
        } = etcd;
        RedisArgs {
            listen: self.listen.or(below.listen),
            via,
            fleet,
            etcd,
            etcd_ca,
            etcd_cert,
            etcd_key,
            etcd_user,
            etcd_password_file,
            shards,
            shard: self.shard.or(below.shard),
            copies: self.copies.or(below.copies),
            assume_ok: self.assume_ok.or(below.assume_ok),
            direct: self.direct.or(below.direct),
            direct_password_file: self.direct_password_file.or(below.direct_password_file),
            users_of_redis: said.users_of_redis,
            requirepass_file: said.requirepass_file,
            requirepass: said.requirepass,
            anyone_may_connect: said.anyone_may_connect,
            tls_cert: self.tls_cert.or(below.tls_cert),
            tls_key: self.tls_key.or(below.tls_key),
            tls_ca: self.tls_ca.or(below.tls_ca),
            tls_clients: self.tls_clients.or(below.tls_clients),
            rdma: self.rdma.or(below.rdma),
            mtu: self.mtu.or(below.mtu),
            key,
            insecure,
            spin_us: self.spin_us.or(below.spin_us),
            deadline_ms: self.deadline_ms.or(below.deadline_ms),
            connections_max: self.connections_max.or(below.connections_max),
            tcp_keepalive: self.tcp_keepalive.or(below.tcp_keepalive),
            status: self.status.or(below.status),
            cache: self.cache.or(below.cache),
            read_from: self.read_from.or(below.read_from),
            unread_max: self.unread_max.or(below.unread_max),
            unread_total_max: self.unread_total_max.or(below.unread_total_max),
        }
    }

    /// Returns the files and options of TLS with clients.
    pub(super) fn tls_files(&self) -> TlsFiles {
        TlsFiles {
            certificate: self.tls_cert.clone(),
            key: self.tls_key.clone(),
            ca: self.tls_ca.clone(),
            clients: self.tls_clients,
        }
    }

    /// Returns these settings without those that belong to a single shard.
    pub(super) fn of_all_shards(self) -> RedisArgs {
        RedisArgs {
            via: None,
            fleet: None,
            shards: None,
            shard: None,
            direct: None,
            direct_password_file: None,
            ..self
        }
    }
}

/// Values of `--read-from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ReadFromArg {
    /// Only the database to which the server applies updates.
    Master,
    /// Also the replicas of this database. The head's answer states which updates the read must see, and a replica
    /// answers only if it has them. A write by another program, which bypasses pmnet, may become visible on a replica
    /// later than on the master.
    Any,
}

/// Values of `--cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CacheArg {
    /// The head device answers from its log if the database may lack the newest write of the key. Otherwise the front
    /// reads the database directly, once it has every update that the read must see.
    Pending,
    /// As pending, but the head device also answers with writes that the database already has, while its log keeps
    /// them. Use it only if every program writes to the database through pmnet, because writes of other programs may
    /// not be seen.
    Log,
    /// The database, after it has applied everything that was acknowledged before. Only a GET right after a SET of its
    /// key, in the same pipeline, is answered by the front, with the value of the SET.
    Off,
}
