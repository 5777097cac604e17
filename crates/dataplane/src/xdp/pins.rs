//! The folder of the BPF file system where a device's maps and its link to an interface are pinned:
//! what is there goes on without any process.

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
/// Name of the pinned link.
const LINK: &str = "link";

/// One device's folder.
#[derive(Clone, Debug)]
pub struct Pins {
    folder: PathBuf,
}

impl Pins {
    /// The folder of the device `name`, made if need be; mounts the BPF file system in its usual place
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

    /// The folder of the device `name`, whether or not it is there.
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

    /// Whether a device lives here.
    #[must_use]
    pub fn in_use(&self) -> bool {
        self.path(IMAGE).exists()
    }

    /// Where something is pinned.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Where the link to an interface is pinned. (Names with a dot are not allowed there.)
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

    /// Interfaces to which a link is pinned (a dot in a name is `_` here).
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

    /// Removes the link to an interface: it is as it was before.
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

    /// Removes everything that is pinned here, links first: interfaces are as they were before, and
    /// maps go when nobody holds them any more.
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

    /// The same, and leaves the empty folder.
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

/// Takes the program off the interface of a pinned link now; when the link's last file is gone, the kernel does that as well,
/// but some time later. An older kernel that cannot (before Linux 5.9) leaves it at that.
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
    // SAFETY: the call has just made it, for nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    bpf(
        BPF_LINK_DETACH,
        [u64::from(fd.as_raw_fd().unsigned_abs()), 0],
    );
}

/// The system call with the first two words that it reads (linux/bpf.h); all that follow are zero.
fn bpf(command: libc::c_int, words: [u64; 2]) -> libc::c_long {
    let mut attributes = [0; 16];
    attributes[..2].copy_from_slice(&words);
    // SAFETY: of the attributes so many bytes are read as are told; a name to which they point is a string that its caller
    // keeps, and neither command writes anywhere.
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
