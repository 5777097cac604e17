//! The folder of the BPF file system in which a device's maps are pinned, with a mark for each interface of the device.
//!
//! Invariants: pinned maps and programs need no process. A device leaves its interfaces before its maps are removed.
//! Spec: `docs/spec/pipeline.md` §6. This module must not know the contents of a map.

use std::path::{Path, PathBuf};

use super::beside::{Interface, Steps};
use super::error::KernelError;
use super::folder;
use super::links;
use super::names::IMAGE;

/// Usual mount point of the BPF file system.
const USUAL: &str = "/sys/fs/bpf";
/// `f_type` of a BPF file system (linux/magic.h).
const MAGIC: u64 = 0xcafe_4a11;
/// Mounts of the first process. Any user may read this list, unless `/proc` is restricted.
const FIRST_MOUNTS: &str = "/proc/1/mountinfo";
/// Number of the first PID namespace, which is that of the computer itself (linux/proc_ns.h).
const PROCESSES: &str = "/proc/self/ns/pid";
const FIRST_PROCESSES: &str = "pid:[4026531836]";
/// First part of the name of a mark: a symbolic link to the interface's folder.
const MARK: &str = "at-";
/// First part of the name of a pinned link. Folders of devices have no pinned links, but folders of other programs may
/// have some.
const LINK: &str = "link";

/// One device's folder.
#[derive(Clone, Debug)]
pub struct Pins {
    folder: PathBuf,
    /// This process has mounted the file system.
    mounted: bool,
}

impl Pins {
    /// Returns the folder of the device `name`, and makes it if needed. If the BPF file system is not mounted, mounts
    /// it at its usual mount point.
    ///
    /// # Errors
    /// [`KernelError::FileSystem`], [`KernelError::Folder`].
    pub fn open(name: &str) -> Result<Pins, KernelError> {
        let root = Path::new(USUAL);
        let failed = |error| KernelError::file(root, error);
        let mounted = !is_bpf(root);
        if mounted {
            // By default all users could make folders in this file system.
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount("bpf", root, "bpf", flags, c"mode=0700")
                .map_err(|error| failed(error.into()))?;
        }
        let pins = Pins {
            folder: root.join("pmnet").join(name),
            mounted,
        };
        pins.make_folder()?;
        Ok(pins)
    }

    /// Makes the folder if it does not exist, and checks that only this user may use it.
    pub(super) fn make_folder(&self) -> Result<(), KernelError> {
        folder::make(&self.folder)
    }

    /// Returns the folder of the device `name`, which need not exist.
    #[must_use]
    pub fn existing(name: &str) -> Pins {
        Pins {
            folder: Path::new(USUAL).join("pmnet").join(name),
            mounted: false,
        }
    }

    /// Returns whether the pins outlive this process. They do not if the file system is mounted only in this process's
    /// own mount namespace, as in a container. If the mounts of the first process cannot be read, the result is true.
    #[must_use]
    pub fn outlives_the_process(&self) -> bool {
        let Ok(root) = rustix::fs::stat(USUAL) else {
            return true;
        };
        let device = (
            rustix::fs::major(root.st_dev),
            rustix::fs::minor(root.st_dev),
        );
        let in_container = std::fs::read_link(PROCESSES)
            .is_ok_and(|namespace| namespace != Path::new(FIRST_PROCESSES));
        std::fs::read_to_string(FIRST_MOUNTS).map_or(true, |mounts| has_mounted(&mounts, device))
            && !(self.mounted && in_container)
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns whether this folder has a device, or a part of a device: the image is pinned.
    #[must_use]
    pub fn in_use(&self) -> bool {
        self.path(IMAGE).exists()
    }

    /// Returns the path of the pin with this name.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the device's name.
    #[must_use]
    pub(super) fn name(&self) -> String {
        let name = self.folder.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Returns the names in the folder; none if the folder does not exist.
    pub(super) fn entries(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten();
        entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }

    /// Returns the names of the interfaces at which the device is attached.
    pub(super) fn interfaces(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .marks()
            .into_iter()
            .filter(|(_, interface)| interface.has(&self.name()))
            .map(|(name, _)| name)
            .collect();
        names.sort();
        names
    }

    /// Returns the marks: the names of interfaces, each with the interface's folder.
    fn marks(&self) -> Vec<(String, Interface)> {
        let read = |file: &String| {
            let name = decoded(file.strip_prefix(MARK)?);
            let folder = std::fs::read_link(self.folder.join(file)).ok()?;
            Some((name, Interface::of(folder)))
        };
        self.entries().iter().filter_map(read).collect()
    }

    fn mark_of(&self, interface: &str) -> PathBuf {
        self.folder.join(format!("{MARK}{}", encoded(interface)))
    }

    /// Marks that the device is at this interface, or will be. If another interface had this name before, the device is
    /// detached from that interface. Returns whether the mark is new.
    pub(super) fn mark(
        &self,
        name: &str,
        interface: &Interface,
        step: Steps<'_>,
    ) -> Result<bool, KernelError> {
        let path = self.mark_of(name);
        if let Ok(folder) = std::fs::read_link(&path) {
            if folder == interface.folder() {
                return Ok(false);
            }
            Interface::of(folder).leave(&self.name(), step)?;
            self.unmark(name)?;
        }
        std::os::unix::fs::symlink(interface.folder(), &path)
            .map_err(|error| KernelError::file(&path, error))?;
        Ok(true)
    }

    /// Removes a mark.
    pub(super) fn unmark(&self, name: &str) -> Result<(), KernelError> {
        let path = self.mark_of(name);
        std::fs::remove_file(&path).map_err(|error| KernelError::file(&path, error))
    }

    /// Detaches the device from all interfaces except these.
    ///
    /// # Errors
    /// [`KernelError`].
    pub(super) fn leave_all_but(
        &self,
        names: &[String],
        step: Steps<'_>,
    ) -> Result<(), KernelError> {
        let (kept, others): (Vec<_>, Vec<_>) = self
            .marks()
            .into_iter()
            .partition(|(name, _)| names.contains(name));
        for (name, interface) in others {
            // An interface stays attached if it is listed under another name now.
            if !kept.iter().any(|(_, other)| *other == interface) {
                interface.leave(&self.name(), step)?;
            }
            step("unmark");
            self.unmark(&name)?;
        }
        Ok(())
    }

    /// Detaches the device from all interfaces, and removes all its pins and the folder. The kernel frees a map when
    /// the map's last reference is gone.
    ///
    /// # Errors
    /// [`KernelError::FileSystem`].
    pub fn remove(&self) -> Result<(), KernelError> {
        self.clear()?;
        std::fs::remove_dir(&self.folder).map_err(|error| KernelError::file(&self.folder, error))
    }

    /// Removes the pins, but keeps the empty folder.
    pub(super) fn clear(&self) -> Result<(), KernelError> {
        self.leave_all_but(&[], &mut |_| ())?;
        let failed = |error| KernelError::file(&self.folder, error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.folder).map_err(failed)? {
            names.push(entry.map_err(failed)?.file_name());
        }
        names.sort_by_key(|name| !name.to_string_lossy().starts_with(LINK));
        for name in names {
            let path = self.folder.join(&name);
            if name.to_string_lossy().starts_with(LINK) {
                links::detach(&path);
            }
            std::fs::remove_file(path).map_err(failed)?;
        }
        Ok(())
    }
}

/// Returns a name without dots, which the BPF file system does not allow.
fn encoded(interface: &str) -> String {
    interface.replace('_', "__").replace('.', "_d")
}

fn decoded(file: &str) -> String {
    let mut name = String::new();
    let mut rest = file.chars();
    while let Some(letter) = rest.next() {
        name.push(match (letter, letter == '_') {
            (_, true) if rest.next() == Some('d') => '.',
            (letter, _) => letter,
        });
    }
    name
}

/// Returns whether a list of mounts (proc_pid_mountinfo(5)) has the file system with this device number.
fn has_mounted(mounts: &str, (major, minor): (u32, u32)) -> bool {
    let device = format!("{major}:{minor}");
    mounts
        .lines()
        .any(|line| line.split(' ').nth(2) == Some(&device))
}

fn is_bpf(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| u64::try_from(found.f_type) == Ok(MAGIC))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_mounts_is_searched_for_the_device_number() {
        let mounts = "24 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n35 29 0:29 / /sys/fs/bpf rw - bpf bpf rw\n";
        assert!(has_mounted(mounts, (0, 29)));
        for other in [(0, 2), (29, 0), (0, 290), (1, 24)] {
            assert!(!has_mounted(mounts, other), "{other:?}");
        }
        assert!(!has_mounted("", (0, 29)));
    }

    #[test]
    fn names_of_interfaces_stay_apart() {
        let names = [
            "eth0", "eth0.1", "eth0_1", "eth0_d1", "a__b", "a_.b", "a._b", "..", "_",
        ];
        for (at, name) in names.iter().enumerate() {
            let file = encoded(name);
            assert!(!file.contains('.'), "{file}");
            assert_eq!(decoded(&file), *name);
            assert!(names[..at].iter().all(|other| encoded(other) != file));
        }
    }
}
