//! A store of lists with atomic durable steps.
//!
//! Fault model: a step happens wholly or not at all; a step that happened may be reported as
//! `Retry`, as a lost connection does; in a storm every step fails, before or after it happened.
//! Everything in it survives the death of the server process.
//!
//! Payloads (the protocol does not look into them): `A key id` appends id to the list of key, `B
//! key id` does the same and replies the list, `C key id` does so only if the list has an even
//! length, `R key` replies the list. Padding follows, both in
//! payloads and in replies, so that long ones travel in fragments; all of it is checked.

use crate::without::Place;
use bytes::Bytes;
use pmnet_proto::Random;
use pmnet_server::{Batch, RecordKey, Request, Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An operation of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Append, as an update.
    Append {
        /// Key.
        key: u8,
        /// Unique id.
        id: u64,
    },
    /// Append and reply the list, as a bypass.
    AppendRead {
        /// Key.
        key: u8,
        /// Unique id.
        id: u64,
    },
    /// Append and reply the list, if it has an even length; else reply it as it is. A bypass.
    AppendIfEven {
        /// Key.
        key: u8,
        /// Unique id.
        id: u64,
    },
    /// Read the list.
    Read {
        /// Key.
        key: u8,
    },
}

/// Without atomic steps, one in so many is torn.
const TORN_EVERY: u64 = 20;
/// Bytes of a payload before its padding.
pub const OPERATION_BYTES: usize = 10;

fn pad(out: &mut Vec<u8>, size: usize, seed: u64) {
    let mut pattern = Random::new(seed);
    while out.len() < size {
        out.extend_from_slice(&pattern.next_u64().to_be_bytes());
    }
    out.truncate(size);
}

impl Operation {
    /// The payload, padded to `size` bytes with a pattern that follows from the id.
    #[must_use]
    pub fn payload(self, size: usize) -> Bytes {
        let (letter, key, id) = match self {
            Operation::Append { key, id } => (b'A', key, id),
            Operation::AppendRead { key, id } => (b'B', key, id),
            Operation::AppendIfEven { key, id } => (b'C', key, id),
            Operation::Read { key } => (b'R', key, 0),
        };
        let mut out = vec![letter, key];
        out.extend_from_slice(&id.to_be_bytes());
        pad(&mut out, size.max(OPERATION_BYTES), id);
        out.into()
    }

    /// What a payload's first bytes say.
    #[must_use]
    pub fn peek(payload: &[u8]) -> Option<Operation> {
        let (head, _) = payload.split_first_chunk::<OPERATION_BYTES>()?;
        let key = head[1];
        let id = u64::from_be_bytes(head[2..].try_into().ok()?);
        let operation = match head[0] {
            b'A' => Operation::Append { key, id },
            b'B' => Operation::AppendRead { key, id },
            b'C' => Operation::AppendIfEven { key, id },
            b'R' => Operation::Read { key },
            _ => return None,
        };
        Some(operation)
    }

    /// The unique id that it appends, if it does.
    #[must_use]
    pub fn id(self) -> Option<u64> {
        match self {
            Operation::Append { id, .. }
            | Operation::AppendRead { id, .. }
            | Operation::AppendIfEven { id, .. } => Some(id),
            Operation::Read { .. } => None,
        }
    }

    fn parse(payload: &[u8]) -> Option<Operation> {
        let operation = Operation::peek(payload)?;
        // The whole payload must be what the client made: fragments in order, none missing.
        (operation.payload(payload.len()) == payload).then_some(operation)
    }
}

/// The reply that shows `list`, padded to `size` bytes.
fn write_reply(list: &[u64], size: usize) -> Bytes {
    let count = u64::try_from(list.len()).expect("short lists");
    let mut out = count.to_be_bytes().to_vec();
    out.extend(list.iter().flat_map(|id| id.to_be_bytes()));
    let size = size.max(out.len());
    pad(&mut out, size, count);
    out.into()
}

/// The list that a reply shows; `None` if it is not what the store wrote.
#[must_use]
pub fn read_reply(reply: &[u8]) -> Option<Vec<u64>> {
    let (count, rest) = reply.split_first_chunk::<8>()?;
    let count = usize::try_from(u64::from_be_bytes(*count)).ok()?;
    let words = rest.get(..count.checked_mul(8)?)?;
    let list: Vec<u64> = words
        .chunks(8)
        .map(|word| word.try_into().map_or(u64::MAX, u64::from_be_bytes))
        .collect();
    (write_reply(&list, reply.len()) == reply).then_some(list)
}

/// What the store did, for the checkers.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// The lists.
    pub lists: BTreeMap<u8, Vec<u64>>,
    /// In which step each id was last applied.
    pub applied_in: BTreeMap<u64, u64>,
    /// In which step each session was removed.
    pub ended_in: BTreeMap<u64, u64>,
    /// Effects that were not what a client made.
    pub malformed: u64,
    /// Keys of the records that are left.
    pub records: Vec<RecordKey>,
}

#[derive(Debug, Default)]
struct State {
    records: BTreeMap<RecordKey, Bytes>,
    story: Story,
    step: u64,
    random: u64,
    trouble: u64,
    storm: bool,
    reply_max: usize,
    /// The rule that this store breaks.
    broken: Option<Place>,
    /// Hashes of what it applied, if it takes them for identities.
    hashes: BTreeSet<u16>,
}

/// A handle to the durable state, which outlives the server process.
#[derive(Clone, Debug, Default)]
pub struct SimStore {
    state: Arc<Mutex<State>>,
}

impl SimStore {
    /// An empty store. One step in `trouble` fails (0: none); replies are padded up to
    /// `reply_max` bytes.
    #[must_use]
    pub fn new(seed: u64, trouble: u64, reply_max: usize) -> SimStore {
        let state = State {
            random: seed,
            trouble,
            reply_max,
            ..State::default()
        };
        SimStore {
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the rule that stands at this place is broken, if it is one of a store's.
    pub fn set_broken(&self, place: Option<Place>) {
        self.lock().broken = place;
    }

    /// From now on every step fails, or no longer.
    pub fn set_storm(&self, storm: bool) {
        self.lock().storm = storm;
    }

    /// From now on no step fails.
    pub fn calm(&self) {
        let mut state = self.lock();
        (state.storm, state.trouble) = (false, 0);
    }

    /// Whether nothing was ever applied.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.lock().story.applied_in.is_empty()
    }

    /// What it did so far.
    #[must_use]
    pub fn story(&self) -> Story {
        let state = self.lock();
        Story {
            records: state.records.keys().cloned().collect(),
            ..state.story.clone()
        }
    }
}

/// How a step goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Well,
    FailsBefore,
    FailsAfter,
}

impl State {
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(1);
        Random::new(self.random).next_u64()
    }

    fn fate(&mut self) -> Fate {
        let fails = self.storm || (self.trouble > 0 && self.draw().is_multiple_of(self.trouble));
        match fails.then(|| self.draw() % 2) {
            None => Fate::Well,
            Some(0) => Fate::FailsBefore,
            Some(_) => Fate::FailsAfter,
        }
    }

    /// Without identity, what has the hash of something else is that.
    fn is_taken_for_another(&mut self, payload: &[u8]) -> bool {
        let [high, low, ..] = pmnet_wire::crc(payload).to_be_bytes();
        self.broken == Some(Place::Identity) && !self.hashes.insert(u16::from_be_bytes([high, low]))
    }

    fn run(&mut self, payload: &[u8]) -> Bytes {
        let Some(operation) = Operation::parse(payload) else {
            self.story.malformed += 1;
            return Bytes::new();
        };
        let (Operation::Append { key, .. }
        | Operation::AppendRead { key, .. }
        | Operation::AppendIfEven { key, .. }
        | Operation::Read { key }) = operation;
        if let Some(id) = operation.id() {
            let list = self.story.lists.entry(key).or_default();
            let conditional = matches!(operation, Operation::AppendIfEven { .. });
            if !conditional || list.len().is_multiple_of(2) {
                list.push(id);
                self.story.applied_in.insert(id, self.step);
            }
        }
        let bound = u64::try_from(self.reply_max).expect("small") + 1;
        let size = usize::try_from(self.draw() % bound).expect("small");
        write_reply(
            self.story.lists.get(&key).map_or(&[][..], Vec::as_slice),
            size,
        )
    }

    fn change(&mut self, key: &RecordKey, value: Option<Bytes>) {
        match value {
            Some(value) => {
                self.records.insert(key.clone(), value);
            }
            None => {
                let id = key
                    .strip_prefix(b"session/")
                    .and_then(|id| id.try_into().ok());
                if self.records.remove(key).is_some()
                    && let Some(id) = id.map(u64::from_be_bytes)
                {
                    self.story.ended_in.insert(id, self.step);
                }
            }
        }
    }
}

fn trouble() -> StoreError {
    StoreError::Retry("simulated trouble".to_owned())
}

impl Store for SimStore {
    fn load(&mut self) -> Result<Vec<(RecordKey, Bytes)>, StoreError> {
        let mut state = self.lock();
        if state.fate() != Fate::Well {
            return Err(trouble());
        }
        Ok(state
            .records
            .iter()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect())
    }

    fn apply(&mut self, batch: &Batch) -> Result<u64, StoreError> {
        let mut state = self.lock();
        let fate = state.fate();
        if fate == Fate::FailsBefore {
            return Err(trouble());
        }
        state.step += 1;
        for effect in &batch.effects {
            if state.is_taken_for_another(effect) {
                continue;
            }
            state.run(effect);
        }
        if state.broken == Some(Place::AtomicApply) && state.draw().is_multiple_of(TORN_EVERY) {
            return Err(trouble());
        }
        for (key, value) in &batch.records {
            state.change(key, value.clone());
        }
        if fate == Fate::Well {
            Ok(0)
        } else {
            Err(trouble())
        }
    }

    fn execute(
        &mut self,
        requests: &[Request],
        replies: &mut Vec<Bytes>,
    ) -> Result<(), StoreError> {
        let mut state = self.lock();
        for request in requests {
            let fate = state.fate();
            if fate == Fate::FailsBefore {
                return Err(trouble());
            }
            state.step += 1;
            let reply = state.run(&request.payload);
            if let Some((key, prefix)) = &request.record {
                let mut value = prefix.to_vec();
                value.extend_from_slice(&reply);
                state.change(key, Some(value.into()));
            }
            if fate != Fate::Well {
                return Err(trouble());
            }
            replies.push(reply);
        }
        Ok(())
    }

    fn durability(&self) -> String {
        "simulated".to_owned()
    }
}
