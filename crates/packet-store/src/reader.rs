//! Reads records in place, and checks their bytes before it relies on them.

use std::cmp::Ordering;

use pmnet_log::Media;
use rustc_hash::FxHashMap;

use crate::error::{Damage, Error};
use crate::geometry::{Geometry, LINE_BYTES, index, take};
use crate::line::{self, Form, Line};
use crate::prefix::joined;

/// For each record that has pieces: the slots of the pieces, in the order of the pieces.
pub(crate) type Pieces = FxHashMap<u32, Box<[u32]>>;

/// All values that are needed to read a record.
pub(crate) struct Reader<'a, M> {
    pub media: &'a M,
    pub geometry: &'a Geometry,
    pub pieces: &'a Pieces,
    pub seed: u32,
}

impl<M> Clone for Reader<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Reader<'_, M> {}

impl<'a, M: Media> Reader<'a, M> {
    /// Returns the bytes of a line.
    pub fn raw(&self, slot: u32) -> [u8; LINE_BYTES] {
        take(self.media.part(self.geometry.line(slot)), 0)
    }

    /// Returns the line in a slot, if the line points into the image.
    pub fn line(&self, slot: u32) -> Option<Line> {
        Line::plausible(&self.raw(slot), self.geometry)
    }

    /// Returns the part of the record that lies in the line's frame.
    pub fn payload(&self, line: &Line) -> &'a [u8] {
        self.media.part(line.payload(self.geometry))
    }

    /// Returns the slots of the pieces of a record.
    pub fn pieces_of(&self, slot: u32) -> &'a [u32] {
        self.pieces.get(&slot).map_or(&[], |slots| slots)
    }

    /// Compares the key of a line with `key`. A damaged line counts as lower than all keys.
    pub fn compare(&self, slot: u32, key: &[u8]) -> Ordering {
        let Some(line) = self.line(slot) else {
            return Ordering::Less;
        };
        let common = line.prefix.bytes().len().min(key.len());
        let (start, key) = key.split_at(common);
        match line.prefix.bytes().cmp(start) {
            Ordering::Equal => {}
            other => return other,
        }
        let first = &self.payload(&line)[line.key_part()];
        if first.len() == index(line.key_len) {
            return first.cmp(key);
        }
        let mut rest = key;
        let mut left = index(line.key_len);
        let parts = std::iter::once(first).chain(self.piece_payloads(slot));
        for part in parts {
            let part = &part[..part.len().min(left)];
            let common = part.len().min(rest.len());
            match part[..common].cmp(&rest[..common]) {
                Ordering::Equal if common == part.len() => {}
                Ordering::Equal => return Ordering::Greater,
                other => return other,
            }
            rest = &rest[common..];
            left -= part.len();
            if left == 0 {
                break;
            }
        }
        match rest.is_empty() {
            true => Ordering::Equal,
            false => Ordering::Less,
        }
    }

    /// Returns the payloads of those pieces of a record whose lines point into the image.
    fn piece_payloads(self, slot: u32) -> impl Iterator<Item = &'a [u8]> {
        let lines = self.pieces_of(slot).iter();
        lines.filter_map(move |piece| self.line(*piece).map(|line| self.payload(&line)))
    }

    /// Returns whether the line and its key are whole. The value is not checked.
    pub fn is_whole(&self, slot: u32) -> bool {
        let raw = self.raw(slot);
        Line::plausible(&raw, self.geometry).is_some_and(|line| {
            let key = match line.form {
                Form::Piece => &[],
                _ => &self.payload(&line)[line.key_part()],
            };
            line::is_whole(&raw, self.seed, slot, key)
        })
    }

    /// Returns the line of a record if the line, the key and the value are as they were written.
    pub fn check(&self, slot: u32) -> Result<Line, Error> {
        let whole = self.line(slot).filter(|_| self.is_whole(slot));
        let Some(line) = whole else {
            return Err(self.damage(slot, "its line or key is not what was written"));
        };
        let fits = |line: &Line| crc32c::crc32c(self.payload(line)) == line.payload_crc;
        if !fits(&line) {
            return Err(self.damage(slot, "its value is not what was written"));
        }
        let pieces = self.pieces_of(slot);
        let mut left = line.total() - usize::from(line.len);
        for (number, &piece) in (0..).zip(pieces) {
            let whole = self.line(piece).filter(|found| {
                self.is_whole(piece)
                    && found.form == Form::Piece
                    && found.born == line.born
                    && found.order == Line::piece_of(slot, number)
                    && usize::from(found.len) == left.min(self.geometry.frame_len())
                    && fits(found)
            });
            let Some(found) = whole else {
                return Err(self.damage(slot, "a piece of it is not what was written"));
            };
            left -= usize::from(found.len);
        }
        match left {
            0 => Ok(line),
            _ => Err(self.damage(slot, "a piece of it is missing")),
        }
    }

    /// Returns the error for a damaged line or record, with all known facts.
    pub fn damage(&self, slot: u32, why: &'static str) -> Error {
        Error::Damaged(Box::new(self.damage_of(slot, why)))
    }

    /// Returns the facts about a damaged line or record.
    pub fn damage_of(&self, slot: u32, why: &'static str) -> Damage {
        let raw = self.raw(slot);
        let mut scratch = Vec::new();
        let key = Line::plausible(&raw, self.geometry)
            .filter(|line| line.form != Form::Piece)
            .map_or(&[][..], |line| {
                joined(
                    line.prefix,
                    &self.payload(&line)[line.key_part()],
                    &mut scratch,
                )
            });
        Damage {
            key: key[..key.len().min(Damage::KEY_BYTES_SHOWN)].to_vec(),
            order: Line::decode(&raw).order,
            line: slot,
            why,
        }
    }

    /// Returns the key of a record. The key is returned in place if possible, and is assembled in `scratch` otherwise.
    pub fn key<'s>(&self, slot: u32, line: &Line, scratch: &'s mut Vec<u8>) -> &'s [u8]
    where
        'a: 's,
    {
        let first = self.payload(line);
        let start = usize::from(line.key_at);
        let end = start + index(line.key_len);
        if end <= first.len() {
            return joined(line.prefix, &first[start..end], scratch);
        }
        // A record in a packet lies in one frame, so this record has no prefix, and begins with its key.
        let all = self.whole(slot, line, scratch);
        &all[..end.min(all.len())]
    }

    /// Returns all bytes of a record as one slice. The bytes are returned in place if possible, and are assembled in
    /// `scratch` otherwise.
    pub fn whole<'s>(&self, slot: u32, line: &Line, scratch: &'s mut Vec<u8>) -> &'s [u8]
    where
        'a: 's,
    {
        let first = self.payload(line);
        if line.total() == first.len() {
            return first;
        }
        scratch.clear();
        scratch.extend_from_slice(first);
        for part in self.piece_payloads(slot) {
            scratch.extend_from_slice(part);
        }
        scratch
    }
}
