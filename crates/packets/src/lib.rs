//! Packet buffers in a named persistent region, for your own programs: PASTE's interface (M. Honda et al., HotNets
//! 2016), implemented with AF_XDP.
//!
//! A [`Region`] is a file that survives the death of the process (on tmpfs or hugetlbfs), or that survives a power cut
//! (an ordinary file). The network interface puts datagrams into the region, and [`Region::receive`] returns them as
//! handles. [`Region::keep`] keeps a datagram *in the buffer* in which it arrived. [`Region::persist`] makes all kept
//! datagrams durable, with one fence for a whole burst. [`Region::kept`] finds the kept datagrams again after a
//! restart, by the region's name. No datagram is copied.
//!
//! | PASTE says | here |
//! |---|---|
//! | packet buffers on a named NVMM region | [`Region::open`] with a path |
//! | DMA to the region | AF_XDP; the driver stores directly, or the kernel copies once ([`Region::is_zero_copy`]) |
//! | zero-copy API: swap a buffer out of the ring | [`Region::keep`] takes the buffer; the ring gets another one |
//! | flush only what must persist | [`Region::persist`] flushes the lines of the kept datagrams and their entries; [`Region::keep_part`] keeps a part only |
//! | find the data again after a crash | [`Region::kept`] |
//! | reply from the same buffers | [`Region::send`], [`Region::send_kept`] |
//! | TCP beside the packet interface | a TCP of your own over [`Transport::Tcp`]: segments come as whole IP packets |
//!
//! A region is pmnet's ordered log with packet buffers as its frame space (`docs/spec/ordered-log.md` §11,
//! `docs/spec/packet-buffers.md`). Kept datagrams have consecutive orders. After a crash at any moment, the region has
//! the kept datagrams up to some order, including all that were persisted. Space is freed from the oldest datagram on,
//! by [`Region::forget`].
//!
//! A region needs root (or CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF) and a driver with native XDP. `examples/` has two
//! complete servers: `udp_log.rs`, a log of datagrams, and `http_put`, which keeps the bodies of HTTP PUTs in the
//! buffers in which they arrived.
//!
//! With [`Records`], the buffer also becomes the record of a durable ordered map. The buffer stays with the store until
//! the record is overwritten or removed, however far the log has advanced (`docs/spec/packet-store.md` §11).
//! `examples/udp_put` is a server with such records.

mod receiver;
mod records;

use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pmnet_dataplane::direct::{AfXdpError, Arrived, BufferSpace, DirectError, Part};
use pmnet_device::Taken;
use pmnet_log::{Expected, Full, Identity, Log, LogError, NewEntry, Parameters, Scan};
use pmnet_media::{AnyMedia, Kind, OpenError};
use pmnet_packet_store::SharedError;
use receiver::Receiver;

pub use pmnet_dataplane::direct::{Places, Transport};
pub use pmnet_packet_store::{Change, InPlace, Meta, Reading, Room};
pub use records::{Records, RecordsOptions};

/// Medium of a region. The medium determines which failures the data survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A file on tmpfs or hugetlbfs: persisted data survives the death of the process.
    Memory,
    /// As [`Medium::Memory`], but [`Region::persist`] flushes cache lines as persistent memory requires it. The data
    /// survives no more failures than with [`Medium::Memory`]. This medium serves to measure the cost of flushes
    /// without persistent memory.
    MemoryFlushed,
    /// An ordinary file: persisted data survives a power cut.
    File,
}

/// The place of a region, and the source of its packets.
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of the region. If there is no file at the path, one is created.
    pub path: PathBuf,
    /// Medium of the region.
    pub medium: Medium,
    /// Number of bytes for packets in a new region. A buffer has 2048 bytes; in an ordinary file it has 4096.
    pub bytes: u64,
    /// Names of the network interfaces.
    pub interfaces: Vec<String>,
    /// Address and port whose datagrams are received. All other packets are left to the system.
    pub listen: SocketAddr,
    /// Whether UDP datagrams or TCP segments are received. With TCP, "datagram" in this documentation means the whole
    /// IP packet of a segment, when it is received and when it is sent. The program itself implements its end of the
    /// connection, of which the system sees nothing.
    pub transport: Transport,
}

/// Reason why a region cannot be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Error of the file.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Error of the log in the file, or of a persist.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Error of a region with log and store.
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// Error of the store: it is full, or damaged, or the medium failed.
    #[error(transparent)]
    Records(#[from] pmnet_packet_store::Error),
    /// Error in opening the sockets.
    #[error(transparent)]
    Sockets(#[from] DirectError),
    /// A socket failed. Nothing more can be received or sent.
    #[error(transparent)]
    Socket(#[from] AfXdpError),
    /// There are not enough buffers for all queues of the interfaces.
    #[error(
        "{buffers} packet buffers are too few, the queues of the interfaces need {needed}: more bytes"
    )]
    Small {
        /// Number of buffers that the region has.
        buffers: u64,
        /// Number of buffers that are needed.
        needed: u64,
    },
    /// Error of the system.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// A datagram in the region. A packet must be passed to [`Region::keep`] or [`Region::release`]. If a packet is dropped
/// instead, nothing is received into its buffer any more.
#[derive(Debug)]
#[must_use = "a packet is kept or released"]
pub struct Packet(Arrived);

impl Packet {
    /// Returns the sender's address.
    #[must_use]
    pub const fn from(&self) -> SocketAddr {
        self.0.from()
    }
}

/// A kept datagram, as [`Region::kept`] and [`Region::find`] return it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept<'a> {
    /// Order of the datagram among all kept datagrams. The first order is 1.
    pub order: u64,
    /// The number that the caller gave the datagram in [`Region::keep`].
    pub tag: u64,
    /// The bytes of the datagram, in its buffer.
    pub bytes: &'a [u8],
}

/// A region, with its sockets.
pub struct Region {
    // This field is dropped first, so that the kernel no longer stores into the memory.
    sockets: Receiver,
    log: Log<AnyMedia>,
}

/// The device number of a region's log. No device of pmnet has this number, so no device takes the region for its own
/// log.
const DEVICE: u32 = 0;

impl Region {
    /// Opens the region at its path, or creates it. Binds to every queue of the interfaces. If a crash has left a
    /// datagram incomplete, this datagram is removed. All persisted datagrams are present.
    ///
    /// # Errors
    /// [`Error`]: the region is in use or damaged, the file is no such region, or the interface is not suitable. If the
    /// call fails, an existing region is unchanged, and no region is created.
    pub fn open(options: &Options) -> Result<Region, Error> {
        let (log, made) = log(options)?;
        let space = BufferSpace::of_log(log.medium().memory(), log.parameters())?;
        let sockets = Receiver::open(options, space).inspect_err(|_| {
            // A region that was created by this call is useless if the call fails. If the region's file cannot be
            // removed, the next call opens it.
            if made {
                let _ = std::fs::remove_file(&options.path);
            }
        })?;
        let mut region = Region { sockets, log };
        region.log.leave_buffers(region.sockets.never_live());
        region.sockets.turn(&mut region.log)?;
        Ok(region)
    }

    /// Returns whether every driver stores packets directly into the region. If a driver does not, the kernel copies
    /// each packet once.
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        self.sockets.is_zero_copy()
    }

    /// Returns a text that names the failures which persisted data survives.
    #[must_use]
    pub fn survives(&self) -> &'static str {
        self.log.survives()
    }

    /// Returns the numbers of buffers by owner. `kept` counts the buffers with kept datagrams and a few more, `held`
    /// the buffers of [`Packet`]s.
    #[must_use]
    pub fn buffers(&self) -> Places {
        self.sockets.places()
    }

    /// Returns all kept datagrams, oldest first.
    pub fn kept(&self) -> impl Iterator<Item = Kept<'_>> {
        (self.log.applied() + 1..=self.log.last()).filter_map(|order| self.find(order))
    }

    /// Returns the datagram with this order; `None`: there is no such datagram, or it was forgotten.
    #[must_use]
    pub fn find(&self, order: u64) -> Option<Kept<'_>> {
        Some(Kept {
            order,
            tag: self.log.entry(order)?.session,
            bytes: self.log.frame(order)?,
        })
    }

    /// Waits for datagrams for at most `wait`. Adds the datagrams that have arrived to `burst`, at most 64 of each
    /// queue.
    ///
    /// # Errors
    /// [`Error::Socket`], [`Error::System`].
    pub fn receive(&mut self, wait: Duration, burst: &mut Vec<Packet>) -> Result<usize, Error> {
        self.sockets.receive(&mut self.log, wait, burst)
    }

    /// Returns the bytes of a datagram.
    #[must_use]
    pub fn bytes(&self, packet: &Packet) -> &[u8] {
        self.log.lent(&packet.0.place)
    }

    /// Keeps a datagram in its buffer, with a number of your choice. Returns the order of the datagram. The datagram is
    /// durable after the next [`Region::persist`].
    ///
    /// # Errors
    /// Returns the packet if the region is full (then [`forget`](Region::forget) some datagrams and persist), or if the
    /// datagram is empty.
    pub fn keep(&mut self, packet: Packet, tag: u64) -> Result<u64, (Full, Packet)> {
        let all = 0..packet.0.place.len();
        self.keep_part(packet, all, tag)
    }

    /// Keeps a part of a datagram. Only the cache lines of this part are flushed.
    ///
    /// # Errors
    /// For the reasons of [`Region::keep`], and if the part is empty.
    ///
    /// # Panics
    /// If the part is not inside the datagram.
    pub fn keep_part(
        &mut self,
        packet: Packet,
        part: Range<usize>,
        tag: u64,
    ) -> Result<u64, (Full, Packet)> {
        let whole = &packet.0.place;
        assert!(
            part.start <= part.end && part.end <= whole.len(),
            "{part:?} is inside a datagram of {} bytes",
            whole.len()
        );
        let place = whole.start + part.start..whole.start + part.end;
        let bytes = self.log.lent(&place);
        let Some((first, rest)) = bytes.split_first() else {
            return Err((Full::TooLarge, packet));
        };
        // The first byte serves as the header, which the entry's own checksum covers.
        let (header, payload_crc) = ([*first], crc32c::crc32c(rest));
        let new = NewEntry {
            session: tag,
            seq: 0,
            kind: 0,
            fragment_index: 0,
            fragment_count: 1,
        };
        let kept = self.log.append_in_place(&new, &header, &place, payload_crc);
        match kept {
            Ok(order) => {
                self.sockets.done(packet, Taken::Kept);
                Ok(order)
            }
            Err(full) => Err((full, packet)),
        }
    }

    /// Allows [`Region::send`] to answer the sender of a packet before the packet is kept or released.
    pub fn heard(&mut self, packet: &Packet) {
        self.sockets.heard(packet);
    }

    /// Releases a packet: its buffer is used for receiving again.
    pub fn release(&mut self, packet: Packet) {
        self.sockets.done(packet, Taken::Heard);
    }

    /// Makes all kept datagrams durable, and waits until they are. Returns the highest order that is durable.
    ///
    /// # Errors
    /// [`Error::Log`]: the medium failed. The region must be opened again.
    pub fn persist(&mut self) -> Result<u64, Error> {
        self.log.persist_poll(true)?;
        self.log.persist_start()?;
        self.log.persist_poll(true)?;
        Ok(self.log.durable())
    }

    /// Forgets kept datagrams up to this order, as far as they are durable. After one or two more calls of
    /// [`Region::persist`], their buffers are used for receiving again.
    pub fn forget(&mut self, upto: u64) {
        self.log.reclaim(upto);
    }

    /// Sends a datagram to a peer from which a datagram has come within the last second, and was kept, released or
    /// [heard](Region::heard). The datagram leaves with the next [`Region::flush`]. Returns false if the hardware
    /// address of the peer is unknown.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn send(&mut self, to: SocketAddr, datagram: &[u8]) -> Result<bool, Error> {
        self.sockets.send(to, datagram)
    }

    /// Sends a kept datagram from its buffer like [`Region::send`].
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn send_kept(&mut self, to: SocketAddr, order: u64) -> Result<bool, Error> {
        let Some(entry) = self.log.entry(order) else {
            return Ok(false);
        };
        let place = self.log.frame_place(&entry);
        self.sockets.send_logged(to, &place)
    }

    /// Passes queued datagrams to the interface.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.sockets.flush()
    }

    /// Closes the region. All kept datagrams are then durable.
    ///
    /// # Errors
    /// [`Error::Log`].
    pub fn close(self) -> Result<(), Error> {
        drop(self.sockets);
        Ok(self.log.close()?)
    }
}

/// Returns the kind of a medium, and the size of a buffer on it in bytes.
const fn medium(medium: Medium) -> (Kind, u32) {
    match medium {
        Medium::Memory | Medium::MemoryFlushed => (Kind::Dram, 2048),
        Medium::File => (Kind::File, 4096),
    }
}

/// Returns the region's log, and whether the log was created.
fn log(options: &Options) -> Result<(Log<AnyMedia>, bool), Error> {
    let (kind, buffer_bytes) = medium(options.medium);
    let path: &Path = &options.path;
    let made = !path.exists();
    let mut media = if made {
        let buffers = options.bytes.div_ceil(u64::from(buffer_bytes));
        let entries = buffers
            .next_power_of_two()
            .clamp(pmnet_log::ENTRIES_MIN, pmnet_log::ENTRIES_MAX);
        let bytes = (buffers * u64::from(buffer_bytes)).next_multiple_of(4096);
        let parameters = Parameters::buffers(entries, bytes, buffer_bytes);
        parameters.validate().map_err(LogError::from)?;
        let needed = Part::alone().buffers_needed(&options.interfaces);
        if buffers < needed {
            return Err(Error::Small { buffers, needed });
        }
        let mut log_uuid = [0; 16];
        getrandom::fill(&mut log_uuid).map_err(|error| std::io::Error::other(error.to_string()))?;
        let identity = Identity {
            log_uuid: u128::from_be_bytes(log_uuid),
            device: DEVICE,
            shard: 0,
        };
        let mut media = pmnet_media::create(path, kind, parameters.image_bytes())?;
        pmnet_log::format(&mut media, &identity, &parameters)?;
        media
    } else {
        pmnet_media::open(path, kind)?
    };
    if let (Medium::MemoryFlushed, AnyMedia::Dram(memory)) = (options.medium, &mut media) {
        memory.rehearse_flushes(path)?;
    }
    let expected = Expected {
        device: DEVICE,
        shard: 0,
        parameters: None,
    };
    let scan = Scan::open(media, Some(expected))?;
    let decision = scan.decide();
    Ok((scan.repair(decision)?, made))
}
