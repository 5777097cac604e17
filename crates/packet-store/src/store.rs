//! The store: an ordered map whose records stay where they were received or copied to (`docs/spec/packet-store.md`).
//!
//! Purpose: the state that reading, transactions, packing and recovery share. Invariants: there is only one transaction
//! at a time. Records that the last commit counts are never overwritten. A dead line is used again only after the
//! commit that made it dead. This module reads no clock, and does not interpret kinds, orders or expiries.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::{Bound, Range};

use pmnet_log::{Media, MediaError};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::commit::Commit;
use crate::error::Error;
use crate::frames::{Frames, NONE, Room};
use crate::geometry::{Geometry, LINE_BYTES, index, take, to_u64};
use crate::keys::{Digest, Keys};
use crate::line;
use crate::medium::persist_now;
use crate::reader::{Pieces, Reader};
use crate::record::Record;
use crate::superblock::Identity;

/// One in this many lines is the reserve ([`Room`]). In a small store the reserve has [`LINES_RESERVE_MIN`] lines, but
/// at most one in [`LINES_RESERVE_FRACTION_MAX`], because a session takes a line, and so does its reply.
const LINES_RESERVE_FRACTION: u32 = 16;
const LINES_RESERVE_MIN: u32 = 2048;
const LINES_RESERVE_FRACTION_MAX: u32 = 4;

/// The effect of a transaction on a key, which an abort undoes. Effects are undone from the last to the first.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Undo {
    /// The transaction created the key.
    Created(u32),
    /// The transaction created the key, and removed it again.
    Removed(u32),
    /// The key had this newest version before. If that version was deleted, the commit with this number had deleted it.
    Replaced {
        key: u32,
        head: u32,
        gone: Option<u64>,
    },
}

/// An open store, as the text of this module describes.
pub struct PacketStore<M> {
    pub(crate) media: M,
    pub(crate) identity: Identity,
    pub(crate) geometry: Geometry,
    pub(crate) seed: u32,
    /// The last commit that took effect, which is durable.
    pub(crate) done: Commit,
    /// The next commit, with the changes of the current transaction so far.
    pub(crate) next: Commit,
    pub(crate) frames: Frames,
    pub(crate) keys: Keys,
    /// Whether the store's lines may state prefixes of keys.
    pub(crate) prefixes: bool,
    pub(crate) pieces: Pieces,
    /// For each line below `fresh`, the line of the key's previous version. The previous version is kept while a
    /// snapshot needs it, or while the transaction is not committed.
    pub(crate) older: Vec<u32>,
    pub(crate) free_lines: Vec<u32>,
    /// The lines from this line on were never used. No memory is used for the lines that were never used.
    pub(crate) fresh: u32,
    /// Lines that are dead since the last commit, or longer, and are still on the medium.
    pub(crate) pending: Vec<u32>,
    pub(crate) lines_reserve: usize,
    /// Number of lines that should be free besides the reserve.
    lines_ahead: usize,
    /// Number of lines that only records of the protocol may take.
    lines_records: usize,
    /// Ranges of the image that the next persist must cover.
    pub(crate) dirty: Vec<Range<usize>>,
    pub(crate) undo: Vec<Undo>,
    /// Keys whose newest version is deleted, with the commit that deleted it.
    pub(crate) gone: FxHashMap<u32, u64>,
    /// Deleted keys that can leave the list only after their older versions were erased.
    later: Vec<u32>,
    /// Commits at which snapshots read, each with the number of its snapshots.
    snapshots: BTreeMap<u64, u32>,
    /// Keys with versions that only snapshots need.
    chained: FxHashSet<u32>,
    /// Whether a dead line was damaged. The share of a damaged line in the sum is unknown, so the sum must be computed
    /// again.
    pub(crate) recount: bool,
    /// Copy of the key that is being processed. The buffer is used again for each key, so that no key needs an
    /// allocation.
    pub(crate) key: Vec<u8>,
    failed: bool,
}

/// A commit whose state can be read. A snapshot must be given back with [`PacketStore::release`]. While it exists, the
/// versions that it sees stay, and nothing is packed.
#[derive(Debug)]
pub struct Snapshot {
    at: u64,
}

impl<M: Media> PacketStore<M> {
    /// Makes a store without records over a table without lines. Recovery then adds the records.
    pub(crate) fn empty(media: M, identity: Identity, geometry: Geometry, done: Commit) -> Self {
        let least = LINES_RESERVE_MIN.min(geometry.lines / LINES_RESERVE_FRACTION_MAX);
        let reserve = (geometry.lines / LINES_RESERVE_FRACTION).max(least);
        PacketStore {
            media,
            identity,
            geometry,
            seed: identity.seed(),
            done,
            next: Commit {
                commit: done.commit + 1,
                ..done
            },
            frames: Frames::new(&geometry),
            keys: Keys::new(geometry.lines, hash_seed(&identity)),
            prefixes: false,
            pieces: Pieces::default(),
            // Memory that is only reserved takes no pages.
            older: Vec::with_capacity(index(geometry.lines)),
            free_lines: Vec::new(),
            fresh: 0,
            pending: Vec::new(),
            lines_reserve: index(reserve),
            lines_ahead: 0,
            lines_records: 0,
            dirty: Vec::new(),
            undo: Vec::new(),
            gone: FxHashMap::default(),
            later: Vec::new(),
            snapshots: BTreeMap::new(),
            chained: FxHashSet::default(),
            recount: false,
            key: Vec::new(),
            failed: false,
        }
    }

    /// Returns the identity of the store.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the size of the store.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the content of the last commit.
    #[must_use]
    pub fn last_commit(&self) -> &Commit {
        &self.done
    }

    /// Returns the medium.
    #[must_use]
    pub fn media(&self) -> &M {
        &self.media
    }

    /// Returns the medium, for an owner that gives it alternately to a log and a store.
    pub(crate) fn media_mut(&mut self) -> &mut M {
        &mut self.media
    }

    /// Closes the store, and returns its medium.
    #[must_use]
    pub fn into_media(self) -> M {
        self.media
    }

    pub(crate) fn reader(&self) -> Reader<'_, M> {
        Reader {
            media: &self.media,
            geometry: &self.geometry,
            pieces: &self.pieces,
            seed: self.seed,
        }
    }

    pub(crate) fn digest(&self, key: &[u8]) -> Digest {
        Digest::new(key, hash_seed(&self.identity))
    }

    /// Returns the number of a key, whether the key is deleted or not.
    pub(crate) fn find(&self, digest: &Digest, key: &[u8]) -> Option<u32> {
        let reader = self.reader();
        self.keys.find(digest, |slot| reader.compare(slot, key))
    }

    pub(crate) fn record(&self, slot: u32) -> Result<Record<'_, M>, Error> {
        let reader = self.reader();
        let line = reader.check(slot)?;
        Ok(Record { reader, slot, line })
    }

    /// Returns the record of a key. Within a transaction, the result includes the transaction's own changes.
    ///
    /// # Errors
    /// [`Error::Damaged`]: the record differs from what was written.
    pub fn get(&self, key: &[u8]) -> Result<Option<Record<'_, M>>, Error> {
        let digest = self.digest(key);
        match self.find(&digest, key) {
            Some(found) if self.is_gone(found) => Ok(None),
            Some(found) => self.record(self.keys.head(found)).map(Some),
            None => {
                // A damaged key does not compare as equal, but it has the same hash.
                let reader = self.reader();
                let mut same = self.keys.same_tag(&digest);
                match same.find(|slot| !reader.is_whole(*slot)) {
                    Some(slot) => {
                        Err(reader.damage(slot, "its line or key is not what was written"))
                    }
                    None => Ok(None),
                }
            }
        }
    }

    /// Returns whether a key has a record. The value is not checked.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        let found = self.find(&self.digest(key), key);
        found.is_some_and(|key| !self.is_gone(key))
    }

    /// Returns the length of key and value of a key's record. The record is not checked.
    #[must_use]
    pub fn bytes_of(&self, key: &[u8]) -> Option<usize> {
        let found = self.find(&self.digest(key), key);
        let found = found.filter(|key| !self.is_gone(*key))?;
        let line = self.reader().line(self.keys.head(found))?;
        Some(line.total())
    }

    pub(crate) fn is_gone(&self, key: u32) -> bool {
        !self.gone.is_empty() && self.gone.contains_key(&key)
    }

    /// Returns the number of records at the last commit.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.done.records
    }

    /// Returns whether there was no record at the last commit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.done.records == 0
    }

    /// Returns the version of a key that a reader at this commit sees; `at`: `None` means the current state.
    pub(crate) fn version_at(&self, key: u32, at: Option<u64>) -> Option<u32> {
        let Some(at) = at else {
            return (!self.is_gone(key)).then(|| self.keys.head(key));
        };
        let mut slot = self.keys.head(key);
        while slot != NONE {
            let raw = self.reader().raw(slot);
            if born(&raw) <= at {
                return line::dead(&raw)
                    .is_none_or(|dead| dead > at)
                    .then_some(slot);
            }
            slot = self.older[index(slot)];
        }
        None
    }

    /// Makes a snapshot: the state of the last commit can be read until the snapshot is released.
    pub fn snapshot(&mut self) -> Snapshot {
        let at = self.done.commit;
        *self.snapshots.entry(at).or_default() += 1;
        Snapshot { at }
    }

    /// Ends a snapshot.
    pub fn release(&mut self, snapshot: Snapshot) {
        if let Some(count) = self.snapshots.get_mut(&snapshot.at) {
            *count -= 1;
            if *count == 0 {
                self.snapshots.remove(&snapshot.at);
            }
        }
        for key in std::mem::take(&mut self.chained) {
            self.settle(key, false);
        }
    }

    /// Returns whether there are snapshots.
    pub(crate) fn has_snapshots(&self) -> bool {
        !self.snapshots.is_empty()
    }

    /// Returns the number of lines that a request for this purpose may take.
    pub(crate) fn line_room(&self, room: Room) -> usize {
        self.lines_left()
            .saturating_sub(room.leaves(self.lines_reserve, self.lines_records))
    }

    /// Returns the number of lines that hold no record.
    fn lines_left(&self) -> usize {
        let fresh = index(self.geometry.lines - self.fresh);
        fresh + self.free_lines.len() + self.pending.len()
    }

    /// Notes that all lines below this line are used, or were used and are free again.
    pub(crate) fn set_fresh(&mut self, fresh: u32) {
        self.fresh = fresh;
        self.older.resize(index(fresh), NONE);
    }

    /// Sets the number of frames and lines that should be free besides the reserve, for acknowledged updates that have
    /// not arrived yet. At most half of the free space of an empty store is set aside.
    pub fn keep_ahead(&mut self, frames: usize, lines: usize) {
        let reserve = self.frames.reserve();
        let most = index(self.geometry.frames).saturating_sub(reserve) / 2;
        self.frames.keep_ahead(frames.min(most));
        self.lines_ahead = lines.min((index(self.geometry.lines) - self.lines_reserve) / 2);
    }

    /// Reserves space for further records of `bytes` bytes. Only [`Room::Reserved`] may take this space. One record is
    /// reserved for each key from `from` on. At most a quarter of the free space of an empty store is reserved.
    pub fn keep_for_records(&mut self, from: &[u8], bytes: usize) {
        let records = self.count_between(Bound::Included(from), Bound::Unbounded);
        let records = usize::try_from(records).expect("lines are counted in 32 bits");
        let frames = records.saturating_mul(bytes) / self.geometry.frame_len();
        self.frames
            .keep_for_records(frames.min(index(self.geometry.frames) / 4));
        self.lines_records = records.min(index(self.geometry.lines) / 4);
    }

    /// Returns whether no further session should begin, because the existing sessions and deletes need the space.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        let lines = Room::another(self.lines_reserve, self.lines_records);
        self.frames.is_crowded() || self.lines_left() < lines
    }

    /// Returns whether fewer frames or lines are free than should be free.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.frames.is_scarce() || self.line_room(Room::Ordinary) < self.lines_ahead
    }

    /// Takes a line into which a version can be stored. The function prefers a dead line, because storing into it
    /// erases the dead version.
    pub(crate) fn take_line(&mut self) -> u32 {
        if let Some(slot) = self.pending.pop().or_else(|| self.free_lines.pop()) {
            return slot;
        }
        let slot = self.fresh;
        assert!(slot < self.geometry.lines, "the room was looked at before");
        self.set_fresh(slot + 1);
        slot
    }

    /// Adds a range to the next persist. Ranges that touch become one range.
    pub(crate) fn mark(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        match self.dirty.last_mut() {
            Some(last) if last.start <= range.start && range.start <= last.end => {
                last.end = last.end.max(range.end);
            }
            _ => self.dirty.push(range),
        }
    }

    /// Refuses any work after a failed persist.
    pub(crate) fn usable(&self) -> Result<(), Error> {
        match self.failed {
            true => Err(MediaError::Failed.into()),
            false => Ok(()),
        }
    }

    /// Makes the next commit take effect: `docs/spec/packet-store.md` §4.
    pub(crate) fn commit_now(&mut self) -> Result<(), Error> {
        self.usable()?;
        if self.undo.is_empty() {
            return Ok(());
        }
        self.commit_always()
    }

    /// Commits even if nothing changed except the order that the store states.
    pub(crate) fn commit_always(&mut self) -> Result<(), Error> {
        self.usable()?;
        if std::mem::take(&mut self.recount) {
            self.count_again();
        }
        let persisted = self.persist_both();
        if persisted.is_err() {
            self.failed = true;
        }
        persisted?;
        self.done = self.next;
        self.next.commit += 1;
        for key in std::mem::take(&mut self.later) {
            self.settle(key, true);
        }
        let mut undo = std::mem::take(&mut self.undo);
        for entry in undo.drain(..) {
            if let Undo::Replaced { key, .. } = entry {
                self.settle(key, true);
            }
        }
        self.undo = undo;
        self.frames.keep_promises();
        Ok(())
    }

    /// Erases every dead line durably. The erasure is step 2 of a transaction, done early. After the erasure, the
    /// frames into which these lines pointed can be lent.
    pub(crate) fn erase_dead(&mut self) -> Result<(), Error> {
        self.usable()?;
        let erased = self.persist_changes();
        if erased.is_err() {
            self.failed = true;
        }
        Ok(erased?)
    }

    fn persist_both(&mut self) -> Result<(), MediaError> {
        // First, everything on which the commit record relies becomes durable: the new records, and the erasure of
        // older records.
        self.persist_changes()?;
        // Then the commit record becomes durable.
        let range = self.next.store(&mut self.media, self.seed);
        persist_now(&mut self.media, &[range])
    }

    fn persist_changes(&mut self) -> Result<(), MediaError> {
        let mut pending = std::mem::take(&mut self.pending);
        for &slot in &pending {
            let place = self.geometry.line(slot);
            self.media.store(place.start, &[0; LINE_BYTES]);
            self.mark(place);
        }
        persist_now(&mut self.media, &self.dirty)?;
        self.dirty.clear();
        self.free_lines.append(&mut pending);
        self.frames.cool();
        Ok(())
    }

    /// Releases the versions of a key that are not needed. A deleted newest version is released last, by a commit of
    /// its own. While an older version may be on the medium, the deleted version states that the key is deleted. So a
    /// deleted newest version is released only at the end of a commit that has erased all versions which were released
    /// before.
    fn settle(&mut self, key: u32, committed: bool) {
        let head = self.keys.head(key);
        if head == NONE {
            return;
        }
        if self.snapshots.is_empty() {
            let mut slot = std::mem::replace(&mut self.older[index(head)], NONE);
            while slot != NONE {
                let next = self.older[index(slot)];
                self.free_line(slot);
                slot = next;
            }
        } else {
            self.settle_chain(key, head);
        }
        let Some(&dead) = self.gone.get(&key) else {
            return;
        };
        let needed =
            self.older[index(head)] != NONE || self.is_seen(born(&self.reader().raw(head)), dead);
        if needed {
            self.chained.insert(key);
        } else if committed {
            self.remove_key(key);
            self.free_line(head);
        } else {
            self.later.push(key);
        }
    }

    /// Releases the older versions of a key that no snapshot needs, while there are snapshots.
    fn settle_chain(&mut self, key: u32, head: u32) {
        let mut newer = head;
        let mut until = born(&self.reader().raw(head));
        loop {
            let slot = self.older[index(newer)];
            if slot == NONE {
                break;
            }
            let raw = self.reader().raw(slot);
            let from = born(&raw);
            let end = match line::dead(&raw) {
                None => until,
                Some(dead) => until.min(dead),
            };
            // A deleted version hides the older versions from readers between its own end and the next version.
            let hides = line::dead(&raw).is_some() && self.older[index(slot)] != NONE;
            if hides || self.is_seen(from, end) {
                self.chained.insert(key);
                newer = slot;
            } else {
                self.older[index(newer)] = self.older[index(slot)];
                self.free_line(slot);
            }
            until = from;
        }
    }

    /// Returns whether a snapshot sees a version that the commit `born` wrote and the commit `end` replaced or deleted.
    fn is_seen(&self, born: u64, end: u64) -> bool {
        born < end && self.snapshots.range(born..end).next().is_some()
    }

    /// Notes that this commit has deleted the newest version of a key.
    pub(crate) fn set_gone(&mut self, key: u32, commit: u64) {
        self.gone.insert(key, commit);
        self.set_counts(key, false);
    }

    /// Notes that the newest version of a key is not deleted. Returns the commit that had deleted it.
    pub(crate) fn unset_gone(&mut self, key: u32) -> Option<u64> {
        let commit = self.gone.remove(&key)?;
        self.set_counts(key, true);
        Some(commit)
    }

    fn set_counts(&mut self, key: u32, counts: bool) {
        self.at_its_name(key, |keys, compare| keys.set_counts(key, counts, compare));
    }

    /// Removes a key from the list.
    pub(crate) fn remove_key(&mut self, key: u32) {
        self.at_its_name(key, |keys, compare| keys.remove(key, compare));
        self.gone.remove(&key);
        self.chained.remove(&key);
    }

    /// Calls `act` with the list of keys, and with a function that compares a key with this key.
    fn at_its_name(&mut self, key: u32, act: impl FnOnce(&mut Keys, &dyn Fn(u32) -> Ordering)) {
        let head = self.keys.head(key);
        let reader = Reader {
            media: &self.media,
            geometry: &self.geometry,
            pieces: &self.pieces,
            seed: self.seed,
        };
        let mut scratch = Vec::new();
        let name = reader
            .line(head)
            .map_or(&[][..], |line| reader.key(head, &line, &mut scratch));
        act(&mut self.keys, &|slot| reader.compare(slot, name));
    }

    /// Frees a version that is no longer needed. The next transaction can use its space.
    pub(crate) fn free_line(&mut self, slot: u32) {
        for piece in self.pieces.remove(&slot).into_iter().flatten() {
            self.frames.detach(piece);
            self.pending.push(piece);
        }
        self.frames.detach(slot);
        self.older[index(slot)] = NONE;
        self.pending.push(slot);
    }

    /// Counts a new version in the next commit.
    pub(crate) fn count(&mut self, slot: u32) {
        let raw = self.reader().raw(slot);
        self.next.records += 1;
        self.next.sum = self.next.sum.wrapping_add(line::share(&raw, slot));
    }

    /// Removes a version from the count of the next commit.
    pub(crate) fn discount(&mut self, slot: u32) {
        let raw = self.reader().raw(slot);
        self.recount |= !self.reader().is_whole(slot);
        self.next.records -= 1;
        self.next.sum = self.next.sum.wrapping_sub(line::share(&raw, slot));
    }

    fn count_again(&mut self) {
        (self.next.records, self.next.sum) = (0, 0);
        let mut key = self.keys.first();
        while let Some(found) = key {
            if !self.is_gone(found) {
                self.count(self.keys.head(found));
            }
            key = self.keys.next(found);
        }
    }

    /// Returns the space that each part of the store takes.
    #[must_use]
    pub fn stat(&self) -> Stat {
        let [frames_free, frames_lent, frames_used] = self.frames.counts();
        let used = u64::from(frames_used) * u64::from(self.geometry.frame_bytes);
        Stat {
            records: self.done.records,
            commit: self.done.commit,
            order: self.done.order,
            lines: self.geometry.lines,
            lines_used: to_u64(index(self.geometry.lines) - self.lines_left()),
            frames: self.geometry.frames,
            frame_bytes: self.geometry.frame_bytes,
            frames_free,
            frames_lent,
            frames_used,
            bytes_live: self.frames.live_bytes(),
            bytes_dead: used.saturating_sub(self.frames.live_bytes()),
        }
    }
}

/// The space that each part of a store takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Number of records.
    pub records: u64,
    /// Number of the last commit.
    pub commit: u64,
    /// Order of the log that the store states; 0: it states no order.
    pub order: u64,
    /// Number of lines in the table.
    pub lines: u32,
    /// Number of lines of records, of their pieces, and of versions that a snapshot needs.
    pub lines_used: u64,
    /// Number of frames.
    pub frames: u32,
    /// Size of a frame in bytes.
    pub frame_bytes: u32,
    /// Number of frames without a record.
    pub frames_free: u32,
    /// Number of frames that the packet loop has.
    pub frames_lent: u32,
    /// Number of frames with records.
    pub frames_used: u32,
    /// Bytes of records.
    pub bytes_live: u64,
    /// Number of bytes that belong to no record, in frames that hold records.
    pub bytes_dead: u64,
}

/// Returns the commit that wrote a line.
pub(crate) fn born(raw: &[u8; LINE_BYTES]) -> u64 {
    u64::from_le_bytes(take(raw, 0))
}

pub(crate) fn hash_seed(identity: &Identity) -> u64 {
    let [low, high] = [0, 8].map(|at| u64::from_le_bytes(take(&identity.uuid.to_le_bytes(), at)));
    low ^ high.rotate_left(32)
}

impl Snapshot {
    /// Returns the number of the snapshot's commit.
    #[must_use]
    pub fn commit(&self) -> u64 {
        self.at
    }
}
