//! Media for the ordered log: ordinary files, shared memory, persistent memory (`docs/spec/ordered-log.md` §2).
//!
//! Purpose: the only crate of pmnet that maps, writes, flushes and fences the bytes of a log. Invariants: only one
//! process at a time owns a log: it holds an exclusive lock until its last write has reached the disk. A file gets its
//! name only when it is whole. If a medium cannot keep a promise, a warning and `survives()` say so.
//!
//! This crate does not know the contents of an image. `unsafe` is used only in `uring`, `memory`, `mapping`, `cpu`,
//! `pmem` and `sys`.

mod cpu;
mod dram;
mod error;
mod file;
mod fleeting;
pub mod flush;
mod image;
mod lock;
mod mapping;
mod memory;
mod place;
mod pmem;
mod readonly;
#[allow(unsafe_code)]
mod sys;
mod sysfs;
mod untouched;
mod uring;

use std::ops::Range;
use std::os::fd::RawFd;
use std::path::Path;

use pmnet_log::{Media, MediaError};

pub use cpu::Instruction;
pub use dram::DramMedia;
pub use error::OpenError;
pub use file::FileMedia;
pub use fleeting::refuse_fleeting;
pub use image::replace;
pub use memory::Memory;
pub use place::{Class, Place, look};
pub use pmem::{Method, PmemMedia, is_unused_device};
pub use readonly::{ReadOnlyImage, open_image_read_only};
pub use sysfs::Domain;
pub use uring::io_uring_works;

/// Longest time in seconds that one persist may take; after that the medium counts as failed.
pub const PERSIST_SECONDS_MAX: u64 = 30;

/// Kind of medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ordinary file; acknowledgements survive loss of power.
    File,
    /// Memory shared through a file on tmpfs or hugetlbfs; acknowledgements survive the death of the process.
    Dram,
    /// Persistent memory, flushed by the processor; acknowledgements survive loss of power.
    Pmem,
}

/// An opened medium of any kind.
#[derive(Debug)]
pub enum AnyMedia {
    /// An ordinary file.
    File(FileMedia),
    /// Shared memory.
    Dram(DramMedia),
    /// Persistent memory.
    Pmem(PmemMedia),
}

/// Creates a new file of `image_bytes` zero bytes, locks it and opens it. Its space is reserved; a small [`Kind::File`]
/// is filled with zeros. The file gets the name `path` only when it is whole; until then its name is `path` plus
/// `.new`. A devdax device ([`Kind::Pmem`]) always exists: it is opened, and stays unchanged.
///
/// # Errors
/// [`OpenError::Exists`], [`OpenError::NoSpace`], [`OpenError::Size`] (not a multiple of 4096),
/// [`OpenError::Locked`] (another process is creating it), [`OpenError::NotDirect`], [`OpenError::Io`].
pub fn create(path: &Path, kind: Kind, image_bytes: usize) -> Result<AnyMedia, OpenError> {
    refuse_fleeting(path)?;
    if kind == Kind::Pmem {
        let media = AnyMedia::Pmem(pmem::create(path, image_bytes)?);
        media.announce(path);
        return Ok(media);
    }
    image::create(path, kind, image_bytes)?;
    open(path, kind)
}

/// Locks and opens an existing file; its size is the size of the image.
///
/// # Errors
/// [`OpenError::Fleeting`], [`OpenError::NotFound`], [`OpenError::Locked`] (another process has it), [`OpenError::Size`]
/// (truncated, or not a log), [`OpenError::NotDirect`] and [`OpenError::BadBlocks`] (persistent memory),
/// [`OpenError::Io`].
pub fn open(path: &Path, kind: Kind) -> Result<AnyMedia, OpenError> {
    refuse_fleeting(path)?;
    let media = match kind {
        Kind::File => AnyMedia::File(FileMedia::open(path)?),
        Kind::Dram => AnyMedia::Dram(DramMedia::open(path)?),
        Kind::Pmem => AnyMedia::Pmem(PmemMedia::open(path)?),
    };
    media.announce(path);
    Ok(media)
}

impl AnyMedia {
    /// Returns warnings about properties that are worse than they could be on this kind of medium. They are also logged
    /// when the medium is opened.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        match self {
            AnyMedia::File(file) => file.warnings(),
            AnyMedia::Dram(dram) => dram.warnings(),
            AnyMedia::Pmem(pmem) => pmem.warnings(),
        }
    }

    fn announce(&self, path: &Path) {
        if let AnyMedia::Pmem(pmem) = self {
            tracing::info!(
                path = %path.display(),
                flush = pmem.method().name(),
                domain = ?pmem.domain(),
                survives = pmem.survives(),
                "persistent memory"
            );
        }
        for warning in self.warnings() {
            tracing::warn!(path = %path.display(), "{warning}");
        }
    }

    /// Returns the memory of the image, so that a network interface can store packets into it. After this call the
    /// image is read only in parts ([`Media::part`]).
    #[must_use]
    pub fn memory(&self) -> Memory {
        match self {
            AnyMedia::File(file) => file.memory(),
            AnyMedia::Dram(dram) => dram.memory(),
            AnyMedia::Pmem(pmem) => pmem.memory(),
        }
    }
}

impl Media for AnyMedia {
    fn bytes(&self) -> &[u8] {
        match self {
            AnyMedia::File(file) => file.bytes(),
            AnyMedia::Dram(dram) => dram.bytes(),
            AnyMedia::Pmem(pmem) => pmem.bytes(),
        }
    }

    fn part(&self, range: Range<usize>) -> &[u8] {
        match self {
            AnyMedia::File(file) => file.part(range),
            AnyMedia::Dram(dram) => dram.part(range),
            AnyMedia::Pmem(pmem) => pmem.part(range),
        }
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        match self {
            AnyMedia::File(file) => file.store(offset, bytes),
            AnyMedia::Dram(dram) => dram.store(offset, bytes),
            AnyMedia::Pmem(pmem) => pmem.store(offset, bytes),
        }
    }

    fn persist_start(&mut self, ranges: &[Range<usize>]) -> Result<(), MediaError> {
        match self {
            AnyMedia::File(file) => file.persist_start(ranges),
            AnyMedia::Dram(dram) => dram.persist_start(ranges),
            AnyMedia::Pmem(pmem) => pmem.persist_start(ranges),
        }
    }

    fn persist_poll(&mut self, wait: bool) -> Result<bool, MediaError> {
        match self {
            AnyMedia::File(file) => file.persist_poll(wait),
            AnyMedia::Dram(dram) => dram.persist_poll(wait),
            AnyMedia::Pmem(pmem) => pmem.persist_poll(wait),
        }
    }

    fn wakeup_fd(&self) -> Option<RawFd> {
        match self {
            AnyMedia::File(file) => file.wakeup_fd(),
            AnyMedia::Dram(dram) => dram.wakeup_fd(),
            AnyMedia::Pmem(pmem) => pmem.wakeup_fd(),
        }
    }

    fn survives(&self) -> &'static str {
        match self {
            AnyMedia::File(file) => file.survives(),
            AnyMedia::Dram(dram) => dram.survives(),
            AnyMedia::Pmem(pmem) => pmem.survives(),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            AnyMedia::File(file) => file.name(),
            AnyMedia::Dram(dram) => dram.name(),
            AnyMedia::Pmem(pmem) => pmem.name(),
        }
    }
}
