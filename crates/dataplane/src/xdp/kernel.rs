//! The loaded pipeline of one shard: its programs, and running them by `BPF_PROG_TEST_RUN`.
//!
//! [`super::load`] makes it, [`super::attach`] puts it in front of interfaces, [`super::fast_path`] is what the device
//! uses of it. Spec: `docs/spec/pipeline.md`. May not: decide who holds the pipeline, or when.

use std::num::NonZeroU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{MapData, RingBuf};
use aya::programs::{ProgramFd, TestRun, TestRunOptions, Xdp};
use memmap2::MmapRaw;
use pmnet_wire::packet::Stamp;

use super::error::KernelError;
use super::maps::{hops_in, shard_in};
use super::pins::Pins;
use super::reads::Buckets;
use super::sessions::Sessions;
use super::shared::{Hops, Shard};
use super::stage::Stage;

/// Verdicts of XDP programs (linux/bpf.h). Dropped.
pub const XDP_DROP: u32 = 1;
/// Up to the network stack.
pub const XDP_PASS: u32 = 2;
/// Back out of the interface that it came in by.
pub const XDP_TX: u32 = 3;

/// How long `hold`, `release` and `wake_me` try to get the shard's lock.
const LOCK_WAIT: Duration = Duration::from_secs(3);
/// Number of first runs without a pause between them. In each run the program tries for some tens of microseconds.
const LOCK_RUNS: u32 = 16;
/// Pause between two runs after the first [`LOCK_RUNS`].
const LOCK_PAUSE: Duration = Duration::from_micros(50);
/// The frame for programs that look at none: the least that the kernel takes.
const NO_FRAME: [u8; 64] = [0; 64];

/// The loaded pipeline of one shard.
pub struct Kernel {
    pub(super) ebpf: Ebpf,
    pub(super) pins: Pins,
    /// Mapping of `pm_shards`.
    pub(super) shard: MmapRaw,
    /// Mapping of `pm_chain`.
    pub(super) chain: MmapRaw,
    pub(super) sessions: Sessions,
    pub(super) buckets: Buckets,
    pub(super) wakeups: RingBuf<MapData>,
    /// It is held, by this process or by one that died.
    pub(super) held: bool,
    /// How this device signs what it says to other hops.
    pub(super) stamp: Stamp,
    /// Devices of the chain.
    pub(super) copies: u8,
    /// Its UDP port.
    pub(super) port: u16,
    /// Its address is one of IPv4, as are those of all with whom it talks.
    pub(super) is_ipv4: bool,
    /// Which keys its process began with ([`super::KernelConfig::keys`]), and the mapping of `pm_hop_keys`.
    pub(super) keys: Option<(NonZeroU64, MmapRaw)>,
}

impl Kernel {
    /// Runs one frame through the pipeline as if it had come in by an interface: the verdict, and the
    /// frame as it is then in `out`.
    ///
    /// # Errors
    /// [`KernelError::Program`].
    pub fn run<'a>(
        &mut self,
        frame: &[u8],
        out: &'a mut [u8],
    ) -> Result<(u32, &'a [u8]), KernelError> {
        let name = "pipeline";
        let result = program(&mut self.ebpf, name)?
            .test_run(TestRunOptions {
                data_in: Some(frame),
                data_out: Some(out),
                ..TestRunOptions::new()
            })
            .map_err(|source| KernelError::Program { name, source })?;
        let len = usize::try_from(result.data_size_out)
            .unwrap_or(0)
            .min(out.len());
        Ok((result.return_value, &out[..len]))
    }

    /// Runs `hold`, `release` or `wake_me`, again and again until it gets the shard's lock, but not for ever.
    pub(super) fn run_control(&mut self, name: &'static str) -> Result<(), KernelError> {
        let program = program(&mut self.ebpf, name)?;
        let mut runs = 0;
        let mut since = None;
        loop {
            let result = program
                .test_run(TestRunOptions {
                    data_in: Some(&NO_FRAME),
                    ..TestRunOptions::new()
                })
                .map_err(|source| KernelError::Program { name, source })?;
            match result.return_value {
                XDP_PASS => return Ok(()),
                // Another CPU has the lock; it may be a virtual one that does not run at the moment.
                XDP_DROP => {}
                answer => return Err(KernelError::Answer { name, answer }),
            }
            runs += 1;
            if runs < LOCK_RUNS {
                continue;
            }
            if since.get_or_insert_with(Instant::now).elapsed() > LOCK_WAIT {
                return Err(KernelError::Locked(name));
            }
            std::thread::sleep(LOCK_PAUSE);
        }
    }

    /// Instructions that the verifier processed to accept the pipeline, if this kernel tells.
    #[must_use]
    pub fn verified_instructions(&mut self) -> Option<u32> {
        let program = program(&mut self.ebpf, "pipeline").ok()?;
        program.info().ok()?.verified_instruction_count()
    }

    /// Returns the program `pipeline`, as the target of a tail call.
    ///
    /// # Errors
    /// [`KernelError::Program`].
    pub fn pipeline(&mut self) -> Result<&ProgramFd, KernelError> {
        let name = "pipeline";
        program(&mut self.ebpf, name)?
            .fd()
            .map_err(|source| KernelError::Program { name, source })
    }

    /// Says how far the maps are in their life. A reader that sees this also sees everything that was stored before.
    pub(super) fn set_stage(&self, stage: Stage) {
        self.shard().stage.store(stage.word(), Release);
    }

    /// Returns where it is pinned.
    #[must_use]
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Returns whether the maps were used with other keys, or with none, or without keys and are to be used with some.
    pub(super) fn has_other_keys(&self) -> bool {
        let print = self.keys.as_ref().map(|(print, _)| *print);
        self.shard().keys.load(Relaxed) != print_word(print)
    }

    pub(super) fn shard(&self) -> &Shard {
        shard_in(&self.shard)
    }

    pub(super) fn chain(&self) -> &Hops {
        hops_in(&self.chain)
    }
}

/// The word that says which keys a shard has.
pub(super) fn print_word(print: Option<NonZeroU64>) -> u64 {
    print.map_or(0, NonZeroU64::get)
}

/// Returns a program of a loaded object.
pub(super) fn program<'a>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut Xdp, KernelError> {
    ebpf.program_mut(name)
        .expect("the object has this program")
        .try_into()
        .map_err(|source| KernelError::Program { name, source })
}
