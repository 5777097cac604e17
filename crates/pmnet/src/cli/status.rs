//! `pmnet status`: shows processes (by their status ports), the devices in this machine's kernel, or those of a fleet.

mod at;

use clap::Args;
use pmnet_cli::{ConfigError, notice, tell, tell_all};
use pmnet_client::Clock;
use pmnet_dataplane::xdp::Status;
use pmnet_fleet::{Row, ServerRecord, Shard, Word, margin};
use pmnet_proto::Time;
use pmnet_proto::time::MILLISECOND;
use serde_json::{Value, json};

use super::etcd::EtcdArgs;
use crate::ask::{Processes, TLS_HELP, of_fleet as ports_of_fleet, read_shard};

const EXAMPLES: &str = "\
Examples:
  pmnet status --at 127.0.0.1:9464,unix:/run/pmnet/server.sock
                                  processes of any role, by their status ports
  pmnet status --at 127.0.0.1:9464 --wait 30
                                  the same, as soon as all are ready
  pmnet status --at 'https://10.0.0.3:9464?ca=ca.pem&cert=me.pem&key=me.key'
                                  of another machine, with a certificate
  pmnet status --config /etc/pmnet/pmnet.toml
                                  the processes of this file
  pmnet status                    all devices in this machine's kernel
  pmnet status eth0-51000 --json  one of them (--name of pmnet device)
  pmnet status --fleet prod --etcd http://10.0.0.7:2379
                                  the server of a shard, and its devices that
                                  keep leases in etcd
  pmnet status --fleet prod --etcd http://10.0.0.7:2379 --ask
                                  the same processes, by their status ports

--at, --config, --ask: the exit code is 0 if all processes are ready, 1 if one is not or does not answer.

Devices in the kernel need root. The command changes nothing, and also works while the process of a device is dead.

took: the time from the moment when the kernel knows that a packet is for the shard until its answer leaves. It is \
measured for one in 64 of the packets that the kernel answered or sent on by itself.";

/// The command line of `pmnet status`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {
    #[command(flatten)]
    processes: Processes,
    /// With --at, --config or --ask: seconds to wait at most until all processes are ready.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u64,
    /// Name of one device in this machine's kernel. Without it all of them are shown.
    #[arg(conflicts_with_all = ["at", "config", "fleet"])]
    name: Option<String>,
    /// Instead: name of a fleet, whose server and devices are shown as they are in etcd.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["at", "config"])]
    fleet: Option<String>,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// With --fleet: number of the shard.
    #[arg(long, default_value_t = 0, requires = "fleet")]
    shard: u32,
    /// With --fleet: ask the server and the devices themselves, at the status ports that they have registered in etcd.
    #[arg(long, requires = "fleet")]
    ask: bool,
    #[arg(long, value_name = "OPTIONS", requires = "ask", help = TLS_HELP)]
    tls: Option<String>,
    /// Print one JSON array on stdout.
    #[arg(long)]
    json: bool,
}

/// Shows the processes, the fleet or the devices. Returns false if there is nothing to show.
pub fn main(args: &StatusArgs) -> anyhow::Result<bool> {
    if args.processes.are_named() {
        return at::main(&args.processes.places()?, args.wait, args.json);
    }
    if let Some(fleet) = args.fleet.as_ref().filter(|_| args.ask) {
        let spots = ports_of_fleet(fleet, &args.etcd, args.shard, args.tls.as_deref())?;
        return at::main(&spots, args.wait, args.json);
    }
    if args.wait > 0 {
        let text = "--wait is for processes: give --at HOST:PORT,…, --config FILE, or --fleet NAME --ask too";
        return Err(ConfigError(text.into()).into());
    }
    if let Some(fleet) = &args.fleet {
        return of_fleet(fleet, &args.etcd, args.shard, args.json);
    }
    args.etcd.nothing()?;
    let names = match &args.name {
        Some(name) => vec![name.clone()],
        None => Status::names(),
    };
    let mut all = Vec::new();
    for name in &names {
        match Status::read(name) {
            Ok(status) => all.push(status),
            // If one device cannot be read, the other devices are still shown.
            Err(error) if args.name.is_none() => notice(&format!("{name}: {error}")),
            Err(error) => return Err(error.into()),
        }
    }
    if args.json {
        let all: Vec<Value> = all.iter().map(as_json).collect();
        tell(format_args!("{}", Value::Array(all)));
    } else if all.is_empty() {
        tell(format_args!(
            "no device in this kernel (pmnet device --mode nic, router or switch makes one)"
        ));
    } else {
        let texts: Vec<String> = all.iter().map(as_text).collect();
        tell_all(format_args!("{}", texts.join("\n")));
    }
    Ok(!all.is_empty())
}

/// Returns the devices in this machine's kernel. If a device cannot be read, returns the reason instead of its state.
pub(crate) fn kernel_devices() -> Value {
    let one = |name: &String| match Status::read(name) {
        Ok(status) => as_json(&status),
        Err(error) => json!({ "name": name, "error": error.to_string() }),
    };
    Value::Array(Status::names().iter().map(one).collect())
}

fn as_json(status: &Status) -> Value {
    let counters: serde_json::Map<String, Value> = status
        .counters
        .iter()
        .map(|&(name, count)| (name.to_owned(), count.into()))
        .collect();
    json!({
        "name": status.name,
        "interfaces": status.interfaces,
        "admits": status.admits,
        "shard": status.shard,
        "device": status.device,
        "incarnation": status.incarnation,
        "epoch": status.epoch,
        "lease": has_served(status).then_some(status.answers_until.is_some()),
        "silent_in_ms": silent_in(status),
        "copies": status.copies,
        "role": role(status),
        "entries": status.entries,
        "last": status.last,
        "applied": status.applied,
        "released": status.released,
        "sent": status.sent,
        "held_behind": status.held,
        "counters": counters,
        "took_ns": { "p50": status.took_ns(0.5), "p99": status.took_ns(0.99), "slots_of_32_ns": status.took },
    })
}

/// Returns for how many milliseconds the kernel will still answer clients if the lease is not renewed. `None`: the
/// device needs no lease.
fn silent_in(status: &Status) -> Option<u64> {
    let left = |until: Time| until.since(Clock::boottime().now()) / MILLISECOND;
    status.answers_until.map(left)
}

const fn has_served(status: &Status) -> bool {
    status.copies != 0
}

const fn role(status: &Status) -> &'static str {
    match (status.follows, status.behind, status.copies) {
        (_, _, 0) => "never served",
        (false, 0, _) => "alone",
        (false, ..) => "head",
        (true, 0, _) => "last",
        (true, ..) => "middle",
    }
}

fn as_text(status: &Status) -> String {
    let used = status.last - status.released.min(status.last);
    let waiting = status.last - status.applied.min(status.last);
    let mut text = format!(
        "{}: device {} of shard {}, {} (R = {}), epoch {}, incarnation {}, at {}\n",
        status.name,
        status.device,
        status.shard,
        role(status),
        status.copies,
        status.epoch,
        status.incarnation,
        status.interfaces.join(", "),
    );
    text += if status.admits {
        "  the kernel logs by itself\n"
    } else {
        "  held: everything goes to the process\n"
    };
    match silent_in(status) {
        None => {}
        // Before the device has served for the first time, the kernel does not know whether the device needs a lease.
        Some(0) if !has_served(status) => {
            text += "  it has not served yet: the kernel answers nobody\n";
        }
        Some(0) => text += "  no lease: the kernel answers nobody\n",
        Some(left) => {
            text += &format!("  lease: the kernel answers for {left} ms unless it is renewed\n");
        }
    }
    text += &format!(
        "  log: last order {}, {waiting} of them not applied yet, {used} of {} entries in use\n",
        status.last, status.entries
    );
    if let Some(sent) = status.sent {
        text += &format!(
            "  chain: sent up to {sent}; devices behind hold {:?}\n",
            status.held
        );
    }
    for (name, count) in &status.counters {
        text += &format!("  {name:<18} {count:>14}\n");
    }
    for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
        let took = status
            .took_ns(share)
            .map_or_else(|| "-".to_owned(), |ns| format!("< {ns} ns"));
        text += &format!("  took {name:<13} {took:>14}\n");
    }
    text
}

/// Shows a shard of a fleet. Returns false if etcd has no keys of the shard.
pub fn of_fleet(fleet: &str, etcd: &EtcdArgs, shard: u32, json: bool) -> anyhow::Result<bool> {
    let (mut etcd, read) = read_shard(fleet, etcd, shard)?;
    let mut all = Vec::new();
    if let (Some(plan), false) = (&read.plan, json) {
        let copies = read.copies.unwrap_or(plan.copies);
        all.push(format!("chain {:?}; {copies} copies wanted", plan.ids()));
    }
    if let Some(server) = &read.server {
        all.push(if json {
            server_as_json(server, read.has_server()).to_string()
        } else {
            server_as_text(server, read.has_server())
        });
    }
    for (id, row) in &read.rows {
        let left = match row.lease_id {
            0 => None,
            // All members of etcd agree that the key exists. If the asked member reports that the lease is over, this
            // member may only be late. So the full length of the lease is assumed.
            lease => etcd
                .seconds_left(lease)?
                .or(row.record.as_ref().map(|record| record.seconds)),
        };
        let place = place(&read, *id);
        let line = if json {
            leased_as_json(*id, row, left, place).to_string()
        } else {
            leased_as_text(*id, row, left, place)
        };
        all.push(line);
    }
    if json {
        tell(format_args!("[{}]", all.join(",")));
    } else if all.is_empty() {
        tell(format_args!(
            "fleet {fleet}, shard {shard}: nobody has registered in etcd"
        ));
    } else {
        tell(format_args!("{}", all.join("\n")));
    }
    Ok(!all.is_empty())
}

fn server_as_json(server: &ServerRecord, there: bool) -> Value {
    json!({
        "server": server.address.to_string(),
        "epoch": server.epoch,
        "chain": server.chain,
        "there": there,
    })
}

fn server_as_text(server: &ServerRecord, there: bool) -> String {
    let is = match there {
        true => "is there",
        false => "is gone, or does not reach etcd",
    };
    let knows = match server.epoch {
        0 => "it has not read its store yet".to_owned(),
        epoch => format!("epoch {epoch}, the chain is {:?}", server.chain),
    };
    format!("server at {}: {is}; {knows}", server.address)
}

/// Returns for how many milliseconds the device will still answer if it does not renew its lease.
fn silent_in_ms(row: &Row, left: Option<u64>) -> Option<u64> {
    let record = row.record.as_ref()?;
    let lost = margin(pmnet_fleet::length(record.seconds)) / 1_000_000;
    // etcd reports whole seconds.
    left.map(|seconds| {
        ((seconds + 1) * 1_000)
            .saturating_sub(lost)
            .min(record.seconds * 1_000 - lost)
    })
}

/// Returns the position of a device in the wanted chain, counted from 1, and the length of this chain.
fn place(shard: &Shard, id: u32) -> Option<(usize, usize)> {
    let ids = shard.plan.as_ref()?.ids();
    let at = ids.iter().position(|one| *one == id)?;
    Some((at + 1, ids.len()))
}

fn leased_as_json(id: u32, row: &Row, left: Option<u64>, place: Option<(usize, usize)>) -> Value {
    let record = row.record.as_ref();
    json!({
        "device": id,
        "address": record.map(|record| record.address.to_string()),
        "incarnation": record.map(|record| record.incarnation),
        "epoch": record.map(|record| record.epoch),
        "lease_seconds": record.map(|record| record.seconds),
        "lease_held": row.lease_id != 0,
        "lease_left_seconds": left,
        "silent_in_ms": silent_in_ms(row, left).unwrap_or(0),
        "place": place.map(|(at, _)| at),
        "places": place.map(|(_, all)| all),
        "spare": place.is_none() && record.is_some_and(|record| record.spare),
        "ready_to_join": record.map_or(0, |record| record.joins),
        "leaves": row.wish.leaves,
        "holds_everything": record.is_some_and(|record| record.whole),
        "word": match row.word {
            Word::None => Value::Null,
            Word::Stopped => "stopped".into(),
            Word::LeftOut(epoch) => json!({ "left_out": epoch }),
        },
    })
}

fn leased_as_text(id: u32, row: &Row, left: Option<u64>, place: Option<(usize, usize)>) -> String {
    let mut text = format!("device {id}");
    match (place, &row.record) {
        (Some((at, all)), _) => text += &format!(" ({at} of {all} in the chain)"),
        (None, Some(record)) if record.spare => text += " (a spare)",
        _ => {}
    }
    if let Some(record) = &row.record {
        text += &format!(" at {}, incarnation {}", record.address, record.incarnation);
        text += &match (left, record.epoch) {
            (None, _) => ": no lease, it answers nobody".to_owned(),
            (Some(left), 0) => format!(": it is there and does not serve ({left} s left)"),
            (Some(left), epoch) => format!(
                ": a lease of {} s for epoch {epoch}, {left} s left; silent in {} ms at the latest unless it is renewed",
                record.seconds,
                silent_in_ms(row, Some(left)).unwrap_or(0)
            ),
        };
    }
    if row.wish.leaves {
        text += "; removed by pmnet ctl";
    }
    match row.word {
        Word::None => {}
        Word::Stopped => text += "; declared stopped",
        Word::LeftOut(epoch) => text += &format!("; left out of the chain of epoch {epoch}"),
    }
    text
}
