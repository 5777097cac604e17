//! The access to the front, and the check of a password.

use pmnet_tls::Secret;
use subtle::ConstantTimeEq;

use super::CREDENTIAL_BYTES_MAX;

/// The clients that may use the front, and their rights.
#[derive(Clone, Debug, Default)]
pub enum Access {
    /// Redis's users, with their rights in Redis. A client that has not logged in is Redis's user `default`, if that
    /// user needs no password. A user without a password can be used only from the front's own machine.
    #[default]
    Redis,
    /// All clients that log in with this password, with all rights of the pmnet server. Redis's users have no meaning
    /// at the front.
    Password(Secret),
    /// All clients, without a password, with all rights of the pmnet server.
    Anyone,
}

/// Whether `guess` is the password. The duration of the comparison reveals nothing about the password or its length.
pub(crate) fn is_password(secret: &Secret, guess: &[u8]) -> bool {
    let padded = |bytes: &[u8]| {
        let mut all = [0_u8; CREDENTIAL_BYTES_MAX];
        let length = bytes.len().min(CREDENTIAL_BYTES_MAX);
        all[..length].copy_from_slice(&bytes[..length]);
        all
    };
    let own = secret.bytes();
    let same_length = own.len().ct_eq(&guess.len());
    (padded(&own).ct_eq(&padded(guess)) & same_length).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_password_is_it() {
        let secret = Secret::new(b"open sesame");
        assert!(is_password(&secret, b"open sesame"));
        for guess in [
            &b""[..],
            b"open sesam",
            b"open sesame\0",
            b"Open sesame",
            b"x",
        ] {
            assert!(!is_password(&secret, guess), "{guess:?}");
        }
        assert!(!is_password(&secret, &[0; 2 * CREDENTIAL_BYTES_MAX]));
        assert!(is_password(&Secret::new(b""), b""));
        secret.replace(b"other");
        assert!(is_password(&secret, b"other") && !is_password(&secret, b"open sesame"));
    }
}
