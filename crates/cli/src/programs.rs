//! Finds other programs on this computer.

use std::path::PathBuf;

/// Searches for a program in `PATH`.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}
