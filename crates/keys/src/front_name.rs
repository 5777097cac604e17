//! Names of fronts.

use std::fmt;

/// Maximum length of a name, in bytes.
const BYTES_MAX: usize = 64;

/// The name of a front: 1 to 64 letters, digits, `.`, `_` and `-`. A name does not begin with `.` or `-`, so it can be
/// a part of a file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontName(String);

impl FrontName {
    /// Makes a name from this text; `None` if the text is not a valid name.
    #[must_use]
    pub fn new(text: &str) -> Option<FrontName> {
        let usual = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_one = (1..=BYTES_MAX).contains(&text.len())
            && text.bytes().all(usual)
            && !text.starts_with(['.', '-']);
        is_one.then(|| FrontName(text.to_owned()))
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FrontName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
