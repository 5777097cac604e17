//! How far the maps of a device are in their life (`docs/spec/pipeline.md` §6). A process may be killed between any two
//! steps of making, saving or removing them; one word, written last or first, says what is to become of them.

use std::sync::atomic::Ordering::Acquire;

use aya::maps::MapData;

use super::error::KernelError;
use super::maps::{is_unused, map_pinned_page, shard_in};
use super::names::SHARDS;
use super::pins::Pins;
use super::shared::{LAYOUT, Shard};

/// What is pinned in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing.
    Absent,
    /// What a process left that was killed while it made them, or while it removed them when they were saved or given
    /// up: no order in there counts.
    Remains,
    /// They are the device.
    Lives,
    /// They are, and nobody admits; but a file may hold the same already: whoever goes on with the maps must be
    /// told from it by a later incarnation.
    Saving,
}

/// Words of [`Shard::stage`]; 0, which new maps have, is that they are being made.
const LIVES: u32 = 1;
const SAVING: u32 = 2;
const ENDING: u32 = 3;

impl Stage {
    /// Of what is pinned here.
    ///
    /// # Errors
    /// [`KernelError::OtherVersion`]; [`KernelError::Map`].
    pub(super) fn of(pins: &Pins) -> Result<Stage, KernelError> {
        if pins.entries().is_empty() {
            return Ok(Stage::Absent);
        }
        if !pins.path(SHARDS).exists() {
            // Without it nobody ever admitted anything, and nobody can any more.
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
            // Whoever made them died before it said so; then nobody has used them.
            (0, 0) if is_unused(shard) => Ok(Stage::Remains),
            (LAYOUT, 0 | ENDING) => Ok(Stage::Remains),
            (LAYOUT, LIVES) => Ok(Stage::Lives),
            (LAYOUT, SAVING) => Ok(Stage::Saving),
            _ => Err(other()),
        }
    }

    /// The word that says so; of [`Stage::Remains`] that they are to be removed.
    pub(super) const fn word(self) -> u32 {
        match self {
            Stage::Lives => LIVES,
            Stage::Saving => SAVING,
            Stage::Absent | Stage::Remains => ENDING,
        }
    }
}

/// The maps must be a device's, whole.
///
/// # Errors
/// [`KernelError::NotWhole`]; see [`Stage::of`].
pub(super) fn check_whole(pins: &Pins) -> Result<(), KernelError> {
    match Stage::of(pins)? {
        Stage::Lives | Stage::Saving => Ok(()),
        Stage::Absent | Stage::Remains => Err(KernelError::NotWhole(pins.folder().to_owned())),
    }
}
