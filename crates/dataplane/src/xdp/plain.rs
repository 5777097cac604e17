//! Programs without any state, natively attached to an interface: what measurements compare the
//! pipeline with, and what a veth needs to take packets that its peer transmits from XDP.
//!
//! Source: `bpf/reflect.bpf.c`. May not: know the log, or fall back to the generic mode, whose times
//! mean nothing.

use std::path::Path;

use aya::Ebpf;
use aya::programs::links::FdLink;
use aya::programs::{Xdp, XdpMode};

use super::KernelError;
#[cfg(doc)]
use super::Pins;

/// The compiled programs; empty if there was no compiler.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/reflect.o"));

/// Which of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Every UDP datagram over IPv4 to a port of pmnet's range goes back to where it came from;
    /// everything else passes.
    Reflect,
    /// Everything passes.
    Pass,
}

impl Program {
    /// Its name in the object file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Program::Reflect => "reflect",
            Program::Pass => "pass",
        }
    }
}

/// A program on an interface; detached when this is dropped, and by the kernel if the process dies,
/// unless it was [pinned](Plain::pin).
#[derive(Debug)]
pub struct Plain {
    // The link holds the program, whatever becomes of the rest.
    link: FdLink,
}

impl Plain {
    /// Leaves it attached until the file is removed; `path` is of the BPF file system, such as
    /// [`Pins::path`].
    ///
    /// # Errors
    /// [`KernelError`]: something is there already, or it is another file system.
    pub fn pin(self, path: &Path) -> Result<(), KernelError> {
        let pinned = self.link.pin(path);
        pinned
            .map(drop)
            .map_err(|error| KernelError::pin(path.display().to_string(), error))
    }
}

/// Whether this binary contains the programs.
#[must_use]
pub fn is_built() -> bool {
    !OBJECT.is_empty()
}

/// Attaches `program` to `interface` of the calling thread's network namespace, in the driver's
/// own mode.
///
/// # Errors
/// [`KernelError`]: not built, not allowed (it needs root, or CAP_BPF and CAP_NET_ADMIN), no such
/// interface, another program on it, or a driver that has no XDP.
pub fn attach(program: Program, interface: &str) -> Result<Plain, KernelError> {
    if !is_built() {
        return Err(KernelError::NotBuilt);
    }
    let name = program.name();
    let failed = |source| KernelError::Program { name, source };
    let mut ebpf = Ebpf::load(OBJECT)?;
    let loaded: &mut Xdp = ebpf
        .program_mut(name)
        .expect("build.rs compiled an object that has it")
        .try_into()
        .map_err(failed)?;
    loaded.load().map_err(failed)?;
    let id = loaded.attach(interface, XdpMode::Driver).map_err(failed)?;
    let link = loaded.take_link(id).map_err(failed)?;
    // Not the older kind of attachment, which nobody would remove after a crash.
    Ok(Plain {
        link: link.try_into()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_such_interface_is_an_error_that_names_the_program() {
        if !is_built() {
            assert!(matches!(
                attach(Program::Pass, "no-such-if"),
                Err(KernelError::NotBuilt)
            ));
            return;
        }
        // Without privileges the kernel refuses earlier.
        match attach(Program::Pass, "no-such-if") {
            Err(KernelError::Program { name, .. }) => assert_eq!(name, "pass"),
            Err(KernelError::Load(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}
