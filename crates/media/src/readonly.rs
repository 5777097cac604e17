//! A copy of an image for inspection; the file is never written.

use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use memmap2::MmapMut;
use pmnet_log::{Media, MediaError};

use crate::error::OpenError;
use crate::{image, pmem, sys};

/// A private copy of a log's image. Stores change only the copy, and every persist is refused.
#[derive(Debug)]
pub struct ReadOnlyImage {
    image: Image,
    in_use: bool,
}

#[derive(Debug)]
enum Image {
    Whole(Vec<u8>),
    /// Zero pages of this mapping take no memory.
    Sparse(MmapMut),
}

/// Reads the image in `path`, on any kind of medium.
///
/// # Errors
/// As [`open`](crate::open), except that a log in use can be read: see [`ReadOnlyImage::in_use`].
pub fn open_image_read_only(path: &Path) -> Result<ReadOnlyImage, OpenError> {
    let file = OpenOptions::new()
        .read(true)
        // Without this flag, the opening of a pipe would wait.
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(OpenError::io(path, "open the file", 0))?;
    let in_use = file.try_lock_shared().is_err();
    if in_use {
        tracing::warn!(path = %path.display(), "PM5302 the log is in use: what is read may be in the middle of a change");
    }
    if let Some(image) = pmem::read_device(&file, path)? {
        let image = Image::Whole(image);
        return Ok(ReadOnlyImage { image, in_use });
    }
    let bytes = image::size(&file, path)?;
    let mut image =
        MmapMut::map_anon(bytes).map_err(OpenError::io(path, "hold the image in memory", bytes))?;
    let written = sys::written(&file, bytes);
    image::read(&file, &written, &mut image).map_err(OpenError::io(
        path,
        "read the file",
        bytes,
    ))?;
    Ok(ReadOnlyImage {
        image: Image::Sparse(image),
        in_use,
    })
}

impl ReadOnlyImage {
    /// Writes the image durably to a file, in which zero pages take no space. An existing file is overwritten.
    ///
    /// # Errors
    /// [`OpenError::NoSpace`], [`OpenError::Io`].
    pub fn save(&self, path: &Path) -> Result<(), OpenError> {
        let bytes = self.bytes();
        let write = || -> io::Result<()> {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(path)?;
            file.set_len(image::offset(bytes.len()))?;
            for (number, block) in bytes.chunks(image::BLOCK).enumerate() {
                if !image::is_zero(block) {
                    file.write_all_at(block, image::offset(number * image::BLOCK))?;
                }
            }
            file.sync_all()
        };
        write().map_err(OpenError::io(path, "write the copy", bytes.len()))
    }

    /// Returns whether a running device had the log open. If so, the copy may contain a change that was only half made.
    #[must_use]
    pub fn in_use(&self) -> bool {
        self.in_use
    }
}

impl Media for ReadOnlyImage {
    fn bytes(&self) -> &[u8] {
        match &self.image {
            Image::Whole(image) => image,
            Image::Sparse(image) => image,
        }
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        let image: &mut [u8] = match &mut self.image {
            Image::Whole(image) => image,
            Image::Sparse(image) => image,
        };
        image[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn persist_start(&mut self, _ranges: &[Range<usize>]) -> Result<(), MediaError> {
        Err(MediaError::ReadOnly)
    }

    fn persist_poll(&mut self, _wait: bool) -> Result<bool, MediaError> {
        Ok(true)
    }

    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }

    fn survives(&self) -> &'static str {
        "nothing: a copy for reading"
    }

    fn name(&self) -> &'static str {
        "copy"
    }
}
