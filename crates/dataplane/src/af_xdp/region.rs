//! Memory in which frames lie.

#![allow(unsafe_code)]

use std::io;

use memmap2::{Advice, MmapOptions, MmapRaw};

/// Memory for frames, supplied by the caller.
///
/// # Safety
/// [`start`](Region::start) and [`bytes`](Region::bytes) always give the same: memory that may be read and written and
/// stays where it is as long as the value lives, also when that is moved. As long as a socket has it, nothing
/// else makes references into it, reads it or writes it.
pub unsafe trait Region {
    /// First byte, at the beginning of a page.
    fn start(&self) -> *mut u8;
    /// Length in bytes.
    fn bytes(&self) -> usize;
}

/// Memory without a file, of this process alone.
#[derive(Debug)]
pub struct Anonymous(MmapRaw);

impl Anonymous {
    /// So many bytes, all of them there at once.
    ///
    /// # Errors
    /// There is not so much memory.
    pub fn new(bytes: usize) -> io::Result<Anonymous> {
        let mapping = MmapOptions::new().len(bytes).populate().map_anon()?;
        // A child would make the pages be copied at a write: the kernel would go on with the old ones.
        mapping.advise(Advice::DontFork)?;
        Ok(Anonymous(mapping.into()))
    }
}

// SAFETY: a mapping of its own, which may be read and written, begins at a page and is unmapped when this is dropped;
// nobody else can get at it but through `start`, which is for those who know that they are alone.
unsafe impl Region for Anonymous {
    fn start(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
    fn bytes(&self) -> usize {
        self.0.len()
    }
}
