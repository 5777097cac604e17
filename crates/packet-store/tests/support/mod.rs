//! Helpers that the tests share: a medium in memory, random numbers from a seed, and the contents of a store.
#![allow(dead_code)] // Some test programs use only a part of this module.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::os::fd::RawFd;

use pmnet_log::{Media, MediaError};
use pmnet_packet_store::{Geometry, Identity, Meta, PacketStore, Scan, format};

pub const IDENTITY: Identity = Identity {
    uuid: 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210,
    shard: 4,
};

/// A generator that gives the same numbers for the same seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap()).unwrap()
    }

    pub fn one_in(&mut self, of: usize) -> bool {
        self.index(of) == 0
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

/// A medium in the memory of this process. Every persist is complete at once. A test can make persists fail.
#[derive(Debug, Default)]
pub struct Plain {
    pub image: Vec<u8>,
    /// Number of persists that still succeed; `None`: all persists succeed.
    pub persists_left: Option<u64>,
    /// Number of persists that were begun.
    pub persists: u64,
}

impl Plain {
    pub fn new(image: Vec<u8>) -> Plain {
        Plain {
            image,
            ..Plain::default()
        }
    }
}

impl Media for Plain {
    fn bytes(&self) -> &[u8] {
        &self.image
    }
    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.image[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    fn persist_start(&mut self, _: &[Range<usize>]) -> Result<(), MediaError> {
        self.persists += 1;
        match &mut self.persists_left {
            Some(0) => Err(MediaError::Failed),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
    fn persist_poll(&mut self, _: bool) -> Result<bool, MediaError> {
        Ok(true)
    }
    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }
    fn survives(&self) -> &'static str {
        "nothing"
    }
    fn name(&self) -> &'static str {
        "plain"
    }
}

/// Returns an image with an empty store.
pub fn made(geometry: &Geometry) -> Vec<u8> {
    let mut medium = Plain::new(vec![0; geometry.image_bytes()]);
    format(&mut medium, &IDENTITY, geometry).unwrap();
    medium.image
}

pub fn opened(image: Vec<u8>) -> PacketStore<Plain> {
    let scan = Scan::open(Plain::new(image), Some(IDENTITY.shard)).unwrap();
    assert_eq!(scan.loss(), None);
    assert_eq!(scan.verify(), vec![]);
    scan.repair().unwrap()
}

/// The contents of a store.
pub type Content = BTreeMap<Vec<u8>, (Vec<u8>, Meta)>;

pub const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

pub fn content<M: Media>(store: &PacketStore<M>) -> Content {
    let mut scratch = Vec::new();
    store
        .range(ALL.0, ALL.1)
        .map(|record| {
            let record = record.unwrap();
            let (key, value) = record.key_and_value(&mut scratch);
            (key.to_vec(), (value.to_vec(), record.meta()))
        })
        .collect()
}
