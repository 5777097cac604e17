//! An AF_XDP socket: its rings and its frames, bound to one queue of one interface.
//!
//! May not: know what is in a frame.

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
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags, XdpRingOffset,
    XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, send, socket_with};

use super::config::{Config, Mode};
use super::error::AfXdpError;
use super::region::Region;
use super::ring::{Consumer, Descriptor, Producer};
use super::umem::{Frame, Received, Umem};

/// How long [`Socket::bind`] waits for a queue: the kernel frees it some milliseconds after its last owner has ended.
const BIND_MAX: Duration = Duration::from_secs(1);
/// The pause between two tries.
const BIND_AGAIN: Duration = Duration::from_millis(1);
/// Most entries of a ring.
const RING_MAX: u32 = 1 << 15;

/// What became of a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The kernel has taken what was submitted.
    Done,
    /// It could not take all of it now. The rest stays in the ring for the next wake-up.
    Again,
}

/// An AF_XDP socket with its memory. To receive: [`refill`](Socket::refill), [`receive`](Socket::receive),
/// [`give_back`](Socket::give_back). To send: [`take`](Socket::take), [`reserve`](Socket::reserve),
/// [`queue`](Socket::queue), [`submit`](Socket::submit), [`wake`](Socket::wake), [`complete`](Socket::complete).
#[derive(Debug)]
pub struct Socket<R> {
    // Dropped first: after that the kernel uses neither rings nor memory.
    socket: OwnedFd,
    fill: Producer<u64>,
    completion: Consumer<u64>,
    receive: Consumer<Descriptor>,
    send: Producer<Descriptor>,
    umem: Umem<R>,
    headroom: usize,
    zero_copy: bool,
}

impl<R: Region> Socket<R> {
    /// Binds to a queue. Nothing is received until the kernel has frames ([`refill`](Socket::refill)) and a program
    /// redirects packets here ([`super::Redirect`]). If the last owner of the queue is just ending, waits for that, a second
    /// at most.
    ///
    /// # Errors
    /// [`AfXdpError`].
    pub fn bind(region: R, config: &Config) -> Result<Socket<R>, AfXdpError> {
        let umem = Umem::new(region, config.frame_bytes)?;
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
        let (start, bytes) = umem.registered();
        let memory = XdpUmemReg {
            addr: u64::try_from(start.expose_provenance()).expect("64 bits hold an address"),
            len: u64::try_from(bytes).expect("64 bits hold a length"),
            chunk_size: config.frame_bytes,
            headroom: config.headroom,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        set_xdp_umem_reg(&socket, memory).map_err(AfXdpError::step("registering the memory"))?;
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
        bound(&socket, config)?;
        let options = xdp_options(&socket).map_err(AfXdpError::step("asking for the mode"))?;
        Ok(Socket {
            zero_copy: options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY),
            socket,
            fill,
            completion,
            receive,
            send: sending,
            umem,
            headroom,
        })
    }

    /// Whether the socket is in zero-copy mode.
    #[must_use]
    pub const fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Frames that the memory holds.
    #[must_use]
    pub const fn frames(&self) -> usize {
        self.umem.frames()
    }

    /// Frames in the free list.
    #[must_use]
    pub const fn free(&self) -> usize {
        self.umem.free()
    }

    /// Bytes of a frame, and the longest packet that can be sent.
    #[must_use]
    pub const fn frame_bytes(&self) -> usize {
        self.umem.frame_bytes()
    }

    /// Longest packet that can be received, in bytes; the kernel drops longer ones.
    #[must_use]
    pub const fn receive_bytes_max(&self) -> usize {
        self.umem.receive_bytes_max(self.headroom)
    }

    /// A free frame, to be written and sent.
    pub fn take(&mut self) -> Option<Frame> {
        self.umem.take()
    }

    /// Puts a frame back into the free list.
    ///
    /// # Panics
    /// The frame is of another socket. All functions that take a frame panic then.
    pub fn give_back(&mut self, frame: Frame) {
        self.umem.give_back(frame);
    }

    /// The whole frame.
    #[must_use]
    pub fn bytes(&self, frame: &Frame) -> &[u8] {
        self.umem.bytes(frame)
    }

    /// The whole frame, to be written.
    pub fn bytes_mut(&mut self, frame: &Frame) -> &mut [u8] {
        self.umem.bytes_mut(frame)
    }

    /// Gives the kernel up to `wanted` free frames to receive into, but leaves `reserve` of them; returns how many it
    /// got.
    ///
    /// # Errors
    /// [`AfXdpError::Ring`].
    pub fn refill(&mut self, wanted: u32, reserve: usize) -> Result<u32, AfXdpError> {
        let spare = self.umem.free().saturating_sub(reserve);
        let wanted = wanted.min(u32::try_from(spare).unwrap_or(u32::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        for _ in 0..self.fill.reserve(wanted)? {
            if let Some(address) = self.umem.for_reception() {
                self.fill.put(address);
            }
        }
        Ok(self.fill.submit())
    }

    /// Takes what was received, up to the capacity of `burst`; gives how many packets. Makes no system call.
    ///
    /// # Errors
    /// [`AfXdpError::Ring`], [`AfXdpError::Descriptor`]; packets before a wrong one are in `burst`.
    pub fn receive(&mut self, burst: &mut Vec<Received>) -> Result<u32, AfXdpError> {
        let room = u32::try_from(burst.capacity() - burst.len()).unwrap_or(u32::MAX);
        let count = self.receive.peek(room)?;
        for _ in 0..count {
            let found = self.receive.get();
            // Multi-buffer packets were not asked for.
            if found.options != 0 {
                return Err(AfXdpError::Descriptor {
                    address: found.address,
                    bytes: found.bytes,
                });
            }
            burst.push(self.umem.received(found.address, found.bytes)?);
        }
        self.receive.release();
        Ok(count)
    }

    /// Reserves up to `wanted` entries for frames to be sent; gives how many.
    ///
    /// # Errors
    /// [`AfXdpError::Ring`].
    pub fn reserve(&mut self, wanted: u32) -> Result<u32, AfXdpError> {
        self.send.reserve(wanted)
    }

    /// Puts the first `bytes` bytes of a frame into an entry that was [reserved](Socket::reserve). The kernel sees it after
    /// [`submit`](Socket::submit).
    ///
    /// # Panics
    /// No entry is reserved, or a frame is shorter.
    pub fn queue(&mut self, frame: Frame, bytes: usize) {
        assert!(bytes <= self.umem.frame_bytes(), "inside the frame");
        let address = self.umem.for_sending(frame);
        self.send.put(Descriptor {
            address,
            bytes: u32::try_from(bytes).expect("a frame is short"),
            options: 0,
        });
    }

    /// Hands over what was queued; gives how much.
    pub fn submit(&mut self) -> u32 {
        self.send.submit()
    }

    /// Wakes the kernel to send what was submitted, if it needs that: in copy mode it always does. On a veth, what the
    /// other end does in the kernel is done before this returns.
    ///
    /// # Errors
    /// [`AfXdpError::Wake`].
    pub fn wake(&self) -> Result<Wake, AfXdpError> {
        if !self.send.needs_wakeup() {
            return Ok(Wake::Done);
        }
        match send(&self.socket, &[], SendFlags::DONTWAIT) {
            Ok(_) => Ok(Wake::Done),
            Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => Ok(Wake::Again),
            Err(error) => Err(AfXdpError::Wake(error.into())),
        }
    }

    /// Takes back frames that were sent, and frees them; gives how many. Every submitted frame comes back here at some
    /// time, also if the packet was lost.
    ///
    /// # Errors
    /// [`AfXdpError::Ring`], [`AfXdpError::Descriptor`].
    pub fn complete(&mut self) -> Result<u32, AfXdpError> {
        let count = self.completion.peek(u32::MAX)?;
        for _ in 0..count {
            let address = self.completion.get();
            self.umem.sent(address)?;
        }
        self.completion.release();
        Ok(count)
    }
}

impl<R> AsFd for Socket<R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<R> AsRawFd for Socket<R> {
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

fn bound(socket: &OwnedFd, config: &Config) -> Result<(), AfXdpError> {
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
        let address = SocketAddrXdp::new(*flags | wakeup, index, config.queue);
        let begun = Instant::now();
        loop {
            match bind(socket, &address) {
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
