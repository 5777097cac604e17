//! Where the store is, for pass-through connections.

use std::net::{SocketAddr, ToSocketAddrs};

use pmnet_wire::StoreName;

/// Port of a Redis server when none is given.
const DEFAULT_PORT: u16 = 6379;

/// Address of a Redis server, and its password if it has one.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreAddress {
    /// Where to connect.
    pub address: SocketAddr,
    user: Option<String>,
    password: Option<String>,
}

// Written by hand: a password must not get into a log.
impl std::fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StoreAddress").field(&self.address).finish()
    }
}

/// Why an address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreAddressError {
    /// Not of the form `redis://[[user]:password@]host[:port]` or `host:port`.
    #[error("{0:?} is not the address of a Redis server; expected redis://host:port or host:port")]
    Form(String),
    /// The name has no address.
    #[error("cannot resolve {0:?}: {1}")]
    Resolve(String, std::io::Error),
}

impl StoreAddress {
    /// Reads `redis://[[user]:password@]host[:port][/…]` or `host:port`. A host name is looked up
    /// with the system's resolver, which may take seconds; use a numeric address where that matters.
    ///
    /// # Errors
    /// [`StoreAddressError`].
    pub fn parse(text: &str) -> Result<StoreAddress, StoreAddressError> {
        StoreAddress::read(text, |target| {
            let found = target.to_socket_addrs().map(|mut all| all.next());
            found
                .map_err(|error| StoreAddressError::Resolve(target.to_owned(), error))?
                .ok_or_else(|| StoreAddressError::Form(target.to_owned()))
        })
    }

    /// Where a server says that its store is; without a password, which a server does not tell.
    pub(super) fn of(name: &StoreName) -> StoreAddress {
        StoreAddress {
            address: name.address,
            user: None,
            password: None,
        }
    }

    fn read(
        text: &str,
        resolve: impl Fn(&str) -> Result<SocketAddr, StoreAddressError>,
    ) -> Result<StoreAddress, StoreAddressError> {
        let without_scheme = text.strip_prefix("redis://").unwrap_or(text);
        let authority = without_scheme.split(['/', '?']).next().unwrap_or_default();
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
        let some = |part: &str| (!part.is_empty()).then(|| part.to_owned());
        let (user, password) = match credentials.map(|c| c.split_once(':').unwrap_or(("", c))) {
            Some((user, password)) => (some(user), some(password)),
            None => (None, None),
        };
        Ok(StoreAddress {
            address,
            user,
            password,
        })
    }

    /// The arguments of the AUTH command that a connection needs first, if any.
    pub(crate) fn auth(&self) -> Option<Vec<&str>> {
        let password = self.password.as_deref()?;
        Some(match self.user.as_deref() {
            Some(user) => vec!["AUTH", user, password],
            None => vec!["AUTH", password],
        })
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
        for text in ["redis://", "", "rediss://127.0.0.1:1"] {
            assert!(
                matches!(StoreAddress::parse(text), Err(StoreAddressError::Form(_))),
                "{text}"
            );
        }
    }
}
