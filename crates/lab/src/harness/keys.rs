//! The key files of a set-up. The product makes the files in the folder of the run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::binaries::Binaries;

/// Name of the front.
const FRONT: &str = "front";

/// The key files of a cluster.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The key file of devices and server.
    pub cluster: PathBuf,
    /// The key file of the front, and of every other client of devices.
    pub front: PathBuf,
}

impl Keys {
    /// Makes the key files in this folder.
    ///
    /// # Errors
    /// Fails if `pmnet key` does not make the keys. The error contains its message.
    pub fn make(binaries: &Binaries, folder: &Path) -> anyhow::Result<Keys> {
        let (cluster, front) = (folder.join("cluster.key"), folder.join("front.key"));
        run(binaries, ["new".as_ref(), cluster.as_path()])?;
        let of = ["front", FRONT, "--of"].map(Path::new);
        run(binaries, [of[0], of[1], &front, of[2], &cluster])?;
        Ok(Keys { cluster, front })
    }
}

fn run<const N: usize>(binaries: &Binaries, words: [&Path; N]) -> anyhow::Result<()> {
    let done = Command::new(&binaries.pmnet)
        .arg("key")
        .args(words)
        .output()
        .context("cannot start pmnet key")?;
    let said = String::from_utf8_lossy(&done.stderr);
    anyhow::ensure!(done.status.success(), "pmnet key: {said}");
    Ok(())
}

/// Returns the flag with this key file. Without a key, returns no flag.
pub fn flag(key: Option<&PathBuf>) -> Vec<OsString> {
    key.map_or_else(Vec::new, |key| vec!["--key".into(), key.into()])
}
