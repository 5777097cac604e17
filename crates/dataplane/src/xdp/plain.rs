//! XDP programs without state: `reflect` is the baseline of measurements; `pass` makes a veth accept packets that its peer
//! sends by XDP_TX.
//!
//! Source: `bpf/reflect.bpf.c`. May not: know the log, or fall back to the generic mode of XDP, whose times mean nothing.

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
    /// Sends every UDP datagram over IPv4 to a port of pmnet's range back to its sender; everything else passes.
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

/// A program that is attached to an interface. It is detached when this is dropped or the process dies, unless it was
/// [pinned](Plain::pin).
#[derive(Debug)]
pub struct Plain {
    // The link keeps the program loaded.
    link: FdLink,
}

impl Plain {
    /// Pins the link, so the program stays attached until the pin is removed. `path` is in the BPF file system, such as
    /// [`Pins::path`].
    ///
    /// # Errors
    /// [`KernelError`]: the path exists, or is in another file system.
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
    // A link, since the kernel removes it if the process dies; an attachment by netlink would stay.
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
        // Without privileges the kernel already refuses to load it.
        match attach(Program::Pass, "no-such-if") {
            Err(KernelError::Program { name, .. }) => assert_eq!(name, "pass"),
            Err(KernelError::Load(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}
