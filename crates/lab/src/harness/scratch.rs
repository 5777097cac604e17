//! The folders of a run: one on disk, one in memory. If the run fails, the folder on disk is kept for inspection.

use std::path::{Path, PathBuf};
use std::sync::Once;

use anyhow::Context;

/// Parent folder for logs in memory.
const MEMORY_ROOT: &str = "/dev/shm";

static SWEEP: Once = Once::new();

/// The folders of one run.
#[derive(Debug)]
pub struct Scratch {
    disk: PathBuf,
    memory: PathBuf,
    keep: bool,
}

impl Scratch {
    /// Makes both folders. `parent` is the parent of the folder on disk. If `parent` does not exist, it is made.
    ///
    /// # Errors
    /// Returns the error of the file system, with the path.
    pub fn new(parent: &Path, name: &str) -> anyhow::Result<Scratch> {
        SWEEP.call_once(sweep);
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

    /// Returns the folder on disk.
    #[must_use]
    pub fn disk(&self) -> &Path {
        &self.disk
    }

    /// Returns the folder in memory (tmpfs).
    #[must_use]
    pub fn memory(&self) -> &Path {
        &self.memory
    }

    /// Makes the drop of this value keep the folder on disk, with the output of all processes.
    pub fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If a test fails, the output of its processes is kept.
        if !self.keep && !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.disk);
        }
        let _ = std::fs::remove_dir_all(&self.memory);
    }
}

/// Removes the folders in memory whose owners were killed. The owners' folders on disk stay for inspection.
fn sweep() {
    let Ok(entries) = std::fs::read_dir(MEMORY_ROOT) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix("pmnet-").and_then(owner);
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns the id of the process that made a folder with this name. Names have the form NAME-PID-RANDOM.
fn owner(name: &str) -> Option<u32> {
    let (rest, random) = name.rsplit_once('-')?;
    let (_, pid) = rest.rsplit_once('-')?;
    let is_ours = random.len() == 8 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    pid.parse().ok().filter(|_| is_ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_in_the_name() {
        assert_eq!(owner("history-1000-4711-495e21db"), Some(4711));
        for other in ["4711", "device.log", "a-4711-x", "a-b-495e21db", ""] {
            assert_eq!(owner(other), None, "{other}");
        }
    }

    #[test]
    fn folders_go_with_their_handle() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(parent.path(), "gone").unwrap();
        let paths = [scratch.disk().to_owned(), scratch.memory().to_owned()];
        assert!(paths.iter().all(|path| path.is_dir()));
        // A sweep does not touch folders that are in use.
        sweep();
        assert!(paths.iter().all(|path| path.is_dir()));
        drop(scratch);
        assert!(paths.iter().all(|path| !path.exists()));
    }
}
