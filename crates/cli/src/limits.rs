//! The limit of open files, and so of connections, of a process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Returns how many files this process may have open; `None`: there is no limit.
#[must_use]
pub fn open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Raises this process's soft limit of open files to its hard limit. The usual soft limit, 1024, is for programs that
/// use select(2) with its fixed bit sets; pmnet does not.
pub(crate) fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    let wanted = Rlimit {
        current: maximum,
        maximum,
    };
    // A process may always raise its soft limit to the hard limit. If this still fails, the process continues with the
    // old limit; a part that needs more files reports that itself.
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        tracing::warn!(?current, ?maximum, %error, "PM6010 the limit of open files cannot be raised");
    }
}
