//! The access to the front, and passwords.

use std::sync::{Arc, PoisonError, RwLock};

use subtle::ConstantTimeEq;

use super::CREDENTIAL_BYTES_MAX;

/// The clients that may use the front, and their rights.
#[derive(Clone, Debug, Default)]
pub enum Access {
    /// Redis's users, with their rights in Redis. A client that has not logged in is Redis's user `default`,
    /// if that user needs no password. A client on another machine cannot be a user without a password.
    #[default]
    Redis,
    /// All clients with this password, with all rights of the pmnet server. Redis's users do not count.
    Password(Secret),
    /// All clients, without a password, with all rights of the pmnet server.
    Anyone,
}

/// A password. The text of a password is never shown. Clones share one value: a replaced password is replaced in all
/// clones.
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

    /// Replaces the password by the text of `other`.
    pub fn replace_by(&self, other: &Secret) {
        self.replace(&other.bytes());
    }

    pub(crate) fn bytes(&self) -> Arc<[u8]> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether `guess` is the password. The time of the comparison reveals nothing about the password or its
    /// length.
    pub(crate) fn is(&self, guess: &[u8]) -> bool {
        let padded = |bytes: &[u8]| {
            let mut all = [0_u8; CREDENTIAL_BYTES_MAX];
            let length = bytes.len().min(CREDENTIAL_BYTES_MAX);
            all[..length].copy_from_slice(&bytes[..length]);
            all
        };
        let own = self.bytes();
        let same_length = own.len().ct_eq(&guess.len());
        (padded(&own).ct_eq(&padded(guess)) & same_length).into()
    }
}

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
    fn only_the_whole_password_is_it() {
        let secret = Secret::new(b"open sesame");
        assert!(secret.is(b"open sesame"));
        for guess in [
            &b""[..],
            b"open sesam",
            b"open sesame\0",
            b"Open sesame",
            b"x",
        ] {
            assert!(!secret.is(guess), "{guess:?}");
        }
        assert!(!secret.is(&[0; 2 * CREDENTIAL_BYTES_MAX]));
        assert!(Secret::new(b"").is(b""));
        assert!(!format!("{secret:?}").contains("sesame"));
        let same = secret.clone();
        secret.replace(b"other");
        assert!(same.is(b"other") && !same.is(b"open sesame"));
        secret.replace_by(&Secret::new(b"third"));
        assert!(same.is(b"third"));
    }
}
