//! Memory in which frames lie.

#![allow(unsafe_code)]

use std::io;

use memmap2::{Advice, MmapOptions, MmapRaw};

/// Memory for frames, supplied by the caller.
///
/// # Safety
/// [`start`](Region::start) and [`bytes`](Region::bytes) always give the same memory. It may be read and written, and stays
/// where it is as long as the value lives, also when the value is moved. As long as a socket has the region, nothing else
/// reads it, writes it or makes references into it.
pub unsafe trait Region {
    /// First byte, at the beginning of a page.
    fn start(&self) -> *mut u8;
    /// Length in bytes.
    fn bytes(&self) -> usize;
}

/// Anonymous private memory of this process.
#[derive(Debug)]
pub struct Anonymous(MmapRaw);

impl Anonymous {
    /// Maps `bytes` bytes, with all pages populated.
    ///
    /// # Errors
    /// The system has less memory.
    pub fn new(bytes: usize) -> io::Result<Anonymous> {
        let mapping = MmapOptions::new().len(bytes).populate().map_anon()?;
        // After a fork, a write would copy the page here, and the kernel would go on with the old one.
        mapping.advise(Advice::DontFork)?;
        Ok(Anonymous(mapping.into()))
    }
}

// SAFETY: a mapping of its own that may be read and written, begins at a page, and is unmapped when this is dropped. The
// only way to it is `start`, whose users are bound by the contract above.
unsafe impl Region for Anonymous {
    fn start(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
    fn bytes(&self) -> usize {
        self.0.len()
    }
}
