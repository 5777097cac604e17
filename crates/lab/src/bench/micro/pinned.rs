//! Removes the pinned objects of a device in the kernel when the device's process ends.

use std::path::Path;

use pmnet_dataplane::xdp::{KernelError, Pins};

/// Prefix of the names of the benchmarks' devices. The id of this process follows the prefix.
const PREFIX: &str = "bench-";

/// The name of a device in the kernel. When this value is dropped, all objects that the device
/// pinned are removed.
pub struct Pinned(pub String);

impl Pinned {
    /// Returns a unique name for device number `index` of set-up `number`.
    pub fn new(number: usize, index: usize) -> Pinned {
        Pinned(format!("{PREFIX}{}-{number}-{index}", std::process::id()))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // If the removal fails, the next run removes the objects.
        let _ = remove(&self.0);
    }
}

fn remove(name: &str) -> Result<(), KernelError> {
    Pins::open(name)?.remove()
}

/// Removes the pinned objects of benchmark processes that were killed.
///
/// # Errors
/// Fails if the BPF file system cannot be used.
pub fn sweep() -> Result<(), KernelError> {
    // This call creates the folder of pmnet's pins, if it does not exist. Afterwards the folder can
    // be listed.
    let own = Pins::open(&format!("{PREFIX}{}-sweep", std::process::id()))?;
    let neighbours = own.folder().parent().map(std::fs::read_dir);
    for entry in neighbours.into_iter().flatten().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if owner(&name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove(&name)?;
        }
    }
    own.remove()
}

/// Returns the id of the process that made this name.
fn owner(name: &str) -> Option<u32> {
    let (pid, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    pid.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_in_the_name() {
        assert_eq!(owner(&Pinned::new(3, 1).0), Some(std::process::id()));
        for other in [
            "eth0-51000",
            "bench-",
            "bench-7",
            "bench-x-1",
            "mybench-7-1",
        ] {
            assert_eq!(owner(other), None, "{other}");
        }
    }
}
