//! `pmnet status`: the devices in this machine's kernel.

use clap::Args;
use pmnet_dataplane::xdp::Status;
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  pmnet status                    all of them
  pmnet status eth0-51000 --json  one of them (--name of pmnet device)

Needs root. Nothing is changed, and it works while the process of the device is dead.
took: from the moment a packet is known to be for the shard until its answer leaves, one packet in
64, of those that the kernel answered or sent on by itself.";

/// The command line of `pmnet status`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {
    /// Only this one.
    name: Option<String>,
    /// One JSON array on stdout.
    #[arg(long)]
    json: bool,
}

/// Looks; false if there is none.
pub fn main(args: &StatusArgs) -> anyhow::Result<bool> {
    let names = match &args.name {
        Some(name) => vec![name.clone()],
        None => Status::names(),
    };
    let mut all = Vec::new();
    for name in &names {
        match Status::read(name) {
            Ok(status) => all.push(status),
            // One that cannot be read does not hide the others.
            Err(error) if args.name.is_none() => eprintln!("{name}: {error}"),
            Err(error) => return Err(error.into()),
        }
    }
    if args.json {
        let all: Vec<Value> = all.iter().map(as_json).collect();
        println!("{}", Value::Array(all));
    } else if all.is_empty() {
        println!("no device in this kernel (pmnet device --mode nic, router or switch makes one)");
    } else {
        let texts: Vec<String> = all.iter().map(as_text).collect();
        print!("{}", texts.join("\n"));
    }
    Ok(!all.is_empty())
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
