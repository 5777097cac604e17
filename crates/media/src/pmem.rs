//! Persistent memory: a devdax device, or a file of a file system with direct access (fsdax).
//!
//! The mapping is the memory itself. A persist flushes the cache lines of its ranges, and one fence follows
//! ([`crate::flush`]). If the machine saves its caches at a power cut (eADR), the fence is enough. A mapping through
//! the page cache is refused, because a flush would reach only DRAM.
//!
//! A process that reads a bad line is killed (SIGBUS). The kernel then knows the bad block, and the next open refuses
//! the log.

#![allow(unsafe_code)]

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use pmnet_log::{Media, MediaError};

use crate::cpu::{self, Instruction};
use crate::error::OpenError;
use crate::flush::{self, Flush};
use crate::image::{self, BLOCK};
use crate::mapping::Mapping;
use crate::memory::Memory;
use crate::sysfs::{Backing, Domain, SYSFS, Sysfs};
use crate::{Kind, lock, sys};

/// A log in persistent memory.
#[derive(Debug)]
pub struct PmemMedia {
    memory: Memory,
    method: Method,
    domain: Domain,
    warnings: Vec<String>,
    /// Keeps the lock while it is open.
    _file: File,
}

/// How stores are made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// This instruction flushes each line, and a fence follows.
    Flush(Instruction),
    /// The fence alone is enough, because the machine saves its caches.
    Fence,
}

impl Method {
    /// Returns a text for logs and `pmnet doctor`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Method::Flush(instruction) => instruction.name(),
            Method::Fence => "none (the machine saves its caches)",
        }
    }

    /// Returns the method for memory of this domain on this processor. `None`: pmnet knows no flush instruction of this
    /// processor.
    #[must_use]
    pub fn for_domain(domain: Domain) -> Option<Method> {
        let instruction = Instruction::of_this_processor()?;
        Some(match domain {
            Domain::CpuCache => Method::Fence,
            Domain::Memory | Domain::Unsaid | Domain::NotPersistent => Method::Flush(instruction),
        })
    }
}

/// Creates the file of a log, with `bytes` zero bytes, or opens a devdax device. The device must be large enough, and
/// is not changed.
pub(crate) fn create(path: &Path, bytes: usize) -> Result<PmemMedia, OpenError> {
    if !is_character_device(path) {
        image::create(path, Kind::Pmem, bytes)?;
        return PmemMedia::open(path);
    }
    let media = PmemMedia::open(path)?;
    if media.bytes().len() < bytes {
        return Err(OpenError::NoSpace {
            path: path.to_path_buf(),
            bytes,
        });
    }
    Ok(media)
}

/// Returns whether `path` is a devdax device without a log: its first 8 KiB are zero. A file is created together with
/// its log, so the question arises only for devices.
///
/// # Errors
/// As [`open`](crate::open).
pub fn is_unused_device(path: &Path, kind: Kind) -> Result<bool, OpenError> {
    if kind != Kind::Pmem || !is_character_device(path) {
        return Ok(false);
    }
    let media = PmemMedia::open(path)?;
    Ok(media.bytes()[..2 * BLOCK].iter().all(|byte| *byte == 0))
}

fn is_character_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_char_device())
}

/// Refuses a file that cannot be mapped directly.
pub(crate) fn check_direct(file: &File, path: &Path) -> Result<(), OpenError> {
    map(file, path, BLOCK).map(drop)
}

fn map(file: &File, path: &Path, bytes: usize) -> Result<Mapping, OpenError> {
    Mapping::new(file, bytes, true).map_err(|source| match source.kind() {
        // EOPNOTSUPP: the mapping would go through the page cache. EINVAL: the kernel or the file system does not
        // support MAP_SYNC.
        io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput => OpenError::NotDirect {
            path: path.to_path_buf(),
            source,
        },
        _ => OpenError::io(path, "map the memory", bytes)(source),
    })
}

/// Returns the size of the opened file or device. The size of a devdax device is in sysfs.
fn size(file: &File, metadata: &Metadata, path: &Path) -> Result<usize, OpenError> {
    if !metadata.file_type().is_char_device() {
        return image::size(file, path);
    }
    let sysfs = Sysfs(Path::new(SYSFS));
    if !sysfs.is_dax(metadata.rdev()) {
        return Err(OpenError::NotAFile {
            path: path.to_path_buf(),
        });
    }
    let bytes = sysfs.dax_bytes(metadata.rdev());
    let bytes = bytes.map_err(OpenError::io(path, "find out the size of the device", 0))?;
    image::check_size(path, bytes)?;
    Ok(bytes)
}

/// Returns facts about the memory of the opened file or device.
pub(crate) fn backing(metadata: &Metadata) -> Backing {
    let sysfs = Sysfs(Path::new(SYSFS));
    if metadata.file_type().is_char_device() {
        return sysfs.dax_memory(metadata.rdev());
    }
    let mut memory = sysfs.block_memory(metadata.dev());
    // The kernel allows MAP_SYNC only on memory that a flush of the CPU reaches, so this memory is persistent in any
    // case.
    memory.domain = memory.domain.max(Domain::Unsaid);
    memory
}

/// Returns a copy of a devdax device, which can be read only through a mapping. `None`: the file is no such device.
pub(crate) fn read_device(file: &File, path: &Path) -> Result<Option<Vec<u8>>, OpenError> {
    let metadata = file
        .metadata()
        .map_err(OpenError::io(path, "look at the file", 0))?;
    if !metadata.file_type().is_char_device() {
        return Ok(None);
    }
    let bytes = size(file, &metadata, path)?;
    refuse_bad(&backing(&metadata), path)?;
    let map = Mapping::new(file, bytes, false);
    let map = map.map_err(OpenError::io(path, "map the memory", bytes))?;
    let mut image = Vec::new();
    image.try_reserve_exact(bytes).map_err(|error| {
        OpenError::io(path, "hold the image in memory", bytes)(io::Error::other(error))
    })?;
    image.extend_from_slice(Memory::new(map).whole());
    Ok(Some(image))
}

fn refuse_bad(memory: &Backing, path: &Path) -> Result<(), OpenError> {
    match memory.bad_bytes {
        0 => Ok(()),
        bytes => Err(OpenError::BadBlocks {
            path: path.to_path_buf(),
            bytes,
        }),
    }
}

/// Returns a sentence for each weakness of this memory.
fn warnings(memory: &Backing, path: &Path) -> Vec<String> {
    let path = path.display();
    let mut found: Vec<String> = memory
        .unknown
        .iter()
        .map(|what| format!("PM1325 {path}: cannot find out {what}"))
        .collect();
    match memory.domain {
        Domain::NotPersistent => found.push(format!(
            "PM1326 {path}: nothing says that this memory is persistent, so the log counts as lost in a power cut; use \
             an NVDIMM, or media file"
        )),
        Domain::Unsaid => found.push(format!(
            "PM1327 {path}: the machine does not say what its memory keeps in a power cut (no persistence_domain); every \
             persist flushes, which is all that can be done: ask the machine's manual"
        )),
        Domain::Memory | Domain::CpuCache => {}
    }
    found
}

impl PmemMedia {
    /// Locks and maps a devdax device, or a file on fsdax.
    ///
    /// # Errors
    /// As [`open`](crate::open).
    pub fn open(path: &Path) -> Result<PmemMedia, OpenError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(OpenError::io(path, "open it", 0))?;
        lock::of_path(&file, path)?;
        let metadata = file
            .metadata()
            .map_err(OpenError::io(path, "look at the file", 0))?;
        let bytes = size(&file, &metadata, path)?;
        let backing = backing(&metadata);
        refuse_bad(&backing, path)?;
        let map = map(&file, path, bytes)?;
        if metadata.is_file() {
            // The kernel fills a hole at the first store into it. Without free space, that store would kill the
            // process.
            sys::reserve(&file, bytes).map_err(OpenError::io(path, "reserve the space", bytes))?;
        }
        let Some(method) = Method::for_domain(backing.domain) else {
            return Err(OpenError::NoFlush {
                path: path.to_path_buf(),
            });
        };
        Ok(PmemMedia {
            memory: Memory::new(map),
            method,
            domain: backing.domain,
            warnings: warnings(&backing, path),
            _file: file,
        })
    }

    /// Returns the method that makes stores durable.
    #[must_use]
    pub fn method(&self) -> Method {
        self.method
    }

    /// Returns the persistence domain of this memory.
    #[must_use]
    pub fn domain(&self) -> Domain {
        self.domain
    }

    /// Returns the memory of the image.
    #[must_use]
    pub fn memory(&self) -> Memory {
        self.memory.clone()
    }

    /// Returns warnings about properties that are worse than this kind of medium can have.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// Flushes the lines of `ranges` of this memory; one fence follows.
pub(crate) fn persist(memory: &Memory, method: Method, ranges: &[Range<usize>]) {
    flush::persist(ranges, &mut Processor { memory, method });
}

/// The flush instructions of this processor, applied to the memory of an image.
struct Processor<'a> {
    memory: &'a Memory,
    method: Method,
}

impl Flush for Processor<'_> {
    fn line(&mut self, offset: usize) {
        if let Method::Flush(instruction) = self.method {
            let line = self.memory.part(offset..offset + 1).as_ptr();
            // SAFETY: the address is of a byte inside the mapping, and the instruction is one that CPUID names.
            unsafe { cpu::flush_line(instruction, line) }
        }
    }

    fn fence(&mut self) {
        cpu::store_fence();
    }
}

impl Media for PmemMedia {
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
        persist(&self.memory, self.method, ranges);
        Ok(())
    }

    fn persist_poll(&mut self, _wait: bool) -> Result<bool, MediaError> {
        Ok(true)
    }

    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }

    fn survives(&self) -> &'static str {
        self.domain.survives()
    }

    fn name(&self) -> &'static str {
        "pmem"
    }
}

#[cfg(test)]
#[path = "pmem_tests.rs"]
mod tests;
