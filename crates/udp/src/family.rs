//! Chooses between IPv4 and IPv6 for hosts that have addresses of both.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// The address family of a socket. A socket of one family cannot send to an address of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Returns the family of this address.
    #[must_use]
    pub const fn of(address: &SocketAddr) -> Family {
        match address {
            SocketAddr::V4(_) => Family::V4,
            SocketAddr::V6(_) => Family::V6,
        }
    }

    /// Returns the family of a socket for all these hosts, each given by its addresses: IPv4 if every host has an IPv4
    /// address, otherwise IPv6 if every host has an IPv6 address. `None`: the hosts have no family in common.
    #[must_use]
    pub fn common(hosts: &[impl AsRef<[SocketAddr]>]) -> Option<Family> {
        let fits = |family: &Family| hosts.iter().all(|host| family.first(host).is_some());
        [Family::V4, Family::V6].into_iter().find(fits)
    }

    /// Returns the first address of this family.
    #[must_use]
    pub fn first(self, host: impl AsRef<[SocketAddr]>) -> Option<SocketAddr> {
        let mut addresses = host.as_ref().iter().copied();
        addresses.find(|at| Family::of(at) == self)
    }
}

/// Resolves a host. Returns the IPv4 addresses before the IPv6 addresses, so a caller that needs one address and has no
/// other host takes the first. The system's order is not used, because it depends on the machine: often `localhost` is
/// `::1` first, and then `127.0.0.1`.
///
/// # Errors
/// The system's error: the host is not known, or its name cannot be resolved at present.
pub fn addresses(host: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    let mut found: Vec<SocketAddr> = host.to_socket_addrs()?.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(addresses: &str) -> Vec<SocketAddr> {
        let each = addresses.split_whitespace();
        each.map(|at| at.parse().unwrap()).collect()
    }

    #[test]
    fn hosts_of_both_families_are_ipv4_unless_another_host_has_only_ipv6() {
        let both = "[::1]:5 127.0.0.1:5";
        for (hosts, family) in [
            (vec![both], Some(Family::V4)),
            (vec!["127.0.0.1:5"], Some(Family::V4)),
            (vec!["[::1]:5"], Some(Family::V6)),
            (vec![both, both], Some(Family::V4)),
            (vec![both, "10.0.0.1:6"], Some(Family::V4)),
            (vec!["[fd00::1]:6", both], Some(Family::V6)),
            (vec![both, "[fd00::1]:6", both], Some(Family::V6)),
            (vec!["[fd00::1]:6", both, "10.0.0.1:6"], None),
            (vec!["10.0.0.1:6", "[fd00::1]:6"], None),
            (vec![""], None),
        ] {
            let found: Vec<_> = hosts.iter().map(|addresses| host(addresses)).collect();
            assert_eq!(Family::common(&found), family, "{hosts:?}");
        }
        let [v4, v6] = [Family::V4, Family::V6].map(|family| family.first(host(both)).unwrap());
        assert_eq!([v6, v4], host(both)[..]);
        assert_eq!(Family::V6.first(host("127.0.0.1:5")), None);
    }

    #[test]
    fn ipv4_addresses_come_first_and_keep_their_order() {
        let system = host("[::1]:5 127.0.0.2:5 [fd00::1]:5 127.0.0.1:5");
        let ours = host("127.0.0.2:5 127.0.0.1:5 [::1]:5 [fd00::1]:5");
        assert_eq!(addresses(&system[..]).unwrap(), ours);
    }
}
