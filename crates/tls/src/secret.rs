//! A password that may be replaced while it is in use.

use std::sync::{Arc, PoisonError, RwLock};

/// A password. A password is never printed. All clones share one value, so a replacement affects all of them.
#[derive(Clone)]
pub struct Secret(Arc<RwLock<Arc<[u8]>>>);

impl Secret {
    /// Makes a password from these bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Secret {
        Secret(Arc::new(RwLock::new(bytes.into())))
    }

    /// Replaces the password. The next login uses the new password.
    pub fn replace(&self, bytes: &[u8]) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = bytes.into();
    }

    /// Replaces the password by the present value of `other`.
    pub fn replace_by(&self, other: &Secret) {
        self.replace(&other.bytes());
    }

    /// Returns the present password, for a login.
    #[must_use]
    pub fn bytes(&self) -> Arc<[u8]> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Settings are equal if their passwords are equal. The duration of this comparison depends on the passwords, so it
/// must not be used to check a password that a client sends.
impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Secret {}

// `Debug` is written by hand, because a password must not get into a log.
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
