//! One client without its socket: bytes in, calls out, replies in the order of the commands.
//!
//! Purpose: commands become *units*, each one command of the store; units become calls. A plain `set` is a call of its own, and others may be under way
//! before it is answered. Everything else goes as a bypass: the session sends nothing behind one until it is answered (`docs/spec/protocol.md` §3). So the
//! connection keeps later units until then, and sends those together that go together.
//! Invariants: units are submitted in the order of their commands; each slot gets one answer; what is kept in memory is bounded
//! ([`SLOTS_MAX`], [`FLIGHT_BYTES_MAX`], [`UNREAD_BYTES_MAX`]); at a bound, no further command is taken.

mod answer;
mod shared;
mod translate;
mod unit;

use std::collections::VecDeque;

use bytes::Bytes;
use pmnet_client::{CallId, Closed, Outcome, Refused};
use pmnet_resp::{ReplyLimits, Scanner, read, reply};
use pmnet_wire::command::{Form, NO_ADDRESS, Protocol, preamble};

use crate::request::{Parser, Request, Step};
use answer::{Answer, Part, Rendered};
pub use shared::{Dialect, Shared};
use translate::Plan;
pub use unit::{Call, Way};
use unit::{UNITS_MAX, Unit};

/// Most commands of a client that are not answered yet.
pub const SLOTS_MAX: usize = 256;
/// Most bytes of its commands that are on their way; one command may be longer.
pub const FLIGHT_BYTES_MAX: usize = 4 << 20;
/// Most bytes of answers that it has not read; the answers to one call may be longer.
pub const UNREAD_BYTES_MAX: usize = 1 << 20;
/// Bytes that are received ahead of the command that is looked at.
const AHEAD_BYTES: usize = 64 * 1024;

/// The place of a command among the answers.
#[derive(Debug)]
enum Slot {
    /// Replies so far, how many are missing, and the bytes that it keeps.
    Open(Answer, Vec<Part>, usize, usize),
    Done(Vec<u8>),
}

/// The call that is waited for.
#[derive(Debug)]
enum Asked {
    /// What does the store understand?
    Dialect(CallId),
    /// The slots of its units, and how its reply is read.
    Units(CallId, Vec<u64>, Replies),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replies {
    /// One, or those of a transaction.
    One,
    /// One array with all of them.
    Elements,
    /// One behind the other.
    Row,
}

/// A client.
#[derive(Debug)]
pub struct Connection {
    parser: Parser,
    input: Vec<u8>,
    /// Bytes of it that are done with.
    taken: usize,
    /// The parser waits for more than there is.
    starved: bool,
    /// The client sends no more.
    eof: bool,
    /// No further command is taken.
    ends: bool,
    /// Updates are lost that were acknowledged: the next command is answered with this, and is the last.
    lost: Option<String>,
    slots: VecDeque<Slot>,
    /// Number of the first of them.
    first: u64,
    units: VecDeque<Unit>,
    /// Updates that are under way, with their slots.
    updates: VecDeque<(CallId, u64)>,
    asked: Option<Asked>,
    /// Bytes of commands that are not answered.
    flight: usize,
    out: Vec<u8>,
    written: usize,
}

/// Submits calls in the order in which they are to take effect.
pub type Submit<'a> = dyn FnMut(Call) -> Result<CallId, Refused> + 'a;

impl Connection {
    /// A client that has said nothing.
    #[must_use]
    pub fn new(shared: &Shared) -> Connection {
        Connection {
            parser: Parser::new(shared.item_max),
            input: Vec::new(),
            taken: 0,
            starved: true,
            eof: false,
            ends: false,
            lost: None,
            slots: VecDeque::new(),
            first: 0,
            units: VecDeque::new(),
            updates: VecDeque::new(),
            asked: None,
            flight: 0,
            out: Vec::new(),
            written: 0,
        }
    }

    /// Takes in what the client has sent.
    pub fn receive(&mut self, bytes: &[u8]) {
        if self.ends {
            return;
        }
        if self.taken > 0 && self.taken >= self.input.len() / 2 {
            self.input.drain(..self.taken);
            self.taken = 0;
        }
        self.input.extend_from_slice(bytes);
        self.starved = false;
    }

    /// The client sends no more.
    pub fn receive_eof(&mut self) {
        self.eof = true;
    }

    /// Whether more of what it sends is to be received.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        !self.ends && !self.eof && (self.starved || self.input.len() - self.taken < AHEAD_BYTES)
    }

    /// Whether it has ended, and everything is answered and written.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        (self.ends || (self.eof && self.starved))
            && self.slots.is_empty()
            && self.unwritten().is_empty()
    }

    /// Whether further commands were received and can be taken.
    #[must_use]
    pub fn has_more(&self) -> bool {
        !self.starved && self.may_take()
    }

    /// Whether a command has begun that is not whole.
    #[must_use]
    pub fn is_within(&self) -> bool {
        self.parser.is_within() || self.taken < self.input.len()
    }

    /// The answers that are to be written.
    #[must_use]
    pub fn unwritten(&self) -> &[u8] {
        &self.out[self.written..]
    }

    /// So much of them was written.
    pub fn wrote(&mut self, count: usize) {
        self.written += count;
        if self.written >= self.out.len() {
            self.out.clear();
            self.written = 0;
        }
    }

    /// Takes commands, and submits what can be submitted.
    pub fn advance(&mut self, shared: &mut Shared, submit: &mut Submit<'_>) {
        loop {
            self.settle();
            let took = self.take_commands(shared);
            let submitted = self.submit_units(shared, submit);
            if !took && !submitted {
                return self.settle();
            }
        }
    }

    fn may_take(&self) -> bool {
        !self.ends
            && self.slots.len() < SLOTS_MAX
            && self.units.len() < UNITS_MAX
            && self.flight < FLIGHT_BYTES_MAX
            && self.unwritten().len() < UNREAD_BYTES_MAX
    }

    fn take_commands(&mut self, shared: &mut Shared) -> bool {
        let mut took = false;
        while self.may_take() && !self.starved {
            match self.parser.poll(&self.input[self.taken..]) {
                Step::More => self.starved = true,
                Step::Taken(count, request) => {
                    self.taken += count;
                    took = true;
                    if let Some(request) = request {
                        self.take(request, shared);
                    }
                }
            }
        }
        if self.taken == self.input.len() {
            self.input.clear();
            self.taken = 0;
            // A silent client does not keep the memory that one large item needed.
            self.input.shrink_to(AHEAD_BYTES);
        }
        took
    }

    fn take(&mut self, request: Request, shared: &mut Shared) {
        let slot = self.first + u64::try_from(self.slots.len()).unwrap_or(u64::MAX);
        let plan = match self.lost.take() {
            Some(lost) => {
                Plan::Ends(format!("SERVER_ERROR pmnet: closing: {lost}\r\n").into_bytes())
            }
            None => translate::plan(request, slot, shared),
        };
        match plan {
            Plan::Said(text) => self.slots.push_back(Slot::Done(text)),
            Plan::Ends(text) => {
                self.slots.push_back(Slot::Done(text));
                self.ends = true;
            }
            Plan::Asks(answer, units) => {
                let bytes = units.iter().map(Unit::bytes).sum();
                self.flight += bytes;
                let parts = Vec::with_capacity(units.len());
                self.slots
                    .push_back(Slot::Open(answer, parts, units.len(), bytes));
                self.units.extend(units);
            }
        }
    }

    fn submit_units(&mut self, shared: &mut Shared, submit: &mut Submit<'_>) -> bool {
        let mut submitted = false;
        while self.asked.is_none() && !self.units.is_empty() {
            let count = unit::together(self.units.iter(), shared.item_max).max(1);
            let units: Vec<&Unit> = self.units.iter().take(count).collect();
            let needs = units.iter().any(|unit| unit.is_change());
            let dialect = match shared.dialect {
                None if needs => match submit(which_dialect()) {
                    Ok(id) => {
                        self.asked = Some(Asked::Dialect(id));
                        return true;
                    }
                    Err(Refused::Busy) => return submitted,
                    Err(why) => return self.refuse(count, why, shared),
                },
                known => known.unwrap_or(Dialect::Redis),
            };
            let Some(call) = unit::call(&units, shared, dialect) else {
                return submitted;
            };
            let way = call.way;
            let id = match submit(call) {
                Ok(id) => id,
                Err(Refused::Busy) => return submitted,
                Err(why) => return self.refuse(count, why, shared),
            };
            submitted = true;
            let slots: Vec<u64> = self.units.drain(..count).map(|unit| unit.slot).collect();
            match way {
                Way::Update => self.updates.extend(slots.first().map(|slot| (id, *slot))),
                Way::Read | Way::Change => {
                    let replies = match (way, count) {
                        (_, 1) => Replies::One,
                        (Way::Read, _) => Replies::Elements,
                        _ => Replies::Row,
                    };
                    self.asked = Some(Asked::Units(id, slots, replies));
                }
            }
        }
        submitted
    }

    /// The first units cannot be submitted.
    fn refuse(&mut self, count: usize, why: Refused, shared: &mut Shared) -> bool {
        let slots: Vec<u64> = self.units.drain(..count).map(|unit| unit.slot).collect();
        for slot in slots {
            self.part(slot, Err(format!("pmnet: {why}")));
            self.render(slot, shared);
        }
        true
    }

    fn slot(&mut self, slot: u64) -> Option<&mut Slot> {
        let at = usize::try_from(slot.checked_sub(self.first)?).ok()?;
        self.slots.get_mut(at)
    }

    /// One more reply for a slot.
    fn part(&mut self, slot: u64, part: Part) {
        if let Some(Slot::Open(_, parts, missing, _)) = self.slot(slot) {
            parts.push(part);
            *missing = missing.saturating_sub(1);
        }
    }

    /// A call has ended. Call [`Connection::advance`] afterwards.
    pub fn done(&mut self, call: CallId, outcome: Outcome, shared: &mut Shared) {
        let part = match outcome {
            Outcome::Committed { .. } => Ok(reply::OK),
            Outcome::Reply(reply) => Ok(reply),
            Outcome::Failed(why) => Err(format!("pmnet: {why}")),
            Outcome::Unknown => Err(
                "pmnet: outcome unknown (deadline passed); the command may or may not take effect once"
                    .into(),
            ),
        };
        if let Some(at) = self.updates.iter().position(|(id, _)| *id == call) {
            if let Some((_, slot)) = self.updates.remove(at) {
                self.part(slot, part);
                self.render(slot, shared);
            }
            return;
        }
        match self.asked.take() {
            Some(Asked::Dialect(id)) if id == call => self.dialect_known(part, shared),
            Some(Asked::Units(id, slots, replies)) if id == call => {
                for (slot, part) in slots.iter().zip(split(part, replies, slots.len())) {
                    self.part(*slot, part);
                }
                // Backwards, so that what is asked once more comes in order in front of everything else.
                for slot in slots.into_iter().rev() {
                    self.render(slot, shared);
                }
            }
            other => self.asked = other,
        }
    }

    fn dialect_known(&mut self, part: Part, shared: &mut Shared) {
        match part {
            Ok(reply) if reply == NO_ADDRESS => shared.dialect = Some(Dialect::Packet),
            Ok(_) => shared.dialect = Some(Dialect::Redis),
            Err(why) => {
                // Nothing was done. Only the first is answered so: by the next, the store may be there again.
                if let Some(unit) = self.units.pop_front() {
                    self.part(unit.slot, Err(why));
                    self.render(unit.slot, shared);
                }
            }
        }
    }

    /// Makes the answer of a slot that misses nothing any more.
    fn render(&mut self, number: u64, shared: &mut Shared) {
        let Some(Slot::Open(answer, parts, 0, bytes)) = self.slot(number) else {
            return;
        };
        let bytes = *bytes;
        match answer.render(parts, shared) {
            Rendered::Text(text) => {
                self.flight -= bytes;
                if let Some(slot) = self.slot(number) {
                    *slot = Slot::Done(text);
                }
            }
            Rendered::Again => {
                let Some(Slot::Open(Answer::Meta { key, meta }, parts, missing, _)) =
                    self.slot(number)
                else {
                    return;
                };
                parts.clear();
                *missing = 1;
                let unit = translate::fetch(key, meta, number, shared);
                self.units.push_front(unit);
            }
        }
    }

    /// Moves the answers to the output that are next.
    fn settle(&mut self) {
        while let Some(Slot::Done(_)) = self.slots.front() {
            if let Some(Slot::Done(text)) = self.slots.pop_front() {
                self.out.extend_from_slice(&text);
            }
            self.first += 1;
        }
    }

    /// Its session is over; all its calls have had their outcomes. A further one may be used.
    pub fn session_closed(&mut self, reason: Closed) {
        if matches!(
            reason,
            Closed::DataLoss { .. } | Closed::TooFewCopies { .. }
        ) {
            self.lost = Some(reason.to_string());
        }
    }
}

/// Asks the store whether it has an address of its own, as a Redis has.
fn which_dialect() -> Call {
    Call {
        payload: preamble(Form::StoreAddress, Protocol::Resp2, 0)
            .to_vec()
            .into(),
        key_hash: 0,
        way: Way::Read,
    }
}

/// Everything is in memory, and came from our own server.
const LIMITS: ReplyLimits = ReplyLimits {
    line_bytes: usize::MAX,
    bulk_bytes: usize::MAX,
    reply_bytes: usize::MAX,
};

/// The replies to the units of a call. Where there are fewer than units, all get the reply to the whole, which is an error.
fn split(part: Part, replies: Replies, count: usize) -> Vec<Part> {
    let whole = match part {
        Ok(whole) => whole,
        Err(why) => return vec![Err(why); count],
    };
    let found: Option<Vec<Bytes>> = match replies {
        Replies::One => return vec![Ok(whole)],
        Replies::Elements => read::elements(&whole)
            .map(|all| all.into_iter().map(|one| whole.slice_ref(one)).collect()),
        Replies::Row => {
            let mut scanner = Scanner::new(LIMITS);
            let mut rest = whole.clone();
            let mut found = Vec::new();
            while let Ok(Some(length)) = scanner.poll(&rest) {
                found.push(rest.split_to(length));
            }
            Some(found)
        }
    };
    match found.filter(|found| found.len() == count) {
        Some(found) => found.into_iter().map(Ok).collect(),
        None => vec![Ok(whole); count],
    }
}
