//! Transactions: many changes that take effect in one durable step (`docs/spec/packet-store.md` §4, §5).
//!
//! Changes are stored in free space, and the holder of the transaction sees them at once. Before the commit the changes
//! have no effect on the medium, so a dropped transaction is undone without any write to the medium.

use std::ops::Range;

use pmnet_log::Media;
use rustc_hash::FxHashSet;

use crate::error::Error;
use crate::frames::{NONE, Place, Room};
use crate::geometry::{index, to_u64, whole_lines};
use crate::line::{Form, KEY_BYTES_MAX, Line, VALUE_BYTES_MAX, alive, dead, dead_word};
use crate::prefix::{Prefix, joined};
use crate::record::{Meta, Record};
use crate::store::{PacketStore, Undo, born};

/// A record with more bytes has frames of its own (a large record). The frames of a large record are never packed, and
/// less than a ninth of them is unused. In a full store, such a record can be overwritten and moved without moving
/// other records.
const LARGE_BYTES: usize = 16 << 10;

impl Line {
    /// Returns whether the record of this line has frames of its own.
    pub(crate) fn is_large(&self) -> bool {
        self.total() > LARGE_BYTES
    }
}

/// Changes that become durable together or not at all. Dropping the value undoes the changes.
pub struct Transaction<'s, M: Media> {
    pub(crate) store: &'s mut PacketStore<M>,
}

impl<M: Media> Drop for Transaction<'_, M> {
    fn drop(&mut self) {
        self.store.abort();
    }
}

/// A record in a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InPlace {
    /// The record's key, as a range of the payload.
    pub key: Range<usize>,
    /// The record's value, as a range of the payload, after the key.
    pub value: Range<usize>,
    /// Properties that are stored with the record.
    pub meta: Meta,
}

/// A packet in a lent frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Number of the frame.
    pub frame: u32,
    /// Range of the payload in its frame.
    pub payload: Range<usize>,
    /// CRC32C of the payload, which its sender computed and the receiver checked.
    pub crc: u32,
}

impl Packet {
    /// Returns whether the payload is inside a frame of this many bytes, and contains all records. There must be at
    /// least one record.
    pub(crate) fn fits(&self, records: &[InPlace], frame_len: usize) -> bool {
        let fits = |record: &InPlace| {
            record.key.start <= record.key.end
                && record.key.end <= record.value.start
                && record.value.start <= record.value.end
                && record.value.end <= self.payload.len()
        };
        self.payload.start <= self.payload.end
            && self.payload.end <= frame_len
            && !records.is_empty()
            && records.iter().all(fits)
    }
}

impl<M: Media> Transaction<'_, M> {
    /// Returns the record of a key like [`PacketStore::get`].
    ///
    /// # Errors
    /// The errors of [`PacketStore::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Record<'_, M>>, Error> {
        self.store.get(key)
    }

    /// Returns the store with the changes of this transaction.
    #[must_use]
    pub fn store(&self) -> &PacketStore<M> {
        self.store
    }

    /// Writes a record by copying key and value. An existing record of the key is replaced.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::TooLong`]: nothing has changed. [`Error::Media`]: an earlier persist failed.
    pub fn put(&mut self, key: &[u8], value: &[u8], meta: Meta, room: Room) -> Result<(), Error> {
        self.store.put(key, value, meta, room)
    }

    /// Keeps a packet in its lent frame, and writes the records in it. From now on the frame belongs to the store. If
    /// the transaction is undone, the frame becomes free.
    ///
    /// # Errors
    /// [`Error::Full`]: there are too few lines. [`Error::TooLong`]: a range is not inside the payload, a value stands
    /// before its key, or there is no record. Nothing has changed, and the frame is still lent.
    ///
    /// # Panics
    /// If the frame is not lent.
    pub fn put_in_place(
        &mut self,
        packet: &Packet,
        records: &[InPlace],
        room: Room,
    ) -> Result<(), Error> {
        self.store
            .put_in_place(packet, Prefix::NONE, records, room, false)
    }

    /// Removes a record. Returns whether the record existed.
    ///
    /// # Errors
    /// [`Error::Media`]: an earlier persist failed. A removal always finds space.
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.store.remove(key)
    }

    /// States the order of the log up to which the store has applied updates, from this commit on. A transaction
    /// without any other change is not committed.
    pub fn set_order(&mut self, order: u64) {
        self.store.next.order = order;
    }

    /// Makes all changes durable, in one atomic step.
    ///
    /// # Errors
    /// [`Error::Media`]. It is then unknown whether the transaction is durable. The caller must not rely on the store's
    /// content until the store is opened again.
    pub fn commit(self) -> Result<(), Error> {
        self.store.commit_now()
    }
}

impl<M: Media> PacketStore<M> {
    /// Begins a transaction.
    pub fn transaction(&mut self) -> Transaction<'_, M> {
        Transaction { store: self }
    }

    pub(crate) fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        meta: Meta,
        room: Room,
    ) -> Result<(), Error> {
        self.usable()?;
        if key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX {
            return Err(Error::TooLong);
        }
        let total = key.len() + value.len();
        let frames = self.frames.needed(total);
        self.look_for_room(frames + 1, frames, room)?;
        let large = total > LARGE_BYTES;
        let frame_len = self.geometry.frame_len();
        let slot = self.take_line();
        let place = match large {
            true => self.frames.place_apart(frame_len),
            false => self.frames.place_first(total, key.len().min(frame_len)),
        };
        let mut line = self.new_line(&meta, key.len(), value.len());
        self.store_part(&mut line, slot, place, key, value, 0);
        let mut at = place.len;
        let mut pieces = Vec::new();
        while at < total {
            let len = frame_len.min(total - at);
            let place = match large {
                true => self.frames.place_apart(len),
                false => self.frames.place_piece(len),
            };
            let piece = self.take_line();
            let number = u32::try_from(pieces.len()).expect("few enough for 2^26 bytes");
            let mut line = Line {
                form: Form::Piece,
                order: Line::piece_of(slot, number),
                ..self.new_line(&Meta::default(), 0, 0)
            };
            self.store_part(&mut line, piece, place, key, value, at);
            pieces.push(piece);
            at += len;
        }
        if !pieces.is_empty() {
            self.pieces.insert(slot, pieces.into());
        }
        self.link(key, slot);
        Ok(())
    }

    /// Keeps a packet, and writes the records in it. `logged`: the frame belongs to the log in the same region, and is
    /// durable in the log. The log keeps the frame, too, until it releases it. The key of each record is `prefix`,
    /// followed by the key's bytes in the packet.
    pub(crate) fn put_in_place(
        &mut self,
        packet: &Packet,
        prefix: Prefix,
        records: &[InPlace],
        room: Room,
        logged: bool,
    ) -> Result<(), Error> {
        self.usable()?;
        assert!(
            self.frames.is_lent(packet.frame) || logged && self.frames.is_left(packet.frame),
            "only what is lent is kept"
        );
        if !packet.fits(records, self.geometry.frame_len()) {
            return Err(Error::TooLong);
        }
        self.look_for_room(records.len(), usize::from(logged), room)?;
        if logged {
            self.frames.take_logged(packet.frame);
        } else {
            self.frames.take_back(packet.frame, true);
        }
        let narrow = |at: usize| u16::try_from(at).expect("at most a frame");
        let offset = self.geometry.frame_offset(packet.frame) + packet.payload.start;
        if !logged {
            self.mark(whole_lines(offset..offset + packet.payload.len()));
        }
        let form = match records {
            [_] => Form::Packet,
            _ => Form::Shared,
        };
        for record in records {
            let slot = self.take_line();
            let line = Line {
                form,
                frame: packet.frame,
                start: narrow(packet.payload.start),
                len: narrow(packet.payload.len()),
                key_at: narrow(record.key.start),
                gap: narrow(record.value.start - record.key.end),
                prefix,
                payload_crc: packet.crc,
                ..self.new_line(&record.meta, record.key.len(), record.value.len())
            };
            let start = offset + record.key.start;
            let mut key = std::mem::take(&mut self.key);
            key.clear();
            key.extend_from_slice(prefix.bytes());
            key.extend_from_slice(self.media.part(start..start + record.key.len()));
            self.store_line(&line, slot, &key[prefix.bytes().len()..]);
            self.link(&key, slot);
            self.key = key;
        }
        Ok(())
    }

    /// Copies a packet's payload unchanged into another frame.
    pub(crate) fn put_payload(&mut self, line: &Line, payload: &[u8]) -> Result<(), Error> {
        self.look_for_room(1, 1, Room::Packing)?;
        let slot = self.take_line();
        let place = self.frames.place_first(payload.len(), payload.len());
        let narrow = |at: usize| u16::try_from(at).expect("at most a frame");
        let moved = Line {
            born: self.next.commit,
            frame: place.frame,
            start: narrow(place.start),
            ..*line
        };
        let offset = self.geometry.frame_offset(place.frame) + place.start;
        self.media.store(offset, payload);
        self.mark(whole_lines(offset..offset + payload.len()));
        let key = &payload[line.key_part()];
        self.store_line(&moved, slot, key);
        self.link(joined(line.prefix, key, &mut Vec::new()), slot);
        Ok(())
    }

    fn look_for_room(&self, lines: usize, frames: usize, room: Room) -> Result<(), Error> {
        let what = if self.line_room(room) < lines {
            "no line of the table is free"
        } else if self.frames.room(room) < frames {
            "too few frames are free"
        } else {
            return Ok(());
        };
        Err(Error::Full { what })
    }

    /// Makes a line for the next commit. The line has no place for its bytes yet.
    fn new_line(&self, meta: &Meta, key_len: usize, value_len: usize) -> Line {
        let narrow = |len: usize| u32::try_from(len).expect("both have a bound below 2^25");
        Line {
            born: self.next.commit,
            order: meta.order,
            received_us: meta.received_us,
            kind: meta.kind,
            expires_at_ms: meta.expires_at_ms,
            key_len: narrow(key_len),
            value_len: narrow(value_len),
            form: Form::Plain,
            frame: 0,
            start: 0,
            len: 0,
            key_at: 0,
            gap: 0,
            prefix: Prefix::NONE,
            payload_crc: 0,
        }
    }

    /// Stores the bytes of key and value, from byte `at` on, into a place. Then stores the line of this part.
    fn store_part(
        &mut self,
        line: &mut Line,
        slot: u32,
        place: Place,
        key: &[u8],
        value: &[u8],
        at: usize,
    ) {
        let end = at + place.len;
        let of_key = &key[at.min(key.len())..end.min(key.len())];
        let of_value = &value[at.saturating_sub(key.len())..end.saturating_sub(key.len())];
        let offset = self.geometry.frame_offset(place.frame) + place.start;
        self.media.store(offset, of_key);
        self.media.store(offset + of_key.len(), of_value);
        self.mark(whole_lines(offset..offset + place.len));
        let narrow = |at: usize| u16::try_from(at).expect("at most a frame");
        line.frame = place.frame;
        line.start = narrow(place.start);
        line.len = narrow(place.len);
        line.payload_crc = crc32c::crc32c_append(crc32c::crc32c(of_key), of_value);
        let covered = match line.form {
            Form::Piece => &[],
            _ => of_key,
        };
        self.store_line(line, slot, covered);
    }

    fn store_line(&mut self, line: &Line, slot: u32, key: &[u8]) {
        let place = self.geometry.line(slot);
        self.media
            .store(place.start, &line.encode(self.seed, slot, key));
        self.mark(place);
        self.frames.attach(line.frame, slot, line.weight());
    }

    /// Makes a new version the newest version of its key.
    fn link(&mut self, key: &[u8], slot: u32) {
        let digest = self.digest(key);
        self.count(slot);
        let Some(found) = self.find(&digest, key) else {
            let reader = crate::reader::Reader {
                media: &self.media,
                geometry: &self.geometry,
                pieces: &self.pieces,
                seed: self.seed,
            };
            let new = self
                .keys
                .insert(digest, slot, |other| reader.compare(other, key));
            self.undo.push(Undo::Created(new));
            return;
        };
        let head = self.keys.head(found);
        if self.is_new(head) {
            self.older[index(slot)] = self.older[index(head)];
            self.keys.set_head(found, slot);
            self.discount(head);
            self.free_line(head);
            return;
        }
        match self.unset_gone(found) {
            Some(commit) if commit == self.next.commit => self.revive(head),
            gone => {
                self.undo.push(Undo::Replaced {
                    key: found,
                    head,
                    gone,
                });
                if gone.is_none() {
                    self.discount(head);
                }
            }
        }
        self.older[index(slot)] = head;
        self.keys.set_head(found, slot);
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.usable()?;
        let Some(found) = self.find(&self.digest(key), key) else {
            return Ok(false);
        };
        if self.is_gone(found) {
            return Ok(false);
        }
        let head = self.keys.head(found);
        self.discount(head);
        if !self.is_new(head) {
            self.undo.push(Undo::Replaced {
                key: found,
                head,
                gone: None,
            });
            self.bury(found, head);
            return Ok(true);
        }
        match self.older[index(head)] {
            NONE => {
                self.undo.push(Undo::Removed(found));
                self.remove_key(found);
            }
            before => {
                self.keys.set_head(found, before);
                match dead(&self.reader().raw(before)) {
                    None => self.bury(found, before),
                    Some(earlier) => {
                        self.set_gone(found, earlier);
                    }
                }
            }
        }
        self.free_line(head);
        Ok(true)
    }

    /// Returns whether the current transaction wrote this version.
    fn is_new(&self, slot: u32) -> bool {
        born(&self.reader().raw(slot)) == self.next.commit
    }

    /// Makes the next commit delete this version.
    fn bury(&mut self, key: u32, slot: u32) {
        self.store_dead_word(slot, self.next.commit);
        self.set_gone(key, self.next.commit);
    }

    /// Takes the deletion of this version back.
    fn revive(&mut self, slot: u32) {
        let born = born(&self.reader().raw(slot));
        self.store_dead_word(slot, alive(born));
    }

    fn store_dead_word(&mut self, slot: u32, word: u64) {
        let at = dead_word(&self.geometry, slot);
        self.media.store(at, &word.to_le_bytes());
        self.mark(self.geometry.line(slot));
    }

    /// Undoes the changes of the current transaction. The next persist erases the lines of these changes, before a
    /// commit with their number can take effect.
    pub(crate) fn abort(&mut self) {
        if self.usable().is_err() {
            // The commit record may be durable already, and any further write could become a part of that commit.
            return;
        }
        let mut removed = FxHashSet::default();
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Removed(key) => {
                    removed.insert(key);
                }
                Undo::Created(key) if removed.remove(&key) => {}
                Undo::Created(key) => {
                    let head = self.keys.head(key);
                    self.remove_key(key);
                    self.free_line(head);
                }
                Undo::Replaced { key, head, gone } => {
                    let now = self.keys.head(key);
                    self.keys.set_head(key, head);
                    if now != head {
                        self.free_line(now);
                    }
                    match gone {
                        Some(commit) => {
                            self.set_gone(key, commit);
                        }
                        None => {
                            self.unset_gone(key);
                            if dead(&self.reader().raw(head)).is_some() {
                                self.revive(head);
                            }
                        }
                    }
                }
            }
        }
        self.next = crate::commit::Commit {
            commit: self.done.commit + 1,
            ..self.done
        };
        self.recount = false;
        self.frames.keep_promises();
    }

    /// Lends a free frame to the packet loop. Returns `None` if only the reserve is left. [`Transaction::put_in_place`]
    /// can keep a packet in the frame.
    pub fn lend_frame(&mut self) -> Option<u32> {
        self.frames.lend()
    }

    /// Takes back a lent frame.
    ///
    /// # Panics
    /// If the frame is not lent.
    pub fn give_back_frame(&mut self, frame: u32) {
        self.frames.take_back(frame, false);
    }

    /// Returns the offset of a frame in the image.
    #[must_use]
    pub fn frame_offset(&self, frame: u32) -> usize {
        self.geometry.frame_offset(frame)
    }

    /// Stores bytes into a lent frame, as a network interface would do it.
    ///
    /// # Panics
    /// If the frame is not lent, or the bytes do not fit.
    pub fn deposit(&mut self, frame: u32, start: usize, bytes: &[u8]) {
        assert!(self.frames.is_lent(frame), "only what is lent is stored to");
        assert!(to_u64(start) + to_u64(bytes.len()) <= u64::from(self.geometry.frame_bytes));
        let offset = self.geometry.frame_offset(frame) + start;
        self.media.store(offset, bytes);
    }
}
