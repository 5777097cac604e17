//! Detects that files were replaced while the process is running.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The state of one file: time of its last change (seconds and nanoseconds), length, inode number. `None`: the file
/// cannot be accessed.
type Stamp = Option<(i64, i64, u64, u64)>;

/// The states of several files, for a comparison with later states. For a symbolic link, the state is that of its
/// target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamps(Vec<Stamp>);

impl Stamps {
    /// Reads the state of these files.
    #[must_use]
    pub fn of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Stamps {
        let stamp = |path: &Path| {
            let about = std::fs::metadata(path).ok()?;
            Some((about.mtime(), about.mtime_nsec(), about.len(), about.ino()))
        };
        Stamps(paths.into_iter().map(stamp).collect())
    }
}
