//! A medium that loses unpersisted stores in a crash, and a model of the data that a log must keep.
//!
//! Fault model: if an aligned 8-byte word was stored, and no completed persist covers the store, a crash leaves the
//! word with its old or its new value. Words (or, in some runs, lines of 64 bytes) are independent of each other, and a
//! word may reach the medium at any time. A persist in flight has no reliable effect. When a persist is complete, the
//! medium has the contents of the persist's start, or newer contents. `crash` is a loss of power. `kill` is only the
//! death of the process: every store stays visible, and no further store becomes durable.

#![allow(dead_code)] // Each test binary uses its part.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::fd::RawFd;

use pmnet_log::{
    Decision, Expected, FrameSpace, Identity, Log, LogError, Media, MediaError, NewEntry,
    Parameters, Scan, format,
};

pub const IDENTITY: Identity = Identity {
    log_uuid: 0x1234_5678_9abc_def0_0fed_cba9_8765_4321,
    device: 7,
    shard: 3,
};
pub const SMALL: Parameters = Parameters::ring(64, 16 * 1024);
pub const EXPECTED: Expected = Expected {
    device: 7,
    shard: 3,
    parameters: None,
};

/// SplitMix64, a small seeded generator, which is good enough to choose faults.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(u64::try_from(bound).unwrap())).unwrap()
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

#[derive(Clone, Debug)]
pub struct Forgetful {
    image: Vec<u8>,
    durable: Vec<u8>,
    /// Words whose durable value may differ from the image.
    dirty: BTreeSet<usize>,
    flight: Option<BTreeMap<usize, [u8; 8]>>,
    random: Random,
    /// Number of persists that still succeed; the next persist crashes.
    pub budget: Option<u64>,
    pub persists: u64,
    /// Number of bytes that persists covered.
    pub persisted_bytes: usize,
    /// Ranges of the last persist.
    pub last_ranges: Vec<Range<usize>>,
}

impl Forgetful {
    pub fn new(bytes: usize, seed: u64) -> Forgetful {
        Forgetful {
            image: vec![0; bytes],
            durable: vec![0; bytes],
            dirty: BTreeSet::new(),
            flight: None,
            random: Random(seed),
            budget: None,
            persists: 0,
            persisted_bytes: 0,
            last_ranges: Vec::new(),
        }
    }

    pub fn formatted(parameters: &Parameters, seed: u64) -> Forgetful {
        let mut medium = Forgetful::new(parameters.image_bytes(), seed);
        format(&mut medium, &IDENTITY, parameters).unwrap();
        medium
    }

    /// Changes the image and the medium without the log's knowledge.
    pub fn corrupt(&mut self, offset: usize, change: impl Fn(u8) -> u8) {
        self.image[offset] = change(self.image[offset]);
        self.durable[offset] = self.image[offset];
    }

    fn word(&self, word: usize) -> [u8; 8] {
        self.image[word * 8..word * 8 + 8].try_into().unwrap()
    }

    fn make_durable(&mut self, word: usize, value: [u8; 8]) {
        self.durable[word * 8..word * 8 + 8].copy_from_slice(&value);
        if value == self.word(word) {
            self.dirty.remove(&word);
        }
    }

    /// Loses power: every word that was not durable takes its old or its new value.
    pub fn crash(mut self) -> Forgetful {
        let keep_of_8 = [0, 1, 4, 7, 8][self.random.index(5)];
        let lines = self.random.below(2) == 0;
        let salt = self.random.next();
        for word in self.dirty.clone() {
            let unit = if lines { word / 8 } else { word };
            let mut coin = Random(salt ^ u64::try_from(unit).unwrap());
            if coin.below(8) < keep_of_8 {
                self.make_durable(word, self.word(word));
            }
        }
        self.image.copy_from_slice(&self.durable);
        self.reopened()
    }

    /// Kills the process: all stores stay visible, and nothing becomes durable.
    pub fn kill(self) -> Forgetful {
        self.reopened()
    }

    fn reopened(mut self) -> Forgetful {
        self.flight = None;
        self.budget = None;
        self.dirty = (0..self.image.len() / 8)
            .filter(|word| {
                self.durable[word * 8..word * 8 + 8] != self.image[word * 8..word * 8 + 8]
            })
            .collect();
        self
    }
}

impl Media for Forgetful {
    fn bytes(&self) -> &[u8] {
        &self.image
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        assert_ne!(
            self.budget,
            Some(u64::MAX),
            "nothing may be stored into this image"
        );
        self.image[offset..offset + bytes.len()].copy_from_slice(bytes);
        if !bytes.is_empty() {
            self.dirty
                .extend(offset / 8..=(offset + bytes.len() - 1) / 8);
        }
        // Cache eviction: sometimes a word becomes durable early.
        if self.random.below(4) == 0 && !self.dirty.is_empty() {
            let at = self.random.index(self.image.len() / 8);
            if let Some(word) = self.dirty.range(at..).next().copied() {
                self.make_durable(word, self.word(word));
            }
        }
    }

    fn persist_start(&mut self, ranges: &[Range<usize>]) -> Result<(), MediaError> {
        assert!(self.flight.is_none(), "one persist at a time");
        match &mut self.budget {
            Some(0) => return Err(MediaError::Failed),
            Some(left) => *left -= 1,
            None => {}
        }
        self.persists += 1;
        self.last_ranges = ranges.to_vec();
        let mut snapshot = BTreeMap::new();
        for range in ranges {
            assert!(!range.is_empty() && range.end <= self.image.len());
            self.persisted_bytes += range.len();
            for word in self.dirty.range(range.start / 8..range.end.div_ceil(8)) {
                snapshot.insert(*word, self.word(*word));
            }
        }
        self.flight = Some(snapshot);
        Ok(())
    }

    fn persist_poll(&mut self, wait: bool) -> Result<bool, MediaError> {
        if self.flight.is_none() {
            return Ok(true);
        }
        if !wait && self.random.below(3) != 0 {
            return Ok(false);
        }
        for (word, at_start) in self.flight.take().unwrap() {
            if self.dirty.contains(&word) {
                let value = if self.random.below(2) == 0 {
                    at_start
                } else {
                    self.word(word)
                };
                self.make_durable(word, value);
            }
        }
        Ok(true)
    }

    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }

    fn survives(&self) -> &'static str {
        "what the test lets it survive"
    }

    fn name(&self) -> &'static str {
        "forgetful"
    }
}

/// The facts that the users of the log know about it.
#[derive(Clone, Debug, Default)]
pub struct Model {
    contents: BTreeMap<u64, (NewEntry, Vec<u8>, usize)>,
    pub promised: u64,
    pub applied: u64,
    pub last: u64,
    pub epoch: u32,
    epoch_tried: u32,
    incarnation: u32,
    resetting: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Append this many frames with payloads of up to this many bytes.
    Append(u8, u16),
    PersistStart,
    /// `true`: wait.
    PersistPoll(bool),
    /// Reclaim this number of eighths of the orders that are durable and not reclaimed.
    Reclaim(u8),
    RaiseEpoch,
    /// Reset to the order at this distance from `last`.
    Reset(i8),
}

impl Model {
    /// Carries out one step on the log, and notes its promises.
    pub fn step(
        &mut self,
        log: &mut Log<Forgetful>,
        step: Step,
        random: &mut Random,
    ) -> Result<(), LogError> {
        match step {
            Step::Append(count, payload_max) => {
                for _ in 0..count {
                    let len = random.index(usize::from(payload_max) + 1);
                    if !self.append(log, len, random) {
                        break;
                    }
                }
            }
            Step::PersistStart => {
                log.persist_start()?;
            }
            Step::PersistPoll(wait) => {
                let before = self.promised;
                let moved = log.persist_poll(wait)?;
                self.promised = log.durable();
                assert!(
                    moved || self.promised == before,
                    "a move of durable() is reported"
                );
            }
            Step::Reclaim(eighths) => {
                let upto =
                    log.applied() + (log.durable() - log.applied()) * u64::from(eighths.min(8)) / 8;
                log.reclaim(upto);
                assert_eq!(log.applied(), upto);
                log.reclaim(upto.saturating_sub(5));
                assert_eq!(log.applied(), upto, "reclaim never moves backwards");
                self.applied = self.applied.max(upto);
            }
            Step::RaiseEpoch => {
                self.epoch_tried = self.epoch + 1;
                log.set_epoch(self.epoch_tried)?;
                self.epoch = self.epoch_tried;
            }
            Step::Reset(distance) => {
                let target = log.last().saturating_add_signed(i64::from(distance));
                self.resetting = Some(target);
                log.reset_to(target)?;
                self.reset_done(target);
            }
        }
        self.compare(log);
        Ok(())
    }

    pub fn append(
        &mut self,
        log: &mut Log<Forgetful>,
        payload_len: usize,
        random: &mut Random,
    ) -> bool {
        let new = NewEntry {
            session: random.next(),
            seq: random.next(),
            kind: random.next().to_le_bytes()[0],
            fragment_index: 1,
            fragment_count: 3,
        };
        let header_len = 1 + random.index(100);
        let frame = random.bytes(header_len + payload_len);
        let (header, payload) = frame.split_at(header_len);
        let last = log.last();
        let crc = crc32c::crc32c(payload);
        let (room, appended) = match lent(log, random) {
            None => (log.room(), log.append(&new, header, payload, crc)),
            Some(number) => {
                let start = usize::try_from(number).unwrap() * 2048 + random.index(500);
                let place = start..start + frame.len();
                log.deposit(start, &[&vec![0xaa; header_len][..], payload].concat());
                let room = log.room_in_place();
                let appended = log.append_in_place(&new, header, &place, crc);
                if appended.is_err() {
                    log.give_back_buffer(number);
                }
                (room, appended)
            }
        };
        while let Some(number) = log.poll_released() {
            log.give_back_buffer(number);
        }
        match appended {
            Ok(order) => {
                assert_eq!(order, last + 1);
                self.contents.insert(order, (new, frame, header_len));
                self.last = order;
                true
            }
            Err(full) => {
                let fits =
                    u64::try_from(frame.len()).unwrap() <= room.frame_bytes && room.entries > 0;
                assert!(!fits, "{full:?} with {room:?} for {} bytes", frame.len());
                assert_eq!(log.last(), last);
                false
            }
        }
    }

    fn reset_done(&mut self, target: u64) {
        *self = Model {
            promised: target,
            applied: target,
            last: target,
            epoch: self.epoch,
            epoch_tried: self.epoch_tried,
            incarnation: self.incarnation,
            ..Model::default()
        };
    }

    /// Checks that a repaired log keeps every promise and invents nothing.
    pub fn recovered(&mut self, log: &Log<Forgetful>) {
        if let Some(target) = self.resetting.take()
            && (log.applied(), log.last()) == (target, target)
        {
            self.reset_done(target);
        }
        assert!(
            log.incarnation() > self.incarnation,
            "the incarnation was raised"
        );
        self.incarnation = log.incarnation();
        assert!((self.epoch..=self.epoch_tried.max(self.epoch)).contains(&log.epoch()));
        (self.epoch, self.epoch_tried) = (log.epoch(), log.epoch());
        assert!(
            log.last() >= self.promised,
            "lost: {} promised, {} there",
            self.promised,
            log.last()
        );
        assert!(
            log.last() <= self.last,
            "invented: {} appended, {} there",
            self.last,
            log.last()
        );
        assert!(
            log.applied() <= self.applied,
            "reclaimed too much: {} > {}",
            log.applied(),
            self.applied
        );
        assert_eq!(log.durable(), log.last());
        assert_erased(log);
        let _discarded = self.contents.split_off(&(log.last() + 1));
        (self.last, self.promised) = (log.last(), log.last());
        self.compare(log);
    }

    fn compare(&self, log: &Log<Forgetful>) {
        assert!(log.applied() <= log.durable() && log.durable() <= log.last());
        assert_eq!(log.last(), self.last);
        assert_eq!(
            (log.entry(log.applied()), log.entry(log.last() + 1)),
            (None, None)
        );
        for order in log.applied() + 1..=log.last() {
            let (new, frame, header_len) = &self.contents[&order];
            let entry = log.entry(order).unwrap();
            assert_eq!(log.frame(order), Some(&frame[..]), "order {order}");
            let there = NewEntry {
                session: entry.session,
                seq: entry.seq,
                kind: entry.kind,
                fragment_index: entry.fragment_index,
                fragment_count: entry.fragment_count,
            };
            assert_eq!(
                (entry.order, there, usize::from(entry.header_len)),
                (order, *new, *header_len)
            );
        }
    }
}

/// Returns a packet buffer for the next packet; one in three packets is copied instead.
fn lent(log: &mut Log<Forgetful>, random: &mut Random) -> Option<u32> {
    let buffers = log.parameters().space != FrameSpace::Ring;
    (buffers && random.below(3) > 0)
        .then(|| log.lend_buffer())
        .flatten()
}

/// Opens and repairs a log; panics if the image is refused.
pub fn recover(medium: Forgetful) -> Log<Forgetful> {
    let scan = Scan::open(medium, Some(EXPECTED)).unwrap();
    let decision = scan.decide();
    assert!(matches!(decision, Decision::Keep { .. }), "{decision:?}");
    scan.repair(decision).unwrap()
}

/// Returns a log with `orders` durable entries in bursts of `burst`, of which `reclaimed` are reclaimed.
pub fn filled(
    parameters: &Parameters,
    orders: u64,
    burst: u64,
    reclaimed: u64,
) -> (Log<Forgetful>, Model) {
    let mut random = Random(orders ^ burst << 20);
    let mut log = recover(Forgetful::formatted(parameters, 1));
    let mut model = Model::default();
    model.recovered(&log);
    while log.last() < orders {
        for _ in 0..burst.min(orders - log.last()) {
            assert!(model.append(&mut log, 40, &mut random));
        }
        assert!(log.persist_start().unwrap());
        assert!(log.persist_poll(true).unwrap());
        model.promised = log.durable();
        log.reclaim(log.durable().saturating_sub(orders - reclaimed));
        model.applied = log.applied();
    }
    (log, model)
}

/// Checks that every slot that the repair did not keep is zero, in the image and on the medium. So no erased entry can
/// come back.
fn assert_erased(log: &Log<Forgetful>) {
    let (entries, kept) = (log.parameters().entries, log.last() - log.applied());
    for index in kept..entries {
        let at = usize::try_from((log.applied() + 1 + index) % entries).unwrap() * 64 + 8192;
        for bytes in [&log.medium().image, &log.medium().durable] {
            assert_eq!(
                bytes[at..at + 64],
                [0; 64],
                "slot of order {}",
                log.applied() + 1 + index
            );
        }
    }
}
