//! A medium that records every call, and computes what a crash may leave of it at each moment.
//!
//! Fault model (`docs/spec/ordered-log.md` §2): between two completed persists nothing is in order.
//! Every 64-byte line that was stored to and is not covered by a completed persist may hold the
//! state after any prefix of its stores; any of its 8-byte words may be ahead of the others. A
//! completed persist settles the lines it covered at what they held when it began, or newer.
//!
//! What a persist covers is not what the log asks for, but the lines that the flush loop of persistent memory
//! (`pmnet_media::flush`) names for it before its fence.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pmnet_log::{Media, MediaError};
use pmnet_media::flush::{self, Flush};

use crate::promise::Promise;

/// Bytes of a line: what a crash keeps or loses on its own.
pub const LINE: usize = flush::LINE;
pub type Line = [u8; LINE];

/// One thing that happened to a medium, or to what the world knows.
#[derive(Clone, Debug)]
pub enum Event {
    Store(usize, Vec<u8>),
    PersistStart(Vec<Range<usize>>),
    PersistDone,
    /// From here on the outside world relies on this.
    Promise(Arc<Promise>),
    /// The script crashed by itself, and this is what was left.
    Crash(Box<State>),
}

/// The events in order; shared between a medium and whoever drives the log on it.
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

    /// Persists that were begun so far.
    pub fn persists(&self) -> u64 {
        self.recorded().persists
    }
}

/// The lines that were flushed, neighbours together, until the fence.
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

/// A medium in memory. A persist is complete when somebody waits for it, and not before.
#[derive(Debug)]
pub struct Recorder {
    image: Vec<u8>,
    tape: Option<Tape>,
    in_flight: bool,
    /// Stores made.
    pub stores: u64,
}

impl Recorder {
    /// A medium that holds `image`; with a tape it writes down what is asked of it.
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

/// Everything that the medium may hold at one moment.
#[derive(Clone, Debug)]
pub struct State {
    /// Clean lines as they are; of dirty lines the oldest content that is still possible.
    durable: Vec<u8>,
    /// Later contents of the dirty lines, oldest first; the last one is what the CPU sees.
    dirty: BTreeMap<usize, Vec<Line>>,
    /// Lines that the persist in flight covers, and how many later contents each had at its start.
    flight: Option<Vec<(usize, usize)>>,
    /// Hash of `durable`.
    hash: u64,
}

impl State {
    /// A medium on which everything is durable.
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

    /// Applies one event; returns the lines whose possible contents it added to.
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

    /// The first `count` later contents of a line are behind it.
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

    /// What the CPU sees.
    pub fn seen(&self, line: usize) -> Line {
        match self.dirty.get(&line).and_then(|versions| versions.last()) {
            Some(newest) => *newest,
            None => self.oldest(line),
        }
    }

    /// Everything that a line may hold, oldest first, each content once.
    pub fn possible(&self, line: usize) -> Vec<Line> {
        let mut all = vec![self.oldest(line)];
        for version in self.dirty.get(&line).into_iter().flatten() {
            if !all.contains(version) {
                all.push(*version);
            }
        }
        all
    }

    /// Lines that are not settled.
    pub fn dirty_lines(&self) -> Vec<usize> {
        self.dirty.keys().copied().collect()
    }

    /// The image with these lines in place of the oldest ones.
    pub fn image(&self, lines: &[(usize, Line)]) -> Vec<u8> {
        let mut image = self.durable.clone();
        for (line, bytes) in lines {
            image[line * LINE..][..LINE].copy_from_slice(bytes);
        }
        image
    }

    /// Hash of [`State::image`], without making it.
    pub fn image_hash(&self, lines: &[(usize, Line)]) -> u64 {
        lines.iter().fold(self.hash, |hash, (line, bytes)| {
            hash ^ line_hash(*line, &self.oldest(*line)) ^ line_hash(*line, bytes)
        })
    }

    /// Hash of everything that the medium may hold.
    pub fn full_hash(&self) -> u64 {
        self.dirty.iter().fold(self.hash, |hash, (line, versions)| {
            versions.iter().fold(hash.rotate_left(7), |hash, version| {
                hash.rotate_left(3) ^ line_hash(*line, version)
            })
        })
    }

    /// What the CPU sees, as an image.
    pub fn visible(&self) -> Vec<u8> {
        let lines: Vec<(usize, Line)> = self
            .dirty
            .keys()
            .map(|line| (*line, self.seen(*line)))
            .collect();
        self.image(&lines)
    }

    /// The process has died: nothing is in flight any more, and nothing became durable by it. Of
    /// each dirty line only as many later contents can be seen as `keep` says of their number.
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

/// One line of an image.
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
