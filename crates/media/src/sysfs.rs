//! Facts from the kernel about the memory under a device: its size, whether a power cut loses the caches, and its known
//! bad blocks.
//!
//! Invariant: if sysfs does not state a fact, this module does not assume that the memory is durable, but gives a
//! warning.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Unit of the lists of bad blocks, in bytes.
const SECTOR: u64 = 512;
/// Maximum number of block devices on top of each other (a volume on a volume, and so on).
const LAYERS_MAX: usize = 8;

/// The part of the memory system whose contents a power cut keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Domain {
    /// The memory is in no NVDIMM region, so there is no proof that it survives a power cut.
    NotPersistent,
    /// The memory is in an NVDIMM region, and the machine does not state what it saves at a power cut.
    Unsaid,
    /// A power cut keeps all flushed stores.
    Memory,
    /// The caches are saved too (eADR): a store that other processors can see is durable.
    CpuCache,
}

impl Domain {
    /// Returns the failures that an acknowledged update survives if it is on this memory alone.
    #[must_use]
    pub fn survives(self) -> &'static str {
        match self {
            Domain::NotPersistent => {
                "death of the process, not power loss (nothing says that this memory is persistent)"
            }
            Domain::Unsaid => {
                "power loss, if the memory keeps what is flushed to it (the machine does not say)"
            }
            Domain::Memory | Domain::CpuCache => "power loss",
        }
    }

    fn of_region(text: Option<&str>) -> Domain {
        match text {
            Some("cpu_cache") => Domain::CpuCache,
            Some("memory_controller") => Domain::Memory,
            _ => Domain::Unsaid,
        }
    }
}

/// Facts about the memory under a file or device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// Persistence domain: the part of the machine that a power cut leaves intact.
    pub domain: Domain,
    /// Bytes in blocks that are known to be bad.
    pub bad_bytes: u64,
    /// Sentences, one for each fact that could not be determined.
    pub unknown: Vec<String>,
}

/// The tree under `/sys`, or a copy of its structure for tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sysfs<'a>(pub &'a Path);

/// Path of the kernel's own tree.
pub(crate) const SYSFS: &str = "/sys";

impl Sysfs<'_> {
    /// Returns the folder of a device, by its number; `kind` is `block` or `char`.
    pub(crate) fn device(&self, kind: &str, number: u64) -> io::Result<PathBuf> {
        let (major, minor) = (libc::major(number), libc::minor(number));
        self.0
            .join(format!("dev/{kind}/{major}:{minor}"))
            .canonicalize()
    }

    /// Returns whether a character device is a devdax device.
    pub(crate) fn is_dax(&self, number: u64) -> bool {
        self.device("char", number)
            .is_ok_and(|folder| subsystem(&folder).as_deref() == Some("dax"))
    }

    /// Returns the size of a devdax device in bytes.
    pub(crate) fn dax_bytes(&self, number: u64) -> io::Result<usize> {
        let size = fs::read_to_string(self.device("char", number)?.join("size"))?;
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        size.trim().parse().map_err(invalid)
    }

    /// Returns the memory of a devdax device.
    pub(crate) fn dax_memory(&self, number: u64) -> Backing {
        let mut memory = Backing {
            domain: Domain::NotPersistent,
            bad_bytes: 0,
            unknown: Vec::new(),
        };
        let folder = match self.device("char", number) {
            Ok(folder) => folder,
            Err(error) => {
                memory.unknown.push(format!("what memory it is: {error}"));
                return memory;
            }
        };
        let Some(region) = region(&folder) else {
            memory.unknown.push("which NVDIMM region it is in".into());
            return memory;
        };
        memory.domain = Domain::of_region(read(&region.join("persistence_domain")).as_deref());
        let number = |path: PathBuf| read(&path).and_then(|text| hex_or_decimal(&text));
        let first = number(folder.join("resource"));
        let start = number(region.join("resource"));
        let size = number(folder.join("size"));
        let ours = match (first, start, size) {
            (Some(first), Some(start), Some(size)) if first >= start => {
                first - start..(first - start).saturating_add(size)
            }
            // The range of the device in the region can be read only with privilege. If it cannot be read, every bad
            // block of the region counts.
            _ => 0..u64::MAX,
        };
        memory.count_bad(&region.join("badblocks"), &ours);
        memory
    }

    /// Returns the memory under a block device that holds a file system.
    pub(crate) fn block_memory(&self, number: u64) -> Backing {
        let mut memory = Backing {
            domain: Domain::CpuCache,
            bad_bytes: 0,
            unknown: Vec::new(),
        };
        match self.device("block", number) {
            Ok(folder) => memory.add_block(&folder, LAYERS_MAX),
            Err(error) => {
                memory.domain = Domain::NotPersistent;
                memory.unknown.push(format!("what memory it is: {error}"));
            }
        }
        memory
    }
}

impl Backing {
    /// Adds a block device, or the devices under it. The weakest of these devices determines the domain.
    fn add_block(&mut self, folder: &Path, layers: usize) {
        let below: Vec<PathBuf> = fs::read_dir(folder.join("slaves"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.path().canonicalize().ok())
            .collect();
        if !below.is_empty() && layers > 0 {
            for device in below {
                self.add_block(&device, layers - 1);
            }
            return;
        }
        // A partition has no list of bad blocks of its own.
        let disk = if folder.join("partition").exists() {
            folder.parent().unwrap_or(folder)
        } else {
            folder
        };
        let Some(region) = region(disk) else {
            self.domain = Domain::NotPersistent;
            self.unknown.push("which NVDIMM region it is in".into());
            return;
        };
        let domain = Domain::of_region(read(&region.join("persistence_domain")).as_deref());
        self.domain = self.domain.min(domain);
        self.count_bad(&disk.join("badblocks"), &(0..u64::MAX));
    }

    /// Adds the bad blocks of a list that touch the bytes `ours`. The list has one `SECTOR COUNT` on each line.
    fn count_bad(&mut self, list: &Path, ours: &Range<u64>) {
        let text = match fs::read_to_string(list) {
            Ok(text) => text,
            Err(error) => {
                let why = format!("whether it has bad blocks ({}: {error})", list.display());
                return self.unknown.push(why);
            }
        };
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let mut numbers = line.split_whitespace().map(str::parse::<u64>);
            let (Some(Ok(first)), Some(Ok(count))) = (numbers.next(), numbers.next()) else {
                let why = format!("what {line:?} means in {}", list.display());
                self.unknown.push(why);
                continue;
            };
            let start = first.saturating_mul(SECTOR).max(ours.start);
            let end = first
                .saturating_add(count)
                .saturating_mul(SECTOR)
                .min(ours.end);
            self.bad_bytes = self.bad_bytes.saturating_add(end.saturating_sub(start));
        }
    }
}

/// Returns the NVDIMM region of a device.
fn region(folder: &Path) -> Option<PathBuf> {
    let is_region = |folder: &Path| {
        let name = folder.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("region"))
            && subsystem(folder).as_deref() == Some("nd")
    };
    folder
        .ancestors()
        .find(|folder| is_region(folder))
        .map(Path::to_path_buf)
}

fn subsystem(folder: &Path) -> Option<String> {
    let link = fs::read_link(folder.join("subsystem")).ok()?;
    Some(link.file_name()?.to_str()?.to_owned())
}

fn read(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn hex_or_decimal(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
#[path = "sysfs_tests.rs"]
mod tests;
