//! `pmnet ctl`: changes the chain of a shard (in a fleet or by hand), or makes another Redis the master, and waits
//! until the change is complete.

mod drain;
mod hand;
mod promote;
mod shards;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::{Args, Subcommand};
use pmnet_cli::{ConfigError, notice, tell};
use pmnet_fleet::{Etcd, Intent, Names, Shard, Want, intend};
use pmnet_keys::{Cluster, FrontName, KeyFile};
use pmnet_proto::keys::{ClusterKey, FrontKey};
use serde_json::{Value, json};

use super::common::InFleet;
use super::etcd::EtcdArgs;
use super::keys::leave_no_dump;
use super::status::of_fleet;

const EXAMPLES: &str = "\
Examples:
  pmnet ctl --fleet prod --etcd http://10.0.0.7:2379 status
  pmnet ctl --fleet prod --etcd http://10.0.0.7:2379 replace 2 --dry-run
  pmnet ctl --fleet prod --etcd http://10.0.0.7:2379 remove 2
  pmnet ctl --fleet prod --etcd http://10.0.0.7:2379 add
  pmnet ctl --fleet prod --etcd http://10.0.0.7:2379 \\
      --key /etc/pmnet/cluster.key drain

Without etcd:
  pmnet ctl --via 10.0.0.5:51000,10.0.0.6:51000 \\
      --key /etc/pmnet/cluster.key status
  pmnet ctl --via 10.0.0.5:51000,10.0.0.6:51000,10.0.0.8:51000 \\
      --key /etc/pmnet/cluster.key replace 2 --dry-run
  pmnet ctl --via 10.0.0.5:51000 --server 10.0.0.3:51500 \\
      --key /etc/pmnet/cluster.key remove 2 --is-stopped
  pmnet ctl --via 10.0.0.5:51000,10.0.0.6:51000 \\
      --key /etc/pmnet/cluster.key drain
  pmnet ctl promote \\
      --store redis+sentinel://s1:26379,s2:26379,s3:26379/mymaster
  pmnet ctl promote --store redis://10.0.0.4:6379 --to 10.0.0.5:6379 --dry-run
  pmnet ctl shards /etc/pmnet/shards.toml --new shards.toml

With --fleet the command writes the wanted change to etcd. The devices and the controllers carry it out, so at least \
one controller must run. If another device has a lease and holds everything, the device that shall leave ends its \
process and gives its lease back. The controllers then remove it from the chain at once. After its next start it \
becomes a spare only if `pmnet ctl add --device ID` has allowed this.

With --via the command talks by TCP to the named devices, to their next hops, and to the server, at their addresses. \
Name the spares, too. Name the server (--server) if the last device of the chain is lost. A device that shall join \
does this before another device leaves. A device that leaves ends its process. A device that does not answer is \
removed only if you state that it is stopped permanently (--is-stopped). Devices that stay get their new next hops \
while they run. The server decides, as always, which devices are in the chain.

Each command first prints its planned steps, and the number of copies of each acknowledged write during the change. \
A change that is impossible now is refused with the reason. The command reports its progress on stderr. The exit \
code is 0 if the change is complete (with --dry-run: if it could begin), otherwise 1.";

/// Interval at which the command reads the state of the chain.
const LOOK: Duration = Duration::from_millis(200);
/// Longest time of one call to etcd.
const ETCD_MAX: Duration = Duration::from_secs(2);
/// The front name under which `pmnet ctl` asks devices. The front key for this name is derived from the cluster's key.
const FRONT: &str = "pmnet-ctl";
/// Maximum number of attempts to write a change. An attempt fails if another process writes the same keys meanwhile.
const TRIES: usize = 5;

/// The command line of `pmnet ctl`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CtlArgs {
    /// Name of the fleet.
    #[arg(long, value_name = "NAME")]
    fleet: Option<String>,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// Without a fleet: addresses of the shard's devices and spares, HOST:PORT, with commas between them.
    #[arg(long, global = true, value_name = "ADDR,…")]
    via: Option<String>,
    /// With --via: address of the server, HOST:PORT. It is needed if no device that answers sends to the server.
    #[arg(long, global = true, value_name = "ADDR")]
    server: Option<String>,
    /// File of the cluster's key, if the devices have keys. For drain and shards the file of a front's key works, too.
    #[arg(long, global = true, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Number of the shard.
    #[arg(long, global = true, default_value_t = 0)]
    shard: u32,
    /// Only print the planned steps, or the reason why the change is impossible.
    #[arg(long, global = true)]
    dry_run: bool,
    /// Print JSON on stdout, one object a line: the planned steps, and then the result.
    #[arg(long, global = true)]
    json: bool,
    /// Seconds after which the command gives up. A device that has not left the chain by then is told to stay.
    #[arg(long, global = true, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=WAIT_MAX))]
    wait: u64,
    #[command(subcommand)]
    word: Word,
}

impl CtlArgs {
    /// Returns the key of the cluster, if the command line names its file.
    fn key(&self) -> Result<Option<ClusterKey>, ConfigError> {
        let key = self.key.as_ref().inspect(|_| leave_no_dump());
        let read = key.map(|path| Cluster::read(path));
        let read = read
            .transpose()
            .map_err(|error| ConfigError(format!("--key: {error}")))?;
        Ok(read.map(|cluster| cluster.keys().present))
    }

    /// Returns the front key with which `pmnet ctl` opens a session at devices, as a front does.
    fn front_key(&self) -> Result<Option<FrontKey>, ConfigError> {
        let key = self.key.as_deref().inspect(|_| leave_no_dump());
        let key = key.map(KeyFile::read).transpose();
        let key = key.map_err(|error| ConfigError(format!("--key: {error}")))?;
        Ok(key.map(|file| match file {
            KeyFile::Front(front) => front.key,
            KeyFile::Cluster(cluster) => {
                let name = FrontName::new(FRONT).expect("the name of a front");
                cluster.front(name).key
            }
        }))
    }
}

#[derive(Debug, Subcommand)]
enum Word {
    /// Show the server and the devices, as `pmnet status --fleet` does.
    Status,
    /// Add one copy: a waiting spare joins at the end of the chain.
    Add {
        /// Instead: make this device, which was removed before, a spare again.
        #[arg(long, value_name = "ID")]
        device: Option<u32>,
    },
    /// Remove one copy: a device leaves the chain.
    Remove {
        /// Id of the device. Without a fleet also the ids of several stopped devices.
        #[arg(required = true)]
        ids: Vec<u32>,
        /// Without a fleet: you state that the device is stopped permanently, and not only cut off.
        #[arg(long)]
        is_stopped: bool,
        /// Allow a chain of one device. Its loss would then lose the writes that the store has not applied.
        #[arg(long)]
        to_one: bool,
    },
    /// Replace a device: it leaves the chain, and a waiting spare joins.
    Replace {
        /// Id of the device that leaves.
        id: u32,
        /// Without a fleet: you state that the device is stopped permanently, and not only cut off.
        #[arg(long)]
        is_stopped: bool,
    },
    /// Without a fleet: after an interrupted change, give each device the next hop that the chain on record says.
    Wire,
    /// Wait until the database has every write that was acknowledged before this command began. Clients may continue to
    /// write.
    Drain,
    /// Make a replica of the shard's Redis its master (without etcd).
    Promote(promote::PromoteArgs),
    /// Show the shards in a front's file: their slots, whether they answer, and their Redis (without etcd).
    Shards(shards::ShardsArgs),
}

/// Runs the command. Returns false if the change was not complete in time.
pub fn main(args: &CtlArgs) -> anyhow::Result<bool> {
    match &args.word {
        Word::Promote(what) => return promote::of(what, args),
        Word::Shards(what) => return shards::of(what, args),
        _ => {}
    }
    let place = match &args.fleet {
        Some(_) if args.via.is_some() => {
            return Err(anyhow!(
                "--via and --fleet say both where the devices are: leave one out"
            ));
        }
        Some(fleet) => InFleet {
            fleet: fleet.clone(),
            etcd: args.etcd.clone(),
            shard: args.shard,
        },
        None => {
            args.etcd.nothing()?;
            return hand::of(args);
        }
    };
    if args.server.is_some() {
        return Err(anyhow!(
            "--server goes with --via: in a fleet etcd knows where it is"
        ));
    }
    let want = match &args.word {
        Word::Drain => {
            let wait = Duration::from_secs(args.wait);
            return drain::of(&drain::in_fleet(&place, wait)?, wait, args);
        }
        Word::Status => return of_fleet(&place.fleet, &place.etcd, place.shard, args.json),
        Word::Remove { is_stopped, .. } | Word::Replace { is_stopped, .. } if *is_stopped => {
            return Err(anyhow!(
                "--is-stopped is for a shard without a fleet: in a fleet a device that is gone is left out when its lease is over"
            ));
        }
        Word::Add { device: None } => Want::Add,
        Word::Add {
            device: Some(device),
        } => Want::TakeBack(*device),
        Word::Remove { ids, to_one, .. } => match ids[..] {
            [device] => Want::Remove {
                device,
                to_one: *to_one,
            },
            _ => return Err(anyhow!("in a fleet one device at a time is removed")),
        },
        Word::Replace { id, .. } => Want::Replace(*id),
        Word::Wire => {
            return Err(anyhow!(
                "wire is for a shard without a fleet: in a fleet etcd says how the devices are wired"
            ));
        }
        // An earlier branch has handled these commands.
        Word::Promote(_) | Word::Shards(_) => return Ok(false),
    };
    let (members, names) = place.in_etcd()?;
    let mut etcd = Etcd::new(members, ETCD_MAX);
    let mut said = None;
    for _ in 0..TRIES {
        let shard = read(&mut etcd, &names)?;
        let intent = intend(&names, &shard, want).map_err(|text| anyhow!(text))?;
        // If another process has written first, the plan is made again. The new plan is printed only if it differs from
        // the earlier plan.
        if said.as_ref() != Some(&as_text(&intent)) {
            say(&intent, args.json);
            said = Some(as_text(&intent));
        }
        if args.dry_run {
            return Ok(true);
        }
        if intent.put(&mut etcd).map_err(in_doubt)? {
            return wait(&mut etcd, &names, &intent, args);
        }
    }
    Err(anyhow!(
        "PM5001 another process changes the same keys in etcd again and again: nothing was written"
    ))
}

fn in_doubt(text: String) -> anyhow::Error {
    anyhow!(
        "PM5002 etcd: {text}. It may have been written: look with pmnet ctl status, and run the command again"
    )
}

fn read(etcd: &mut Etcd, names: &Names) -> anyhow::Result<Shard> {
    Shard::read_somewhere(etcd, names).map_err(|text| anyhow!("etcd: {text}"))
}

/// Longest time to wait, in seconds: one day.
const WAIT_MAX: u64 = 24 * 3600;

/// Calls `look` until it reports that the change is complete, or until `seconds` have passed. If the time has passed,
/// the inner error is the last reason for waiting. Each new reason is printed on stderr.
fn until<T>(
    seconds: u64,
    pause: Duration,
    mut look: impl FnMut() -> anyhow::Result<Result<T, String>>,
) -> anyhow::Result<Result<T, String>> {
    let begun = Instant::now();
    let until = begun + Duration::from_secs(seconds);
    let mut said = String::new();
    loop {
        std::thread::sleep(pause);
        let waits = match look()? {
            Ok(done) => return Ok(Ok(done)),
            Err(waits) => waits,
        };
        if waits != said {
            notice(&format!("{:5.1} s  {waits}", begun.elapsed().as_secs_f64()));
            said.clone_from(&waits);
        }
        if Instant::now() >= until {
            return Ok(Err(waits));
        }
    }
}

/// Waits until the change is complete, or the time has passed. Returns whether the change is complete.
fn wait(etcd: &mut Etcd, names: &Names, intent: &Intent, args: &CtlArgs) -> anyhow::Result<bool> {
    let done = until(args.wait, LOOK, || {
        Ok(match Shard::read(etcd, names) {
            Ok(shard) => intent.is_done(&shard).map(|()| shard),
            Err(text) => Err(format!("etcd: {text}")),
        })
    })?;
    if let Ok(shard) = done {
        end(&shard, true, "done", args.json);
        return Ok(true);
    }
    let shard = read(etcd, names)?;
    let back = match intent.taken_back(names, &shard) {
        Some(back) => back.put(etcd).map_err(in_doubt)?,
        None => false,
    };
    let what = if back {
        "PM5003 not done in time, and taken back: the device stays in the chain, or, if it has ended, must be started again. Does a controller run?"
    } else {
        "PM5004 not done in time: it goes on by itself as soon as it can"
    };
    end(&shard, false, what, args.json);
    Ok(false)
}

fn chain(shard: &Shard) -> Vec<u32> {
    shard
        .plan
        .as_ref()
        .map(|plan| plan.ids())
        .unwrap_or_default()
}

fn end(shard: &Shard, done: bool, what: &str, json: bool) {
    if json {
        tell(format_args!(
            "{}",
            json!({ "done": done, "chain": chain(shard), "says": what })
        ));
    } else {
        tell(format_args!("{what}; the chain is {:?}", chain(shard)));
    }
}

fn say(intent: &Intent, json: bool) {
    if json {
        tell(format_args!("{}", as_json(intent)));
    } else {
        tell(format_args!("{}", as_text(intent)));
    }
}

fn as_text(intent: &Intent) -> String {
    let now = &intent.now;
    let text = match (intent.want, intent.leaves, intent.joins) {
        (Want::TakeBack(device), ..) => {
            return format!(
                "device {device} may be a spare again. It joins when the chain is shorter than {}",
                intent.copies
            );
        }
        (_, Some(leaver), Some(joiner)) => {
            format!(
                "device {leaver} leaves the chain {now:?}, then a spare joins (device {joiner} is ready)"
            )
        }
        (_, Some(leaver), None) => {
            format!("device {leaver} leaves the chain {now:?}, and nobody takes its place")
        }
        (_, None, Some(joiner)) => {
            format!("a spare joins the chain {now:?} (device {joiner} is ready)")
        }
        (_, None, None) => format!("the chain is {now:?}"),
    };
    text + &copies_text(intent.copies_meanwhile(), intent.copies)
}

/// Returns a sentence that says which losses an acknowledged write survives, during the change and after it.
fn copies_text(meanwhile: usize, after: usize) -> String {
    let copies = |count: usize| match count {
        1 => "1 copy, which survives the loss of no device".to_owned(),
        count => format!("{count} copies, which survive the loss of {}", count - 1),
    };
    let mut text = format!(". An acknowledgement has {}", copies(meanwhile));
    if after != meanwhile {
        text += &format!("; in the end {}", copies(after));
    }
    text
}

fn as_json(intent: &Intent) -> Value {
    json!({
        "wants": match intent.want {
            Want::Add => "add",
            Want::TakeBack(_) => "take-back",
            Want::Remove { .. } => "remove",
            Want::Replace(_) => "replace",
        },
        "chain": intent.now,
        "leaves": intent.leaves,
        "joins": intent.joins,
        "copies_meanwhile": intent.copies_meanwhile(),
        "copies": intent.copies,
    })
}
