//! Shares of fronts in the log and in the table of sessions (`docs/spec/protocol.md` §4, "Shares").
//!
//! With keys the front of each session is known. While the log has enough room, no front is refused. When little room
//! is left, a front that holds an equal part or more is refused, and continues at the server's speed. Without keys
//! there are no fronts, and all sessions share one row.
//!
//! [`Device::weigh`] determines the rows over their share once in a burst. So an update needs only a test of one bit,
//! in the machine and in a fast path.

use super::{Device, Room};
use crate::Time;
use crate::time::{Nanos, SECOND};
use pmnet_wire::{FrontId, HEADER_LEN, Header};
use rustc_hash::FxHashMap;

/// Maximum number of rows. A 64-bit number has one bit for each row. The first row is for sessions without a front, and
/// for fronts that found no free row.
const ROWS_MAX: usize = 64;
/// Row of sessions that have no row of their own.
pub(super) const COMMON: u8 = 0;
/// Time for which a front counts as present after it was refused a session.
const WAITS: Nanos = 10 * SECOND;
/// Unit in which frames are counted, in bytes: the alignment of frames in a log.
pub(super) const BLOCK: u64 = 64;

/// Usage of one front.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    front: Option<FrontId>,
    /// Number of sessions in the table.
    sessions: usize,
    /// Number of unapplied entries in the log (`entries`), and their size in blocks (`blocks`).
    entries: u64,
    blocks: u64,
    /// Time at which the front was last refused a session; `None`: it has begun a session since then.
    waits_since: Option<Time>,
    /// Updates and OPENs that were refused because the front was over its share.
    refused: u64,
}

impl Row {
    fn waits(&self, now: Time) -> bool {
        self.waits_since.is_some_and(|at| now.since(at) < WAITS)
    }

    fn is_there(&self, now: Time) -> bool {
        self.sessions > 0 || self.entries > 0 || self.waits(now)
    }
}

/// Usage of all fronts, and the rows over their share.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// The row of each front that has a row of its own.
    of: FxHashMap<FrontId, u8>,
    rows: Vec<Row>,
    blocks: u64,
    /// Bit N is set if row N is over its share of the log.
    over: u64,
    /// Number of OPENs that found the table full although their fronts were below their share.
    pub(super) claims: usize,
}

/// Whether `held` is at least one of `parts` equal parts of `all`.
const fn is_a_part(held: u64, all: u64, parts: u64) -> bool {
    held.saturating_mul(parts) >= all
}

impl Shares {
    /// Returns the row of a front. A front without a row gets a free row, or the row of a front that is no longer
    /// present.
    pub(super) fn row_of(&mut self, now: Time, front: Option<FrontId>) -> u8 {
        if self.rows.is_empty() {
            self.rows.push(Row::default());
        }
        let Some(id) = front else {
            return COMMON;
        };
        if let Some(&row) = self.of.get(&id) {
            return row;
        }
        let free = (1..self.rows.len()).find(|&at| !self.rows[at].is_there(now));
        let free = free.or_else(|| (self.rows.len() < ROWS_MAX).then_some(self.rows.len()));
        let Some(at) = free else {
            return COMMON;
        };
        let row = Row {
            front,
            ..Row::default()
        };
        match self.rows.get_mut(at) {
            Some(left) => {
                if let Some(before) = std::mem::replace(left, row).front {
                    self.of.remove(&before);
                }
            }
            None => self.rows.push(row),
        }
        self.over &= !(1 << at);
        let at = u8::try_from(at).expect("bounded by ROWS_MAX");
        self.of.insert(id, at);
        at
    }

    fn row(&mut self, at: u8) -> Option<&mut Row> {
        self.rows.get_mut(usize::from(at))
    }

    pub(super) fn session_begins(&mut self, at: u8) {
        if let Some(row) = self.row(at) {
            row.sessions += 1;
            row.waits_since = None;
        }
    }

    pub(super) fn session_ends(&mut self, at: u8) {
        if let Some(row) = self.row(at) {
            row.sessions = row.sessions.saturating_sub(1);
        }
    }

    /// Counts an entry of the log. Returns its size in blocks.
    pub(super) fn entry_comes(&mut self, at: u8, entry: &Header) -> u8 {
        let header = u64::try_from(HEADER_LEN).expect("short");
        let blocks = (header + u64::from(entry.payload_len)).div_ceil(BLOCK);
        let blocks = u8::try_from(blocks).unwrap_or(u8::MAX);
        self.blocks += u64::from(blocks);
        if let Some(row) = self.row(at) {
            row.entries += 1;
            row.blocks += u64::from(blocks);
        }
        blocks
    }

    /// An entry with this number of blocks is applied, and no longer counts.
    pub(super) fn entry_goes(&mut self, at: u8, blocks: u8) {
        self.blocks = self.blocks.saturating_sub(u64::from(blocks));
        if let Some(row) = self.row(at) {
            row.entries = row.entries.saturating_sub(1);
            row.blocks = row.blocks.saturating_sub(u64::from(blocks));
        }
    }

    /// Whether the log has little room, and this row holds its share of the log or more.
    pub(super) const fn is_over(&self, at: u8) -> bool {
        (self.over >> at) & 1 == 1
    }

    /// Returns a number whose bit N is set if row N is over its share of the log.
    pub(super) const fn over(&self) -> u64 {
        self.over
    }

    pub(super) fn refused(&mut self, at: u8) {
        if let Some(row) = self.row(at) {
            row.refused += 1;
        }
    }

    /// Notes that a session was refused to this front: the front counts as present until its next session begins, or
    /// for [`WAITS`].
    pub(super) fn waits(&mut self, now: Time, at: u8) {
        if let Some(row) = self.row(at) {
            row.waits_since = Some(now);
        }
    }

    /// Returns the number of fronts that are present: fronts that hold a session or an entry, and fronts that wait for
    /// a session.
    fn fronts(&self, now: Time) -> usize {
        self.rows.iter().filter(|row| row.is_there(now)).count()
    }

    /// Whether other fronts are present, and this row holds less of the log than its share.
    pub(super) fn is_below_in_log(&self, now: Time, at: u8, room: Room) -> bool {
        let parts = self.parts_of_log(now);
        let row = self.rows.get(usize::from(at)).copied().unwrap_or_default();
        self.fronts(now) > 1
            && !is_a_part(row.entries, room.entries_max, parts)
            && !is_a_part(row.blocks, room.blocks_max(), parts)
    }

    /// Returns the number of parts of the log: one for each front that has an entry in the log or waits for a session.
    /// There are at least two parts, so that a new front has one.
    fn parts_of_log(&self, now: Time) -> u64 {
        let there = |row: &&Row| row.entries > 0 || row.waits(now);
        let parts = self.rows.iter().filter(there).count().max(2);
        u64::try_from(parts).unwrap_or(u64::MAX)
    }

    fn weigh(&mut self, now: Time, room: Room) {
        self.over = 0;
        if self.rows.len() < 2 {
            return;
        }
        let few_entries = room.entries <= room.entries_max / 4;
        let few_blocks = self.blocks >= room.blocks_max() / 4 * 3;
        if !(few_entries || few_blocks) || self.fronts(now) < 2 {
            return;
        }
        let parts = self.parts_of_log(now);
        for (at, row) in self.rows.iter().enumerate() {
            let over = few_entries && is_a_part(row.entries, room.entries_max, parts)
                || few_blocks && is_a_part(row.blocks, room.blocks_max(), parts);
            self.over |= u64::from(over) << at;
        }
    }

    /// Whether other fronts are present, and this row has less than its share of the table.
    pub(super) fn is_below_in_table(&self, now: Time, at: u8, sessions_max: usize) -> bool {
        let row = self.rows.get(usize::from(at)).copied().unwrap_or_default();
        // The front of this row wants a session, so it counts as present.
        let parts = self.fronts(now) + usize::from(!row.is_there(now));
        parts > 1 && row.sessions < sessions_max / parts
    }

    /// Returns the number of sessions that each row has beyond its share of the table.
    pub(super) fn beyond_in_table(&self, now: Time, sessions_max: usize) -> Vec<usize> {
        let share = sessions_max / self.fronts(now).max(1);
        let beyond = |row: &Row| row.sessions.saturating_sub(share);
        self.rows.iter().map(beyond).collect()
    }

    /// Whether this row may not begin another session: few places are left in the table, other fronts are present, and
    /// the row has its share of the table or more.
    fn is_over_in_table(&self, now: Time, at: u8, sessions: usize, sessions_max: usize) -> bool {
        let few = sessions_max.saturating_sub(sessions) <= sessions_max / 4;
        let row = self.rows.get(usize::from(at)).copied().unwrap_or_default();
        let parts = self.fronts(now);
        few && parts > 1 && row.sessions >= sessions_max / parts
    }

    /// Returns the front that was refused most often for being over its share, and the number of refusals.
    fn most_refused(&self) -> Option<(FrontId, u64)> {
        let named = self.rows.iter().filter(|row| row.refused > 0);
        let most = named.max_by_key(|row| row.refused)?;
        Some((most.front?, most.refused))
    }
}

/// The resource in which an OPEN finds no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// A place in the table of sessions.
    InTable,
    /// A place in the log.
    InLog,
}

impl Device {
    /// Determines the rows over their share of the log, for the next burst. Only a head does this, before it tells the
    /// fast path.
    pub fn weigh(&mut self, now: Time, room: Room) {
        if self.is_head() {
            self.table.shares.weigh(now, room);
        } else {
            self.table.shares.over = 0;
        }
    }

    /// Returns the resource in which an OPEN of this front finds no place, because of the front's share or because no
    /// place is left. If the table is full, other sessions are ended to make room, if possible.
    pub(super) fn finds_no_place(
        &mut self,
        now: Time,
        front: Option<FrontId>,
        room: Room,
    ) -> Option<NoPlace> {
        let at = self.table.shares.row_of(now, front);
        let (shares, most) = (&self.table.shares, self.config.sessions_max);
        let sessions = self.table.sessions.len();
        let beyond_in_table = shares.is_over_in_table(now, at, sessions, most);
        let beyond_in_log = shares.is_over(at);
        // A front with less than its share may begin a session even if other fronts have filled the log.
        let log_admits = room.admits_sessions() || shares.is_below_in_log(now, at, room);
        if beyond_in_table || sessions >= most || self.full {
            self.make_room(now);
        }
        if beyond_in_table || beyond_in_log {
            self.counters.over_share_opens += 1;
            self.table.shares.refused(at);
        } else if sessions >= most {
            self.counters.crowded_opens += 1;
            self.claim(now, at);
        }
        if beyond_in_table || sessions >= most {
            Some(NoPlace::InTable)
        } else {
            (beyond_in_log || !log_admits).then_some(NoPlace::InLog)
        }
    }

    /// Returns the front that was refused most often for being over its share, and the number of its refusals, for a
    /// text to an operator. The counters have only the sum of all fronts.
    #[must_use]
    pub fn most_over_share(&self) -> Option<(FrontId, u64)> {
        self.table.shares.most_refused()
    }
}
