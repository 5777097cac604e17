//! XDP programs without state. `reflect` is the baseline of measurements. `cross` is the baseline of a machine between
//! client and server. `pass` makes a veth accept packets that its peer sends by XDP_TX.
//!
//! Source: `bpf/reflect.bpf.c`. The programs must not know the log. The programs must not run in the generic mode of
//! XDP, because times measured in this mode mean nothing.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;

use anyhow::{Context, ensure};
use aya::EbpfLoader;
use aya::programs::XdpMode;
use aya::programs::links::FdLink;
#[cfg(doc)]
use pmnet_dataplane::xdp::Pins;
use pmnet_wire::{PORT_FIRST, PORT_LAST};
use rustix::net::netdevice::name_to_index;

use super::{NOT_BUILT, program};

/// The compiled programs; empty if the build had no compiler for them.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/reflect.o"));

/// A program of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Sends every UDP datagram over IPv4 to a port of pmnet's range back to its sender. Other packets pass.
    Reflect,
    /// Sends every UDP datagram over IPv4 to or from a port of pmnet's range through this interface. Other packets
    /// pass.
    Cross(&'static str),
    /// Lets every packet pass.
    Pass,
}

impl Program {
    /// Returns the name of the program in the object file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Program::Reflect => "reflect",
            Program::Cross(_) => "cross",
            Program::Pass => "pass",
        }
    }
}

/// A program that is attached to an interface. The program is detached when this value is dropped or the process dies,
/// unless it was [pinned](Plain::pin).
#[derive(Debug)]
pub struct Plain {
    // The link, which keeps the program loaded.
    link: FdLink,
}

impl Plain {
    /// Pins the link, so that the program stays attached until the pin is removed. `path` must be
    /// in the BPF file system, such as [`Pins::path`].
    ///
    /// # Errors
    /// Fails if the path exists already, or if it is in another file system.
    pub fn pin(self, path: &Path) -> anyhow::Result<()> {
        let pinned = self.link.pin(path);
        pinned
            .map(drop)
            .with_context(|| format!("cannot pin {}", path.display()))
    }
}

/// Returns whether this binary contains the programs.
#[must_use]
pub fn is_built() -> bool {
    !OBJECT.is_empty()
}

/// Attaches `program` to `interface` of the calling thread's network namespace, in the driver's
/// own mode.
///
/// # Errors
/// Fails if this binary does not contain the program, if this process lacks the right (root, or CAP_BPF and
/// CAP_NET_ADMIN), if the interface does not exist or has another program, or if its driver has no XDP.
pub fn attach(which: Program, interface: &str) -> anyhow::Result<Plain> {
    ensure!(is_built(), NOT_BUILT);
    let name = which.name();
    let link = load(which, interface).with_context(|| format!("program {name}"))?;
    Ok(Plain { link })
}

/// Returns the index of an interface in the calling thread's network namespace.
fn index(interface: &str) -> anyhow::Result<u32> {
    let any = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    Ok(name_to_index(&any, interface)?)
}

fn load(which: Program, interface: &str) -> anyhow::Result<FdLink> {
    let other = match which {
        Program::Cross(other) => index(other).with_context(|| other.to_owned())?,
        Program::Reflect | Program::Pass => 0,
    };
    let mut ebpf = EbpfLoader::new()
        .override_global("pm_port_first", &PORT_FIRST, true)
        .override_global("pm_port_last", &PORT_LAST, true)
        .override_global("pm_other", &other, true)
        .load(OBJECT)?;
    let loaded = program(&mut ebpf, which.name())?;
    loaded.load()?;
    let id = loaded.attach(interface, XdpMode::Driver)?;
    // The kernel removes a link when the process dies. A program that is attached by netlink would stay.
    Ok(loaded.take_link(id)?.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_such_interface_is_an_error_that_names_the_program() {
        let error = attach(Program::Pass, "no-such-if").unwrap_err();
        if is_built() {
            assert_eq!(error.to_string(), "program pass");
        } else {
            assert_eq!(error.to_string(), NOT_BUILT);
        }
    }
}
