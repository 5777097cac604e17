//! The packet store behind a server: the data types of Redis over records that lie in packet buffers
//! (`docs/spec/packet-store.md` §8).
//!
//! Each `apply`, and each request that changes something, is one transaction over rows and records. The protocol's records are
//! records of the same map, under a prefix that no row has. A store that is full refuses: an update is tried again later, a
//! request gets an error. A record that is not what was written is never handed out.
//! Not here: what the store does (`pmnet-packet-store`), what commands do (`crate::types`).

mod grow;
mod holder;
mod place;
mod region;
mod rows;

use bytes::Bytes;
use pmnet_log::Media;
use pmnet_media::AnyMedia;
use pmnet_packet_store::{PacketStore as Map, Room};
use pmnet_server::{Batch, RecordKey, Request, Store, StoreError};

use crate::embedded::{Rejections, cursors, keyspace};
use crate::rows::Fault;
use crate::types::{Cursors, Keyspace, SWEPT_ROWS};
use crate::{OpenError, embedded, types};
use holder::{Alone, Holder, Reopen, Writing};
use place::Place;
use rows::{Keep, ReadRows, WriteRows};

pub use grow::{GrowError, Grown, grow_packet_store};
pub use region::{RegionAddress, RegionStore};

/// First byte of the keys of the protocol's records. The rows of the data types begin with others.
const RECORDS: u8 = 0xff;
/// Bytes that are packed after each call.
const PACKED_BYTES: usize = 256 << 10;
/// Longest reply whose record may take the reserve, in bytes. For a longer one there must be room as for data; if there is
/// not, the request is refused, and that reply is short.
const SHORT_REPLY_BYTES: usize = 512;
/// Bytes that are packed, piece by piece, before a full store refuses something: the call stays below a second.
const PACKED_BYTES_MAX: usize = 256 << 20;
/// What Redis says, and what to do here.
const OUT_OF_MEMORY: &str = "OOM command not allowed: the packet store is full; delete keys, or make it larger (pmnet store grow)";

/// Makes the collections in a packet store agree with themselves, after records were given up. Returns how many did not. In
/// one transaction.
///
/// # Errors
/// [`Fault`]; nothing has changed then.
pub fn mend_packet_store(map: &mut Map<AnyMedia>) -> Result<u64, Fault> {
    let mut transaction = map.transaction();
    let changed = types::mend(&mut WriteRows::new(&mut transaction, Room::Ordinary))?;
    transaction.commit().map_err(rows::fault)?;
    Ok(changed)
}

/// A packet store of its own.
pub type PacketStore = Served<Alone>;

/// See the module's text.
pub struct Served<H> {
    holder: H,
    rejected: Rejections,
    cursors: Cursors,
    /// What was last found out; see [`Store::is_short`].
    short: bool,
}

impl Served<Alone> {
    /// Opens the store that `address` names, or makes it: `PATH[?size=BYTES][&media=file|dram|pmem][&lines=N]`.
    ///
    /// # Errors
    /// [`OpenError::Packet`] when it is in use, is something else, belongs to another shard, is damaged, or cannot be read or
    /// made; [`OpenError::Random`].
    pub fn open(address: &str, shard: u32) -> Result<PacketStore, OpenError> {
        let place = Place::parse(address, shard)?;
        Ok(Served {
            holder: Alone {
                map: Some(place.open()?),
                place,
            },
            rejected: Rejections::default(),
            cursors: cursors()?,
            short: false,
        })
    }
}

impl<H: Holder> Served<H> {
    /// Runs `work` in one durable transaction, in this room; an error leaves no trace.
    fn write<T>(
        &mut self,
        upto: Option<u64>,
        room: Room,
        work: impl FnOnce(&mut Keyspace<'_>) -> Result<T, Fault>,
        records: impl FnOnce(&T, &mut dyn Keep) -> Result<(), Fault>,
    ) -> Result<T, Fault> {
        let mut writing = self.holder.begin(upto)?;
        let mut rows = WriteRows::new(&mut writing, room);
        let mut keys = keyspace(&mut rows, &mut self.cursors)?;
        let done = work(&mut keys)?;
        let swept = keys.sweep(SWEPT_ROWS);
        if let Err(Fault::Corrupted(what)) = swept {
            // Whoever asks for it is told. What has nothing to do with it goes on.
            tracing::warn!("not swept: {what}");
        } else {
            swept?;
        }
        records(&done, &mut rows)?;
        let [linked, copied] = rows.kept;
        writing.commit().map_err(rows::fault)?;
        self.holder.kept(linked, copied);
        self.holder.pack_step(PACKED_BYTES)?;
        self.short = self.holder.look(Map::is_short)?;
        Ok(done)
    }

    /// Packs as long as that gives something; whether it did.
    fn make_room(&mut self) -> Result<bool, StoreError> {
        let mut all = 0;
        while all < PACKED_BYTES_MAX {
            match self.holder.pack_step(PACKED_BYTES) {
                Ok(0) => break,
                Ok(moved) => all += moved,
                Err(fault) => return Err(self.failed(fault)),
            }
        }
        Ok(all > 0)
    }

    /// What the server is told; after a failure of the medium the store is opened again.
    fn failed(&mut self, fault: Fault) -> StoreError {
        let text = format!("{}: {fault}", self.holder.name());
        match fault {
            Fault::Corrupted(_) => StoreError::Fatal(text),
            Fault::Full => StoreError::Retry(text),
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
                let answers = requests.iter().map(|request| {
                    let reply = embedded::answer(keys, request)?;
                    Ok(match &request.record {
                        Some((key, _)) => crate::bounded_reply(reply, key),
                        None => reply,
                    })
                });
                answers.collect()
            },
            |replies: &Vec<Bytes>, rows| keep_replies(requests, replies, rows),
        )
    }

    /// One request in a transaction of its own. If there is no room for it, or what it needs is damaged, its reply says so,
    /// and it has no effect. Of a pack, only the first part is executed then.
    fn execute_alone(&mut self, request: &Request) -> Result<Bytes, StoreError> {
        let one = std::slice::from_ref(request);
        let refusal = match self.execute_once(one) {
            Ok(mut replies) => return Ok(replies.remove(0)),
            Err(Fault::Full) => OUT_OF_MEMORY.to_owned(),
            Err(Fault::Corrupted(what)) => format!("ERR pmnet: {what}"),
            Err(fault) => return Err(self.failed(fault)),
        };
        if let Some(first) = embedded::first_part(request) {
            return self.execute_alone(&first);
        }
        let reply = embedded::refusal(request, &refusal);
        tracing::warn!(store = %self.holder.name(), "a request was refused: {refusal}");
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
        let cursors = &mut self.cursors;
        let answered = self.holder.look(|map| {
            let mut rows = ReadRows { map };
            keyspace(&mut rows, cursors).and_then(|mut keys| embedded::answer(&mut keys, request))
        });
        match answered.and_then(|answered| answered) {
            Ok(reply) => Ok(reply),
            Err(Fault::Corrupted(what)) => {
                tracing::error!(store = %self.holder.name(), "{what}");
                Ok(pmnet_resp::reply::error(&format!("ERR pmnet: {what}")))
            }
            Err(fault) => Err(self.failed(fault)),
        }
    }
}

fn keep_replies(requests: &[Request], replies: &[Bytes], rows: &mut dyn Keep) -> Result<(), Fault> {
    for (request, reply) in requests.iter().zip(replies) {
        if let Some((key, prefix)) = &request.record {
            let room = if reply.len() > SHORT_REPLY_BYTES {
                Room::Ordinary
            } else {
                Room::Reserved
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
        let loaded = self.holder.look(|map| (map.is_short(), records(map)));
        let loaded = loaded.and_then(|(short, loaded)| {
            self.short = short;
            loaded
        });
        loaded.map_err(|fault| self.failed(fault))
    }

    fn apply(&mut self, batch: &Batch) -> Result<u64, StoreError> {
        let mut applied = self.apply_once(batch);
        if matches!(applied, Err(Fault::Full)) && self.make_room()? {
            applied = self.apply_once(batch);
        }
        let rejected = applied.map_err(|fault| self.failed(fault))?;
        self.rejected.note(&rejected);
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
            Err(Fault::Corrupted(_)) => {}
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

    fn durability(&self) -> String {
        format!(
            "{}: durable before every reply: survives {}",
            self.holder.name(),
            self.holder.survives()
        )
    }
}

/// The protocol's records.
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
