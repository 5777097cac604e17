//! Objects that a device in the kernel leaves when its process ends. The objects are removed after
//! every test.

use std::path::{Path, PathBuf};

use pmnet_dataplane::xdp::Pins;

/// Prefix of the names of the tests' devices in the kernel. The process id follows the prefix.
const PREFIX: &str = "e2e-";

/// Returns the folder in which a device of this name is pinned.
pub fn folder(name: &str) -> PathBuf {
    Path::new("/sys/fs/bpf/pmnet").join(name)
}

/// A device's name in the kernel. When this value is dropped, the device's pinned objects are
/// removed.
#[derive(Debug)]
pub struct Pinned(String);

impl Drop for Pinned {
    fn drop(&mut self) {
        if folder(&self.0).exists()
            && let Err(error) = Pins::open(&self.0).and_then(|pins| pins.remove())
        {
            eprintln!("{}: {error}", self.0);
        }
    }
}

impl Pinned {
    /// Returns a unique name.
    pub fn new(number: u32) -> Pinned {
        Pinned(format!("{PREFIX}{}-{number}", std::process::id()))
    }

    pub fn name(&self) -> &str {
        &self.0
    }
}

/// Removes the pinned objects of test processes that were killed.
pub fn sweep() {
    for entry in std::fs::read_dir(folder(""))
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('-'))
            .and_then(|(pid, _)| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            drop(Pinned(name));
        }
    }
}
