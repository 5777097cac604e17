//! How a device in the kernel begins, is taken over, and ends (`docs/spec/pipeline.md` §6).

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pmnet_device::FastPath;
use pmnet_log::{Decision, Expected, Identity, Log, LogError, Media, Scan};
use rustix::fs::{FlockOperation, flock};

use super::error::KernelError;
use super::image::MapMedia;
use super::kernel::{Kernel, KernelConfig};
use super::pins::Pins;
use super::stage::Stage;

/// Tries to lock a folder that others remove and make again meanwhile.
const LOCK_TRIES: u32 = 64;

/// Why a device in the kernel cannot be opened, saved or removed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The kernel's part.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// It is of another device, shard or size.
    #[error("{0}")]
    Other(String),
    /// The file of a saved log.
    #[error("{path}: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Another process serves it.
    #[error("another process serves the device in {0}: stop it first")]
    InUse(PathBuf),
}

/// How the log was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A new one was made.
    New,
    /// The kernel's part was there, and went on without a process.
    TakenOver,
    /// It was read from the file in which it had been saved.
    Loaded,
}

/// What is to be opened.
#[derive(Clone, Debug)]
pub struct OpenConfig {
    /// The kernel's part; its parameters are those of a new log.
    pub kernel: KernelConfig,
    /// Device and shard, and the identity of a new log.
    pub identity: Identity,
    /// An existing log must have exactly the configured size.
    pub exactly: bool,
    /// File in which the log is saved when the device ends, and from which it is loaded.
    pub spill: Option<PathBuf>,
}

/// A device in the kernel, opened by one process at a time.
pub struct Opened {
    /// The kernel's part.
    pub kernel: Kernel,
    /// Its log.
    pub log: Log<MapMedia>,
    /// How it was found.
    pub found: Found,
    /// The lock.
    pub lock: File,
}

/// Opens the device that lives in `pins`, or makes one there. What a process left there that was killed before it had made
/// a whole device, or while it removed one, is removed first.
///
/// # Errors
/// [`OpenError`]; what was there is as it was.
pub fn open(config: &OpenConfig, pins: &Pins) -> Result<Opened, OpenError> {
    let lock = lock(pins)?;
    let expected = Expected {
        device: config.identity.device,
        shard: config.identity.shard,
        parameters: config.exactly.then_some(config.kernel.parameters),
    };
    let stage = Stage::of(pins)?;
    let (kernel, log, found) = match stage {
        Stage::Lives | Stage::Saving => {
            let (kernel, log) = take_over(config, pins, expected, stage)?;
            (kernel, log, Found::TakenOver)
        }
        Stage::Absent | Stage::Remains => {
            pins.clear()?;
            let saved = match &config.spill {
                Some(path) if path.exists() => Some(read(path)?),
                _ => None,
            };
            let made = make(config, pins, expected, saved.as_deref());
            if made.is_err() {
                // Nothing was there before; the error that counts is the first one.
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
    // Everything is in the maps, and they say so; now the file is an old copy, which nobody must start by accident. (Before
    // they say so it is the log. If the power fails before it is put aside, or it lies elsewhere, the incarnation tells.)
    if let Some(path) = config.spill.as_ref().filter(|path| path.exists()) {
        put_aside(path, found)?;
    }
    kernel.set_stage(Stage::Lives);
    Ok(Opened {
        kernel,
        log,
        found,
        lock,
    })
}

/// The log goes on as it is, in its incarnation; unless a file may hold the same: that one is then of an earlier one.
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
    let (kernel, media) = Kernel::load(&settings, pins.clone())?;
    let tail = kernel.tail();
    // Before the first admission there is nothing that a scan could not tell.
    if tail.last == 0 {
        return Ok((kernel, repaired(media, Some(expected))?));
    }
    let log = Log::adopt(media, Some(expected), &tail)?;
    let log = match stage {
        Stage::Saving => repaired(log.into_media(), Some(expected))?,
        _ => log,
    };
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
    // From here on they are the device, whoever is killed.
    kernel.set_stage(Stage::Lives);
    Ok((kernel, log))
}

fn repaired(media: MapMedia, expected: Option<Expected>) -> Result<Log<MapMedia>, LogError> {
    let scan = Scan::open(media, expected)?;
    let decision = scan.decide();
    scan.repair(decision)
}

/// What [`detach`] found and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detached {
    /// Acknowledged updates in the log that the server had not applied.
    pub unapplied: u64,
}

/// Ends a device: interfaces are as they were before, nobody admits, the log is saved if there is a
/// file for it. Without a file, acknowledged updates that are not applied would be lost: then it is
/// refused, unless `discard` says so.
///
/// # Errors
/// [`OpenError`]; what cannot be saved stays where it is.
pub fn detach(
    device: KernelConfig,
    pins: &Pins,
    spill: Option<&Path>,
    discard: bool,
) -> Result<Detached, OpenError> {
    let _lock = lock(pins)?;
    if matches!(Stage::of(pins)?, Stage::Absent | Stage::Remains) {
        pins.remove()?;
        return Ok(Detached { unapplied: 0 });
    }
    let settings = KernelConfig {
        parameters: Kernel::parameters(pins)?,
        ..device
    };
    let (mut kernel, media) = Kernel::load(&settings, pins.clone())?;
    let admitted = kernel.admits();
    kernel
        .hold()
        .map_err(|error| OpenError::Other(error.to_string()))?;
    let tail = kernel.tail();
    let unapplied = match tail.last {
        // Nothing was admitted under these maps; but a saved log may have been loaded into them.
        0 => kept(Kernel::image(pins)?).or_else(|error| discard.then_some(0).ok_or(error))?,
        last => last - tail.applied,
    };
    match spill {
        Some(path) => {
            let log = if tail.last == 0 {
                repaired(media, None)?
            } else {
                Log::adopt(media, None, &tail)?
            };
            // One that nobody knows and that holds nothing is made anew as well.
            if log.last() > 0 || log.served() > 0 {
                // From here on there may be a file that holds the same as the maps.
                kernel.set_stage(Stage::Saving);
                log.close()?;
                save(path, &Kernel::image(pins)?)?;
            }
        }
        None if unapplied > 0 && !discard => {
            // It goes on where it was held: nobody must notice that this was tried.
            if admitted {
                kernel
                    .release(&tail)
                    .map_err(|error| OpenError::Other(error.to_string()))?;
            }
            return Err(OpenError::Other(format!(
                "{unapplied} acknowledged updates in the log are not applied by the server yet: start the server and \
                 wait, or save the log with --spill FILE, or give them up with --discard"
            )));
        }
        None => {}
    }
    // From here on the file is the log, or there is none.
    kernel.set_stage(Stage::Remains);
    pins.remove()?;
    Ok(Detached { unapplied })
}

/// Entries that a start from this image would keep.
fn kept(image: MapMedia) -> Result<u64, OpenError> {
    match Scan::open(image, None)?.decide() {
        Decision::Keep { applied, tail, .. } => Ok(tail - applied),
        _ => Err(OpenError::Other(
            "the log cannot be read: give it up with --discard".into(),
        )),
    }
}

/// One process at a time makes, takes over or ends a device.
fn lock(pins: &Pins) -> Result<File, OpenError> {
    for _ in 0..LOCK_TRIES {
        pins.make_folder()?;
        let folder = match File::open(pins.folder()) {
            Ok(folder) => folder,
            // Whoever ended a device there has removed it just now.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(file(pins.folder())(error)),
        };
        flock(&folder, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| OpenError::InUse(pins.folder().to_owned()))?;
        // The lock of a folder that was removed meanwhile keeps nobody away from a new one of that name.
        let own = folder.metadata().map_err(file(pins.folder()))?;
        if std::fs::metadata(pins.folder()).is_ok_and(|now| now.ino() == own.ino()) {
            return Ok(folder);
        }
    }
    Err(OpenError::InUse(pins.folder().to_owned()))
}

fn file(path: &Path) -> impl FnOnce(std::io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::File { path, source }
}

fn read(path: &Path) -> Result<Vec<u8>, OpenError> {
    std::fs::read(path).map_err(file(path))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// Under another name first, so that the file is whole or not there.
fn save(path: &Path, image: &MapMedia) -> Result<(), OpenError> {
    let part = with_suffix(path, "part");
    let mut out = File::create(&part).map_err(file(&part))?;
    out.write_all(image.bytes()).map_err(file(&part))?;
    out.sync_all().map_err(file(&part))?;
    std::fs::rename(&part, path).map_err(file(path))?;
    sync_folder_of(path)
}

/// The file was loaded, or is from before the device that lives.
fn put_aside(path: &Path, found: Found) -> Result<(), OpenError> {
    let suffix = match found {
        Found::Loaded | Found::New => "loaded",
        Found::TakenOver => "old",
    };
    std::fs::rename(path, with_suffix(path, suffix)).map_err(file(path))?;
    sync_folder_of(path)
}

fn sync_folder_of(path: &Path) -> Result<(), OpenError> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(file(folder))
}
