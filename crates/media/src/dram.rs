//! Shared memory: a file on tmpfs or hugetlbfs, mapped `MAP_SHARED`.
//!
//! The mapping *is* the file, so what was stored survives the death of the process without any flush, but
//! not a loss of power. A private mapping is never used: its stores would stay in the process.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use memmap2::MmapOptions;
use pmnet_log::{Media, MediaError};

use crate::error::OpenError;
use crate::memory::Memory;
use crate::pmem::{self, Method};
use crate::sysfs::Domain;
use crate::{image, lock, sys};

/// A log in shared memory.
#[derive(Debug)]
pub struct DramMedia {
    memory: Memory,
    /// How each persist flushes, though nothing is durable by it.
    rehearsed: Option<Method>,
    warnings: Vec<String>,
    /// Holds the lock.
    _file: File,
}

impl DramMedia {
    /// Locks and maps an existing file.
    ///
    /// # Errors
    /// As [`open`](crate::open).
    pub fn open(path: &Path) -> Result<DramMedia, OpenError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(OpenError::io(path, "open the file", 0))?;
        lock::of_path(&file, path)?;
        let bytes = image::size(&file, path)?;
        let system = sys::file_system(&file).map_err(OpenError::io(
            path,
            "look at the file system",
            bytes,
        ))?;
        // A hole would be filled when it is first stored into; without space that kills the process.
        sys::reserve(&file, bytes).map_err(OpenError::io(path, "reserve the memory", bytes))?;
        // The file is ours alone among all that take the lock, and has `bytes` bytes of reserved space. Somebody who
        // ignores the lock and truncates it ends this process (SIGBUS) when it next uses what is gone.
        sys::say_why_sigbus();
        let map = MmapOptions::new()
            .len(bytes)
            .map_raw(&file)
            .map_err(OpenError::io(path, "map the file", bytes))?;
        let mut warnings = Vec::new();
        if !system.memory {
            warnings.push(format!(
                "PM1321 {}: on a disk file system, so the log is in its page cache: it survives the death of the \
                 process and nothing more, and the disk is written as well; use tmpfs or hugetlbfs, or \
                 media file",
                path.display()
            ));
        }
        Ok(DramMedia {
            memory: Memory::new(map),
            rehearsed: None,
            warnings,
            _file: file,
        })
    }

    /// Warnings about what is worse here than it could be.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// From now on each persist flushes its lines as it would have to on persistent memory: to measure what that costs.
    /// This memory does not become persistent by it, and [`Media::survives`] says what it said before.
    ///
    /// # Errors
    /// [`OpenError::NoFlush`].
    pub fn rehearse_flushes(&mut self, path: &Path) -> Result<(), OpenError> {
        let Some(method) = Method::for_domain(Domain::Memory) else {
            return Err(OpenError::NoFlush {
                path: path.to_path_buf(),
            });
        };
        self.rehearsed = Some(method);
        Ok(())
    }

    /// Returns the memory of the image.
    #[must_use]
    pub fn memory(&self) -> Memory {
        self.memory.clone()
    }
}

impl Media for DramMedia {
    fn bytes(&self) -> &[u8] {
        self.memory.whole()
    }

    fn part(&self, range: Range<usize>) -> &[u8] {
        self.memory.part(range)
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.memory.store(offset, bytes);
    }

    fn persist_start(&mut self, ranges: &[Range<usize>]) -> Result<(), MediaError> {
        if let Some(method) = self.rehearsed {
            pmem::persist(&self.memory, method, ranges);
        }
        // The stores are in the shared pages already. The fence keeps the compiler and the CPU from
        // moving a later acknowledgement before them.
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
        "death of the process, not power loss"
    }

    fn name(&self) -> &'static str {
        "dram"
    }
}
