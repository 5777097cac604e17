//! Packet buffers in a named persistent region, for programs of your own: PASTE's interface (M. Honda et al., HotNets
//! 2016) in today's words.
//!
//! A [`Region`] is a file: memory that survives the death of the process (tmpfs, hugetlbfs), or that survives a power cut
//! (an ordinary file). [`Region::receive`] gives datagrams as handles; the network interface has put them into the region.
//! [`Region::keep`] keeps one *where it lies*; [`Region::persist`] makes durable what was kept, with one fence for a burst;
//! [`Region::kept`] finds it again after a restart, by the region's name. Nothing is copied.
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
//! It is the ordered log of pmnet with packet buffers as its frame space (`docs/spec/ordered-log.md` §11,
//! `docs/spec/packet-buffers.md`): what is kept has an order, a crash at any moment leaves a prefix that includes everything
//! that was persisted, and space is given back from the oldest on ([`Region::forget`]).
//!
//! Needs root (or CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF) and a driver with native XDP. Two whole servers are in `examples/`:
//! `udp_log.rs`, a log of datagrams, and `http_put`, which keeps the bodies of HTTP PUTs in the buffers in which they came.
//!
//! [`Records`] goes one step further: the buffer becomes the record of a durable ordered map, and stays it until the record is
//! overwritten or removed, however far the log has gone (`docs/spec/packet-store.md` §11). `examples/udp_put` is a server on it.

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

/// What survives what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A file on tmpfs or hugetlbfs: what is persisted survives the death of the process.
    Memory,
    /// The same, but [`Region::persist`] flushes the lines as persistent memory needs it. It survives no more: this is to
    /// measure what the flushes cost, without persistent memory.
    MemoryFlushed,
    /// An ordinary file: it survives a power cut.
    File,
}

/// Where a region is, and whose packets come into it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name: a path. It is made if it is not there.
    pub path: PathBuf,
    /// What it is on.
    pub medium: Medium,
    /// Bytes for packets, if it is made: a buffer has 2048, on a file 4096.
    pub bytes: u64,
    /// Network interfaces.
    pub interfaces: Vec<String>,
    /// The address and port of which the datagrams are received. Everything else goes to the system.
    pub listen: SocketAddr,
    /// Datagrams of UDP, or segments of TCP. With TCP, "datagram" below means the whole IP packet of a segment, received and
    /// sent, and the other end of the connection is up to you: the system sees nothing of it.
    pub transport: Transport,
}

/// Why a region cannot be had or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// What is in it, or making it durable.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Log and store in one region.
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// The store: full, or damaged, or the medium failed.
    #[error(transparent)]
    Records(#[from] pmnet_packet_store::Error),
    /// The sockets.
    #[error(transparent)]
    Sockets(#[from] DirectError),
    /// A socket failed: nothing more is received or sent.
    #[error(transparent)]
    Socket(#[from] AfXdpError),
    /// There are not enough buffers for all queues of the interfaces.
    #[error(
        "{buffers} packet buffers are too few, the queues of the interfaces need {needed}: more bytes"
    )]
    Small {
        /// What was asked for.
        buffers: u64,
        /// What is needed.
        needed: u64,
    },
    /// The system.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// A datagram in the region. [`Region::keep`] or [`Region::release`] takes it; what is dropped instead stays in its buffer,
/// which is then never received into again.
#[derive(Debug)]
#[must_use = "a packet is kept or released"]
pub struct Packet(Arrived);

impl Packet {
    /// Who sent it.
    #[must_use]
    pub const fn from(&self) -> SocketAddr {
        self.0.from()
    }
}

/// What was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept<'a> {
    /// Its place among all that was kept, from 1.
    pub order: u64,
    /// What [`Region::keep`] was given with it.
    pub tag: u64,
    /// The datagram, where it lies.
    pub bytes: &'a [u8],
}

/// A region, with its sockets.
pub struct Region {
    // Dropped first: then the kernel stores nothing into the memory any more.
    sockets: Receiver,
    log: Log<AnyMedia>,
}

/// No device of pmnet has this number, so none takes a region for its log.
const DEVICE: u32 = 0;

impl Region {
    /// Opens a region by its name, or makes it, and binds to every queue of the interfaces. A datagram that a crash left half is gone;
    /// what was persisted is there.
    ///
    /// # Errors
    /// [`Error`]: the region is in use, damaged, or something else; the interface cannot do it. A region that exists is not
    /// changed then, and none is made.
    pub fn open(options: &Options) -> Result<Region, Error> {
        let (log, made) = log(options)?;
        let space = BufferSpace::of_log(log.medium().memory(), log.parameters())?;
        let sockets = Receiver::open(options, space).inspect_err(|_| {
            // What was only just made is of no use to anybody. If it cannot be removed, it is opened the next time.
            if made {
                let _ = std::fs::remove_file(&options.path);
            }
        })?;
        let mut region = Region { sockets, log };
        region.log.leave_buffers(region.sockets.never_live());
        region.sockets.turn(&mut region.log)?;
        Ok(region)
    }

    /// Whether every driver stores packets into the region directly. Otherwise the kernel copies each of them once.
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        self.sockets.is_zero_copy()
    }

    /// What [`Region::persist`] protects from, in words.
    #[must_use]
    pub fn survives(&self) -> &'static str {
        self.log.survives()
    }

    /// Who has how many buffers: `kept` are those with kept datagrams and a few more, `held` those of [`Packet`]s.
    #[must_use]
    pub fn buffers(&self) -> Places {
        self.sockets.places()
    }

    /// Everything that is kept, the oldest first.
    pub fn kept(&self) -> impl Iterator<Item = Kept<'_>> {
        (self.log.applied() + 1..=self.log.last()).filter_map(|order| self.find(order))
    }

    /// What was kept under this order; `None`: nothing, or it is forgotten.
    #[must_use]
    pub fn find(&self, order: u64) -> Option<Kept<'_>> {
        Some(Kept {
            order,
            tag: self.log.entry(order)?.session,
            bytes: self.log.frame(order)?,
        })
    }

    /// Waits for datagrams, at most for `wait`, and adds those that are there to `burst`, at most 64 of each queue.
    ///
    /// # Errors
    /// [`Error::Socket`], [`Error::System`].
    pub fn receive(&mut self, wait: Duration, burst: &mut Vec<Packet>) -> Result<usize, Error> {
        self.sockets.receive(&mut self.log, wait, burst)
    }

    /// The datagram.
    #[must_use]
    pub fn bytes(&self, packet: &Packet) -> &[u8] {
        self.log.lent(&packet.0.place)
    }

    /// Keeps a datagram where it lies, with a number of your own; gives its order. It is durable after the next
    /// [`Region::persist`].
    ///
    /// # Errors
    /// The packet comes back: the region is full (then [`forget`](Region::forget) something and persist), or the datagram
    /// is empty.
    pub fn keep(&mut self, packet: Packet, tag: u64) -> Result<u64, (Full, Packet)> {
        let all = 0..packet.0.place.len();
        self.keep_part(packet, all, tag)
    }

    /// The same for a part of a datagram. Only the lines of that part are flushed.
    ///
    /// # Errors
    /// As [`Region::keep`], with an empty part.
    ///
    /// # Panics
    /// The part is not inside the datagram.
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
        // The first byte stands for the header, which the entry's own checksum covers.
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

    /// The sender of a packet can be answered by [`Region::send`] at once, and not only when the packet is kept or released.
    pub fn heard(&mut self, packet: &Packet) {
        self.sockets.heard(packet);
    }

    /// Gives a packet back: its buffer is received into again.
    pub fn release(&mut self, packet: Packet) {
        self.sockets.done(packet, Taken::Heard);
    }

    /// Makes everything kept so far durable, and waits for that; gives the highest order.
    ///
    /// # Errors
    /// [`Error::Log`]: the medium failed. Open the region again.
    pub fn persist(&mut self) -> Result<u64, Error> {
        self.log.persist_poll(true)?;
        self.log.persist_start()?;
        self.log.persist_poll(true)?;
        Ok(self.log.durable())
    }

    /// Lets go of kept and durable datagrams up to this order. Their buffers are received into again after one or two more calls of
    /// [`Region::persist`].
    pub fn forget(&mut self, upto: u64) {
        self.log.reclaim(upto);
    }

    /// Sends a datagram to a peer that has sent one (and whose datagram was kept, released or [heard](Region::heard)) within
    /// the last second. It leaves with the next
    /// [`Region::flush`]. False: the way there is not known.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn send(&mut self, to: SocketAddr, datagram: &[u8]) -> Result<bool, Error> {
        self.sockets.send(to, datagram)
    }

    /// The same for what is kept, from where it lies.
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

    /// Lets what was sent leave.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.sockets.flush()
    }

    /// Ends in good order: everything kept is durable.
    ///
    /// # Errors
    /// [`Error::Log`].
    pub fn close(self) -> Result<(), Error> {
        drop(self.sockets);
        Ok(self.log.close()?)
    }
}

/// Kind of a medium, and bytes of a buffer on it.
const fn medium(medium: Medium) -> (Kind, u32) {
    match medium {
        Medium::Memory | Medium::MemoryFlushed => (Kind::Dram, 2048),
        Medium::File => (Kind::File, 4096),
    }
}

/// The region's log, and whether it was made.
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
