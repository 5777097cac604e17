//! Folders of a run: one on disk, one in memory, both removed at the end unless something failed.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// Where logs that are to live in memory go.
const MEMORY_ROOT: &str = "/dev/shm";

/// The folders of one run.
#[derive(Debug)]
pub struct Scratch {
    disk: PathBuf,
    memory: PathBuf,
    keep: bool,
}

impl Scratch {
    /// Makes both, the disk one below `parent` (which is made too).
    ///
    /// # Errors
    /// Whatever the file system says, with the path.
    pub fn new(parent: &Path, name: &str) -> anyhow::Result<Scratch> {
        let unique = format!("{name}-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let disk = parent.join(&unique);
        let memory = Path::new(MEMORY_ROOT).join(format!("pmnet-{unique}"));
        for path in [&disk, &memory] {
            std::fs::create_dir_all(path)
                .with_context(|| format!("cannot make the folder {}", path.display()))?;
        }
        Ok(Scratch {
            disk,
            memory,
            keep: false,
        })
    }

    /// The folder on disk.
    #[must_use]
    pub fn disk(&self) -> &Path {
        &self.disk
    }

    /// The folder in memory (tmpfs).
    #[must_use]
    pub fn memory(&self) -> &Path {
        &self.memory
    }

    /// Leaves the folder on disk (with the output of all processes) for a post mortem.
    pub fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A failing test keeps what its processes wrote.
        if !self.keep && !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.disk);
        }
        let _ = std::fs::remove_dir_all(&self.memory);
    }
}
