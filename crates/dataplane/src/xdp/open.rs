//! How a device in the kernel begins, is taken over, and ends (`docs/spec/pipeline.md` §6).

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use pmnet_device::FastPath;
use pmnet_log::{Expected, Identity, Log, LogError, Media, Scan};
use rustix::fs::{FlockOperation, flock};

use super::error::KernelError;
use super::image::MapMedia;
use super::kernel::{Kernel, KernelConfig};
use super::pins::Pins;

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

/// Opens the device that lives in `pins`, or makes one there.
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
    if pins.in_use() {
        let parameters = Kernel::parameters(pins)?;
        let settings = KernelConfig {
            parameters,
            ..config.kernel.clone()
        };
        let (kernel, media) = Kernel::load(&settings, pins.clone())?;
        // Before the first admission there is nothing that a scan could not tell.
        let log = if kernel.tail().last == 0 {
            repaired(media, expected)?
        } else {
            Log::adopt(media, Some(expected), &kernel.tail())?
        };
        return Ok(Opened {
            kernel,
            log,
            found: Found::TakenOver,
            lock,
        });
    }
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
    if let (Some(path), Some(_)) = (&config.spill, &saved) {
        // An old copy of a log must not be started again by accident.
        let aside = with_suffix(path, "loaded");
        std::fs::rename(path, &aside).map_err(file(path))?;
    }
    let found = if saved.is_some() {
        Found::Loaded
    } else {
        Found::New
    };
    Ok(Opened {
        kernel,
        log,
        found,
        lock,
    })
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
    Ok((kernel, repaired(media, expected)?))
}

fn repaired(media: MapMedia, expected: Expected) -> Result<Log<MapMedia>, LogError> {
    let scan = Scan::open(media, Some(expected))?;
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
    if !pins.in_use() {
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
    let unapplied = tail.last - tail.applied;
    match spill {
        Some(path) if tail.last > 0 => {
            let log = Log::adopt(media, None, &tail)?;
            log.close()?;
            save(path, &Kernel::image(pins)?)?;
        }
        _ if unapplied > 0 && !discard => {
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
        _ => {}
    }
    pins.remove()?;
    Ok(Detached { unapplied })
}

fn lock(pins: &Pins) -> Result<File, OpenError> {
    let folder = File::open(pins.folder()).map_err(file(pins.folder()))?;
    flock(&folder, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| OpenError::InUse(pins.folder().to_owned()))?;
    Ok(folder)
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
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(file(folder))
}
