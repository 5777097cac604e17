//! A password that may be replaced while it is in use.

use std::sync::{Arc, PoisonError, RwLock};

/// A password. Its text is never shown. Clones share one value: a replaced password is replaced in all of
/// them.
#[derive(Clone)]
pub struct Secret(Arc<RwLock<Arc<[u8]>>>);

impl Secret {
    /// Makes a password of these bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Secret {
        Secret(Arc::new(RwLock::new(bytes.into())))
    }

    /// Replaces the password. The new password counts from the next login on.
    pub fn replace(&self, bytes: &[u8]) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = bytes.into();
    }

    /// Replaces the password by the present text of `other`.
    pub fn replace_by(&self, other: &Secret) {
        self.replace(&other.bytes());
    }

    /// Returns the present text, for a login.
    #[must_use]
    pub fn bytes(&self) -> Arc<[u8]> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Settings are equal if their passwords have the same text. The time of this comparison reveals the text, so a guess
/// must not be compared in this way.
impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Secret {}

// Written by hand, because a password must not get into a log.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_one_value_that_is_never_shown() {
        let secret = Secret::new(b"open sesame");
        assert!(!format!("{secret:?}").contains("sesame"));
        let same = secret.clone();
        secret.replace(b"other");
        assert_eq!(&*same.bytes(), b"other");
        assert_eq!(same, Secret::new(b"other"));
        secret.replace_by(&Secret::new(b"third"));
        assert_eq!(&*same.bytes(), b"third");
    }
}
