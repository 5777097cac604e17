//! A medium that forgets unpersisted stores, as `docs/spec/ordered-log.md` §2 allows. After a loss
//! of power every aligned word that no completed persist covers has its old or its new value. After
//! the death of the process everything stays visible, and nothing becomes durable.

use std::ops::Range;
use std::os::fd::RawFd;

use pmnet_log::{Media, MediaError};

use crate::input::Input;

/// Size in bytes of the unit of a store that is not torn.
const WORD: usize = 8;

/// A forgetful medium.
#[derive(Clone, Debug)]
pub struct Forgetful {
    image: Vec<u8>,
    durable: Vec<u8>,
    /// The contents that the persist in flight covers, as of its beginning.
    flight: Option<Vec<(usize, Vec<u8>)>>,
    /// Number of polls of the persist in flight that still answer "not yet".
    slow: u8,
    /// The value of `slow` for persists that begin from now on.
    pub slowness: u8,
    /// Number of persists that still succeed; `None`: no limit.
    pub budget: Option<u64>,
    /// Number of stores so far.
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

    /// Loses power. `seed` selects the unpersisted words that survive, about `of_8` of eight; words
    /// of a persist in flight may have the value at its beginning.
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

    /// The process dies: visible contents stay, and nothing becomes durable by that.
    #[must_use]
    pub fn kill(mut self) -> Forgetful {
        self.flight = None;
        self.budget = None;
        self
    }

    /// Loses power or kills the process, as the input says.
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

    /// Returns the visible contents.
    #[must_use]
    pub fn into_image(self) -> Vec<u8> {
        self.image
    }
}

/// Takes over about `of_8` of eight words in which the two images differ.
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
