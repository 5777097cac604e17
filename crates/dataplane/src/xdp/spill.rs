//! The file in which the log of a device in the kernel is saved when the device ends.
//!
//! Invariants: the file has the whole log or does not exist, even after a power failure. Only a file that is an older
//! copy of the same log is overwritten or put aside. Spec: `docs/spec/pipeline.md` §6. This module must not know the
//! contents of the log.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use pmnet_log::{Heading, Media, heading};

use super::error::OpenError;
use super::image::MapMedia;

/// Returns the error for a failed operation on this file.
pub(super) fn file_error(path: &Path) -> impl FnOnce(std::io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::File { path, source }
}

/// Checks, before the device serves, whether the log could be saved as `path`: the folder exists and is writable, and
/// `path` is not another kind of file.
pub(super) fn check(path: &Path) -> Result<(), OpenError> {
    pmnet_media::refuse_fleeting(path).map_err(|error| OpenError::Other(error.to_string()))?;
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            return Err(OpenError::Other(format!(
                "PM1433 {} is not a file: --spill names the file in which the log is saved",
                path.display()
            )));
        }
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(file_error(path)(error)),
        Ok(_) | Err(_) => {}
    }
    let part = with_suffix(path, "part");
    File::create(&part).map_err(file_error(&part))?;
    std::fs::remove_file(&part).map_err(file_error(&part))
}

/// Fails if the file at `path` is not an older copy of the log with heading `kept`. `same`: whether a copy with the
/// same heading also counts as older, which is right only once saving has begun.
pub(super) fn check_older(path: &Path, kept: &Heading, same: bool) -> Result<(), OpenError> {
    if !path.exists() {
        return Ok(());
    }
    let found = heading(&read(path)?);
    let is_older =
        |found: &Heading| found.may_precede(kept) && (same || found.incarnation < kept.incarnation);
    let what = match found {
        Ok(found) if is_older(&found) => return Ok(()),
        Ok(found) if found.identity == kept.identity => {
            "is not an older copy of the log that the kernel holds"
        }
        Ok(_) => "holds another log than the kernel",
        Err(_) => "is no log",
    };
    Err(OpenError::Other(format!(
        "PM1434 {} {what}, and is not touched. To use this file, take the device out of the kernel first, with another file: the \
         same command line with --spill OTHER_FILE --detach. To go on with the log in the kernel, move this file away",
        path.display()
    )))
}

/// Returns the bytes of the file `path`.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, OpenError> {
    std::fs::read(path).map_err(file_error(path))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// Saves the log durably. The log is first written under another name, so that the file `path` is whole or does not
/// exist.
pub(super) fn save(path: &Path, image: &MapMedia) -> Result<(), OpenError> {
    let part = with_suffix(path, "part");
    let written = File::create(&part).and_then(|mut out| {
        out.write_all(image.bytes())?;
        out.sync_all()
    });
    if let Err(error) = written {
        // An incomplete file is of no use. The first error is reported, even if the removal fails, too.
        let _ = std::fs::remove_file(&part);
        return Err(file_error(&part)(error));
    }
    std::fs::rename(&part, path).map_err(file_error(path))?;
    sync_folder_of(path)
}

/// Renames the file durably, so that no later start finds it.
pub(super) fn put_aside(path: &Path, suffix: &str) -> Result<(), OpenError> {
    let aside = with_suffix(path, suffix);
    std::fs::rename(path, &aside).map_err(file_error(path))?;
    tracing::info!(file = %path.display(), now = %aside.display(), "put the old copy of the log aside");
    sync_folder_of(path)
}

fn sync_folder_of(path: &Path) -> Result<(), OpenError> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(file_error(folder))
}
