//! Examines a path at which a log is or will be, and changes nothing there.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::OpenError;
use crate::sysfs::{Backing, Domain, SYSFS, Sysfs};
use crate::{Kind, file, pmem, sys};

/// Kind of storage under a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A devdax device.
    DevDax,
    /// A file system with direct access to persistent memory (fsdax).
    FsDax,
    /// A file system in memory: tmpfs, ramfs.
    Memory,
    /// hugetlbfs.
    HugePages,
    /// A file system on a disk, or on any storage that is accessed through the page cache.
    Disk,
}

impl Class {
    /// Returns its name for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Class::DevDax => "persistent memory (devdax)",
            Class::FsDax => "persistent memory (fsdax)",
            Class::Memory => "file system in memory",
            Class::HugePages => "huge pages (hugetlbfs)",
            Class::Disk => "file system on a disk",
        }
    }
}

/// Facts about the path of a log.
#[derive(Clone, Debug)]
pub struct Place {
    /// Kind of place.
    pub class: Class,
    /// The medium that suits this place.
    pub kind: Kind,
    /// How this medium makes a log durable at this place.
    pub persist: String,
    /// Failures that an acknowledged update survives if it is on this medium alone.
    pub survives: &'static str,
    /// Weaknesses and unknown facts, with advice; empty if there are none.
    pub advice: Vec<String>,
}

/// Examines the place of a log: the file or device, or, if none exists yet, its folder. In the folder, this function
/// creates a file and removes it again. The log may be in use.
///
/// # Errors
/// The path cannot be opened, or no file can be created in its folder.
pub fn look(path: &Path) -> Result<Place, OpenError> {
    let probe = Probe::new(path)?;
    let metadata = probe.file.metadata();
    let metadata = metadata.map_err(OpenError::io(path, "look at the file", 0))?;
    if metadata.file_type().is_char_device() {
        if !Sysfs(Path::new(SYSFS)).is_dax(metadata.rdev()) {
            return Err(OpenError::NotAFile {
                path: path.to_path_buf(),
            });
        }
        return Ok(persistent(Class::DevDax, &pmem::backing(&metadata)));
    }
    if !metadata.is_file() {
        return Err(OpenError::NotAFile {
            path: path.to_path_buf(),
        });
    }
    let system = sys::file_system(&probe.file);
    let system = system.map_err(OpenError::io(path, "look at the file system", 0))?;
    if system.memory {
        return Ok(in_memory(system.huge));
    }
    if pmem::check_direct(&probe.file, path).is_ok() {
        return Ok(persistent(Class::FsDax, &pmem::backing(&metadata)));
    }
    let under = Sysfs(Path::new(SYSFS)).block_memory(metadata.dev()).domain;
    Ok(on_disk(
        under != Domain::NotPersistent,
        file::takes_direct(&probe.path),
    ))
}

fn persistent(class: Class, memory: &Backing) -> Place {
    let method = pmem::Method::for_domain(memory.domain);
    let mut advice: Vec<String> = memory
        .unknown
        .iter()
        .map(|what| format!("cannot find out {what}"))
        .collect();
    match memory.domain {
        Domain::NotPersistent => {
            advice.push("nothing says that this memory survives a power cut: use an NVDIMM, or --media file".into());
        }
        Domain::Unsaid => {
            advice.push(
                "the machine does not say what it keeps in a power cut: look it up in its manual"
                    .into(),
            );
        }
        Domain::Memory | Domain::CpuCache => {}
    }
    if memory.bad_bytes > 0 {
        advice.push(format!(
            "{} bytes are known to be bad: a device refuses them; `ndctl clear-errors`, and make a new log",
            memory.bad_bytes
        ));
    }
    if method.is_none() {
        advice.push("pmnet flushes on x86-64 only: use --media file on another path".into());
    }
    Place {
        class,
        kind: Kind::Pmem,
        persist: format!(
            "flush: {}",
            method.map_or("not known here", pmem::Method::name)
        ),
        survives: memory.domain.survives(),
        advice,
    }
}

fn in_memory(huge: bool) -> Place {
    Place {
        class: if huge { Class::HugePages } else { Class::Memory },
        kind: Kind::Dram,
        persist: "nothing to do".into(),
        survives: "death of the process, not power loss",
        advice: vec![
            "for power cuts use a path on a disk (--media file), persistent memory (--media pmem), or devices on \
             several machines"
                .into(),
        ],
    }
}

fn on_disk(persistent: bool, direct: bool) -> Place {
    let mut advice = Vec::new();
    if persistent {
        advice.push(
            "the disk is persistent memory behind the page cache: mounted with -o dax, or as devdax, it takes --media \
             pmem, which is much faster"
                .into(),
        );
    }
    if !direct {
        advice.push(
            "the file system refuses O_DIRECT, so every persist is slow: use ext4 or xfs".into(),
        );
    }
    Place {
        class: Class::Disk,
        kind: Kind::File,
        persist: if direct {
            "O_DIRECT and O_DSYNC".into()
        } else {
            "page cache and fdatasync".into()
        },
        survives: "power loss, if the disk keeps what it reports as written",
        advice,
    }
}

/// The file that is examined: the log, or a file that is removed again.
struct Probe {
    file: File,
    path: PathBuf,
    ours: bool,
}

impl Probe {
    fn new(path: &Path) -> Result<Probe, OpenError> {
        let there = fs::metadata(path);
        if there.as_ref().is_ok_and(|there| !there.is_dir()) {
            let opened = OpenOptions::new().read(true).write(true).open(path);
            return Ok(Probe {
                file: opened.map_err(OpenError::io(path, "open it", 0))?,
                path: path.to_path_buf(),
                ours: false,
            });
        }
        let folder = if there.is_ok() {
            path
        } else {
            path.parent()
                .filter(|parent| !parent.as_os_str().is_empty())
                .unwrap_or(Path::new("."))
        };
        let probe = folder.join(format!(".pmnet-look-{}", std::process::id()));
        let made = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&probe);
        Ok(Probe {
            file: made.map_err(OpenError::io(path, "make a file beside it", 0))?,
            path: probe,
            ours: true,
        })
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if self.ours {
            let _gone_anyway = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
