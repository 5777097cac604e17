//! A mapping of persistent memory that is always shared and synchronous.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// Persistent memory, mapped `MAP_SHARED_VALIDATE | MAP_SYNC`.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and this type is its only owner.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives only address and length of the mapping, not its bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` bytes. With `MAP_SYNC` a flushed store is durable without fsync: before a page can be
    /// stored into, the kernel makes its blocks durable in the file system.
    ///
    /// # Errors
    /// `Unsupported`: the memory can be mapped only through the page cache, not directly.
    pub(crate) fn new(file: &File, bytes: usize, writable: bool) -> io::Result<Mapping> {
        crate::sys::say_why_sigbus();
        let access = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        Mapping::with(
            file,
            bytes,
            access,
            libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC,
        )
    }

    /// Returns an ordinary shared mapping, for tests on machines without persistent memory.
    #[cfg(test)]
    pub(crate) fn of_page_cache(file: &File, bytes: usize) -> io::Result<Mapping> {
        Mapping::with(
            file,
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
        )
    }

    fn with(file: &File, bytes: usize, access: i32, flags: i32) -> io::Result<Mapping> {
        // SAFETY: the kernel chooses the address, so the new mapping touches no memory that is in use. The descriptor
        // is open for as long as `file` is borrowed, and the mapping does not need it afterwards.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                access,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start =
            NonNull::new(start.cast()).expect("the kernel maps nothing at address 0 unasked");
        Ok(Mapping { start, bytes })
    }

    /// Returns the first byte, which begins a page.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this range was mapped by `new`, and no borrow of it is left.
        let result = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(result, 0, "a mapping of our own can be removed");
    }
}
