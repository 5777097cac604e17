//! The limit of open files of a process, and thereby of its connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Returns the number of files that this process may have open; `None`: there is no limit.
#[must_use]
pub fn open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Raises this process's soft limit of open files to its hard limit. The usual soft limit of 1024 protects programs
/// that use select(2) with its bit sets of fixed size. pmnet does not use select(2).
pub(crate) fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    let wanted = Rlimit {
        current: maximum,
        maximum,
    };
    // A process may always raise its soft limit to the hard limit. If this fails nevertheless, the process continues
    // with the old limit. A role that needs more files reports this itself.
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        tracing::warn!(?current, ?maximum, %error, "PM6010 the limit of open files cannot be raised");
    }
}
