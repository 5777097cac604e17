//! All keys in their order: a skip list in DRAM, and a directory that finds most keys in one step
//! (`docs/spec/packet-store.md` §7). The list and the directory are rebuilt at every start. Invariants: the list has
//! every key once, in the order of `memcmp`. Each link states how many counting keys it skips. So the rank of a key,
//! and the key at a rank, are found as fast as a key. The directory has each key, or the key's bucket counts the key
//! among those that were left out. A bucket never gets larger. So a search takes no longer than in the list, even if a
//! client chooses keys that collide. The bytes of the keys are stored elsewhere, so the caller compares keys.

use std::cmp::Ordering;

use crate::frames::NONE;
use crate::geometry::index;

/// Number of levels, enough for 4^16 keys.
const LEVELS: usize = 16;
/// Number of keys in a bucket. With the count of the keys that were left out, a bucket fills one cache line.
const BUCKET_KEYS: usize = 7;
/// Number of lines of a store for each bucket. A bucket, which has places for seven keys, then holds about four.
const LINES_PER_BUCKET: usize = 4;
/// Number of bytes of a key that are compared without reading the key's record.
const PREFIX_BYTES: usize = 16;

/// Facts about a key that can be compared without reading its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest {
    /// The first bytes of the key as a number. The numbers have the order of these bytes. Shorter keys are padded with
    /// zeros.
    pub prefix: u128,
    /// Hash of the whole key.
    pub hash: u64,
}

impl Digest {
    /// Returns the digest of a key in the store with this seed.
    pub fn new(key: &[u8], seed: u64) -> Digest {
        const MULTIPLIER: u64 = 0x9fb2_1c65_1e98_df25;
        let mut hash = seed ^ crate::geometry::to_u64(key.len()).wrapping_mul(MULTIPLIER);
        let (words, rest) = key.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        for word in words.iter().chain([&last]) {
            hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(MULTIPLIER);
            hash ^= hash >> 29;
        }
        Digest {
            prefix: prefix(key),
            hash,
        }
    }

    fn tag(&self) -> u32 {
        u32::try_from(self.hash >> 32).expect("32 bits")
    }
}

/// Returns the first bytes of a key as a number.
pub(crate) fn prefix(key: &[u8]) -> u128 {
    let mut first = [0; PREFIX_BYTES];
    let len = key.len().min(PREFIX_BYTES);
    first[..len].copy_from_slice(&key[..len]);
    u128::from_be_bytes(first)
}

#[derive(Clone, Copy, Debug)]
struct Key {
    digest: Digest,
    /// Slot of the line of the key's newest version; [`NONE`] if the current transaction wrote the key and removed it
    /// again.
    head: u32,
    /// Index of the key's first link.
    tower: u32,
    /// Number of the previous key in the list.
    before: u32,
    levels: u32,
    /// Whether the key has a record. A deleted key that is still in the list does not count.
    counts: bool,
}

/// A bucket has three parts: the tags of some keys; the numbers of these keys plus one (0: no key); and the number of
/// the keys of this bucket that only the list has. A new bucket is zero, so the memory of unused buckets is never
/// accessed.
type Bucket = [u32; 2 * BUCKET_KEYS + 2];
/// Index at which a bucket counts the keys that only the list has.
const LEFT_OUT: usize = 2 * BUCKET_KEYS;

/// Returns the tag and the number of the key in an entry of a bucket.
fn entry(bucket: &Bucket, at: usize) -> Option<(u32, u32)> {
    let key = bucket[BUCKET_KEYS + at].checked_sub(1)?;
    Some((bucket[at], key))
}

/// A link of the list.
#[derive(Clone, Copy, Debug)]
struct Link {
    /// Key to which the link leads, or [`NONE`].
    to: u32,
    /// Number of counting keys after the start of the link, up to its end. The key at the end is included.
    width: u32,
}

/// For each level, a key, and the number of counting keys up to this key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    keys: [u32; LEVELS],
    ranks: [u32; LEVELS],
}

/// All keys of a store. Each key in the list has a number, until it leaves the list.
#[derive(Debug)]
pub(crate) struct Keys {
    keys: Vec<Key>,
    free: Vec<u32>,
    /// Links of all keys; the first [`LEVELS`] are the links of the list itself.
    links: Vec<Link>,
    /// Unused groups of links, by the number of links in a group.
    free_towers: [Vec<u32>; LEVELS],
    last: u32,
    buckets: Vec<Bucket>,
    random: u64,
}

impl Keys {
    /// Makes a list without keys, for at most `lines` keys.
    pub fn new(lines: u32, seed: u64) -> Keys {
        let buckets = (index(lines) / LINES_PER_BUCKET).next_power_of_two();
        Keys {
            keys: Vec::new(),
            free: Vec::new(),
            links: vec![NOWHERE; LEVELS],
            free_towers: Default::default(),
            last: NONE,
            buckets: vec![[0; 2 * BUCKET_KEYS + 2]; buckets],
            random: seed | 1,
        }
    }

    /// Returns the slot of the line of a key's newest version.
    pub fn head(&self, key: u32) -> u32 {
        self.keys[index(key)].head
    }

    /// Sets the slot of the line of a key's newest version.
    pub fn set_head(&mut self, key: u32, head: u32) {
        self.keys[index(key)].head = head;
    }

    /// Returns the key with this digest for which `compare` returns equal. `compare` gets the slot of a key's newest
    /// version, and compares this key with the searched key.
    pub fn find(&self, digest: &Digest, compare: impl Fn(u32) -> Ordering) -> Option<u32> {
        let bucket = &self.buckets[self.bucket(digest)];
        let tag = digest.tag();
        for at in 0..BUCKET_KEYS {
            if bucket[at] == tag
                && let Some((_, key)) = entry(bucket, at)
                && compare(self.head(key)) == Ordering::Equal
            {
                return Some(key);
            }
        }
        if bucket[LEFT_OUT] == 0 {
            return None;
        }
        let key = self.seek(digest.prefix, &compare, false)?;
        (self.keys[index(key)].digest == *digest && compare(self.head(key)) == Ordering::Equal)
            .then_some(key)
    }

    /// Returns the first key that is not below the searched key. With `above`, returns the first key above the searched
    /// key.
    pub fn seek(
        &self,
        prefix: u128,
        compare: impl Fn(u32) -> Ordering,
        above: bool,
    ) -> Option<u32> {
        let before = self.predecessors(prefix, compare, above);
        some(self.link(before.keys[0], 0).to)
    }

    /// Returns the number of counting keys below the searched key. With `equal`, returns the number of counting keys
    /// that are not above the searched key.
    pub fn below(&self, prefix: u128, compare: impl Fn(u32) -> Ordering, equal: bool) -> u32 {
        self.predecessors(prefix, compare, equal).ranks[0]
    }

    /// Returns the number of counting keys.
    pub fn counted(&self) -> u32 {
        // The search begins at the highest level of the list, which has few links.
        let (mut at, mut all) = (NONE, 0);
        loop {
            let link = self.link(at, LEVELS - 1);
            all += link.width;
            match link.to {
                NONE => return all,
                next => at = next,
            }
        }
    }

    /// Returns the counting key with this rank; ranks begin at 0.
    pub fn nth(&self, rank: u32) -> Option<u32> {
        let (mut at, mut before) = (NONE, 0);
        for level in (0..LEVELS).rev() {
            loop {
                let link = self.link(at, level);
                if link.to == NONE || before + link.width > rank {
                    break;
                }
                at = link.to;
                before += link.width;
            }
        }
        some(self.link(at, 0).to)
    }

    /// Returns the last key below the searched key. With `equal`, returns the last key that is not above the searched
    /// key.
    pub fn seek_back(
        &self,
        prefix: u128,
        compare: impl Fn(u32) -> Ordering,
        equal: bool,
    ) -> Option<u32> {
        some(self.predecessors(prefix, compare, equal).keys[0])
    }

    /// Returns the first key.
    pub fn first(&self) -> Option<u32> {
        some(self.links[0].to)
    }

    /// Returns the last key.
    pub fn last(&self) -> Option<u32> {
        some(self.last)
    }

    /// Returns the next key.
    pub fn next(&self, key: u32) -> Option<u32> {
        some(self.link(key, 0).to)
    }

    /// Returns the previous key.
    pub fn previous(&self, key: u32) -> Option<u32> {
        some(self.keys[index(key)].before)
    }

    /// Adds a new key, and returns its number.
    pub fn insert(&mut self, digest: Digest, head: u32, compare: impl Fn(u32) -> Ordering) -> u32 {
        let before = self.predecessors(digest.prefix, compare, false);
        self.insert_after(digest, head, &before)
    }

    /// Adds a key that is above all keys of the list. The caller must pass the same `before` to each call. Its first
    /// value is [`Keys::AT_START`].
    pub fn append(&mut self, digest: Digest, head: u32, before: &mut Path) {
        let key = self.insert_after(digest, head, before);
        let levels = index(self.keys[index(key)].levels);
        before.keys[..levels].fill(key);
        let rank = before.ranks[0] + 1;
        before.ranks[..levels].fill(rank);
    }

    /// The first value of `before` for [`Keys::append`].
    pub const AT_START: Path = Path {
        keys: [NONE; LEVELS],
        ranks: [0; LEVELS],
    };

    fn insert_after(&mut self, digest: Digest, head: u32, before: &Path) -> u32 {
        let levels = self.draw_levels();
        let tower = self.free_towers[levels - 1].pop().unwrap_or_else(|| {
            let start = self.links.len();
            self.links.resize(start + levels, NOWHERE);
            u32::try_from(start).expect("at most 16 links for each of 2^27 keys")
        });
        let new = Key {
            digest,
            head,
            tower,
            before: before.keys[0],
            levels: u32::try_from(levels).expect("few"),
            counts: true,
        };
        let key = match self.free.pop() {
            Some(key) => {
                self.keys[index(key)] = new;
                key
            }
            None => {
                self.keys.push(new);
                u32::try_from(self.keys.len() - 1).expect("keys are counted in 32 bits")
            }
        };
        for (level, &previous) in before.keys.iter().enumerate() {
            let old = self.link(previous, level);
            if level >= levels {
                self.link_mut(previous, level).width += 1;
                continue;
            }
            // Number of counting keys between the previous key on this level and the new key.
            let between = before.ranks[0] - before.ranks[level];
            *self.link_mut(key, level) = Link {
                to: old.to,
                width: old.width - between,
            };
            *self.link_mut(previous, level) = Link {
                to: key,
                width: between + 1,
            };
            if level == 0 {
                match old.to {
                    NONE => self.last = key,
                    after => self.keys[index(after)].before = key,
                }
            }
        }
        let bucket = self.bucket(&digest);
        let bucket = &mut self.buckets[bucket];
        match (0..BUCKET_KEYS).find(|at| entry(bucket, *at).is_none()) {
            Some(free) => {
                bucket[free] = digest.tag();
                bucket[BUCKET_KEYS + free] = key + 1;
            }
            None => bucket[LEFT_OUT] += 1,
        }
        key
    }

    /// Returns the slots of the newest versions of all keys whose hash tag matches this digest.
    pub fn same_tag(&self, digest: &Digest) -> impl Iterator<Item = u32> {
        let tag = digest.tag();
        let bucket = &self.buckets[self.bucket(digest)];
        let same = (0..BUCKET_KEYS).filter_map(move |at| entry(bucket, at));
        same.filter(move |(other, _)| *other == tag)
            .map(|(_, key)| self.head(key))
    }

    /// Sets whether a key counts. `compare` compares a key with this key.
    pub fn set_counts(&mut self, key: u32, counts: bool, compare: impl Fn(u32) -> Ordering) {
        let digest = self.keys[index(key)].digest;
        if std::mem::replace(&mut self.keys[index(key)].counts, counts) == counts {
            return;
        }
        let before = self.predecessors(digest.prefix, compare, false);
        if self.link(before.keys[0], 0).to != key {
            self.measure();
            return;
        }
        for (level, &previous) in before.keys.iter().enumerate() {
            let link = self.link_mut(previous, level);
            if counts {
                link.width += 1;
            } else {
                link.width -= 1;
            }
        }
    }

    /// Removes a key from the list. `compare` compares a key with this key.
    pub fn remove(&mut self, key: u32, compare: impl Fn(u32) -> Ordering) {
        let gone = self.keys[index(key)];
        let before = self.predecessors(gone.digest.prefix, compare, false);
        let share = u32::from(gone.counts);
        // If the search does not find the key, the bytes of this key or of another key have changed. Only a walk
        // through the list then finds the key.
        let found = self.link(before.keys[0], 0).to == key;
        for (level, &previous) in before.keys.iter().enumerate() {
            if level >= index(gone.levels) {
                if found {
                    self.link_mut(previous, level).width -= share;
                }
                continue;
            }
            let mut previous = previous;
            if self.link(previous, level).to != key {
                previous = NONE;
                while self.link(previous, level).to != key {
                    previous = self.link(previous, level).to;
                }
            }
            let after = self.link(key, level);
            let link = self.link_mut(previous, level);
            link.to = after.to;
            link.width = (link.width + after.width).wrapping_sub(share);
        }
        self.keys[index(key)].head = NONE;
        match self.link(key, 0).to {
            NONE => self.last = gone.before,
            after => self.keys[index(after)].before = gone.before,
        }
        self.free_towers[index(gone.levels) - 1].push(gone.tower);
        self.free.push(key);
        let bucket = self.bucket(&gone.digest);
        let bucket = &mut self.buckets[bucket];
        match (0..BUCKET_KEYS).find(|at| bucket[BUCKET_KEYS + at] == key + 1) {
            Some(found) => (bucket[found], bucket[BUCKET_KEYS + found]) = (0, 0),
            None => bucket[LEFT_OUT] -= 1,
        }
        if !found {
            self.measure();
        }
    }

    /// Counts again how many keys each link skips. A new count is needed after a key was found only by a walk.
    fn measure(&mut self) {
        let mut open = [(NONE, 0); LEVELS];
        let mut at = self.link(NONE, 0).to;
        while at != NONE {
            let Key { levels, counts, .. } = self.keys[index(at)];
            for (level, (from, width)) in open.iter_mut().enumerate() {
                *width += u32::from(counts);
                if level < index(levels) {
                    let tower = tower_of(&self.keys, *from);
                    self.links[tower + level].width = *width;
                    (*from, *width) = (at, 0);
                }
            }
            at = self.link(at, 0).to;
        }
        for (level, (from, width)) in open.into_iter().enumerate() {
            self.link_mut(from, level).width = width;
        }
    }

    fn bucket(&self, digest: &Digest) -> usize {
        let low = u32::try_from(digest.hash & u64::from(u32::MAX)).expect("32 bits");
        index(low) & (self.buckets.len() - 1)
    }

    /// Returns, for each level, the last key below the searched key. With `equal`, returns the last key that is not
    /// above the searched key.
    fn predecessors(&self, prefix: u128, compare: impl Fn(u32) -> Ordering, equal: bool) -> Path {
        let mut before = Keys::AT_START;
        let (mut at, mut rank) = (NONE, 0);
        // If a comparison has shown that a key is not below the searched key, the search need not compare this key
        // again on the next lower level.
        let mut limit = NONE;
        for level in (0..LEVELS).rev() {
            loop {
                let Link { to: next, width } = self.link(at, level);
                if next == NONE || next == limit {
                    break;
                }
                let found = &self.keys[index(next)];
                let order = found
                    .digest
                    .prefix
                    .cmp(&prefix)
                    .then_with(|| compare(found.head));
                let goes_on = order == Ordering::Less || equal && order == Ordering::Equal;
                if !goes_on {
                    limit = next;
                    break;
                }
                at = next;
                rank += width;
            }
            before.keys[level] = at;
            before.ranks[level] = rank;
        }
        before
    }

    /// Returns the link of a key on a level. With [`NONE`], returns the link of the list itself.
    fn link(&self, key: u32, level: usize) -> Link {
        self.links[tower_of(&self.keys, key) + level]
    }

    fn link_mut(&mut self, key: u32, level: usize) -> &mut Link {
        &mut self.links[tower_of(&self.keys, key) + level]
    }

    /// Returns a random number of levels. One level is certain, and each further level has a chance of one in four.
    fn draw_levels(&mut self) -> usize {
        // The generator is xorshift64. The heights must be random, but need not be secret.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let pairs = (self.random >> 16).trailing_zeros() / 2;
        (1 + index(pairs)).min(LEVELS)
    }
}

/// A link that leads nowhere and skips no key.
const NOWHERE: Link = Link { to: NONE, width: 0 };

/// Returns the index of the first link of a key. With [`NONE`], returns the index of the first link of the list itself.
fn tower_of(keys: &[Key], key: u32) -> usize {
    match key {
        NONE => 0,
        key => index(keys[index(key)].tower),
    }
}

fn some(key: u32) -> Option<u32> {
    (key != NONE).then_some(key)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A list of keys in a test. The slot of a key is the index of its bytes.
    struct Named {
        keys: Keys,
        names: Vec<Vec<u8>>,
    }

    impl Named {
        fn with_hash(&mut self, name: &[u8], hash: u64) -> u32 {
            self.names.push(name.to_vec());
            let slot = u32::try_from(self.names.len() - 1).unwrap();
            let digest = Digest {
                prefix: prefix(name),
                hash,
            };
            let names = &self.names;
            self.keys
                .insert(digest, slot, |slot| names[index(slot)].as_slice().cmp(name))
        }

        fn compare<'a>(&'a self, name: &'a [u8]) -> impl Fn(u32) -> Ordering + 'a {
            |slot| self.names[index(slot)].as_slice().cmp(name)
        }

        fn forward(&self) -> Vec<&[u8]> {
            let mut all = Vec::new();
            let mut next = self.keys.first();
            while let Some(key) = next {
                all.push(self.names[index(self.keys.head(key))].as_slice());
                next = self.keys.next(key);
            }
            all
        }
    }

    #[test]
    fn it_is_the_same_as_an_ordered_map_whatever_the_hashes_are() {
        for same_hash in [false, true] {
            let mut named = Named {
                keys: Keys::new(128, 7),
                names: Vec::new(),
            };
            let mut model: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
            let mut random = 88172645463325252u64;
            for step in 0..20_000u64 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // Short keys, long keys with a common prefix, and keys that end with zeros.
                let number = (random >> 20) % 300;
                let name = match number % 3 {
                    0 => number.to_string().into_bytes(),
                    1 => format!("the same first sixteen bytes {number}").into_bytes(),
                    _ => vec![0; usize::try_from(number % 40).unwrap()],
                };
                let hash = match same_hash {
                    true => 5,
                    false => Digest::new(&name, 1).hash,
                };
                let digest = Digest {
                    prefix: prefix(&name),
                    hash,
                };
                let found = named.keys.find(&digest, named.compare(&name));
                assert_eq!(found, model.get(&name).copied(), "step {step}");
                match found {
                    None => {
                        let key = named.with_hash(&name, hash);
                        model.insert(name, key);
                    }
                    Some(key) if random.is_multiple_of(2) => {
                        let names = &named.names;
                        named
                            .keys
                            .remove(key, |slot| names[index(slot)].as_slice().cmp(&name));
                        model.remove(&name);
                    }
                    Some(_) => {
                        let next = model.range(name.clone()..).nth(1).map(|(_, key)| *key);
                        assert_eq!(
                            named.keys.seek(digest.prefix, named.compare(&name), true),
                            next
                        );
                        let last = model.range(..name.clone()).next_back().map(|(_, key)| *key);
                        assert_eq!(
                            named
                                .keys
                                .seek_back(digest.prefix, named.compare(&name), false),
                            last
                        );
                    }
                }
            }
            let expected: Vec<&[u8]> = model.keys().map(Vec::as_slice).collect();
            assert_eq!(named.forward(), expected);
            let mut back = named.keys.last();
            for name in expected.iter().rev() {
                let key = back.unwrap();
                assert_eq!(named.names[index(named.keys.head(key))], *name);
                back = named.keys.previous(key);
            }
            assert_eq!(back, None);
        }
    }

    /// Checks the ranks of all counting keys against a sorted list.
    fn places_are_right(keys: &Keys, names: &[Vec<u8>], counting: &BTreeMap<Vec<u8>, bool>) {
        let listed: Vec<&Vec<u8>> = counting
            .iter()
            .filter(|(_, is)| **is)
            .map(|(n, _)| n)
            .collect();
        assert_eq!(keys.counted(), u32::try_from(listed.len()).unwrap());
        for (place, name) in (0..).zip(&listed) {
            let found = keys.nth(place).map(|key| &names[index(keys.head(key))]);
            assert_eq!(found, Some(*name), "place {place}");
        }
        assert_eq!(keys.nth(keys.counted()), None);
        for name in counting.keys() {
            let compare = |slot| -> Ordering { names[index(slot)].as_slice().cmp(name) };
            let below = listed.iter().filter(|other| **other < name).count();
            let upto = listed.iter().filter(|other| **other <= name).count();
            let found = [false, true].map(|equal| keys.below(prefix(name), compare, equal));
            assert_eq!(found.map(index), [below, upto]);
        }
    }

    #[test]
    fn each_key_that_counts_has_its_place() {
        let mut keys = Keys::new(128, 7);
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut model: BTreeMap<Vec<u8>, (u32, bool)> = BTreeMap::new();
        let mut random = 88172645463325252u64;
        for step in 0..6_000u64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let name = format!("the same first sixteen bytes {}", (random >> 20) % 200);
            let name = name.into_bytes();
            let compare = |names: &[Vec<u8>], slot: u32| names[index(slot)].as_slice().cmp(&name);
            match model.get(&name).copied() {
                None => {
                    names.push(name.clone());
                    let slot = u32::try_from(names.len() - 1).unwrap();
                    let key =
                        keys.insert(Digest::new(&name, 1), slot, |slot| compare(&names, slot));
                    model.insert(name.clone(), (key, true));
                }
                Some((key, _)) if random % 5 < 2 => {
                    keys.remove(key, |slot| compare(&names, slot));
                    model.remove(&name);
                }
                Some((key, counts)) if random % 5 < 4 => {
                    keys.set_counts(key, !counts, |slot| compare(&names, slot));
                    model.insert(name.clone(), (key, !counts));
                }
                // The test acts as if the bytes of this key, or of other keys, had changed.
                Some((key, _)) => {
                    keys.remove(key, |_| Ordering::Less);
                    model.remove(&name);
                }
            }
            if step % 64 == 0 {
                let counting = model
                    .iter()
                    .map(|(name, (_, is))| (name.clone(), *is))
                    .collect();
                places_are_right(&keys, &names, &counting);
            }
        }
    }

    #[test]
    fn what_is_appended_in_order_can_be_found() {
        let names: Vec<Vec<u8>> = (0..500).map(|n| format!("{n:04}").into_bytes()).collect();
        let mut named = Named {
            keys: Keys::new(256, 3),
            names: names.clone(),
        };
        let mut before = Keys::AT_START;
        for (slot, name) in (0..).zip(&names) {
            named.keys.append(Digest::new(name, 9), slot, &mut before);
        }
        for (key, name) in (0..).zip(&names) {
            let digest = Digest::new(name, 9);
            assert_eq!(named.keys.find(&digest, named.compare(name)), Some(key));
        }
        assert_eq!(named.forward().len(), 500);
        let counting = names.iter().map(|name| (name.clone(), true)).collect();
        places_are_right(&named.keys, &names, &counting);
    }
}
