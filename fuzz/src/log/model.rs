//! The outside world's knowledge of a log: appended, promised and discarded entries.

use std::collections::BTreeMap;
use std::ops::Range;

use pmnet_log::{FrameSpace, Full, HEADER_LEN_MAX, Log, Media, NewEntry};

use crate::input::Input;
use crate::medium::Forgetful;

/// The knowledge about one log.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// For every entry that may be in the log: the entry, its frame and the length of its header.
    contents: BTreeMap<u64, (NewEntry, Vec<u8>, usize)>,
    promised: u64,
    applied: u64,
    last: u64,
    epoch: u32,
    incarnation: u32,
    /// The epoch or the reset that was requested when power was lost.
    epoch_tried: Option<u32>,
    reset_tried: Option<u64>,
    frames: u64,
}

impl Model {
    /// Appends one frame if the log has space. Returns whether it had.
    ///
    /// # Panics
    /// If the log refuses a frame for which it reported space, or assigns another order.
    pub fn append<M: Media>(&mut self, log: &mut Log<M>, input: &mut Input<'_>) -> bool {
        self.frames += 1;
        let header_len = match input.byte() {
            0 => usize::from(input.short()) % (HEADER_LEN_MAX + 2),
            byte => usize::from(byte),
        };
        let payload_len = match input.byte() {
            0 => usize::from(input.short()),
            byte => usize::from(byte),
        };
        let new = NewEntry {
            session: self.frames,
            seq: u64::MAX - self.frames,
            kind: input.byte(),
            fragment_index: 1,
            fragment_count: 3,
        };
        let fill = self.frames.to_le_bytes();
        let frame: Vec<u8> = fill
            .iter()
            .copied()
            .cycle()
            .take(header_len + payload_len)
            .collect();
        let (header, payload) = frame.split_at(header_len);
        let last = log.last();
        let crc = crc32c::crc32c(payload);
        let lent = self.lent(log, frame.len());
        let (room, appended) = match lent {
            None => (log.room(), log.append(&new, header, payload, crc)),
            Some((number, place)) => {
                log.deposit(place.start, &frame);
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
        let length = u64::try_from(frame.len()).expect("short");
        let possible = (1..=HEADER_LEN_MAX).contains(&header_len);
        match appended {
            Ok(order) => {
                assert!(possible && order == last + 1);
                self.contents.insert(order, (new, frame, header_len));
                self.last = order;
                true
            }
            Err(full) => {
                let fits = possible && length <= room.frame_bytes && room.entries > 0;
                assert!(!fits, "{full:?} with {room:?} for {length} bytes");
                assert_eq!(
                    (log.last(), possible || full == Full::TooLarge),
                    (last, true)
                );
                false
            }
        }
    }

    /// Returns a packet buffer, and the place in it where the network puts the next frame. Two of
    /// three frames arrive in this way, if they are short enough.
    fn lent<M: Media>(&self, log: &mut Log<M>, len: usize) -> Option<(u32, Range<usize>)> {
        let FrameSpace::Buffers(bytes) = log.parameters().space else {
            return None;
        };
        let bytes = usize::try_from(bytes).expect("small");
        let spare = bytes
            .checked_sub(len)
            .filter(|_| !self.frames.is_multiple_of(3))?;
        let number = log.lend_buffer()?;
        let skew = usize::try_from(self.frames).expect("small") * 37 % (spare + 1);
        let start = usize::try_from(number).expect("small") * bytes + skew;
        Some((number, start..start + len))
    }

    /// Takes the present value of `durable()`.
    ///
    /// # Panics
    /// If the value went back.
    pub fn polled(&mut self, log: &Log<Forgetful>) {
        assert!(log.durable() >= self.promised);
        self.promised = log.durable();
    }

    /// Reclaims a number of sixteenths of the durable entries that are not reclaimed yet.
    ///
    /// # Panics
    /// If the log reclaims other entries.
    pub fn reclaim(&mut self, log: &mut Log<Forgetful>, sixteenths: u64) {
        let upto = log.applied() + (log.durable() - log.applied()) * sixteenths / 16;
        log.reclaim(upto);
        assert_eq!(log.applied(), upto);
        log.reclaim(upto.saturating_sub(5));
        assert_eq!(log.applied(), upto, "reclaim never moves backwards");
        self.applied = upto;
    }

    /// Requests another epoch; `false`: the medium failed.
    ///
    /// # Panics
    /// If the log accepts a lower epoch.
    pub fn set_epoch(&mut self, log: &mut Log<Forgetful>, epoch: u32) -> bool {
        self.epoch_tried = Some(epoch.max(self.epoch));
        match log.set_epoch(epoch) {
            Ok(()) => {
                assert!(epoch >= self.epoch, "the epoch went back");
                self.epoch = epoch;
            }
            Err(pmnet_log::LogError::EpochWentBack { have, asked }) => {
                assert_eq!((have, asked < have), (self.epoch, true));
            }
            Err(_) => return false,
        }
        self.epoch_tried = None;
        true
    }

    /// Discards all entries and goes on after `order`; `false`: the medium failed.
    ///
    /// # Panics
    /// If the log refuses an order that is not near the maximum.
    pub fn reset(&mut self, log: &mut Log<Forgetful>, order: u64) -> bool {
        self.reset_tried = Some(order);
        match log.reset_to(order) {
            Ok(()) => self.reset_done(order),
            Err(pmnet_log::LogError::Exhausted { .. }) => {
                assert!(order > u64::MAX - 256, "order {order} is refused");
                self.reset_tried = None;
            }
            Err(_) => return false,
        }
        true
    }

    fn reset_done(&mut self, order: u64) {
        self.reset_tried = None;
        self.contents.clear();
        (self.promised, self.applied, self.last) = (order, order, order);
    }

    /// Checks that a repaired log keeps every promise and invents nothing.
    ///
    /// # Panics
    /// If it breaks a promise or invents an entry.
    pub fn recovered<M: Media>(&mut self, log: &Log<M>) {
        if let Some(order) = self.reset_tried.take()
            && (log.applied(), log.last()) == (order, order)
        {
            self.reset_done(order);
        }
        assert!(log.incarnation() > self.incarnation, "a new incarnation");
        self.incarnation = log.incarnation();
        let highest = self.epoch_tried.take().unwrap_or(self.epoch);
        assert!((self.epoch..=highest).contains(&log.epoch()));
        self.epoch = log.epoch();
        assert!(log.last() >= self.promised, "lost: {self:?}");
        assert!(log.last() <= self.last, "invented: {self:?}");
        assert!(log.applied() <= self.applied, "reclaimed too much");
        assert_eq!(log.durable(), log.last());
        self.contents.split_off(&(log.last() + 1));
        (self.last, self.promised) = (log.last(), log.last());
        self.applied = log.applied();
        self.compare(log);
    }

    /// Checks the contents of the log byte by byte.
    ///
    /// # Panics
    /// If they differ.
    pub fn compare<M: Media>(&self, log: &Log<M>) {
        assert!(log.applied() <= log.durable() && log.durable() <= log.last());
        assert_eq!(log.last(), self.last);
        assert!(log.last() - log.applied() <= log.parameters().entries);
        assert_eq!(log.entry(log.applied()), None);
        assert_eq!(log.entry(log.last() + 1), None);
        for order in log.applied() + 1..=log.last() {
            let (new, frame, header_len) = &self.contents[&order];
            let entry = log.entry(order).expect("a live order has an entry");
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
