//! The rings of an AF_XDP socket, bound to one queue of one interface. Several sockets may use the same frames.
//!
//! This module must not interpret the contents of a frame.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size,
    set_xdp_umem_fill_ring_size, set_xdp_umem_reg, xdp_mmap_offsets, xdp_options,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING,
    XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags,
    XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

use super::busy;
use super::config::{Config, Mode};
use super::error::AfXdpError;
use super::region::Region;
use super::ring::{Consumer, Descriptor, Producer};
use super::umem::{Received, Umem};

/// Longest wait of [`Queue::bind`] for a queue. The kernel frees a queue some milliseconds after its last owner has
/// ended, or later on a busy computer.
const BIND_MAX: Duration = Duration::from_secs(5);
/// Pause between two attempts of [`Queue::bind`].
const BIND_AGAIN: Duration = Duration::from_millis(1);
/// Maximum number of entries of a ring.
const RING_MAX: u32 = 1 << 15;

/// Result of a wake-up of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The kernel has taken all submitted frames.
    Done,
    /// The kernel could not take all submitted frames now. The rest stays in the ring for the next wake-up.
    Again,
}

/// An AF_XDP socket without its memory. Each call gets the memory as an argument. This must always be the same memory.
#[derive(Debug)]
pub struct Queue {
    socket: OwnedFd,
    fill: Producer<u64>,
    completion: Consumer<u64>,
    receive: Consumer<Descriptor>,
    send: Producer<Descriptor>,
    headroom: usize,
    zero_copy: bool,
}

impl Queue {
    /// Binds to a queue of an interface. The first socket with a memory registers the memory. Each further socket names
    /// a socket with this memory (`shared`). If another socket has the queue, waits for it, but at most 5 seconds.
    ///
    /// # Errors
    /// [`AfXdpError`].
    pub fn bind<R: Region>(
        umem: &Umem<R>,
        config: &Config,
        shared: Option<&Queue>,
    ) -> Result<Queue, AfXdpError> {
        let headroom = usize::try_from(config.headroom).unwrap_or(usize::MAX);
        for size in [config.receive_ring, config.send_ring] {
            if !size.is_power_of_two() || size > RING_MAX {
                return Err(AfXdpError::Config(format!(
                    "a ring of {size} places: a power of two up to {RING_MAX} is needed"
                )));
            }
        }
        if umem.receive_bytes_max(headroom) == 0 {
            return Err(AfXdpError::Config(format!(
                "{headroom} bytes of headroom leave nothing of a frame"
            )));
        }
        let socket = socket_with(
            AddressFamily::XDP,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(AfXdpError::step("making a socket"))?;
        if shared.is_none() {
            let (start, bytes) = umem.registered();
            let memory = XdpUmemReg {
                addr: u64::try_from(start.expose_provenance()).expect("64 bits hold an address"),
                len: u64::try_from(bytes).expect("64 bits hold a length"),
                chunk_size: config.frame_bytes,
                headroom: config.headroom,
                flags: XdpUmemRegFlags::empty(),
                tx_metadata_len: 0,
            };
            set_xdp_umem_reg(&socket, memory)
                .map_err(AfXdpError::step("registering the memory"))?;
        }
        let sized = "making the rings";
        set_xdp_umem_fill_ring_size(&socket, config.receive_ring)
            .and_then(|()| set_xdp_umem_completion_ring_size(&socket, config.send_ring))
            .and_then(|()| set_xdp_rx_ring_size(&socket, config.receive_ring))
            .and_then(|()| set_xdp_tx_ring_size(&socket, config.send_ring))
            .map_err(AfXdpError::step(sized))?;
        let at = xdp_mmap_offsets(&socket).map_err(AfXdpError::step(sized))?;
        let number = |size: u32| map(&socket, size, size_of::<u64>());
        let descriptor = |size: u32| map(&socket, size, size_of::<Descriptor>());
        let (down, up) = (config.receive_ring, config.send_ring);
        let fill = number(down)(XDP_UMEM_PGOFF_FILL_RING, &at.fr)?;
        let completion = number(up)(XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr)?;
        let receive = descriptor(down)(XDP_PGOFF_RX_RING, &at.rx)?;
        let sending = descriptor(up)(XDP_PGOFF_TX_RING, &at.tx)?;
        let fill = Producer::new(fill, &at.fr, down)?;
        let completion = Consumer::new(completion, &at.cr, up)?;
        let receive = Consumer::new(receive, &at.rx, down)?;
        let sending = Producer::new(sending, &at.tx, up)?;
        if let Some(how) = &config.busy_poll {
            busy::prefer(&socket, how)?;
        }
        bound(&socket, config, shared)?;
        let options = xdp_options(&socket).map_err(AfXdpError::step("asking for the mode"))?;
        Ok(Queue {
            zero_copy: options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY),
            socket,
            fill,
            completion,
            receive,
            send: sending,
            headroom,
        })
    }

    pub(super) const fn headroom(&self) -> usize {
        self.headroom
    }

    /// Returns whether the socket is in zero-copy mode.
    #[must_use]
    pub const fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Gives the kernel up to `wanted` free frames to receive into, but keeps `reserve` frames free. Returns the number
    /// of frames that the kernel has got.
    ///
    /// # Errors
    /// [`AfXdpError::Ring`].
    pub fn refill<R: Region>(
        &mut self,
        umem: &mut Umem<R>,
        wanted: u32,
        reserve: usize,
    ) -> Result<u32, AfXdpError> {
        let spare = umem.free().saturating_sub(reserve);
        let wanted = wanted.min(u32::try_from(spare).unwrap_or(u32::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        for _ in 0..self.fill.reserve(wanted)? {
            if let Some(address) = umem.for_reception() {
                self.fill.put(address);
            }
        }
        Ok(self.fill.submit())
    }

    /// Takes received packets, up to the capacity of `burst`. Returns the number of these packets. The function makes
    /// no system call.
    ///
    /// # Errors
    /// [`AfXdpError::Ring`], [`AfXdpError::Descriptor`]; packets that came before the wrong one are in `burst`.
    pub fn receive<R: Region>(
        &mut self,
        umem: &mut Umem<R>,
        burst: &mut Vec<Received>,
    ) -> Result<u32, AfXdpError> {
        let room = u32::try_from(burst.capacity() - burst.len()).unwrap_or(u32::MAX);
        let count = self.receive.peek(room)?;
        for _ in 0..count {
            let found = self.receive.get();
            // A flag is set, which only packets of several buffers have. This socket has not requested such packets.
            if found.options != 0 {
                return Err(AfXdpError::Descriptor {
                    address: found.address,
                    bytes: found.bytes,
                });
            }
            burst.push(umem.received(found.address, found.bytes)?);
        }
        self.receive.release();
        Ok(count)
    }

    /// Reserves up to `wanted` entries for frames to be sent. Returns the number of reserved entries.
    ///
    /// # Errors
    /// [`AfXdpError::Ring`].
    pub fn reserve(&mut self, wanted: u32) -> Result<u32, AfXdpError> {
        self.send.reserve(wanted)
    }

    /// Puts a packet into an entry that was [reserved](Queue::reserve): `bytes` bytes at an address that the memory
    /// returned for sending. The kernel sees the packet after [`submit`](Queue::submit).
    ///
    /// # Panics
    /// If no entry is reserved.
    pub fn queue(&mut self, address: u64, bytes: usize) {
        self.send.put(Descriptor {
            address,
            bytes: u32::try_from(bytes).expect("a frame is short"),
            options: 0,
        });
    }

    /// Wakes the kernel to receive into the supplied frames, if the driver needs a wake-up, as some drivers with zero
    /// copy do.
    ///
    /// # Errors
    /// [`AfXdpError::Wake`].
    pub fn wake_receive(&self) -> Result<Wake, AfXdpError> {
        if !self.fill.needs_wakeup() {
            return Ok(Wake::Done);
        }
        self.poll_driver()
    }

    /// Lets the driver receive waiting packets within this call. Afterwards they are in the RX ring. The socket must
    /// have [`Config::busy_poll`]. For other sockets the call only wakes the kernel to receive.
    ///
    /// # Errors
    /// [`AfXdpError::Wake`].
    pub fn poll_driver(&self) -> Result<Wake, AfXdpError> {
        let mut nothing = [0; 0];
        match recv(&self.socket, &mut nothing, RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::NETDOWN) => Ok(Wake::Done),
            Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => Ok(Wake::Again),
            Err(error) => Err(AfXdpError::Wake(error.into())),
        }
    }

    /// Passes the queued frames to the kernel. Returns the number of these frames.
    pub fn submit(&mut self) -> u32 {
        self.send.submit()
    }

    /// Wakes the kernel to send the submitted frames, if the driver needs a wake-up, which is always so in copy mode.
    /// On a veth, the other end has finished its work in the kernel when this call returns. If the interface is down, a
    /// packet is lost, or leaves when the interface is up again.
    ///
    /// # Errors
    /// [`AfXdpError::Wake`].
    pub fn wake(&self) -> Result<Wake, AfXdpError> {
        if !self.send.needs_wakeup() {
            return Ok(Wake::Done);
        }
        match send(&self.socket, &[], SendFlags::DONTWAIT) {
            Ok(_) | Err(Errno::NETDOWN) => Ok(Wake::Done),
            Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => Ok(Wake::Again),
            Err(error) => Err(AfXdpError::Wake(error.into())),
        }
    }

    /// Takes sent frames back from the kernel, and frees them. Returns the number of these frames. The kernel returns
    /// every submitted frame at some time, even if the packet was lost.
    ///
    /// # Errors
    /// [`AfXdpError::Ring`], [`AfXdpError::Descriptor`].
    pub fn complete<R: Region>(&mut self, umem: &mut Umem<R>) -> Result<u32, AfXdpError> {
        let count = self.completion.peek(u32::MAX)?;
        for _ in 0..count {
            let address = self.completion.get();
            umem.sent(address)?;
        }
        self.completion.release();
        Ok(count)
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Maps a ring: its counters and its entries.
fn map(
    socket: &OwnedFd,
    size: u32,
    place_bytes: usize,
) -> impl FnOnce(u64, &XdpRingOffset) -> Result<MmapRaw, AfXdpError> {
    move |offset, at| {
        let places = usize::try_from(size).ok().map(|size| size * place_bytes);
        let first = usize::try_from(at.desc).ok();
        let bytes = first.zip(places).and_then(|(at, n)| at.checked_add(n));
        let failed = |source| AfXdpError::SetUp {
            step: "mapping the rings",
            source,
        };
        let bytes = bytes.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
        let mut options = MmapOptions::new();
        options.offset(offset).len(bytes).populate();
        options.map_raw(socket).map_err(failed)
    }
}

fn bound(socket: &OwnedFd, config: &Config, shared: Option<&Queue>) -> Result<(), AfXdpError> {
    // SIOCGIFINDEX does not work on an AF_XDP socket.
    let any = UdpSocket::bind("0.0.0.0:0").map_err(|source| AfXdpError::SetUp {
        step: "looking for the interface",
        source,
    })?;
    let index = name_to_index(&any, &config.interface)
        .map_err(AfXdpError::step("looking for the interface"))?;
    let wakeup = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    let flags = match config.mode {
        Mode::Copy => &[SocketAddrXdpFlags::XDP_COPY][..],
        Mode::ZeroCopy => &[SocketAddrXdpFlags::XDP_ZEROCOPY],
        Mode::PreferZeroCopy => &[
            SocketAddrXdpFlags::XDP_ZEROCOPY,
            SocketAddrXdpFlags::XDP_COPY,
        ],
    };
    let mut refused = Errno::OPNOTSUPP;
    for flags in flags {
        let begun = Instant::now();
        loop {
            let tried = match shared {
                // The mode is that of the socket that has registered the memory.
                Some(first) => bind(
                    socket,
                    &SocketAddrXdpWithSharedUmem {
                        addr: SocketAddrXdp::new(
                            SocketAddrXdpFlags::XDP_SHARED_UMEM,
                            index,
                            config.queue,
                        ),
                        shared_umem_fd: first.socket.as_fd(),
                    },
                ),
                None => bind(
                    socket,
                    &SocketAddrXdp::new(*flags | wakeup, index, config.queue),
                ),
            };
            match tried {
                Ok(()) => return Ok(()),
                Err(Errno::BUSY) if begun.elapsed() < BIND_MAX => {
                    std::thread::sleep(BIND_AGAIN);
                }
                Err(Errno::BUSY) => {
                    return Err(AfXdpError::QueueInUse {
                        interface: config.interface.clone(),
                        queue: config.queue,
                    });
                }
                Err(error) => {
                    refused = error;
                    break;
                }
            }
        }
        if refused != Errno::OPNOTSUPP {
            break;
        }
    }
    Err(AfXdpError::step("binding to the queue")(refused))
}
