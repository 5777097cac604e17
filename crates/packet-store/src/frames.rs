//! The owner and the content of each frame (`docs/spec/packet-store.md` §6). Recovery computes this state from the
//! image.
//!
//! Invariants: a frame with a record in it is never free. A lent frame belongs to the packet loop, and no line on the
//! medium points into it. Ordinary puts never take the last [`Frames::reserve`] free frames. This module reads and
//! writes no byte of a frame.

use crate::geometry::{Geometry, index, to_u64};

/// Number that stands for no frame, or for no slot.
pub(crate) const NONE: u32 = u32::MAX;
/// One in this many frames is the reserve ([`Room`]), but at least [`RESERVE_MIN`] frames.
const RESERVE_FRACTION: u32 = 8;
const RESERVE_MIN: u32 = 8;
/// Number of classes. A frame that can be packed belongs to a class by the number of its live bytes.
const CLASSES: usize = 16;
/// Frames in the classes below this number are sparse: less than three quarters of their bytes are live.
const CLASSES_SPARSE: usize = 12;
/// Frames in the classes below this number can be packed when frames are scarce. Even when all other writes are
/// refused, a record may still replace another record in half of the reserve, which is a sixteenth of all frames.
/// Before this space is used up, there is a frame in one of these classes.
const CLASSES_SCARCE: usize = 15;
/// Copied records begin at multiples of this number of bytes, so that a torn word never belongs to two records.
const ALIGN: usize = 8;
/// If more bytes than this would stay unused at the end of a frame, a record is continued in a second frame.
const UNUSED_MAX: usize = 256;
/// The limit that replaces [`UNUSED_MAX`] while records are packed because frames are scarce. This limit is lower,
/// because packing must not leave more bytes unused than it gains.
const UNUSED_SCARCE_MAX: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// The packet loop holds the frame.
    Lent,
    /// Records are copied into the frame.
    Open,
    /// The frame is full, or holds a packet. The live records of the frame can be packed.
    Closed,
    /// The frame holds a part of one large record, or a damaged record, so it is never packed.
    Apart,
    /// The frame holds no record any more. But lines on the medium may point into the frame, and the log has an entry
    /// in the frame.
    Left,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    state: State,
    /// Whether the log in the same region has an entry in the frame, too (`docs/spec/packet-store.md` §11).
    logged: bool,
    /// Number of live bytes of records in the frame. Records in one packet share its payload, whose bytes count for
    /// each of these records. The number is at most the length of the frame.
    live: u32,
    /// Slot of the first line in the list of lines whose records are in the frame.
    first: u32,
    /// The previous frame in the list of the frame's class.
    before: u32,
    after: u32,
}

/// The place of a line's record.
#[derive(Clone, Copy, Debug)]
struct Lying {
    /// Frame that holds the record; [`NONE`] if the slot is free.
    frame: u32,
    len: u32,
    /// The previous line in the list of the frame's lines.
    before: u32,
    after: u32,
}

const NOWHERE: Lying = Lying {
    frame: NONE,
    len: 0,
    before: NONE,
    after: NONE,
};

/// A range of bytes in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub frame: u32,
    pub start: usize,
    pub len: usize,
}

/// The purpose for which space is requested. The purpose decides how much of the reserve may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Data of a client. Such data may take nothing of the reserve.
    Ordinary,
    /// Data of a client that replaces a value of at least the same length. Such data may take half of the reserve.
    InPlace,
    /// Data of a client that was acknowledged before. Such data may take a quarter of the reserve.
    Acknowledged,
    /// A short record of the protocol, or a record that frees space. Such a record may take seven eighths of the
    /// reserve, and the space that is set apart for records of the protocol.
    Reserved,
    /// Packing. Packing may take the whole reserve.
    Packing,
}

impl Room {
    /// Returns the number of frames (or lines) that a request for this purpose must leave free. `reserve` is their
    /// number in the reserve, `records` the number that is set apart for records of the protocol.
    pub(crate) const fn leaves(self, reserve: usize, records: usize) -> usize {
        match self {
            Room::Ordinary => reserve + records,
            Room::Acknowledged => reserve - reserve / 4 + records,
            Room::InPlace => reserve / 2 + records,
            Room::Reserved => reserve / 8,
            Room::Packing => 0,
        }
    }

    /// Returns the number of frames (or lines) that must be free before a new session may use [`Room::Reserved`]. This
    /// number is a quarter of the reserve, plus what is set apart for the records of existing sessions.
    pub(crate) const fn another(reserve: usize, records: usize) -> usize {
        reserve / 4 + records
    }
}

/// The states of all frames of a store.
#[derive(Debug)]
pub(crate) struct Frames {
    bytes: usize,
    frames: Vec<Frame>,
    /// The places of the records of all lines, up to the highest line that was ever used.
    lying: Vec<Lying>,
    /// Free frames into which no line on the medium points.
    cold: Vec<u32>,
    /// Free frames whose last record was removed while the record's line may still be on the medium. Of these frames,
    /// the one that was used last is taken first, because it is in the CPU's cache.
    warm: Vec<u32>,
    /// Frames that are, or were, in the state [`State::Left`].
    left: Vec<u32>,
    lent: u32,
    /// Number of frames with an entry of the log.
    logged: u32,
    /// Number of frames that the log will get in exchange for the frames that the current transaction has linked.
    promised: usize,
    /// The frame into which records are copied, or [`NONE`].
    open: u32,
    /// Number of bytes of the open frame that are taken.
    fill: usize,
    /// First frame in the list of each class of frames.
    classes: [u32; CLASSES],
    live: u64,
    reserve: usize,
    /// Number of frames, besides the reserve, that only records of the protocol may take.
    records: usize,
    /// Number of frames that should be free besides the reserve. If fewer frames are free, frames are packed, and the
    /// store counts as short.
    ahead: usize,
    /// The limit that applies now: [`UNUSED_MAX`], or [`UNUSED_SCARCE_MAX`] while packing.
    unused_max: usize,
    /// Number of dead bytes below which packing because of scarce frames would free nothing.
    fruitless: u64,
}

impl Frames {
    /// Makes the states of a new store, whose frames are all free.
    pub fn new(geometry: &Geometry) -> Frames {
        let frame = Frame {
            state: State::Free,
            logged: false,
            live: 0,
            first: NONE,
            before: NONE,
            after: NONE,
        };
        Frames {
            bytes: geometry.frame_len(),
            frames: vec![frame; index(geometry.frames)],
            // Memory that is only reserved takes no pages.
            lying: Vec::with_capacity(index(geometry.lines)),
            cold: (0..geometry.frames).rev().collect(),
            warm: Vec::new(),
            left: Vec::new(),
            lent: 0,
            logged: 0,
            promised: 0,
            open: NONE,
            fill: 0,
            classes: [NONE; CLASSES],
            live: 0,
            reserve: index((geometry.frames / RESERVE_FRACTION).max(RESERVE_MIN)),
            records: 0,
            ahead: 0,
            unused_max: UNUSED_MAX,
            fruitless: 0,
        }
    }

    /// Called by recovery for a part of a record that is kept: its frame is no longer free.
    pub fn keep(&mut self, frame: u32, slot: u32, len: usize, apart: bool) {
        let state = &mut self.frames[index(frame)].state;
        match *state {
            State::Free if apart => *state = State::Apart,
            State::Free => {
                *state = State::Closed;
                self.enter_class(frame);
            }
            _ => {}
        }
        self.attach(frame, slot, len);
    }

    /// Called by recovery after all kept parts: removes their frames from the list of free frames.
    pub fn kept(&mut self) {
        let frames = &self.frames;
        self.cold
            .retain(|&frame| frames[index(frame)].state == State::Free);
    }

    fn free(&self) -> usize {
        self.cold.len() + self.warm.len()
    }

    /// Returns the number of free frames that a request for this purpose may take.
    pub fn room(&self, room: Room) -> usize {
        self.free()
            .saturating_sub(room.leaves(self.reserve, self.records) + self.promised)
    }

    /// Returns the maximum number of frames that `total` bytes need besides the open frame.
    pub fn needed(&self, total: usize) -> usize {
        total.div_ceil(self.bytes).max(1)
    }

    /// Returns a place for the first part of `total` bytes, of which `whole` bytes must be in one frame.
    /// [`Frames::needed`] frames must be free.
    pub fn place_first(&mut self, total: usize, whole: usize) -> Place {
        let rest = if self.open == NONE {
            0
        } else {
            self.bytes - self.fill
        };
        // A record without bytes needs a frame, too.
        let len = if self.open != NONE && total <= rest {
            total
        } else if rest > self.unused_max && whole <= rest {
            rest
        } else {
            self.open_next();
            total.min(self.bytes)
        };
        self.take_open(len)
    }

    /// Returns a place for a further part of a record that is not large.
    pub fn place_piece(&mut self, len: usize) -> Place {
        if self.open == NONE || self.bytes - self.fill < len {
            self.open_next();
        }
        self.take_open(len)
    }

    /// Returns a place for a part of a large record, in a frame of its own.
    pub fn place_apart(&mut self, len: usize) -> Place {
        let frame = self.take_free();
        self.frames[index(frame)].state = State::Apart;
        Place {
            frame,
            start: 0,
            len,
        }
    }

    fn take_open(&mut self, len: usize) -> Place {
        let start = self.fill;
        self.fill = (start + len).next_multiple_of(ALIGN);
        Place {
            frame: self.open,
            start,
            len,
        }
    }

    fn take_free(&mut self) -> u32 {
        let frame = self.warm.pop().or_else(|| self.cold.pop());
        frame.expect("the room was looked at before")
    }

    fn open_next(&mut self) {
        let closed = std::mem::replace(&mut self.open, NONE);
        if closed != NONE {
            self.frames[index(closed)].state = State::Closed;
            self.enter_class(closed);
            self.free_if_empty(closed);
        }
        self.open = self.take_free();
        self.fill = 0;
        self.frames[index(self.open)].state = State::Open;
    }

    /// Lends a free frame. Returns `None` if only the reserve is left, or if lines on the medium may point into all
    /// other frames.
    pub fn lend(&mut self) -> Option<u32> {
        match self.room(Room::Ordinary) {
            0 => None,
            _ => self.lend_cold(),
        }
    }

    /// Lends a free frame, from the reserve if necessary.
    pub fn lend_cold(&mut self) -> Option<u32> {
        let frame = self.cold.pop()?;
        self.frames[index(frame)].state = State::Lent;
        self.lent += 1;
        Some(frame)
    }

    /// Returns whether a frame is lent.
    pub fn is_lent(&self, frame: u32) -> bool {
        self.frames
            .get(index(frame))
            .is_some_and(|found| found.state == State::Lent)
    }

    /// Takes back a lent frame. The frame becomes free. With `keeps` it holds a packet instead, whose records are
    /// attached next.
    ///
    /// # Panics
    /// If the frame is not lent.
    pub fn take_back(&mut self, frame: u32, keeps: bool) {
        assert!(self.is_lent(frame), "only what is lent is given back");
        self.lent -= 1;
        if keeps {
            self.frames[index(frame)].state = State::Closed;
            self.enter_class(frame);
        } else {
            self.frames[index(frame)].state = State::Free;
            self.cold.push(frame);
        }
    }

    /// Takes a packet in a lent frame. The packet's records are attached next. The log keeps the frame, too, and gets
    /// another frame in exchange.
    ///
    /// # Panics
    /// If the frame is neither lent nor in the state [`State::Left`].
    pub fn take_logged(&mut self, frame: u32) {
        self.promised += 1;
        if self.is_left(frame) {
            self.frames[index(frame)].state = State::Closed;
            self.enter_class(frame);
            return;
        }
        self.take_back(frame, true);
        self.frames[index(frame)].logged = true;
        self.logged += 1;
    }

    /// Returns whether the log has an entry in the frame and no record is left in it.
    pub fn is_left(&self, frame: u32) -> bool {
        self.frames
            .get(index(frame))
            .is_some_and(|found| found.state == State::Left)
    }

    /// Notes the end of the current transaction: the log has got the frames that the store promised.
    pub fn keep_promises(&mut self) {
        self.promised = 0;
    }

    /// Called by recovery for a frame in which the log has an entry. If the frame has no record, it becomes a lent
    /// frame.
    pub fn share(&mut self, frame: u32) {
        let found = &mut self.frames[index(frame)];
        match found.state {
            State::Free => {
                found.state = State::Lent;
                self.lent += 1;
            }
            _ => {
                found.logged = true;
                self.logged += 1;
            }
        }
    }

    /// Notes that the log no longer needs this frame. Returns true if the store keeps the frame.
    pub fn let_go(&mut self, frame: u32) -> bool {
        let found = &mut self.frames[index(frame)];
        if !std::mem::take(&mut found.logged) {
            return false;
        }
        self.logged -= 1;
        if found.state == State::Left {
            found.state = State::Free;
            self.warm.push(frame);
        }
        true
    }

    /// Notes that the lines of all dead records are durably erased, so that no line on the medium points into a free
    /// frame.
    pub fn cool(&mut self) {
        self.cold.append(&mut self.warm);
        for frame in std::mem::take(&mut self.left) {
            let found = &mut self.frames[index(frame)];
            if found.state == State::Left {
                (found.state, found.logged) = (State::Lent, false);
                self.logged -= 1;
                self.lent += 1;
            }
        }
    }

    /// Returns the number of free frames into which no line on the medium points.
    pub fn cold(&self) -> usize {
        self.cold.len()
    }

    /// Returns the number of frames with records in which the log has an entry, too.
    pub fn logged(&self) -> u32 {
        self.logged
    }

    /// Returns whether the log has an entry in this frame, which also holds or held records.
    pub fn is_logged(&self, frame: u32) -> bool {
        self.frames[index(frame)].logged
    }

    /// Notes that the record of a line lies in this frame from now on.
    pub fn attach(&mut self, frame: u32, slot: u32, len: usize) {
        self.leave_class(frame);
        let found = &mut self.frames[index(frame)];
        let after = std::mem::replace(&mut found.first, slot);
        found.live += u32::try_from(len).expect("at most a frame");
        self.live += to_u64(len);
        if self.lying.len() <= index(slot) {
            self.lying.resize(index(slot) + 1, NOWHERE);
        }
        self.lying[index(slot)] = Lying {
            frame,
            len: u32::try_from(len).expect("at most a frame"),
            before: NONE,
            after,
        };
        if after != NONE {
            self.lying[index(after)].before = slot;
        }
        self.enter_class(frame);
    }

    /// Notes that the record of a line no longer lies in its frame.
    pub fn detach(&mut self, slot: u32) {
        let Lying {
            frame,
            len,
            before,
            after,
        } = self.lying[index(slot)];
        self.lying[index(slot)].frame = NONE;
        self.leave_class(frame);
        match before {
            NONE => self.frames[index(frame)].first = after,
            _ => self.lying[index(before)].after = after,
        }
        if after != NONE {
            self.lying[index(after)].before = before;
        }
        self.frames[index(frame)].live -= len;
        self.live -= u64::from(len);
        self.enter_class(frame);
        self.free_if_empty(frame);
    }

    fn free_if_empty(&mut self, frame: u32) {
        if self.frames[index(frame)].first != NONE {
            return;
        }
        match self.frames[index(frame)].state {
            State::Closed | State::Apart => {
                self.leave_class(frame);
                let found = &mut self.frames[index(frame)];
                if found.logged {
                    found.state = State::Left;
                    self.left.push(frame);
                } else {
                    found.state = State::Free;
                    self.warm.push(frame);
                }
            }
            State::Open => self.fill = 0,
            State::Free | State::Lent | State::Left => {}
        }
    }

    /// Allows a frame that was excluded from packing to be packed again. The call has no effect if the frame has become
    /// free.
    pub fn set_closed(&mut self, frame: u32) {
        if self.frames[index(frame)].state == State::Apart {
            self.frames[index(frame)].state = State::Closed;
            self.enter_class(frame);
        }
    }

    /// Excludes the frame from packing until [`Frames::set_closed`].
    pub fn set_apart(&mut self, frame: u32) {
        if self.frames[index(frame)].state == State::Closed {
            self.leave_class(frame);
            self.frames[index(frame)].state = State::Apart;
        }
    }

    fn class(&self, frame: u32) -> usize {
        (index(self.frames[index(frame)].live) * CLASSES / self.bytes).min(CLASSES - 1)
    }

    /// Adds the frame to the list of its class, if it is closed.
    fn enter_class(&mut self, frame: u32) {
        if self.frames[index(frame)].state != State::Closed {
            return;
        }
        let class = self.class(frame);
        let after = std::mem::replace(&mut self.classes[class], frame);
        let found = &mut self.frames[index(frame)];
        (found.before, found.after) = (NONE, after);
        if after != NONE {
            self.frames[index(after)].before = frame;
        }
    }

    fn leave_class(&mut self, frame: u32) {
        let Frame {
            state,
            before,
            after,
            ..
        } = self.frames[index(frame)];
        if state != State::Closed {
            return;
        }
        match before {
            NONE => {
                let class = self.class(frame);
                self.classes[class] = after;
            }
            _ => self.frames[index(before)].after = after,
        }
        if after != NONE {
            self.frames[index(after)].before = before;
        }
    }

    /// Returns the sparsest frame that can be packed, if packing is worth its cost. It is if more than a third of the
    /// bytes in use are dead, or if frames are scarce and some bytes are dead.
    pub fn sparsest(&self) -> Option<u32> {
        let dead = self.dead_bytes();
        let classes = if self.is_scarce() && dead > self.fruitless + to_u64(self.bytes) {
            CLASSES_SCARCE
        } else if dead > to_u64(8 * self.bytes) && dead * 3 > self.taken_bytes() {
            CLASSES_SPARSE
        } else {
            0
        };
        let mut firsts = self.classes[..classes].iter().copied();
        firsts.find(|&frame| frame != NONE)
    }

    fn dead_bytes(&self) -> u64 {
        self.taken_bytes().saturating_sub(self.live)
    }

    fn taken_bytes(&self) -> u64 {
        to_u64((self.frames.len() - self.free() - index(self.lent)) * self.bytes)
    }

    /// Returns whether fewer frames are free than should be free.
    pub fn is_scarce(&self) -> bool {
        self.free() < self.reserve + self.records + self.ahead
    }

    /// Sets the number of frames that only records of the protocol may take.
    pub fn keep_for_records(&mut self, frames: usize) {
        self.records = frames;
    }

    /// Returns whether a new session that uses [`Room::Reserved`] would leave too few frames for the existing sessions.
    pub fn is_crowded(&self) -> bool {
        self.free() < Room::another(self.reserve, self.records)
    }

    /// Sets the number of frames that should be free besides the reserve.
    pub fn keep_ahead(&mut self, frames: usize) {
        self.ahead = frames;
    }

    /// Returns the number of frames that ordinary puts do not take.
    pub fn reserve(&self) -> usize {
        self.reserve
    }

    /// Begins packing. Returns the number that must be passed to [`Frames::packed`] at the end.
    pub fn packs(&mut self) -> usize {
        if self.is_scarce() {
            self.unused_max = UNUSED_SCARCE_MAX;
        }
        self.free()
    }

    /// Ends packing; `before` is the result of [`Frames::packs`]. If packing has freed nothing, it is not tried again
    /// until more bytes are dead.
    pub fn packed(&mut self, before: usize) {
        self.unused_max = UNUSED_MAX;
        self.fruitless = if self.free() > before {
            0
        } else {
            self.dead_bytes()
        };
    }

    /// Returns the first line in a frame.
    pub fn first_line(&self, frame: u32) -> u32 {
        self.frames[index(frame)].first
    }

    /// Returns the next line in the list of the same frame.
    pub fn next_line(&self, slot: u32) -> u32 {
        self.lying[index(slot)].after
    }

    /// Returns the number of live bytes of records in a frame.
    pub fn live_in(&self, frame: u32) -> usize {
        index(self.frames[index(frame)].live)
    }

    /// Returns the number of free frames, of lent frames, and of frames with records.
    pub fn counts(&self) -> [u32; 3] {
        let number = |count: usize| u32::try_from(count).expect("frames are counted in 32 bits");
        let (all, free) = (number(self.frames.len()), number(self.free()));
        [free, self.lent, all - free - self.lent]
    }

    /// Returns the number of live bytes in all frames.
    pub fn live_bytes(&self) -> u64 {
        self.live
    }
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
