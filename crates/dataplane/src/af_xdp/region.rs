//! Memory for the frames of AF_XDP sockets.

#![allow(unsafe_code)]

use std::io;

use memmap2::{Advice, MmapOptions, MmapRaw};

/// Memory for frames, which the caller supplies.
///
/// # Safety
/// [`start`](Region::start) and [`bytes`](Region::bytes) always describe the same memory. The memory may be read and
/// written, and stays in place as long as the value lives, even when the value is moved. As long as a socket has the
/// region, no other code reads it, writes it or makes references into it, except to frames that the socket's owner
/// holds or keeps.
pub unsafe trait Region {
    /// Returns the first byte, which begins a page.
    fn start(&self) -> *mut u8;
    /// Returns the length in bytes.
    fn bytes(&self) -> usize;
}

/// Anonymous private memory of this process.
#[derive(Debug)]
pub struct Anonymous(MmapRaw);

impl Anonymous {
    /// Maps `bytes` bytes, with all pages populated.
    ///
    /// # Errors
    /// The system has too little memory.
    pub fn new(bytes: usize) -> io::Result<Anonymous> {
        let mapping = MmapOptions::new().len(bytes).populate().map_anon()?;
        // After a fork, a write would copy the page for this process, and the kernel would continue with the old page.
        mapping.advise(Advice::DontFork)?;
        Ok(Anonymous(mapping.into()))
    }
}

// SAFETY: this is a private mapping that may be read and written, begins at a page, and is unmapped when this value is
// dropped. The memory is reached only through `start`, whose users are bound by the contract above.
unsafe impl Region for Anonymous {
    fn start(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
    fn bytes(&self) -> usize {
        self.0.len()
    }
}
