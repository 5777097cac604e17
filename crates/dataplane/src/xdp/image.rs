//! The log's medium in a BPF map: memory of the kernel, which the device and readers map.
//!
//! Invariants: while the map is pinned, it outlives the process that made it, but not a power failure. The pipeline
//! writes to the same memory, but only slots and frames after its last order, and only while it is not held. Spec:
//! `docs/spec/ordered-log.md` §2. This module must not know the contents of the log.

#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::{Ordering, fence};

use memmap2::MmapRaw;
use pmnet_log::{Media, MediaError};

/// The image of a log in a BPF map.
#[derive(Debug)]
pub struct MapMedia {
    map: MmapRaw,
    bytes: usize,
    outlives: bool,
}

impl MapMedia {
    /// Returns the image in the first `bytes` bytes of a mapped map. `outlives`: the map is pinned in a file system
    /// that outlives this process.
    ///
    /// # Panics
    /// If the mapping is shorter.
    #[must_use]
    pub fn new(map: MmapRaw, bytes: usize, outlives: bool) -> MapMedia {
        assert!(bytes <= map.len(), "the map holds the image");
        MapMedia {
            map,
            bytes,
            outlives,
        }
    }
}

impl Media for MapMedia {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable for `bytes` bytes and lives as long as `self`. The pipeline in the kernel
        // writes to it at the same time, but only to slots and frames of orders that it has not published yet. The log
        // reads such a slot or frame only after it has followed the order.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr(), self.bytes) }
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        assert!(
            offset <= self.bytes && bytes.len() <= self.bytes - offset,
            "stores are inside the image"
        );
        // SAFETY: the range is inside the mapping, which is writable. The pipeline neither reads nor writes this range:
        // it is held while the log appends, and it never touches superblocks, or the checksums of published entries.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.map.as_mut_ptr().add(offset),
                bytes.len(),
            );
        }
    }

    fn persist_start(&mut self, _ranges: &[Range<usize>]) -> Result<(), MediaError> {
        // The stores are already in the shared pages. The fence orders these stores before a later acknowledgement.
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn persist_poll(&mut self, _wait: bool) -> Result<bool, MediaError> {
        Ok(true)
    }

    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }

    fn survives(&self) -> &'static str {
        if self.outlives {
            "death of the process, not power loss"
        } else {
            "nothing, not even the death of the process"
        }
    }

    fn name(&self) -> &'static str {
        "bpf"
    }
}
