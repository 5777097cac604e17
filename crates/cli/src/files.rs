//! Reads files that an operator names.

use std::fs::File;
use std::io::{Error, Read};

/// Returns the text of a file of at most `bytes_max` bytes. The length that the file system states is ignored, because
/// the file may be a pipe or an endless device.
///
/// # Errors
/// The file cannot be read, is not UTF-8, or is longer than `bytes_max`.
pub fn bounded_text(file: File, bytes_max: u64) -> Result<String, Error> {
    let mut text = String::new();
    file.take(bytes_max.saturating_add(1))
        .read_to_string(&mut text)?;
    if u64::try_from(text.len()).is_ok_and(|length| length > bytes_max) {
        return Err(Error::other(format!("more than {bytes_max} bytes")));
    }
    Ok(text)
}
