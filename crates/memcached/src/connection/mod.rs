//! One client without its socket. A connection takes bytes, makes calls, and returns answers in the order of the
//! commands.
//!
//! Purpose: commands become *units*, each of which is one command for the store. Units become calls. A plain `set` is a
//! call of its own. Other calls may be submitted before it is answered. A `set` is submitted only after the store has
//! said that it serves this front ([`Store`]). All other units are sent as bypasses. The session sends nothing after a
//! bypass until the bypass is answered (`docs/spec/protocol.md` §3). So the connection keeps later units until this
//! answer, and then sends several of them in one call if possible. Invariants: units are submitted in the order of
//! their commands. Each slot gets one answer. The memory is bounded ([`SLOTS_MAX`], [`FLIGHT_BYTES_MAX`],
//! [`UNREAD_BYTES_MAX`]). At a bound, no further command is taken, and no further unit is submitted. Each reply becomes
//! text when it comes, and only the text is kept.

mod answer;
mod shared;
mod translate;
mod unit;

use std::collections::VecDeque;

use pmnet_client::{CallId, Closed, Outcome, Refused};
use pmnet_resp::{read, reply};

use crate::request::{Parser, Request, Step};
use answer::{Answer, Part, Rendered};
use shared::Question;
pub use shared::{Dialect, Shared, Store};
use translate::Plan;
pub use unit::{Call, Way};
use unit::{UNITS_MAX, Unit};

/// Maximum number of commands of a client that are not answered yet.
pub const SLOTS_MAX: usize = 256;
/// Maximum number of bytes of a client's commands that are under way. A single command may be longer.
pub const FLIGHT_BYTES_MAX: usize = 4 << 20;
/// Maximum number of bytes of answers that are kept for a client. Above this bound, no further units are submitted. The
/// answers to one call may exceed the bound.
pub const UNREAD_BYTES_MAX: usize = 1 << 20;
/// Number of bytes that are received beyond the command that is being parsed.
const AHEAD_BYTES: usize = 64 * 1024;

/// The place of a command among the answers: the text of its answer so far, and its state.
#[derive(Debug)]
struct Slot {
    text: Vec<u8>,
    open: Option<Open>,
}

/// A command that waits for replies of the store.
#[derive(Debug)]
struct Open {
    answer: Answer,
    /// Number of replies that have not come.
    missing: usize,
    /// Number of bytes of the command's data in memory.
    bytes: usize,
}

/// The call whose outcome is awaited.
#[derive(Debug)]
enum Asked {
    /// A question whether the store serves this front, and the round in which it was asked.
    Store(CallId, Question, u64),
    /// A call of units: their slots, and the form of its reply.
    Units(CallId, Vec<u64>, Replies),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replies {
    /// The call has one unit, so its reply is the reply to this unit.
    One,
    /// The reply is one array that has the replies to all units.
    Elements,
    /// The replies to the units follow one another, without an array around them.
    Row,
}

/// A client.
#[derive(Debug)]
pub struct Connection {
    parser: Parser,
    input: Vec<u8>,
    /// Number of bytes of `input` that were handled.
    taken: usize,
    /// Whether the parser waits for more bytes.
    starved: bool,
    /// Whether the client has closed its sending side.
    eof: bool,
    /// Whether no further command is taken.
    ends: bool,
    /// `Some`: acknowledged updates were lost. The next command gets this error, and the connection ends after it.
    lost: Option<String>,
    slots: VecDeque<Slot>,
    /// Number of the first slot.
    first: u64,
    units: VecDeque<Unit>,
    /// Updates that are under way, with their slots.
    updates: VecDeque<(CallId, u64)>,
    asked: Option<Asked>,
    /// Whether the first unit waits until there is space for its answer.
    held: bool,
    /// Number of bytes of commands that are not answered.
    flight: usize,
    /// Answers to be written. The answers include the known text of the first slot.
    out: Vec<u8>,
    written: usize,
    /// Number of bytes of text in the slots that waits for earlier answers.
    kept: usize,
    /// Number of bytes of answers that may still follow; `None`: there is no limit. Text beyond this limit is
    /// discarded.
    room: Option<usize>,
}

/// Submits calls. The calls must take effect in the order of submission.
pub type Submit<'a> = dyn FnMut(Call) -> Result<CallId, Refused> + 'a;

impl Connection {
    /// Makes the state of a new client.
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
            held: false,
            flight: 0,
            out: Vec::new(),
            written: 0,
            kept: 0,
            room: None,
        }
    }

    /// Makes the state for a request over UDP: a client that sends only these bytes. The client gets the first `room`
    /// bytes of its answers. An unknown command gets no answer and ends the request.
    #[must_use]
    pub fn of_one_request(shared: &Shared, said: &[u8], room: usize) -> Connection {
        let mut connection = Connection::new(shared);
        connection.receive(said);
        connection.receive_eof();
        connection.room = Some(room);
        connection
    }

    /// Takes bytes from the client.
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

    /// Notes that the client has closed its sending side.
    pub fn receive_eof(&mut self) {
        self.eof = true;
    }

    /// Whether more input may be received.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        !self.ends && !self.eof && (self.starved || self.input.len() - self.taken < AHEAD_BYTES)
    }

    /// Whether the connection ends, and all answers were made and written.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        (self.ends || (self.eof && self.starved))
            && self.slots.is_empty()
            && self.unwritten().is_empty()
    }

    /// Whether received commands can be taken, or further units submitted, now that answers were written.
    #[must_use]
    pub fn has_more(&self) -> bool {
        let waits = |unit| self.must_wait(unit);
        !self.starved && self.may_take()
            || self.held && self.units.front().is_some_and(|unit| !waits(unit))
    }

    /// Whether a command is incomplete.
    #[must_use]
    pub fn is_within(&self) -> bool {
        self.parser.is_within() || self.taken < self.input.len()
    }

    /// Returns the answers to be written.
    #[must_use]
    pub fn unwritten(&self) -> &[u8] {
        &self.out[self.written..]
    }

    /// Notes that `count` bytes of the answers were written.
    pub fn wrote(&mut self, count: usize) {
        self.written += count;
        // If written bytes were never removed, those of a client that always leaves some bytes unread would stay in
        // memory.
        if self.written >= self.out.len() / 2 {
            self.out.drain(..self.written);
            self.written = 0;
        }
        if self.out.is_empty() {
            self.out.shrink_to(AHEAD_BYTES);
        }
    }

    /// Returns the number of bytes of answers in memory: those that the client has not read, and those that wait for
    /// earlier answers.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.unwritten().len() + self.kept
    }

    /// Takes commands, and submits as many units as possible.
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
            // This frees the buffer of a single large item, even if the client then sends nothing.
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
            Plan::Said(text) => self.push_said(text),
            Plan::Unknown if self.room.is_none() => self.push_said(b"ERROR\r\n".to_vec()),
            Plan::Unknown => {
                // Each answer begins with a word that is not a command. If such a word were a command, two fronts could
                // answer each other without end. An attacker would only have to send a request to one of them with the
                // address of the other front.
                self.taken = self.input.len();
                self.ends = true;
                shared.counters.datagrams_dropped += 1;
            }
            Plan::Ends(text) => {
                self.push_said(text);
                self.ends = true;
            }
            Plan::Asks(answer, units) => {
                let bytes = units.iter().map(Unit::bytes).sum();
                self.flight += bytes;
                let open = Open {
                    answer,
                    missing: units.len(),
                    bytes,
                };
                self.slots.push_back(Slot {
                    text: Vec::new(),
                    open: Some(open),
                });
                self.units.extend(units);
            }
        }
    }

    /// Returns the number of bytes of answers that may still be added.
    fn room(&self) -> usize {
        self.room
            .map_or(usize::MAX, |room| room.saturating_sub(self.kept))
    }

    fn push_said(&mut self, mut text: Vec<u8>) {
        text.truncate(self.room());
        self.kept += text.len();
        self.slots.push_back(Slot { text, open: None });
    }

    /// Whether the next unit must wait until its client has read more, or until other commands are answered. The first
    /// slot waits only for its client, because the texts of the other slots are written after its text.
    fn must_wait(&self, unit: &Unit) -> bool {
        let kept = if unit.slot == self.first {
            self.unwritten().len()
        } else {
            self.kept()
        };
        unit.is_answered_by_store() && kept >= UNREAD_BYTES_MAX
    }

    /// Drops reads whose answers the client would never see.
    fn leave_out(&mut self, shared: &mut Shared) -> bool {
        let mut left_out = false;
        while let Some(unit) = self.units.front().filter(|unit| unit.is_look()) {
            let number = unit.slot;
            let has_failed = |slot: &mut Slot| {
                let open = slot.open.as_ref();
                open.is_some_and(|open| open.answer.has_failed())
            };
            if self.room() > 0 && !self.slot(number).is_some_and(has_failed) {
                break;
            }
            self.units.pop_front();
            self.part(number, Err("pmnet: not asked for".into()), shared);
            left_out = true;
        }
        left_out
    }

    fn submit_units(&mut self, shared: &mut Shared, submit: &mut Submit<'_>) -> bool {
        let mut submitted = self.leave_out(shared);
        self.held = false;
        while self.asked.is_none()
            && let Some(first) = self.units.front()
        {
            if self.must_wait(first) {
                self.held = true;
                break;
            }
            let count = unit::together(self.units.iter(), shared.item_max).max(1);
            let units: Vec<&Unit> = self.units.iter().take(count).collect();
            let needs_store = units.iter().any(|unit| unit.needs_store());
            let dialect = match shared.store() {
                Store::Serves(dialect) => *dialect,
                // These units have the same form in each dialect of the store.
                _ if !needs_store => Dialect::Redis,
                Store::Refuses(why, _) => {
                    let why = why.clone();
                    return self.refuse(count, &why, shared);
                }
                Store::Unknown => {
                    let question = (Question::Dialect, unit::which_dialect());
                    return self.ask_store(question, count, shared, submit) || submitted;
                }
                Store::Is(_) => {
                    let call = unit::look(&first.key, shared.database);
                    let question = (Question::Database, call);
                    return self.ask_store(question, count, shared, submit) || submitted;
                }
            };
            let Some(call) = unit::call(&units, shared, dialect) else {
                return submitted;
            };
            let way = call.way;
            let id = match submit(call) {
                Ok(id) => id,
                Err(Refused::Busy) => return submitted,
                Err(why) => return self.refuse(count, &format!("pmnet: {why}"), shared),
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

    /// Asks the store before the first units are submitted. Returns whether anything changed.
    fn ask_store(
        &mut self,
        (question, call): (Question, Call),
        count: usize,
        shared: &mut Shared,
        submit: &mut Submit<'_>,
    ) -> bool {
        match submit(call) {
            Ok(id) => {
                self.asked = Some(Asked::Store(id, question, shared.round));
                true
            }
            Err(Refused::Busy) => false,
            Err(why) => self.refuse(count, &format!("pmnet: {why}"), shared),
        }
    }

    /// Answers the first `count` units with an error, because they cannot be submitted.
    fn refuse(&mut self, count: usize, why: &str, shared: &mut Shared) -> bool {
        let slots: Vec<u64> = self.units.drain(..count).map(|unit| unit.slot).collect();
        for slot in slots {
            self.part(slot, Err(why.to_owned()), shared);
        }
        true
    }

    fn slot(&mut self, slot: u64) -> Option<&mut Slot> {
        let at = usize::try_from(slot.checked_sub(self.first)?).ok()?;
        self.slots.get_mut(at)
    }

    /// Adds one more reply to a slot. Returns a unit that the command needs in addition. This unit must precede all
    /// other units.
    fn part(&mut self, number: u64, part: Part, shared: &mut Shared) -> Option<Unit> {
        let room = self.room();
        let slot = self.slot(number)?;
        let open = slot.open.as_mut()?;
        open.missing = open.missing.saturating_sub(1);
        let before = slot.text.len();
        let rendered = open
            .answer
            .render(&part, open.missing == 0, &mut slot.text, shared);
        if rendered == Rendered::Again
            && let Answer::Meta { key, meta } = &open.answer
        {
            open.missing = 1;
            return Some(translate::fetch(key, meta, number, shared));
        }
        let bytes = open.bytes;
        let is_done = open.missing == 0;
        if is_done {
            slot.open = None;
        }
        slot.text.truncate(before.saturating_add(room));
        self.kept += slot.text.len() - before;
        if is_done {
            self.flight -= bytes;
        }
        None
    }

    /// Takes the outcome of a call. [`Connection::advance`] must be called afterwards.
    pub fn done(&mut self, call: CallId, outcome: Outcome, shared: &mut Shared) {
        if let Some(Asked::Store(id, question, round)) = self.asked
            && id == call
        {
            self.asked = None;
            return self.store_asked(question, round, outcome, shared);
        }
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
                self.part(slot, part, shared);
            }
            return;
        }
        match self.asked.take() {
            Some(Asked::Units(id, slots, replies)) if id == call => {
                let mut again = Vec::new();
                for (slot, part) in slots.iter().zip(split(part, replies, slots.len())) {
                    again.extend(self.part(*slot, part, shared));
                    // The answer is moved to the output at once, because the text of the next answer may be as large.
                    self.settle();
                }
                // The loop runs in reverse order, so that the repeated units keep their order before all other units.
                for unit in again.into_iter().rev() {
                    self.units.push_front(unit);
                }
            }
            other => self.asked = other,
        }
    }

    /// Takes the outcome of a question to the store.
    fn store_asked(
        &mut self,
        question: Question,
        round: u64,
        outcome: Outcome,
        shared: &mut Shared,
    ) {
        let why = match outcome {
            // The answer may be from a store that no longer serves this front, so the question is repeated.
            Outcome::Reply(_) if round != shared.round => return,
            Outcome::Reply(reply) => return shared.store_answers(question, &reply),
            Outcome::Failed(why) => format!("pmnet: {why}"),
            Outcome::Committed { .. } | Outcome::Unknown => NO_ANSWER.to_owned(),
        };
        // The next units have waited as long as the first unit.
        let waited = self.units.iter().take_while(|unit| unit.needs_store());
        let count = waited.count();
        self.refuse(count, &why, shared);
    }

    /// Moves the next answers, in order, to the output.
    fn settle(&mut self) {
        while let Some(slot) = self.slots.front_mut() {
            let text = std::mem::take(&mut slot.text);
            let is_open = slot.open.is_some();
            self.kept -= text.len();
            self.room = self.room.map(|room| room.saturating_sub(text.len()));
            if self.out.is_empty() && text.len() > AHEAD_BYTES {
                self.out = text;
            } else {
                self.out.extend_from_slice(&text);
            }
            if is_open {
                return;
            }
            self.slots.pop_front();
            self.first += 1;
        }
    }

    /// Notes that the session was closed. All its calls have had their outcomes. Another session may be used from now
    /// on.
    pub fn session_closed(&mut self, reason: Closed) {
        if matches!(
            reason,
            Closed::DataLoss { .. } | Closed::TooFewCopies { .. }
        ) {
            self.lost = Some(reason.to_string());
        }
    }
}

/// Reason in an error: why nothing was acknowledged.
const NO_ANSWER: &str = "pmnet: the store has not answered whether it serves memcached clients (deadline passed); nothing was done";

/// Returns the replies to the units of a call. If there are fewer replies than units, the reply is an error, which all
/// units get.
fn split(part: Part, replies: Replies, count: usize) -> Vec<Part> {
    let whole = match part {
        Ok(whole) => whole,
        Err(why) => return vec![Err(why); count],
    };
    let found = match replies {
        Replies::One => return vec![Ok(whole)],
        Replies::Elements => read::elements(&whole),
        Replies::Row => Some(read::row(&whole)),
    };
    match found.filter(|found| found.len() == count) {
        Some(found) => found
            .into_iter()
            .map(|one| Ok(whole.slice_ref(one)))
            .collect(),
        None => vec![Ok(whole.clone()); count],
    }
}
