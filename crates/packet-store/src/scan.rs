//! Recovery: one linear scan that changes nothing, and then a repair (`docs/spec/packet-store.md` §5).

use std::cmp::Ordering;

use pmnet_log::Media;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::commit::Commit;
use crate::error::{DAMAGES_LISTED_MAX, Damage, Error, Loss, OpenError};
use crate::geometry::{BLOCK_BYTES, Geometry, LINE_BYTES, commit_record, index, is_zero, to_u64};
use crate::keys::{self, Digest, Keys};
use crate::line::{self, Form, Line};
use crate::medium::persist_now;
use crate::prefix::{Prefix, joined};
use crate::reader::{Pieces, Reader};
use crate::record::{Meta, Record};
use crate::store::{PacketStore, Stat, born, hash_seed};
use crate::superblock::{self, Identity};

/// An image that was read and has not been changed.
pub struct Scan<M> {
    media: M,
    identity: Identity,
    geometry: Geometry,
    /// Whether keys of this store may have prefixes.
    prefixes: bool,
    commit: Commit,
    /// Slots of the newest versions of existing records, in the order of their keys.
    live: Vec<u32>,
    pieces: Pieces,
    /// Lines that hold data, but belong to no record. The repair erases these lines before it does anything else.
    erase: Vec<u32>,
    /// Newest versions of keys that are deleted. A deleted version is erased when the key has no older version any
    /// more.
    deleted: Vec<u32>,
    /// Lines whose word `dead` names a commit that never took effect.
    revived: Vec<u32>,
    sum: u64,
    damages: Vec<Damage>,
    damages_total: u64,
}

/// A line that may be the newest version of its key.
struct Candidate {
    prefix: u128,
    born: u64,
    slot: u32,
    dead: bool,
}

impl<M: Media> Scan<M> {
    /// Reads an image. If a shard is given, only a store of this shard is accepted.
    ///
    /// # Errors
    /// [`OpenError`]: there is no store of this version and shard, or its commit records cannot be read.
    pub fn open(media: M, shard: Option<u32>) -> Result<Scan<M>, OpenError> {
        let (identity, geometry, prefixes) = superblock::read(media.bytes())?;
        if let Some(wanted) = shard.filter(|wanted| *wanted != identity.shard) {
            return Err(OpenError::OtherShard {
                found: identity.shard,
                wanted,
            });
        }
        let commit = Commit::read(media.bytes(), identity.seed())?;
        let mut scan = Scan {
            media,
            identity,
            geometry,
            prefixes,
            commit,
            live: Vec::new(),
            pieces: Pieces::default(),
            erase: Vec::new(),
            deleted: Vec::new(),
            revived: Vec::new(),
            sum: 0,
            damages: Vec::new(),
            damages_total: 0,
        };
        let (candidates, pieces) = scan.read_lines();
        scan.decide(candidates, pieces);
        Ok(scan)
    }

    fn reader(&self) -> Reader<'_, M> {
        Reader {
            media: &self.media,
            geometry: &self.geometry,
            pieces: &self.pieces,
            seed: self.identity.seed(),
        }
    }

    fn damage(&mut self, slot: u32, why: &'static str) {
        self.damages_total += 1;
        if self.damages.len() < DAMAGES_LISTED_MAX {
            let damage = self.reader().damage_of(slot, why);
            self.damages.push(damage);
        }
    }

    /// Sorts the lines into candidates, pieces (by record and index), and all other lines.
    fn read_lines(&mut self) -> (Vec<Candidate>, FxHashMap<u64, u32>) {
        let seed = self.identity.seed();
        let mut candidates = Vec::new();
        let mut scratch = Vec::new();
        let mut pieces = FxHashMap::default();
        for slot in 0..self.geometry.lines {
            let raw = self.reader().raw(slot);
            if is_zero(&raw) {
                continue;
            }
            let line = Line::plausible(&raw, &self.geometry);
            let Some(line) = line.filter(|line| line.born <= self.commit.commit) else {
                self.erase.push(slot);
                if Line::decode(&raw).born <= self.commit.commit {
                    self.damage(
                        slot,
                        "its line is not what was written, or it is no record any more",
                    );
                }
                continue;
            };
            let payload = self.reader().payload(&line);
            let key = match line.form {
                Form::Piece => &[],
                _ => &payload[line.key_part()],
            };
            let prefix = match line.prefix {
                Prefix::NONE => keys::prefix(key),
                with => keys::prefix(joined(with, &key[..key.len().min(16)], &mut scratch)),
            };
            let dead = line::dead(&raw);
            let possible = dead.is_none_or(|dead| {
                dead > line.born && dead <= self.commit.commit.saturating_add(1)
            });
            if !line::is_whole(&raw, seed, slot, key) || !possible {
                self.erase.push(slot);
                self.damage(
                    slot,
                    "its line is not what was written, or it is no record any more",
                );
                continue;
            }
            if line.form == Form::Piece {
                // Two pieces of the same record and index are both whole only in an image that was made on purpose.
                if let Some(other) = pieces.insert(line.order, slot) {
                    self.erase.push(other);
                }
                continue;
            }
            let counts = dead.is_some_and(|dead| dead <= self.commit.commit);
            if dead.is_some() && !counts {
                self.revived.push(slot);
            }
            candidates.push(Candidate {
                prefix,
                born: line.born,
                slot,
                dead: counts,
            });
        }
        (candidates, pieces)
    }

    /// Decides which candidates are the newest versions of their keys.
    fn decide(&mut self, mut candidates: Vec<Candidate>, mut pieces: FxHashMap<u64, u32>) {
        self.collect_pieces(&candidates, &mut pieces);
        // A key with missing parts could be mistaken for another key.
        candidates.retain(|candidate| {
            let slot = candidate.slot;
            let reader = self.reader();
            let goes_on = reader
                .line(slot)
                .is_some_and(|line| index(line.key_len) > usize::from(line.len));
            let whole = !goes_on || reader.check(slot).is_ok();
            if !whole {
                self.erase.push(slot);
                self.damage(
                    slot,
                    "its key is not what was written, or it is no record any more",
                );
            }
            whole
        });
        let reader = self.reader();
        // Keys are compared by their first bytes, and then byte by byte. The newest version of a key comes first.
        let mut names = (Vec::new(), Vec::new());
        candidates.sort_unstable_by(|a, b| {
            a.prefix
                .cmp(&b.prefix)
                .then_with(|| compare_keys(&reader, a.slot, b.slot, &mut names))
                .then_with(|| b.born.cmp(&a.born))
                .then_with(|| a.slot.cmp(&b.slot))
        });
        let mut newest: Option<u32> = None;
        for candidate in candidates {
            let same = newest.is_some_and(|other| {
                compare_keys(&self.reader(), other, candidate.slot, &mut names) == Ordering::Equal
            });
            if same {
                self.erase.push(candidate.slot);
                continue;
            }
            newest = Some(candidate.slot);
            if candidate.dead {
                self.deleted.push(candidate.slot);
            } else if let Err(why) = self.check_pieces(candidate.slot) {
                self.erase.push(candidate.slot);
                self.damage(candidate.slot, why);
            } else {
                let raw = self.reader().raw(candidate.slot);
                self.sum = self.sum.wrapping_add(line::share(&raw, candidate.slot));
                self.live.push(candidate.slot);
            }
        }
        // Pieces of existing records stay. The other pieces belong to no record.
        let mut kept = Pieces::default();
        for slot in self.live.iter().chain(&self.deleted) {
            if let Some(found) = self.pieces.remove(slot) {
                kept.insert(*slot, found);
            }
        }
        let orphans = std::mem::replace(&mut self.pieces, kept);
        self.erase.extend(orphans.into_values().flatten());
        self.erase.extend(pieces.into_values());
    }

    /// Assigns the existing pieces to their records.
    fn collect_pieces(&mut self, candidates: &[Candidate], pieces: &mut FxHashMap<u64, u32>) {
        if pieces.is_empty() {
            return;
        }
        for candidate in candidates {
            let Some(line) = self.reader().line(candidate.slot) else {
                continue;
            };
            let count = u32::try_from(line.pieces(&self.geometry)).expect("lengths have bounds");
            let slots: Vec<u32> = (0..count)
                .map_while(|number| pieces.remove(&Line::piece_of(candidate.slot, number)))
                .collect();
            if !slots.is_empty() {
                self.pieces.insert(candidate.slot, slots.into());
            }
        }
    }

    /// Checks whether a record has all its pieces.
    fn check_pieces(&self, slot: u32) -> Result<(), &'static str> {
        let reader = self.reader();
        let line = reader
            .line(slot)
            .ok_or("its line is not what was written")?;
        let wanted = line.pieces(&self.geometry);
        let found = reader.pieces_of(slot);
        if found.len() != wanted {
            return Err("a piece of it is missing");
        }
        let mut left = line.total() - usize::from(line.len);
        for &piece in found {
            let part = reader.line(piece).ok_or("a piece of it is missing")?;
            if part.born != line.born
                || usize::from(part.len) != left.min(self.geometry.frame_len())
            {
                return Err("a piece of it is missing");
            }
            left -= usize::from(part.len);
        }
        Ok(())
    }

    /// Returns the medium.
    pub(crate) fn media(&self) -> &M {
        &self.media
    }

    /// Returns the size of the store.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the identity of the store.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the contents of the last commit.
    #[must_use]
    pub fn last_commit(&self) -> &Commit {
        &self.commit
    }

    /// Returns which of the records that the last commit counts are missing; `None`: no record is missing.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        let whole = to_u64(self.live.len());
        let right = whole == self.commit.records && self.sum == self.commit.sum;
        (!right).then(|| Loss {
            counted: self.commit.records,
            whole,
            damages: self.damages.clone(),
        })
    }

    /// Reads every byte of every record, and returns the damaged records: at most [`DAMAGES_LISTED_MAX`], without those
    /// in [`Scan::loss`].
    #[must_use]
    pub fn verify(&self) -> Vec<Damage> {
        let reader = self.reader();
        let mut found = Vec::new();
        let mut taken: FxHashMap<u32, Vec<(Line, u32)>> = FxHashMap::default();
        for &slot in &self.live {
            if found.len() >= DAMAGES_LISTED_MAX {
                break;
            }
            match reader.check(slot) {
                Err(Error::Damaged(damage)) => found.push(*damage),
                _ => {
                    for &part in [slot].iter().chain(reader.pieces_of(slot)) {
                        let line = reader.line(part).expect("it was checked");
                        taken.entry(line.frame).or_default().push((line, part));
                    }
                }
            }
        }
        for lines in taken.values_mut() {
            lines.sort_unstable_by_key(|(line, slot)| (line.start, *slot));
            for pair in lines.windows(2) {
                let [(one, _), (other, slot)] = pair else {
                    continue;
                };
                let shared = one.form == Form::Shared
                    && other.form == Form::Shared
                    && (one.start, one.len) == (other.start, other.len);
                let overlap = other.start < one.start + one.len && other.len > 0;
                if overlap && !shared && found.len() < DAMAGES_LISTED_MAX {
                    found.push(reader.damage_of(*slot, "another record claims the same bytes"));
                }
            }
        }
        found
    }

    /// Returns the whole keys of the records with damaged values. The keys of records in [`Scan::loss`] are unknown.
    #[must_use]
    pub fn damaged_keys(&self) -> Vec<Vec<u8>> {
        let reader = self.reader();
        let mut scratch = Vec::new();
        self.live
            .iter()
            .filter(|slot| reader.check(**slot).is_err())
            .map(|slot| key_of(&reader, *slot, &mut scratch).to_vec())
            .collect()
    }

    /// Calls `visit` with every undamaged record.
    pub fn each_record(&self, mut visit: impl FnMut(&[u8], &Meta, &[u8])) {
        let reader = self.reader();
        let mut scratch = Vec::new();
        for &slot in &self.live {
            if let Ok(line) = reader.check(slot) {
                let record = Record { reader, slot, line };
                let meta = record.meta();
                let (key, value) = record.key_and_value(&mut scratch);
                visit(key, &meta, value);
            }
        }
    }

    /// Returns the number of records that are still in the packet in which they arrived.
    #[must_use]
    pub fn records_in_packets(&self) -> u64 {
        let reader = self.reader();
        let lines = self.live.iter().filter_map(|slot| reader.line(*slot));
        to_u64(lines.filter(Line::is_in_packet).count())
    }

    /// Returns how much space each part of the store takes.
    #[must_use]
    pub fn stat(&self) -> Stat {
        let reader = self.reader();
        let mut used = FxHashSet::default();
        let mut stat = Stat {
            records: self.commit.records,
            commit: self.commit.commit,
            order: self.commit.order,
            lines: self.geometry.lines,
            lines_used: 0,
            frames: self.geometry.frames,
            frame_bytes: self.geometry.frame_bytes,
            frames_free: 0,
            frames_lent: 0,
            frames_used: 0,
            bytes_live: 0,
            bytes_dead: 0,
        };
        for &slot in &self.live {
            for &part in [slot].iter().chain(reader.pieces_of(slot)) {
                let Some(line) = reader.line(part) else {
                    continue;
                };
                stat.lines_used += 1;
                stat.bytes_live += to_u64(line.weight());
                used.insert(line.frame);
            }
        }
        stat.frames_used = u32::try_from(used.len()).expect("frames are counted in 32 bits");
        stat.frames_free = stat.frames - stat.frames_used;
        let bytes = u64::from(stat.frames_used) * u64::from(stat.frame_bytes);
        stat.bytes_dead = bytes.saturating_sub(stat.bytes_live);
        stat
    }

    /// Repairs the image, and returns it as an open store. Every step of the repair is durable before the next step
    /// begins. So the image can be repaired again after a crash at any point.
    ///
    /// # Errors
    /// [`OpenError::Damaged`]: records are missing. The image is unchanged. [`OpenError::Region`]: a log has entries in
    /// the frames. [`OpenError::Media`].
    pub fn repair(self) -> Result<PacketStore<M>, OpenError> {
        self.refuse_region()?;
        self.repair_in_region()
    }

    fn refuse_region(&self) -> Result<(), OpenError> {
        match self.geometry.log_entries {
            0 => Ok(()),
            _ => Err(OpenError::Region(
                "a log has packet buffers in it, so it is not changed alone: open it with the program that made it",
            )),
        }
    }

    /// Repairs the store of a region, for a caller that also repairs the log.
    pub(crate) fn repair_in_region(self) -> Result<PacketStore<M>, OpenError> {
        match self.loss() {
            Some(loss) => Err(OpenError::Damaged(Box::new(loss))),
            None => self.repair_from(false),
        }
    }

    /// Repairs the store even if records are missing. Damaged records are erased for good.
    ///
    /// # Errors
    /// [`OpenError::Region`], [`OpenError::Media`].
    pub fn repair_without_lost(self) -> Result<PacketStore<M>, OpenError> {
        self.refuse_region()?;
        let lost = self.loss().is_some();
        self.repair_from(lost)
    }

    fn repair_from(mut self, lost: bool) -> Result<PacketStore<M>, OpenError> {
        // A torn record is erased. If a torn record stayed, and the next attempt at the same commit were torn as well,
        // the two torn records together could make a whole record.
        for number in [0, 1] {
            if Commit::at(self.media.bytes(), self.identity.seed(), number).is_none() {
                let start = commit_record(number).start;
                self.media.store(start, &[0; LINE_BYTES]);
            }
        }
        // After the death of a process, the other record may be visible although it is not durable. The next steps need
        // the other record to be durable.
        let both = [0, 1].map(|number| {
            let start = commit_record(number).start;
            start..start + BLOCK_BYTES
        });
        persist_now(&mut self.media, &both)?;
        let table = self.geometry.table();
        if lost {
            // The next commit counts only whole records. Before that commit, no line on the medium may have the
            // commit's number.
            let (future, rest) = std::mem::take(&mut self.erase)
                .into_iter()
                .partition(|slot| {
                    Line::decode(&self.reader().raw(*slot)).born > self.commit.commit
                });
            self.erase = rest;
            self.revive();
            self.zero(&future);
            persist_now(&mut self.media, std::slice::from_ref(&table))?;
            self.commit.commit += 1;
            self.commit.records = to_u64(self.live.len());
            self.commit.sum = self.sum;
            let range = self.commit.store(&mut self.media, self.identity.seed());
            persist_now(&mut self.media, &[range])?;
        }
        let erase = std::mem::take(&mut self.erase);
        self.revive();
        self.zero(&erase);
        // The whole table is persisted, including lines that look empty: a zero may be visible although it is not
        // durable.
        persist_now(&mut self.media, &[table])?;
        let mut deleted = std::mem::take(&mut self.deleted);
        for slot in deleted.clone() {
            deleted.extend(self.pieces.remove(&slot).into_iter().flatten());
        }
        self.zero(&deleted);
        let ranges: Vec<_> = deleted
            .iter()
            .map(|slot| self.geometry.line(*slot))
            .collect();
        if !ranges.is_empty() {
            persist_now(&mut self.media, &ranges)?;
        }
        Ok(self.into_store())
    }

    fn zero(&mut self, slots: &[u32]) {
        for &slot in slots {
            let place = self.geometry.line(slot);
            self.media.store(place.start, &[0; LINE_BYTES]);
        }
    }

    fn revive(&mut self) {
        for slot in std::mem::take(&mut self.revived) {
            let born = born(&self.reader().raw(slot));
            let at = line::dead_word(&self.geometry, slot);
            self.media.store(at, &line::alive(born).to_le_bytes());
        }
    }

    fn into_store(self) -> PacketStore<M> {
        let (identity, geometry) = (self.identity, self.geometry);
        let mut store = PacketStore::empty(self.media, identity, geometry, self.commit);
        store.pieces = self.pieces;
        store.prefixes = self.prefixes;
        let mut taken = vec![false; index(geometry.lines)];
        let mut before = Keys::AT_START;
        let mut scratch = Vec::new();
        for slot in self.live {
            let reader = Reader {
                media: &store.media,
                geometry: &geometry,
                pieces: &store.pieces,
                seed: store.seed,
            };
            let line = reader.line(slot).expect("the scan has checked it");
            let apart = !reader.pieces_of(slot).is_empty() && line.is_large();
            let digest = Digest::new(reader.key(slot, &line, &mut scratch), hash_seed(&identity));
            store.keys.append(digest, slot, &mut before);
            for &part in [slot].iter().chain(reader.pieces_of(slot)) {
                let line = reader.line(part).expect("the scan has checked it");
                taken[index(part)] = true;
                store.frames.keep(line.frame, part, line.weight(), apart);
            }
        }
        store.frames.kept();
        let used = taken.iter().rposition(|taken| *taken);
        let used = used.map_or(0, |last| u32::try_from(last).expect("a line") + 1);
        store.set_fresh(used);
        store.free_lines = (0..used)
            .rev()
            .filter(|slot| !taken[index(*slot)])
            .collect();
        store
    }
}

/// Compares the keys of two lines. Keys that continue in pieces are assembled in `names`.
fn compare_keys<M: Media>(
    reader: &Reader<'_, M>,
    a: u32,
    b: u32,
    names: &mut (Vec<u8>, Vec<u8>),
) -> Ordering {
    key_of(reader, a, &mut names.0).cmp(key_of(reader, b, &mut names.1))
}

fn key_of<'s, 'a: 's, M: Media>(
    reader: &Reader<'a, M>,
    slot: u32,
    scratch: &'s mut Vec<u8>,
) -> &'s [u8] {
    let Some(line) = reader.line(slot) else {
        return &[];
    };
    reader.key(slot, &line, scratch)
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
