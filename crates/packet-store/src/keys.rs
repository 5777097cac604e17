//! All keys, in order: a skip list in DRAM, and a directory that finds most keys at once
//! (`docs/spec/packet-store.md` §7). Rebuilt at every start.
//!
//! Invariants: the list has every key once, in the order of `memcmp`; the directory has a key, or its bucket counts it as
//! left out. A bucket never grows, so whatever keys somebody chooses, a search takes no longer than in the list.
//! The bytes of the keys are not here: whoever calls compares.

use std::cmp::Ordering;

use crate::frames::NONE;
use crate::geometry::index;

/// Most levels: enough for 4^16 keys.
const LEVELS: usize = 16;
/// Keys of a bucket: one cache line, with the count of those left out.
const BUCKET_KEYS: usize = 7;
/// Lines of a store for each bucket: about four keys of seven.
const LINES_PER_BUCKET: usize = 4;
/// Bytes of a key that are compared without looking at the record.
const PREFIX_BYTES: usize = 16;

/// What is known of a key without its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest {
    /// First bytes, as a number that is ordered as they are; shorter keys are filled up with zeros.
    pub prefix: u128,
    /// Hash of the whole key.
    pub hash: u64,
}

impl Digest {
    /// The digest of a key in the store with this seed.
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

/// First bytes of a key as a number.
pub(crate) fn prefix(key: &[u8]) -> u128 {
    let mut first = [0; PREFIX_BYTES];
    let len = key.len().min(PREFIX_BYTES);
    first[..len].copy_from_slice(&key[..len]);
    u128::from_be_bytes(first)
}

#[derive(Clone, Copy, Debug)]
struct Key {
    digest: Digest,
    /// Slot of its newest version; [`NONE`] within a transaction that wrote it and removed it again.
    head: u32,
    /// Where its links begin.
    tower: u32,
    /// The key before it.
    before: u32,
    levels: u32,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Tag and number of a key each; the number is [`NONE`] where there is none.
    keys: [(u32, u32); BUCKET_KEYS],
    /// Keys of this bucket that are in the list only.
    left_out: u32,
}

/// Every key of a store. A key is called by a number as long as it is there.
#[derive(Debug)]
pub(crate) struct Keys {
    keys: Vec<Key>,
    free: Vec<u32>,
    /// The links of all keys; the first [`LEVELS`] are those of the list itself.
    links: Vec<u32>,
    /// Unused links of each height.
    free_towers: [Vec<u32>; LEVELS],
    last: u32,
    buckets: Vec<Bucket>,
    random: u64,
}

impl Keys {
    /// No keys yet; as many as there are lines may come.
    pub fn new(lines: u32, seed: u64) -> Keys {
        let buckets = (index(lines) / LINES_PER_BUCKET).next_power_of_two();
        let empty = Bucket {
            keys: [(0, NONE); BUCKET_KEYS],
            left_out: 0,
        };
        Keys {
            keys: Vec::new(),
            free: Vec::new(),
            links: vec![NONE; LEVELS],
            free_towers: Default::default(),
            last: NONE,
            buckets: vec![empty; buckets],
            random: seed | 1,
        }
    }

    /// Slot of the newest version.
    pub fn head(&self, key: u32) -> u32 {
        self.keys[index(key)].head
    }

    /// Another version is the newest now.
    pub fn set_head(&mut self, key: u32, head: u32) {
        self.keys[index(key)].head = head;
    }

    /// The key of this digest for which `compare` says that its record has it; `compare` gets the slot of the newest version
    /// of a key, and compares that key with the one sought.
    pub fn find(&self, digest: &Digest, compare: impl Fn(u32) -> Ordering) -> Option<u32> {
        let bucket = &self.buckets[self.bucket(digest)];
        let tag = digest.tag();
        for &(other, key) in &bucket.keys {
            if other == tag && key != NONE && compare(self.head(key)) == Ordering::Equal {
                return Some(key);
            }
        }
        if bucket.left_out == 0 {
            return None;
        }
        let key = self.seek(digest.prefix, &compare, false)?;
        (self.keys[index(key)].digest == *digest && compare(self.head(key)) == Ordering::Equal)
            .then_some(key)
    }

    /// The first key that is not below the one sought; with `above`, the first above it.
    pub fn seek(
        &self,
        prefix: u128,
        compare: impl Fn(u32) -> Ordering,
        above: bool,
    ) -> Option<u32> {
        let before = self.predecessors(prefix, compare, above);
        some(self.link(before[0], 0))
    }

    /// The last key below the one sought; with `equal`, the last that is not above it.
    pub fn seek_back(
        &self,
        prefix: u128,
        compare: impl Fn(u32) -> Ordering,
        equal: bool,
    ) -> Option<u32> {
        some(self.predecessors(prefix, compare, equal)[0])
    }

    /// The first key of all.
    pub fn first(&self) -> Option<u32> {
        some(self.links[0])
    }

    /// The last key of all.
    pub fn last(&self) -> Option<u32> {
        some(self.last)
    }

    /// The key after this one.
    pub fn next(&self, key: u32) -> Option<u32> {
        some(self.link(key, 0))
    }

    /// The key before this one.
    pub fn previous(&self, key: u32) -> Option<u32> {
        some(self.keys[index(key)].before)
    }

    /// Adds a key that is not there; gives its number.
    pub fn insert(&mut self, digest: Digest, head: u32, compare: impl Fn(u32) -> Ordering) -> u32 {
        let before = self.predecessors(digest.prefix, compare, false);
        self.insert_after(digest, head, &before)
    }

    /// Adds a key that is above all others; `before` is kept from call to call, and all [`NONE`] at first.
    pub fn append(&mut self, digest: Digest, head: u32, before: &mut [u32; LEVELS]) {
        let key = self.insert_after(digest, head, before);
        let levels = index(self.keys[index(key)].levels);
        before[..levels].fill(key);
    }

    /// What [`Keys::append`] begins with.
    pub const AT_START: [u32; LEVELS] = [NONE; LEVELS];

    fn insert_after(&mut self, digest: Digest, head: u32, before: &[u32; LEVELS]) -> u32 {
        let levels = self.draw_levels();
        let tower = self.free_towers[levels - 1].pop().unwrap_or_else(|| {
            let start = self.links.len();
            self.links.resize(start + levels, NONE);
            u32::try_from(start).expect("at most 16 links for each of 2^27 keys")
        });
        let new = Key {
            digest,
            head,
            tower,
            before: before[0],
            levels: u32::try_from(levels).expect("few"),
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
        for (level, &previous) in before.iter().enumerate().take(levels) {
            let after = self.link(previous, level);
            self.links[index(tower) + level] = after;
            self.set_link(previous, level, key);
            if level == 0 {
                match after {
                    NONE => self.last = key,
                    _ => self.keys[index(after)].before = key,
                }
            }
        }
        let bucket = self.bucket(&digest);
        let bucket = &mut self.buckets[bucket];
        match bucket.keys.iter_mut().find(|(_, other)| *other == NONE) {
            Some(free) => *free = (digest.tag(), key),
            None => bucket.left_out += 1,
        }
        key
    }

    /// Slots of the newest versions of the keys that may be the one with this digest, by their hashes.
    pub fn same_tag(&self, digest: &Digest) -> impl Iterator<Item = u32> {
        let tag = digest.tag();
        let bucket = &self.buckets[self.bucket(digest)];
        let same = bucket
            .keys
            .iter()
            .filter(move |(other, key)| *other == tag && *key != NONE);
        same.map(|(_, key)| self.head(*key))
    }

    /// Takes a key out. `compare` compares with this very key.
    pub fn remove(&mut self, key: u32, compare: impl Fn(u32) -> Ordering) {
        let gone = self.keys[index(key)];
        let before = self.predecessors(gone.digest.prefix, compare, false);
        for (level, &previous) in before.iter().enumerate().take(index(gone.levels)) {
            let mut previous = previous;
            if self.link(previous, level) != key {
                // The bytes of this key or of another one are not what they were: then only walking finds it.
                previous = NONE;
                while self.link(previous, level) != key {
                    previous = self.link(previous, level);
                }
            }
            let after = self.link(key, level);
            self.set_link(previous, level, after);
        }
        self.keys[index(key)].head = NONE;
        match self.link(key, 0) {
            NONE => self.last = gone.before,
            after => self.keys[index(after)].before = gone.before,
        }
        self.free_towers[index(gone.levels) - 1].push(gone.tower);
        self.free.push(key);
        let bucket = self.bucket(&gone.digest);
        let bucket = &mut self.buckets[bucket];
        match bucket.keys.iter_mut().find(|(_, other)| *other == key) {
            Some(found) => *found = (0, NONE),
            None => bucket.left_out -= 1,
        }
    }

    fn bucket(&self, digest: &Digest) -> usize {
        let low = u32::try_from(digest.hash & u64::from(u32::MAX)).expect("32 bits");
        index(low) & (self.buckets.len() - 1)
    }

    /// On each level the last key that is below the one sought; with `equal`, that is not above it.
    fn predecessors(
        &self,
        prefix: u128,
        compare: impl Fn(u32) -> Ordering,
        equal: bool,
    ) -> [u32; LEVELS] {
        let mut before = [NONE; LEVELS];
        let mut at = NONE;
        // A key that was found not to be below needs no second look one level further down.
        let mut limit = NONE;
        for level in (0..LEVELS).rev() {
            loop {
                let next = self.link(at, level);
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
            }
            before[level] = at;
        }
        before
    }

    /// The link of a key, or with [`NONE`] of the list, on a level.
    fn link(&self, key: u32, level: usize) -> u32 {
        let tower = if key == NONE {
            0
        } else {
            index(self.keys[index(key)].tower)
        };
        self.links[tower + level]
    }

    fn set_link(&mut self, key: u32, level: usize, to: u32) {
        let tower = if key == NONE {
            0
        } else {
            index(self.keys[index(key)].tower)
        };
        self.links[tower + level] = to;
    }

    /// One level, and with one chance in four each time another.
    fn draw_levels(&mut self) -> usize {
        // xorshift64: the heights need not be secret, only spread.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let pairs = (self.random >> 16).trailing_zeros() / 2;
        (1 + index(pairs)).min(LEVELS)
    }
}

fn some(key: u32) -> Option<u32> {
    (key != NONE).then_some(key)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Keys whose slots are places in a list of their bytes.
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
                // Short ones, long ones with the same beginning, and zeros at the end.
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
    }
}
