//! Several bypasses of one client that travel as one message.
//!
//! Neighbouring reads make a pack, and so do neighbouring writes with the reads and transactions between
//! them. The store executes a pack of writes in order, in one step and with one record, but may end the pack
//! after any part. The parts that the store left out are sent again. Therefore no call is submitted after a pack until
//! the pack's outcome is known. Meanwhile the next pack is put together. A session has one bypass under way at a time,
//! so waiting costs no extra round trip.
//!
//! Invariants: a command is in at most one submitted pack that may still be executed. A reply that the front
//! itself gives between the commands of a pack keeps its place.

use bytes::Bytes;
use pmnet_resp::{Parser, Status, read, reply, scan};
use pmnet_wire::FRAGMENT_BYTES;
use pmnet_wire::command::{Commands, EXEC, Form, MULTI, PREAMBLE_LEN, preamble};

use super::calls::{Purpose, Session, head, outcome_reply};
use crate::client::busy::runs_code;
use crate::client::command::Command;
use crate::client::context::{Context, Later};
use crate::client::face::Pending;
use crate::client::replies::{Replies, Slot};
use crate::client::settings::Selected;
use crate::limits::REQUESTS;
use crate::table::{self, Action, Table};
use crate::upstream::{Call, Outcome, Submit, Time};

/// Maximum number of parts (commands or transactions) of a pack. This bound limits how long other requests wait for a
/// pack at the store, and how many replies travel together.
pub const PACK_PARTS_MAX: u32 = 256;
/// Maximum number of bytes of commands in one bypass. A bypass of a single command may be longer. A session has one
/// bypass under way at a time, so a smaller bound would cost more round trips to the store. A larger bound would save
/// nothing.
pub const PACK_BYTES_MAX: usize = 48 * FRAGMENT_BYTES;

/// Kinds of packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Kind {
    /// Reads only.
    Reads,
    /// Writes, and the reads and transactions between them.
    Writes,
}

impl Kind {
    pub(in crate::client) fn of(read_only: bool) -> Kind {
        if read_only { Kind::Reads } else { Kind::Writes }
    }
}

/// Whether other commands may travel with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Company {
    Any,
    Alone,
}

impl Company {
    pub(in crate::client) fn of(alone: bool) -> Company {
        if alone { Company::Alone } else { Company::Any }
    }
}

/// Bypasses that are to travel as one message.
pub(in crate::client) struct Pack {
    /// Preamble and parts; the form in the preamble is set when the pack is sent.
    payload: Vec<u8>,
    parts: u32,
    kind: Kind,
    /// Whether one of the commands runs code.
    code: bool,
    /// Kind of the commands in a transaction that is the pack's only part. The payload has this part without MULTI and
    /// EXEC.
    transaction: Option<Kind>,
    /// Whether more commands may be added.
    company: Company,
    /// Replies that the front itself gives, each with the number of parts before it.
    own: Vec<(u32, Vec<u8>)>,
    key_hash: u64,
    /// The time when the deadline of the first command began to run.
    begun: Time,
}

impl Pack {
    /// Whether a command of this kind and length may be added.
    pub(in crate::client) fn has_room(&self, kind: Kind, bytes: usize) -> bool {
        self.company == Company::Any
            && self.kind == kind
            && self.parts < PACK_PARTS_MAX
            && self.payload.len() + bytes <= PACK_BYTES_MAX
    }

    /// Whether one of the commands runs code.
    pub(in crate::client) fn runs_code(&self) -> bool {
        self.code
    }

    /// Whether the pack is a transaction that only reads.
    pub(in crate::client) fn is_transaction_of_reads(&self) -> bool {
        self.transaction == Some(Kind::Reads)
    }

    /// Encloses the pack's only part, if it is a transaction, in MULTI and EXEC, because another part is
    /// added.
    fn enclose(&mut self) {
        if self.transaction.take().is_some() {
            self.payload
                .splice(PREAMBLE_LEN..PREAMBLE_LEN, MULTI.iter().copied());
            self.payload.extend_from_slice(EXEC);
        }
    }

    fn form(&self) -> Form {
        match (self.transaction, self.parts) {
            (Some(_), _) => Form::Transaction,
            (None, 1) => Form::Single,
            (None, _) if self.kind == Kind::Reads => Form::Pipeline,
            (None, _) => Form::Pack,
        }
    }
}

/// The packs of a connection: the open pack, and the pack that is under way.
#[derive(Default)]
pub(in crate::client) struct Packs {
    /// The pack that is being put together. `None` between turns, unless the endpoint was busy or a pack is
    /// under way.
    open: Option<Pack>,
    /// A pack is under way, and a part of it may have to be sent again before any other command.
    is_out: bool,
    /// Number of consecutive commands, up to the last command, that joined packs although each could have been sent
    /// alone: reads, and writes that are acknowledged early.
    in_a_row: usize,
}

impl Packs {
    /// Whether no pack is being put together.
    pub(in crate::client) fn is_empty(&self) -> bool {
        self.open.is_none()
    }

    /// The pack that is being put together.
    pub(in crate::client) fn current(&self) -> Option<&Pack> {
        self.open.as_ref()
    }

    /// Whether the open pack is one of reads.
    pub(in crate::client) fn has_reads(&self) -> bool {
        self.current().is_some_and(|pack| pack.kind == Kind::Reads)
    }

    /// Whether a pack is under way that may have to be sent again in part.
    pub(in crate::client) fn is_out(&self) -> bool {
        self.is_out
    }

    /// Notes that a pack is under way that may have to be sent again in part.
    pub(in crate::client) fn went_out(&mut self) {
        self.is_out = true;
    }

    /// Notes that the pack that was under way has its outcome.
    pub(in crate::client) fn came_back(&mut self) {
        self.is_out = false;
    }

    /// Counts a command that joined a pack, although it could have been sent alone.
    pub(in crate::client) fn count_detour(&mut self) {
        self.in_a_row += 1;
    }

    /// Notes a command that can only travel in a pack.
    pub(in crate::client) fn count_own(&mut self) {
        self.in_a_row = 0;
    }

    /// Returns the number of consecutive commands, up to the last command, that joined packs although each could have
    /// been sent alone.
    pub(in crate::client) fn detours(&self) -> usize {
        self.in_a_row
    }

    /// Drops all packs.
    pub(in crate::client) fn clear(&mut self) {
        self.open = None;
        self.is_out = false;
    }
}

/// A command that is to join a pack.
#[derive(Clone, Copy)]
pub(in crate::client) struct Part<'a> {
    pub(in crate::client) frame: &'a [u8],
    pub(in crate::client) key_hash: u64,
    pub(in crate::client) kind: Kind,
    pub(in crate::client) company: Company,
    /// Whether the command runs code.
    pub(in crate::client) code: bool,
}

impl<'a> Part<'a> {
    /// Returns this command as a part.
    pub(in crate::client) fn of(command: &Command<'a>, kind: Kind, company: Company) -> Part<'a> {
        let facts = command.verdict.facts;
        Part {
            frame: command.frame,
            key_hash: facts.map_or(0, |facts| table::key_hash(facts, command.arguments)),
            kind,
            company,
            code: runs_code(facts),
        }
    }
}

/// A pack that was submitted.
#[derive(Debug)]
pub(in crate::client) struct Packed {
    payload: Bytes,
    parts: u32,
    /// Replies that the front itself gives between two parts, each with the number of parts before it.
    own: Vec<(u32, Vec<u8>)>,
}

impl Packed {
    /// Joins the replies of the first parts with the front's own replies between them.
    fn with_own<'a>(&self, replies: impl Iterator<Item = &'a [u8]>) -> Bytes {
        let mut own = self.own.iter().peekable();
        let mut out = Vec::new();
        for (at, reply) in (1..).zip(replies) {
            out.extend_from_slice(reply);
            if let Some((_, bytes)) = own.next_if(|(behind, _)| *behind == at) {
                out.extend_from_slice(bytes);
            }
        }
        out.into()
    }

    /// Returns the replies to all parts of a failed pack: the error, repeated for each part.
    pub(in crate::client) fn failed(&self, error: &Bytes) -> Bytes {
        let parts = usize::try_from(self.parts).unwrap_or(0);
        self.with_own(std::iter::repeat_n(&error[..], parts))
    }

    /// Whether the first part is a single command for which `reads` returns true.
    fn begins(&self, reads: &impl Fn(&[u8]) -> bool) -> bool {
        let pack = Commands::parse(&self.payload).ok();
        let first = pack.and_then(|pack| pack.units().next());
        first.is_some_and(|unit| unit.commands.form == Form::Single && reads(unit.resp))
    }

    /// Returns the calls that must be submitted after the first `done` parts have run. If the next part is a read, the
    /// read is a call of its own, and the rest follows.
    fn rest(&self, done: u32, reads: &impl Fn(&[u8]) -> bool) -> Vec<Slot> {
        let Ok(pack) = Commands::parse(&self.payload) else {
            return Vec::new();
        };
        let mut slots = Vec::new();
        let mut done = done;
        let skipped = usize::try_from(done).unwrap_or(usize::MAX);
        let mut units = pack.units().skip(skipped).peekable();
        let head = |form| preamble(form, pack.protocol, pack.database);
        let is_read = |resp: &[u8], form| form == Form::Single && reads(resp);
        if let Some(read) = units.next_if(|unit| is_read(unit.resp, unit.commands.form)) {
            let payload = [&head(Form::Single)[..], read.resp].concat().into();
            slots.push(Slot::Again {
                payload,
                purpose: Purpose::Bypass {
                    replies: 1,
                    again: None,
                    plain: true,
                },
                read_only: true,
            });
            done += 1;
            if let Some((_, own)) = self.own.iter().find(|(behind, _)| *behind == done) {
                slots.push(Slot::Ready(Bytes::copy_from_slice(own)));
            }
        }
        let parts = self.parts.saturating_sub(done);
        let Some(first) = units.peek().copied().filter(|_| parts > 0) else {
            return slots;
        };
        let (form, resp) = match parts {
            1 => (first.commands.form, first.commands.resp.to_vec()),
            _ => (
                Form::Pack,
                units.flat_map(|unit| unit.resp).copied().collect(),
            ),
        };
        let payload = Bytes::from([&head(form)[..], &resp].concat());
        let purpose = if form == Form::Pack {
            let behind = |(at, own): &(u32, Vec<u8>)| Some((at.checked_sub(done)?, own.clone()));
            Purpose::Pack(Packed {
                payload: payload.clone(),
                parts,
                own: self
                    .own
                    .iter()
                    .filter_map(behind)
                    .filter(|own| own.0 > 0)
                    .collect(),
            })
        } else {
            Purpose::one()
        };
        slots.push(Slot::Again {
            payload,
            purpose,
            read_only: false,
        });
        slots
    }
}

impl Packs {
    /// Puts a reply that the front itself gives after all outstanding replies. An open pack of writes takes
    /// the reply in.
    pub(in crate::client) fn reply(&mut self, replies: &mut Replies, bytes: Bytes) {
        match &mut self.open {
            Some(pack) if pack.kind == Kind::Writes => match pack.own.last_mut() {
                Some((behind, own)) if *behind == pack.parts => own.extend_from_slice(&bytes),
                _ => pack.own.push((pack.parts, bytes.to_vec())),
            },
            _ => replies.push(bytes),
        }
    }

    /// Whether the open pack must be sent before this part is added.
    pub(in crate::client) fn goes_before(&self, part: &Part<'_>) -> bool {
        let has_room = |pack: &Pack| pack.has_room(part.kind, part.frame.len());
        part.company == Company::Alone || !self.open.as_ref().is_some_and(has_room)
    }

    /// Adds a command, which must fit.
    pub(in crate::client) fn put(&mut self, part: Part<'_>, cx: &mut Context<'_>) {
        cx.shared.counters.bypassed_reads += u64::from(part.kind == Kind::Reads);
        let pack = self.take_in(part, cx.pending.times.begun(), cx.selected);
        pack.payload.extend_from_slice(part.frame);
        pack.parts += 1;
        pack.code |= part.code;
        if pack.key_hash != part.key_hash {
            pack.key_hash = 0;
        }
    }

    /// Returns the pack that takes this part.
    fn take_in(&mut self, part: Part<'_>, begun: Time, selected: Selected) -> &mut Pack {
        let pack = self.open.get_or_insert_with(|| {
            let length = FRAGMENT_BYTES.max(PREAMBLE_LEN + part.frame.len());
            let mut payload = Vec::with_capacity(length);
            payload.extend_from_slice(&head(Form::Single, selected));
            Pack {
                payload,
                parts: 0,
                kind: part.kind,
                code: false,
                transaction: None,
                company: part.company,
                own: Vec::new(),
                key_hash: part.key_hash,
                begun,
            }
        });
        pack.enclose();
        pack
    }

    /// Adds a transaction of these commands to the pack. [`Packs::has_room_for_transaction`] must return true.
    pub(in crate::client) fn put_transaction(
        &mut self,
        commands: &[u8],
        kind: Kind,
        begun: Time,
        selected: Selected,
    ) {
        let part = Part {
            frame: commands,
            key_hash: 0,
            kind: Kind::Writes,
            company: Company::Any,
            code: false,
        };
        let pack = self.take_in(part, begun, selected);
        if pack.parts == 0 {
            pack.transaction = Some(kind);
            pack.payload.extend_from_slice(commands);
        } else {
            for bytes in [MULTI, commands, EXEC] {
                pack.payload.extend_from_slice(bytes);
            }
        }
        pack.parts += 1;
        pack.key_hash = 0;
    }

    /// Whether a transaction of this many bytes fits into the open pack. If no pack is open, returns whether other
    /// commands could travel with the transaction.
    pub(in crate::client) fn has_room_for_transaction(&self, bytes: usize) -> bool {
        let whole = bytes + 2 * (MULTI.len() + EXEC.len());
        match &self.open {
            Some(pack) => !pack.code && pack.has_room(Kind::Writes, whole),
            None => PREAMBLE_LEN + whole <= PACK_BYTES_MAX,
        }
    }

    /// Sends the open pack, if there is one.
    ///
    /// # Errors
    /// [`Later`]: the pack could not be sent now, or no later call may be submitted.
    pub(in crate::client) fn send(
        &mut self,
        session: &mut Session,
        cx: &mut Context<'_>,
    ) -> Result<(), Later> {
        if self.open.is_some() && self.is_out {
            return Err(Later::Outstanding);
        }
        let Some(mut pack) = self.open.take() else {
            return Ok(());
        };
        let form = pack.form();
        pack.payload[..PREAMBLE_LEN].copy_from_slice(&head(form, cx.selected));
        let bytes = pack.payload.len();
        let payload = Bytes::from(pack.payload);
        let read_only = pack.transaction.unwrap_or(pack.kind) == Kind::Reads;
        let call = Call {
            payload: &payload,
            key_hash: pack.key_hash,
            how: Submit::Bypass { read_only },
            // The pack may have waited for the previous pack.
            deadline: cx.shared.deadline(cx.pending.times.since(pack.begun)),
        };
        let submitted = match session.submit(call, cx.up, cx.shared.now) {
            Ok(submitted) => submitted,
            Err(later) => {
                // The packed commands have no slots yet, so the pack must be sent before any other call.
                self.open = Some(Pack {
                    payload: payload.into(),
                    company: Company::Alone,
                    ..pack
                });
                return Err(later);
            }
        };
        let last = pack.own.pop_if(|(behind, _)| *behind == pack.parts);
        if form == Form::Pack {
            self.is_out = submitted.is_ok();
            let packed = Packed {
                payload,
                parts: pack.parts,
                own: pack.own,
            };
            cx.pending.expect(submitted, Purpose::Pack(packed), bytes);
        } else if form == Form::Pipeline {
            let purpose = Purpose::Bypass {
                replies: pack.parts,
                again: Some(payload),
                plain: !pack.code,
            };
            cx.pending.expect_first(submitted, purpose, bytes);
        } else {
            let purpose = Purpose::Bypass {
                replies: 1,
                // A pack of one read cannot be divided.
                again: None,
                plain: pack.kind == Kind::Reads && !pack.code,
            };
            cx.pending.expect(submitted, purpose, bytes);
        }
        if let Some((_, own)) = last {
            cx.pending.replies.push(own.into());
        }
        if cx.pending.hold.is_for_outcome() {
            return Err(Later::Outstanding);
        }
        Ok(())
    }

    /// Gives this error as the reply to each command of the open pack.
    pub(in crate::client) fn fail(&mut self, replies: &mut Replies, error: &Bytes) {
        if let Some(pack) = self.open.take() {
            let unsent = Packed {
                payload: Bytes::new(),
                parts: pack.parts,
                own: pack.own,
            };
            replies.push(unsent.failed(error));
        }
    }
}

impl Packed {
    /// Takes the outcome of the pack at `index`. Parts that the store left out will be submitted again,
    /// before any other call.
    pub(in crate::client) fn done(
        &self,
        index: usize,
        outcome: Outcome,
        pending: &mut Pending,
        table: &Table,
    ) {
        let replies = &mut pending.replies;
        let reply = match outcome_reply(outcome) {
            Ok(reply) => reply,
            Err(error) => return replies.fill(index, self.failed(&error)),
        };
        let is_read = |frame: &[u8]| is_read(frame, table);
        let done = read::elements(&reply).and_then(|parts| {
            let count = u32::try_from(parts.len()).ok()?;
            // The store may leave out the first part only if this part is a read.
            let least = u32::from(!self.begins(&is_read));
            (least..=self.parts)
                .contains(&count)
                .then_some((parts, count))
        });
        let Some((parts, count)) = done else {
            let error = if reply.starts_with(b"-") && scan::count(&reply) == Some(1) {
                reply
            } else {
                reply::error("ERR pmnet: the store gave another number of replies than asked for")
            };
            return replies.fill(index, self.failed(&error));
        };
        let bytes = if self.own.is_empty() {
            let length: usize = parts.iter().map(|part| part.len()).sum();
            reply.slice(reply.len() - length..)
        } else {
            self.with_own(parts.into_iter())
        };
        replies.fill(index, bytes);
        let rest = self.rest(count, &is_read);
        if !rest.is_empty() {
            replies.put_behind(index, rest);
            pending.hold.for_repeats();
        }
    }
}

/// Whether this command only reads.
fn is_read(frame: &[u8], table: &Table) -> bool {
    let mut parser = Parser::new(REQUESTS);
    let whole = parser.poll(frame) == Ok(Status::Complete);
    whole
        && matches!(
            table.verdict(&parser.arguments(frame)).action,
            Action::Bypass {
                read_only: true,
                ..
            }
        )
}
