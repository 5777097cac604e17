//! Shared memory: a file on tmpfs or hugetlbfs, mapped `MAP_SHARED`.
//!
//! The mapping *is* the file. So stored data survives the death of the process without any flush, but not a power
//! failure. A private mapping would not do, because its stores would stay in the process.

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
    /// The method with which each persist flushes, only for measurements: the flushes make nothing durable.
    rehearsed: Option<Method>,
    warnings: Vec<String>,
    /// Keeps the lock while it is open.
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
        // The kernel fills a hole at the first store into it. Without free space, that store would kill the process.
        sys::reserve(&file, bytes).map_err(OpenError::io(path, "reserve the memory", bytes))?;
        // The file has `bytes` bytes of reserved space, and no process that takes the lock changes the file. If another
        // process ignores the lock and truncates the file, this process ends (SIGBUS) when it next uses the missing
        // part.
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

    /// Returns warnings about properties that are worse than they could be.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Makes each persist flush its lines in the way that persistent memory needs, to measure the cost. This memory
    /// does not become persistent, and [`Media::survives`] returns the same text as before.
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
        // The stores are in the shared pages already. Because of the fence, neither the compiler nor the CPU can move a
        // later acknowledgement before the stores.
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
