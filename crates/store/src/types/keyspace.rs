//! Keys and collections over rows: the code that all types share.
//!
//! If a key is removed, overwritten or expired, its members are no longer reachable, because the number of its
//! collection is never used again. The rows of these members are removed later, a bounded number in each transaction
//! that writes ([`Keyspace::sweep`]).

use std::cell::Cell;
use std::ops::{Bound, ControlFlow};

use pmnet_wire::command::arrival;

use super::layout::{
    self, DATABASES, FIRST_ID, HEAD_PREFIX, Head, Kind, MEMBER_PREFIX, PLAIN, Part,
};
use super::scan::Cursors;
use crate::rows::{About, Fault, Order, Row, Rows, Update};

/// Largest number of members that are removed together with their collection. The members of a larger collection are
/// left to [`Keyspace::sweep`].
const REMOVED_AT_ONCE: u64 = 64;
/// Number of keys that one transaction checks for expiry.
const LOOKED_AT: usize = 16;
/// Longest string that a command may build from several arguments, in bytes. `GET` can return a string of this length,
/// alone and in a transaction.
pub const STRING_BYTES_MAX: usize = crate::REPLY_BYTES_MAX - 64;
/// Maximum number of unreachable rows that one transaction removes.
pub const SWEPT_ROWS: usize = 512;

/// Function that is called with each visited key and its head.
pub type VisitHead<'v> = dyn FnMut(&[u8], Head) -> ControlFlow<()> + 'v;
/// Range of the names of members.
pub type Names<'n> = (Bound<&'n [u8]>, Bound<&'n [u8]>);
/// Function that is called with the name and the row of each visited member of a collection.
pub type VisitMember<'v> = dyn FnMut(&[u8], Row<'_>) -> ControlFlow<()> + 'v;

/// Returns the rows of members between two names.
fn rows_of(id: u64, part: Part, (from, to): Names<'_>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let whole = |bound: Bound<&[u8]>| bound.map(|name| layout::member(id, part, name));
    let (mut from, mut to) = (whole(from), whole(to));
    if from == Bound::Unbounded {
        from = Bound::Included(layout::member(id, part, b""));
    }
    if to == Bound::Unbounded {
        to = Bound::Excluded(layout::end_of(id, part));
    }
    (from, to)
}

/// The keys of all databases in one transaction.
pub struct Keyspace<'r> {
    rows: &'r mut dyn Rows,
    /// The time of the transaction, in milliseconds since 1970.
    now: u64,
    /// Positions of iterations, which outlive the transaction.
    pub cursors: &'r mut Cursors,
    /// Numbers of the databases' key spaces. A number is missing until it has been read from the rows.
    spaces: [Cell<Option<u64>>; DATABASES as usize],
    random: Cell<u64>,
}

impl<'r> Keyspace<'r> {
    /// Makes the keyspace over `rows` at the time `now`, in ms since 1970. All random choices follow from `seed`.
    pub fn new(
        rows: &'r mut dyn Rows,
        now: u64,
        cursors: &'r mut Cursors,
        seed: u64,
    ) -> Keyspace<'r> {
        Keyspace {
            rows,
            now,
            cursors,
            spaces: Default::default(),
            random: Cell::new(seed),
        }
    }

    /// Does the same as [`Rows::begin_update`].
    pub fn begin_update(&mut self, update: Option<Update>) {
        self.rows.begin_update(update);
    }

    /// Notes that a key was written or removed, so that clients which watch it can be told.
    pub fn changed(&mut self, database: u32, key: &[u8]) {
        self.cursors.watched.changed(database, key);
    }

    /// Notes that a key which did not exist becomes a list or a sorted set, so that clients which wait for it can be
    /// told.
    fn arrives(&mut self, database: u32, key: &[u8], kind: Kind) {
        if let Kind::List | Kind::SortedSet = kind {
            let sorted = kind == Kind::SortedSet;
            self.cursors.arrivals.note(arrival(database, sorted, key));
        }
    }

    /// Returns the time of the transaction, in ms since 1970.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Returns a random number below `limit`, which must not be 0.
    pub fn random_below(&self, limit: u64) -> u64 {
        // The generator is SplitMix64. The remainder of the division is uniform enough for limits far below 2^64.
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn number(&self, key: &[u8]) -> Result<Option<u64>, Fault> {
        let found = self.get(key, |row| row.value.try_into().map(u64::from_be_bytes))?;
        found
            .transpose()
            .map_err(|_| Fault::Corrupted("a number of another length".into()))
    }

    fn get<T>(&self, key: &[u8], look: impl FnOnce(Row<'_>) -> T) -> Result<Option<T>, Fault> {
        let (mut look, mut found) = (Some(look), None);
        self.rows
            .get(key, &mut |row| found = look.take().map(|look| look(row)))?;
        Ok(found)
    }

    fn space(&self, database: u32) -> Result<u64, Fault> {
        let known = usize::try_from(database)
            .ok()
            .and_then(|at| self.spaces.get(at));
        if let Some(space) = known.and_then(Cell::get) {
            return Ok(space);
        }
        let stored = self.number(&layout::database(database))?;
        let space = stored.unwrap_or(u64::from(database));
        if let Some(known) = known {
            known.set(Some(space));
        }
        Ok(space)
    }

    fn fresh_id(&mut self) -> Result<u64, Fault> {
        let key = layout::next_id();
        let id = self.number(&key)?.unwrap_or(FIRST_ID);
        self.rows.put(&key, PLAIN, 0, &(id + 1).to_be_bytes())?;
        Ok(id)
    }

    fn head_key(&self, database: u32, key: &[u8]) -> Result<Vec<u8>, Fault> {
        Ok(layout::head(self.space(database)?, key))
    }

    fn live(&self, head: Head) -> bool {
        head.expires == 0 || head.expires > self.now
    }

    /// Returns the head of a key if the key exists.
    pub fn head(&self, database: u32, key: &[u8]) -> Result<Option<Head>, Fault> {
        let head = self
            .get(&self.head_key(database, key)?, Head::read)?
            .transpose()?;
        Ok(head.filter(|head| self.live(*head)))
    }

    /// Calls `look` with the string of a key, if the key exists and holds a string.
    pub fn string<T>(
        &self,
        database: u32,
        key: &[u8],
        look: impl FnOnce(Head, &[u8]) -> T,
    ) -> Result<Option<T>, Fault> {
        let found = self.get(&self.head_key(database, key)?, |row| {
            let head = Head::read(row)?;
            let shown = self.live(head) && head.kind == Kind::String;
            Ok::<_, Fault>(shown.then(|| look(head, row.value)))
        })?;
        Ok(found.transpose()?.flatten())
    }

    /// Removes the value of a key, even if it has expired.
    pub fn remove(&mut self, database: u32, key: &[u8]) -> Result<(), Fault> {
        let row = self.head_key(database, key)?;
        if let Some(head) = self.get(&row, Head::read)?.transpose()? {
            self.discard(head)?;
            self.rows.remove(&row)?;
            if self.live(head) {
                self.changed(database, key);
            }
        }
        Ok(())
    }

    /// Removes the members of a collection whose head is being removed or overwritten, or leaves them to the sweep.
    fn discard(&mut self, head: Head) -> Result<(), Fault> {
        if head.kind == Kind::String {
            return Ok(());
        }
        if head.count > REMOVED_AT_ONCE {
            return self
                .rows
                .put(&layout::garbage(head.id), head.kind.byte(), 0, b"");
        }
        for key in self.keys_in(&layout::members_of(head.id), usize::MAX)? {
            self.rows.remove(&key)?;
        }
        Ok(())
    }

    fn keys_in(&self, bounds: &(Vec<u8>, Vec<u8>), limit: usize) -> Result<Vec<Vec<u8>>, Fault> {
        let mut keys = Vec::new();
        if limit > 0 {
            self.rows
                .scan(layout::range(bounds), Order::Ascending, &mut |key, _| {
                    keys.push(key.to_vec());
                    if keys.len() < limit {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                })?;
        }
        Ok(keys)
    }

    /// Writes a string as the value of a key, whatever value the key had before.
    pub fn put_string(
        &mut self,
        database: u32,
        key: &[u8],
        expires: u64,
        value: &[u8],
    ) -> Result<(), Fault> {
        let row = self.head_key(database, key)?;
        if let Some(old) = self.get(&row, Head::read)?.transpose()? {
            self.discard(old)?;
        }
        self.changed(database, key);
        if expires != 0 && expires <= self.now {
            // The new value has already expired: no client sees it.
            return self.rows.remove(&row);
        }
        self.rows.put(&row, Kind::String.byte(), expires, value)
    }

    /// Sets the time of expiry of an existing key.
    pub fn put_expiry(&mut self, database: u32, key: &[u8], expires: u64) -> Result<(), Fault> {
        self.changed(database, key);
        let row = self.head_key(database, key)?;
        let found = self.get(&row, |row| (row.kind, row.value.to_vec()))?;
        match found {
            Some((kind, value)) => self.rows.put(&row, kind, expires, &value),
            None => Ok(()),
        }
    }

    /// Removes the earlier value of this key, and returns a new collection without members for the key. Clients see the
    /// collection only after [`Keyspace::keep`].
    pub fn create(&mut self, database: u32, key: &[u8], kind: Kind) -> Result<Head, Fault> {
        self.remove(database, key)?;
        self.arrives(database, key, kind);
        Ok(Head::empty(kind, self.fresh_id()?))
    }

    /// Writes a collection's head, or removes the key if the collection has no members.
    pub fn keep(&mut self, database: u32, key: &[u8], head: &Head) -> Result<(), Fault> {
        let row = self.head_key(database, key)?;
        // A key that did not exist and gets no members counts as unchanged.
        if head.count > 0
            || self.cursors.watched.has(database, key) && self.get(&row, |_| ())?.is_some()
        {
            self.changed(database, key);
        }
        if head.count == 0 {
            return self.rows.remove(&row);
        }
        self.rows
            .put(&row, head.kind.byte(), head.expires, &head.value())
    }

    /// Moves the value of the key `from` to the key `to`, and removes the earlier value of `to`.
    pub fn rename(&mut self, from: (u32, &[u8]), to: (u32, &[u8])) -> Result<(), Fault> {
        self.remove(to.0, to.1)?;
        let old = self.head_key(from.0, from.1)?;
        let content = |row: Row<'_>| (row.kind, row.expires_at_ms, row.value.to_vec());
        if let Some((kind, expires, value)) = self.get(&old, content)? {
            self.rows.remove(&old)?;
            let new = self.head_key(to.0, to.1)?;
            self.rows.put(&new, kind, expires, &value)?;
            self.changed(from.0, from.1);
            self.changed(to.0, to.1);
            if let Some(kind) = [Kind::List, Kind::SortedSet]
                .into_iter()
                .find(|of| of.byte() == kind)
            {
                self.arrives(to.0, to.1, kind);
            }
        }
        Ok(())
    }

    /// Copies the value of the key `from` to the key `to`, and removes the earlier value of `to`.
    pub fn copy(&mut self, from: (u32, &[u8]), to: (u32, &[u8])) -> Result<(), Fault> {
        let Some(head) = self.head(from.0, from.1)? else {
            return Ok(());
        };
        if head.kind == Kind::String {
            let value = self.string(from.0, from.1, |_, value| value.to_vec())?;
            return self.put_string(to.0, to.1, head.expires, &value.unwrap_or_default());
        }
        let id = self.create(to.0, to.1, head.kind)?.id;
        for key in self.keys_in(&layout::members_of(head.id), usize::MAX)? {
            let content = |row: Row<'_>| (row.kind, row.value.to_vec());
            let Some((kind, value)) = self.get(&key, content)? else {
                continue;
            };
            let mut copied = layout::members_of(id).0;
            copied.extend_from_slice(&key[copied.len()..]);
            self.rows.put(&copied, kind, 0, &value)?;
        }
        self.keep(to.0, to.1, &Head { id, ..head })
    }

    /// Visits the keys of a database in their order, from the given key on. Expired keys are left out.
    pub fn heads(
        &self,
        database: u32,
        from: &[u8],
        visit: &mut VisitHead<'_>,
    ) -> Result<(), Fault> {
        let space = self.space(database)?;
        let (_, end) = layout::heads_of(space);
        let bounds = (layout::head(space, from), end);
        let mut damage = None;
        self.rows.scan(
            layout::range(&bounds),
            Order::Ascending,
            &mut |key, row| match Head::read(row) {
                Ok(head) if !self.live(head) => ControlFlow::Continue(()),
                Ok(head) => visit(&key[HEAD_PREFIX..], head),
                Err(fault) => {
                    damage = Some(fault);
                    ControlFlow::Break(())
                }
            },
        )?;
        damage.map_or(Ok(()), Err)
    }

    /// Returns facts about the store.
    pub fn about(&self) -> About {
        self.rows.about()
    }

    /// Returns the number of keys in a database. Expired keys count until they are removed.
    pub fn count_heads(&self, database: u32) -> Result<u64, Fault> {
        let bounds = layout::heads_of(self.space(database)?);
        Ok(self.rows.count(layout::range(&bounds)))
    }

    /// Returns the key at position `skip` in the order of keys, and its head, even if the key has expired.
    pub fn nth_head(&self, database: u32, skip: u64) -> Result<Option<(Vec<u8>, Head)>, Fault> {
        let bounds = layout::heads_of(self.space(database)?);
        let (range, mut found) = (layout::range(&bounds), None);
        self.rows
            .scan_from(range, Order::Ascending, skip, &mut |key, row| {
                found = Some((key[HEAD_PREFIX..].to_vec(), Head::read(row)));
                ControlFlow::Break(())
            })?;
        found.map(|(key, head)| Ok((key, head?))).transpose()
    }

    /// Returns whether the key with this head exists and has not expired.
    pub fn is_live(&self, head: Head) -> bool {
        self.live(head)
    }

    /// Empties a database. The keys of the database are unreachable at once; their rows are removed later by the sweep.
    pub fn flush(&mut self, database: u32) -> Result<(), Fault> {
        let space = self.space(database)?;
        if self.keys_in(&layout::heads_of(space), 1)?.is_empty() {
            return Ok(());
        }
        self.cursors.watched.emptied(database);
        let fresh = self.fresh_id()?;
        self.rows
            .put(&layout::database(database), PLAIN, 0, &fresh.to_be_bytes())?;
        self.rows.put(&layout::garbage(space), PLAIN, 0, b"")?;
        if let Some(known) = usize::try_from(database)
            .ok()
            .and_then(|at| self.spaces.get(at))
        {
            known.set(Some(fresh));
        }
        Ok(())
    }

    /// Visits about `most` heads of the store, in their order. The visit begins where the last visit ended, or with the
    /// first head. Returns `false` if the visit has reached the last head. The next visit then begins with the first
    /// head.
    fn next_heads(
        &mut self,
        most: usize,
        visit: &mut dyn FnMut(&[u8], Row<'_>),
    ) -> Result<bool, Fault> {
        let (mut from, end) = layout::all_heads();
        if !self.cursors.reclaimed.is_empty() {
            from = std::mem::take(&mut self.cursors.reclaimed);
        }
        let (mut seen, mut next) = (0, Vec::new());
        self.rows.scan(
            layout::range(&(from, end)),
            Order::Ascending,
            &mut |key, row| {
                if seen == most {
                    next = key.to_vec();
                    return ControlFlow::Break(());
                }
                seen += 1;
                visit(key, row);
                ControlFlow::Continue(())
            },
        )?;
        let goes_on = !next.is_empty();
        self.cursors.reclaimed = next;
        Ok(goes_on)
    }

    /// Removes the expired keys among the next `most` keys. Returns the number of removed keys. Each call continues
    /// where the last call ended. After the last key, the next call begins with the first key.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn reclaim(&mut self, most: usize) -> Result<usize, Fault> {
        let mut found = Vec::new();
        let now = self.now;
        self.next_heads(most, &mut |key, row| {
            if row.expires_at_ms != 0 && row.expires_at_ms <= now {
                found.push((key.to_vec(), Head::read(row)));
            }
        })?;
        let count = found.len();
        self.rows.set_frees(true);
        for (key, head) in found {
            self.discard(head?)?;
            self.rows.remove(&key)?;
        }
        self.rows.set_frees(false);
        Ok(count)
    }

    /// Returns whether any row is unreachable, or any of the next `most` keys has expired.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn has_garbage(&mut self, most: usize) -> Result<bool, Fault> {
        let mut found = !self.keys_in(&layout::all_garbage(), 1)?.is_empty();
        let now = self.now;
        self.next_heads(most, &mut |_, row| {
            found |= row.expires_at_ms != 0 && row.expires_at_ms <= now;
        })?;
        Ok(found)
    }

    /// Removes the expired keys among the next `keys` keys, and about `rows` unreachable rows. Returns the number of
    /// removed keys and rows.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn clear(&mut self, keys: usize, rows: usize) -> Result<usize, Fault> {
        Ok(self.reclaim(keys)? + self.sweep_garbage(rows)?)
    }

    /// Removes some expired keys, and at most about `limit` unreachable rows.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn sweep(&mut self, limit: usize) -> Result<(), Fault> {
        self.reclaim(LOOKED_AT)?;
        self.sweep_garbage(limit).map(drop)
    }

    /// Removes at most about `limit` unreachable rows. Returns the number of removed rows.
    fn sweep_garbage(&mut self, limit: usize) -> Result<usize, Fault> {
        self.rows.set_frees(true);
        let swept = self.sweep_rows(limit);
        self.rows.set_frees(false);
        swept
    }

    fn sweep_rows(&mut self, limit: usize) -> Result<usize, Fault> {
        let mut left = limit;
        while left > 0 {
            let mut next = None;
            self.rows.scan(
                layout::range(&layout::all_garbage()),
                Order::Ascending,
                &mut |key, row| {
                    next = layout::garbage_id(key).map(|id| (id, row.kind == PLAIN));
                    ControlFlow::Break(())
                },
            )?;
            let Some((id, is_space)) = next else {
                break;
            };
            let bounds = if is_space {
                layout::heads_of(id)
            } else {
                layout::members_of(id)
            };
            let keys = self.keys_in(&bounds, left)?;
            let mut whole = keys.len() < left;
            for key in &keys {
                if left == 0 {
                    whole = false;
                    break;
                }
                let mut removed = 1;
                if is_space && let Some(head) = self.get(key, Head::read)?.transpose()? {
                    self.discard(head)?;
                    removed += usize::try_from(head.count.min(REMOVED_AT_ONCE)).unwrap_or(0);
                }
                self.rows.remove(key)?;
                left = left.saturating_sub(removed);
            }
            if whole {
                self.rows.remove(&layout::garbage(id))?;
                left = left.saturating_sub(1);
            }
        }
        Ok(limit - left)
    }

    /// Does the same as [`Rows::set_frees`].
    pub fn set_frees(&mut self, frees: bool) {
        self.rows.set_frees(frees);
    }

    /// Calls `look` with the row of a member if the member exists.
    pub fn member<T>(
        &self,
        id: u64,
        part: Part,
        name: &[u8],
        look: impl FnOnce(Row<'_>) -> T,
    ) -> Result<Option<T>, Fault> {
        self.get(&layout::member(id, part, name), look)
    }

    /// Returns whether the collection has this member.
    pub fn has(&self, id: u64, part: Part, name: &[u8]) -> Result<bool, Fault> {
        Ok(self.member(id, part, name, |_| ())?.is_some())
    }

    /// Writes the row of a member.
    pub fn put_member(
        &mut self,
        id: u64,
        part: Part,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), Fault> {
        self.rows
            .put(&layout::member(id, part, name), PLAIN, 0, value)
    }

    /// Removes the row of a member.
    pub fn remove_member(&mut self, id: u64, part: Part, name: &[u8]) -> Result<(), Fault> {
        self.rows.remove(&layout::member(id, part, name))
    }

    /// Visits the members of a part between two names, in their order.
    pub fn members(
        &self,
        id: u64,
        part: Part,
        range: Names<'_>,
        order: Order,
        visit: &mut VisitMember<'_>,
    ) -> Result<(), Fault> {
        self.members_from(id, part, range, order, 0, visit)
    }

    /// Visits the members of a collection in the given order, without the first `skip` members.
    pub fn members_from(
        &self,
        id: u64,
        part: Part,
        range: Names<'_>,
        order: Order,
        skip: u64,
        visit: &mut VisitMember<'_>,
    ) -> Result<(), Fault> {
        let (from, to) = rows_of(id, part, range);
        let range = (
            from.as_ref().map(Vec::as_slice),
            to.as_ref().map(Vec::as_slice),
        );
        self.rows.scan_from(range, order, skip, &mut |key, row| {
            visit(&key[MEMBER_PREFIX..], row)
        })
    }

    /// Returns the number of members of a part between two names.
    pub fn count_members(&self, id: u64, part: Part, range: Names<'_>) -> u64 {
        let (from, to) = rows_of(id, part, range);
        let range = (
            from.as_ref().map(Vec::as_slice),
            to.as_ref().map(Vec::as_slice),
        );
        self.rows.count(range)
    }
}
