//! `pmnet device`.

mod args;
mod direct;
mod fleet;
mod hand;
mod interfaces;
mod kernel;
mod kernel_settings;
mod relay;
mod settings;
mod store;
mod supervisor;
mod together;
mod verbs;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::Context;
use clap::Args;
use pmnet_cli::ConfigError;
use pmnet_client::Stop;

pub use self::args::{DeviceArgs, MediaArg};
use self::settings::{Place, Settings, each, settings};
use self::supervisor::serve;
pub use self::together::Devices;
use super::common::{CommonArgs, copies};
use super::names::wait_until_known;
use super::process::{Part, Process};
use super::ready::Line;
use super::reload::{self, Again, Commit};
use super::stop::unless_asked_to_stop;
use crate::status;

const EXAMPLES: &str = "\
Examples:
  one device, log in an ordinary file (survives a power cut):
    pmnet device --listen 127.0.0.1:51000 --next 127.0.0.1:51500 \\
      --log /var/lib/pmnet/d.pmlog --media file
  one device, log in persistent memory (survives a power cut):
    pmnet device --listen 127.0.0.1:51000 --next 127.0.0.1:51500 \\
      --log /dev/dax0.0 --media pmem
  a chain of three in memory (survives the death of processes; on three
  machines, the loss of two of them):
    pmnet device --listen 127.0.0.1:51003 --next 127.0.0.1:51500 \\
      --log /dev/shm/d3.pmlog --media dram
    pmnet device --listen 127.0.0.1:51002 --next 127.0.0.1:51003 \\
      --log /dev/shm/d2.pmlog --media dram
    pmnet device --listen 127.0.0.1:51001 --next 127.0.0.1:51002 \\
      --log /dev/shm/d1.pmlog --media dram
  with a lease in etcd, so that a device that is cut off stops answering:
    pmnet device --listen 10.0.0.2:51000 --next 10.0.0.3:51500 \\
      --key /etc/pmnet/cluster.key \\
      --log /var/lib/pmnet/d.pmlog --media file \\
      --fleet prod --etcd http://10.0.0.7:2379,http://10.0.0.8:2379
  in the kernel, on the server's own network interface (needs root):
    pmnet device --mode nic --dev eth0 --key /etc/pmnet/cluster.key \\
      --listen 10.0.0.2:51000 --next 127.0.0.1:51500
    pmnet device --mode nic --dev eth0 \\
      --listen 10.0.0.2:51000 --next 127.0.0.1:51500 --detach
  without the kernel's network stack (needs root):
    pmnet device --mode af-xdp --dev eth0 --key /etc/pmnet/cluster.key \\
      --listen 10.0.0.2:51000 --next 10.0.0.3:51500 \\
      --log /dev/shm/d.pmlog --media dram
  an RDMA NIC acknowledges (R = 1), before this process has seen the write:
    pmnet device --mode verbs --rdma mlx5_0 --slots /dev/dax1.0 \\
      --key /etc/pmnet/cluster.key --log /dev/dax0.0 --media pmem \\
      --listen 10.0.0.2:51000 --next 10.0.0.3:51500
  one device that is also the server of its shard:
    pmnet device --listen 127.0.0.1:51000 \\
      --store 'packet:/var/lib/pmnet/shard0?size=4G'

The log: if the file does not exist, or the devdax device holds zeros, the device makes a new log. The size of a log \
is fixed when it is made. The device does not start with, and does not change, a file that is damaged, is no log, or \
is the log of another device, version or size.

--next is the next device of the chain, or the server. The devices find out the length R of the chain, and every \
acknowledgement states it. Clients send to the first device.

--key: each packet between fronts, devices and server carries a MAC, and packets without a valid MAC are dropped \
(`pmnet key`, docs/operate/keys.md). With --key, --next-id is the id of the device at --next, or 0 for the server. \
Without --key, a device starts only if no other machine can reach it, or with --insecure.

--shrink-chain: you state that the devices which are missing from the chain are stopped permanently (removed, not \
partitioned). Without this statement a shorter chain is refused, because a device that is only cut off could \
continue to acknowledge.

--declare-data-loss: the last device that held acknowledged writes is gone with its log, and you accept that \
writes which had not reached the server are lost. Without this statement the shard stays stopped. Sessions whose \
writes are lost are told so (DATA_LOSS).

--join: this device is a spare, or one that was removed and is repaired. It joins at the end of a chain that \
holds data. Start it with --next to the server, and wait for its ready line. Then start the chain's last device \
again with --next to this device (with keys also --next-id). If the device is not a member of the chain and its log \
was used, the log is erased first. The log of a member is never erased, so the flag may stay on the command line.

--fleet: the device registers in etcd and keeps a lease there. It acknowledges and answers reads only while the \
lease lasts. If etcd fails, the device stops answering after --lease-seconds; nothing is lost, and it continues when \
etcd is back. Give --fleet to all devices of a shard or to none, and the same --lease-seconds to all of them.

With a controller (pmnet controller), a device that is in the chain in etcd gets its next hop from there, not from \
--next. When that next hop changes, the device begins anew in the same process, and prints another ready line. With \
--fleet and --join, the device is a spare: --next is the server, and the device joins by itself when the chain is \
shorter than wanted. --shrink-chain and --declare-data-loss count until the chain in etcd changes again.

Outside a fleet, `pmnet ctl` can ask the device for its state, change its next hop and stop it, by TCP at the \
address of --listen. The device stores a changed next hop in the file LOG.wiring. The stored next hop counts until \
the device is started with another --next, with --shrink-chain, or with --declare-data-loss. With --no-ctl the \
device does not listen for `pmnet ctl`.

--mode nic and --mode router: an XDP program on --dev logs and acknowledges updates of open sessions before \
the network stack sees them; this process does all the rest. The log is memory of the kernel. If this process dies, \
the log survives, and the kernel continues to log and acknowledge until the process is started again. A loss of \
power destroys the log, unless the machine has a battery and --spill is given. --detach removes everything from the \
kernel. With --fleet the kernel also answers only while the device's lease lasts, whether or not this process runs.

--mode af-xdp: AF_XDP sockets receive packets into the log itself, so that an update is made durable and forwarded \
without a copy. All other traffic on --dev goes to the system as before. The mode needs a log that was made for it.

--mode verbs: clients (pmnet redis --rdma) send by RDMA into slots, in one order. The NIC acknowledges by itself, and this \
process moves the writes from the slots into its log. Only the first device of a chain can have this mode. In a \
chain of several devices clients wait for the chain's acknowledgement, not for the NIC's. The mode cannot be used \
with --fleet or pmnet ctl. docs/operate/verbs.md says what to check first.

--store: log and data are in one region, which only this process uses; the shard has no pmnet server. An update that \
sets one string of 512 bytes or more is applied without a copy: the value stays where it was logged. With --mode \
af-xdp, this is the buffer into which the packet was received. The chain may have further devices before this \
device.";

/// The command line of `pmnet device`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DeviceCommand {
    #[command(flatten)]
    args: DeviceArgs,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Maximum number of shards of one process.
const SHARDS_MAX: u16 = 64;

/// Serves until the process is asked to end.
pub fn main(command: &DeviceCommand, file: DeviceArgs) -> anyhow::Result<bool> {
    let args = command.args.clone().over(file);
    if args.detach {
        return detach(args);
    }
    let line = Line::alone(command.common.json);
    let file = command.common.config.as_deref();
    let process = Process::open("device", args.status.as_deref(), line, file)?;
    let flags = command.args.clone();
    let again = reload::alone(move |file| flags.clone().over(file));
    run(args, again, &process.alone()?)
}

/// Removes the device from the kernel.
fn detach(args: DeviceArgs) -> anyhow::Result<bool> {
    let discard = args.discard;
    if !wait_until_known("--next", args.next.as_deref())? {
        return Ok(true);
    }
    let settings = settings(args)?;
    let kernel = settings.kernel().context("--detach needs a kernel mode")?;
    kernel::detach(&settings, kernel, discard)
}

/// Serves until `part` is asked to end.
pub fn run(args: DeviceArgs, again: Again<DeviceArgs>, part: &Part<'_>) -> anyhow::Result<bool> {
    let wanted = Arc::new(AtomicU8::new(copies(args.copies)?));
    let other = Arc::clone(&wanted);
    part.on_new_settings(&args, again, move |new| {
        let (other, copies) = (Arc::clone(&other), copies(new.copies)?);
        check(new).map(|_| -> Commit { Box::new(move || other.store(copies, Ordering::Relaxed)) })
    });
    if !wait_until_known("--next", args.next.as_deref())? {
        return Ok(true);
    }
    let shards = args.shards.unwrap_or(1);
    let first = settings(args)?;
    if let Some(keys) = &first.keys {
        keys.read_again_on_hangup();
    }
    check_shards(&first, shards)?;
    let stop = part.stop()?;
    if shards > 1 {
        return serve_all(&first, shards, &wanted, &stop, part);
    }
    serve(&first, &wanted, &stop, part)
        .or_else(unless_asked_to_stop)
        .map(|()| true)
}

/// Checks these settings in the same way as [`main`]. Returns the settings of each shard.
fn check(args: DeviceArgs) -> Result<Vec<Settings>, ConfigError> {
    copies(args.copies)?;
    status::at(args.status.as_deref())?;
    let shards = args.shards.unwrap_or(1);
    let first = settings(args)?;
    check_shards(&first, shards)?;
    if shards > 1 {
        each(&first, shards)
    } else {
        Ok(vec![first])
    }
}

/// Checks whether one process can serve this number of shards.
fn check_shards(first: &Settings, shards: u16) -> Result<(), ConfigError> {
    let text = match (shards, &first.place) {
        (2.., Place::Kernel(_)) => {
            "--shards does not go with a kernel mode: start a process for each shard, all at the same interface"
        }
        (2.., Place::Store(..)) => {
            "--shards does not go with --store yet: start a process for each shard"
        }
        (1..=SHARDS_MAX, _) => return Ok(()),
        _ => return Err(ConfigError(format!("--shards must be 1 to {SHARDS_MAX}"))),
    };
    Err(ConfigError(text.into()))
}

/// Serves several shards. If one shard fails, the failure is logged, and the other shards continue.
fn serve_all(
    first: &Settings,
    shards: u16,
    copies: &Arc<AtomicU8>,
    stop: &Stop,
    part: &Part<'_>,
) -> anyhow::Result<bool> {
    let all = each(first, shards)?;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for settings in all {
            let shard = settings.relay.device.shard;
            let stop = stop.try_clone().context("cannot share the stop")?;
            let serving = std::thread::Builder::new()
                .name(format!("shard-{shard}"))
                .spawn_scoped(scope, move || {
                    serve(&settings, copies, &stop, part)
                        .or_else(unless_asked_to_stop)
                        .inspect_err(|error| {
                            tracing::error!("PM1610 shard {shard} stopped: {error:#}")
                        })
                })
                .context("cannot start a thread")?;
            threads.push(serving);
        }
        // Waits until the threads of all shards have ended, even if one shard has failed.
        let failed = threads
            .into_iter()
            .filter_map(|thread| thread.join().map_or(Some(()), |end| end.err().map(drop)))
            .count();
        Ok(failed == 0)
    })
}

#[cfg(test)]
mod tests {
    use super::{DeviceArgs, check};

    /// Regression test: `pmnet check` accepted files that `pmnet device` refuses.
    #[test]
    fn a_number_of_shards_that_a_device_refuses_is_refused_when_its_file_is_checked() {
        let checked = |more: &str| {
            let text = format!("listen = \"127.0.0.1:51000\"\n{more}");
            let args: DeviceArgs = toml::from_str(&text).unwrap();
            check(args).map(drop).map_err(|error| error.0)
        };
        let relay = "next = \"127.0.0.1:51500\"\nlog = \"/a\"\nmedia = \"dram\"\n";
        for shards in [1, 2, 64] {
            assert_eq!(checked(&format!("{relay}shards = {shards}")), Ok(()));
        }
        for shards in [0, 65] {
            let refused = checked(&format!("{relay}shards = {shards}")).unwrap_err();
            assert!(refused.contains("--shards must be 1 to 64"), "{refused}");
        }
        let refused = checked("store = \"packet:/a?size=64M\"\nshards = 2").unwrap_err();
        assert!(
            refused.contains("--shards does not go with --store"),
            "{refused}"
        );
    }
}
