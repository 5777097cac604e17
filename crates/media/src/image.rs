//! Creates and checks the file of an image. The file gets its name only when it is whole.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use memmap2::MmapMut;

use crate::error::OpenError;
use crate::{Kind, lock, pmem, sys};

/// Unit of every image, in bytes.
pub(crate) const BLOCK: usize = 4096;
/// Smallest image that can hold a log, in bytes.
const IMAGE_BYTES_MIN: usize = 4 * BLOCK;
/// Largest new file, in bytes, that is filled with zeros at once. For a larger file only the space is reserved, because
/// filling takes seconds for each gigabyte. Its parts are filled when they are first written ([`crate::untouched`]).
const FILLED_BYTES_MAX: usize = 128 << 20;
/// Size of the pieces in which a new file is filled with zeros and an image is read, in bytes.
pub(crate) const PIECE: usize = 1 << 20;

/// Creates the file `path` with `bytes` zero bytes.
pub(crate) fn create(path: &Path, kind: Kind, bytes: usize) -> Result<(), OpenError> {
    check_size(path, bytes)?;
    let mut name = OsString::from(path);
    name.push(".new");
    let temporary = PathBuf::from(name);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&temporary)
        .map_err(OpenError::io(
            path,
            "make the file (does its directory exist?)",
            bytes,
        ))?;
    lock::exclusive(&file, path)?;
    // From now on no other process creates this log. But another process may have completed it before: then the log is
    // at `path`, and our descriptor belongs to that file. So this code checks `path` before any change.
    match fs::symlink_metadata(path) {
        Ok(_) => {
            if !lock::same_file(&file, path) {
                let _gone_anyway = fs::remove_file(&temporary);
            }
            return Err(OpenError::Exists {
                path: path.to_path_buf(),
            });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(OpenError::io(path, "look at the path", bytes)(error)),
    }
    let suits = match kind {
        Kind::Pmem => pmem::check_direct(&file, path),
        Kind::File | Kind::Dram => Ok(()),
    };
    let made = suits.and_then(|()| {
        fill(&file, kind, bytes)
            .and_then(|()| fs::rename(&temporary, path))
            .and_then(|()| sync_directory(path))
            .map_err(OpenError::io(path, "make the file", bytes))
    });
    made.inspect_err(|_| {
        let _gone_anyway = fs::remove_file(&temporary);
    })
}

/// Replaces the file `path` by the file `with` from the same folder, which gets the owner and permissions of `path`;
/// the change is durable when the function returns. The caller has locked both files. If a process had opened `path`
/// before, its file has no name now; if it waits for the lock, it gets [`OpenError::Replaced`].
///
/// # Errors
/// [`OpenError::Io`]. Nothing has changed, unless the folder could not be synced.
pub fn replace(path: &Path, with: &Path) -> Result<(), OpenError> {
    let told = |what| OpenError::io(path, what, 0);
    let old = fs::metadata(path).map_err(told("look at the file"))?;
    let new = File::open(with).map_err(told("open the new file"))?;
    let is = new.metadata().map_err(told("look at the new file"))?;
    if (is.uid(), is.gid()) != (old.uid(), old.gid()) {
        fchown(&new, Some(old.uid()), Some(old.gid())).map_err(told(
            "give the new file the owner of the old one (are you root?)",
        ))?;
    }
    new.set_permissions(old.permissions())
        .and_then(|()| new.sync_all())
        .map_err(told("give the new file the permissions of the old one"))?;
    fs::rename(with, path).map_err(told("put the new file in the place of the old one"))?;
    sync_directory(path).map_err(told("sync the folder"))
}

fn fill(file: &File, kind: Kind, bytes: usize) -> io::Result<()> {
    file.set_len(0)?;
    let bytes = match kind {
        Kind::File | Kind::Pmem => bytes,
        Kind::Dram => bytes.next_multiple_of(sys::file_system(file)?.unit),
    };
    match (sys::reserve(file, bytes), kind) {
        (Ok(()), Kind::Dram) => return Ok(()),
        (Ok(()), Kind::File) if bytes > FILLED_BYTES_MAX => return file.sync_all(),
        (Ok(()), Kind::File | Kind::Pmem) => {}
        // This file system cannot reserve space; writing the zeros reserves it.
        (Err(error), Kind::File | Kind::Pmem) if error.kind() == io::ErrorKind::Unsupported => {}
        // A store into a page without space on the disk would kill the process later.
        (Err(error), _) => return Err(error),
    }
    // The space is not only reserved, but filled with zeros. To overwrite such blocks changes no metadata of the file
    // system. So a later O_DSYNC write is a single write, and a later store to persistent memory changes no metadata.
    let zeros = vec![0; PIECE];
    let mut at = 0;
    while at < bytes {
        let piece = PIECE.min(bytes - at);
        file.write_all_at(&zeros[..piece], offset(at))?;
        at += piece;
    }
    file.sync_all()
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

/// Returns the size of the image in an opened file.
pub(crate) fn size(file: &File, path: &Path) -> Result<usize, OpenError> {
    let metadata = file
        .metadata()
        .map_err(OpenError::io(path, "look at the file", 0))?;
    if !metadata.is_file() {
        return Err(OpenError::NotAFile {
            path: path.to_path_buf(),
        });
    }
    let bytes = usize::try_from(metadata.len()).map_err(|_| OpenError::Size {
        path: path.to_path_buf(),
        bytes: metadata.len(),
    })?;
    check_size(path, bytes)?;
    Ok(bytes)
}

pub(crate) fn check_size(path: &Path, bytes: usize) -> Result<(), OpenError> {
    if bytes >= IMAGE_BYTES_MIN && bytes.is_multiple_of(BLOCK) {
        return Ok(());
    }
    Err(OpenError::Size {
        path: path.to_path_buf(),
        bytes: offset(bytes),
    })
}

/// Returns a byte offset as the type that system calls need.
pub(crate) fn offset(at: usize) -> u64 {
    u64::try_from(at).expect("usize is at most 64 bits")
}

/// Reads the written parts of the file into `image`, which must be zero and have the length of the file. Pages that are
/// zero in the file are not touched in `image`, so they take no memory.
pub(crate) fn read(file: &File, written: &[Range<usize>], image: &mut [u8]) -> io::Result<()> {
    // The buffer begins at a page, because O_DIRECT needs that.
    let mut piece = MmapMut::map_anon(PIECE)?;
    for part in written {
        let end = part.end.next_multiple_of(BLOCK).min(image.len());
        let mut at = part.start / BLOCK * BLOCK;
        while at < end {
            let len = PIECE.min(end - at);
            file.read_exact_at(&mut piece[..len], offset(at))?;
            let pages = piece[..len].chunks(BLOCK);
            for (page, to) in pages.zip(image[at..at + len].chunks_mut(BLOCK)) {
                if !is_zero(page) {
                    to.copy_from_slice(page);
                }
            }
            at += len;
        }
    }
    Ok(())
}

/// Returns whether every byte is zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}
