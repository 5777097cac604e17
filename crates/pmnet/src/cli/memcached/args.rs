//! Settings on the command line of `pmnet memcached`, and in the section `[memcached]` of the configuration file.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::cli::config::{FileConfig, Sections};
use crate::cli::reload::Section;

use crate::cli::common::STATUS_HELP;
use crate::cli::etcd::{
    ETCD_CA_HELP, ETCD_CERT_HELP, ETCD_HELP, ETCD_KEY_HELP, ETCD_PASSWORD_HELP, ETCD_USER_HELP,
    EtcdArgs, etcd_args,
};
use crate::cli::keys::{KeyArgs, key_args};

/// Settings of `pmnet memcached`; section `[memcached]` of the configuration file.
#[derive(Clone, Debug, Default, Args, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MemcachedArgs {
    /// TCP address for memcached clients.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) listen: Option<String>,
    /// UDP address for memcached clients [default: none].
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) udp: Option<String>,
    /// UDP address of the head device, or the addresses of all devices of the chain, separated by commas. With all
    /// addresses, the front finds the new head when the chain changes. If an address is a name, the front waits until
    /// the name has an address, and looks it up again later.
    #[arg(long, value_name = "HOST:PORT[,HOST:PORT…]")]
    pub(super) via: Option<String>,
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
    /// Number of the shard [default: 0].
    #[arg(long)]
    pub(super) shard: Option<u32>,
    /// Smallest number of devices that must hold a write for its acknowledgement to count [default: 1].
    #[arg(long, value_name = "R")]
    pub(super) copies: Option<u8>,
    /// Number of the store's database that holds the items. flush_all empties this database [default: 0].
    #[arg(long, value_name = "N")]
    pub(super) database: Option<u32>,
    /// Size of the largest item with its key, as -I of memcached counts it [default: 1M].
    #[arg(long, value_name = "SIZE")]
    pub(super) item_size_max: Option<String>,
    /// Every client that can connect may do everything, because there are no users and no passwords.
    #[arg(long)]
    pub(super) anyone_may_connect: bool,
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
    /// Largest number of clients at a time; less if the limit of open files is too low [default: 1024].
    #[arg(long, value_name = "N")]
    pub(super) connections_max: Option<usize>,
    /// Address of the status port.
    #[arg(long, value_name = "HOST:PORT", help = STATUS_HELP)]
    pub(in crate::cli) status: Option<String>,
    /// Seconds of silence after which the operating system checks whether a client still exists; 0: never [default:
    /// 300].
    #[arg(long, value_name = "SECONDS")]
    pub(super) tcp_keepalive: Option<u64>,
}

impl Section for MemcachedArgs {
    const NAME: &'static str = "memcached";

    fn all_of(file: FileConfig) -> Sections<MemcachedArgs> {
        file.memcached
    }

    fn fixed(self) -> MemcachedArgs {
        MemcachedArgs {
            deadline_ms: None,
            connections_max: None,
            tcp_keepalive: None,
            ..self
        }
    }
}

impl MemcachedArgs {
    /// Returns the settings for connections to etcd.
    pub(in crate::cli) fn etcd(&self) -> EtcdArgs {
        etcd_args!(self)
    }

    /// Merges these settings with `below`: a setting that these do not give comes from `below`. If settings exclude
    /// each other, all of them come from these settings, or all of them come from `below`.
    pub(super) fn over(self, below: MemcachedArgs) -> MemcachedArgs {
        let KeyArgs { key, insecure } = key_args!(self).over(key_args!(below));
        let (via, fleet) = match (self.via, self.fleet) {
            (None, None) => (below.via, below.fleet),
            said => said,
        };
        MemcachedArgs {
            listen: self.listen.or(below.listen),
            key,
            insecure,
            udp: self.udp.or(below.udp),
            via,
            fleet,
            etcd: self.etcd.or(below.etcd),
            etcd_ca: self.etcd_ca.or(below.etcd_ca),
            etcd_cert: self.etcd_cert.or(below.etcd_cert),
            etcd_key: self.etcd_key.or(below.etcd_key),
            etcd_user: self.etcd_user.or(below.etcd_user),
            etcd_password_file: self.etcd_password_file.or(below.etcd_password_file),
            shard: self.shard.or(below.shard),
            copies: self.copies.or(below.copies),
            database: self.database.or(below.database),
            item_size_max: self.item_size_max.or(below.item_size_max),
            anyone_may_connect: self.anyone_may_connect || below.anyone_may_connect,
            mtu: self.mtu.or(below.mtu),
            spin_us: self.spin_us.or(below.spin_us),
            deadline_ms: self.deadline_ms.or(below.deadline_ms),
            connections_max: self.connections_max.or(below.connections_max),
            tcp_keepalive: self.tcp_keepalive.or(below.tcp_keepalive),
            status: self.status.or(below.status),
        }
    }
}
