//! Drives a log and a store in one region, on a recording medium, through the operations of a script.

use std::sync::Arc;

use pmnet_packet_store::{Error, Geometry, Scan, Shared, format_shared};

use crate::entry::{self, FRONT, HEADER, NEW};
use crate::explore::{Recording, World};
use crate::medium::{Event, Recorder, State, Tape};
use crate::promise::Promise;
use crate::support::{Content, IDENTITY, Plain, Random, content};

/// The smallest regions that are possible. Such small regions soon use their space again.
pub const REGIONS: [Geometry; 2] = [
    Geometry {
        lines: 256,
        frames: 40,
        frame_bytes: 2048,
        log_entries: 64,
    },
    Geometry {
        lines: 256,
        frames: 40,
        frame_bytes: 4096,
        log_entries: 64,
    },
];
pub const LOG: pmnet_log::Identity = pmnet_log::Identity {
    log_uuid: 0xfeed,
    device: 7,
    shard: IDENTITY.shard,
};
/// The smallest number of frames that the log may have.
pub const LOG_FRAMES: u32 = 16;

/// One operation of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Receives a packet into a lent frame, and appends it in place. The packet is a put with a value of this length.
    Receive(u8, usize),
    /// Appends such a packet by copying it into the log.
    Copy(u8, usize),
    Remove(u8),
    /// Begins a persist of the log, and completes it.
    Persist,
    /// Begins a persist of the log.
    Begin,
    /// Applies this many orders, or fewer if fewer are durable.
    Apply(u64),
    /// Begins to apply this many orders, and undoes the change.
    Undo(u64),
    /// Packs up to this many bytes.
    Pack(usize),
    /// Gives back all buffers that neither the log nor the store needs.
    Poll,
    /// Stores a packet that is not kept into every frame that can receive packets. The packet has a key that is made
    /// from this number.
    Forge(u8),
    /// The process dies. The region is copied into a larger image, and this image is opened.
    Grow,
    /// The process dies. All that it has written stays visible, and the region is opened again.
    Kill,
    /// Power is lost. Each line that is not settled has its old or its new content, as this seed decides. Then the
    /// region is opened again.
    Power(u64),
}

/// A region on a recorder, and the current promise.
pub struct Driver {
    initial: State,
    tape: Tape,
    events: Vec<Event>,
    shared: Option<Shared<Recorder>>,
    promise: Promise,
    /// Number of changes for which there was no space.
    pub refused: u64,
}

/// Returns an image with an empty log and an empty store.
pub fn made(geometry: &Geometry) -> Vec<u8> {
    let mut medium = Plain::new(vec![0; geometry.image_bytes()]);
    format_shared(&mut medium, &IDENTITY, &LOG, geometry).unwrap();
    medium.image
}

/// Returns the region in a larger image, with the same orders in its log.
fn grown(image: Vec<u8>) -> Result<Vec<u8>, String> {
    let told = |error: pmnet_packet_store::OpenError| error.to_string();
    let scan = Scan::open(Plain::new(image), Some(IDENTITY.shard)).map_err(told)?;
    let old = scan.geometry();
    let more = 12 * u64::from(old.frame_bytes);
    let size = u64::try_from(old.image_bytes()).expect("small") + more;
    let to = old.grown(size).map_err(told)?;
    let mut target = Plain::new(vec![0; to.image_bytes()]);
    scan.copy_to(&mut target, &to, &mut |_, _| Ok(()))
        .map_err(told)?;
    let copy = Scan::open(Plain::new(target.image.clone()), None).map_err(told)?;
    let decisions = [&scan, &copy].map(|scan| {
        let decision = scan.log_decision().expect("there is a log");
        decision.map_err(|error| error.to_string())
    });
    match decisions {
        [Ok(one), Ok(other)] if one == other => Ok(target.image),
        other => Err(format!("the log is another one: {other:?}")),
    }
}

fn opened(medium: Recorder, promise: &Promise) -> Result<Shared<Recorder>, String> {
    let mut shared = Shared::open(medium, IDENTITY.shard, LOG.device, LOG_FRAMES)
        .map_err(|error| error.to_string())?;
    let order = shared.log().applied();
    if !promise.applied.contains(&order) {
        return Err(format!("the store has the orders up to {order}"));
    }
    let found = content(&*shared.store().map_err(|error| error.to_string())?);
    let contents = &promise.contents;
    if found != contents[at(order)] {
        return Err(format!("another content than that of order {order}"));
    }
    let last = shared.log().last();
    if last < promise.durable || at(last) >= contents.len() {
        return Err(format!(
            "the log has the orders up to {last}, and {} were acknowledged of {}",
            promise.durable,
            contents.len() - 1
        ));
    }
    Ok(shared)
}

/// Applies all orders in the log. After each order, the store must have the promised contents.
fn replayed(shared: &mut Shared<Recorder>, promise: &Promise) -> Result<(), String> {
    let last = shared.log().last();
    while shared.log().applied() < last {
        // Orders are applied one by one, so that space which one order frees is available to the next order.
        let next = shared.log().applied() + 1;
        match entry::apply(shared, next) {
            Ok(()) => {}
            Err(Error::Full { .. }) if packed(shared)? => {}
            Err(error) => return Err(format!("order {next}: {error}")),
        }
    }
    let found = content(&*shared.store().map_err(|error| error.to_string())?);
    match found == promise.contents[at(last)] {
        true => Ok(()),
        false => Err(format!(
            "replayed up to {last}, there is another content than there should be"
        )),
    }
}

fn packed(shared: &mut Shared<Recorder>) -> Result<bool, String> {
    let moved = shared
        .pack_step(1 << 20)
        .map_err(|error| error.to_string())?;
    Ok(moved > 0)
}

fn at(order: u64) -> usize {
    usize::try_from(order).unwrap()
}

impl Driver {
    fn shared(&mut self) -> &mut Shared<Recorder> {
        self.shared.as_mut().expect("the region is open")
    }

    fn promised(&mut self) {
        self.promise.number += 1;
        self.tape
            .push(Event::Promise(Arc::new(self.promise.clone())));
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

    /// Notes the contents of the store after this entry has been applied. The contents are not promised yet.
    fn note(&mut self, payload: &[u8]) {
        let contents = Arc::make_mut(&mut self.promise.contents);
        let mut after: Content = contents.last().expect("one at least").clone();
        let order = u64::try_from(contents.len()).unwrap();
        entry::note(&mut after, order, payload);
        contents.push(after);
        self.promised();
    }

    fn append(&mut self, payload: &[u8], in_place: bool) {
        // The entry may be on the medium as soon as it is stored.
        self.note(payload);
        let crc = crc32c::crc32c(payload);
        let shared = self.shared();
        let appended = if in_place {
            shared.lend_buffer().and_then(|number| {
                let start = at(u64::from(number)) * frame_bytes(shared) + FRONT;
                let packet = [&[0xaa; HEADER.len()], payload].concat();
                shared.deposit(start, &packet);
                let frame = start..start + packet.len();
                let appended = shared.append_in_place(&NEW, &HEADER, &frame, crc).ok();
                if appended.is_none() {
                    shared.give_back_buffer(number);
                }
                appended
            })
        } else {
            shared.append(&NEW, &HEADER, payload, crc).ok()
        };
        if appended.is_none() {
            Arc::make_mut(&mut self.promise.contents).pop();
            self.refused += 1;
            self.promised();
        }
    }

    fn apply(&mut self, count: u64, commit: bool) -> Result<(), String> {
        let before = self.shared().log().applied();
        let upto = (before + count).min(self.shared().log().durable());
        self.promise.applied = [before, if commit { upto } else { before }];
        self.promised();
        let changed = if commit {
            entry::apply(self.shared(), upto)
        } else {
            entry::changed(self.shared(), before + 1, upto).map(drop)
        };
        let now = self.shared().log().applied();
        match changed {
            Ok(()) => assert_eq!(now, if commit { upto } else { before }),
            Err(Error::Full { .. }) => {
                assert_eq!(now, before);
                self.refused += 1;
            }
            Err(error) => return Err(error.to_string()),
        }
        self.promise.applied = [now; 2];
        self.promised();
        Ok(())
    }

    fn check(&mut self) -> Result<(), String> {
        let order = self.promise.applied[0];
        let wanted = self.promise.contents[at(order)].clone();
        let shared = self.shared();
        if let Some(frame) = shared.contradiction() {
            return Err(format!("log and store do not agree about frame {frame}"));
        }
        let found = content(&*shared.store().map_err(|error| error.to_string())?);
        match found == wanted {
            true => Ok(()),
            false => Err("the open store shows another content".into()),
        }
    }
}

fn frame_bytes(shared: &Shared<Recorder>) -> usize {
    let parameters = shared.log().parameters();
    at(parameters.frame_bytes / parameters.buffer_count())
}

impl World for Driver {
    type Op = Op;

    fn new(initial: State, promise: &Promise) -> Driver {
        Driver {
            initial,
            tape: Tape::default(),
            events: Vec::new(),
            shared: None,
            promise: Promise {
                number: promise.number << 8,
                ..promise.clone()
            },
            refused: 0,
        }
    }

    fn open(&mut self, image: Vec<u8>) -> Result<(), String> {
        let medium = Recorder::new(image, Some(self.tape.clone()));
        let shared = opened(medium, &self.promise)?;
        let (applied, last) = (shared.log().applied(), shared.log().last());
        self.shared = Some(shared);
        // Orders that the log does not have now are lost, and must not come back.
        Arc::make_mut(&mut self.promise.contents).truncate(at(last) + 1);
        self.promise.durable = last;
        self.promise.applied = [applied; 2];
        self.promised();
        self.check()
    }

    fn step(&mut self, op: &Op) -> Result<(), String> {
        let seed = self.promise.number;
        let told = |error: &dyn std::fmt::Display| error.to_string();
        match *op {
            Op::Receive(key, len) => self.append(&entry::put(key, len, seed), true),
            Op::Copy(key, len) => self.append(&entry::put(key, len, seed), false),
            Op::Remove(key) => self.append(&entry::remove(key), true),
            Op::Persist => {
                let shared = self.shared();
                shared.persist_poll(true).map_err(|error| told(&error))?;
                shared.persist_start().map_err(|error| told(&error))?;
                shared.persist_poll(true).map_err(|error| told(&error))?;
                self.promise.durable = shared.log().durable();
                self.promised();
            }
            Op::Begin => {
                self.shared()
                    .persist_start()
                    .map_err(|error| told(&error))?;
            }
            Op::Apply(count) => self.apply(count, true)?,
            Op::Undo(count) => self.apply(count, false)?,
            Op::Pack(budget) => {
                self.shared()
                    .pack_step(budget)
                    .map_err(|error| told(&error))?;
            }
            Op::Poll => {
                while let Some(number) = self.shared().poll_released() {
                    self.shared().give_back_buffer(number);
                }
            }
            Op::Forge(key) => {
                let shared = self.shared();
                let lent: Vec<u32> = std::iter::from_fn(|| shared.lend_buffer()).collect();
                let packet = [&HEADER[..], &entry::forged(key, 600)].concat();
                for number in lent {
                    let start = at(u64::from(number)) * frame_bytes(shared) + FRONT;
                    shared.deposit(start, &packet);
                    shared.give_back_buffer(number);
                }
            }
            Op::Grow => {
                drop(self.shared.take());
                let left = State::clean(grown(self.state().killed(|count| count).visible())?);
                let image = left.visible();
                self.events.push(Event::Crash(Box::new(left)));
                return self.open(image);
            }
            Op::Kill | Op::Power(_) => {
                drop(self.shared.take());
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
                return self.open(image);
            }
        }
        self.check()
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
        let mut shared = opened(Recorder::new(image, None), promise)?;
        if let Some(frame) = shared.contradiction() {
            return Err(format!("log and store do not agree about frame {frame}"));
        }
        replayed(&mut shared, promise)
    }
}
