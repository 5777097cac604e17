//! The memory of an image. A network interface may share it: packet buffers are frames of the log
//! (`docs/spec/ordered-log.md` §11).
//!
//! Invariant: when the memory is shared, the code makes references only to parts that have a single holder, never to
//! the whole. Such parts are entries, frames of the log, and buffers that were received and not given back yet. The log
//! decides which parts these are.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use memmap2::{MmapMut, MmapRaw};

use crate::mapping::Mapping;

/// The memory of an image. It is unmapped when its last holder drops it.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Mapped>);

/// Owner of the mapping, which unmaps it.
#[derive(Debug)]
pub(crate) enum Mapped {
    /// Memory of the process, or of a file.
    Ordinary(MmapRaw),
    /// Persistent memory.
    Direct(Mapping),
}

impl From<MmapRaw> for Mapped {
    fn from(map: MmapRaw) -> Mapped {
        Mapped::Ordinary(map)
    }
}

impl From<MmapMut> for Mapped {
    fn from(map: MmapMut) -> Mapped {
        Mapped::Ordinary(map.into())
    }
}

impl From<Mapping> for Mapped {
    fn from(map: Mapping) -> Mapped {
        Mapped::Direct(map)
    }
}

impl Memory {
    /// Takes over a mapping that may be read and written.
    pub(crate) fn new(map: impl Into<Mapped>) -> Memory {
        Memory(Arc::new(map.into()))
    }

    /// Returns the first byte, which begins a page.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        match &*self.0 {
            Mapped::Ordinary(map) => map.as_mut_ptr(),
            Mapped::Direct(map) => map.start(),
        }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match &*self.0 {
            Mapped::Ordinary(map) => map.len(),
            Mapped::Direct(map) => map.len(),
        }
    }

    /// Returns whether the memory is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the whole memory.
    ///
    /// # Panics
    /// If another holder has the memory too.
    pub(crate) fn whole(&self) -> &[u8] {
        assert_eq!(
            Arc::strong_count(&self.0),
            1,
            "memory that is shared is read part by part"
        );
        self.part(0..self.len())
    }

    /// Returns a part of the memory.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub(crate) fn part(&self, range: Range<usize>) -> &[u8] {
        self.check(&range);
        // SAFETY: the range is inside the mapping, which may be read and lives as long as `self`. The other holders of
        // the memory store only into packet buffers that the log has lent out. The log reads such a buffer only after a
        // packet was received into it, and before the buffer is given back. Our own stores borrow the medium mutably.
        unsafe { std::slice::from_raw_parts(self.start().add(range.start), range.len()) }
    }

    /// Stores bytes at an offset.
    ///
    /// # Panics
    /// If the bytes do not fit into the memory.
    pub(crate) fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.check(&(offset..offset.saturating_add(bytes.len())));
        // SAFETY: the range is inside the mapping, which may be written. `bytes` is not in it: references into the
        // mapping borrow the medium. The other owners of the memory use other parts of it (see `part`).
        unsafe {
            let to = self.start().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    fn check(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "{range:?} is inside the {} bytes of the image",
            self.len()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_part_by_part_when_shared() {
        let mut memory = Memory::new(MmapMut::map_anon(8192).unwrap());
        memory.store(100, b"abc");
        assert_eq!(&memory.whole()[100..103], b"abc");
        let other = memory.clone();
        assert_eq!(other.part(100..103), b"abc");
        assert!(std::panic::catch_unwind(|| memory.whole().len()).is_err());
        drop(other);
        assert_eq!(memory.whole().len(), 8192);
    }

    #[test]
    fn nothing_outside_is_touched() {
        let mut memory = Memory::new(MmapMut::map_anon(4096).unwrap());
        let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            memory.store(4095, b"ab");
        }));
        assert!(tried.is_err());
        assert!(std::panic::catch_unwind(|| memory.part(4096..4097).len()).is_err());
        assert_eq!(memory.part(4096..4096), b"");
    }
}
