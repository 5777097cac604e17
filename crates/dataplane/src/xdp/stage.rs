//! The stage of a device's maps: they are being made, they are the device, they are being saved, or they are being
//! removed.
//!
//! Invariants: a process may be killed between any two steps. Then one word in `pm_shards` determines what happens to
//! the maps. This word is written when the maps are complete, and again before they are removed. Spec:
//! `docs/spec/pipeline.md` §6. This module must not change the maps.

use std::sync::atomic::Ordering::Acquire;

use aya::maps::MapData;

use super::error::KernelError;
use super::maps::{is_unused, map_pinned_page, shard_in};
use super::names::SHARDS;
use super::pins::Pins;
use super::shared::{LAYOUT, Shard};

/// Stage of the maps in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The folder has no maps.
    Absent,
    /// The folder has remains: a process was killed while it made the maps, or while it removed maps that were saved or
    /// given up. Entries in these maps do not count.
    Remains,
    /// The maps are the device.
    Lives,
    /// The maps are the device, and the pipeline admits no updates. A file may already have the same log. A process
    /// that continues with the maps gives the log the next incarnation, so that it can be distinguished from the file.
    Saving,
}

/// Values of [`Shard::stage`]. New maps have 0, which means that they are being made.
const LIVES: u32 = 1;
const SAVING: u32 = 2;
const ENDING: u32 = 3;

impl Stage {
    /// Returns the stage of the maps in this folder.
    ///
    /// # Errors
    /// [`KernelError::OtherVersion`]; [`KernelError::Map`].
    pub(super) fn of(pins: &Pins) -> Result<Stage, KernelError> {
        if pins.entries().is_empty() {
            return Ok(Stage::Absent);
        }
        if !pins.path(SHARDS).exists() {
            // Without this map the pipeline has never admitted anything.
            return Ok(Stage::Remains);
        }
        let other = || KernelError::OtherVersion(pins.folder().to_owned());
        let failed = |error| KernelError::map(SHARDS, error);
        let info = MapData::from_pin(pins.path(SHARDS)).map_err(failed)?;
        let bytes = info.info().map_err(failed)?.value_size();
        if usize::try_from(bytes).ok() != Some(size_of::<Shard>()) {
            return Err(other());
        }
        let shard = map_pinned_page(pins, SHARDS)?;
        let shard = shard_in(&shard);
        match (shard.layout.load(Acquire), shard.stage.load(Acquire)) {
            // The process that made the maps died before it wrote the layout. The maps were never used.
            (0, 0) if is_unused(shard) => Ok(Stage::Remains),
            (LAYOUT, 0 | ENDING) => Ok(Stage::Remains),
            (LAYOUT, LIVES) => Ok(Stage::Lives),
            (LAYOUT, SAVING) => Ok(Stage::Saving),
            _ => Err(other()),
        }
    }

    /// Returns the number of this stage. [`Stage::Remains`] has the number which says that the maps must be removed.
    pub(super) const fn word(self) -> u32 {
        match self {
            Stage::Lives => LIVES,
            Stage::Saving => SAVING,
            Stage::Absent | Stage::Remains => ENDING,
        }
    }
}

/// Checks that the maps are a complete device.
///
/// # Errors
/// [`KernelError::NotWhole`], and the errors of [`Stage::of`].
pub(super) fn check_whole(pins: &Pins) -> Result<(), KernelError> {
    match Stage::of(pins)? {
        Stage::Lives | Stage::Saving => Ok(()),
        Stage::Absent | Stage::Remains => Err(KernelError::NotWhole(pins.folder().to_owned())),
    }
}
