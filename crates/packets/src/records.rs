//! A region whose packets become the records of a durable ordered map, without a copy (`docs/spec/packet-store.md`
//! §11).

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use pmnet_dataplane::direct::{BufferSpace, Part, Places};
use pmnet_device::{Buffers, Taken};
use pmnet_log::{BUFFERS_MIN, ENTRIES_MAX, ENTRIES_MIN, Full, Identity as LogIdentity, NewEntry};
use pmnet_media::AnyMedia;
use pmnet_packet_store::{Change, Geometry, Identity, Reading, Shared, SharedError, format_shared};

use crate::receiver::Receiver;
use crate::{DEVICE, Error, Kept, Medium, Options, Packet, medium};

/// The shard number of the log and the store in such a region.
const SHARD: u32 = 0;
/// Maximum number of bytes that one call of [`Records::pack`] moves.
const PACKED_BYTES: usize = 256 << 10;

/// The place of a region with records, and the division of its space.
#[derive(Clone, Debug)]
pub struct RecordsOptions {
    /// Options as for a [`Region`](crate::Region). `bytes` counts the log and the store together.
    pub region: Options,
    /// Number of buffers for receiving and for the log, which the store never gets. There must be at least 256 for each
    /// queue of the interfaces.
    pub log_buffers: u32,
}

/// A region with a log and a store, and its sockets.
///
/// A datagram is first [logged](Records::log) in its buffer, and then [persisted](Records::persist). A persisted
/// datagram is durable, and can be answered. Later, [`Records::change`] makes records of logged datagrams, again
/// without a copy.
pub struct Records {
    // This field is dropped first, so that the kernel no longer stores into the memory.
    sockets: Receiver,
    shared: Exchange,
}

/// The log and the store, as the other end with which the sockets exchange buffers.
struct Exchange(Shared<AnyMedia>);

impl Buffers for Exchange {
    fn lend(&mut self) -> Option<u32> {
        self.0.lend_buffer()
    }
    fn deposit(&mut self, at: usize, packet: &[u8]) {
        self.0.deposit(at, packet);
    }
    fn give_back(&mut self, number: u32) {
        self.0.give_back_buffer(number);
    }
    fn poll_released(&mut self) -> Option<u32> {
        self.0.poll_released()
    }
    fn wants(&self) -> bool {
        self.0.wants_buffers()
    }
}

impl Records {
    /// Opens the region at its path, or creates it. Binds to every queue of the interfaces. Each persisted record is in
    /// the store, or is [waiting](Records::waiting) to be applied.
    ///
    /// # Errors
    ///
    /// [`Error`]: the region is in use or damaged, the file is no such region, or the interface is not suitable.
    pub fn open(options: &RecordsOptions) -> Result<Records, Error> {
        let needed = Part::alone().buffers_needed(&options.region.interfaces);
        let buffers = u64::from(options.log_buffers);
        if buffers < needed.max(BUFFERS_MIN) {
            return Err(Error::Small { buffers, needed });
        }
        let (shared, made) = shared(options)?;
        let start = shared.image_start();
        let parameters = shared.log().parameters();
        let memory = shared.log().medium().medium().memory();
        let space = BufferSpace::beside_a_store(memory, start, parameters, buffers)?;
        let sockets = Receiver::open(&options.region, space).inspect_err(|_| {
            // A region that was created by this call is useless if the call fails. If the region's file cannot be
            // removed, the next call opens it.
            if made {
                let _ = std::fs::remove_file(&options.region.path);
            }
        })?;
        let mut records = Records {
            sockets,
            shared: Exchange(shared),
        };
        let never_live = records.sockets.never_live();
        records.shared.0.leave_buffers(never_live);
        records.sockets.turn(&mut records.shared)?;
        Ok(records)
    }

    /// Returns whether every driver stores packets directly into the region, like
    /// [`Region::is_zero_copy`](crate::Region::is_zero_copy).
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        self.sockets.is_zero_copy()
    }

    /// Returns a text that names the failures which persisted data survives.
    #[must_use]
    pub fn survives(&self) -> &'static str {
        self.shared.0.log().survives()
    }

    /// Returns the numbers of buffers by owner. The store's buffers count as kept.
    #[must_use]
    pub fn buffers(&self) -> Places {
        self.sockets.places()
    }

    /// Waits for datagrams like [`Region::receive`](crate::Region::receive).
    ///
    /// # Errors
    /// [`Error::Socket`], [`Error::System`].
    pub fn receive(&mut self, wait: Duration, burst: &mut Vec<Packet>) -> Result<usize, Error> {
        self.sockets.receive(&mut self.shared, wait, burst)
    }

    /// Returns the bytes of a datagram.
    #[must_use]
    pub fn bytes(&self, packet: &Packet) -> &[u8] {
        self.shared.0.log().lent(&packet.0.place)
    }

    /// Releases a packet: its buffer is used for receiving again.
    pub fn release(&mut self, packet: Packet) {
        self.sockets.done(packet, Taken::Heard);
    }

    /// Logs a datagram in its buffer, with a number of your choice. Returns the order of the datagram. The datagram is
    /// durable after the next [`Records::persist`]. The first byte of the datagram is the header of the log entry. The
    /// rest is the payload, in which [`Change::link`] finds records.
    ///
    /// # Errors
    /// Returns the packet if the log is full (then apply some orders and persist; no logged datagram is lost), or if
    /// the datagram is empty.
    pub fn log(&mut self, packet: Packet, tag: u64) -> Result<u64, (Full, Packet)> {
        let shared = &mut self.shared.0;
        let Some((first, rest)) = shared.log().lent(&packet.0.place).split_first() else {
            return Err((Full::TooLarge, packet));
        };
        let (header, payload_crc) = ([*first], crc32c::crc32c(rest));
        let new = NewEntry {
            session: tag,
            seq: 0,
            kind: 0,
            fragment_index: 0,
            fragment_count: 1,
        };
        let place = packet.0.place.clone();
        match shared.append_in_place(&new, &header, &place, payload_crc) {
            Ok(order) => {
                self.sockets.done(packet, Taken::Kept);
                Ok(order)
            }
            Err(full) => Err((full, packet)),
        }
    }

    /// Makes all logged datagrams durable, and waits until they are. Returns the highest order that is durable.
    ///
    /// # Errors
    /// [`Error::Log`]: the medium failed. The region must be opened again.
    pub fn persist(&mut self) -> Result<u64, Error> {
        let shared = &mut self.shared.0;
        shared.persist_poll(true)?;
        shared.persist_start()?;
        shared.persist_poll(true)?;
        Ok(shared.log().durable())
    }

    /// Returns the durable entries that are not applied yet, oldest first.
    pub fn waiting(&self) -> impl Iterator<Item = Kept<'_>> {
        let log = self.shared.0.log();
        (log.applied() + 1..=log.durable()).filter_map(|order| {
            Some(Kept {
                order,
                tag: log.entry(order)?.session,
                bytes: log.frame(order)?,
            })
        })
    }

    /// Returns the order up to which the store has applied the log.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.shared.0.log().applied()
    }

    /// Begins a change of the store like [`Shared::change`].
    ///
    /// # Errors
    /// [`Error::Log`].
    ///
    /// # Panics
    /// In the cases in which [`Shared::change`] panics.
    pub fn change(&mut self, upto: u64) -> Result<Change<'_, AnyMedia>, Error> {
        Ok(self.shared.0.change(upto)?)
    }

    /// Returns the store for reading.
    ///
    /// # Errors
    /// [`Error::Log`].
    pub fn store(&mut self) -> Result<Reading<'_, AnyMedia>, Error> {
        Ok(self.shared.0.store()?)
    }

    /// Moves some records close together if this frees enough buffers to be worth its cost. Returns the number of moved
    /// bytes. This function should be called after each change.
    ///
    /// # Errors
    /// [`Error::Records`].
    pub fn pack(&mut self) -> Result<usize, Error> {
        Ok(self.shared.0.pack_step(PACKED_BYTES)?)
    }

    /// Sends a datagram like [`Region::send`](crate::Region::send).
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn send(&mut self, to: SocketAddr, datagram: &[u8]) -> Result<bool, Error> {
        self.sockets.send(to, datagram)
    }

    /// Passes queued datagrams to the interface.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.sockets.flush()
    }

    /// Closes the region. All logged datagrams are then durable.
    ///
    /// # Errors
    /// [`Error::Log`].
    pub fn close(self) -> Result<(), Error> {
        drop(self.sockets);
        Ok(self.shared.0.close()?)
    }
}

/// Returns the region's log and store, and whether the region was created.
fn shared(options: &RecordsOptions) -> Result<(Shared<AnyMedia>, bool), Error> {
    let region = &options.region;
    let path: &Path = &region.path;
    let (kind, buffer_bytes) = medium(region.medium);
    let made = !path.exists();
    let mut media = if made {
        let frames = region
            .bytes
            .div_ceil(u64::from(buffer_bytes))
            .next_multiple_of(2);
        let frames = u32::try_from(frames).unwrap_or(u32::MAX);
        let entries = u64::from(options.log_buffers)
            .next_power_of_two()
            .clamp(ENTRIES_MIN, ENTRIES_MAX);
        let entries = u32::try_from(entries).expect("at most 2^26");
        let geometry =
            Geometry::shared(frames, buffer_bytes, entries).map_err(SharedError::from)?;
        let mut uuids = [[0; 16]; 2];
        for uuid in &mut uuids {
            getrandom::fill(uuid).map_err(|error| std::io::Error::other(error.to_string()))?;
        }
        let [store, log] = uuids.map(u128::from_be_bytes);
        let store = Identity {
            uuid: store,
            shard: SHARD,
        };
        let log = LogIdentity {
            log_uuid: log,
            device: DEVICE,
            shard: SHARD,
        };
        let mut media = pmnet_media::create(path, kind, geometry.image_bytes())?;
        format_shared(&mut media, &store, &log, &geometry)?;
        media
    } else {
        pmnet_media::open(path, kind)?
    };
    if let (Medium::MemoryFlushed, AnyMedia::Dram(memory)) = (region.medium, &mut media) {
        memory.rehearse_flushes(path)?;
    }
    Ok((
        Shared::open(media, SHARD, DEVICE, options.log_buffers)?,
        made,
    ))
}
