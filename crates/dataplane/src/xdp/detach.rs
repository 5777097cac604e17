//! Ends a device in the kernel.
//!
//! Invariants: the pipeline is held before the log is saved. The log stays in the maps until the file is durable. The
//! stage of the maps determines whether the maps or the file count. Spec: `docs/spec/pipeline.md` §6. This module must
//! not lose acknowledged updates without an explicit request.

use std::path::Path;

use pmnet_device::FastPath;
use pmnet_log::{Decision, Log, Media, Scan};

use super::error::OpenError;
use super::image::MapMedia;
use super::kernel::Kernel;
use super::load::KernelConfig;
use super::open;
use super::pins::Pins;
use super::spill;
use super::stage::Stage;

/// Result of [`detach`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detached {
    /// There was a device, or there were remains of a device from an interrupted attempt.
    pub found: bool,
    /// Number of acknowledged updates in the log that the server had not applied.
    pub unapplied: u64,
}

/// Ends a device: detaches it from its interfaces, saves the log to the file `spill`, if this is given, and removes the
/// maps. Without a file, acknowledged updates that are not applied would be lost. If there are such updates, the call
/// is refused, unless `discard` is set.
///
/// # Errors
/// [`OpenError`]; if the log cannot be saved, it stays in the maps.
pub fn detach(
    device: KernelConfig,
    pins: &Pins,
    spill: Option<&Path>,
    discard: bool,
) -> Result<Detached, OpenError> {
    let _lock = open::lock(pins)?;
    let stage = Stage::of(pins)?;
    if matches!(stage, Stage::Absent | Stage::Remains) {
        pins.remove()?;
        return Ok(Detached {
            found: stage != Stage::Absent,
            unapplied: 0,
        });
    }
    if let Some(path) = spill {
        spill::check(path)?;
        spill::check_older(
            path,
            &pmnet_log::heading(Kernel::image(pins)?.bytes())?,
            true,
        )?;
    }
    let settings = KernelConfig {
        parameters: Kernel::parameters(pins)?,
        ..device
    };
    let (mut kernel, media) = Kernel::load(&settings, pins.clone())?;
    let admitted = kernel.admits();
    let failed = |error: std::io::Error| OpenError::Other(error.to_string());
    kernel.hold().map_err(failed)?;
    let tail = kernel.tail();
    let unapplied = match tail.last {
        // The pipeline admitted nothing under these maps, but a saved log may have been loaded into them.
        0 => kept(Kernel::image(pins)?).or_else(|error| discard.then_some(0).ok_or(error))?,
        last => last - tail.applied,
    };
    match spill {
        Some(path) => {
            let log = if tail.last == 0 {
                open::repaired(media, None)?
            } else {
                Log::adopt(media, None, &tail)?
            };
            // A log that is empty and never served needs no file, because the next start makes a new log.
            if log.last() > 0 || log.served() > 0 {
                // From now on a file may hold the same log as the maps.
                kernel.set_stage(Stage::Saving);
                log.close()?;
                spill::save(path, &Kernel::image(pins)?).map_err(|error| {
                    OpenError::Other(format!(
                        "PM1430 {error}. The kernel keeps the log, and acknowledges nothing until this device is started again: \
                         make room there, or name another file with --spill, and start it, or end it with --detach"
                    ))
                })?;
            }
        }
        None if unapplied > 0 && !discard => {
            // The call is refused, and the pipeline continues as before.
            if admitted {
                let hold = kernel.hold().map_err(failed)?;
                hold.release(&tail).map_err(failed)?;
            }
            return Err(OpenError::Other(format!(
                "PM1431 {unapplied} acknowledged updates in the log are not applied by the server yet: start the server and \
                 wait, or save the log with --spill FILE, or give them up with --discard"
            )));
        }
        None => {}
    }
    // From now on only the file has the log, or there is no log any more.
    kernel.set_stage(Stage::Remains);
    pins.remove()?;
    Ok(Detached {
        found: true,
        unapplied,
    })
}

/// Returns the number of entries that a start from this image would keep.
fn kept(image: MapMedia) -> Result<u64, OpenError> {
    match Scan::open(image, None)?.decide() {
        Decision::Keep { applied, tail, .. } => Ok(tail - applied),
        _ => Err(OpenError::Other(
            "PM1432 the log cannot be read: give it up with --discard".into(),
        )),
    }
}
