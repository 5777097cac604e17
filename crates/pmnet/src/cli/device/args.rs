//! What can be said about a device: flags, and the same keys in the configuration file.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Deserialize;

/// Where updates are logged and acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// By this process, on its UDP socket: no privilege, any medium.
    Relay,
    /// By this process, past the kernel's network stack: packets are received into the buffers that are the log.
    AfXdp,
    /// By the kernel, on the server's own network interface.
    Nic,
    /// By the kernel, in a switch (a Linux bridge) between clients and server: clients send to the server.
    Switch,
    /// By the kernel, on a machine of its own between clients and server, to which clients send.
    Router,
}

/// How a driver moves packets into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ZeroCopy {
    /// Without a copy if the driver can, else with one; which of them is said at the start.
    Auto,
    /// Without a copy, or not at all.
    Always,
    /// The kernel copies: works with every driver that has XDP.
    Never,
}

/// Where a log lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MediaArg {
    /// An ordinary file, O_DIRECT and O_DSYNC: an acknowledgement survives a power cut.
    File,
    /// A mapped file on tmpfs or hugetlbfs: it survives the death of the process only.
    Dram,
    /// Persistent memory, a devdax device or a file on fsdax, flushed by the processor: it survives a power cut.
    Pmem,
}

/// Settings of `pmnet device`; section `[device]` of the configuration file.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DeviceArgs {
    /// UDP address to listen on.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// UDP address of the next device, or of the server. A name is waited for, and looked up again.
    #[arg(long, value_name = "HOST:PORT")]
    pub next: Option<String>,
    /// This device is the last one of its chain, and the server of its shard: its log and its data are in this region,
    /// packet:PATH[?size=BYTES][&media=file|dram|pmem], in place of --next, --log and --media.
    #[arg(long, value_name = "URL", conflicts_with_all = ["next", "log", "media", "entries", "join", "declare_data_loss", "server_reads_log", "fleet"])]
    pub store: Option<String>,
    /// File of the log, or a devdax device (/dev/daxX.Y).
    #[arg(long, value_name = "PATH")]
    pub log: Option<PathBuf>,
    /// Kind of medium that the log is on.
    #[arg(long, value_enum)]
    pub media: Option<MediaArg>,
    /// Number of this device, unique in its shard and not 0 [default: the listen port; with
    /// devices on several machines that use the same port, give it].
    #[arg(long)]
    pub id: Option<u32>,
    /// Number of the shard [default: 0].
    #[arg(long)]
    pub shard: Option<u32>,
    /// Shards served by this process, each by a thread of its own: shard S + i listens on the
    /// listen port + i, sends to the next port + i and has its log in PATH.S+i [default: 1]. With
    /// --mode af-xdp they divide the queues of each interface, so it must have as many.
    #[arg(long, value_name = "N")]
    pub shards: Option<u16>,
    /// Frame space of a new log, such as 64M; the number of entries follows from it [default: 64M, or less where there is no
    /// room for it]. With --store: what the log has of the region for itself.
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["entries", "frame_bytes"])]
    pub log_size: Option<String>,
    /// Entries of the log, a power of two.
    #[arg(long, requires = "frame_bytes", value_name = "N")]
    pub entries: Option<u64>,
    /// Frame space of the log in bytes, a multiple of 4096.
    #[arg(long, requires = "entries", value_name = "N")]
    pub frame_bytes: Option<u64>,
    /// Where updates are logged and acknowledged: by this process, or by the kernel in front of it.
    #[arg(long, value_enum)]
    pub mode: Option<Mode>,
    /// Network interfaces by which packets come, in a kernel mode and with --mode af-xdp.
    #[arg(long, value_name = "IF", value_delimiter = ',', alias = "ports")]
    pub dev: Option<Vec<String>>,
    /// With --mode switch: this machine's own address in the bridge; its UDP port is that of --listen.
    #[arg(long, value_name = "IPV4")]
    pub address: Option<std::net::Ipv4Addr>,
    /// Name of the device in the BPF file system, in a kernel mode [default: IF-PORT].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// In a kernel mode: save the log in this file at the end (SIGTERM, SIGINT, SIGPWR, --detach),
    /// and load it from there at the start. Without it the kernel goes on when this process ends.
    #[arg(long, value_name = "FILE")]
    pub spill: Option<PathBuf>,
    /// The server reads the log by itself (its --device-log): it is sent no updates.
    #[arg(long)]
    pub server_reads_log: bool,
    /// With --mode af-xdp: how the driver moves packets [default: auto].
    #[arg(long, value_enum)]
    pub zero_copy: Option<ZeroCopy>,
    /// With --mode af-xdp: poll the drivers for packets, in place of their interrupts (up to so many
    /// microseconds in a call that may wait; 20 if no number is given).
    #[arg(long, value_name = "US", num_args = 0..=1, default_missing_value = "20")]
    pub busy_poll: Option<u32>,
    /// Attach in the generic mode of the kernel: slow, for interfaces whose driver has no native one.
    #[arg(long)]
    pub xdp_generic: bool,
    /// Take the device out of the kernel: interfaces are then as they were before.
    #[arg(long)]
    pub detach: bool,
    /// With --detach: give up acknowledged writes that the server has not applied yet.
    #[arg(long, requires = "detach")]
    pub discard: bool,
    /// Send no packet longer than this, with its IP header, whatever routes and interfaces allow [default: what they allow].
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u32>,
    /// Microseconds to poll after activity before sleeping; it sleeps at once while other programs want its core
    /// [default: 50].
    #[arg(long, value_name = "US")]
    pub spin_us: Option<u64>,
    /// Answer only while this device has a lease in etcd, as a member of this fleet (see below).
    #[arg(long, value_name = "NAME")]
    pub fleet: Option<String>,
    /// With --fleet: the members of etcd, http://HOST:2379, with commas between them.
    #[arg(long, value_name = "URL,…")]
    pub etcd: Option<String>,
    /// With --fleet: length of a lease in seconds, 2 to 60 [default: 3].
    #[arg(long, value_name = "N")]
    pub lease_seconds: Option<u64>,
    /// Take no orders of `pmnet ctl` (outside a fleet: by TCP, at the address of --listen).
    #[arg(long)]
    pub no_ctl: bool,
    /// Join a chain that holds data, as its last device; a log that was used is erased first (see below).
    #[arg(long, conflicts_with = "declare_data_loss")]
    pub join: bool,
    /// The missing devices of a longer chain are stopped for good (see below).
    #[arg(long)]
    pub shrink_chain: bool,
    /// Accept that acknowledged writes are gone with the last device that held them (see below).
    #[arg(long)]
    pub declare_data_loss: bool,
}
