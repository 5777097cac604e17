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
mod verbs;

use anyhow::Context;
use clap::Args;
use pmnet_cli::{ConfigError, survive_hangup};
use pmnet_client::Stop;

pub use self::args::DeviceArgs;
use self::settings::{Place, Settings, each, settings};
use self::supervisor::serve;
use super::common::CommonArgs;
use super::names::wait_until_known;
use super::stop::{stop_on_signals, unless_asked_to_stop};

const EXAMPLES: &str = "\
Examples
  one device, log on an ordinary file (survives a power cut):
    pmnet device --listen 127.0.0.1:51000 --next 127.0.0.1:51500 --log /var/lib/pmnet/d.pmlog --media file
  one device, log in persistent memory (survives a power cut):
    pmnet device --listen 127.0.0.1:51000 --next 127.0.0.1:51500 --log /dev/dax0.0 --media pmem
  a chain of three in memory (survives the death of processes; two of three machines):
    pmnet device --listen 127.0.0.1:51003 --next 127.0.0.1:51500 --log /dev/shm/d3.pmlog --media dram
    pmnet device --listen 127.0.0.1:51002 --next 127.0.0.1:51003 --log /dev/shm/d2.pmlog --media dram
    pmnet device --listen 127.0.0.1:51001 --next 127.0.0.1:51002 --log /dev/shm/d1.pmlog --media dram

--next is the next device of the chain, or the server. The length R of the chain is found out and
part of every acknowledgement. Clients send to the first device.

--shrink-chain: you state that devices which were in the chain and are no longer on the path are
stopped for good (removed, not partitioned). Without it a shorter chain is refused, because a
device that is only cut off could go on acknowledging.

--declare-data-loss: the last device that held acknowledged writes is gone with its log, and you
accept that writes which had not reached the server are lost. Without it the shard stays stopped.
Sessions that lost something are told so (DATA_LOSS).

--join: this device is a spare, or one that was removed and is repaired. It joins at the end of a chain
that holds data: start it with --next to the server, wait until it says that it is ready, then start
the chain's last device again with --next to this one. If it is no member of the chain and its log was
used, the log is erased first. A member is never erased: the flag may stay.

  with a lease in etcd, so that it is silent by itself when it is cut off:
    pmnet device --listen 10.0.0.2:51000 --next 10.0.0.3:51500 --log /var/lib/pmnet/d.pmlog --media file \\
      --fleet prod --etcd http://10.0.0.7:2379,http://10.0.0.8:2379,http://10.0.0.9:2379

--fleet NAME: the device registers in etcd, keeps a lease there, and acknowledges and answers reads only
as long as that lasts. Without etcd it is silent after --lease-seconds; nothing is lost, and it goes on
when etcd is back. Give it to all devices of a shard, or to none, and the same length to all of them.
With a controller (pmnet controller) the chain in etcd says how a device is wired, in place of --next, as
soon as the device is in it; when that changes, the device begins anew in the same process, and prints
another ready line. With --join as well the device is a spare: --next is the server, and it joins by
itself when the chain is shorter than it shall be. --shrink-chain and --declare-data-loss count until the
chain in etcd changes again.

Outside a fleet `pmnet ctl` may ask the device where it stands, wire it anew and let it end, by TCP at the
address of --listen. How it was wired last it remembers in the file LOG.wiring, as long as --next is what it
was then; another --next, --shrink-chain and --declare-data-loss are newer, and count. --no-ctl: none of that.

  in the kernel, in front of the server's own network interface (needs root):
    pmnet device --mode nic --dev eth0 --listen 10.0.0.2:51000 --next 127.0.0.1:51500
    pmnet device --mode nic --dev eth0 --listen 10.0.0.2:51000 --next 127.0.0.1:51500 --detach

--mode nic and --mode router: an XDP program on --dev logs and acknowledges updates of open sessions
before the network stack sees them; this process does all the rest. The log is memory of the kernel:
it survives the death of this process, and the kernel goes on logging and acknowledging meanwhile
(start the process again, and it takes over). A loss of power takes it, unless the machine has a
battery and --spill. --detach takes everything out of the kernel again. With --fleet the kernel, too,
answers only as long as the device's lease lasts, whatever becomes of this process.

  past the kernel's network stack (needs root; the log is where packets are received):
    pmnet device --mode af-xdp --dev eth0 --listen 10.0.0.2:51000 --next 10.0.0.3:51500 \\
      --log /dev/shm/d.pmlog --media dram

--mode af-xdp: AF_XDP sockets receive packets into the log itself; an update is durable and sent on
without being copied. Everything else on --dev goes to the system as before. A log made for another
mode cannot be used.

  an RDMA NIC acknowledges (R = 1), before this process has seen the write:
    pmnet device --mode verbs --rdma mlx5_0 --slots /dev/dax1.0 --listen 10.0.0.2:51000 --next 10.0.0.3:51500 \
      --log /dev/dax0.0 --media pmem

--mode verbs: clients (pmnet redis --rdma) send by RDMA into slots, in one order; the NIC acknowledges by itself, and this process takes
the writes from there into its log. Only for the first device of a chain; in a chain of several the NIC's acknowledgement does not
count, and the chain's does. It goes without --fleet and pmnet ctl. docs/operate/verbs.md says what to check first.

  one device that is the server of its shard as well (with --mode af-xdp: packets become records where they are received):
    pmnet device --listen 127.0.0.1:51000 --store 'packet:/var/lib/pmnet/shard0?size=4G'

--store: log and data are in one region, and one process has both; there is no pmnet server. An update of one string of 512 bytes or
more is not copied when it is applied: the place where it was logged is where it is kept. Other devices may stand before this one.

A log is made if the file is not there, or the devdax device is zero; its size is fixed then. A file that is not a log, is of
another device, version or size, or is damaged, is refused and not touched.";

/// The command line of `pmnet device`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DeviceCommand {
    #[command(flatten)]
    args: DeviceArgs,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Shards of one process, at most.
const SHARDS_MAX: u16 = 64;

/// Serves until asked to end.
pub fn main(command: &DeviceCommand, file: DeviceArgs) -> anyhow::Result<bool> {
    survive_hangup()?;
    let args = command.args.clone().over(file);
    if !wait_until_known("--next", args.next.as_deref())? {
        return Ok(true);
    }
    let (shards, detach, discard) = (args.shards.unwrap_or(1), args.detach, args.discard);
    let first = settings(args)?;
    if detach {
        let kernel = first.kernel().context("--detach needs a kernel mode")?;
        return kernel::detach(&first, kernel, discard);
    }
    let stop = stop_on_signals()?;
    let json = command.common.json;
    if shards > 1 && first.kernel().is_some() {
        let text = "--shards does not go with a kernel mode: start a process for each shard, all at the same interface";
        return Err(ConfigError(text.into()).into());
    }
    if shards > 1 && matches!(first.place, Place::Store(..)) {
        let text = "--shards does not go with --store yet: start a process for each shard";
        return Err(ConfigError(text.into()).into());
    }
    match shards {
        1 => serve(&first, &stop, json)
            .or_else(unless_asked_to_stop)
            .map(|()| true),
        2..=SHARDS_MAX => serve_all(&first, shards, &stop, json),
        _ => Err(ConfigError(format!("--shards must be 1 to {SHARDS_MAX}")).into()),
    }
}

/// Serves several shards. One that stops says so and does not take the others with it.
fn serve_all(first: &Settings, shards: u16, stop: &Stop, json: bool) -> anyhow::Result<bool> {
    let all = each(first, shards)?;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for settings in all {
            let shard = settings.relay.device.shard;
            let stop = stop.try_clone().context("cannot share the stop")?;
            let serving = std::thread::Builder::new()
                .name(format!("shard-{shard}"))
                .spawn_scoped(scope, move || {
                    serve(&settings, &stop, json)
                        .or_else(unless_asked_to_stop)
                        .inspect_err(|error| tracing::error!("shard {shard} stopped: {error:#}"))
                })
                .context("cannot start a thread")?;
            threads.push(serving);
        }
        // Every one is waited for, also after one that failed.
        let failed = threads
            .into_iter()
            .filter_map(|thread| thread.join().map_or(Some(()), |end| end.err().map(drop)))
            .count();
        Ok(failed == 0)
    })
}
