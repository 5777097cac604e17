//! A medium that forgets what was not persisted, as `docs/spec/ordered-log.md` §2 allows it: at a
//! loss of power every aligned word that no completed persist covers keeps its old or its new
//! value; at the death of the process everything stays visible and nothing becomes durable.

use std::ops::Range;
use std::os::fd::RawFd;

use pmnet_log::{Media, MediaError};

use crate::input::Input;

/// Bytes of the unit that a store may tear into.
const WORD: usize = 8;

/// The medium.
#[derive(Clone, Debug)]
pub struct Forgetful {
    image: Vec<u8>,
    durable: Vec<u8>,
    /// What the persist in flight covers, as it was when the persist began.
    flight: Option<Vec<(usize, Vec<u8>)>>,
    /// Polls of the persist in flight that still answer "not yet".
    slow: u8,
    /// How slow the persists that begin now are.
    pub slowness: u8,
    /// Persists that still succeed; `None`: all.
    pub budget: Option<u64>,
    /// Stores so far.
    pub stores: u64,
}

impl Forgetful {
    /// A blank medium of this many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Forgetful {
        Forgetful::holding(vec![0; bytes])
    }

    /// A medium on which this image is durable.
    #[must_use]
    pub fn holding(image: Vec<u8>) -> Forgetful {
        Forgetful {
            durable: image.clone(),
            image,
            flight: None,
            slow: 0,
            slowness: 0,
            budget: None,
            stores: 0,
        }
    }

    /// Loss of power. `seed` says which of the words that are not durable made it, `of_8` about how
    /// many of eight; those of a persist in flight may have the value that it saw.
    #[must_use]
    pub fn crash(mut self, seed: u64, of_8: u8) -> Forgetful {
        let of_8 = u64::from(of_8);
        for (at, bytes) in self.flight.take().unwrap_or_default() {
            let place = &mut self.durable[at..at + bytes.len()];
            merge(place, &bytes, seed.rotate_left(32), of_8);
        }
        merge(&mut self.durable, &self.image, seed, of_8);
        Forgetful::holding(self.durable)
    }

    /// Death of the process: what can be seen stays, and none of it becomes durable by that.
    #[must_use]
    pub fn kill(mut self) -> Forgetful {
        self.flight = None;
        self.budget = None;
        self
    }

    /// One of these, as the input says.
    #[must_use]
    pub fn end(self, input: &mut Input<'_>) -> Forgetful {
        match input.byte() % 4 {
            0 => self.kill(),
            1 => self.crash(0, 0),
            2 => self.crash(0, 8),
            _ => {
                let seed = input.long();
                self.crash(seed, 1 + input.byte() % 7)
            }
        }
    }

    /// What can be seen.
    #[must_use]
    pub fn into_image(self) -> Vec<u8> {
        self.image
    }
}

/// Takes over about `of_8` of eight words in which the two differ.
fn merge(old: &mut [u8], new: &[u8], seed: u64, of_8: u64) {
    let mut salt = seed;
    for (old, new) in old.chunks_mut(WORD).zip(new.chunks(WORD)) {
        salt = salt.wrapping_add(0x9e37_79b9_7f4a_7c15);
        if old != new && mix(salt) % 8 < of_8 {
            old.copy_from_slice(new);
        }
    }
}

/// The finaliser of SplitMix64.
fn mix(seed: u64) -> u64 {
    let mut z = seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Media for Forgetful {
    fn bytes(&self) -> &[u8] {
        &self.image
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.stores += 1;
        self.image[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn persist_start(&mut self, ranges: &[Range<usize>]) -> Result<(), MediaError> {
        assert!(self.flight.is_none(), "one persist at a time");
        match &mut self.budget {
            Some(0) => return Err(MediaError::Failed),
            Some(left) => *left -= 1,
            None => {}
        }
        let seen = |range: &Range<usize>| {
            assert!(!range.is_empty() && range.end <= self.image.len());
            (range.start, self.image[range.clone()].to_vec())
        };
        self.flight = Some(ranges.iter().map(seen).collect());
        self.slow = self.slowness;
        Ok(())
    }

    fn persist_poll(&mut self, wait: bool) -> Result<bool, MediaError> {
        if self.flight.is_some() && !wait && self.slow > 0 {
            self.slow -= 1;
            return Ok(false);
        }
        for (at, bytes) in self.flight.take().unwrap_or_default() {
            self.durable[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(true)
    }

    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }

    fn survives(&self) -> &'static str {
        "what the input lets it survive"
    }

    fn name(&self) -> &'static str {
        "forgetful"
    }
}
