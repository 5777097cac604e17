//! The address of the store, for pass-through connections.

use std::net::SocketAddr;
use std::sync::Arc;

use pmnet_tls::{ClientTls, TlsError};
use pmnet_wire::{StoreName, percent_decode};

use crate::users::{DEFAULT, Secret};

/// Port of a Redis server if none is given.
const DEFAULT_PORT: u16 = 6379;

/// Address of a Redis server, and its password if it has one.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreAddress {
    /// IP address and port.
    pub address: SocketAddr,
    /// TLS settings; `None`: no TLS.
    pub tls: Option<ClientTls>,
    user: Option<String>,
    password: Option<Secret>,
}

// Written by hand, because a password must not get into a log.
impl std::fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StoreAddress").field(&self.address).finish()
    }
}

/// Why an address is invalid.
#[derive(Debug, thiserror::Error)]
pub enum StoreAddressError {
    /// The text has neither the form `redis://[[user]:password@]host[:port]` nor `host:port`.
    #[error(
        "{0:?} is not the address of a Redis server; expected redis://host:port, rediss://host:port or host:port"
    )]
    Form(String),
    /// A `%` that is not followed by two hexadecimal digits.
    #[error("bad %-escape in user or password")]
    Escape,
    /// The TLS settings cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The name cannot be resolved.
    #[error("cannot resolve {0:?}: {1}")]
    Resolve(String, std::io::Error),
}

impl StoreAddress {
    /// Parses `redis://[[user]:password@]host[:port][/…]`, `rediss://…[?ca=FILE][&cert=FILE&key=FILE]` (TLS)
    /// or `host:port`. A host name is resolved with the system's resolver, which may take seconds. To avoid
    /// that, use a numeric address.
    ///
    /// # Errors
    /// [`StoreAddressError`] if the text is invalid or the name cannot be resolved.
    pub fn parse(text: &str) -> Result<StoreAddress, StoreAddressError> {
        StoreAddress::read(text, |target| {
            let (host, port) = target.rsplit_once(':').unwrap_or((target, ""));
            let port = port.parse().unwrap_or(DEFAULT_PORT);
            // An address with its interface is also accepted without brackets: fe80::1%eth0.
            let host = host.trim_matches(['[', ']']);
            let found = pmnet_udp::addresses((host, port))
                .map_err(|error| StoreAddressError::Resolve(target.to_owned(), error))?;
            found
                .first()
                .copied()
                .ok_or_else(|| StoreAddressError::Form(target.to_owned()))
        })
    }

    /// Returns the host and port in the text of an address, if the text has them.
    #[must_use]
    pub fn place(text: &str) -> Option<(String, u16)> {
        let place = std::cell::Cell::new(None);
        let resolve = |target: &str| {
            let (host, port) = target.rsplit_once(':').unwrap_or((target, ""));
            let host = host.trim_matches(['[', ']']).to_owned();
            place.set(Some((host, port.parse().unwrap_or(DEFAULT_PORT))));
            Err(StoreAddressError::Escape)
        };
        let _not_looked_up = StoreAddress::read(text, resolve);
        place.into_inner()
    }

    /// Returns the address in a store's name, which has no password, because a server does not give one.
    pub(crate) fn of(name: &StoreName) -> StoreAddress {
        StoreAddress {
            address: name.address,
            tls: None,
            user: None,
            password: None,
        }
    }

    fn read(
        text: &str,
        resolve: impl Fn(&str) -> Result<SocketAddr, StoreAddressError>,
    ) -> Result<StoreAddress, StoreAddressError> {
        let (text, query) = text.split_once('?').unwrap_or((text, ""));
        let secure = text.strip_prefix("rediss://");
        let without_scheme = secure
            .or_else(|| text.strip_prefix("redis://"))
            .unwrap_or(text);
        let authority = without_scheme.split('/').next().unwrap_or_default();
        let (credentials, host) = match authority.rsplit_once('@') {
            Some((credentials, host)) => (Some(credentials), host),
            None => (None, authority),
        };
        if host.is_empty() || without_scheme.contains("://") {
            return Err(StoreAddressError::Form(host.to_owned()));
        }
        let has_port = host.rsplit_once(':').is_some_and(|(name, port)| {
            port.parse::<u16>().is_ok() && (!name.contains(':') || name.ends_with(']'))
        });
        let target = if has_port {
            host.to_owned()
        } else {
            format!("{host}:{DEFAULT_PORT}")
        };
        let address = resolve(&target)?;
        let decoded = |part: &str| -> Result<Option<String>, StoreAddressError> {
            let text = percent_decode(part).ok_or(StoreAddressError::Escape)?;
            Ok((!text.is_empty()).then_some(text))
        };
        let (user, password) = match credentials.map(|c| c.split_once(':').unwrap_or(("", c))) {
            Some((user, password)) => (decoded(user)?, decoded(password)?),
            None => (None, None),
        };
        let tls = secure.map(|_| {
            let name = if has_port {
                host.rsplit_once(':').map_or(host, |(name, _)| name)
            } else {
                host
            };
            ClientTls::of_query(name.trim_matches(['[', ']']), query)
        });
        Ok(StoreAddress {
            address,
            tls: tls.transpose()?,
            user,
            password: password.map(|text| Secret::new(text.as_bytes())),
        })
    }

    /// Returns the address of another Redis with the same settings.
    pub(crate) fn at(&self, address: SocketAddr) -> StoreAddress {
        StoreAddress {
            address,
            ..self.clone()
        }
    }

    /// Sets the password with which connections log in. If the password is replaced later, later logins use the new
    /// password.
    pub(crate) fn set_password(&mut self, password: &Secret) {
        self.password = Some(password.clone());
    }

    /// Returns the user as which the front logs in.
    pub(crate) fn user(&self) -> &[u8] {
        let user = self.password.as_ref().and(self.user.as_deref());
        user.map_or(DEFAULT, str::as_bytes)
    }

    /// Returns the arguments of the AUTH command that a connection must send first; `None`: no login is needed.
    pub(crate) fn auth(&self) -> Option<Vec<Arc<[u8]>>> {
        let password = self.password.as_ref()?;
        let words = [Some(&b"AUTH"[..]), self.user.as_deref().map(str::as_bytes)];
        let words = words.into_iter().flatten().map(Arc::from);
        Some(words.chain([password.bytes()]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        for (text, address) in [
            ("redis://127.0.0.1:6380", "127.0.0.1:6380"),
            ("redis://127.0.0.1", "127.0.0.1:6379"),
            ("redis://[::1]:7/0", "[::1]:7"),
            ("127.0.0.1:1", "127.0.0.1:1"),
        ] {
            let read = StoreAddress::parse(text).expect("a number");
            assert_eq!(read.address, address.parse().unwrap(), "{text}");
        }
        let read = StoreAddress::parse("redis://a%40b:p%3a%25@127.0.0.1:1").expect("escapes");
        let words = |words: [&str; 3]| words.map(|word| Arc::from(word.as_bytes())).to_vec();
        assert_eq!(read.auth(), Some(words(["AUTH", "a@b", "p:%"])));
        for (text, host, port) in [
            ("redis://a:b@store.example:7/0", "store.example", 7),
            ("rediss://store.example?ca=x", "store.example", 6379),
            ("[::1]:9", "::1", 9),
        ] {
            assert_eq!(
                StoreAddress::place(text),
                Some((host.to_owned(), port)),
                "{text}"
            );
        }
        let error = StoreAddress::parse("redis://a:secret%@127.0.0.1:1").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        for text in ["redis://", "", "tls://127.0.0.1:1"] {
            assert!(
                matches!(StoreAddress::parse(text), Err(StoreAddressError::Form(_))),
                "{text}"
            );
        }
    }
}
