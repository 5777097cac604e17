//! Settings of a device: flags, and the same keys in the configuration file.

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
use crate::cli::keys::{KeyArgs, key_args};

/// The part that logs and acknowledges updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// This process, on its UDP socket. Needs no privilege; works with any medium.
    Relay,
    /// This process, without the kernel's network stack. Packets are received into buffers of the log.
    AfXdp,
    /// An RDMA NIC, which puts messages into slots and acknowledges them by itself (--rdma, --slots).
    Verbs,
    /// The kernel, on the server's own network interface.
    Nic,
    /// The kernel, in a switch (a Linux bridge) between clients and server. Clients send to the server's address.
    Switch,
    /// The kernel, on a separate machine between clients and server. Clients send to this machine's address.
    Router,
}

/// How a driver moves packets into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ZeroCopy {
    /// Without a copy if the driver can, otherwise with one. The ready line says which.
    Auto,
    /// Without a copy. If the driver cannot do this, the device does not start.
    Always,
    /// With a copy by the kernel. Works with every driver that supports XDP.
    Never,
}

/// Where a log lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MediaArg {
    /// An ordinary file, with O_DIRECT and O_DSYNC. Acknowledged writes survive a power cut.
    File,
    /// A mapped file on tmpfs or hugetlbfs. Acknowledged writes survive a crash of the process, not of the machine.
    Dram,
    /// Persistent memory: a devdax device, or a file on fsdax, flushed by the processor. Acknowledged writes survive a
    /// power cut.
    Pmem,
}

/// Settings of `pmnet device`; section `[device]` of the configuration file.
#[derive(Clone, Debug, Default, Args, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DeviceArgs {
    /// UDP address to listen on.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// UDP address of the next device, or of the server. If it is a name, the device waits until the name has an
    /// address, and looks it up again later.
    #[arg(long, value_name = "HOST:PORT")]
    pub next: Option<String>,
    /// Make this device also the server of its shard. It must be the last device of its chain. Its log and its data are
    /// in this region, packet:PATH[?size=BYTES][&media=file|dram|pmem], in place of --next, --log and --media.
    #[arg(long, value_name = "URL", conflicts_with_all = ["next", "log", "media", "entries", "join", "declare_data_loss", "server_reads_log", "fleet"])]
    pub store: Option<String>,
    /// File of the log, or a devdax device (/dev/daxX.Y).
    #[arg(long, value_name = "PATH")]
    pub log: Option<PathBuf>,
    /// Kind of medium that holds the log.
    #[arg(long, value_enum)]
    pub media: Option<MediaArg>,
    /// Id of this device, a number that is unique in its shard and not 0 [default: the listen port]. Give it if devices
    /// on several machines use the same port.
    #[arg(long)]
    pub id: Option<u32>,
    /// Number of the shard [default: 0].
    #[arg(long)]
    pub shard: Option<u32>,
    /// Number of shards that this process serves, each with its own thread [default: 1]. Shard S + i listens on the
    /// port of --listen + i, sends to the port of --next + i, and has its log in PATH.S+i. With --mode af-xdp each
    /// interface must have at least as many queues as there are shards.
    #[arg(long, value_name = "N")]
    pub shards: Option<u16>,
    /// Size of the frames of a new log, such as 64M; the number of entries is computed from it [default: 64M, or less
    /// if there is not enough space]. With --store: size of the part of the region that is reserved for the log.
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["entries", "frame_bytes"])]
    pub log_size: Option<String>,
    /// Number of entries of the log, a power of two.
    #[arg(long, requires = "frame_bytes", value_name = "N")]
    pub entries: Option<u64>,
    /// Size of the log's frames in bytes, a multiple of 4096.
    #[arg(long, requires = "entries", value_name = "N")]
    pub frame_bytes: Option<u64>,
    /// The part that logs and acknowledges updates: this process, the kernel, or an RDMA NIC.
    #[arg(long, value_enum)]
    pub mode: Option<Mode>,
    /// With --mode verbs: name of the RDMA device, as `rdma link` shows it.
    #[arg(long, value_name = "NAME")]
    pub rdma: Option<String>,
    /// With --mode verbs: file of the slots, on tmpfs or hugetlbfs, or a devdax device.
    #[arg(long, value_name = "PATH")]
    pub slots: Option<PathBuf>,
    /// With --mode verbs: number of slots to make, a power of two [default: 1024]. A slot has 2048 bytes.
    #[arg(long, value_name = "N")]
    pub slot_count: Option<u32>,
    /// With --mode verbs: make new slots for a log that was used before. You state that no old slots of this log hold
    /// acknowledged writes that are not in the log yet; such writes would be lost.
    #[arg(long)]
    pub new_slots: bool,
    /// With --mode verbs and slots in persistent memory: you state that the NIC writes past the processor's caches
    /// (DDIO is off for its port). Only then do acknowledged writes survive a power cut.
    #[arg(long)]
    pub ddio_off: bool,
    /// In a kernel mode and with --mode af-xdp: network interfaces that receive the packets.
    #[arg(long, value_name = "IF", value_delimiter = ',', alias = "ports")]
    pub dev: Option<Vec<String>>,
    /// With --mode switch: this machine's own address in the bridge. Its UDP port is the port of --listen.
    #[arg(long, value_name = "IPV4")]
    pub address: Option<std::net::Ipv4Addr>,
    /// In a kernel mode: name of the device in the BPF file system [default: IF-PORT].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// In a kernel mode: save the log to this file at the end (SIGTERM, SIGINT, SIGPWR, --detach), and load it at the
    /// start. Without --spill, the kernel continues to log when this process ends.
    #[arg(long, value_name = "FILE")]
    pub spill: Option<PathBuf>,
    /// Send no updates to the server, because it reads the log by itself (its --device-log). Not with --key.
    #[arg(long)]
    pub server_reads_log: bool,
    /// With --mode af-xdp: how the driver moves packets [default: auto].
    #[arg(long, value_enum)]
    pub zero_copy: Option<ZeroCopy>,
    /// With --mode af-xdp: poll the drivers for packets instead of using interrupts. A call that may wait polls for up
    /// to US microseconds (20 if no number is given).
    #[arg(long, value_name = "US", num_args = 0..=1, default_missing_value = "20")]
    pub busy_poll: Option<u32>,
    /// Attach the XDP program in the kernel's generic mode. It is slow; use it for interfaces whose driver does not
    /// support XDP.
    #[arg(long)]
    pub xdp_generic: bool,
    /// Remove the device from the kernel. Its interfaces are then as they were before.
    #[arg(long)]
    pub detach: bool,
    /// With --detach: drop acknowledged writes that the server has not applied yet.
    #[arg(long, requires = "detach")]
    pub discard: bool,
    /// Longest packet to send, with its IP header, even if routes and interfaces allow longer ones [default: the
    /// longest that they allow].
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u32>,
    /// Microseconds to poll after activity before sleeping. While other programs want the process's core, it sleeps at
    /// once [default: 50].
    #[arg(long, value_name = "US")]
    pub spin_us: Option<u64>,
    /// Answer only while this device has a lease in etcd, as a member of this fleet (see below).
    #[arg(long, value_name = "NAME")]
    pub fleet: Option<String>,
    /// URLs of etcd's members; only with --fleet.
    #[arg(long, value_name = "URL,…", help = ETCD_HELP)]
    pub etcd: Option<String>,
    /// File with the certificates of the authorities that sign etcd's certificates.
    #[arg(long, value_name = "FILE", help = ETCD_CA_HELP)]
    pub etcd_ca: Option<PathBuf>,
    /// File with the certificate that this process shows to etcd.
    #[arg(long, value_name = "FILE", help = ETCD_CERT_HELP)]
    pub etcd_cert: Option<PathBuf>,
    /// File with the private key of `etcd_cert`.
    #[arg(long, value_name = "FILE", help = ETCD_KEY_HELP)]
    pub etcd_key: Option<PathBuf>,
    /// Name of the user as which this process logs in at etcd.
    #[arg(long, value_name = "NAME", help = ETCD_USER_HELP)]
    pub etcd_user: Option<String>,
    /// File with the password of `etcd_user`.
    #[arg(long, value_name = "FILE", help = ETCD_PASSWORD_HELP)]
    pub etcd_password_file: Option<PathBuf>,
    /// With --fleet: length of a lease in seconds, 2 to 60 [default: 3].
    #[arg(long, value_name = "N")]
    pub lease_seconds: Option<u64>,
    /// Address of the status port.
    #[arg(long, value_name = "HOST:PORT", help = STATUS_HELP)]
    pub status: Option<String>,
    /// With --status: number of copies that the chain must have for the device to be ready [default: 1].
    #[arg(long, value_name = "R")]
    pub copies: Option<u8>,
    /// File of the cluster's key (pmnet key new), the same for all devices and servers. The process reads it again on
    /// SIGHUP.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Run without a key although other machines can reach this process. You state that you trust every host that can
    /// send packets to it.
    #[arg(long, conflicts_with = "key")]
    pub insecure: bool,
    /// With --key: id of the next hop, 0 for the server [default: 0]. In a fleet, and after `pmnet ctl`, the chain's
    /// record gives this id.
    #[arg(long, value_name = "N")]
    pub next_id: Option<u32>,
    /// Accept no commands of `pmnet ctl`. Otherwise a device outside a fleet accepts them by TCP, at the address of
    /// --listen.
    #[arg(long)]
    pub no_ctl: bool,
    /// Join a chain that holds data, as its last device. A used log is erased first (see below).
    #[arg(long, conflicts_with = "declare_data_loss")]
    pub join: bool,
    /// State that the missing devices of a longer chain are stopped permanently (see below).
    #[arg(long)]
    pub shrink_chain: bool,
    /// State that the last device that held acknowledged writes is lost, and accept the loss of those writes (see
    /// below).
    #[arg(long)]
    pub declare_data_loss: bool,
}

impl Section for DeviceArgs {
    const NAME: &'static str = "device";

    fn all_of(file: FileConfig) -> Sections<DeviceArgs> {
        file.device
    }

    fn fixed(self) -> DeviceArgs {
        DeviceArgs {
            copies: None,
            ..self
        }
    }
}

impl DeviceArgs {
    /// Returns the settings for connections to etcd.
    pub(in crate::cli) fn etcd(&self) -> EtcdArgs {
        etcd_args!(self)
    }

    /// Merges these flags with the configuration file: a setting that the flags do not give comes from the file. The
    /// settings of the log's size come all from the flags, or all from the file. `--detach` counts only on the command
    /// line.
    pub(super) fn over(self, file: DeviceArgs) -> DeviceArgs {
        let KeyArgs { key, insecure } = key_args!(self).over(key_args!(file));
        let says_size =
            self.log_size.is_some() || self.entries.is_some() || self.frame_bytes.is_some();
        let (log_size, entries, frame_bytes) = if says_size {
            (self.log_size, self.entries, self.frame_bytes)
        } else {
            (file.log_size, file.entries, file.frame_bytes)
        };
        DeviceArgs {
            listen: self.listen.or(file.listen),
            key,
            insecure,
            next_id: self.next_id.or(file.next_id),
            next: self.next.or(file.next),
            store: self.store.or(file.store),
            log: self.log.or(file.log),
            media: self.media.or(file.media),
            id: self.id.or(file.id),
            shard: self.shard.or(file.shard),
            shards: self.shards.or(file.shards),
            log_size,
            entries,
            frame_bytes,
            mode: self.mode.or(file.mode),
            rdma: self.rdma.or(file.rdma),
            slots: self.slots.or(file.slots),
            slot_count: self.slot_count.or(file.slot_count),
            new_slots: self.new_slots,
            ddio_off: self.ddio_off || file.ddio_off,
            dev: self.dev.or(file.dev),
            address: self.address.or(file.address),
            name: self.name.or(file.name),
            spill: self.spill.or(file.spill),
            server_reads_log: self.server_reads_log || file.server_reads_log,
            zero_copy: self.zero_copy.or(file.zero_copy),
            busy_poll: self.busy_poll.or(file.busy_poll),
            xdp_generic: self.xdp_generic || file.xdp_generic,
            detach: self.detach,
            discard: self.discard,
            mtu: self.mtu.or(file.mtu),
            spin_us: self.spin_us.or(file.spin_us),
            fleet: self.fleet.or(file.fleet),
            etcd: self.etcd.or(file.etcd),
            etcd_ca: self.etcd_ca.or(file.etcd_ca),
            etcd_cert: self.etcd_cert.or(file.etcd_cert),
            etcd_key: self.etcd_key.or(file.etcd_key),
            etcd_user: self.etcd_user.or(file.etcd_user),
            etcd_password_file: self.etcd_password_file.or(file.etcd_password_file),
            lease_seconds: self.lease_seconds.or(file.lease_seconds),
            status: self.status.or(file.status),
            copies: self.copies.or(file.copies),
            no_ctl: self.no_ctl || file.no_ctl,
            join: self.join || file.join,
            shrink_chain: self.shrink_chain || file.shrink_chain,
            declare_data_loss: self.declare_data_loss || file.declare_data_loss,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceArgs;

    /// Every key of the section. No value is the default.
    const ALL: &str = r#"
        listen = "127.0.0.1:51000"
        next = "127.0.0.1:51500"
        store = "packet:/a"
        log = "/b"
        media = "dram"
        id = 1
        key = "/k"
        insecure = true
        next-id = 15
        shard = 2
        shards = 3
        log-size = "4M"
        entries = 5
        frame-bytes = 6
        mode = "switch"
        rdma = "h"
        slots = "/i"
        slot-count = 12
        ddio-off = true
        dev = ["c"]
        address = "10.0.0.7"
        name = "d"
        spill = "/e"
        server-reads-log = true
        zero-copy = "never"
        busy-poll = 8
        xdp-generic = true
        detach = true
        discard = true
        mtu = 9
        spin-us = 10
        fleet = "f"
        etcd = "g"
        etcd-ca = "/k"
        etcd-cert = "/l"
        etcd-key = "/m"
        etcd-user = "n"
        etcd-password-file = "/o"
        lease-seconds = 11
        status = "j"
        copies = 13
        no-ctl = true
        join = true
        shrink-chain = true
        declare-data-loss = true
    "#;

    fn shown(args: &DeviceArgs) -> String {
        format!("{args:#?}")
    }

    #[test]
    fn flags_win_over_the_file_key_by_key_and_detach_is_for_flags_only() {
        let all: DeviceArgs = toml::from_str(ALL).unwrap();
        let nothing = shown(&DeviceArgs::default());
        for (own, default) in shown(&all).lines().zip(nothing.lines()).skip(1) {
            assert!(own == ")" || own != default || own == "}", "not set: {own}");
        }
        assert_eq!(shown(&all.clone().over(DeviceArgs::default())), shown(&all));
        let from_file = DeviceArgs::default().over(all.clone());
        let but_detach = DeviceArgs {
            detach: false,
            discard: false,
            ..all
        };
        assert_eq!(shown(&from_file), shown(&but_detach));
        let other = DeviceArgs {
            spin_us: Some(99),
            ..DeviceArgs::default()
        };
        assert_eq!(other.over(but_detach).spin_us, Some(99));
    }

    /// Regression test: `entries` in the file counted, although the command line had `--log-size`.
    #[test]
    fn a_size_on_the_command_line_wins_over_one_in_the_file_that_is_said_otherwise() {
        let file: DeviceArgs = toml::from_str("entries = 1024\nframe-bytes = 4096").unwrap();
        let flags = DeviceArgs {
            log_size: Some("1M".into()),
            ..DeviceArgs::default()
        };
        let both = flags.over(file.clone());
        assert_eq!((both.entries, both.frame_bytes), (None, None));
        assert_eq!(both.log_size.as_deref(), Some("1M"));
        let flags = DeviceArgs {
            entries: Some(2048),
            frame_bytes: Some(8192),
            ..DeviceArgs::default()
        };
        let both = flags.over(toml::from_str("log-size = \"1M\"").unwrap());
        assert_eq!((both.log_size, both.entries), (None, Some(2048)));
    }
}
