//! Drives a store on a recording medium through the operations of a script, and notes what the store promises at each
//! moment.

use std::sync::Arc;

use pmnet_packet_store::{
    Geometry, InPlace, Meta, Packet, PacketStore, Room, Scan, Snapshot, Transaction,
};

use crate::explore::{Recording, World};
use crate::medium::{Event, Recorder, State, Tape};
use crate::promise::Promise;
use crate::support::{Content, IDENTITY, Random, content};

/// The smallest stores that are possible. Such small stores soon use their space again.
pub const STORES: [Geometry; 2] = [
    Geometry {
        lines: 128,
        frames: 32,
        frame_bytes: 2048,
        log_entries: 0,
    },
    Geometry {
        lines: 128,
        frames: 32,
        frame_bytes: 4096,
        log_entries: 0,
    },
];

/// One change in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Writes the key with this number, with a value of this length.
    Put(u8, usize),
    Remove(u8),
    /// Keeps a packet with records for several keys: the first key, and the number of keys.
    InPlace(u8, u8),
}

/// One operation of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Commit(Vec<Change>),
    Abort(Vec<Change>),
    /// Packs up to this many bytes.
    Pack(usize),
    Snapshot,
    /// Releases the oldest snapshot.
    Release,
    /// The process dies. All that it has written stays visible, and the store is opened again.
    Kill,
    /// Power is lost. Each line that is not settled has its old or its new content, as this seed decides. Then the
    /// store is opened again.
    Power(u64),
}

/// A store on a recorder, and the current promise.
pub struct Driver {
    initial: State,
    tape: Tape,
    events: Vec<Event>,
    store: Option<PacketStore<Recorder>>,
    snapshots: Vec<Snapshot>,
    allowed: Vec<Content>,
    number: u64,
    stamp: u64,
}

/// Returns the bytes of a key. Most keys are short, two keys have the same first 16 bytes, and one key is longer than a
/// frame.
fn name(key: u8) -> Vec<u8> {
    match key {
        0 => Vec::new(),
        1 | 2 => format!("the same beginning {key}").into_bytes(),
        3 => vec![b'l'; 5000],
        // This is the part of the long key that lies in the key's first frame.
        30 => vec![b'l'; 2048],
        31 => vec![b'l'; 4096],
        _ => format!("k{key}").into_bytes(),
    }
}

impl Driver {
    fn promise(&mut self, allowed: Vec<Content>) {
        self.number += 1;
        self.allowed.clone_from(&allowed);
        self.tape.push(Event::Promise(Arc::new(Promise {
            allowed,
            number: self.number,
        })));
    }

    /// Returns all states in which the medium may be now.
    fn state(&mut self) -> State {
        self.events.append(&mut self.tape.take());
        let mut state = self.initial.clone();
        for event in &self.events {
            state.apply(event);
        }
        state
    }

    fn expect(&mut self, wanted: &Content) -> Result<(), String> {
        match &content(self.store.as_ref().expect("the store is open")) == wanted {
            true => Ok(()),
            false => Err("the open store shows another content".into()),
        }
    }
}

impl World for Driver {
    type Op = Op;

    fn new(initial: State, promise: &Promise) -> Driver {
        let number = promise.number << 8;
        Driver {
            initial,
            tape: Tape::default(),
            events: Vec::new(),
            store: None,
            snapshots: Vec::new(),
            allowed: promise.allowed.clone(),
            number,
            stamp: number << 20,
        }
    }

    /// Scans an image, checks that it keeps the promise, and repairs it. From now on the content that was found is the
    /// only promised content.
    fn open(&mut self, image: Vec<u8>) -> Result<(), String> {
        let medium = Recorder::new(image, Some(self.tape.clone()));
        let scan = Scan::open(medium, Some(IDENTITY.shard)).map_err(|error| error.to_string())?;
        let store = scan.repair().map_err(|error| error.to_string())?;
        let found = content(&store);
        if !self.allowed.contains(&found) {
            return Err("opened with another content than any that may be there".into());
        }
        self.store = Some(store);
        self.promise(vec![found]);
        Ok(())
    }

    fn step(&mut self, op: &Op) -> Result<(), String> {
        let told = |error: pmnet_packet_store::Error| error.to_string();
        let before = self.allowed[0].clone();
        let store = self.store.as_mut().expect("the store is open");
        match op {
            Op::Commit(changes) | Op::Abort(changes) => {
                let mut after = before.clone();
                let mut lent = Vec::new();
                for change in changes {
                    if let Change::InPlace(..) = change {
                        lent.push(store.lend_frame().ok_or("no frame to lend")?);
                    }
                }
                let mut packets = Vec::new();
                for (change, frame) in changes
                    .iter()
                    .filter(|change| matches!(change, Change::InPlace(..)))
                    .zip(lent)
                {
                    let Change::InPlace(first, count) = *change else {
                        unreachable!("filtered")
                    };
                    self.stamp += 1;
                    packets.push(packet(store, frame, first, count, self.stamp));
                }
                packets.reverse();
                let mut transaction = store.transaction();
                for change in changes {
                    self.stamp += 1;
                    apply(
                        &mut transaction,
                        *change,
                        self.stamp,
                        &mut packets,
                        &mut after,
                    )
                    .map_err(told)?;
                }
                if matches!(op, Op::Abort(_)) {
                    drop(transaction);
                    return Ok(());
                }
                self.number += 1;
                self.tape.push(Event::Promise(Arc::new(Promise {
                    allowed: vec![before, after.clone()],
                    number: self.number,
                })));
                transaction.commit().map_err(told)?;
                self.promise(vec![after.clone()]);
                self.expect(&after)
            }
            Op::Pack(budget) => {
                store.pack_step(*budget).map_err(told)?;
                self.expect(&before)
            }
            Op::Snapshot => {
                self.snapshots.push(store.snapshot());
                Ok(())
            }
            Op::Release => {
                if self.snapshots.is_empty() {
                    return Err("no snapshot".into());
                }
                store.release(self.snapshots.remove(0));
                Ok(())
            }
            Op::Kill | Op::Power(_) => {
                drop(self.store.take());
                self.snapshots.clear();
                let state = self.state();
                let left = match op {
                    Op::Power(seed) => {
                        let mut random = Random(*seed);
                        let lines: Vec<_> = state
                            .dirty_lines()
                            .into_iter()
                            .map(|line| {
                                let possible = state.possible(line);
                                (line, possible[random.index(possible.len())])
                            })
                            .collect();
                        State::clean(state.image(&lines))
                    }
                    _ => state.killed(|count| count),
                };
                let image = left.visible();
                self.events.push(Event::Crash(Box::new(left)));
                self.open(image)
            }
        }
    }

    fn finish(mut self) -> Recording {
        self.events.append(&mut self.tape.take());
        Recording {
            initial: self.initial,
            events: self.events,
            persists: self.tape.persists(),
        }
    }

    fn after_recovery() -> Vec<Op> {
        crate::script::after_recovery()
    }

    fn recover(image: Vec<u8>, promise: &Promise) -> Result<(), String> {
        let scan = Scan::open(Recorder::new(image, None), Some(IDENTITY.shard))
            .map_err(|error| error.to_string())?;
        let damaged = scan.verify();
        if !damaged.is_empty() {
            return Err(format!("damaged: {}", damaged[0]));
        }
        let store = scan.repair().map_err(|error| error.to_string())?;
        match promise.allowed.contains(&content(&store)) {
            true => Ok(()),
            false => Err("another content than any that may be there".into()),
        }
    }
}

/// A packet in a lent frame, with its records.
type Prepared = (Packet, Vec<(InPlace, Vec<u8>, Vec<u8>)>);

fn packet(
    store: &mut PacketStore<Recorder>,
    frame: u32,
    first: u8,
    count: u8,
    stamp: u64,
) -> Prepared {
    let mut random = Random(stamp);
    let mut payload = random.bytes(5);
    let mut records = Vec::new();
    for key in first..first + count {
        let (key, value) = (name(key), random.bytes(40));
        let key_at = payload.len();
        payload.extend_from_slice(&key);
        payload.extend_from_slice(b"\r\n");
        let value_at = payload.len();
        payload.extend_from_slice(&value);
        let record = InPlace {
            key: key_at..key_at + key.len(),
            value: value_at..payload.len(),
            meta: meta(stamp),
        };
        records.push((record, key, value));
    }
    store.deposit(frame, 22, &payload);
    let packet = Packet {
        frame,
        payload: 22..22 + payload.len(),
        crc: crc32c::crc32c(&payload),
    };
    (packet, records)
}

fn meta(stamp: u64) -> Meta {
    Meta {
        kind: 1,
        expires_at_ms: stamp,
        order: stamp,
        received_us: stamp,
    }
}

fn apply(
    transaction: &mut Transaction<'_, Recorder>,
    change: Change,
    stamp: u64,
    packets: &mut Vec<Prepared>,
    content: &mut Content,
) -> Result<(), pmnet_packet_store::Error> {
    match change {
        Change::Put(key, len) => {
            let value = Random(stamp).bytes(len);
            transaction.put(&name(key), &value, meta(stamp), Room::Ordinary)?;
            content.insert(name(key), (value, meta(stamp)));
        }
        Change::Remove(key) => {
            let removed = transaction.remove(&name(key))?;
            assert_eq!(removed, content.remove(&name(key)).is_some());
        }
        Change::InPlace(..) => {
            let (packet, records) = packets.pop().expect("one for each");
            let places: Vec<InPlace> = records.iter().map(|(place, ..)| place.clone()).collect();
            transaction.put_in_place(&packet, &places, Room::Ordinary)?;
            for (place, key, value) in records {
                content.insert(key, (value, place.meta));
            }
        }
    }
    Ok(())
}
