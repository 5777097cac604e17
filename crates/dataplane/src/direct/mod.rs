//! A device whose packets do not pass the kernel's network stack: its AF_XDP sockets receive into the packet buffers of
//! the log (`docs/spec/ordered-log.md` §11), as PASTE proposes.
//!
//! An update is appended in the buffer into which it was received, and is forwarded from this buffer. AF_XDP sockets do
//! not get packets of other interfaces, fragments and foreign packets. These arrive at the UDP socket of the
//! [relay](crate::relay). Packets to a peer whose link address is unknown leave through the UDP socket. Spec:
//! `docs/spec/packet-buffers.md`. This module must not decide anything about a packet.

mod frame;
mod neighbours;
mod port;
mod queues;
mod shards;
mod sockets;

use std::io;

use pmnet_device::{DeviceError, DeviceNode, Port as _, Served, Turn, serve};
use pmnet_log::{Log, Media};
use pmnet_media::Memory;
use pmnet_proto::Peer;
use pmnet_proto::device::DeviceConfig;
use pmnet_proto::keys::ClusterKeys;
use pmnet_udp::{Latest, Stop};

use crate::interface;
use crate::relay::{Lease, RelayConfig, watch};
use crate::xdp::KernelError;
use port::Direct;

pub use crate::af_xdp::{AfXdpError, BusyPoll, Mode, Places, Transport, knows_busy_poll};
pub use interface::{name, number, refused_by_driver};
pub use shards::Part;
pub use sockets::{Arrived, BufferSpace, Sockets, SocketsConfig};

/// Settings of a device that receives into the buffers of its log.
#[derive(Clone, Debug)]
pub struct DirectConfig {
    /// Settings of the UDP socket and of the device. `listen` is the address to which clients send.
    pub relay: RelayConfig,
    /// Network interfaces through which packets arrive.
    pub interfaces: Vec<String>,
    /// Whether the driver moves packets without a copy.
    pub mode: Mode,
    /// Settings with which the drivers are polled for packets, instead of using interrupts.
    pub busy_poll: Option<BusyPoll>,
    /// The shard's part among the shards of this process, which have the same interfaces and consecutive ports.
    pub part: Part,
}

/// Reason why a device cannot receive into the buffers of its log.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// An AF_XDP socket cannot be opened or used.
    #[error(transparent)]
    Socket(#[from] AfXdpError),
    /// The XDP program cannot be loaded or attached.
    #[error(transparent)]
    Program(#[from] KernelError),
    /// An interface, a log or an address is unsuitable.
    #[error("{0}")]
    Unfit(String),
    /// The device ended with an error.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl DirectError {
    fn interface(name: &str, error: &io::Error) -> DirectError {
        DirectError::Unfit(format!("interface {name}: {error}"))
    }
}

impl From<io::Error> for DirectError {
    fn from(error: io::Error) -> DirectError {
        DirectError::Device(error.into())
    }
}

/// The interface, the queue and the mode of an open socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Name of the interface.
    pub interface: String,
    /// Number of its queue.
    pub queue: u32,
    /// The driver itself stores packets into the buffers.
    pub zero_copy: bool,
}

/// A device that is bound to its interfaces and does not serve yet: every step of the start that could be refused has
/// succeeded.
pub struct DirectDevice {
    port: Direct,
    device: DeviceConfig,
    lease: Option<Lease>,
    keys: Option<Latest<ClusterKeys>>,
}

impl DirectDevice {
    /// Binds the sockets. The frame space of `log` must consist of packet buffers, and `memory` must be the memory of
    /// the log's image. The log is not changed.
    ///
    /// # Errors
    /// [`DirectError`].
    pub fn open<M: Media>(
        config: DirectConfig,
        log: &Log<M>,
        memory: Memory,
        stop: &Stop,
    ) -> Result<DirectDevice, DirectError> {
        let space = BufferSpace::of_log(memory, log.parameters())?;
        DirectDevice::open_in(config, space, stop)
    }

    /// Binds the sockets of a device whose log has these packet buffers.
    ///
    /// # Errors
    /// [`DirectError`].
    pub fn open_in(
        config: DirectConfig,
        space: BufferSpace,
        stop: &Stop,
    ) -> Result<DirectDevice, DirectError> {
        let port = Direct::open(&config, space, stop)?;
        Ok(DirectDevice {
            port,
            device: config.relay.device,
            lease: config.relay.lease,
            keys: config.relay.keys,
        })
    }

    /// Serves one shard with the log of [`DirectDevice::open`], until stopped. Calls `observe` once a turn. When the
    /// device first serves, calls `ready` once, with the bound address, the node, and the queues of the sockets.
    ///
    /// # Errors
    /// [`DirectError`].
    pub fn serve<M: Media>(
        self,
        log: Log<M>,
        observe: impl FnMut(&DeviceNode<M>, &Turn),
        ready: impl FnOnce(Peer, &DeviceNode<M>, &[Bound]),
    ) -> Result<(), DirectError> {
        self.serve_with(log, |node| node, observe, ready)
    }

    /// Serves a device together with the other machines that `make` adds to it.
    ///
    /// # Errors
    /// [`DirectError`].
    pub fn serve_with<N: Served>(
        self,
        mut log: Log<N::Medium>,
        make: impl FnOnce(DeviceNode<N::Medium>) -> N,
        mut observe: impl FnMut(&N, &Turn),
        ready: impl FnOnce(Peer, &DeviceNode<N::Medium>, &[Bound]),
    ) -> Result<(), DirectError> {
        let (mut port, next) = (self.port, self.device.next);
        log.leave_buffers(port.never_live());
        let node = port
            .stack_mut()
            .node(self.device, self.keys.as_ref(), log)?
            .with_packet_buffers();
        let bound = port.bound().to_vec();
        let address = port.stack().address()?;
        let ready = |address, node: &DeviceNode<N::Medium>| ready(address, node, &bound);
        let mut watch = watch(self.lease, port.stack().clock(), next, address, ready);
        let served = serve(make(node), &mut port, |node: &N, turn: &Turn| {
            observe(node, turn);
            watch(node.device());
        });
        let send_dropped = port.counters().send_dropped;
        if send_dropped > 0 {
            tracing::info!(send_dropped, "packets that found no room were sent again");
        }
        Ok(served?)
    }
}

/// Bytes of a packet buffer of the larger size.
const LARGE: u32 = 4096;

/// Refuses an interface whose packets may be longer than a buffer.
fn fits(name: &str, buffer_bytes: u32) -> Result<(), DirectError> {
    let mtu = interface::mtu(name).map_err(|error| DirectError::interface(name, &error))?;
    let takes = |buffer: u32| u64::from(buffer).saturating_sub(queues::ROOM_IN_FRONT + 14);
    let most = takes(buffer_bytes);
    if mtu > most {
        return Err(DirectError::Unfit(format!(
            "PM1442 packets of {name} may have {mtu} bytes, and a buffer of {buffer_bytes} bytes takes {most}: set a smaller one \
             (ip link set {name} mtu 1500){}",
            if buffer_bytes < LARGE && mtu <= takes(LARGE) {
                ", or make the log with buffers of 4096 bytes (--media file has them)"
            } else {
                ""
            }
        )));
    }
    Ok(())
}
