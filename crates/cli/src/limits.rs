//! How many files, and so connections, a process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Returns how many files this process may have open; `None`: there is no limit.
#[must_use]
pub fn open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Raises the limit that this process has to the one that it may have. The usual one, 1024, is for programs that keep sets of
/// descriptors in bits (select(2)); none of pmnet does.
pub(crate) fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    let wanted = Rlimit {
        current: maximum,
        maximum,
    };
    // It may always be raised so far; if not, less is possible, and who needs more says so.
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        tracing::warn!(?current, ?maximum, %error, "PM6010 the limit of open files cannot be raised");
    }
}
