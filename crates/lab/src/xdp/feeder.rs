//! Runs the loaded pipeline on prepared packets, many in one system call, to measure the cost of one packet.
//!
//! Source: `bpf/feed.bpf.c`. The program in this file tail-calls the pipeline, which is the same program as at an
//! interface. This code must not change the pipeline, and must not need an interface.

use std::time::Duration;

use anyhow::{Context, ensure};
use aya::maps::{Array, MapData, ProgramArray};
use aya::programs::{ProgramFd, TestRun, TestRunOptions};
use aya::{Ebpf, EbpfLoader};
use pmnet_dataplane::xdp::Status;

use super::{NOT_BUILT, program};

/// The compiled programs; empty if the build had no compiler for them.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/feed.o"));
/// Longest frame that can be prepared, in bytes (`pm_prepared`).
const FRAME_BYTES_MAX: usize = 1532;
/// Bytes of a prepared packet: the length of its frame, then the frame (`pm_prepared`).
const PREPARED_BYTES: usize = 4 + FRAME_BYTES_MAX;
/// The frame with which the programs are called. This frame has the shortest length that the kernel accepts. Each run
/// replaces its contents by a prepared packet.
const FIRST_FRAME: [u8; 64] = [0; 64];

/// The program that gets each packet by a tail call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The pipeline.
    Pipeline,
    /// A program that does nothing, and shows the cost of the measurement itself.
    Nothing,
}

/// Event counters of a pipeline, as sums over all CPUs (`docs/spec/pipeline.md` §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Number of appended updates.
    pub appended: u64,
    /// Number of duplicates that were acknowledged again.
    pub duplicates: u64,
    /// Number of READs that were answered with an update (HIT).
    pub read_hits: u64,
    /// Number of READs that were answered with the order that the store must have applied (MISS).
    pub read_misses: u64,
    /// Number of packets of the shard that the pipeline passed to user space, for any reason.
    pub handed_up: u64,
    /// The part of `handed_up` that belongs to sessions which the pipeline does not serve.
    pub sessions_unknown: u64,
    /// The part of `handed_up` with wrong checksums or wrong fixed fields.
    pub odd: u64,
}

/// Prepared packets, with the programs that feed them to a pipeline.
pub struct Feeder {
    ebpf: Ebpf,
    packets: Array<MapData, [u8; PREPARED_BYTES]>,
    next: Array<MapData, u32>,
    packets_max: u32,
    /// The name of the device that owns the pipeline.
    device: String,
    // This handle stays open, because the kernel empties a map of programs when its last file is closed.
    _targets: ProgramArray<MapData>,
}

impl Feeder {
    /// Makes space for `packets_max` prepared packets. `fed` is the program that gets the packets: the pipeline of this
    /// device, or a program that tail-calls it.
    ///
    /// # Errors
    /// Fails if this binary was built without the programs, or if the kernel refuses them (they need Linux 5.18).
    pub fn new(fed: &ProgramFd, device: &str, packets_max: u32) -> anyhow::Result<Feeder> {
        ensure!(!OBJECT.is_empty(), NOT_BUILT);
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("pm_packets", packets_max)
            .load(OBJECT)
            .context("the kernel did not take the programs (Linux 5.18 or later is needed)")?;
        for name in ["feed_pipeline", "feed_nothing", "nothing"] {
            let loaded = program(&mut ebpf, name)?.load();
            loaded.with_context(|| format!("program {name} (Linux 5.18 or later is needed)"))?;
        }
        let mut take = |name| ebpf.take_map(name).expect("the object has this map");
        let packets = Array::try_from(take("pm_packets"))?;
        let next = Array::try_from(take("pm_next"))?;
        let mut targets = ProgramArray::try_from(take("pm_targets"))?;
        targets.set(0, program(&mut ebpf, "nothing")?.fd()?, 0)?;
        targets.set(1, fed, 0)?;
        Ok(Feeder {
            ebpf,
            packets,
            next,
            packets_max,
            device: device.to_owned(),
            _targets: targets,
        })
    }

    /// Stores the frame as prepared packet number `index`.
    ///
    /// # Errors
    /// Fails if `index` is not below `packets_max`, or if the frame is too long.
    pub fn prepare(&mut self, index: u32, frame: &[u8]) -> anyhow::Result<()> {
        ensure!(
            frame.len() <= FRAME_BYTES_MAX,
            "a frame of {} bytes",
            frame.len()
        );
        let mut prepared = [0; PREPARED_BYTES];
        let (length, bytes) = prepared.split_at_mut(4);
        length.copy_from_slice(&u32::try_from(frame.len())?.to_ne_bytes());
        bytes[..frame.len()].copy_from_slice(frame);
        let set = self.packets.set(index, prepared, 0);
        set.with_context(|| format!("cannot prepare packet {index}"))
    }

    /// Feeds the first `count` prepared packets to `target`, one after the other. Returns the verdict on the last
    /// packet, and the mean time of one packet in whole nanoseconds. The time does not include the system call.
    ///
    /// # Errors
    /// Fails if the kernel does not run the program, or if a signal interrupts it.
    ///
    /// # Panics
    /// Panics if `count` is 0, or larger than `packets_max`.
    pub fn run(&mut self, target: Target, count: u32) -> anyhow::Result<(u32, Duration)> {
        assert!((1..=self.packets_max).contains(&count), "prepared packets");
        let name = match target {
            Target::Pipeline => "feed_pipeline",
            Target::Nothing => "feed_nothing",
        };
        self.next.set(0, 0, 0)?;
        let result = program(&mut self.ebpf, name)?
            .test_run(TestRunOptions {
                data_in: Some(&FIRST_FRAME),
                repeat: count,
                ..TestRunOptions::new()
            })
            .with_context(|| format!("program {name}"))?;
        Ok((result.return_value, result.duration))
    }

    /// Returns the pipeline's present counters.
    ///
    /// # Errors
    /// Fails if the counters cannot be read.
    pub fn counted(&self) -> anyhow::Result<Counted> {
        let status = Status::read(&self.device)?;
        let of = |name: &str| {
            let counter = status.counters.iter().find(|(known, _)| *known == name);
            let (_, count) = counter.with_context(|| format!("there is no counter {name}"))?;
            anyhow::Ok(*count)
        };
        Ok(Counted {
            appended: of("appended")?,
            duplicates: of("duplicates")?,
            read_hits: of("read_hits")?,
            read_misses: of("read_misses")?,
            handed_up: of("handed_up")?,
            sessions_unknown: of("sessions_unknown")?,
            odd: of("odd")?,
        })
    }
}
