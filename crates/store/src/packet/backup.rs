//! Copies a packet store, even while a server uses it (`docs/spec/packet-store.md` §14; known gap G61).
//!
//! No client waits for the copy. The copy is read back and checked: its last commit states the number of records and
//! the sum over their lines, and each record has a checksum. If the store changed during the copy, the check fails, and
//! the copy is made again. A copy that passes the check is the store as of one commit. A copy that fails the check must
//! never be kept.

use std::fs;
use std::path::Path;

use pmnet_packet_store::Scan;

use super::grow::GrowError;

/// Largest number of attempts to copy.
const TRIES: u32 = 10;

/// Facts about a finished copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backup {
    /// Number of the commit that the copy holds.
    pub commit: u64,
    /// Number of records in the copy.
    pub records: u64,
    /// Number of attempts that were needed.
    pub tries: u32,
}

/// Copies the store in the file `path` to the new file `to`.
///
/// # Errors
/// [`GrowError`]: what is wrong, and what the operator can do. After an error, no file `to` is left.
pub fn back_up_packet_store(path: &Path, to: &Path) -> Result<Backup, GrowError> {
    let told = |error: &dyn std::fmt::Display| GrowError(error.to_string());
    if fs::symlink_metadata(to).is_ok() {
        return Err(GrowError(format!(
            "PM5321 {} exists already: name a new file",
            to.display()
        )));
    }
    let mut name = to.as_os_str().to_owned();
    name.push(".new");
    let copy = Path::new(&name);
    let made = (1..=TRIES).find_map(|tries| {
        let found = try_once(path, copy).transpose()?;
        Some(found.map(|(commit, records)| Backup {
            commit,
            records,
            tries,
        }))
    });
    let placed = match made {
        Some(Ok(backup)) => fs::rename(copy, to)
            .map(|()| backup)
            .map_err(|error| told(&error)),
        Some(Err(error)) => Err(error),
        None => Err(GrowError(format!(
            "PM5322 it changed during each of {TRIES} copies: try again when less is written, or stop its process for the time of the copy"
        ))),
    };
    placed.inspect_err(|_| {
        let _gone_anyway = fs::remove_file(copy);
    })
}

/// Returns commit and number of records of a complete copy; `None` if the store changed during the copy.
fn try_once(path: &Path, copy: &Path) -> Result<Option<(u64, u64)>, GrowError> {
    let told = |error: &dyn std::fmt::Display| GrowError(error.to_string());
    let image = pmnet_media::open_image_read_only(path).map_err(|error| told(&error))?;
    let in_use = image.in_use();
    image.save(copy).map_err(|error| told(&error))?;
    let scan = match Scan::open(image, None) {
        Ok(scan) => scan,
        // A commit record was copied while the store wrote this record.
        Err(pmnet_packet_store::OpenError::Unreadable { .. }) if in_use => return Ok(None),
        Err(error) => return Err(told(&error)),
    };
    if scan.geometry().log_entries != 0 && in_use {
        return Err(GrowError(
            "PM5323 a device has this region open, with its log, and a copy could be of two moments: stop the device, or take a snapshot of the \
             volume"
                .into(),
        ));
    }
    let whole = scan.loss().is_none() && scan.verify().is_empty();
    if !whole && !in_use {
        return Err(GrowError(
            "PM5324 it is damaged, so no copy of it is made: `pmnet store verify` says more".into(),
        ));
    }
    let commit = scan.last_commit();
    Ok(whole.then_some((commit.commit, commit.records)))
}
