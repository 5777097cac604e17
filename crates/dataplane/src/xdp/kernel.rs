//! The loaded pipeline of one shard: its programs, and how `BPF_PROG_TEST_RUN` runs them.
//!
//! [`super::load`] makes the pipeline, [`super::attach`] attaches it to interfaces, and [`super::fast_path`] is the
//! device's interface to it. Spec: `docs/spec/pipeline.md`. This module must not decide who holds the pipeline, or
//! when.

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

/// Verdict of an XDP program (linux/bpf.h): the packet is dropped.
pub const XDP_DROP: u32 = 1;
/// Verdict of an XDP program: the packet passes to the network stack.
pub const XDP_PASS: u32 = 2;
/// Verdict of an XDP program: the packet leaves through the interface at which it arrived.
pub const XDP_TX: u32 = 3;

/// Longest time for which `hold`, `release` and `wake_me` try to take the shard's lock.
const LOCK_WAIT: Duration = Duration::from_secs(3);
/// Number of runs before the first pause. In each run the program tries to take the lock for some tens of microseconds.
const LOCK_RUNS: u32 = 16;
/// Pause between two runs after the first [`LOCK_RUNS`].
const LOCK_PAUSE: Duration = Duration::from_micros(50);
/// The frame for programs that do not read their frame: the shortest that the kernel accepts.
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
    /// The pipeline is held, by this process or by an earlier process that has died.
    pub(super) held: bool,
    /// The stamp of this device's packets to other hops.
    pub(super) stamp: Stamp,
    /// Number of devices of the chain.
    pub(super) copies: u8,
    /// UDP port of the device.
    pub(super) port: u16,
    /// The addresses of the device and of all its peers are IPv4 addresses.
    pub(super) is_ipv4: bool,
    /// Fingerprint of the keys with which the process began ([`super::KernelConfig::keys`]), and the mapping of
    /// `pm_hop_keys`; `None`: the shard has no keys.
    pub(super) keys: Option<(NonZeroU64, MmapRaw)>,
}

impl Kernel {
    /// Runs one frame through the pipeline as if it had arrived at an interface. Returns the verdict; `out` gets the
    /// resulting frame.
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

    /// Runs `hold`, `release` or `wake_me` until it takes the shard's lock, for a bounded time.
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
                // Another CPU has the lock. It may be a virtual CPU that is not running now.
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

    /// Returns the number of instructions that the verifier processed for the pipeline, if this kernel reports it.
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

    /// Sets the stage of the maps. A reader that sees the new stage also sees all earlier stores.
    pub(super) fn set_stage(&self, stage: Stage) {
        self.shard().stage.store(stage.word(), Release);
    }

    /// Returns the device's pins.
    #[must_use]
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Returns whether the maps were last used with other keys than this process has. Maps that were used without keys
    /// count as maps with other keys.
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

/// Returns the word that identifies a shard's keys in the maps.
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
