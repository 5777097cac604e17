//! The file in which the log of a device in the kernel is saved when the device ends.
//!
//! Invariants: the file is the whole log or it is not there, also after a loss of power. Spec: `docs/spec/pipeline.md` §6.
//! May not: know what is in the log.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use pmnet_log::Media;

use super::error::OpenError;
use super::image::MapMedia;

/// What a failed operation on this file is reported as.
pub(super) fn file_error(path: &Path) -> impl FnOnce(std::io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::File { path, source }
}

/// The whole file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, OpenError> {
    std::fs::read(path).map_err(file_error(path))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// Saves the log durably. It is written under another name first, so the file is whole or not there.
pub(super) fn save(path: &Path, image: &MapMedia) -> Result<(), OpenError> {
    let part = with_suffix(path, "part");
    let mut out = File::create(&part).map_err(file_error(&part))?;
    out.write_all(image.bytes()).map_err(file_error(&part))?;
    out.sync_all().map_err(file_error(&part))?;
    std::fs::rename(&part, path).map_err(file_error(path))?;
    sync_folder_of(path)
}

/// Renames the file durably, so that no start finds it.
pub(super) fn put_aside(path: &Path, suffix: &str) -> Result<(), OpenError> {
    std::fs::rename(path, with_suffix(path, suffix)).map_err(file_error(path))?;
    sync_folder_of(path)
}

fn sync_folder_of(path: &Path) -> Result<(), OpenError> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(file_error(folder))
}
