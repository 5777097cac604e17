//! Who may connect, and passwords.

use std::sync::Arc;

use subtle::ConstantTimeEq;

use super::CREDENTIAL_BYTES_MAX;

/// Who may use the front.
#[derive(Clone, Debug, Default)]
pub enum Access {
    /// Redis's users, with their rights there. Who has not logged in is Redis's user `default`, if that needs no password; but
    /// not from another machine.
    #[default]
    Redis,
    /// All who know this password, with all rights of the pmnet server. Redis's users do not count.
    Password(Secret),
    /// Every client, with all rights of the pmnet server.
    Anyone,
}

/// A password. Its text is never shown.
#[derive(Clone)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// Keeps these bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Secret {
        Secret(bytes.into())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether `guess` is it. How long this takes says nothing about it, nor about its length.
    pub(crate) fn is(&self, guess: &[u8]) -> bool {
        let padded = |bytes: &[u8]| {
            let mut all = [0_u8; CREDENTIAL_BYTES_MAX];
            let length = bytes.len().min(CREDENTIAL_BYTES_MAX);
            all[..length].copy_from_slice(&bytes[..length]);
            all
        };
        let same_length = self.0.len().ct_eq(&guess.len());
        (padded(&self.0).ct_eq(&padded(guess)) & same_length).into()
    }
}

// Written by hand: a password must not get into a log.
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
    }
}
