//! Folders of pins, which only their user may enter. Another user who could write to such a folder could replace a
//! device's maps and read its keys. Another user who could open a pin could take the pipeline's lock.
//!
//! This module must not know the contents of a folder.

use std::fs::{DirBuilder, Metadata, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use super::error::KernelError;

/// Mode of a folder that only its user may enter.
const PRIVATE: u32 = 0o700;
/// Bits of a mode that give rights to other users.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;

/// Makes a folder and its parent if they do not exist, and checks that only this user may use them. Earlier versions
/// made folders that other users may read; this function takes away that right. If another process removes a folder
/// meanwhile, this function reports no error, but the opening of a file in the folder will fail.
///
/// # Errors
/// [`KernelError`].
pub(super) fn make(folder: &Path) -> Result<(), KernelError> {
    for path in folder.parent().into_iter().chain([folder]) {
        let made = DirBuilder::new().mode(PRIVATE).create(path);
        let found = match made {
            Ok(()) => continue,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => path.symlink_metadata(),
            Err(error) => Err(error),
        };
        let closed = found.and_then(|found| {
            if is_others(&found) {
                return Ok(Some((found.uid(), found.mode() & 0o7777)));
            }
            if found.mode() & OTHERS != 0 {
                std::fs::set_permissions(path, Permissions::from_mode(PRIVATE))?;
            }
            Ok(None)
        });
        match closed {
            Ok(None) => {}
            Ok(Some((owner, mode))) => {
                return Err(KernelError::Folder {
                    path: path.to_owned(),
                    owner,
                    mode,
                });
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(KernelError::file(path, error)),
        }
    }
    Ok(())
}

/// Returns whether another user may have changed the folder's contents.
fn is_others(found: &Metadata) -> bool {
    !found.is_dir()
        || found.uid() != rustix::process::geteuid().as_raw()
        || found.mode() & OTHERS_WRITE != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn a_folder_of_pins_is_its_users_alone() {
        let root = tempfile::tempdir().unwrap();
        let around = root.path().join("pmnet");
        let folder = around.join("d1");
        make(&folder).unwrap();
        assert_eq!((mode(&around), mode(&folder)), (0o700, 0o700));
        std::fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        make(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700, "as an earlier version made it");
    }

    #[test]
    fn a_folder_that_others_may_have_written_to_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let (around, elsewhere) = (root.path().join("pmnet"), root.path().join("elsewhere"));
        let folder = around.join("d1");
        make(&folder).unwrap();
        let refused = |what: &str| {
            let error = make(&folder).expect_err(what).to_string();
            assert!(error.starts_with("PM1419"), "{what}: {error}");
        };
        for path in [&around, &folder] {
            std::fs::set_permissions(path, Permissions::from_mode(0o720)).unwrap();
            refused("its group may write");
            std::fs::set_permissions(path, Permissions::from_mode(PRIVATE)).unwrap();
        }
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&folder, Some(1), None).unwrap();
            refused("another user's");
            std::os::unix::fs::chown(&folder, Some(0), None).unwrap();
        }
        make(&elsewhere).unwrap();
        std::fs::remove_dir(&folder).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &folder).unwrap();
        refused("a link");
    }
}
