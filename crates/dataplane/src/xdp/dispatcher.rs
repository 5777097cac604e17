//! The program at an interface with several devices. It passes a packet on to the pipeline of the device to whose port
//! the packet is addressed.
//!
//! Invariants: ports and pipelines of a loaded dispatcher never change. When a device is attached or detached, another
//! dispatcher is loaded. The dispatcher's array of programs must be pinned before the dispatcher is attached: the
//! kernel empties an array of programs that neither a process nor a pin holds. Source: `bpf/dispatch.bpf.c`. Spec:
//! `docs/spec/pipeline.md` §9. This module must not attach anything.

use std::path::Path;

use aya::maps::{MapData, ProgramArray};
use aya::programs::{ProgramFd, TestRun, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};

use super::error::KernelError;
use super::kernel::program;
use super::shared::DEVICES_MAX;

/// The compiled program; empty if there was no compiler.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/dispatch.o"));
const NAME: &str = "dispatch";
const PROGRAMS: &str = "pm_programs";

/// The program, loaded for some devices.
pub struct Dispatcher {
    ebpf: Ebpf,
    // The array, which stays open so that the kernel does not empty it. `None`: the array is pinned.
    programs: Option<ProgramArray<MapData>>,
}

impl Dispatcher {
    /// Loads the program for these devices, given the UDP port and the pipeline of each.
    ///
    /// # Errors
    /// [`KernelError`]; also if there are more devices than an interface can have.
    pub fn load(devices: &[(u16, &ProgramFd)]) -> Result<Dispatcher, KernelError> {
        if OBJECT.is_empty() {
            return Err(KernelError::NotBuilt);
        }
        if devices.len() > DEVICES_MAX {
            return Err(KernelError::Parameters(format!(
                "{} devices at one interface: at most {DEVICES_MAX}",
                devices.len()
            )));
        }
        let mut ports = [0; 2 * DEVICES_MAX];
        for (place, (port, _)) in ports.chunks_exact_mut(2).zip(devices) {
            place.copy_from_slice(&port.to_be_bytes());
        }
        let mut ebpf = EbpfLoader::new()
            .override_global("pm_ports", &ports, true)
            .load(OBJECT)?;
        let failed = |error| KernelError::map(PROGRAMS, error);
        let programs = ebpf.take_map(PROGRAMS).expect("the object has this map");
        let mut programs = ProgramArray::try_from(programs).map_err(failed)?;
        for (place, (_, pipeline)) in (0..).zip(devices) {
            programs.set(place, pipeline, 0).map_err(failed)?;
        }
        program(&mut ebpf, NAME)?
            .load()
            .map_err(|source| KernelError::load(NAME, source))?;
        Ok(Dispatcher {
            ebpf,
            programs: Some(programs),
        })
    }

    /// Pins the array of programs, if it is not pinned yet.
    pub(super) fn pin(&mut self, path: &Path) -> Result<(), KernelError> {
        self.programs.take().map_or(Ok(()), |programs| {
            programs
                .pin(path)
                .map_err(|error| KernelError::pin(PROGRAMS, error))
        })
    }

    /// Returns the program, so that the caller can attach it.
    pub(super) fn program(&mut self) -> Result<&mut Xdp, KernelError> {
        program(&mut self.ebpf, NAME)
    }

    /// Returns the program, as the target of a tail call.
    ///
    /// # Errors
    /// [`KernelError::Program`].
    pub fn fd(&mut self) -> Result<&ProgramFd, KernelError> {
        self.program()?
            .fd()
            .map_err(|source| KernelError::Program { name: NAME, source })
    }

    /// Runs one frame through the program as if it had arrived at an interface. Returns the verdict; `out` gets the
    /// resulting frame.
    ///
    /// # Errors
    /// [`KernelError::Program`].
    pub fn run<'a>(
        &mut self,
        frame: &[u8],
        out: &'a mut [u8],
    ) -> Result<(u32, &'a [u8]), KernelError> {
        let result = self
            .program()?
            .test_run(TestRunOptions {
                data_in: Some(frame),
                data_out: Some(out),
                ..TestRunOptions::new()
            })
            .map_err(|source| KernelError::Program { name: NAME, source })?;
        let len = usize::try_from(result.data_size_out)
            .unwrap_or(0)
            .min(out.len());
        Ok((result.return_value, &out[..len]))
    }
}
