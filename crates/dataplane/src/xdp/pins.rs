//! The folder of the BPF file system in which a device's maps, and its links to interfaces, are pinned.
//!
//! Invariants: what is pinned goes on without any process. Links are removed before maps. Spec: `docs/spec/pipeline.md` §6.
//! May not: know what is in a map.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::error::KernelError;
use super::names::IMAGE;

/// Where the BPF file system usually is.
const USUAL: &str = "/sys/fs/bpf";
/// `f_type` of a BPF file system (linux/magic.h).
const MAGIC: u64 = 0xcafe_4a11;
/// Commands of the system call (linux/bpf.h).
const BPF_OBJ_GET: libc::c_int = 7;
const BPF_LINK_DETACH: libc::c_int = 34;
/// First part of the name of a pinned link.
const LINK: &str = "link";

/// One device's folder.
#[derive(Clone, Debug)]
pub struct Pins {
    folder: PathBuf,
}

impl Pins {
    /// The folder of the device `name`; makes it if it is not there. Mounts the BPF file system in its usual place
    /// if it is not mounted there.
    ///
    /// # Errors
    /// [`KernelError::FileSystem`].
    pub fn open(name: &str) -> Result<Pins, KernelError> {
        let root = Path::new(USUAL);
        let failed = |source| KernelError::FileSystem {
            path: root.to_owned(),
            source,
        };
        if !is_bpf(root) {
            rustix::mount::mount("bpf", root, "bpf", rustix::mount::MountFlags::empty(), None)
                .map_err(|error| failed(error.into()))?;
        }
        let pins = Pins {
            folder: root.join("pmnet").join(name),
        };
        pins.make_folder()?;
        Ok(pins)
    }

    /// Makes the folder, if it is not there.
    pub(super) fn make_folder(&self) -> Result<(), KernelError> {
        std::fs::create_dir_all(&self.folder).map_err(|source| KernelError::FileSystem {
            path: self.folder.clone(),
            source,
        })
    }

    /// The folder of the device `name`, whether or not it exists.
    #[must_use]
    pub fn existing(name: &str) -> Pins {
        Pins {
            folder: Path::new(USUAL).join("pmnet").join(name),
        }
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether something of a device is here: its image.
    #[must_use]
    pub fn in_use(&self) -> bool {
        self.path(IMAGE).exists()
    }

    /// Where something is pinned.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Where the link to an interface is pinned. (The BPF file system allows no dot in a name: it becomes `_`.)
    #[must_use]
    pub fn link(&self, interface: &str) -> PathBuf {
        self.folder
            .join(format!("{LINK}-{}", interface.replace('.', "_")))
    }

    /// Names of what is in the folder; none if it is not there.
    pub(super) fn entries(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten();
        entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }

    /// Interfaces to which a link is pinned, with `_` for a dot in a name.
    pub(super) fn interfaces(&self) -> Vec<String> {
        let entries = self.entries();
        let mut names: Vec<String> = entries
            .iter()
            .filter_map(|name| name.strip_prefix(LINK)?.strip_prefix('-'))
            .map(str::to_owned)
            .collect();
        names.sort();
        names
    }

    /// Removes the pin of the link to an interface. With its last reference gone, the program is detached.
    ///
    /// # Errors
    /// [`KernelError::FileSystem`].
    pub fn remove_link(&self, interface: &str) -> Result<(), KernelError> {
        let path = self.link(interface);
        std::fs::remove_file(&path).map_err(|source| KernelError::FileSystem { path, source })
    }

    /// Removes the links to all interfaces but these.
    ///
    /// # Errors
    /// [`KernelError::FileSystem`].
    pub fn remove_links_but(&self, interfaces: &[String]) -> Result<(), KernelError> {
        let failed = |source| KernelError::FileSystem {
            path: self.folder.clone(),
            source,
        };
        let kept: Vec<PathBuf> = interfaces.iter().map(|name| self.link(name)).collect();
        for entry in std::fs::read_dir(&self.folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_link = entry.file_name().to_string_lossy().starts_with(LINK);
            if is_link && !kept.contains(&entry.path()) {
                detach(&entry.path());
                std::fs::remove_file(entry.path()).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Removes everything that is pinned here, and the folder: links first, so the program is detached. The kernel frees a
    /// map when its last reference is gone.
    ///
    /// # Errors
    /// [`KernelError::FileSystem`].
    pub fn remove(&self) -> Result<(), KernelError> {
        self.clear()?;
        std::fs::remove_dir(&self.folder).map_err(|source| KernelError::FileSystem {
            path: self.folder.clone(),
            source,
        })
    }

    /// The same, but leaves the empty folder.
    pub(super) fn clear(&self) -> Result<(), KernelError> {
        let failed = |source| KernelError::FileSystem {
            path: self.folder.clone(),
            source,
        };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.folder).map_err(failed)? {
            names.push(entry.map_err(failed)?.file_name());
        }
        names.sort_by_key(|name| !name.to_string_lossy().starts_with(LINK));
        for name in names {
            let path = self.folder.join(&name);
            if name.to_string_lossy().starts_with(LINK) {
                detach(&path);
            }
            std::fs::remove_file(path).map_err(failed)?;
        }
        Ok(())
    }
}

/// Detaches the program from the interface of a pinned link, now. The kernel also does that when the last reference to the
/// link is gone, but some time later. Before Linux 5.9 it happens only then.
fn detach(link: &Path) {
    let Ok(name) = CString::new(link.as_os_str().as_bytes()) else {
        return;
    };
    let at = name.as_ptr().addr() as u64;
    let Ok(fd) = RawFd::try_from(bpf(BPF_OBJ_GET, [at, 0])) else {
        return;
    };
    if fd < 0 {
        return;
    }
    // SAFETY: the call has just opened it, and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    bpf(
        BPF_LINK_DETACH,
        [u64::from(fd.as_raw_fd().unsigned_abs()), 0],
    );
}

/// The system call bpf(2) with the first two words of its attributes; the rest are zero.
fn bpf(command: libc::c_int, words: [u64; 2]) -> libc::c_long {
    let mut attributes = [0; 16];
    attributes[..2].copy_from_slice(&words);
    // SAFETY: the call reads as many bytes of attributes as it is told. A path to which they point is a C string that the
    // caller keeps alive. Neither command writes to this process's memory.
    unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    }
}

fn is_bpf(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| u64::try_from(found.f_type) == Ok(MAGIC))
}
