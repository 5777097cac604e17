//! The XDP program that redirects UDP datagrams, or TCP segments, for a range of ports to AF_XDP sockets. All ports
//! have the same sockets, or each port has its own sockets. All other packets pass.
//!
//! Source: `bpf/redirect.bpf.c`. This module must not attach in another mode than the driver's own.

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
/// Only queues with a lower number can have a socket.
pub const QUEUES_MAX: u32 = 64;

/// The program at an interface. It is detached when this value is dropped, and by the kernel if the process dies.
pub struct Redirect {
    sockets: XskMap<MapData>,
    // The link holds the program.
    _link: FdLink,
}

/// Selects the datagrams that are redirected, and the ports that have sockets.
#[derive(Clone, Copy, Debug)]
pub struct Only {
    /// Only datagrams to this address are redirected. The address has the first port.
    pub to: SocketAddr,
    /// Maximum number of ports, from the address's port on. Each port has its own sockets ([`Redirect::serve_port`]).
    pub ports: u16,
    /// UDP datagrams or TCP segments.
    pub transport: Transport,
    /// The first two bytes that datagrams must have.
    pub magic: Option<u16>,
}

/// Kind of packets that are redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP datagrams.
    Udp,
    /// TCP segments. The program that gets the segments is the end of the connection, and not the kernel.
    Tcp,
}

impl Transport {
    /// Returns the number of the protocol in an IP header.
    const fn number(self) -> u32 {
        match self {
            Transport::Udp => 17,
            Transport::Tcp => 6,
        }
    }
}

/// Returns whether this binary contains the program.
#[must_use]
pub fn is_built() -> bool {
    !OBJECT.is_empty()
}

impl Redirect {
    /// Attaches the program to an interface of the calling thread's network namespace. Until a queue gets its
    /// [socket](Redirect::serve), all packets pass.
    ///
    /// # Errors
    /// [`KernelError`], if the program was not built or is not allowed, if there is no such interface, if another
    /// program is on the interface, or if the driver has no XDP.
    pub fn attach(interface: &str, ports: RangeInclusive<u16>) -> Result<Redirect, KernelError> {
        Redirect::attach_filtered(interface, ports, None)
    }

    /// Attaches the program for datagrams or segments to one address. If `magic` is given, only datagrams that begin
    /// with it are redirected. Each port has its own sockets.
    ///
    /// # Errors
    /// The errors of [`Redirect::attach`].
    ///
    /// # Panics
    /// `ports` is 0, or the last port would be above 65,535.
    pub fn attach_for(interface: &str, only: &Only) -> Result<Redirect, KernelError> {
        let more = only.ports.checked_sub(1).expect("one port at least");
        let last = only.to.port().checked_add(more).expect("a port");
        Redirect::attach_filtered(interface, only.to.port()..=last, Some(only))
    }

    fn attach_filtered(
        interface: &str,
        ports: RangeInclusive<u16>,
        only: Option<&Only>,
    ) -> Result<Redirect, KernelError> {
        if !is_built() {
            return Err(KernelError::NotBuilt);
        }
        let transport = only.map_or(Transport::Udp, |only| only.transport);
        let magic = only.and_then(|only| only.magic);
        let stride = if only.is_some() { QUEUES_MAX } else { 0 };
        let sockets_max = QUEUES_MAX * only.map_or(1, |only| u32::from(only.ports));
        let mut address = [0; 16];
        match only.map(|only| only.to.ip()) {
            Some(IpAddr::V4(ip)) => address[..4].copy_from_slice(&ip.octets()),
            Some(IpAddr::V6(ip)) => address = ip.octets(),
            None => {}
        }
        let mut ebpf: Ebpf = EbpfLoader::new()
            .override_global("pm_port_first", ports.start(), true)
            .override_global("pm_port_last", ports.end(), true)
            .override_global("pm_stride", &stride, true)
            .override_global("pm_protocol", &transport.number(), true)
            .override_global("pm_filter", &u32::from(only.is_some()), true)
            .override_global("pm_address", &address, true)
            .override_global("pm_magic_needed", &u32::from(magic.is_some()), true)
            .override_global("pm_magic", &magic.unwrap_or(0), true)
            .map_max_entries(SOCKETS, sockets_max)
            .load(OBJECT)?;
        let failed = |source| KernelError::Program { name: NAME, source };
        let program: &mut Xdp = ebpf
            .program_mut(NAME)
            .expect("build.rs compiled an object that has it")
            .try_into()
            .map_err(failed)?;
        program
            .load()
            .map_err(|source| KernelError::load(NAME, source))?;
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

    /// Redirects the packets of a queue to this socket, which is bound to the queue, until the socket is closed.
    ///
    /// # Errors
    /// [`KernelError::Map`]: the map has no room for such a queue number, or this is no AF_XDP socket.
    pub fn serve(&mut self, queue: u32, socket: &impl AsFd) -> Result<(), KernelError> {
        self.serve_port(0, queue, socket)
    }

    /// Redirects packets of a queue to this socket if they are for the port with this index, from 0. Packets for the
    /// port in other queues pass.
    ///
    /// # Errors
    /// The errors of [`Redirect::serve`]. Queues from [`QUEUES_MAX`] on have no sockets.
    pub fn serve_port(
        &mut self,
        index: u16,
        queue: u32,
        socket: &impl AsFd,
    ) -> Result<(), KernelError> {
        let set = if queue < QUEUES_MAX {
            let at = u32::from(index) * QUEUES_MAX + queue;
            self.sockets.set(at, socket.as_fd().as_raw_fd(), 0)
        } else {
            Err(MapError::OutOfBounds {
                index: queue,
                max_entries: QUEUES_MAX,
            })
        };
        set.map_err(|error| KernelError::map(format!("{SOCKETS}, queue {queue}"), error))
    }
}
