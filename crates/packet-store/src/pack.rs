//! Packing moves the records of sparse frames together, a bounded amount at a time (`docs/spec/packet-store.md` §6).
//!
//! A move is a put of the same record with an ordinary commit, so it is as safe as a put.

use pmnet_log::Media;

use crate::error::Error;
use crate::frames::{NONE, Room};
use crate::line::Form;
use crate::store::PacketStore;
use crate::transaction::Transaction;

/// If a packet is longer than a frame divided by this number, packing copies its record into frames, where a record can
/// be continued in another frame. If such packets were moved unchanged, they would leave more than a third of each
/// frame unused, and would be packed again and again.
const PACKET_FRACTION: usize = 3;
/// Maximum number of frames that one step empties.
const VICTIMS_MAX: usize = 64;

impl<M: Media> PacketStore<M> {
    /// Returns whether packing is worth its cost. It is if more than a third of the bytes of frames in use are dead, or
    /// if free frames are scarce and some bytes are dead.
    #[must_use]
    pub fn wants_packing(&self) -> bool {
        !self.has_snapshots() && self.frames.sparsest().is_some()
    }

    /// Moves the records of the sparsest frames close together, if packing is worth it, and commits. Returns the number
    /// of bytes that were moved, which is about `budget`. Returns 0 if there was nothing to pack, or no space for
    /// packing. A damaged record stays where it is.
    ///
    /// # Errors
    /// [`Error::Media`].
    pub fn pack_step(&mut self, budget: usize) -> Result<usize, Error> {
        self.usable()?;
        if !self.wants_packing() {
            return Ok(0);
        }
        let free = self.frames.packs();
        let mut most = VICTIMS_MAX;
        let moved = loop {
            match self.pack_frames(budget, most) {
                // If fewer frames are packed in one step, the space may be enough.
                Err(Error::Full { .. }) if most > 1 => most /= 2,
                Err(Error::Full { .. }) => break Ok(0),
                other => break other,
            }
        };
        self.frames.packed(free);
        moved
    }

    fn pack_frames(&mut self, budget: usize, most: usize) -> Result<usize, Error> {
        let mut victims = Vec::new();
        let mut live = 0;
        while live < budget && victims.len() < most {
            let Some(frame) = self.frames.sparsest() else {
                break;
            };
            live += self.frames.live_in(frame);
            self.frames.set_apart(frame);
            victims.push(frame);
        }
        let mut damaged = Vec::new();
        let moved = self.transaction().empty(&victims, budget, &mut damaged);
        for frame in victims {
            if !damaged.contains(&frame) {
                self.frames.set_closed(frame);
            }
        }
        moved
    }
}

impl<M: Media> Transaction<'_, M> {
    fn empty(self, frames: &[u32], budget: usize, damaged: &mut Vec<u32>) -> Result<usize, Error> {
        let mut moved = 0;
        let mut bytes = Vec::new();
        for &frame in frames {
            let mut next = self.store.frames.first_line(frame);
            while next != NONE && moved < budget.saturating_mul(2) {
                let slot = next;
                next = self.store.frames.next_line(slot);
                match self.store.move_record(slot, &mut bytes) {
                    Ok(len) => moved += len,
                    Err(Error::Damaged(_)) => {
                        damaged.push(frame);
                        break;
                    }
                    Err(other) => return Err(other),
                }
            }
        }
        self.commit()?;
        Ok(moved)
    }
}

impl<M: Media> PacketStore<M> {
    /// Moves the record of a line. If the line is that of a piece, moves the piece's record. Returns the number of the
    /// record's bytes, or 0 if the record was already moved or deleted.
    fn move_record(&mut self, slot: u32, bytes: &mut Vec<u8>) -> Result<usize, Error> {
        let reader = self.reader();
        let found = reader
            .line(slot)
            .ok_or_else(|| reader.damage(slot, "its line is not what was written"))?;
        let slot = match found.form {
            Form::Piece => found.head(),
            _ => slot,
        };
        let record = self.record(slot)?;
        let line = record.line;
        let mut scratch = Vec::new();
        let (key, value) = record.key_and_value(&mut scratch);
        let key_len = key.len();
        bytes.clear();
        bytes.extend_from_slice(key);
        let newest = self.find(&self.digest(key), key);
        if newest.is_none_or(|key| self.is_gone(key) || self.keys.head(key) != slot) {
            return Ok(0);
        }
        let long = usize::from(line.len) * PACKET_FRACTION > self.geometry.frame_len();
        if line.form == Form::Packet && !long {
            bytes.clear();
            bytes.extend_from_slice(reader.payload(&line));
            self.put_payload(&line, bytes)?;
        } else {
            bytes.extend_from_slice(value);
            let (key, value) = bytes.split_at(key_len);
            self.put(key, value, line.meta(), Room::Packing)?;
        }
        Ok(bytes.len())
    }
}
