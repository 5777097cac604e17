//! Puts by the usual steps of LevelDB and NoveLSM: make a structure from the request, compute a
//! checksum, allocate a buffer in persistent memory, copy, and insert into a persistent skip list.
//! As in the memtable of such a store, each new version is a new node, and no node is freed.

use std::cmp::Ordering;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, ensure};
use pmnet_log::Media;
use pmnet_media::{AnyMedia, Kind};
use pmnet_resp::Parser;

use super::{REQUEST_BYTES_MAX, Times, Way, nanos, parse, parser};
use crate::keys;

/// Maximum number of levels of the skip list. A node of one level is also in the next level with a probability of 1 /
/// `BRANCHING`. LevelDB has the same two numbers.
const HEIGHT: usize = 12;
const BRANCHING: u32 = 4;
/// Size of a cache line in bytes. Each node begins at a cache line.
const LINE: usize = 64;
/// Offset of the head; the end of the allocated space is stored before it.
const HEAD: usize = LINE;
/// Size in bytes of the part of a node before its links: lengths of key and value, checksum,
/// height, number of the write.
const NODE_BYTES: usize = 24;
/// Size in bytes of a record's header in the structure of the request: number, count, kind and two
/// lengths.
const BATCH_BYTES: usize = 8 + 4 + 1 + 4 + 4;

pub struct Usual {
    medium: AnyMedia,
    parser: Parser,
    clock: f64,
    random: fastrand::Rng,
    end: usize,
    writes: u64,
    request: Vec<u8>,
}

impl Usual {
    /// Makes a store with space for this number of versions.
    pub fn new(folder: &Path, versions: u64, clock: f64) -> anyhow::Result<Usual> {
        let node = (NODE_BYTES + 8 * HEIGHT + REQUEST_BYTES_MAX).next_multiple_of(LINE);
        let bytes = (usize::try_from(versions)? * node + 8192).next_multiple_of(4096);
        let path = folder.join("usual");
        let mut medium = pmnet_media::create(&path, Kind::Dram, bytes)?;
        if let AnyMedia::Dram(dram) = &mut medium {
            dram.rehearse_flushes(&path)?;
        }
        Ok(Usual {
            medium,
            parser: parser(),
            clock,
            random: fastrand::Rng::with_seed(2),
            end: HEAD + (NODE_BYTES + 8 * HEIGHT).next_multiple_of(LINE),
            writes: 0,
            request: Vec::new(),
        })
    }

    /// Checks that the newest version of a key is complete.
    pub fn verify(&self, key: u64) -> anyhow::Result<()> {
        let name = keys::name(key);
        let before = self.before(&name, u64::MAX);
        let node = self.next(before[0], 0).context("a key is missing")?;
        let (found, value, crc) = self.record(node);
        ensure!(found == name, "a key is missing");
        let computed = crc32c::crc32c_append(crc32c::crc32c(found), value);
        ensure!(
            computed == crc && value[..8] == key.to_le_bytes(),
            "a wrong value"
        );
        Ok(())
    }

    fn word<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut word = [0; N];
        word.copy_from_slice(self.medium.part(at..at + N));
        word
    }

    fn length(&self, at: usize) -> usize {
        usize::try_from(u32::from_le_bytes(self.word(at))).expect("32 bits")
    }

    const fn link(node: usize, level: usize) -> usize {
        node + NODE_BYTES + 8 * level
    }

    /// Returns the next node after this one on a level.
    fn next(&self, node: usize, level: usize) -> Option<usize> {
        let next = u64::from_le_bytes(self.word(Usual::link(node, level)));
        (next != 0).then(|| usize::try_from(next).expect("64 bits"))
    }

    fn key(&self, node: usize) -> &[u8] {
        let start = Usual::link(node, self.length(node + 12));
        self.medium.part(start..start + self.length(node))
    }

    fn record(&self, node: usize) -> (&[u8], &[u8], u32) {
        let key = self.key(node);
        let start = Usual::link(node, self.length(node + 12)) + key.len();
        let value = self.medium.part(start..start + self.length(node + 4));
        (key, value, u32::from_le_bytes(self.word(node + 8)))
    }

    /// Returns, for each level, the last node before this version of this key. Newer versions come
    /// first.
    fn before(&self, key: &[u8], write: u64) -> [usize; HEIGHT] {
        let mut before = [HEAD; HEIGHT];
        let mut node = HEAD;
        for level in (0..HEIGHT).rev() {
            while let Some(next) = self.next(node, level) {
                let order = self
                    .key(next)
                    .cmp(key)
                    .then_with(|| write.cmp(&u64::from_le_bytes(self.word(next + 16))));
                if order != Ordering::Less {
                    break;
                }
                node = next;
            }
            before[level] = node;
        }
        before
    }

    fn height(&mut self) -> usize {
        let mut height = 1;
        while height < HEIGHT && self.random.u32(0..BRANCHING) == 0 {
            height += 1;
        }
        height
    }

    fn persist(&mut self, ranges: &[std::ops::Range<usize>]) -> anyhow::Result<()> {
        self.medium.persist_start(ranges)?;
        self.medium.persist_poll(true)?;
        Ok(())
    }
}

impl Way for Usual {
    fn arrive(&mut self, request: &[u8]) -> anyhow::Result<()> {
        self.request.clear();
        self.request.extend_from_slice(request);
        Ok(())
    }

    fn put(&mut self) -> anyhow::Result<Times> {
        let started = Instant::now();
        // Makes a structure of the request, like LevelDB's WriteBatch.
        let [key, value] = parse(&mut self.parser, &self.request)?;
        let (key_len, value_len) = (u32::try_from(key.len())?, u32::try_from(value.len())?);
        self.writes += 1;
        let mut batch = Vec::with_capacity(BATCH_BYTES + key.len() + value.len());
        batch.extend_from_slice(&self.writes.to_le_bytes());
        batch.extend_from_slice(&1u32.to_le_bytes());
        batch.push(1);
        batch.extend_from_slice(&key_len.to_le_bytes());
        batch.extend_from_slice(&self.request[key.clone()]);
        batch.extend_from_slice(&value_len.to_le_bytes());
        batch.extend_from_slice(&self.request[value.clone()]);
        let prepared = Instant::now();
        let key = BATCH_BYTES - 4..BATCH_BYTES - 4 + key.len();
        let value = key.end + 4..batch.len();
        let crc = crc32c::crc32c_append(crc32c::crc32c(&batch[key.clone()]), &batch[value.clone()]);
        let summed = Instant::now();
        // Allocates a buffer, writes the node into it, and finds its position in the list.
        let height = self.height();
        let node = self.end;
        let data = Usual::link(node, height);
        let end = data + key.len() + value.len();
        ensure!(
            end <= self.medium.memory().len(),
            "no room for another version"
        );
        self.end = end.next_multiple_of(LINE);
        let before = self.before(&batch[key.clone()], self.writes);
        let mut head = Vec::with_capacity(NODE_BYTES + 8 * HEIGHT);
        for word in [key_len, value_len, crc, u32::try_from(height)?] {
            head.extend_from_slice(&word.to_le_bytes());
        }
        head.extend_from_slice(&self.writes.to_le_bytes());
        for (level, before) in before.iter().enumerate().take(height) {
            head.extend_from_slice(&self.word::<8>(Usual::link(*before, level)));
        }
        self.medium.store(node, &head);
        self.medium
            .store(0, &u64::try_from(self.end)?.to_le_bytes());
        let allocated = Instant::now();
        self.medium.store(data, &batch[key.clone()]);
        self.medium.store(data + key.len(), &batch[value]);
        let copied = Instant::now();
        self.persist(&[node..end, 0..8])?;
        let persisted = Instant::now();
        let mut links = Vec::with_capacity(height);
        for (level, before) in before.iter().enumerate().take(height) {
            let link = Usual::link(*before, level);
            self.medium.store(link, &u64::try_from(node)?.to_le_bytes());
            links.push(link..link + 8);
        }
        let linked = Instant::now();
        self.persist(&links)?;
        let done = Instant::now();
        let step = |from: Instant, to: Instant| nanos(to - from) - self.clock;
        Ok(Times {
            prepare: step(started, prepared),
            checksum: step(prepared, summed),
            copy: step(allocated, copied),
            insert: step(summed, allocated) + step(persisted, linked),
            flush: step(copied, persisted) + step(linked, done),
        })
    }
}
