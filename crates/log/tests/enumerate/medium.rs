//! A medium that records every call, and computes the images that a crash at each moment may leave.
//!
//! Fault model (`docs/spec/ordered-log.md` §2): stores between two completed persists have no order. If a 64-byte line
//! was stored to, and no completed persist covers these stores, a crash may leave the line with the content after any
//! prefix of its stores. Each 8-byte word of the line may also be newer than the others. After a completed persist,
//! each covered line has at least the content of the persist's start.
//!
//! A persist covers the lines that the flush loop of persistent memory (`pmnet_media::flush`) really flushes before its
//! fence, which is more precise than the ranges that the log asks for.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pmnet_log::{Media, MediaError};
use pmnet_media::flush::{self, Flush};

use crate::promise::Promise;

/// Size of a line in bytes: a crash keeps or loses each line independently.
pub const LINE: usize = flush::LINE;
pub type Line = [u8; LINE];

/// An event on a medium, or a promise to the users of the log.
#[derive(Clone, Debug)]
pub enum Event {
    Store(usize, Vec<u8>),
    PersistStart(Vec<Range<usize>>),
    PersistDone,
    /// From now on the users of the log rely on this promise.
    Promise(Arc<Promise>),
    /// A crash in the script, which left this state.
    Crash(Box<State>),
}

/// The events in order. The medium and the driver of the log share the tape.
#[derive(Clone, Debug, Default)]
pub struct Tape(Arc<Mutex<Recorded>>);

#[derive(Debug, Default)]
struct Recorded {
    events: Vec<Event>,
    persists: u64,
}

impl Tape {
    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, event: Event) {
        self.recorded().events.push(event);
    }

    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.recorded().events)
    }

    /// Number of persists that were begun so far.
    pub fn persists(&self) -> u64 {
        self.recorded().persists
    }
}

/// The lines that were flushed since the last fence; adjacent lines form one range.
#[derive(Debug, Default)]
struct Flushed {
    lines: Vec<Range<usize>>,
    fenced: bool,
}

impl Flush for Flushed {
    fn line(&mut self, offset: usize) {
        assert!(
            !self.fenced,
            "the fence waits for what was flushed before it"
        );
        match self.lines.last_mut().filter(|last| last.end == offset) {
            Some(last) => last.end += LINE,
            None => self.lines.push(offset..offset + LINE),
        }
    }

    fn fence(&mut self) {
        assert!(!self.fenced, "one fence a persist");
        self.fenced = true;
    }
}

/// A medium in memory. A persist completes only when a caller waits for it.
#[derive(Debug)]
pub struct Recorder {
    image: Vec<u8>,
    tape: Option<Tape>,
    in_flight: bool,
    /// Number of stores.
    pub stores: u64,
}

impl Recorder {
    /// Returns a medium that holds `image`. If the medium has a tape, the medium records each call.
    pub fn new(image: Vec<u8>, tape: Option<Tape>) -> Recorder {
        Recorder {
            image,
            tape,
            in_flight: false,
            stores: 0,
        }
    }

    pub fn into_image(self) -> Vec<u8> {
        self.image
    }
}

impl Media for Recorder {
    fn bytes(&self) -> &[u8] {
        &self.image
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.image[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.stores += 1;
        if let Some(tape) = &self.tape {
            tape.push(Event::Store(offset, bytes.to_vec()));
        }
    }

    fn persist_start(&mut self, ranges: &[Range<usize>]) -> Result<(), MediaError> {
        assert!(!self.in_flight, "one persist at a time");
        for range in ranges {
            assert!(
                !range.is_empty()
                    && range.end <= self.image.len()
                    && range.start.is_multiple_of(LINE)
                    && range.end.is_multiple_of(LINE),
                "the log persists whole lines inside the image: {range:?}"
            );
        }
        self.in_flight = true;
        let mut flushed = Flushed::default();
        flush::persist(ranges, &mut flushed);
        assert!(
            flushed.fenced,
            "without a fence nothing is known to be durable"
        );
        if let Some(tape) = &self.tape {
            tape.recorded().persists += 1;
            tape.push(Event::PersistStart(flushed.lines));
        }
        Ok(())
    }

    fn persist_poll(&mut self, wait: bool) -> Result<bool, MediaError> {
        if self.in_flight && wait {
            self.in_flight = false;
            if let Some(tape) = &self.tape {
                tape.push(Event::PersistDone);
            }
        }
        Ok(!self.in_flight)
    }

    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }

    fn survives(&self) -> &'static str {
        "what the enumeration lets it survive"
    }

    fn name(&self) -> &'static str {
        "recorder"
    }
}

/// All contents that the medium may have at one moment.
#[derive(Clone, Debug)]
pub struct State {
    /// Contents of the clean lines, and the oldest possible contents of the dirty lines.
    durable: Vec<u8>,
    /// For each dirty line, its later possible contents, oldest first. The CPU sees the last of them.
    dirty: BTreeMap<usize, Vec<Line>>,
    /// The lines that the persist in flight covers, each with the number of its later contents when the persist began.
    flight: Option<Vec<(usize, usize)>>,
    /// Hash of `durable`.
    hash: u64,
}

impl State {
    /// Returns a medium on which everything is durable.
    pub fn clean(image: Vec<u8>) -> State {
        let hash = image
            .as_chunks::<LINE>()
            .0
            .iter()
            .enumerate()
            .fold(0, |hash, (line, bytes)| hash ^ line_hash(line, bytes));
        State {
            durable: image,
            dirty: BTreeMap::new(),
            flight: None,
            hash,
        }
    }

    /// Applies one event. Returns the lines that have got further possible contents.
    pub fn apply(&mut self, event: &Event) -> Vec<usize> {
        match event {
            Event::Store(offset, bytes) => return self.store(*offset, bytes),
            Event::PersistStart(ranges) => {
                let covered =
                    |line: usize| ranges.iter().any(|range| range.contains(&(line * LINE)));
                self.flight = Some(
                    self.dirty
                        .iter()
                        .filter(|(line, _)| covered(**line))
                        .map(|(line, versions)| (*line, versions.len()))
                        .collect(),
                );
                return self.dirty.keys().copied().collect();
            }
            Event::PersistDone => {
                for (line, count) in self.flight.take().expect("a persist was begun") {
                    self.settle(line, count);
                }
            }
            Event::Crash(left) => *self = (**left).clone(),
            Event::Promise(_) => {}
        }
        Vec::new()
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) -> Vec<usize> {
        let mut touched = Vec::new();
        let mut at = offset;
        while at < offset + bytes.len() {
            let line = at / LINE;
            let end = (offset + bytes.len()).min((line + 1) * LINE);
            let before = self.seen(line);
            let mut after = before;
            after[at - line * LINE..end - line * LINE]
                .copy_from_slice(&bytes[at - offset..end - offset]);
            if after != before {
                self.dirty.entry(line).or_default().push(after);
                touched.push(line);
            }
            at = end;
        }
        touched
    }

    /// Makes a line durable with its later content number `count` (from 1), and drops the contents before it.
    fn settle(&mut self, line: usize, count: usize) {
        let Some(versions) = self.dirty.get_mut(&line).filter(|_| count > 0) else {
            return;
        };
        let settled = versions[count - 1];
        versions.drain(..count);
        if versions.is_empty() {
            self.dirty.remove(&line);
        }
        self.hash ^= line_hash(line, &self.oldest(line)) ^ line_hash(line, &settled);
        self.durable[line * LINE..][..LINE].copy_from_slice(&settled);
    }

    fn oldest(&self, line: usize) -> Line {
        line_of(&self.durable, line)
    }

    /// Returns the contents of a line that the CPU sees.
    pub fn seen(&self, line: usize) -> Line {
        match self.dirty.get(&line).and_then(|versions| versions.last()) {
            Some(newest) => *newest,
            None => self.oldest(line),
        }
    }

    /// Returns all possible contents of a line, oldest first, each once.
    pub fn possible(&self, line: usize) -> Vec<Line> {
        let mut all = vec![self.oldest(line)];
        for version in self.dirty.get(&line).into_iter().flatten() {
            if !all.contains(version) {
                all.push(*version);
            }
        }
        all
    }

    /// Returns the lines that are not settled.
    pub fn dirty_lines(&self) -> Vec<usize> {
        self.dirty.keys().copied().collect()
    }

    /// Returns the image with these lines in place of the oldest contents.
    pub fn image(&self, lines: &[(usize, Line)]) -> Vec<u8> {
        let mut image = self.durable.clone();
        for (line, bytes) in lines {
            image[line * LINE..][..LINE].copy_from_slice(bytes);
        }
        image
    }

    /// Returns the hash of [`State::image`], without making the image.
    pub fn image_hash(&self, lines: &[(usize, Line)]) -> u64 {
        lines.iter().fold(self.hash, |hash, (line, bytes)| {
            hash ^ line_hash(*line, &self.oldest(*line)) ^ line_hash(*line, bytes)
        })
    }

    /// Returns the hash of all possible states of the medium.
    pub fn full_hash(&self) -> u64 {
        self.dirty.iter().fold(self.hash, |hash, (line, versions)| {
            versions.iter().fold(hash.rotate_left(7), |hash, version| {
                hash.rotate_left(3) ^ line_hash(*line, version)
            })
        })
    }

    /// Returns the image that the CPU sees.
    pub fn visible(&self) -> Vec<u8> {
        let lines: Vec<(usize, Line)> = self
            .dirty
            .keys()
            .map(|line| (*line, self.seen(*line)))
            .collect();
        self.image(&lines)
    }

    /// Returns the state after the death of the process: no persist is in flight any more, and nothing more has become
    /// durable. `keep`: returns, for a line with this number of later contents, how many of them stay visible.
    pub fn killed(&self, mut keep: impl FnMut(usize) -> usize) -> State {
        let mut left = self.clone();
        left.flight = None;
        left.dirty.retain(|_, versions| {
            versions.truncate(keep(versions.len()));
            !versions.is_empty()
        });
        left
    }
}

/// Returns one line of an image.
pub fn line_of(image: &[u8], line: usize) -> Line {
    image[line * LINE..][..LINE]
        .try_into()
        .expect("a line has 64 bytes")
}

fn line_hash(line: usize, bytes: &Line) -> u64 {
    let start = u64::try_from(line).expect("a line number") ^ 0x9e37_79b9_7f4a_7c15;
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().fold(start, |hash, word| {
        let mixed = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x9fb2_1c65_1e98_df25);
        mixed ^ (mixed >> 29)
    })
}
