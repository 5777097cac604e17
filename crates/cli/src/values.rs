//! Parses addresses and sizes, as command lines have them.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::error::ConfigError;

/// Resolves `host:port` or `[fe80::1%eth0]:port`. Returns one address of the host: an IPv4 address, if the host has one.
///
/// # Errors
/// The text is not an address, or the name is unknown.
pub fn address(flag: &str, text: &str) -> Result<SocketAddr, ConfigError> {
    Ok(addresses(flag, text)?[0])
}

/// As [`address`], but returns all addresses of the host, at least one. If another host must have the same family,
/// [`Family::common`](pmnet_udp::Family::common) chooses the family.
///
/// # Errors
/// As [`address`].
pub fn addresses(flag: &str, text: &str) -> Result<Vec<SocketAddr>, ConfigError> {
    let (host, port) = host_and_port(flag, text)?;
    resolve(host, port).map_err(|why| ConfigError(format!("{flag} {text}: {why}")))
}

/// Returns the host and the port in `host:port`. An IPv6 address stands in brackets in the text; the returned host has
/// no brackets.
///
/// # Errors
/// The text does not have this form.
pub fn host_and_port<'a>(flag: &str, text: &'a str) -> Result<(&'a str, u16), ConfigError> {
    let parts = || {
        let (host, port) = text.rsplit_once(':')?;
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let host = bare.unwrap_or(host);
        let is_one = !host.is_empty() && host.contains(':') == bare.is_some();
        is_one.then_some((host, port.parse().ok()?))
    };
    parts().ok_or_else(|| ConfigError(format!("{flag} {text}: host:port is needed")))
}

/// Returns all addresses of a host, at least one, IPv4 addresses first.
///
/// # Errors
/// A sentence: the host has no address, or its name cannot be resolved at present.
pub fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    if let Some(scoped) = scoped(host, port) {
        return scoped.map(|address| vec![address]);
    }
    let found = pmnet_udp::addresses((host, port))
        .map_err(|error| format!("the name is not known ({error})"))?;
    if found.is_empty() {
        return Err("the name has no address".into());
    }
    Ok(found)
}

/// Returns whether the host is a name, not an address. The addresses of a name may change.
#[must_use]
pub fn is_name(host: &str) -> bool {
    host.parse::<std::net::IpAddr>().is_err() && !host.contains('%')
}

/// Returns the address for a host such as `fe80::1%eth0`, which is valid only at that interface. `None`: the host does
/// not have this form.
fn scoped(host: &str, port: u16) -> Option<Result<SocketAddr, String>> {
    let (ip, zone) = host.split_once('%')?;
    let ip: Ipv6Addr = ip.parse().ok()?;
    let number = || {
        // A zone that is not a plain interface name is not looked up, because a path such as `../x` would lead to
        // another folder.
        let is_name = !zone.is_empty() && !zone.contains('/') && !zone.starts_with('.');
        let index = format!("/sys/class/net/{zone}/ifindex");
        let index = is_name.then(|| std::fs::read_to_string(index).ok());
        index.flatten()?.trim().parse::<u32>().ok()
    };
    let Some(scope) = zone.parse::<u32>().ok().or_else(number) else {
        return Some(Err(format!("there is no interface {zone}")));
    };
    // The kernel reports a scope (interface) only for link-local addresses.
    let scope = if ip.is_unicast_link_local() { scope } else { 0 };
    Some(Ok(SocketAddrV6::new(ip, port, 0, scope).into()))
}

/// Parses a number of bytes: `4096`, `64K`, `64M`, `2G` (powers of 1024).
///
/// # Errors
/// The text is not a number, the number is zero, or it does not fit into 64 bits.
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
    fn addresses_names_and_interfaces() {
        let at = |text: &str| address("--x", text).map_err(|error| error.to_string());
        assert_eq!(at("127.0.0.1:5"), Ok(SocketAddr::from(([127, 0, 0, 1], 5))));
        assert_eq!(at("[::1]:5").unwrap().to_string(), "[::1]:5");
        let lo = SocketAddrV6::new("fe80::1".parse().unwrap(), 5, 0, 1);
        assert_eq!(at("[fe80::1%lo]:5"), Ok(lo.into()));
        assert_eq!(at("[fe80::1%1]:5"), Ok(lo.into()));
        // An address that is not link-local does not depend on the interface.
        assert_eq!(
            at("[2001:db8::1%lo]:5").unwrap().to_string(),
            "[2001:db8::1]:5"
        );
        assert!(at("localhost:5").is_ok());
        for bad in [
            "", "x", "x:", "x:70000", ":5", "::1:5", "[::1]", "[x]:5", "[]:5",
        ] {
            assert_eq!(
                at(bad),
                Err(format!("--x {bad}: host:port is needed")),
                "{bad}"
            );
        }
        let none = at("[fe80::1%none0]:5").unwrap_err();
        assert!(none.contains("there is no interface none0"), "{none}");
        let unknown = at("none.invalid:5").unwrap_err();
        assert!(unknown.contains("the name is not known"), "{unknown}");
        assert!(
            is_name("localhost") && is_name("a.b") && !is_name("::1") && !is_name("fe80::1%lo")
        );
    }

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
