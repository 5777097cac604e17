//! A simulated medium that loses stores in a crash.
//!
//! Fault model: stores are visible at once, and durable only when a completed persist has covered them. A persist takes
//! time. When the computer dies, each 8-byte word of a line that was stored and not persisted has its old or its new
//! content, at random. When only the process dies, a `Dram` medium keeps all stores. A fuse makes the computer die in
//! the middle of its n-th persist, also during recovery. Lines can be damaged while the computer is off, and whole
//! images can be copied and put back. A lying medium reports a persist as complete without doing it; with such a
//! medium, checks must fail.

use pmnet_log::{Media, MediaError};
use pmnet_proto::Random;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const LINE: usize = 64;
const WORD: usize = 8;

/// The effect of a crash on stores that were not persisted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Each unpersisted line survives by chance, and a persist takes time.
    Forgetful,
    /// All lines survive, and a persist is complete at once.
    Dram,
}

#[derive(Debug)]
struct State {
    durable: Vec<u8>,
    in_flight: Option<Vec<(Range<usize>, Vec<u8>)>>,
    /// Number of persists until the computer dies, and the generator that then decides which words survive.
    fuse: Option<(u32, Random)>,
    blown: bool,
    lies: bool,
}

/// The world's access to a medium: it completes persists and crashes the medium.
#[derive(Clone, Debug)]
pub struct Handle {
    kind: Kind,
    state: Arc<Mutex<State>>,
}

/// The log's access to a medium.
#[derive(Debug)]
pub struct SimMedia {
    image: Vec<u8>,
    handle: Handle,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn crash(&mut self, kind: Kind, image: &[u8], random: &mut Random) {
        self.in_flight = None;
        let lines = self.durable.chunks_mut(LINE).zip(image.chunks(LINE));
        for (old, new) in lines.filter(|(old, new)| old != new) {
            let fate = random.next_u64() % 3;
            for (old, new) in old.chunks_mut(WORD).zip(new.chunks(WORD)) {
                let survives = match (kind, fate) {
                    (Kind::Dram, _) | (_, 0) => true,
                    (_, 1) => false,
                    _ => random.next_u64().is_multiple_of(2),
                };
                if survives {
                    old.copy_from_slice(new);
                }
            }
        }
    }
}

impl Handle {
    /// A blank medium.
    #[must_use]
    pub fn blank(kind: Kind, bytes: usize) -> Handle {
        let state = State {
            durable: vec![0; bytes],
            in_flight: None,
            fuse: None,
            blown: false,
            lies: false,
        };
        Handle {
            kind,
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Returns another medium of this kind with these contents.
    #[must_use]
    pub fn copy_of(&self, bytes: Vec<u8>) -> Handle {
        let copy = Handle::blank(self.kind, 0);
        let mut state = lock(&copy.state);
        state.durable = bytes;
        state.lies = lock(&self.state).lies;
        drop(state);
        copy
    }

    /// Returns the contents that would remain if the machine died now.
    #[must_use]
    pub fn durable(&self) -> Vec<u8> {
        lock(&self.state).durable.clone()
    }

    /// Changes one byte of the medium.
    pub fn damage(&self, at: usize, noise: u64) {
        let mut state = lock(&self.state);
        if let Some(byte) = state.durable.get_mut(at) {
            *byte ^= noise.to_le_bytes()[0] | 1;
        }
    }

    /// From now on the medium reports persists as complete without doing them.
    pub fn set_lying(&self, lies: bool) {
        lock(&self.state).lies = lies;
    }

    /// Opens the medium, as a starting process does.
    #[must_use]
    pub fn open(&self) -> SimMedia {
        let mut state = lock(&self.state);
        state.blown = false;
        // The previous process may have ended while a persist was under way.
        state.in_flight = None;
        SimMedia {
            image: state.durable.clone(),
            handle: self.clone(),
        }
    }

    /// Makes the computer die in the middle of a persist, after `persists` further persists. `None`: the computer will
    /// not die of a fuse.
    pub fn set_fuse(&self, fuse: Option<(u32, Random)>) {
        lock(&self.state).fuse = fuse;
    }

    /// Whether the fuse has killed the computer since the medium was opened.
    #[must_use]
    pub fn is_blown(&self) -> bool {
        lock(&self.state).blown
    }

    /// Whether a persist is under way.
    #[must_use]
    pub fn is_persisting(&self) -> bool {
        lock(&self.state).in_flight.is_some()
    }

    /// The persist under way completes.
    pub fn complete(&self) {
        let mut state = lock(&self.state);
        let lies = state.lies;
        for (range, bytes) in state.in_flight.take().unwrap_or_default() {
            if lies {
                continue;
            }
            state.durable[range].copy_from_slice(&bytes);
        }
    }

    /// The process that had `medium` dies.
    pub fn crash(&self, medium: &SimMedia, random: &mut Random) {
        let mut state = lock(&self.state);
        if !state.blown {
            state.crash(self.kind, &medium.image, random);
        }
    }
}

impl SimMedia {
    /// Makes the NIC's stores into this range durable, because they have left every cache.
    pub fn drain(&self, range: Range<usize>) {
        lock(&self.handle.state).durable[range.clone()].copy_from_slice(&self.image[range]);
    }
}

impl Media for SimMedia {
    fn bytes(&self) -> &[u8] {
        &self.image
    }
    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.image[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    fn persist_start(&mut self, ranges: &[Range<usize>]) -> Result<(), MediaError> {
        let mut state = lock(&self.handle.state);
        if state.blown {
            return Err(MediaError::Failed);
        }
        assert!(state.in_flight.is_none(), "one persist at a time");
        match state.fuse.take() {
            Some((0, mut random)) => {
                state.crash(self.handle.kind, &self.image, &mut random);
                state.blown = true;
                return Err(MediaError::Failed);
            }
            Some((left, random)) => state.fuse = Some((left - 1, random)),
            None => {}
        }
        let covered = ranges
            .iter()
            .map(|r| (r.clone(), self.image[r.clone()].to_vec()));
        state.in_flight = Some(covered.collect());
        drop(state);
        if self.handle.kind == Kind::Dram {
            self.handle.complete();
        }
        Ok(())
    }
    fn persist_poll(&mut self, wait: bool) -> Result<bool, MediaError> {
        if wait {
            self.handle.complete();
        }
        Ok(!self.handle.is_persisting())
    }
    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }
    fn survives(&self) -> &'static str {
        "what the simulated world lets it survive"
    }
    fn name(&self) -> &'static str {
        "simulated"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_persisted_is_certain() {
        let mut kept = 0;
        for seed in 0..200 {
            let handle = Handle::blank(Kind::Forgetful, 256);
            let mut medium = handle.open();
            medium.store(0, &[1; 64]);
            medium
                .persist_start(std::slice::from_ref(&(0..64)))
                .unwrap();
            handle.complete();
            medium.store(64, &[2; 64]);
            medium
                .persist_start(std::slice::from_ref(&(64..128)))
                .unwrap();
            handle.crash(&medium, &mut Random::new(seed));
            let after = handle.open();
            assert_eq!(after.bytes()[..64], [1; 64], "a completed persist holds");
            kept += u32::from(after.bytes()[64..128] == [2; 64]);
            assert_eq!(after.bytes()[128..], [0; 128], "nothing comes from nowhere");
        }
        assert!(
            (20..150).contains(&kept),
            "an interrupted persist is kept now and then: {kept}"
        );
    }

    #[test]
    fn a_fuse_interrupts_the_persist_it_was_set_for() {
        let handle = Handle::blank(Kind::Dram, 64);
        handle.set_fuse(Some((1, Random::new(1))));
        let mut medium = handle.open();
        medium
            .persist_start(std::slice::from_ref(&(0..64)))
            .unwrap();
        medium.store(0, &[3; 8]);
        assert!(medium.persist_start(std::slice::from_ref(&(0..8))).is_err());
        assert!(handle.is_blown());
        assert!(
            medium.persist_start(std::slice::from_ref(&(0..8))).is_err(),
            "dead is dead"
        );
        assert_eq!(
            handle.open().bytes()[..8],
            [3; 8],
            "DRAM outlives the process"
        );
    }
}
