//! The XDP program that redirects UDP datagrams, or TCP segments, to a range of ports to AF_XDP sockets; everything else
//! passes.
//!
//! Source: `bpf/redirect.bpf.c`. May not: attach in another mode than the driver's own.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd};

use aya::maps::{MapData, MapError, XskMap};
use aya::programs::links::FdLink;
use aya::programs::{Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};

use crate::xdp::KernelError;

/// The compiled program; empty if there was no compiler.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/redirect.o"));
const NAME: &str = "redirect";
const SOCKETS: &str = "pm_sockets";

/// The program on an interface; detached when this is dropped, and by the kernel if the process dies.
pub struct Redirect {
    sockets: XskMap<MapData>,
    // The link holds the program.
    _link: FdLink,
}

/// What is redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP datagrams.
    Udp,
    /// TCP segments: whoever gets them is the other end of the connection, not the kernel.
    Tcp,
}

impl Transport {
    /// Its number in an IP header.
    const fn number(self) -> u32 {
        match self {
            Transport::Udp => 17,
            Transport::Tcp => 6,
        }
    }
}

/// Whether this binary contains the program.
#[must_use]
pub fn is_built() -> bool {
    !OBJECT.is_empty()
}

impl Redirect {
    /// Attaches the program to an interface of the calling thread's network namespace. Until a queue gets its
    /// [socket](Redirect::serve), everything passes.
    ///
    /// # Errors
    /// [`KernelError`]: not built, not allowed, no such interface, another program on it, or a driver that has no XDP.
    pub fn attach(interface: &str, ports: RangeInclusive<u16>) -> Result<Redirect, KernelError> {
        Redirect::attach_filtered(interface, ports, Transport::Udp, None)
    }

    /// The same for datagrams or segments to one address, and of datagrams only for those that begin with `magic`, if it
    /// is given.
    ///
    /// # Errors
    /// As [`Redirect::attach`].
    pub fn attach_for(
        interface: &str,
        to: SocketAddr,
        transport: Transport,
        magic: Option<u16>,
    ) -> Result<Redirect, KernelError> {
        let ports = to.port()..=to.port();
        Redirect::attach_filtered(interface, ports, transport, Some((to.ip(), magic)))
    }

    fn attach_filtered(
        interface: &str,
        ports: RangeInclusive<u16>,
        transport: Transport,
        only: Option<(IpAddr, Option<u16>)>,
    ) -> Result<Redirect, KernelError> {
        if !is_built() {
            return Err(KernelError::NotBuilt);
        }
        let magic = only.and_then(|(_, magic)| magic);
        let mut address = [0; 16];
        match only.map(|(ip, _)| ip) {
            Some(IpAddr::V4(ip)) => address[..4].copy_from_slice(&ip.octets()),
            Some(IpAddr::V6(ip)) => address = ip.octets(),
            None => {}
        }
        let mut ebpf: Ebpf = EbpfLoader::new()
            .override_global("pm_port_first", ports.start(), true)
            .override_global("pm_port_last", ports.end(), true)
            .override_global("pm_protocol", &transport.number(), true)
            .override_global("pm_filter", &u32::from(only.is_some()), true)
            .override_global("pm_address", &address, true)
            .override_global("pm_magic_needed", &u32::from(magic.is_some()), true)
            .override_global("pm_magic", &magic.unwrap_or(0), true)
            .load(OBJECT)?;
        let failed = |source| KernelError::Program { name: NAME, source };
        let program: &mut Xdp = ebpf
            .program_mut(NAME)
            .expect("build.rs compiled an object that has it")
            .try_into()
            .map_err(failed)?;
        program.load().map_err(failed)?;
        let attached = program
            .attach(interface, XdpMode::Driver)
            .map_err(failed)
            .map_err(|source| KernelError::Attach {
                interface: interface.to_owned(),
                source: Box::new(source),
            })?;
        let link = program.take_link(attached).map_err(failed)?.try_into()?;
        let sockets = ebpf
            .take_map(SOCKETS)
            .expect("build.rs compiled an object that has it");
        let sockets =
            XskMap::try_from(sockets).map_err(|error| KernelError::map(SOCKETS, error))?;
        Ok(Redirect {
            sockets,
            _link: link,
        })
    }

    /// Redirects what comes in by a queue to this socket, which is bound to it, until the socket is closed.
    ///
    /// # Errors
    /// [`KernelError::Map`]: the map has no room for such a queue number, or this is no AF_XDP socket.
    pub fn serve(&mut self, queue: u32, socket: &impl AsFd) -> Result<(), KernelError> {
        let descriptor = socket.as_fd().as_raw_fd();
        let set: Result<(), MapError> = self.sockets.set(queue, descriptor, 0);
        set.map_err(|error| KernelError::map(format!("{SOCKETS}, queue {queue}"), error))
    }
}
