//! Reads passwords from files. Passwords on a command line would be visible to every user in the process list.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::ConfigError;
use crate::files::bounded_text;

/// Maximum size of a password file, in bytes.
const FILE_BYTES_MAX: u64 = 1024;
/// Permission bits of all users except the owner.
const OTHERS: u32 = 0o077;

/// Returns the password in the first line of this file. If other users may read the file, logs a warning.
///
/// # Errors
/// The file cannot be read, is longer than 1024 bytes, or its first line is empty.
pub fn password(flag: &str, path: &Path) -> Result<String, ConfigError> {
    let bad =
        |what: &dyn std::fmt::Display| ConfigError(format!("{flag} {}: {what}", path.display()));
    let file = std::fs::File::open(path).map_err(|error| bad(&error))?;
    let about = file.metadata().map_err(|error| bad(&error))?;
    if about.is_file() && about.mode() & OTHERS != 0 {
        tracing::warn!(
            "PM6008 {flag} {}: others may read or change it: chmod 600",
            path.display()
        );
    }
    let text = bounded_text(file, FILE_BYTES_MAX).map_err(|error| bad(&error))?;
    let line = text.lines().next().unwrap_or_default();
    if line.is_empty() {
        return Err(bad(&"its first line is empty; the password belongs there"));
    }
    Ok(line.to_owned())
}

/// Logs a warning if this URL contains a password, because every user of this computer can see it in the process list.
/// `instead`: the right place for the password.
pub fn warn_of_password(flag: &str, url: &str, instead: &str) {
    let credentials = url.rsplit_once('@').map(|(before, _)| before);
    let text = credentials.map(|text| text.split_once("://").map_or(text, |(_, rest)| rest));
    if text.is_some_and(|text| !text.ends_with(':')) {
        tracing::warn!(
            "PM6009 {flag}: its password is in the process list, where every user of this machine can read it: {instead}"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::password;

    #[test]
    fn a_password_is_the_first_line_of_a_file() {
        let folder = std::env::temp_dir().join(format!("pmnet-secret-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let read = |text: &[u8]| {
            let path = folder.join("file");
            std::fs::write(&path, text).unwrap();
            password("--x-file", &path).map_err(|error| error.to_string())
        };
        assert_eq!(read(b"s3cret\n").as_deref(), Ok("s3cret"));
        assert_eq!(read(b" a b \r\nrest").as_deref(), Ok(" a b "));
        for bad in [&b""[..], b"\nx", &[b'x'; 1025], b"\xff"] {
            let error = read(bad).unwrap_err();
            assert!(
                error.starts_with("--x-file ") && !error.contains("xxx"),
                "{error}"
            );
        }
        assert!(password("--x-file", Path::new("/none/such")).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
