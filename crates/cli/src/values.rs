//! Addresses and sizes as people write them.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::error::ConfigError;

/// Resolves `host:port`.
///
/// # Errors
/// It is not one, or the name is unknown.
pub fn address(flag: &str, text: &str) -> Result<SocketAddr, ConfigError> {
    text.to_socket_addrs()
        .map_err(|error| ConfigError(format!("{flag} {text}: {error}; host:port is needed")))?
        .next()
        .ok_or_else(|| ConfigError(format!("{flag} {text}: the name has no address")))
}

/// A number of bytes: `4096`, `64K`, `64M`, `2G` (powers of 1024).
///
/// # Errors
/// It is not one, or is zero or beyond 64 bits.
pub fn bytes(flag: &str, text: &str) -> Result<u64, ConfigError> {
    let (digits, unit) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1_u64),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| {
            ConfigError(format!(
                "{flag} {text}: a size such as 4096, 64K, 64M or 2G is needed"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes("--x", "4096").unwrap(), 4096);
        assert_eq!(bytes("--x", "64M").unwrap(), 64 << 20);
        assert_eq!(bytes("--x", "2g").unwrap(), 2 << 30);
        for bad in ["", "M", "0", "-1", "1T", "99999999999G", "1.5M"] {
            assert!(bytes("--x", bad).is_err(), "{bad}");
        }
    }
}
