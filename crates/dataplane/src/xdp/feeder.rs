//! Runs the loaded pipeline over prepared packets, many in one system call, to measure what one packet costs.
//!
//! Source: `bpf/feed.bpf.c`. It tail-calls the program that is attached to interfaces. May not: change the pipeline, or need
//! an interface.

#![allow(unsafe_code)]

use std::time::Duration;

use aya::maps::{MapData, PerCpuArray, ProgramArray};
use aya::programs::{TestRun, TestRunOptions};
use aya::{Ebpf, EbpfLoader};
use memmap2::MmapRaw;

use super::error::KernelError;
use super::kernel::{Kernel, program};
use super::maps::{map_array, take_array, take_map};
use super::names::COUNTS;
use super::pins::Pins;
use super::shared::Counters;

/// The compiled programs; empty if there was no compiler.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/feed.o"));
/// Longest frame that can be prepared, in bytes (`pm_prepared`).
pub const FRAME_BYTES_MAX: usize = 1532;
/// The frame on which the programs are run: the shortest that the kernel takes. Each run turns it into a prepared packet.
const FIRST_FRAME: [u8; 64] = [0; 64];
/// Words of the counters of one CPU.
const WORDS: usize = size_of::<Counters>() / size_of::<u64>();

/// `struct pm_prepared` of the program.
#[repr(C)]
struct Prepared {
    length: u32,
    frame: [u8; FRAME_BYTES_MAX],
}

/// The program that is tail-called for each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The pipeline.
    Pipeline,
    /// A program that does nothing: what the measurement itself costs.
    Nothing,
}

/// Counted events of a pipeline, all CPUs together (`docs/spec/pipeline.md` §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Updates appended.
    pub appended: u64,
    /// Duplicates acknowledged again.
    pub duplicates: u64,
    /// Packets of the shard handed to user space, whatever the reason.
    pub handed_up: u64,
    /// Among these: of sessions that the pipeline does not serve.
    pub sessions_unknown: u64,
    /// Among these: with wrong checksums or fixed fields.
    pub odd: u64,
}

/// Prepared packets, and the programs that feed them to a pipeline.
pub struct Feeder {
    ebpf: Ebpf,
    packets: MmapRaw,
    next: MmapRaw,
    packets_max: u32,
    counts: PerCpuArray<MapData, [u64; WORDS]>,
    // The kernel empties a map of programs when its last file is closed.
    _targets: ProgramArray<MapData>,
}

impl Feeder {
    /// Room for `packets_max` packets, to be fed to this pipeline.
    ///
    /// # Errors
    /// [`KernelError`]: not built, or this kernel does not take the programs (they need Linux 5.18).
    pub fn new(kernel: &mut Kernel, packets_max: u32) -> Result<Feeder, KernelError> {
        if OBJECT.is_empty() {
            return Err(KernelError::NotBuilt);
        }
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("pm_packets", packets_max)
            .load(OBJECT)?;
        for name in ["feed_pipeline", "feed_nothing", "nothing"] {
            program(&mut ebpf, name)?
                .load()
                .map_err(|source| KernelError::Program { name, source })?;
        }
        let bytes = usize::try_from(packets_max).unwrap_or(0) * size_of::<Prepared>();
        let packets = map_array(&take_array(&mut ebpf, "pm_packets"), bytes)?;
        let next = map_array(&take_array(&mut ebpf, "pm_next"), size_of::<u32>())?;
        let failed = |error| KernelError::map("pm_targets", error);
        let mut targets =
            ProgramArray::try_from(take_map(&mut ebpf, "pm_targets")).map_err(failed)?;
        let name = "nothing";
        let nothing = program(&mut ebpf, name)?.fd();
        let nothing = nothing.map_err(|source| KernelError::Program { name, source })?;
        targets.set(0, nothing, 0).map_err(failed)?;
        targets.set(1, kernel.pipeline()?, 0).map_err(failed)?;
        let counts = counts(kernel.pins())?;
        Ok(Feeder {
            ebpf,
            packets,
            next,
            packets_max,
            counts,
            _targets: targets,
        })
    }

    /// Prepares packet `index`.
    ///
    /// # Panics
    /// If there is no room for so many, or the frame is longer than [`FRAME_BYTES_MAX`].
    pub fn prepare(&mut self, index: u32, frame: &[u8]) {
        assert!(index < self.packets_max, "room for this packet");
        assert!(frame.len() <= FRAME_BYTES_MAX, "the frame fits");
        let index = usize::try_from(index).expect("u32 fits usize");
        let length = u32::try_from(frame.len()).expect("bounded above");
        // SAFETY: the mapping has room for `packets_max` values of this size and alignment. Only the programs read it, and
        // they run only in `run`, which borrows `self` as this does.
        let packet = unsafe { &mut *self.packets.as_mut_ptr().cast::<Prepared>().add(index) };
        packet.length = length;
        packet.frame[..frame.len()].copy_from_slice(frame);
    }

    /// Feeds the first `count` prepared packets to `target`, one after the other. Gives the verdict about the last one, and
    /// the mean time of one, in whole nanoseconds, without the system call around them.
    ///
    /// # Errors
    /// [`KernelError::Program`], also if a signal interrupted it.
    ///
    /// # Panics
    /// If `count` is 0 or more than were prepared for.
    pub fn run(&mut self, target: Target, count: u32) -> Result<(u32, Duration), KernelError> {
        assert!((1..=self.packets_max).contains(&count), "prepared packets");
        let name = match target {
            Target::Pipeline => "feed_pipeline",
            Target::Nothing => "feed_nothing",
        };
        // SAFETY: the mapping is a page that begins with this number, and no program runs now.
        unsafe { self.next.as_mut_ptr().cast::<u32>().write(0) };
        let result = program(&mut self.ebpf, name)?
            .test_run(TestRunOptions {
                data_in: Some(&FIRST_FRAME),
                repeat: count,
                ..TestRunOptions::new()
            })
            .map_err(|source| KernelError::Program { name, source })?;
        Ok((result.return_value, result.duration))
    }

    /// What the pipeline has counted so far.
    ///
    /// # Errors
    /// [`KernelError::Map`].
    pub fn counted(&self) -> Result<Counted, KernelError> {
        let values = self.counts.get(&0, 0);
        let values = values.map_err(|error| KernelError::map(COUNTS, error))?;
        let sum = |offset: usize| {
            values
                .iter()
                .map(|cpu| cpu[offset / size_of::<u64>()])
                .sum()
        };
        Ok(Counted {
            appended: sum(std::mem::offset_of!(Counters, appended)),
            duplicates: sum(std::mem::offset_of!(Counters, duplicates)),
            handed_up: sum(std::mem::offset_of!(Counters, handed_up)),
            sessions_unknown: sum(std::mem::offset_of!(Counters, sessions_unknown)),
            odd: sum(std::mem::offset_of!(Counters, odd)),
        })
    }
}

fn counts(pins: &Pins) -> Result<PerCpuArray<MapData, [u64; WORDS]>, KernelError> {
    let failed = |error| KernelError::map(COUNTS, error);
    let map = MapData::from_pin(pins.path(COUNTS)).map_err(failed)?;
    let map = aya::maps::Map::from_map_data(map).map_err(failed)?;
    PerCpuArray::try_from(map).map_err(failed)
}
