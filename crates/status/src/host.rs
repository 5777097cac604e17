//! Names under which a client asked for the port. A web page may have a name that its owner lets resolve to a loopback
//! address (DNS rebinding). Then a browser lets the page read the port, but the request still names the page's host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::connection::Answer;

const NOT_LOCAL: &str = "this status port has a loopback address: it answers only requests to localhost or to a loopback \
address, so that no web page can read it under another name. Use http://localhost:PORT or http://127.0.0.1:PORT (a proxy: set \
the header Host to localhost). For another name give --status an address that is not loopback, with TLS: \
https://HOST:PORT?cert=FILE&key=FILE&ca=FILE\n";

/// Returns the answer to a request that names a host other than this machine.
pub fn refusal() -> Answer {
    Answer::text("403 Forbidden", NOT_LOCAL)
}

/// Returns whether a request with this target and these values of the header `Host` names no host, `localhost`, or a
/// loopback address, each with any port. If the target also names the host, that host must be local too.
pub fn is_local<'a>(target: &str, mut hosts: impl Iterator<Item = &'a [u8]>) -> bool {
    authority(target).is_none_or(names_this_machine)
        && hosts.all(|host| std::str::from_utf8(host).is_ok_and(names_this_machine))
}

/// Returns the host in the target of a request, if the target is a whole URL.
fn authority(target: &str) -> Option<&str> {
    let (scheme, rest) = target.split_once("://")?;
    let names_host = !scheme.contains(['/', '?', '#']);
    names_host.then(|| rest.split(['/', '?', '#']).next().unwrap_or_default())
}

fn names_this_machine(authority: &str) -> bool {
    let authority = authority.trim();
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    if let Some(host) = host.strip_prefix('[') {
        let address = host.strip_suffix(']').map(str::parse::<Ipv6Addr>);
        return matches!(address, Some(Ok(address)) if is_loopback(address.into()));
    }
    let address = || host.parse::<Ipv4Addr>();
    // A client whose URL has no host sends an empty value.
    authority.is_empty()
        || host.eq_ignore_ascii_case("localhost")
        || address().is_ok_and(|it| is_loopback(it.into()))
}

/// Returns whether this is a loopback address, also of IPv4 in the form of IPv6.
pub fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_local() {
        for host in [
            "",
            "localhost",
            "LocalHost:9464",
            "localhost:",
            "127.0.0.1",
            "127.9.8.7:1",
            "[::1]",
            "[::1]:9464",
            "[::ffff:127.0.0.1]:9464",
        ] {
            assert!(is_local("/", [host.as_bytes()].into_iter()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9464",
            "localhost.evil.example",
            "127.0.0.1.evil.example:9464",
            "evil.example:localhost",
            "evil.example@localhost",
            "localhost:80:80",
            "10.0.0.5:9464",
            "[::2]:9464",
            "[::1",
            "::1",
            ":9464",
            "0.0.0.0",
            "2130706433",
        ] {
            assert!(!is_local("/", [host.as_bytes()].into_iter()), "{host}");
        }
        let (own, other): (&[u8], &[u8]) = (b"localhost", b"evil.example");
        for hosts in [[own, other], [other, own], [own, b"\xff"]] {
            assert!(!is_local("/", hosts.into_iter()), "{hosts:?}");
        }
    }

    #[test]
    fn a_target_that_names_a_host_is_checked_too() {
        let none = std::iter::empty;
        for target in [
            "/metrics",
            "*",
            "http://localhost:1/",
            "/a?b=http://c.example/",
        ] {
            assert!(is_local(target, none()), "{target}");
        }
        for target in [
            "http://evil.example/metrics",
            "http://evil.example",
            "http://10.0.0.5:9464/",
        ] {
            assert!(!is_local(target, none()), "{target}");
        }
    }
}
