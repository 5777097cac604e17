//! A medium that loses data. After a crash, each word that no completed persist covers has its old or its new value, at
//! random. The machine crashes in its n-th persist.

use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use pmnet_log::{Media, MediaError};
use pmnet_proto::Random;

const WORD: usize = 8;

/// The contents of the medium after the process has ended.
#[derive(Clone, Debug)]
pub struct Durable(Arc<Mutex<Vec<u8>>>);

#[derive(Debug)]
pub struct Forgetful {
    image: Vec<u8>,
    durable: Durable,
    in_flight: Vec<(usize, Vec<u8>)>,
    /// Number of persists until the crash.
    left: u64,
    dead: bool,
    random: Random,
    pub persists: u64,
}

impl Durable {
    pub fn new(image: Vec<u8>) -> Durable {
        Durable(Arc::new(Mutex::new(image)))
    }

    pub fn open(&self, left: u64, seed: u64) -> Forgetful {
        Forgetful {
            image: self.0.lock().unwrap().clone(),
            durable: self.clone(),
            in_flight: Vec::new(),
            left,
            dead: false,
            random: Random::new(seed),
            persists: 0,
        }
    }
}

impl Forgetful {
    fn settle(&mut self) {
        let mut durable = self.durable.0.lock().unwrap();
        for (start, bytes) in self.in_flight.drain(..) {
            durable[start..start + bytes.len()].copy_from_slice(&bytes);
        }
    }

    fn die(&mut self) {
        if std::mem::replace(&mut self.dead, true) {
            return;
        }
        self.in_flight.clear();
        let mut durable = self.durable.0.lock().unwrap();
        let words = durable.chunks_mut(WORD).zip(self.image.chunks(WORD));
        for (old, new) in words.filter(|(old, new)| old != new) {
            if self.random.next_u64().is_multiple_of(2) {
                old.copy_from_slice(new);
            }
        }
    }
}

impl Media for Forgetful {
    fn bytes(&self) -> &[u8] {
        &self.image
    }
    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.image[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    fn persist_start(&mut self, ranges: &[Range<usize>]) -> Result<(), MediaError> {
        assert!(self.in_flight.is_empty(), "one persist at a time");
        self.persists += 1;
        self.in_flight.extend(
            ranges
                .iter()
                .map(|range| (range.start, self.image[range.clone()].to_vec())),
        );
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                self.die();
                Err(MediaError::Failed)
            }
        }
    }
    fn persist_poll(&mut self, wait: bool) -> Result<bool, MediaError> {
        // A persist is not always complete at the first check, so the device continues to receive meanwhile.
        if wait || self.in_flight.is_empty() || self.random.next_u64().is_multiple_of(3) {
            self.settle();
            return Ok(true);
        }
        Ok(false)
    }
    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }
    fn survives(&self) -> &'static str {
        "a crash, as far as it was persisted"
    }
    fn name(&self) -> &'static str {
        "forgetful"
    }
}
