//! `pmnet store stat`, `verify`, `backup`, `grow` and `repair`: commands for a packet store or the region of a device.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use pmnet_cli::{bytes, notice, progress, tell, tell_all};
use pmnet_media::ReadOnlyImage;
use pmnet_packet_store::{Damage, Scan, Stat};
use pmnet_store::{Backup, Grown, back_up_packet_store, grow_packet_store, names_in_packet_store};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  pmnet store stat   /var/lib/pmnet/store
  pmnet store verify /var/lib/pmnet/store --json
  pmnet store backup /var/lib/pmnet/store /backup/store-monday
  pmnet store grow   /var/lib/pmnet/store --size 4G
  pmnet store repair /var/lib/pmnet/store --without-damaged

stat and verify change nothing. verify reads every byte of every record, and compares checksums. Its exit code is 0 \
if the store is undamaged, 1 if not.

backup copies a store, also while a server uses it. The copy has the state of one moment; if that is impossible, no copy is made.

grow makes the store of a server or of a device (pmnet device --store) larger. A device's store keeps the entries of \
its log. Stop the process first, and start it again afterwards. grow writes a larger copy beside the file and then \
replaces the file by the copy, so there must be space for both. If grow is interrupted, either the old file or the \
new file exists, complete.

repair deletes the damaged records permanently. Make a copy of the file first.";

/// Percentage of use above which a store should be made larger.
const NEARLY_FULL_PERCENT: u64 = 75;

/// The command line of `pmnet store`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StoreCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show what is in a packet store, and how much space it uses.
    Stat {
        /// File of the store.
        path: PathBuf,
        /// Print one JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Check every record.
    Verify {
        /// File of the store.
        path: PathBuf,
        /// Print one JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Copy a store, also while a server uses it. To restore the store, replace its file by the copy.
    Backup {
        /// File of the store.
        path: PathBuf,
        /// File of the copy, which must not exist.
        to: PathBuf,
        /// Print one JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Make a store larger, while no process uses it.
    Grow {
        /// File of the store.
        path: PathBuf,
        /// New size of the file, with K, M or G, as for size= in the address of the store.
        #[arg(long, value_name = "BYTES")]
        size: String,
        /// Print one JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Make a damaged store usable again, without the records that are damaged.
    Repair {
        /// File of the store.
        path: PathBuf,
        /// Confirm that the damaged records are deleted.
        #[arg(long, required = true)]
        without_damaged: bool,
    },
}

/// Runs the command. Returns false if a damage was found.
pub fn main(command: &StoreCommand) -> anyhow::Result<bool> {
    match &command.what {
        What::Stat { path, json } => stat(path, *json),
        What::Verify { path, json } => verify(path, *json),
        What::Backup { path, to, json } => back_up(path, to, *json),
        What::Grow { path, size, json } => grow(path, bytes("--size", size)?, *json),
        What::Repair { path, .. } => repair(path),
    }
    .with_context(|| match &command.what {
        What::Stat { path, .. }
        | What::Verify { path, .. }
        | What::Backup { path, .. }
        | What::Grow { path, .. }
        | What::Repair { path, .. } => format!("{}", path.display()),
    })
}

fn open(path: &Path) -> anyhow::Result<Scan<ReadOnlyImage>> {
    let image = pmnet_media::open_image_read_only(path)?;
    if image.in_use() {
        tracing::warn!(
            path = %path.display(),
            "PM5303 a server is using this store: what is shown may be half of a change"
        );
    }
    Ok(Scan::open(image, None)?)
}

fn stat(path: &Path, json: bool) -> anyhow::Result<bool> {
    let scan = open(path)?;
    let loss = scan.loss();
    let shard = scan.identity().shard;
    let stat = scan.stat();
    let in_packets = scan.records_in_packets();
    let nearly_full = is_nearly_full(&stat, scan.geometry().log_entries);
    if json {
        let mut shown = as_json(&stat);
        shown["shard"] = json!(shard);
        shown["records_in_packets"] = json!(in_packets);
        shown["nearly_full"] = json!(nearly_full);
        shown["whole"] = json!(loss.is_none());
        tell(format_args!("{shown}"));
    } else {
        tell_all(format_args!(
            "shard        {shard}\n{}",
            as_text(&stat, in_packets)
        ));
        if nearly_full {
            tell(format_args!(
                "ROOM         more than three quarters are in use: stop the process, and make it larger with pmnet store grow {} \
                 --size BYTES",
                path.display()
            ));
        }
        if let Some(loss) = &loss {
            tell(format_args!("DAMAGED      {loss}"));
        }
    }
    Ok(loss.is_none())
}

/// Returns `part` as a percentage of `whole`.
fn percent(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100) / whole.max(1)
}

/// Returns whether more than [`NEARLY_FULL_PERCENT`] of the store's lines are in use, or more than this percentage of
/// the frames that the log does not need.
fn is_nearly_full(stat: &Stat, log_entries: u32) -> bool {
    let frames = stat.frames - log_entries.min(stat.frames / 2);
    percent(stat.lines_used, u64::from(stat.lines)) > NEARLY_FULL_PERCENT
        || percent(u64::from(stat.frames_used), u64::from(frames)) > NEARLY_FULL_PERCENT
}

/// Returns the number of bytes in frames with records, and the percentage of them that no longer belongs to a record.
fn used(stat: &Stat) -> (u64, u64) {
    let used = u64::from(stat.frames_used) * u64::from(stat.frame_bytes);
    (used, percent(stat.bytes_dead, used))
}

fn as_text(stat: &Stat, in_packets: u64) -> String {
    let (used, fragmentation) = used(stat);
    format!(
        "records      {}, {} of them in the packets in which they came\ncommit       {}\nlines        {} of {} in use ({} %)\nframes       {} of {} in use ({} %), of {} bytes\n\
         bytes        {} of records in {used} of frames: {fragmentation} % belong to no record\n",
        stat.records,
        in_packets,
        stat.commit,
        stat.lines_used,
        stat.lines,
        percent(stat.lines_used, u64::from(stat.lines)),
        stat.frames_used,
        stat.frames,
        percent(u64::from(stat.frames_used), u64::from(stat.frames)),
        stat.frame_bytes,
        stat.bytes_live,
    )
}

fn as_json(stat: &Stat) -> serde_json::Value {
    let (used, fragmentation) = used(stat);
    json!({
        "records": stat.records,
        "commit": stat.commit,
        "lines": stat.lines,
        "lines_used": stat.lines_used,
        "frames": stat.frames,
        "frames_used": stat.frames_used,
        "frame_bytes": stat.frame_bytes,
        "bytes_used": used,
        "bytes_live": stat.bytes_live,
        "occupancy_percent": percent(u64::from(stat.frames_used), u64::from(stat.frames)),
        "fragmentation_percent": fragmentation,
    })
}

fn verify(path: &Path, json: bool) -> anyhow::Result<bool> {
    let scan = open(path)?;
    let loss = scan.loss();
    let mut damages: Vec<Damage> = scan.verify();
    let missing = loss
        .as_ref()
        .map_or(0, |loss| loss.counted.saturating_sub(loss.whole));
    damages.extend(loss.iter().flat_map(|loss| loss.damages.iter().cloned()));
    let whole = loss.is_none() && damages.is_empty();
    let names = (!damages.is_empty()).then(|| names_in_packet_store(&scan));
    let name = |damage: &Damage| {
        names
            .as_ref()
            .map_or_else(String::new, |names| names.of(&damage.key))
    };
    if json {
        let listed: Vec<_> = damages
            .iter()
            .map(|damage| {
                json!({
                    "name": name(damage), "key": damage.key.escape_ascii().to_string(), "order": damage.order,
                    "line": damage.line, "why": damage.why,
                })
            })
            .collect();
        tell(format_args!(
            "{}",
            json!({
                "whole": whole, "records": scan.last_commit().records, "missing": missing, "damaged": listed,
            })
        ));
        return Ok(whole);
    }
    for damage in &damages {
        tell(format_args!(
            "damaged      {} (order {}, line {}): {}",
            name(damage),
            damage.order,
            damage.line,
            damage.why
        ));
    }
    if let Some(loss) = &loss {
        tell(format_args!(
            "missing      {missing} of {} records cannot be found; what is listed above may be what they were",
            loss.counted
        ));
    }
    tell(format_args!(
        "verdict      {}",
        match whole {
            true => format!("whole: {} records are what was written", scan.last_commit().records),
            false => "DAMAGED: take a copy of a backup, or go on without what is damaged (pmnet store repair)".into(),
        }
    ));
    Ok(whole)
}

fn back_up(path: &Path, to: &Path, json: bool) -> anyhow::Result<bool> {
    let Backup {
        commit,
        records,
        tries,
    } = back_up_packet_store(path, to)?;
    if json {
        tell(format_args!(
            "{}",
            json!({"commit": commit, "records": records, "tries": tries})
        ));
    } else {
        tell(format_args!(
            "copied       {records} records, as of commit {commit}, to {}",
            to.display()
        ));
    }
    Ok(true)
}

/// A progress bar on a terminal.
struct Bar {
    shown: Option<u64>,
    shows: bool,
}

impl Bar {
    /// Width of the bar, in characters.
    const WIDTH: usize = 40;

    fn new() -> Bar {
        Bar {
            shown: None,
            shows: std::io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, done: u64, all: u64) {
        let now = percent(done, all);
        if self.shows && self.shown != Some(now) {
            self.shown = Some(now);
            let full = usize::try_from(now).unwrap_or(100) * Self::WIDTH / 100;
            let bar = "#".repeat(full);
            let width = Self::WIDTH;
            progress(&format!("\r[{bar:<width$}] {now:>3} %"));
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.shown.is_some() {
            notice("");
        }
    }
}

fn grow(path: &Path, size: u64, json: bool) -> anyhow::Result<bool> {
    let mut bar = Bar::new();
    let grown = grow_packet_store(path, size, &mut |done, all| {
        bar.show(done, all);
        Ok(())
    })?;
    drop(bar);
    let Grown {
        from,
        to,
        records,
        unapplied,
    } = grown;
    if json {
        tell(format_args!(
            "{}",
            json!({
                "records": records, "unapplied": unapplied,
                "frames": to.frames, "frames_before": from.frames, "frame_bytes": to.frame_bytes,
                "lines": to.lines, "lines_before": from.lines, "bytes": to.image_bytes(),
            })
        ));
        return Ok(true);
    }
    tell(format_args!(
        "records      {records}, as before\nframes       {}, before {}, of {} bytes\nlines        {}, before {}\n\
         file         {} bytes",
        to.frames,
        from.frames,
        to.frame_bytes,
        to.lines,
        from.lines,
        to.image_bytes()
    ));
    if let Some(unapplied) = unapplied {
        tell(format_args!(
            "log          {unapplied} orders that are not applied yet, as before"
        ));
    }
    Ok(true)
}

fn repair(path: &Path) -> anyhow::Result<bool> {
    let kind = pmnet_media::look(path)?.kind;
    let scan = Scan::open(pmnet_media::open(path, kind)?, None)?;
    let loss = scan.loss();
    let bad = scan.damaged_keys();
    let mut store = scan.repair_without_lost()?;
    let mut transaction = store.transaction();
    for key in &bad {
        transaction.remove(key)?;
    }
    transaction.commit()?;
    let mended = pmnet_store::mend_packet_store(&mut store)?;
    let missing = loss.map_or(0, |loss| loss.counted.saturating_sub(loss.whole));
    tell(format_args!(
        "repaired     {} records are left; {missing} could not be found, {} were removed because their values are damaged; \
         {mended} lists, hashes and sets were counted again",
        store.len(),
        bad.len()
    ));
    Ok(true)
}
