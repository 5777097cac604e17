//! Makes a packet store, or a region of a device, larger while no process uses it (`docs/spec/packet-store.md` §13;
//! known gap G62).
//!
//! The whole image is copied to a second file in the same folder, and read back. After the check, one step gives the
//! copy the name of the old file. Both files are locked until the copy has the old name, so no process ever uses both.
//! If the process or the machine dies, the name leads either to the complete old file or to the complete new file. The
//! next attempt removes a copy that was left over.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use pmnet_log::Decision;
use pmnet_media::{AnyMedia, Kind};
use pmnet_packet_store::{Geometry, OpenError as ImageError, Scan};

use super::place::media_error;

/// Suffix of the copy's name while the copy is not complete.
const SUFFIX: &str = ".growing";
/// Length of the first block of a store, in bytes. The block stays zero until the rest of the copy is written.
const BLOCK_BYTES: u64 = 4096;

/// Reason why a store did not grow. The old store is unchanged.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct GrowError(pub String);

impl From<ImageError> for GrowError {
    fn from(error: ImageError) -> GrowError {
        GrowError(match error {
            ImageError::Damaged(_) => format!(
                "PM5318 {error}. `pmnet store verify` says more; a store that is damaged does not grow"
            ),
            other => other.to_string(),
        })
    }
}

/// Size of a store before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    /// Geometry before.
    pub from: Geometry,
    /// Geometry now.
    pub to: Geometry,
    /// Number of records in the store.
    pub records: u64,
    /// Number of orders that the log holds and the store has not applied; `None` if the store has no log.
    pub unapplied: Option<u64>,
}

/// Makes the store in the file `path` larger. `size` is a number of bytes in the form of `size=` in the store's
/// address. `progress` is called with the number of bytes copied and their total. Its last call is before the copy
/// takes the file's name. If `progress` returns an error, the old store stays as it is.
///
/// # Errors
/// [`GrowError`]: what is wrong, and what the operator can do.
pub fn grow_packet_store(
    path: &Path,
    size: u64,
    progress: &mut dyn FnMut(u64, u64) -> Result<(), GrowError>,
) -> Result<Grown, GrowError> {
    let told = |error: std::io::Error| GrowError(error.to_string());
    // A symbolic link stays a symbolic link: the file that it names is replaced.
    let path = fs::canonicalize(path).map_err(told)?;
    let metadata = fs::metadata(&path).map_err(told)?;
    if metadata.file_type().is_char_device() {
        return Err(GrowError(
            "PM5311 a devdax device has a fixed size: only a store in a file grows".into(),
        ));
    }
    if metadata.nlink() > 1 {
        return Err(GrowError(format!(
            "PM5312 the file has {} names (hard links), and the others would still lead to the old file: remove those first",
            metadata.nlink()
        )));
    }
    let kind = kind_of(&path)?;
    let source = open(&path, kind)?;
    let source = Scan::open(source, None)?;
    let before = state(&source)?;
    let to = source.geometry().grown(size)?;
    let copy = beside(&path);
    remove_left_over(&copy, &source)?;
    let grown = Grown {
        from: *source.geometry(),
        to,
        records: source.last_commit().records,
        unapplied: before
            .as_ref()
            .map(|log| unapplied(log, source.last_commit().order)),
    };
    let mut ended = false;
    let mut watched = |done, all| progress(done, all).inspect_err(|_| ended = true);
    let made = make_copy(&source, before.as_ref(), &copy, kind, &to, &mut watched);
    let taken = made.and_then(|_locked| {
        pmnet_media::replace(&path, &copy).map_err(|error| GrowError(error.to_string()))
    });
    if taken.is_err() && !ended && copy.exists() {
        // If the file cannot be removed now, the next attempt removes it.
        let _left = fs::remove_file(&copy);
    }
    taken.map(|()| grown)
}

/// Makes the copy, syncs it and reads it back. The copy is locked until the returned value is dropped.
fn make_copy(
    source: &Scan<AnyMedia>,
    before: Option<&Decision>,
    copy: &Path,
    kind: Kind,
    to: &Geometry,
    progress: &mut dyn FnMut(u64, u64) -> Result<(), GrowError>,
) -> Result<Scan<AnyMedia>, GrowError> {
    let bytes = to.image_bytes();
    let made = pmnet_media::create(copy, kind, bytes);
    let mut target = made.map_err(|error| match error {
        pmnet_media::OpenError::NoSpace { .. } => GrowError(format!(
            "PM5313 no room for {bytes} bytes beside it: until the end there are both, the old one and the new one. Free space there"
        )),
        other => GrowError(media_error(&other)),
    })?;
    let mut all = 0;
    source.copy_to(&mut target, to, &mut |done, total| {
        all = total;
        progress(done, total)
    })?;
    drop(target);
    // Reads the copy as a store will read it after a start.
    let found = Scan::open(open(copy, kind)?, None)?;
    let same = found.geometry() == to
        && found.identity() == source.identity()
        && found.last_commit() == source.last_commit()
        && found.loss().is_none()
        && state(&found)?.as_ref() == before;
    if !same {
        return Err(GrowError(
            "PM5314 the copy, read back, is not what was written: check the disk; the old file was left as it is".into(),
        ));
    }
    progress(all, all)?;
    Ok(found)
}

/// Returns the part of the log that a start of the device would keep, if the region has a log.
fn state(scan: &Scan<AnyMedia>) -> Result<Option<Decision>, GrowError> {
    let damaged = |why: String| {
        GrowError(format!(
            "PM5315 the log in it is damaged ({why}), and a region that is damaged does not grow: `pmnet store verify` reads the store in it"
        ))
    };
    match scan.log_decision() {
        None => Ok(None),
        Some(Ok(keep @ Decision::Keep { .. })) => Ok(Some(keep)),
        Some(Ok(other)) => Err(damaged(format!("{other:?}"))),
        Some(Err(error)) => Err(damaged(error.to_string())),
    }
}

/// Returns the number of orders in the log that a store with all updates up to `order` has not applied.
fn unapplied(log: &Decision, order: u64) -> u64 {
    match log {
        Decision::Keep { tail, .. } => tail.saturating_sub(order),
        _ => 0,
    }
}

fn kind_of(path: &Path) -> Result<Kind, GrowError> {
    let found = pmnet_media::look(path).map_err(|error| GrowError(error.to_string()))?;
    Ok(found.kind)
}

fn open(path: &Path, kind: Kind) -> Result<AnyMedia, GrowError> {
    pmnet_media::open(path, kind).map_err(|error| {
        GrowError(match error {
            pmnet_media::OpenError::Locked { .. } => {
                "PM5316 in use by a server or device: stop that first, and start it again when this is done".into()
            }
            other => media_error(&other),
        })
    })
}

fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(SUFFIX);
    name.into()
}

/// Removes the file of an earlier attempt: an incomplete copy, or an unused copy of this store that is not newer than
/// the store.
fn remove_left_over(copy: &Path, source: &Scan<AnyMedia>) -> Result<(), GrowError> {
    let told = |error: std::io::Error| GrowError(format!("{}: {error}", copy.display()));
    let mut start = Vec::new();
    match fs::File::open(copy) {
        Ok(file) => file
            .take(BLOCK_BYTES)
            .read_to_end(&mut start)
            .map_err(told)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(told(error)),
    };
    let begun = start.iter().all(|byte| *byte == 0);
    let older = || {
        let image = pmnet_media::open_image_read_only(copy).ok()?;
        let used = image.in_use();
        let found = Scan::open(image, None).ok()?;
        let commits = [&found.last_commit().commit, &source.last_commit().commit];
        Some(!used && found.identity() == source.identity() && commits.is_sorted())
    };
    if !begun && older() != Some(true) {
        return Err(GrowError(format!(
            "PM5317 {} is there, and no copy that an earlier attempt left: move it away",
            copy.display()
        )));
    }
    fs::remove_file(copy).map_err(told)
}
