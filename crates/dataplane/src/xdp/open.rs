//! The start of a device in the kernel, and its takeover by another process.
//!
//! Invariants: one process at a time makes, takes over or ends a device, under the lock of the folder. A process may be
//! killed between any two steps: the next process finds either maps that are the device or a file that is the log, and
//! the stage of the maps says which. Spec: `docs/spec/pipeline.md` §6. May not: attach the pipeline, or admit anything.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use pmnet_device::FastPath;
use pmnet_log::{Expected, Identity, Log, LogError, Media, Scan};
use rustix::fs::{FlockOperation, flock};

use super::error::OpenError;
use super::image::MapMedia;
use super::kernel::Kernel;
use super::load::KernelConfig;
use super::pins::Pins;
use super::spill;
use super::stage::Stage;

/// Tries to lock a folder that other processes remove and make again at the same time.
const LOCK_TRIES: u32 = 64;

/// The origin of the opened log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A new log was made.
    New,
    /// The kernel's part existed, and had continued without a process.
    TakenOver,
    /// The log was read from the file in which it had been saved.
    Loaded,
}

/// The device to open.
#[derive(Clone, Debug)]
pub struct OpenConfig {
    /// The kernel's part. Its parameters are those of a new log.
    pub kernel: KernelConfig,
    /// Device and shard, and the other fields of a new log's identity.
    pub identity: Identity,
    /// An existing log must have exactly the configured size.
    pub exactly: bool,
    /// File in which the log is saved when the device ends, and from which it is loaded.
    pub spill: Option<PathBuf>,
    /// If true, a device that is taken over begins as after any start: nothing is admitted until it serves, and its log
    /// gets the next incarnation. So another device can join after this device. If false, the pipeline admits
    /// meanwhile.
    pub anew: bool,
}

/// A device in the kernel, opened by one process at a time.
pub struct Opened {
    /// The kernel's part.
    pub kernel: Kernel,
    /// The device's log.
    pub log: Log<MapMedia>,
    /// The origin of the log.
    pub found: Found,
    /// The lock, held while the device is open.
    pub lock: File,
}

/// Opens the device in `pins`, or makes one. Remains are removed first: those of a process that was killed before it
/// had made a complete device, or while it removed a device.
///
/// # Errors
/// [`OpenError`]; in this case the earlier state is kept.
pub fn open(config: &OpenConfig, pins: &Pins) -> Result<Opened, OpenError> {
    let lock = lock(pins)?;
    let expected = Expected {
        device: config.identity.device,
        shard: config.identity.shard,
        parameters: config.exactly.then_some(config.kernel.parameters),
    };
    if let Some(path) = &config.spill {
        spill::check(path)?;
    }
    let stage = Stage::of(pins)?;
    let (kernel, log, found) = match stage {
        Stage::Lives | Stage::Saving => {
            if let Some(path) = &config.spill {
                let kept = pmnet_log::heading(Kernel::image(pins)?.bytes())?;
                spill::check_older(path, &kept, stage == Stage::Saving)?;
            }
            let (kernel, log) = take_over(config, pins, expected, stage)?;
            (kernel, log, Found::TakenOver)
        }
        Stage::Absent | Stage::Remains => {
            pins.clear()?;
            let saved = match &config.spill {
                Some(path) if path.exists() => Some(spill::read(path)?),
                _ => None,
            };
            let made = make(config, pins, expected, saved.as_deref());
            if made.is_err() {
                // There was no device before. If the removal fails too, the first error is reported.
                let _ = pins.remove();
            }
            let (kernel, log) = made?;
            let found = if saved.is_some() {
                Found::Loaded
            } else {
                Found::New
            };
            (kernel, log, found)
        }
    };
    // The maps hold the whole log, and their stage states that they are the device. Until then the file was the log;
    // now the file is an old copy, which must not be started by accident. (If the power fails before the file is put
    // aside, its incarnation shows that it is old.)
    if let Some(path) = config.spill.as_ref().filter(|path| path.exists()) {
        let suffix = match found {
            Found::Loaded | Found::New => "loaded",
            Found::TakenOver => "old",
        };
        spill::put_aside(path, suffix)?;
    }
    kernel.set_stage(Stage::Lives);
    Ok(Opened {
        kernel,
        log,
        found,
        lock,
    })
}

/// Takes the log over as it is, in its incarnation, unless it is to begin anew. If a file may hold the same log, the
/// maps get the next incarnation, so that the two can be told apart. With other keys than before, nothing is admitted
/// until the server has answered: a key that is refused from now on must not stay valid until then.
fn take_over(
    config: &OpenConfig,
    pins: &Pins,
    expected: Expected,
    stage: Stage,
) -> Result<(Kernel, Log<MapMedia>), OpenError> {
    let settings = KernelConfig {
        parameters: Kernel::parameters(pins)?,
        ..config.kernel.clone()
    };
    let (mut kernel, media) = Kernel::load(&settings, pins.clone())?;
    if config.anew || kernel.has_other_keys() {
        let failed = |error: std::io::Error| OpenError::Other(error.to_string());
        kernel.hold().map_err(failed)?;
    }
    let tail = kernel.tail();
    // Nothing was admitted under these maps yet, so a scan finds the whole log.
    if tail.last == 0 {
        return Ok((kernel, repaired(media, Some(expected))?));
    }
    let log = Log::adopt(media, Some(expected), &tail)?;
    if stage != Stage::Saving && !config.anew {
        return Ok((kernel, log));
    }
    // If the process is killed in the middle of the repair, the next process begins the repair again.
    kernel.set_stage(Stage::Saving);
    let log = repaired(log.into_media(), Some(expected))?;
    Ok((kernel, log))
}

fn make(
    config: &OpenConfig,
    pins: &Pins,
    expected: Expected,
    saved: Option<&[u8]>,
) -> Result<(Kernel, Log<MapMedia>), OpenError> {
    let mut settings = config.kernel.clone();
    if let Some(image) = saved {
        settings.parameters = pmnet_log::parameters(image)?;
    }
    let (kernel, mut media) = Kernel::load(&settings, pins.clone())?;
    match saved {
        Some(image) => media.store(0, &image[..media.bytes().len().min(image.len())]),
        None => pmnet_log::format(&mut media, &config.identity, &settings.parameters)?,
    }
    let log = repaired(media, Some(expected))?;
    // From now on the maps are the device, even if this process is killed.
    kernel.set_stage(Stage::Lives);
    Ok((kernel, log))
}

pub(super) fn repaired(
    media: MapMedia,
    expected: Option<Expected>,
) -> Result<Log<MapMedia>, LogError> {
    let scan = Scan::open(media, expected)?;
    let decision = scan.decide();
    scan.repair(decision)
}

/// Takes the lock under which a device is made, taken over or ended.
pub(super) fn lock(pins: &Pins) -> Result<File, OpenError> {
    for _ in 0..LOCK_TRIES {
        pins.make_folder()?;
        let folder = match File::open(pins.folder()) {
            Ok(folder) => folder,
            // Another process has just ended a device in this folder, and removed the folder.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(spill::file_error(pins.folder())(error)),
        };
        flock(&folder, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| OpenError::InUse(pins.folder().to_owned()))?;
        // If the folder was removed meanwhile, its lock does not protect a new folder of that name.
        let own = folder
            .metadata()
            .map_err(spill::file_error(pins.folder()))?;
        if std::fs::metadata(pins.folder()).is_ok_and(|now| now.ino() == own.ino()) {
            return Ok(folder);
        }
    }
    Err(OpenError::InUse(pins.folder().to_owned()))
}
