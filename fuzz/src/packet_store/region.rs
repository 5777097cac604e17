//! A log and a store in one region (`docs/spec/packet-store.md` §11): histories of receiving,
//! copying, applying, giving up, packing and releasing. Power losses, deaths of the process and
//! failing persists happen at any moment, also while the region is opened. At the end there are
//! hostile images.
//!
//! Invariants after every step and every restart: acknowledged entries exist; the store has exactly
//! the effects up to its order; log and store agree about every frame; bytes that a sender puts
//! into a free frame are never taken for a record. A hostile image is refused and stays unchanged,
//! or the repaired region can be used.

use std::ops::RangeInclusive;

use pmnet_log::{Identity as LogIdentity, LogError, Media, NewEntry};
use pmnet_packet_store::{
    Error, Geometry, InPlace, Meta, OpenError, Room, Shared, SharedError, format_shared,
};

use super::{Content, IDENTITY, content, forge};
use crate::input::Input;
use crate::medium::Forgetful;

/// The smallest possible regions, whose frames are soon used again.
const GEOMETRIES: [Geometry; 2] = [geometry(2048), geometry(4096)];
const LOG: LogIdentity = LogIdentity {
    log_uuid: 0xfeed,
    device: 7,
    shard: IDENTITY.shard,
};
const LOG_FRAMES: u32 = 16;
/// Maximum numbers of steps, of incarnations, and of changes to the final image.
const STEPS: usize = 300;
const LIVES: usize = 16;
const CHANGES: usize = 12;
const KEYS: u64 = 16;
/// Number of persists within which an open may fail.
const PERSISTS_OF_OPEN: u64 = 12;

const HEADER: [u8; 24] = *b"the header of the entry.";
/// Offset of a packet in its frame; it is not at a cache line.
const FRONT: usize = 42;
const NEW: NewEntry = NewEntry {
    session: 1,
    seq: 2,
    kind: 3,
    fragment_index: 0,
    fragment_count: 1,
};
const PUT: u8 = 1;
const REMOVE: u8 = 2;

const fn geometry(frame_bytes: u32) -> Geometry {
    Geometry {
        lines: 256,
        frames: 40,
        frame_bytes,
        log_entries: 64,
    }
}

/// The history of a region.
struct Told {
    /// The contents of the store after each order.
    contents: Vec<Content>,
    durable: u64,
    /// The orders up to which the store may have applied.
    applied: RangeInclusive<u64>,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let geometry = input.pick(&GEOMETRIES);
    let mut medium = Forgetful::new(geometry.image_bytes());
    format_shared(&mut medium, &IDENTITY, &LOG, &geometry).expect("a blank medium");
    let mut told = Told {
        contents: vec![Content::new()],
        durable: 0,
        applied: 0..=0,
    };
    let mut shared = told.open(medium);
    let mut lives = 0;
    for _ in 0..STEPS {
        if !input.more() || lives == LIVES {
            break;
        }
        if told.step(&mut shared, &mut input) {
            told.compare(&mut shared);
            continue;
        }
        lives += 1;
        let medium = next_medium(shared.into_media(), &mut input);
        shared = told.open(medium);
        if input.rarely(3) {
            let mut medium = shared.into_media().kill();
            medium.slowness = input.byte() % 4;
            // The budget suffices for the open, so that the failure hits the region.
            medium.budget = input.rarely(2).then(|| 12 + input.below(24));
            shared = told.open(medium);
        }
    }
    let image = shared.into_media().kill().into_image();
    told.replayed(Forgetful::holding(image.clone()));
    hostile(image, &mut input);
}

/// Kills the process or loses power, perhaps again while the region is opened.
fn next_medium(mut medium: Forgetful, input: &mut Input<'_>) -> Forgetful {
    for _ in 0..3 {
        medium = medium.end(input);
        if !input.rarely(3) {
            break;
        }
        medium.budget = Some(input.below(PERSISTS_OF_OPEN));
        match open(&mut medium) {
            Ok(_) => {}
            Err(error) => assert!(is_of_medium(&error), "{error}"),
        }
        medium.budget = None;
    }
    medium.end(input)
}

fn is_of_medium(error: &SharedError) -> bool {
    matches!(
        error,
        SharedError::Log(LogError::Media(_)) | SharedError::Store(OpenError::Media(_))
    )
}

fn open<M: Media>(medium: M) -> Result<Shared<M>, SharedError> {
    Shared::open(medium, IDENTITY.shard, LOG.device, LOG_FRAMES)
}

fn at(order: u64) -> usize {
    usize::try_from(order).expect("a small number")
}

fn name(key: u64) -> Vec<u8> {
    format!("key{key:02}").into_bytes()
}

fn put(key: u64, value: &[u8]) -> Vec<u8> {
    [&[PUT], &name(key)[..], b"\r\n", value].concat()
}

/// Returns a put of a key with another name and the same checksum, as a sender can choose it.
fn forged(key: u64) -> Vec<u8> {
    let mut payload = put(key, &[0xee; 600]);
    // The polynomial of CRC32C as bytes of a message, lowest bit first; adding it changes no
    // checksum.
    let polynomial = 1_u64 << 32 | 0x1edc_6f41;
    for bit in (0..33).filter(|bit| polynomial >> (32 - bit) & 1 == 1) {
        payload[1 + bit / 8] ^= 1 << (bit % 8);
    }
    payload
}

/// Returns some bytes that depend on the position in the input.
fn value(input: &mut Input<'_>, most: usize) -> Vec<u8> {
    let (first, len) = (input.byte(), input.index(most));
    (0..len)
        .map(|at| first.wrapping_add(at.to_le_bytes()[0]))
        .collect()
}

/// Returns all readable records.
fn readable<M: Media>(shared: &mut Shared<M>) -> Content {
    content(&shared.store().expect("the medium works"))
}

/// Applies these orders in one change. With `commit` the change is committed; otherwise it is given
/// up at the end.
fn change<M: Media>(shared: &mut Shared<M>, upto: u64, commit: bool) -> Result<(), Error> {
    let first = shared.log().applied() + 1;
    let payloads: Vec<Vec<u8>> = (first..=upto)
        .map(|order| {
            let frame = shared.log().frame(order).expect("the log has it");
            frame[HEADER.len()..].to_vec()
        })
        .collect();
    let mut change = shared.change(upto).expect("the medium works");
    for (order, payload) in (first..).zip(payloads) {
        if payload.first() == Some(&REMOVE) {
            change.remove(&payload[1..])?;
            continue;
        }
        let record = InPlace {
            key: 1..6,
            value: 8..payload.len(),
            meta: Meta::default(),
        };
        change.link(order, &[record], Room::Ordinary)?;
    }
    if commit { change.commit() } else { Ok(()) }
}

impl Told {
    /// Opens a medium that must be valid.
    fn open(&mut self, medium: Forgetful) -> Shared<Forgetful> {
        let mut shared = open(medium).expect("a region of ours opens");
        let (applied, last) = (shared.log().applied(), shared.log().last());
        assert!(self.applied.contains(&applied), "the store has {applied}");
        assert!(last >= self.durable, "acknowledged and lost");
        assert!(at(last) < self.contents.len(), "never appended");
        self.contents.truncate(at(last) + 1);
        (self.durable, self.applied) = (last, applied..=applied);
        self.compare(&mut shared);
        shared
    }

    fn compare(&self, shared: &mut Shared<Forgetful>) {
        assert_eq!(shared.contradiction(), None, "both know who has each frame");
        // A look would wait for the persist.
        if shared.log().persist_in_flight() {
            return;
        }
        assert!(
            readable(shared) == self.contents[at(shared.log().applied())],
            "another content"
        );
    }

    /// Checks that all entries of the log can be applied, one order after the other.
    fn replayed(&mut self, medium: Forgetful) {
        let mut shared = self.open(medium);
        while shared.log().applied() < shared.log().last() {
            let next = shared.log().applied() + 1;
            match change(&mut shared, next, true) {
                Ok(()) => assert_eq!(shared.log().applied(), next),
                Err(Error::Full { .. }) => {
                    let moved = shared.pack_step(1 << 20).expect("the medium works");
                    assert!(moved > 0, "there is room for what the log holds");
                }
                Err(error) => panic!("{error}"),
            }
        }
        self.applied = 0..=shared.log().last();
        self.compare(&mut shared);
    }

    fn note(&mut self, key: u64, value: Option<&[u8]>) {
        let mut after = self.contents.last().expect("one at least").clone();
        match value {
            Some(value) => after.insert(name(key), value.to_vec()),
            None => after.remove(&name(key)),
        };
        self.contents.push(after);
    }

    fn append(
        &mut self,
        shared: &mut Shared<Forgetful>,
        payload: &[u8],
        in_place: bool,
        what: (u64, Option<&[u8]>),
    ) {
        let crc = crc32c::crc32c(payload);
        let appended = if in_place {
            shared.lend_buffer().is_some_and(|number| {
                let start = start_of(shared, number);
                let packet = [&HEADER[..], payload].concat();
                shared.deposit(start, &packet);
                let frame = start..start + packet.len();
                let appended = shared.append_in_place(&NEW, &HEADER, &frame, crc);
                if appended.is_err() {
                    shared.give_back_buffer(number);
                }
                appended.is_ok()
            })
        } else {
            shared.append(&NEW, &HEADER, payload, crc).is_ok()
        };
        if appended {
            self.note(what.0, what.1);
        }
    }

    /// Runs one operation; `false`: this incarnation is over.
    fn step(&mut self, shared: &mut Shared<Forgetful>, input: &mut Input<'_>) -> bool {
        match input.byte() % 20 {
            choice @ 0..=6 => {
                let (key, most) = (input.below(KEYS), if choice == 5 { 300 } else { 1300 });
                let value = value(input, most);
                let payload = put(key, &value);
                self.append(shared, &payload, choice < 6, (key, Some(&value)));
            }
            7 => {
                let key = input.below(KEYS);
                let payload = [&[REMOVE], &name(key)[..]].concat();
                self.append(shared, &payload, true, (key, None));
            }
            8..=10 => {
                let whole = shared
                    .persist_poll(true)
                    .and_then(|_| shared.persist_start())
                    .and_then(|_| shared.persist_poll(true));
                return whole.is_ok() && self.polled(shared);
            }
            11 => {
                let begun = shared.persist_start();
                return begun.is_ok() && shared.persist_poll(false).is_ok() && self.polled(shared);
            }
            12..=14 => {
                let count = 1 + input.below(4);
                return self.apply(shared, count, true);
            }
            15 => {
                let count = 1 + input.below(2);
                return self.apply(shared, count, false);
            }
            16 => {
                return match shared.pack_step(input.index(4000)) {
                    Ok(_) => self.polled(shared),
                    Err(error) => {
                        assert!(matches!(error, Error::Media(_)), "{error}");
                        false
                    }
                };
            }
            17 => {
                while let Some(number) = shared.poll_released() {
                    shared.give_back_buffer(number);
                }
            }
            18 => {
                // Fills every frame that is free for receiving with a packet that no record keeps.
                let lent: Vec<u32> = std::iter::from_fn(|| shared.lend_buffer()).collect();
                let packet = [&HEADER[..], &forged(input.below(KEYS))].concat();
                for number in lent {
                    shared.deposit(start_of(shared, number), &packet);
                    shared.give_back_buffer(number);
                }
            }
            _ => return false,
        }
        true
    }

    fn polled(&mut self, shared: &Shared<Forgetful>) -> bool {
        self.durable = self.durable.max(shared.log().durable());
        true
    }

    fn apply(&mut self, shared: &mut Shared<Forgetful>, count: u64, commit: bool) -> bool {
        if shared.persist_poll(true).is_err() {
            return false;
        }
        self.polled(shared);
        let before = shared.log().applied();
        let upto = (before + count).min(shared.log().durable());
        match change(shared, upto, commit) {
            Ok(()) => {
                let now = if commit { upto } else { before };
                assert_eq!(shared.log().applied(), now);
                self.applied = now..=now;
            }
            Err(Error::Full { .. }) => assert_eq!(shared.log().applied(), before),
            Err(Error::Media(_)) => {
                self.applied = before..=upto;
                return false;
            }
            Err(error) => panic!("{error}"),
        }
        true
    }
}

fn start_of<M: Media>(shared: &Shared<M>, number: u32) -> usize {
    let parameters = shared.log().parameters();
    let frame = parameters.frame_bytes / parameters.buffer_count();
    at(u64::from(number) * frame) + FRONT
}

/// Changes the image in some places, with or without correct checksums, and opens it.
fn hostile(mut image: Vec<u8>, input: &mut Input<'_>) {
    let mut changed = false;
    for _ in 0..CHANGES {
        if !input.more() {
            break;
        }
        changed = true;
        forge::change(&mut image, input);
    }
    if !changed {
        return;
    }
    let mut medium = Forgetful::holding(image);
    let mut shared = match open(&mut medium) {
        Ok(shared) => shared,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let _may_be_damaged = readable(&mut shared);
    for key in 0..KEYS {
        let payload = put(key, &[7; 700]);
        let _may_be_full = shared.append(&NEW, &HEADER, &payload, crc32c::crc32c(&payload));
        let persisted = shared
            .persist_start()
            .and_then(|_| shared.persist_poll(true));
        persisted.expect("the medium works");
        while let Some(number) = shared.poll_released() {
            shared.give_back_buffer(number);
        }
    }
}
