//! Starts a device in the kernel, or takes it over from an earlier process.
//!
//! Invariants: only one process at a time makes, takes over or ends a device, under the lock of the folder. A process
//! may be killed between any two steps. Then the next process finds maps that are the device, or a file that is the
//! log. The stage of the maps determines which of them counts. Spec: `docs/spec/pipeline.md` §6. This module must not
//! attach the pipeline, or admit anything.

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

/// Number of attempts to lock a folder, which other processes may remove and make again meanwhile.
const LOCK_TRIES: u32 = 64;

/// Where the opened log came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A new log was made.
    New,
    /// The kernel's part already existed, and had continued without a process.
    TakenOver,
    /// The log was read from the file in which it had been saved.
    Loaded,
}

/// The device to open.
#[derive(Clone, Debug)]
pub struct OpenConfig {
    /// Configuration of the kernel's part. Its parameters count only for a new log.
    pub kernel: KernelConfig,
    /// Identity of a new log. An existing log must have the same device and shard.
    pub identity: Identity,
    /// Whether an existing log must have exactly the configured size.
    pub exactly: bool,
    /// File in which the log is saved when the device ends, and from which it is loaded.
    pub spill: Option<PathBuf>,
    /// True: a device that is taken over begins like a device that starts. It admits no updates until it serves, and
    /// its log gets the next incarnation, so that another device can join after it. False: the pipeline still admits
    /// while the new process starts.
    pub anew: bool,
}

/// An open device in the kernel. Only one process at a time can open a device.
pub struct Opened {
    /// The kernel's part.
    pub kernel: Kernel,
    /// The device's log.
    pub log: Log<MapMedia>,
    /// Where the log came from.
    pub found: Found,
    /// The lock, held while the device is open.
    pub lock: File,
}

/// Opens the device in `pins`, or makes a device. First removes the remains of a process that was killed before it had
/// completed a device, or while it removed a device.
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
                // There was no device before. The first error is reported, even if the removal fails, too.
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
    // The maps now have the whole log, and their stage states that they are the device. So the file is only an old
    // copy, which must not be started by accident. If the power fails before the file is put aside, its incarnation
    // shows that it is old.
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

/// Takes over the log in its present incarnation, unless `anew` is set. If a file may have the same log, the log in the
/// maps gets the next incarnation, so that it can be distinguished from the file. If this process has other keys than
/// the previous process, the pipeline is held until the server has answered, because a key that is refused from now on
/// must not stay valid until then.
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
    // The pipeline has not admitted any update under these maps yet, so a scan finds the whole log.
    if tail.last == 0 {
        return Ok((kernel, repaired(media, Some(expected))?));
    }
    let log = Log::adopt(media, Some(expected), &tail)?;
    if stage != Stage::Saving && !config.anew {
        return Ok((kernel, log));
    }
    // With this stage, the next process repeats the repair if this process is killed during the repair.
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
        // If the folder was removed meanwhile, its lock does not protect a new folder with the same name.
        let own = folder
            .metadata()
            .map_err(spill::file_error(pins.folder()))?;
        if std::fs::metadata(pins.folder()).is_ok_and(|now| now.ino() == own.ino()) {
            return Ok(folder);
        }
    }
    Err(OpenError::InUse(pins.folder().to_owned()))
}
