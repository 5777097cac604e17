//! The packet store behind a server: the data types of Redis over records that lie in packet buffers
//! (`docs/spec/packet-store.md` §8).
//!
//! Each `apply`, and each request that changes data, is one transaction over rows and records. The protocol's records
//! are records of the same map, under a prefix that no row has. If the store is full, an update is tried again later,
//! and a request gets an error. A damaged record is never returned. The crate `pmnet-packet-store` implements the
//! records; `crate::types` implements the commands.

mod backup;
mod grow;
mod holder;
mod place;
mod region;
mod rows;

use bytes::Bytes;
use pmnet_log::Media;
use pmnet_media::AnyMedia;
use pmnet_packet_store::{PacketStore as Map, Room, Scan};
use pmnet_server::{Batch, RecordKey, Request, Store, StoreError};

use crate::embedded::{Counted, Rejections, TIDIED_KEYS, cursors, keyspace};
use crate::rows::{Fault, Row};
use crate::types::{Cursors, Keyspace, SWEPT_ROWS};
use crate::{OpenError, embedded, types};
use holder::{Alone, Holder, Reopen, Writing};
pub(crate) use place::Place;
use rows::{Keep, ReadRows, WriteRows};

pub use backup::{Backup, back_up_packet_store};
pub use grow::{GrowError, Grown, grow_packet_store};
pub use region::{RegionAddress, RegionStore};

/// First byte of the keys of the protocol's records. No row of the data types begins with this byte.
const RECORDS: u8 = 0xff;
/// Number of bytes that are packed after each call.
const PACKED_BYTES: usize = 256 << 10;
/// Longest value that may use the reserve, in bytes: the record of a reply, or a row of a command that frees space. A
/// longer reply needs free space of the kind that data uses. If there is no such space, the request is refused with a
/// short reply.
const SHORT_BYTES: usize = 512;
/// A full store packs at most this many bytes before it refuses something. Packing this many bytes takes less than a
/// second.
const PACKED_BYTES_MAX: usize = 256 << 20;
/// Bytes of frames that are kept free for each existing record of the protocol, so that a session has space for its
/// next reply.
const RECORD_BYTES: usize = 640;
/// Number of keys that are checked for expiry, and maximum number of rows that are removed, before a full store refuses
/// a write.
const CLEARED_KEYS: usize = 50_000;
const CLEARED_ROWS: usize = 20_000;
/// Shortest pause between two searches for expired keys that found nothing, in milliseconds.
const CLEARED_EVERY_MS: u64 = 500;

/// Repairs the collections of a packet store in one transaction, after damaged records were given up. Returns the
/// number of collections whose records contradicted each other.
///
/// # Errors
/// [`Fault`]; the store is unchanged in this case.
pub fn mend_packet_store(map: &mut Map<AnyMedia>) -> Result<u64, Fault> {
    let mut transaction = map.transaction();
    let changed = types::mend(&mut WriteRows::new(&mut transaction, Room::Ordinary))?;
    transaction.commit().map_err(rows::fault)?;
    Ok(changed)
}

/// Returns a table that names records of the store by the keys of clients, as far as the remaining records reveal these
/// keys.
#[must_use]
pub fn names_in_packet_store<M: Media>(scan: &Scan<M>) -> types::Names {
    let mut names = types::Names::default();
    scan.each_record(|key, meta, value| {
        names.note(
            key,
            Row {
                kind: meta.kind,
                expires_at_ms: meta.expires_at_ms,
                value,
            },
        );
    });
    names
}

/// A packet store that is alone on its medium.
pub type PacketStore = Served<Alone>;

/// Serves the records of a holder as a store, as the text of this module describes.
pub struct Served<H> {
    holder: H,
    told: Told,
    cursors: Cursors,
    /// Result of the last check for free space: what [`Store::is_short`] and [`Store::is_crowded`] return.
    short: bool,
    crowded: bool,
    /// Time of the last search for space that found none, in ms since 1970.
    cleared: u64,
}

/// Numbers of events. The more events of a kind there are, the fewer of them are logged.
#[derive(Debug, Default)]
struct Told {
    rejected: Rejections,
    /// Number of requests that were refused.
    refused: Counted,
    /// Number of turns in which expired keys were not removed because a record is damaged.
    unswept: Counted,
}

impl Served<Alone> {
    /// Opens the store that `address` names, or creates it: `PATH[?size=BYTES][&media=file|dram|pmem][&lines=N]`.
    ///
    /// # Errors
    /// [`OpenError::Packet`]: the file is in use, holds something else, belongs to another shard, is damaged, or cannot
    /// be read or made; [`OpenError::Random`].
    pub fn open(address: &str, shard: u32) -> Result<PacketStore, OpenError> {
        PacketStore::open_at(Place::parse(address, shard)?)
    }

    /// Opens the store at this place, or creates it.
    pub(crate) fn open_at(place: Place) -> Result<PacketStore, OpenError> {
        Ok(Served {
            holder: Alone {
                map: Some(place.open()?),
                place,
            },
            told: Told::default(),
            cursors: cursors()?,
            short: false,
            crowded: false,
            cleared: 0,
        })
    }
}

impl<H: Holder> Served<H> {
    /// Runs `work` in one durable transaction that may use the kind of space that `room` names. If `work` fails, the
    /// store is unchanged.
    fn write<T>(
        &mut self,
        upto: Option<u64>,
        room: Room,
        work: impl FnOnce(&mut Keyspace<'_>) -> Result<T, Fault>,
        records: impl FnOnce(&T, &mut dyn Keep) -> Result<(), Fault>,
    ) -> Result<T, Fault> {
        let mut writing = self.holder.begin(upto)?;
        let mut rows = WriteRows::new(&mut writing, room);
        rows.refused = self.told.refused.total();
        let mut keys = keyspace(&mut rows, &mut self.cursors)?;
        let done = work(&mut keys)?;
        let swept = keys.sweep(SWEPT_ROWS);
        if let Err(Fault::Corrupted(what)) = swept {
            // A client that asks for the key of the damaged record gets the error. All other keys are served.
            if let Some(total) = self.told.unswept.one_more() {
                tracing::warn!(total, "PM2415 an expired key cannot be removed: {what}");
            }
        } else {
            swept?;
        }
        records(&done, &mut rows)?;
        let [linked, copied] = rows.kept;
        writing.commit().map_err(rows::fault)?;
        self.holder.kept(linked, copied);
        self.holder.pack_step(PACKED_BYTES)?;
        self.look_around()?;
        Ok(done)
    }

    /// Checks how much space is free, and reserves space for the next replies of the existing sessions.
    fn look_around(&mut self) -> Result<(), Fault> {
        (self.short, self.crowded) = self.holder.settle(RECORDS, RECORD_BYTES)?;
        Ok(())
    }

    /// Removes expired keys, and rows that no longer belong to a key. Then packs records until packing frees no more
    /// space. Returns whether more space may be free than before.
    fn make_room(&mut self) -> Result<bool, StoreError> {
        let now = embedded::now();
        let mut cleared = false;
        if now.saturating_sub(self.cleared) >= CLEARED_EVERY_MS {
            let done = self.write(
                None,
                Room::Reserved,
                |keys| keys.clear(CLEARED_KEYS, CLEARED_ROWS),
                |_, _| Ok(()),
            );
            cleared = match done {
                Ok(removed) => removed > 0,
                // A client that needs damaged data gets an error instead of the data. After this call, the caller
                // reports that the store is full.
                Err(Fault::Corrupted(_) | Fault::Full | Fault::ReplyTooLong) => false,
                Err(fault) => return Err(self.failed(fault)),
            };
            if !cleared {
                self.cleared = now;
            }
        }
        let mut all = 0;
        while all < PACKED_BYTES_MAX {
            match self.holder.pack_step(PACKED_BYTES) {
                Ok(0) => break,
                Ok(moved) => all += moved,
                Err(fault) => return Err(self.failed(fault)),
            }
        }
        Ok(cleared || all > 0)
    }

    /// Returns the error for the server. After a failure of the medium, the store is opened again.
    fn failed(&mut self, fault: Fault) -> StoreError {
        let text = format!("{}: {fault}", self.holder.name());
        match fault {
            Fault::Corrupted(_) => StoreError::Fatal(text),
            Fault::Full | Fault::ReplyTooLong => StoreError::Retry(text),
            Fault::Storage(_) => {
                self.holder.close();
                StoreError::Retry(text)
            }
        }
    }

    fn apply_once(&mut self, batch: &Batch) -> Result<Vec<String>, Fault> {
        self.write(
            batch.upto,
            Room::Acknowledged,
            |keys| embedded::apply(keys, batch),
            |_, rows| {
                let mut changes = batch.records.iter();
                changes.try_for_each(|(key, value)| {
                    rows.put_record(key, value.as_deref(), Room::Reserved)
                })
            },
        )
    }

    fn execute_once(&mut self, requests: &[Request]) -> Result<Vec<Bytes>, Fault> {
        self.write(
            None,
            Room::Ordinary,
            |keys| {
                let answers = requests.iter();
                answers
                    .map(|request| embedded::answer(keys, request))
                    .collect()
            },
            |replies: &Vec<Bytes>, rows| keep_replies(requests, replies, rows),
        )
    }

    /// Executes one request in a transaction of its own. If the store has no space for the request, or if data that the
    /// request needs is damaged, the request has no effect, and its reply states the reason. If a pack fails for one of
    /// these reasons, only its first part is executed.
    fn execute_alone(&mut self, request: &Request) -> Result<Bytes, StoreError> {
        let one = std::slice::from_ref(request);
        let fault = match self.execute_once(one) {
            Ok(mut replies) => return Ok(replies.remove(0)),
            Err(fault) => fault,
        };
        let Some(refusal) = embedded::told(&fault) else {
            return Err(self.failed(fault));
        };
        if let Some(first) = embedded::first_part(request) {
            return self.execute_alone(&first);
        }
        let reply = embedded::refusal(request, &refusal);
        if let Some(total) = self.told.refused.one_more() {
            tracing::warn!(store = %self.holder.name(), total, "PM2416 a request was refused: {refusal}");
        }
        let kept = self.write(
            None,
            Room::Ordinary,
            |_| Ok(vec![reply.clone()]),
            |replies, rows| keep_replies(one, replies, rows),
        );
        kept.map_err(|fault| self.failed(fault))?;
        Ok(reply)
    }

    fn read(&mut self, request: &Request) -> Result<Bytes, StoreError> {
        let (cursors, refused) = (&mut self.cursors, self.told.refused.total());
        let answered = self.holder.look(|map| {
            let mut rows = ReadRows { map, refused };
            keyspace(&mut rows, cursors).and_then(|mut keys| embedded::answer(&mut keys, request))
        });
        match answered.and_then(|answered| answered) {
            Ok(reply) => Ok(reply),
            Err(Fault::Corrupted(what)) => {
                tracing::error!(store = %self.holder.name(), "PM2417 {what}");
                Ok(pmnet_resp::reply::error(&format!("ERR pmnet: {what}")))
            }
            Err(fault) => Err(self.failed(fault)),
        }
    }
}

fn keep_replies(requests: &[Request], replies: &[Bytes], rows: &mut dyn Keep) -> Result<(), Fault> {
    // A reply that contains the removed data takes no more space than the removal frees.
    let mut freed = rows.freed();
    for (request, reply) in requests.iter().zip(replies) {
        if let Some((key, prefix)) = &request.record {
            let room = if reply.len() <= SHORT_BYTES {
                Room::Reserved
            } else if reply.len() <= freed + SHORT_BYTES {
                freed -= reply.len().min(freed);
                Room::Reserved
            } else {
                Room::Ordinary
            };
            rows.put_record(key, Some(&[&prefix[..], reply].concat()), room)?;
        }
    }
    Ok(())
}

impl<H: Holder> Store for Served<H> {
    fn load(&mut self) -> Result<Vec<(RecordKey, Bytes)>, StoreError> {
        self.holder.open().map_err(|error| match error {
            Reopen::Later(text) => StoreError::Retry(text),
            Reopen::Never(text) => StoreError::Fatal(text),
        })?;
        let looked = self.look_around();
        let loaded = looked.and_then(|()| self.holder.look(records)?);
        loaded.map_err(|fault| self.failed(fault))
    }

    fn apply(&mut self, batch: &Batch) -> Result<u64, StoreError> {
        let mut applied = self.apply_once(batch);
        if matches!(applied, Err(Fault::Full)) && self.make_room()? {
            applied = self.apply_once(batch);
        }
        let rejected = applied.map_err(|fault| self.failed(fault))?;
        self.told.rejected.note(&rejected);
        Ok(u64::try_from(rejected.len()).unwrap_or(u64::MAX))
    }

    fn execute(
        &mut self,
        requests: &[Request],
        replies: &mut Vec<Bytes>,
    ) -> Result<(), StoreError> {
        if requests.iter().all(|request| request.record.is_none()) {
            for request in requests {
                let reply = self.read(request)?;
                replies.push(reply);
            }
            return Ok(());
        }
        match self.execute_once(requests) {
            Ok(done) => {
                replies.extend(done);
                return Ok(());
            }
            Err(Fault::Full) => {
                self.make_room()?;
            }
            Err(Fault::Corrupted(_) | Fault::ReplyTooLong) => {}
            Err(fault) => return Err(self.failed(fault)),
        }
        for request in requests {
            let reply = match &request.record {
                Some(_) => self.execute_alone(request)?,
                None => self.read(request)?,
            };
            replies.push(reply);
        }
        Ok(())
    }

    fn is_short(&self) -> bool {
        self.short
    }

    fn is_crowded(&self) -> bool {
        self.crowded
    }

    fn tidies(&self) -> bool {
        true
    }

    fn tidy(&mut self) -> Result<bool, StoreError> {
        let before = self.cursors.reclaimed.clone();
        let refused = self.told.refused.total();
        let cursors = &mut self.cursors;
        let due = self.holder.look(|map| {
            let mut rows = ReadRows { map, refused };
            keyspace(&mut rows, cursors)?.has_garbage(TIDIED_KEYS)
        });
        let done = due.flatten().and_then(|due| {
            if due {
                self.cursors.reclaimed = before;
                let room = Room::Reserved;
                self.write(None, room, |keys| keys.reclaim(TIDIED_KEYS), |_, _| Ok(()))?;
            }
            Ok(due)
        });
        match done {
            Ok(due) => Ok(due),
            // A client that needs damaged data gets an error instead of the data.
            Err(Fault::Corrupted(_) | Fault::Full | Fault::ReplyTooLong) => Ok(false),
            Err(fault) => Err(self.failed(fault)),
        }
    }

    fn durability(&self) -> String {
        format!(
            "{}: durable before every reply: survives {}",
            self.holder.name(),
            self.holder.survives()
        )
    }
}

/// Returns the protocol's records.
fn records<M: Media>(map: &Map<M>) -> Result<Vec<(RecordKey, Bytes)>, Fault> {
    let first = [RECORDS];
    let all = map.range(
        std::ops::Bound::Included(&first),
        std::ops::Bound::Unbounded,
    );
    let mut found = Vec::new();
    let mut scratch = Vec::new();
    for record in all {
        let record = record.map_err(|error| Fault::Corrupted(format!("records: {error}")))?;
        let (key, value) = record.key_and_value(&mut scratch);
        found.push((key[1..].to_vec(), Bytes::copy_from_slice(value)));
    }
    Ok(found)
}
