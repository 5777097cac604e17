//! `pmnet device --mode verbs`: an RDMA NIC acknowledges writes, and this process takes the writes from the NIC's slots
//! (`docs/spec/verbs.md`).

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use pmnet_cli::ConfigError;
use pmnet_client::Stop;
use pmnet_dataplane::relay::run_with;
use pmnet_device::{DeviceNode, Served as _, Turn};
use pmnet_fleet::Facts;
use pmnet_log::slots::{SlotParameters, SlotScan};
use pmnet_log::{Identity, Media};
use pmnet_media::{AnyMedia, Domain, Kind};
use pmnet_proto::Random;
use pmnet_verbs::{Queue, QueueConfig, QueueDevice};
use serde_json::json;

use super::args::{DeviceArgs, Mode};
use super::relay::{announce, open_log};
use super::settings::Settings;
use super::supervisor::facts;
use crate::cli::process::Part;
use crate::status::DeviceWriter;

/// Size of a slot in bytes. The largest packet fits into a slot.
const SLOT_BYTES: u32 = 2048;
const _: () = assert!(pmnet_wire::DATAGRAM_BYTES_MAX <= SLOT_BYTES as usize);
/// Default number of new slots.
const SLOTS: u32 = 1024;

/// Settings of `--mode verbs`.
#[derive(Clone, Debug)]
pub struct VerbsSettings {
    rdma: String,
    slots: PathBuf,
    count: Option<u32>,
    may_make: bool,
    ddio_off: bool,
}

impl VerbsSettings {
    /// Returns the settings of this mode; `None` in other modes.
    pub fn new(args: &DeviceArgs) -> Result<Option<VerbsSettings>, ConfigError> {
        let said = [
            (args.rdma.is_some(), "--rdma"),
            (args.slots.is_some(), "--slots"),
            (args.slot_count.is_some(), "--slot-count"),
            (args.new_slots, "--new-slots"),
            (args.ddio_off, "--ddio-off"),
        ];
        if args.mode != Some(Mode::Verbs) {
            let flag = said.iter().find(|(is, _)| *is);
            return flag.map_or(Ok(None), |(_, flag)| {
                Err(ConfigError(format!("{flag} belongs to --mode verbs")))
            });
        }
        let others = [
            (
                args.fleet.is_some(),
                "--fleet",
                "a lease cannot silence a NIC",
            ),
            (args.store.is_some(), "--store", "use pmnet server"),
            (
                args.shards.is_some_and(|shards| shards > 1),
                "--shards",
                "each shard has slots, a TCP port and a queue of the NIC of its own. Start one process for each shard, each with --shard, --listen, \
                 --log and --slots of its own; all may have the same --rdma",
            ),
            (
                args.join,
                "--join",
                "a device joins at the end of its chain, and this mode is for the first one",
            ),
        ];
        if let Some((_, flag, why)) = others.iter().find(|(is, ..)| *is) {
            let text = format!("{flag} does not go with --mode verbs: {why}");
            return Err(ConfigError(text));
        }
        let (Some(rdma), Some(slots)) = (args.rdma.clone(), args.slots.clone()) else {
            return Err(ConfigError(
                "--mode verbs needs --rdma (the RDMA device) and --slots (where it puts messages)"
                    .into(),
            ));
        };
        Ok(Some(VerbsSettings {
            rdma,
            slots,
            count: args.slot_count,
            may_make: args.new_slots,
            ddio_off: args.ddio_off,
        }))
    }

    /// Opens the slots of this log, or makes new ones. If the log was used before, new slots are made only on the
    /// operator's order: the log's old slots may be in another file, and may have acknowledged writes.
    fn open(&self, log: Identity, used: bool) -> anyhow::Result<SlotScan<AnyMedia>> {
        let wanted = SlotParameters {
            slots: self.count.unwrap_or(SLOTS),
            slot_bytes: SLOT_BYTES,
        };
        wanted.validate()?;
        let kind = kind(&self.slots);
        let unused = !self.slots.exists() || pmnet_media::is_unused_device(&self.slots, kind)?;
        let refused = || {
            anyhow::anyhow!(
                "PM1704 the log was used before, and there are no slots here: if its slots are elsewhere, acknowledged writes may be in \
                 them. Give their path with --slots. Only if there are none, because this log was used in another mode: --new-slots"
            )
        };
        anyhow::ensure!(!unused || !used || self.may_make, refused());
        let mut media = if unused {
            pmnet_media::create(
                &self.slots,
                kind,
                wanted.image_bytes().next_multiple_of(4096),
            )?
        } else {
            pmnet_media::open(&self.slots, kind)?
        };
        // If the file has only zeros, a process ended before it had written to the new slots.
        if unused || media.bytes().iter().all(|byte| *byte == 0) {
            anyhow::ensure!(!used || self.may_make, refused());
            pmnet_log::slots::format(&mut media, log, wanted)?;
            tracing::info!(path = %self.slots.display(), ?wanted, "made new slots");
        }
        let scan = SlotScan::open(media, Some(log))?;
        let found = scan.parameters();
        let other = self.count.is_some_and(|count| count != found.slots);
        anyhow::ensure!(
            !other,
            "--slot-count: there are {} slots already; leave it out",
            found.slots
        );
        Ok(scan)
    }

    /// Returns the faults that a write survives when the NIC has acknowledged it. `log`: the faults that the log
    /// survives. The processor does not flush anything before the NIC acknowledges.
    fn survives(&self, slots: &AnyMedia, log: &'static str) -> &'static str {
        match slots {
            // The NIC's write survives the same faults as the log, because the device moves the write into the log.
            _ if !log.starts_with("power loss") => log,
            AnyMedia::Pmem(pmem) if pmem.domain() == Domain::CpuCache || self.ddio_off => {
                slots.survives()
            }
            AnyMedia::Pmem(_) => {
                "death of the process, not power loss (what the NIC wrote may be in a cache: --ddio-off says that it is not)"
            }
            AnyMedia::Dram(_) | AnyMedia::File(_) => slots.survives(),
        }
    }
}

/// Returns the kind of memory. A devdax device is persistent memory; any other file is ordinary memory.
fn kind(path: &Path) -> Kind {
    let device = std::fs::metadata(path).is_ok_and(|it| it.file_type().is_char_device());
    if device { Kind::Pmem } else { Kind::Dram }
}

/// Makes one run, which lasts until the process is asked to end. `may_serve` is called after log, slots and NIC are
/// open.
pub fn run(
    mut settings: Settings,
    verbs: &VerbsSettings,
    mut writer: DeviceWriter,
    stop: &Stop,
    part: &Part<'_>,
    may_serve: impl FnOnce(Facts) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let (log, _) = open_log(&settings)
        .with_context(|| format!("cannot use the log {}", settings.path.display()))?;
    let about = (settings.relay.device.id, settings.relay.device.shard);
    let scan = verbs
        .open(*log.identity(), log.last() > 0)
        .with_context(|| format!("cannot use the slots {}", verbs.slots.display()))?;
    let (slots, memory) = (scan.parameters().slots, scan.media().memory());
    let (media, alone, chained) = (
        log.media_name(),
        verbs.survives(scan.media(), log.survives()),
        log.survives(),
    );
    let config = QueueConfig {
        rdma: verbs.rdma.clone(),
        listen: settings.relay.listen,
        shard: about.1,
    };
    let random = Random::new(getrandom::u64().context("no random numbers")?);
    let queue = Queue::open(&config, scan, memory, random)?;
    if !may_serve(facts(&log))? {
        return Ok(log.close()?);
    }
    let rdma = verbs.rdma.clone();
    // The slots may hold acknowledged writes of a front that was refused (by the key file) while the device was not
    // running. The store must still get these writes. So the first turn gets the keys of the file, and the list of
    // refused fronts comes later, through the queue.
    if let Some(keys) = &mut settings.relay.device.keys {
        keys.cluster.refused.clear();
    }
    let make = |node: DeviceNode<AnyMedia>| queue.before(node);
    let mut last = None;
    let observe = |node: &QueueDevice<AnyMedia, AnyMedia>, turn: &Turn| {
        let (connections, queue) = (node.connection_counters(), node.counters());
        last = Some((connections, queue));
        writer.turn(node.device(), turn);
        if let Some(board) = writer.shown().and_then(|board| board.verbs.as_ref()) {
            board.turn(queue, connections);
        }
    };
    run_with(settings.relay, log, stop, make, observe, |address, node| {
        // With one copy, the NIC's slots determine which faults an acknowledged write survives. With more copies, the
        // devices' logs determine this.
        let survives = if node.machine().copies() == 1 {
            alone
        } else {
            chained
        };
        let more = [("rdma", json!(rdma)), ("slots", json!(slots))];
        announce(part, address, node, about, (media, survives), &more);
    })?;
    tracing::info!(?last, "what the NIC and its connections did");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::device::settings::{Place, settings};

    fn args() -> DeviceArgs {
        let text = r#"
            listen = "10.0.0.2:51000"
            next = "10.0.0.3:51500"
            log = "/dev/shm/none"
            media = "dram"
            mode = "verbs"
            insecure = true
            rdma = "rxe0"
            slots = "/dev/shm/none.slots"
        "#;
        toml::from_str(text).unwrap()
    }

    /// Regression test: this mode was treated as a mode of the kernel.
    #[test]
    fn a_device_of_this_mode_has_its_place_and_no_ctl() {
        let settings = settings(args()).unwrap();
        assert!(matches!(settings.place, Place::Verbs(_)) && !settings.ctl);
    }

    #[test]
    fn what_does_not_go_with_this_mode_is_refused_with_the_flags_name() {
        let refused = |change: &dyn Fn(&mut DeviceArgs), flag: &str| {
            let mut args = args();
            change(&mut args);
            let error = settings(args).err().map(|error| error.to_string());
            assert!(
                error.as_ref().is_some_and(|text| text.contains(flag)),
                "{flag}: {error:?}"
            );
        };
        refused(&|args| args.rdma = None, "--rdma");
        refused(&|args| args.slots = None, "--slots");
        refused(&|args| args.mode = None, "--rdma");
        refused(&|args| args.join = true, "--join");
        refused(&|args| args.shards = Some(2), "--shards");
        refused(&|args| args.fleet = Some("prod".into()), "--fleet");
        refused(&|args| args.dev = Some(vec!["eth0".into()]), "--dev");
        refused(
            &|args| args.listen = Some("0.0.0.0:51000".into()),
            "--listen",
        );
    }
}
