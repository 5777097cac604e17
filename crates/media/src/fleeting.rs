//! Folders that the service manager removes when a unit stops.

use std::path::Path;

use crate::error::OpenError;

/// The mounts of this process (proc_pid_mountinfo(5)).
const MOUNTS: &str = "/proc/self/mountinfo";
/// With `PrivateTmp=yes`, systemd mounts folders with this prefix at `/tmp` and `/var/tmp`, and removes them when the
/// unit stops.
const PRIVATE: &str = "systemd-private-";

/// Refuses a path in a folder that is removed when the process ends.
///
/// # Errors
/// [`OpenError::Fleeting`].
pub fn refuse_fleeting(path: &Path) -> Result<(), OpenError> {
    // Without /proc nothing is known, and the path is used.
    let mounts = std::fs::read_to_string(MOUNTS).unwrap_or_default();
    // If the path is a link, the folder of the file to which it leads counts.
    let file = path.canonicalize().or_else(|_| std::path::absolute(path));
    let folder = file
        .ok()
        .and_then(|file| file.parent()?.canonicalize().ok());
    match folder {
        Some(folder) if is_private(&mounts, &folder) => Err(OpenError::Fleeting {
            path: path.to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Whether the last mount that contains this folder is one of a private `/tmp`.
fn is_private(mounts: &str, folder: &Path) -> bool {
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(3);
        Some((fields.next()?, fields.next()?))
    });
    let over = mounts.filter(|(_, point)| folder.starts_with(point));
    // Of mounts at the same point, the last one counts.
    over.max_by_key(|(_, point)| point.len())
        .is_some_and(|(root, _)| root.contains(PRIVATE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
36 21 8:1 /var/tmp/systemd-private-0a1b-pmnet.service-x/tmp /var/tmp rw,relatime - ext4 /dev/sda1 rw
37 36 0:40 / /var/tmp/mounted rw - tmpfs tmpfs rw
38 21 0:41 /systemd-private-0a1b-pmnet.service-y/tmp /tmp rw - tmpfs tmpfs rw";

    #[test]
    fn only_what_is_in_a_private_folder_is_refused() {
        for (folder, is) in [
            ("/var/tmp", true),
            ("/var/tmp/a/b", true),
            ("/tmp/a", true),
            ("/var/tmp/mounted/a", false),
            ("/var/tmpfile", false),
            ("/var/lib/pmnet", false),
            ("/", false),
        ] {
            assert_eq!(is_private(MOUNTS, Path::new(folder)), is, "{folder}");
        }
        assert!(!is_private("", Path::new("/tmp")));
    }
}
