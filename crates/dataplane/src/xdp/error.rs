//! Reasons why the pipeline in the kernel, or its device, cannot be set up or used, with advice.

use std::io;
use std::path::PathBuf;

use aya::maps::MapError;
use aya::pin::PinError;
use aya::programs::ProgramError;
use pmnet_log::LogError;
use rustix::io::Errno;

/// Reason why the kernel's part of a device cannot be set up, used or removed.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The binary does not have the programs, because there was no compiler for them when it was built.
    #[error(
        "PM1401 this pmnet was built without the in-kernel pipeline: install clang and libbpf-dev, then build it again"
    )]
    NotBuilt,
    /// The computer has another architecture than the pipeline needs.
    #[error(
        "PM1402 the in-kernel pipeline relies on x86-64, where stores are seen in their order: use --mode relay here"
    )]
    Architecture,
    /// Sizes that the pipeline cannot work with.
    #[error("{0}")]
    Parameters(String),
    /// The pinned maps have the layout of another version.
    #[error(
        "PM1403 the device in {0} was made by another version of pmnet, and its maps are not read by this one: save and remove it \
         with that version (the same command line with --spill FILE --detach), then start this one with --spill FILE"
    )]
    OtherVersion(PathBuf),
    /// The pinned maps are not a complete device: it is still being made, or being removed.
    #[error(
        "PM1404 the device in {0} is not complete: a process makes it or takes it out just now, or was killed while it did; start it \
         again, or take it out with --detach"
    )]
    NotWhole(PathBuf),
    /// The BPF file system, where maps outlive their process, cannot be used.
    #[error("PM1405 {path}: {source}: {}", advice(source))]
    FileSystem {
        /// Path in the file system.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another user may have written to the folder of a device or of an interface.
    #[error(
        "PM1419 {path} is of {}, with mode {mode:o}, and must be this user's alone: whoever may write there can replace the log, \
         and read the keys. Start pmnet as the user who made it; or, if it is left over, take it away. Nothing was changed",
        user(*owner)
    )]
    Folder {
        /// Path of the folder.
        path: PathBuf,
        /// Number of the user who owns the folder.
        owner: u32,
        /// The folder's mode.
        mode: u32,
    },
    /// A map could not be made, pinned or mapped.
    #[error("PM1406 {what}: {source} (maps need root, or CAP_BPF and CAP_NET_ADMIN)")]
    Map {
        /// Name of the map, and the operation that failed.
        what: String,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The kernel refused the programs.
    #[error("PM1407 the kernel did not take the programs: {0}")]
    Load(#[from] aya::EbpfError),
    /// A program could not be loaded, run or attached.
    #[error("PM1408 program {name}: {source}")]
    Program {
        /// Name of the program.
        name: &'static str,
        /// The reason.
        source: ProgramError,
    },
    /// The kernel refused one program.
    #[error(
        "PM1409 program {name}: the kernel did not take it: {source}{}. {verifier}",
        rights(source)
    )]
    Refused {
        /// Name of the program.
        name: &'static str,
        /// The system's error.
        source: io::Error,
        /// The end of the verifier's output.
        verifier: String,
    },
    /// The link to an interface could not be pinned or taken over.
    #[error(
        "PM1410 the attachment to the interface: {0} (before Linux 5.9 it cannot outlive a process)"
    )]
    Link(#[from] aya::programs::links::LinkError),
    /// The program could not be attached to an interface.
    #[error(
        "PM1411 cannot attach to {interface} ({}): {source}",
        question(interface, source)
    )]
    Attach {
        /// Name of the interface.
        interface: String,
        /// The reason.
        source: Box<KernelError>,
    },
    /// Two devices at one interface have the same port.
    #[error(
        "PM1412 the device {device} has port {port} at {interface}: give this one another port (--listen), or take that one out with \
         --detach"
    )]
    PortTaken {
        /// Name of the interface.
        interface: String,
        /// The port of both devices.
        port: u16,
        /// Name of the other device.
        device: String,
    },
    /// The interface already has as many devices as it can have.
    #[error("PM1413 {max} devices are at {0}, which is the most that one interface can have", max = super::shared::DEVICES_MAX)]
    Crowded(String),
    /// All devices at one interface must be attached in the same mode.
    #[error(
        "PM1414 the other devices at {0} are attached in the other mode: all with --xdp-generic, or all without"
    )]
    OtherMode(String),
    /// Another process is changing the devices at this interface, and does not finish.
    #[error(
        "PM1415 {0}: another process has been changing the devices at this interface for seconds; try again"
    )]
    Contended(PathBuf),
    /// The pipeline's lock could not be taken in time.
    #[error(
        "PM1416 program {0}: a CPU has been inside the pipeline's lock for three seconds, where it needs less than a microsecond: is the \
         machine stopped or overloaded? Start this device again; what is acknowledged is in the log"
    )]
    Locked(&'static str),
    /// A program returned an unknown verdict.
    #[error("PM1417 program {name} answered {answer}: map and program do not belong together")]
    Answer {
        /// Name of the program.
        name: &'static str,
        /// The verdict.
        answer: u32,
    },
}

/// Reason why a device in the kernel cannot be opened, saved or removed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The kernel's part cannot be set up or used.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The log cannot be opened.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The device or the file is of another device, shard or size.
    #[error("{0}")]
    Other(String),
    /// The file of a saved log cannot be used.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another process serves the device.
    #[error("PM1418 another process serves the device in {0}: stop it first")]
    InUse(PathBuf),
}

/// Returns the text that names a user.
fn user(number: u32) -> String {
    match number {
        0 => "root".into(),
        number => format!("the user with number {number}"),
    }
}

/// Returns advice about the BPF file system.
fn advice(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::ROFS) => {
            "the BPF file system can only be read here: leave ProtectKernelTunables= out of the systemd unit, or give the container a \
             /sys/fs/bpf that it may write to"
        }
        Some(Errno::PERM | Errno::ACCESS) => {
            "this user may not write to the BPF file system: it takes root, or the user who has /sys/fs/bpf/pmnet and /sys/fs/bpf/pmnet-at"
        }
        _ => "the BPF file system is needed there (mount -t bpf bpf /sys/fs/bpf, as root)",
    }
}

/// Returns advice about an interface that does not accept a program.
fn question(interface: &str, error: &KernelError) -> String {
    match cause(error) {
        Some(Errno::RANGE) => format!(
            "an MTU is too large for native XDP, its own or that of a veth's other end, which may be 3506: ip link set {interface} mtu 1500, and \
             the same there; else --xdp-generic"
        ),
        Some(Errno::BUSY) => format!(
            "another XDP program is on it, `ip link show {interface}` tells: take that one off"
        ),
        Some(Errno::OPNOTSUPP) => "its driver has no native XDP: --xdp-generic".to_owned(),
        _ => format!(
            "is it there? has its driver native XDP, for its MTU? else --xdp-generic; is another XDP program on it? `ip link show \
             {interface}` tells"
        ),
    }
}

/// Number of lines that are shown from the end of the verifier's output, which may have thousands of lines.
const VERIFIER_LINES: usize = 8;

/// Returns the rights that may be missing, if the error can have this cause.
fn rights(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            " (programs need root, or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN)"
        }
        _ => "",
    }
}

/// Returns the system's error at the bottom of an error.
fn cause(error: &(dyn std::error::Error + 'static)) -> Option<Errno> {
    let below = std::iter::successors(Some(error), |error| error.source());
    below
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .find_map(Errno::from_io_error)
}

impl KernelError {
    pub(crate) fn file(path: &std::path::Path, source: std::io::Error) -> KernelError {
        KernelError::FileSystem {
            path: path.to_owned(),
            source,
        }
    }
    pub(crate) fn map(what: impl Into<String>, source: MapError) -> KernelError {
        KernelError::Map {
            what: what.into(),
            source: Box::new(source),
        }
    }
    /// Returns the error of a program that could not be loaded.
    pub(crate) fn load(name: &'static str, source: ProgramError) -> KernelError {
        let ProgramError::LoadError {
            io_error,
            verifier_log,
        } = source
        else {
            return KernelError::Program { name, source };
        };
        let log = verifier_log.to_string();
        let lines: Vec<&str> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(VERIFIER_LINES)..].join("\n");
        KernelError::Refused {
            name,
            source: io_error,
            verifier: format!("The verifier's last lines:\n{end}"),
        }
    }
    pub(crate) fn pin(what: impl Into<String>, source: PinError) -> KernelError {
        KernelError::Map {
            what: what.into(),
            source: Box::new(source),
        }
    }
    pub(crate) fn io(what: impl Into<String>, source: std::io::Error) -> KernelError {
        KernelError::Map {
            what: what.into(),
            source: Box::new(source),
        }
    }
}

impl From<KernelError> for std::io::Error {
    fn from(error: KernelError) -> std::io::Error {
        std::io::Error::other(error)
    }
}
