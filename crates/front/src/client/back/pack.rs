//! Bypasses of one client that travel as one.
//!
//! Neighbouring reads make a pack, and so do neighbouring writes with the reads and transactions between them. The store executes a
//! pack of writes in order, in one step and with one record, but may end it behind any of its parts; the rest is sent anew.
//! Therefore nothing is submitted behind a pack before its outcome is known. Meanwhile the next one is put together. A session has
//! one bypass under way at a time, so waiting costs no way.
//!
//! Invariants: a command is in at most one pack that has been submitted and may still be executed; what the front answers between
//! the commands of a pack stays in its place.

use bytes::Bytes;
use pmnet_resp::{Parser, Status, read, reply, scan};
use pmnet_wire::FRAGMENT_BYTES;
use pmnet_wire::command::{Commands, EXEC, Form, MULTI, PREAMBLE_LEN, preamble};

use super::calls::{Purpose, Submit, outcome_reply};
use crate::client::busy::runs_code;
use crate::client::gates::Command;
use crate::client::replies::Slot;
use crate::client::{Connection, Later, Shared};
use crate::limits::REQUESTS;
use crate::table::{self, Action};
use crate::upstream::{Outcome, Time, Upstream};

/// Most parts of a pack, which are commands or transactions. Bounds how long others wait for it at the store, and how many replies travel together.
pub const PACK_PARTS_MAX: u32 = 256;
/// Most bytes of commands that are packed into one bypass, unless it has only one: a session has one bypass under way at a time, so
/// a pack that is small costs a round trip to the store, and more than this many fragments add nothing to that.
pub const PACK_BYTES_MAX: usize = 48 * FRAGMENT_BYTES;

/// Contents of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Kind {
    /// Reads alone.
    Reads,
    /// Writes, and the reads and transactions between them.
    Writes,
}

impl Kind {
    pub(in crate::client) fn of(read_only: bool) -> Kind {
        if read_only { Kind::Reads } else { Kind::Writes }
    }
}

/// Whether others may travel with a command.
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

/// Bypasses that are to travel as one.
pub(in crate::client) struct Pack {
    /// Preamble and parts; the preamble's form is set at the end.
    payload: Vec<u8>,
    parts: u32,
    kind: Kind,
    /// One of them runs code.
    code: bool,
    /// Its only part is a transaction, without MULTI and EXEC; what that is made of.
    transaction: Option<Kind>,
    /// Whether more may be added.
    company: Company,
    /// What the front has answered behind so many parts.
    own: Vec<(u32, Vec<u8>)>,
    key_hash: u64,
    /// When the time of the first of them began.
    begun: Time,
}

impl Pack {
    /// Whether so many bytes more go with those that are in it.
    pub(in crate::client) fn has_room(&self, kind: Kind, bytes: usize) -> bool {
        self.company == Company::Any
            && self.kind == kind
            && self.parts < PACK_PARTS_MAX
            && self.payload.len() + bytes <= PACK_BYTES_MAX
    }

    /// Whether one of them runs code.
    pub(in crate::client) fn runs_code(&self) -> bool {
        self.code
    }

    /// Whether it is a transaction that only reads.
    pub(in crate::client) fn is_transaction_of_reads(&self) -> bool {
        self.transaction == Some(Kind::Reads)
    }

    /// Another part comes: a transaction that was alone is one of several.
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

/// The packs of a connection: the one that is put together, and the one that is under way.
#[derive(Default)]
pub(in crate::client) struct Packs {
    /// None between turns unless the endpoint was busy, or a pack is under way.
    open: Option<Pack>,
    /// A part of the one that is under way may have to be sent again, before anything else.
    is_out: bool,
    /// How many of the last commands in packs could have gone their own way: reads, and what is acknowledged early.
    in_a_row: usize,
}

impl Packs {
    /// Whether nothing is being put together.
    pub(in crate::client) fn is_empty(&self) -> bool {
        self.open.is_none()
    }

    /// The one that is being put together.
    pub(in crate::client) fn open(&self) -> Option<&Pack> {
        self.open.as_ref()
    }

    /// Whether it is one of reads.
    pub(in crate::client) fn has_reads(&self) -> bool {
        self.open().is_some_and(|pack| pack.kind == Kind::Reads)
    }

    /// Whether one is under way of which a part may have to be sent again.
    pub(in crate::client) fn is_out(&self) -> bool {
        self.is_out
    }

    /// One of which a part may have to be sent again is under way.
    pub(in crate::client) fn went_out(&mut self) {
        self.is_out = true;
    }

    /// That has its outcome.
    pub(in crate::client) fn came_back(&mut self) {
        self.is_out = false;
    }

    /// Counts a command that went into a pack, although it could have been sent by itself.
    pub(in crate::client) fn count_detour(&mut self) {
        self.in_a_row += 1;
    }

    /// A command went into a pack that has no other way.
    pub(in crate::client) fn count_own(&mut self) {
        self.in_a_row = 0;
    }

    /// How many of the last commands in packs could have gone their own way.
    pub(in crate::client) fn detours(&self) -> usize {
        self.in_a_row
    }

    /// Drops what is outstanding.
    pub(in crate::client) fn clear(&mut self) {
        self.open = None;
        self.is_out = false;
    }
}

/// A command that is to go into a pack.
#[derive(Clone, Copy)]
pub(in crate::client) struct Part<'a> {
    pub(in crate::client) frame: &'a [u8],
    pub(in crate::client) key_hash: u64,
    pub(in crate::client) kind: Kind,
    pub(in crate::client) company: Company,
}

/// A pack that was submitted.
#[derive(Debug)]
pub(in crate::client) struct Packed {
    payload: Bytes,
    parts: u32,
    /// What the front has answered behind so many parts, between two of them.
    own: Vec<(u32, Vec<u8>)>,
}

impl Packed {
    /// The replies of so many parts from the first one on, with the front's own behind them.
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

    /// The same error as the reply to each part.
    pub(in crate::client) fn failed(&self, error: &Bytes) -> Bytes {
        let parts = usize::try_from(self.parts).unwrap_or(0);
        self.with_own(std::iter::repeat_n(&error[..], parts))
    }

    /// Whether it begins with such a command.
    fn begins(&self, reads: &impl Fn(&[u8]) -> bool) -> bool {
        let pack = Commands::parse(&self.payload).ok();
        let first = pack.and_then(|pack| pack.units().next());
        first.is_some_and(|unit| unit.commands.form == Form::Single && reads(unit.resp))
    }

    /// What is to be submitted of this when so many parts of it have run, and how: first a read that goes alone.
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

impl Connection {
    /// Adds a bypass to the pack, after sending the pack if it does not fit.
    pub(in crate::client) fn pack_bypass<U: Upstream>(
        &mut self,
        command: &Command<'_>,
        kind: Kind,
        company: Company,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let facts = command.verdict.facts;
        let key_hash = facts.map_or(0, |facts| table::key_hash(facts, command.arguments));
        let part = Part {
            frame: command.frame,
            key_hash,
            kind,
            company,
        };
        self.pack_part(part, up, shared)?;
        if let Some(pack) = &mut self.packs.open {
            pack.code |= runs_code(facts);
        }
        Ok(())
    }

    /// Adds a command to the pack, after sending the pack if it does not fit.
    pub(in crate::client) fn pack_part<U: Upstream>(
        &mut self,
        part: Part<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let Part {
            frame,
            key_hash,
            kind,
            company,
        } = part;
        let has_room = |pack: &Pack| pack.has_room(kind, frame.len());
        if company == Company::Alone || !self.packs.open.as_ref().is_some_and(has_room) {
            self.begin_pack(up, shared)?;
        }
        shared.counters.bypassed_reads += u64::from(kind == Kind::Reads);
        let pack = self.open_pack(part);
        pack.payload.extend_from_slice(frame);
        pack.parts += 1;
        if pack.key_hash != key_hash {
            pack.key_hash = 0;
        }
        Ok(())
    }

    /// The pack that this part goes to.
    fn open_pack(&mut self, part: Part<'_>) -> &mut Pack {
        let (head, begun) = (self.preamble(Form::Single), self.times.begun());
        let pack = self.packs.open.get_or_insert_with(|| {
            let length = FRAGMENT_BYTES.max(PREAMBLE_LEN + part.frame.len());
            let mut payload = Vec::with_capacity(length);
            payload.extend_from_slice(&head);
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

    /// Adds a transaction, which `has_room_for_transaction`, to the pack: these commands.
    pub(in crate::client) fn pack_transaction(&mut self, commands: &[u8], kind: Kind) {
        let pack = self.open_pack(Part {
            frame: commands,
            key_hash: 0,
            kind: Kind::Writes,
            company: Company::Any,
        });
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

    /// Whether a transaction of so many bytes may go with the pack that is there. If there is none, whether others may go with it.
    pub(in crate::client) fn has_room_for_transaction(&self, bytes: usize) -> bool {
        let whole = bytes + 2 * (MULTI.len() + EXEC.len());
        match &self.packs.open {
            Some(pack) => !pack.code && pack.has_room(Kind::Writes, whole),
            None => PREAMBLE_LEN + whole <= PACK_BYTES_MAX,
        }
    }

    /// What comes now is only answered: a pack of writes takes the answer in. Sends what cannot.
    pub(in crate::client) fn make_room_for_reply<U: Upstream>(
        &mut self,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let reads = self.packs.has_reads();
        if reads || self.reads.batch.is_some() {
            self.flush_pack(up, shared)?;
        }
        Ok(())
    }

    /// Puts a reply behind all that are outstanding.
    pub(in crate::client) fn reply(&mut self, bytes: Bytes) {
        match &mut self.packs.open {
            Some(pack) if pack.kind == Kind::Writes => match pack.own.last_mut() {
                Some((behind, own)) if *behind == pack.parts => own.extend_from_slice(&bytes),
                _ => pack.own.push((pack.parts, bytes.to_vec())),
            },
            _ => self.replies.push(bytes),
        }
    }

    /// Sends the pack, if there is one, and gets the batch of reads answered that is behind it. Then anything may be submitted.
    ///
    /// # Errors
    /// [`Later`]: nothing may be submitted behind them now.
    pub(in crate::client) fn flush_pack<U: Upstream>(
        &mut self,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        self.begin_pack(up, shared)?;
        if self.packs.is_out {
            // What the store leaves out of it comes before all that is behind it.
            return Err(Later::Reads);
        }
        Ok(())
    }

    /// Sends the pack, if there is one, and gets the batch of reads answered that is behind it. Then the next pack may be put
    /// together.
    ///
    /// # Errors
    /// [`Later`]: they could not be sent now.
    pub(in crate::client) fn begin_pack<U: Upstream>(
        &mut self,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        self.send_pack(up, shared)?;
        if self.reads.batch.is_some() {
            self.advance_batch(up, shared)?;
            self.send_pack(up, shared)?;
        }
        Ok(())
    }

    fn send_pack<U: Upstream>(&mut self, up: &mut U, shared: &Shared) -> Result<(), Later> {
        if self.packs.open.is_some() && self.packs.is_out {
            return Err(Later::Reads);
        }
        let Some(mut pack) = self.packs.open.take() else {
            return Ok(());
        };
        let form = pack.form();
        let head = self.preamble(form);
        pack.payload[..PREAMBLE_LEN].copy_from_slice(&head);
        let bytes = pack.payload.len();
        let payload = Bytes::from(pack.payload);
        let read_only = pack.transaction.unwrap_or(pack.kind) == Kind::Reads;
        let how = Submit::Bypass { read_only };
        // It may have waited for the one before it.
        let begun = self.times.since(pack.begun);
        match self.submit(&payload, pack.key_hash, how, begun, up, shared) {
            Ok(submitted) => {
                let last = pack.own.pop_if(|(behind, _)| *behind == pack.parts);
                let purpose = if form == Form::Pack {
                    self.packs.is_out = submitted.is_ok();
                    Purpose::Pack(Packed {
                        payload,
                        parts: pack.parts,
                        own: pack.own,
                    })
                } else {
                    // A read that is alone cannot be taken apart.
                    let again = (form == Form::Pipeline).then_some(payload);
                    if again.is_some() && submitted.is_ok() {
                        self.hold.for_outcome();
                    }
                    Purpose::Bypass {
                        replies: if form == Form::Pipeline {
                            pack.parts
                        } else {
                            1
                        },
                        again,
                        plain: pack.kind == Kind::Reads && !pack.code,
                    }
                };
                self.expect(submitted, purpose, bytes);
                if let Some((_, own)) = last {
                    self.replies.push(own.into());
                }
                if self.hold.is_for_outcome() {
                    return Err(Later::Reads);
                }
                Ok(())
            }
            Err(later) => {
                // The replies to what is packed have no slot yet, so it must be the next thing sent.
                self.packs.open = Some(Pack {
                    payload: payload.into(),
                    company: Company::Alone,
                    ..pack
                });
                Err(later)
            }
        }
    }

    /// The pack at `index` has its outcome. What the store has left out is to be submitted again, before anything else.
    pub(in crate::client) fn pack_done(
        &mut self,
        index: usize,
        packed: Packed,
        outcome: Outcome,
        shared: &Shared,
    ) {
        let reply = match outcome_reply(outcome) {
            Ok(reply) => reply,
            Err(error) => return self.replies.fill(index, packed.failed(&error)),
        };
        let done = read::elements(&reply).and_then(|replies| {
            let count = u32::try_from(replies.len()).ok()?;
            // Only a read may be left out although it is the first.
            let least = u32::from(!packed.begins(&|frame| is_read(frame, shared)));
            (least..=packed.parts)
                .contains(&count)
                .then_some((replies, count))
        });
        let Some((replies, count)) = done else {
            let error = if reply.starts_with(b"-") && scan::count(&reply) == Some(1) {
                reply
            } else {
                reply::error("ERR pmnet: the store gave another number of replies than asked for")
            };
            return self.replies.fill(index, packed.failed(&error));
        };
        let bytes = if packed.own.is_empty() {
            let length: usize = replies.iter().map(|reply| reply.len()).sum();
            reply.slice(reply.len() - length..)
        } else {
            packed.with_own(replies.into_iter())
        };
        self.replies.fill(index, bytes);
        let rest = packed.rest(count, &|frame| is_read(frame, shared));
        if !rest.is_empty() {
            self.replies.put_behind(index, rest);
            self.hold.for_repeats();
        }
    }

    /// Gives this error to what has not been submitted, or only in part.
    pub(in crate::client) fn fail_unsent(&mut self, error: &Bytes) {
        for index in 0..self.replies.slots.len() {
            if let Slot::Again { purpose, .. } = &self.replies.slots[index] {
                let failed = purpose.failed(error);
                self.replies.fill(index, failed);
            }
        }
        if let Some(pack) = self.packs.open.take() {
            let unsent = Packed {
                payload: Bytes::new(),
                parts: pack.parts,
                own: pack.own,
            };
            self.replies.push(unsent.failed(error));
        }
    }
}

/// Whether this command only reads.
fn is_read(frame: &[u8], shared: &Shared) -> bool {
    let mut parser = Parser::new(REQUESTS);
    let whole = parser.poll(frame) == Ok(Status::Complete);
    whole
        && matches!(
            shared.table.verdict(&parser.arguments(frame)).action,
            Action::Bypass {
                read_only: true,
                ..
            }
        )
}
