//! The measurements of a run, and their durations.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use pmnet_media::Kind;
use serde::Serialize;

/// Smallest request in bytes: its number and a few more bytes.
pub const PAYLOAD_BYTES_MIN: usize = 16;
/// Largest request in bytes: it fills a packet on Ethernet.
pub const PAYLOAD_BYTES_MAX: usize = 1_472;
/// Maximum number of queues. A veth pair has at most as many queues as the machine has cores.
pub const QUEUES_MAX: usize = 8;
/// Maximum number of requests in flight on one queue. A veth drops packets if more than 256 are
/// waiting.
pub const IN_FLIGHT_MAX: usize = 64;

/// The server's work on a request before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Store {
    /// The server stores nothing.
    Nothing,
    /// The server copies the request into a log and persists the log.
    Copied,
    /// The packet buffer that holds the request becomes a part of the log, and is persisted.
    Buffers,
}

impl Store {
    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Store::Nothing => "nothing",
            Store::Copied => "copied",
            Store::Buffers => "buffers",
        }
    }

    /// Returns a sentence that describes the server's work.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Store::Nothing => "nothing is stored: the network alone",
            Store::Copied => {
                "the request is copied into a log in other memory, the log is persisted, then it is answered"
            }
            Store::Buffers => {
                "the packet buffer becomes the log's, its lines are persisted, then it is answered (PASTE)"
            }
        }
    }
}

/// The medium of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A file on tmpfs. Persisting flushes no cache lines.
    Tmpfs,
    /// A file on tmpfs. Persisting flushes cache lines, as persistent memory requires.
    TmpfsFlushed,
    /// A file on hugetlbfs. Persisting flushes no cache lines.
    Hugetlbfs,
    /// A file on hugetlbfs. Persisting flushes cache lines, as persistent memory requires.
    HugetlbfsFlushed,
    /// A file on disk, which is written with `O_DSYNC`.
    File,
}

impl Place {
    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Place::Tmpfs => "tmpfs",
            Place::TmpfsFlushed => "tmpfs-flushed",
            Place::Hugetlbfs => "hugetlbfs",
            Place::HugetlbfsFlushed => "hugetlbfs-flushed",
            Place::File => "file",
        }
    }

    /// Returns the title, which states the effect of persisting.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Place::Tmpfs => "DRAM on tmpfs, no flush",
            Place::TmpfsFlushed => "DRAM on tmpfs, lines flushed as on persistent memory",
            Place::Hugetlbfs => "DRAM on hugetlbfs, no flush",
            Place::HugetlbfsFlushed => "DRAM on hugetlbfs, lines flushed as on persistent memory",
            Place::File => "file on disk, O_DSYNC",
        }
    }

    /// Returns whether persisting flushes cache lines although this medium does not require it.
    #[must_use]
    pub const fn flushes(self) -> bool {
        matches!(self, Place::TmpfsFlushed | Place::HugetlbfsFlushed)
    }

    /// Returns the kind of medium.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Place::File => Kind::File,
            _ => Kind::Dram,
        }
    }

    /// Returns the medium that crate `packets` must use.
    #[must_use]
    pub const fn medium(self) -> pmnet_packets::Medium {
        match self {
            Place::File => pmnet_packets::Medium::File,
            Place::Tmpfs | Place::Hugetlbfs => pmnet_packets::Medium::Memory,
            Place::TmpfsFlushed | Place::HugetlbfsFlushed => pmnet_packets::Medium::MemoryFlushed,
        }
    }

    /// Returns whether the medium needs huge pages.
    #[must_use]
    pub const fn is_huge(self) -> bool {
        matches!(self, Place::Hugetlbfs | Place::HugetlbfsFlushed)
    }
}

/// Returns the folder at which hugetlbfs is mounted.
///
/// # Errors
/// Fails if hugetlbfs cannot be used for this many bytes; the error says what to do.
pub fn hugetlbfs(bytes: u64) -> Result<PathBuf, String> {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = free_huge_bytes(&info);
    if free < bytes {
        return Err(format!(
            "hugetlbfs is left out: {} MiB of huge pages are free, {} MiB are needed (sysctl vm.nr_hugepages=N)",
            free >> 20,
            bytes >> 20
        ));
    }
    mount_of(&mounts, "hugetlbfs").map_or_else(
        || {
            Err(
                "hugetlbfs is left out: it is not mounted (mount -t hugetlbfs none /mnt/huge)"
                    .into(),
            )
        },
        |path| Ok(path.to_path_buf()),
    )
}

fn mount_of<'a>(mounts: &'a str, kind: &str) -> Option<&'a Path> {
    mounts.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let path = words.next()?;
        (words.next()? == kind).then(|| Path::new(path))
    })
}

/// Returns the bytes of huge pages that are neither used nor reserved, from /proc/meminfo.
fn free_huge_bytes(info: &str) -> u64 {
    let number = |name: &str| -> u64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        let word = line.and_then(|rest| rest.split_whitespace().next());
        word.and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    let pages = number("HugePages_Free:").saturating_sub(number("HugePages_Rsvd:"));
    pages.saturating_mul(number("Hugepagesize:")) << 10
}

/// The combinations and durations of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The media of logs, each once.
    pub places: Vec<Place>,
    /// The sizes of requests in bytes.
    pub payloads: Vec<usize>,
    /// Numbers of queues.
    pub queues: Vec<usize>,
    /// The numbers of requests in flight on each queue.
    pub in_flight: Vec<usize>,
    /// Size of the packet buffers in bytes. A log for copies has frame space of the same size.
    pub log_bytes: u64,
    /// Number of requests that the log keeps before it drops the oldest; `None`: three quarters of
    /// the buffers.
    pub kept: Option<u64>,
    /// Duration of the measurement in one run.
    pub duration: Duration,
    /// Duration of the warm-up.
    pub warmup: Duration,
    /// Number of runs of each combination.
    pub rounds: usize,
}

impl Plan {
    /// Returns the total size of the files that exist at the same time: three regions with packet
    /// buffers, and a log with its entries.
    #[must_use]
    pub const fn bytes_together(&self) -> u64 {
        5 * self.log_bytes
    }

    /// Returns the number of runs of the plan.
    #[must_use]
    pub fn steps(&self) -> u64 {
        let groups =
            self.places.len() * self.queues.len() * self.payloads.len() * self.in_flight.len();
        let runs = groups * Store::value_variants().len() * self.rounds;
        u64::try_from(runs).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_counted_as_the_kernel_says() {
        let info = "MemFree: 5 kB\nHugePages_Free:       7\nHugePages_Rsvd:       2\nHugepagesize:    2048 kB\n";
        assert_eq!(free_huge_bytes(info), 5 * 2048 * 1024);
        assert_eq!(free_huge_bytes("MemFree: 5 kB\n"), 0);
        let mounts = "proc /proc proc rw 0 0\nnone /mnt/huge hugetlbfs rw 0 0\n";
        assert_eq!(mount_of(mounts, "hugetlbfs"), Some(Path::new("/mnt/huge")));
        assert_eq!(mount_of(mounts, "ext4"), None);
    }
}
