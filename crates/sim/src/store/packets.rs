//! The packet store (crate `packet-store`) that keeps the data of the store of lists, on a medium that loses stores in
//! a crash.
//!
//! Fault model: the computer dies in the middle of any persist of a transaction, of packing, or of a recovery. After
//! that, the next server process opens an image in which each word that was not persisted has its old or its new
//! content. The store must then have the contents after the last answered transaction, or the contents after the
//! transaction whose end was not reported.

use super::operation::{Act, Reply};
use super::redis::{Data, Ran};
use super::state::{Asked, Link, State, retry};
use crate::media::{Handle, Kind, SimMedia};
use bytes::Bytes;
use pmnet_packet_store::{
    Error, Geometry, Identity, Meta, OpenError, PacketStore, Room, Scan, Transaction, format,
};
use pmnet_proto::Random;
use pmnet_server::{Batch, RecordKey, Request, StoreError};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Space for all data that the clients of one world write.
const GEOMETRY: Geometry = Geometry {
    lines: 8192,
    frames: 1024,
    frame_bytes: 2048,
    log_entries: 0,
};
/// First byte of the keys of lists.
const LISTS: u8 = 0;
/// First byte of the keys of the protocol's records.
const RECORDS: u8 = 0xff;
/// Maximum number of bytes that are packed after each transaction.
const PACKED_BYTES: usize = 16 << 10;
/// Number of persists of a transaction and of the packing after it. A fuse blows in one of these persists, or in none.
const TRANSACTION_PERSISTS: u64 = 5;
/// Number of persists of a recovery, plus one.
const RECOVERY_PERSISTS: u64 = 4;

/// The contents of a packet store: the lists, and the protocol's records.
type Content = (BTreeMap<u8, Vec<u64>>, BTreeMap<RecordKey, Bytes>);

/// A packet store and its medium.
pub(super) struct Packets {
    handle: Handle,
    /// The open store; `None`: the store must be opened first.
    map: Option<PacketStore<SimMedia>>,
    /// The contents before a transaction whose end was not reported.
    before: Option<Data>,
}

impl std::fmt::Debug for Packets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packets").finish_non_exhaustive()
    }
}

impl Packets {
    /// Returns an empty store.
    pub(super) fn new(uuid: u64) -> Packets {
        let handle = Handle::blank(Kind::Forgetful, GEOMETRY.image_bytes());
        let identity = Identity {
            uuid: u128::from(uuid) << 64 | 1,
            shard: 0,
        };
        format(&mut handle.open(), &identity, &GEOMETRY).expect("a blank medium");
        Packets {
            handle,
            map: None,
            before: None,
        }
    }

    /// Opens the store like a process that starts after the death of the computer.
    fn open(&mut self, random: &mut Random) -> Result<Content, OpenError> {
        if let Some(map) = self.map.take() {
            self.handle.crash(&map.into_media(), random);
        }
        let map = Scan::open(self.handle.open(), Some(0))?.repair()?;
        let content = content(&map).map_err(|error| OpenError::Unreadable {
            what: error.to_string(),
        })?;
        self.map = Some(map);
        Ok(content)
    }

    /// Makes the changes in `data` durable in one transaction.
    fn commit(&mut self, data: &mut Data) -> Result<(), Error> {
        let changed = data.changed.take().unwrap_or_default();
        data.changed = Some(Default::default());
        let map = self.map.as_mut().expect("it was loaded");
        let mut transaction = map.transaction();
        for key in changed.lists {
            let list: Vec<u8> = data
                .list(key)
                .iter()
                .flat_map(|id| id.to_be_bytes())
                .collect();
            transaction.put(&[LISTS, key], &list, Meta::default(), Room::Ordinary)?;
        }
        for key in changed.records {
            let value = data.records.get(&key);
            put_record(&mut transaction, &key, value)?;
        }
        transaction.commit()?;
        map.pack_step(PACKED_BYTES).map(drop)
    }

    /// Returns the contents before a transaction whose end is not reported yet. The next open must find these contents,
    /// or the contents after the transaction.
    pub(super) fn before(&self) -> Option<&Data> {
        self.before.as_ref()
    }

    /// Reads a list from the store.
    fn list(&self, key: u8) -> Result<Vec<u64>, Error> {
        let map = self.map.as_ref().expect("it was loaded");
        let record = map.get(&[LISTS, key])?;
        Ok(record.map_or_else(Vec::new, |record| ids(record.value(&mut Vec::new()))))
    }
}

fn put_record(
    transaction: &mut Transaction<'_, SimMedia>,
    key: &[u8],
    value: Option<&Bytes>,
) -> Result<(), Error> {
    let key = [&[RECORDS], key].concat();
    match value {
        Some(value) => transaction.put(&key, value, Meta::default(), Room::Reserved),
        None => transaction.remove(&key).map(drop),
    }
}

fn ids(value: &[u8]) -> Vec<u64> {
    let words = value.chunks(8);
    words
        .map(|word| word.try_into().map_or(u64::MAX, u64::from_be_bytes))
        .collect()
}

fn content(map: &PacketStore<SimMedia>) -> Result<Content, Error> {
    let mut content = Content::default();
    let mut scratch = Vec::new();
    for record in map.range(Bound::Unbounded, Bound::Unbounded) {
        let record = record?;
        match record.key_and_value(&mut scratch) {
            ([LISTS, key], value) => {
                content.0.insert(*key, ids(value));
            }
            (key, value) => {
                let key = key.strip_prefix(&[RECORDS]).unwrap_or(key).to_vec();
                content.1.insert(key, Bytes::copy_from_slice(value));
            }
        }
    }
    Ok(content)
}

fn is_content_of(content: &Content, data: &Data) -> bool {
    content.0 == data.story.lists && content.1 == data.records
}

/// The steps of a store in a world with a packet store.
impl State {
    fn random(&mut self) -> Random {
        Random::new(self.draw())
    }

    /// By chance, makes the computer die in one of the next persists.
    fn light_fuse(&mut self, persists: u64) -> bool {
        let every = self.config.trouble;
        let dies = self.spell.is_some() || every > 0 && self.draw().is_multiple_of(every);
        let after = u32::try_from(self.draw() % persists).expect("small");
        let fate = self.random();
        if let Some(packets) = &self.packets {
            packets.handle.set_fuse(dies.then_some((after, fate)));
        }
        dies
    }

    fn happened(&mut self, what: &'static str) {
        *self.happened.entry(what).or_default() += 1;
    }

    /// Opens the store and compares its contents with the expected ones.
    pub(super) fn load_packets(&mut self) -> Result<(), StoreError> {
        self.light_fuse(RECOVERY_PERSISTS);
        let mut random = self.random();
        let packets = self.packets.as_mut().expect("a world with a packet store");
        let opened = packets.open(&mut random);
        packets.handle.set_fuse(None);
        let content = match opened {
            Ok(content) => content,
            Err(OpenError::Media(_)) => {
                self.happened("packet store: died in its recovery");
                return Err(retry("the medium failed"));
            }
            Err(error) => {
                self.wrong.push(format!("the packet store: {error}"));
                return Err(StoreError::Fatal(error.to_string()));
            }
        };
        let before = packets.before.take();
        let data = &mut self.instances[self.address].data;
        let took_place = is_content_of(&content, data);
        match before {
            Some(before) if !took_place && is_content_of(&content, &before) => *data = before,
            _ if !took_place => self
                .wrong
                .push("the packet store has other records than it had".to_owned()),
            _ => {}
        }
        self.happened("packet store: recovered");
        Ok(())
    }

    /// Runs `work` on the contents of the store and makes the changes durable.
    fn in_transaction<T>(
        &mut self,
        at: usize,
        work: impl FnOnce(&mut State) -> T,
    ) -> Result<T, StoreError> {
        let before = self.light_fuse(TRANSACTION_PERSISTS);
        let before = before.then(|| self.instances[at].data.clone());
        let done = work(self);
        let packets = self.packets.as_mut().expect("a world with a packet store");
        let committed = packets.commit(&mut self.instances[at].data);
        let blown = packets.handle.is_blown();
        packets.handle.set_fuse(None);
        match committed {
            Ok(()) => Ok(done),
            Err(Error::Media(_)) if blown => {
                // The computer is dead, and its memory is lost.
                packets.map = None;
                packets.before = before;
                self.happened("packet store: died in a transaction");
                Err(retry("the medium failed"))
            }
            Err(error) => {
                self.wrong.push(format!("the packet store: {error}"));
                Err(StoreError::Fatal(error.to_string()))
            }
        }
    }

    pub(super) fn apply_to_packets(
        &mut self,
        link: &mut Link,
        batch: &Batch,
    ) -> Result<(), StoreError> {
        let at = link.at;
        self.in_transaction(at, |state| state.batch(at, batch))?;
        link.guard.watermark = self.instances[at].data.watermark();
        Ok(())
    }

    pub(super) fn execute_in_packets(
        &mut self,
        link: Link,
        requests: &[Request],
        replies: &mut Vec<Bytes>,
    ) -> Result<(), StoreError> {
        let at = link.at;
        let mut done = self.in_transaction(at, |state| {
            let requests = requests.iter();
            requests
                .map(|request| state.run_in_packets(at, request))
                .collect::<Vec<_>>()
        })?;
        replies.append(&mut done);
        Ok(())
    }

    fn run_in_packets(&mut self, at: usize, request: &Request) -> Bytes {
        let Some(operation) = self.parse(&request.payload) else {
            return Bytes::new();
        };
        if operation.act != Act::Fence {
            self.asked.push(Asked::Begun(operation.id));
        }
        let unchanged = self.instances[at].data.is_unchanged(operation.key);
        let packets = self.packets.as_ref().expect("a world with a packet store");
        let found = packets.list(operation.key);
        if unchanged && found.as_deref().ok() != Some(self.instances[at].data.list(operation.key)) {
            self.wrong
                .push("a read of the packet store gives another list".to_owned());
        }
        self.step += 1;
        let size = self.size();
        let step = (self.step, size);
        match self.instances[at].script(operation, request, None, true, step) {
            Ran::Replied(reply) => reply.bytes(size),
            Ran::NoReply(_) => Reply::Unsure.bytes(size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Operation, SimStore, StoreConfig};
    use super::*;
    use pmnet_server::Store;

    fn store(trouble: u64) -> SimStore {
        let config = StoreConfig {
            trouble,
            packets: true,
            ..StoreConfig::default()
        };
        SimStore::new(7, config)
    }

    /// Returns a batch with update `id` and a watermark.
    fn batch(id: u64) -> Batch {
        let operation = Operation {
            act: Act::Append,
            key: 1,
            id,
        };
        Batch {
            effects: vec![operation.payload(100)],
            records: vec![(
                b"watermark".to_vec(),
                Some(id.to_be_bytes().to_vec().into()),
            )],
            ..Batch::default()
        }
    }

    fn watermark(records: &[(RecordKey, Bytes)]) -> u64 {
        let found = records.iter().find(|(key, _)| key == b"watermark");
        found.map_or(0, |(_, value)| {
            u64::from_be_bytes(value[..].try_into().unwrap())
        })
    }

    #[test]
    fn what_was_answered_outlives_every_death() {
        let mut store = store(2);
        let (mut id, mut answered, mut deaths) = (0, 0, 0);
        while id < 300 {
            match store.load() {
                Ok(records) => {
                    let found = watermark(&records);
                    assert!(
                        found == answered || found == id,
                        "{found}, not {answered} or {id}"
                    );
                    (id, answered) = (found + 1, found);
                }
                Err(_) => {
                    deaths += 1;
                    continue;
                }
            }
            match store.apply(&batch(id)) {
                Ok(_) => answered = id,
                Err(_) => deaths += 1,
            }
        }
        assert!(deaths > 50, "{deaths} deaths");
        assert_eq!(store.take_wrong(), Vec::<String>::new());
    }

    #[test]
    fn a_medium_that_lies_is_found_out() {
        let mut store = store(0);
        store.load().unwrap();
        store
            .lock()
            .packets
            .as_ref()
            .unwrap()
            .handle
            .set_lying(true);
        for id in 1..10 {
            store.apply(&batch(id)).unwrap();
        }
        let _ = store.handle().load();
        assert!(!store.take_wrong().is_empty());
    }
}
