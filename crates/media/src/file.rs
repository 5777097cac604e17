//! An ordinary file: the image is in memory, and a persist writes its 4 KiB blocks with `O_DIRECT`
//! and `O_DSYNC`, all of them at once through io_uring.
//!
//! A persist writes copies of the blocks, so stores into the image can go on during the write. The persist is complete
//! when all its writes are complete; each complete write is durable.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use memmap2::MmapMut;
use pmnet_log::{Media, MediaError};

use crate::error::OpenError;
use crate::image::{self, BLOCK, offset};
use crate::lock;
use crate::memory::Memory;
use crate::sys;
use crate::untouched::Untouched;
use crate::uring::{RingWriter, is_for_the_moment};

/// A log in an ordinary file.
#[derive(Debug)]
pub struct FileMedia {
    /// The image, aligned to pages, as `O_DIRECT` requires.
    image: Memory,
    writer: Writer,
    in_flight: bool,
    failed: bool,
    /// Whether the file system is in memory, without a disk.
    memory: bool,
    blocks: Vec<Range<usize>>,
    untouched: Untouched,
    warnings: Vec<String>,
    path: PathBuf,
    /// The lock is held while this file is open; a write in flight holds it too.
    file: File,
}

#[derive(Debug)]
enum Writer {
    /// io_uring writes in the background.
    Ring(Box<RingWriter>),
    /// The caller waits for the writes, because this process may not use io_uring. `sync`: a sync follows the writes,
    /// because the file system refused `O_DIRECT`.
    Blocking { sync: bool },
}

impl FileMedia {
    /// Locks an existing file and reads it into memory.
    ///
    /// # Errors
    /// As [`open`](crate::open).
    pub fn open(path: &Path) -> Result<FileMedia, OpenError> {
        FileMedia::open_with(path, true, true)
    }

    fn open_with(path: &Path, direct: bool, ring: bool) -> Result<FileMedia, OpenError> {
        let mut warnings = Vec::new();
        let opened = if direct {
            open_direct(path)
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        };
        let (file, direct) = match opened {
            Ok(file) => (file, true),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                warnings.push(format!(
                    "PM1322 {}: the file system refuses O_DIRECT: every persist goes through the page cache and \
                     fdatasync, which is slower and blocks the device; use another file system",
                    path.display()
                ));
                let file = OpenOptions::new().read(true).write(true).open(path);
                (
                    file.map_err(OpenError::io(path, "open the file", 0))?,
                    false,
                )
            }
            Err(error) => return Err(OpenError::io(path, "open the file", 0)(error)),
        };
        lock::of_path(&file, path)?;
        let bytes = image::size(&file, path)?;
        let found = sys::file_system(&file);
        let memory = found
            .map_err(OpenError::io(path, "look up the file system", 0))?
            .memory;
        if memory {
            warnings.push(format!(
                "PM1323 {}: on a file system in memory, so the log survives the death of the process only; for power \
                 loss use a path on a disk",
                path.display()
            ));
        }
        let mut image = MmapMut::map_anon(bytes).map_err(OpenError::io(
            path,
            "hold the image in memory",
            bytes,
        ))?;
        let written = sys::written(&file, bytes);
        image::read(&file, &written, &mut image).map_err(OpenError::io(
            path,
            "read the file",
            bytes,
        ))?;
        let untouched = Untouched::new(bytes, &written).map_err(OpenError::io(
            path,
            "hold the image in memory",
            bytes,
        ))?;
        let writer = match (direct, ring.then(|| RingWriter::new(&file))) {
            (true, Some(Ok(writer))) => Writer::Ring(Box::new(writer)),
            (true, failed) => {
                let why = failed
                    .and_then(Result::err)
                    .map_or_else(String::new, |error| format!(" ({error})"));
                warnings.push(format!(
                    "PM1324 {}: io_uring cannot be used{why}: every persist blocks the device while it lasts; \
                     allow io_uring (kernel.io_uring_disabled, seccomp)",
                    path.display()
                ));
                Writer::Blocking { sync: false }
            }
            (false, _) => Writer::Blocking { sync: true },
        };
        Ok(FileMedia {
            image: Memory::new(image),
            writer,
            in_flight: false,
            failed: false,
            memory,
            blocks: Vec::new(),
            untouched,
            warnings,
            path: path.to_path_buf(),
            file,
        })
    }

    /// Returns warnings about properties that are worse than they could be.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the memory of the image.
    #[must_use]
    pub fn memory(&self) -> Memory {
        self.image.clone()
    }

    /// Checks that the file still has its length. If another program has truncated the file, a write after its new end
    /// would leave a hole before the write.
    ///
    /// # Errors
    /// The length has changed, or cannot be determined.
    fn check_length(&self) -> Result<(), MediaError> {
        let (path, own) = (self.path.display(), self.image.len());
        let about = self.file.metadata();
        let about = about.map_err(|source| write_error(&self.path, source))?;
        if usize::try_from(about.len()) == Ok(own) {
            return Ok(());
        }
        Err(MediaError::Io {
            what: format!(
                "PM1312 {path}: the file has {} bytes and not the {own} of the log: another program has truncated it \
                 (logrotate?), and what it held is lost. Treat the device as lost; give the log a name and a folder \
                 without rotation",
                about.len()
            ),
            source: io::ErrorKind::UnexpectedEof.into(),
        })
    }

    fn noted<T>(&mut self, result: Result<T, MediaError>) -> Result<T, MediaError> {
        self.failed |= result.is_err();
        result
    }

    fn write_blocking(&self, sync: bool) -> Result<(), MediaError> {
        let mut result = Ok(());
        for block in &self.blocks {
            result = result.and_then(|()| {
                self.file
                    .write_all_at(self.image.part(block.clone()), offset(block.start))
            });
        }
        if sync {
            result = result.and_then(|()| self.file.sync_data());
        }
        result.map_err(|source| write_error(&self.path, source))
    }
}

fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT | libc::O_DSYNC)
        .open(path)
}

/// Returns whether the file at `path` can be opened with `O_DIRECT`.
pub(crate) fn takes_direct(path: &Path) -> bool {
    open_direct(path).is_ok()
}

fn write_error(path: &Path, source: io::Error) -> MediaError {
    let hint = if is_for_the_moment(&source) {
        " (or raise the limit of threads, if the kernel could not create a thread for the write: TasksMax= of systemd, \
         pids.max of the cgroup, ulimit -u)"
    } else {
        ""
    };
    MediaError::Io {
        what: format!(
            "PM1314 {}: a write failed. Nothing that was acknowledged is lost if the disk is whole: check the disk, and start the process again{hint}",
            path.display()
        ),
        source,
    }
}

/// Fills `blocks` with the 4 KiB blocks that cover `ranges`: in order, and each block once.
fn cover(ranges: &[Range<usize>], blocks: &mut Vec<Range<usize>>) {
    blocks.clear();
    blocks.extend(
        ranges
            .iter()
            .filter(|range| !range.is_empty())
            .map(|range| range.start / BLOCK * BLOCK..range.end.next_multiple_of(BLOCK)),
    );
    blocks.sort_unstable_by_key(|block| block.start);
    blocks.dedup_by(|next, before| {
        let joined = next.start <= before.end;
        if joined {
            before.end = before.end.max(next.end);
        }
        joined
    });
}

impl Media for FileMedia {
    fn bytes(&self) -> &[u8] {
        self.image.whole()
    }

    fn part(&self, range: Range<usize>) -> &[u8] {
        self.image.part(range)
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.image.store(offset, bytes);
    }

    fn persist_start(&mut self, ranges: &[Range<usize>]) -> Result<(), MediaError> {
        if self.failed {
            return Err(MediaError::Failed);
        }
        assert!(!self.in_flight, "one persist at a time");
        let whole = self.check_length();
        self.noted(whole)?;
        cover(ranges, &mut self.blocks);
        let image = &self.image;
        let is_zero = |block| image::is_zero(image.part(block));
        let settled = self
            .untouched
            .settle(&self.file, &mut self.blocks, is_zero)
            .map_err(|source| write_error(&self.path, source));
        self.noted(settled)?;
        let started = match &mut self.writer {
            Writer::Ring(ring) => {
                self.in_flight = true;
                ring.start(&self.blocks, &self.image)
                    .map_err(|source| write_error(&self.path, source))
            }
            Writer::Blocking { sync } => {
                let sync = *sync;
                self.write_blocking(sync).and_then(|()| self.check_length())
            }
        };
        self.noted(started)
    }

    fn persist_poll(&mut self, wait: bool) -> Result<bool, MediaError> {
        if self.failed {
            return Err(MediaError::Failed);
        }
        if !self.in_flight {
            return Ok(true);
        }
        let Writer::Ring(ring) = &mut self.writer else {
            return Ok(true);
        };
        let done = match ring.poll(&self.image, wait) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(MediaError::Stalled {
                seconds: crate::PERSIST_SECONDS_MAX,
            }),
            result => result.map_err(|source| write_error(&self.path, source)),
        };
        // If the file was truncated during the writes, the persist fails.
        let whole = match done {
            Ok(true) => self.check_length().map(|()| true),
            other => other,
        };
        let done = self.noted(whole)?;
        self.in_flight = !done;
        Ok(done)
    }

    fn wakeup_fd(&self) -> Option<RawFd> {
        match &self.writer {
            Writer::Ring(ring) => Some(ring.fd()),
            Writer::Blocking { .. } => None,
        }
    }

    fn survives(&self) -> &'static str {
        if self.memory {
            "death of the process, not power loss (the file system is in memory)"
        } else {
            "power loss, if the disk keeps what it reports as written"
        }
    }

    fn name(&self) -> &'static str {
        "file"
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
