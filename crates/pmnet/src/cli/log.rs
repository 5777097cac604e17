//! `pmnet log inspect` and `pmnet log verify`: read a log without changing it (known gap G79).

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use pmnet_cli::{tell, tell_all};
use pmnet_log::{Decision, Entry, Media, Scan, WHEN_DAMAGED};
use serde_json::{Value, json};

/// Maximum number of entries that the command lists.
const ENTRIES_LISTED_MAX: u64 = 1_000_000;

const EXAMPLES: &str = "\
Examples:
  pmnet log inspect /var/lib/pmnet/d.pmlog
  pmnet log inspect /var/lib/pmnet/d.pmlog --entries 100 --json
  pmnet log verify  /var/lib/pmnet/d.pmlog

The commands never change the log. The exit code of verify is 0 if a device could start from this log, 1 if the log \
is damaged or the file is no log of this version.";

/// The command line of `pmnet log`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct LogCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show what is in a log.
    Inspect {
        /// File of the log.
        path: PathBuf,
        /// Largest number of entries to list, from the end of the log.
        #[arg(long, default_value_t = 10, value_name = "N",
              value_parser = clap::value_parser!(u64).range(0..=ENTRIES_LISTED_MAX))]
        entries: u64,
        /// Print one JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Check whether a log is undamaged.
    Verify {
        /// File of the log.
        path: PathBuf,
        /// Print one JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command. Returns false if a device cannot start from this log.
pub fn main(command: &LogCommand) -> anyhow::Result<bool> {
    let (path, entries, json) = match &command.what {
        What::Inspect {
            path,
            entries,
            json,
        } => (path, *entries, *json),
        What::Verify { path, json } => (path, 0, *json),
    };
    let scan = open(path).with_context(|| format!("{}", path.display()))?;
    let decision = scan.decide();
    let usable = matches!(decision, Decision::Keep { .. });
    if json {
        tell(format_args!("{}", as_json(&scan, &decision, entries)));
    } else {
        tell_all(format_args!("{}", as_text(&scan, &decision, entries)));
    }
    Ok(usable)
}

/// Returns facts about a log for a support request, without the log's entries.
pub(crate) fn header(path: &Path) -> anyhow::Result<Value> {
    let scan = open(path)?;
    Ok(as_json(&scan, &scan.decide(), 0))
}

fn open(path: &Path) -> anyhow::Result<Scan<impl Media + use<>>> {
    let image = pmnet_media::open_image_read_only(path)?;
    if image.in_use() {
        tracing::warn!(
            path = %path.display(),
            "PM5301 a device is using this log: what is shown may be half of a change"
        );
    }
    Ok(Scan::open(image, None)?)
}

/// Returns the last `count` entries that a device would keep at its start.
fn tail<M: Media>(scan: &Scan<M>, decision: &Decision, count: u64) -> Vec<Entry> {
    let Decision::Keep { applied, tail, .. } = decision else {
        return Vec::new();
    };
    let first = tail.saturating_sub(count).max(*applied) + 1;
    (first..=*tail)
        .filter_map(|order| scan.entry(order))
        .collect()
}

fn verdict(decision: &Decision) -> String {
    match decision {
        Decision::Keep {
            applied,
            proven,
            tail,
            beyond,
        } => format!(
            "whole: orders {} to {tail} would be kept ({} entries), {proven} is proven durable, \
             {beyond} torn or unproven entries beyond would be erased",
            applied + 1,
            tail - applied
        ),
        Decision::Damaged { orders, total } => format!(
            "DAMAGED: {total} orders that were durable cannot be read: {orders:?}{}. {WHEN_DAMAGED}",
            if u64::try_from(orders.len()).is_ok_and(|listed| listed < *total) {
                " and more"
            } else {
                ""
            }
        ),
        Decision::SuperblockBehind { order } => format!(
            "DAMAGED: entry {order} is of a later epoch or incarnation than the superblocks, which \
             were set back. {WHEN_DAMAGED}"
        ),
    }
}

fn as_text<M: Media>(scan: &Scan<M>, decision: &Decision, entries: u64) -> String {
    let report = scan.report();
    let identity = &report.identity;
    let mut text = format!(
        "log          {:032x}\ndevice       {}, shard {}\nsize         {} entries, {} bytes of frames\n\
         epoch        {}\nincarnation  {}\nsuperblock   applied {}, durable {}\n\
         slots        {} whole, {} empty, {} neither\nverdict      {}\n",
        identity.log_uuid,
        identity.device,
        identity.shard,
        report.parameters.entries,
        report.parameters.frame_bytes,
        report.epoch,
        report.incarnation,
        report.applied_hint,
        report.durable_hint,
        report.slots_valid,
        report.slots_empty,
        report.slots_invalid,
        verdict(decision)
    );
    for finding in &report.findings {
        text += &format!("finding      {finding:?}\n");
    }
    let listed = tail(scan, decision, entries);
    if !listed.is_empty() {
        text += "       order      session        seq kind fragment    bytes  durable  epoch\n";
    }
    for entry in listed {
        text += &format!(
            "{:>12} {:>12} {:>10} {:>4} {:>4}/{:<4} {:>7} {:>8} {:>6}\n",
            entry.order,
            entry.session,
            entry.seq,
            entry.kind,
            entry.fragment_index,
            entry.fragment_count,
            entry.frame_len,
            entry.durable,
            entry.epoch
        );
    }
    text
}

fn as_json<M: Media>(scan: &Scan<M>, decision: &Decision, entries: u64) -> Value {
    let report = scan.report();
    let decided = match decision {
        Decision::Keep {
            applied,
            proven,
            tail,
            beyond,
        } => {
            json!({"keep": {"applied": applied, "proven": proven, "tail": tail, "beyond": beyond}})
        }
        Decision::Damaged { orders, total } => {
            json!({"damaged": {"orders": orders, "total": total}})
        }
        Decision::SuperblockBehind { order } => json!({"superblock_behind": {"order": order}}),
    };
    let listed: Vec<_> = tail(scan, decision, entries)
        .iter()
        .map(|entry| {
            json!({
                "order": entry.order, "session": entry.session, "seq": entry.seq,
                "kind": entry.kind, "fragment_index": entry.fragment_index,
                "fragment_count": entry.fragment_count, "frame_bytes": entry.frame_len,
                "durable": entry.durable, "epoch": entry.epoch, "incarnation": entry.incarnation,
            })
        })
        .collect();
    json!({
        "log": format!("{:032x}", report.identity.log_uuid),
        "device": report.identity.device,
        "shard": report.identity.shard,
        "entries": report.parameters.entries,
        "frame_bytes": report.parameters.frame_bytes,
        "epoch": report.epoch,
        "incarnation": report.incarnation,
        "applied": report.applied_hint,
        "durable": report.durable_hint,
        "slots": {"whole": report.slots_valid, "empty": report.slots_empty, "neither": report.slots_invalid},
        "findings": report.findings_total,
        "usable": matches!(decision, Decision::Keep { .. }),
        "decision": decided,
        "verdict": verdict(decision),
        "last": listed,
    })
}
