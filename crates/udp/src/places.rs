//! Chooses a connection that gives way when there are too many.

use std::collections::HashMap;
use std::net::IpAddr;

/// Returns the index of the connection that gives way: the oldest connection of the host that has the most connections.
/// So a host cannot displace another host that has fewer. `from`: the hosts of the connections, in the order in which
/// the connections were made. `None`: there is no connection.
pub fn place_to_give_up(from: impl Iterator<Item = IpAddr>) -> Option<usize> {
    let from: Vec<IpAddr> = from.map(network).collect();
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for host in &from {
        *counts.entry(*host).or_default() += 1;
    }
    let most = counts.values().max().copied();
    from.iter()
        .position(|host| counts.get(host).copied() == most)
}

/// As [`place_to_give_up`], if the connection gives way to one of this host. `None`: no other host has more connections
/// than this host.
pub fn place_for(newcomer: IpAddr, from: impl Iterator<Item = IpAddr>) -> Option<usize> {
    let from: Vec<IpAddr> = from.map(network).collect();
    let at = place_to_give_up(from.iter().copied())?;
    let of = |host: IpAddr| from.iter().filter(|&&it| it == host).count();
    (of(network(newcomer)) < of(from[at])).then_some(at)
}

/// Returns the part of the address that counts as one host. For an IPv6 address, this leaves out the half that a host
/// can choose freely.
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_one_of_the_host_with_most_goes() {
        let goes =
            |from: &[&str]| place_to_give_up(from.iter().map(|ip| ip.parse().expect("an address")));
        assert_eq!(goes(&[]), None);
        assert_eq!(goes(&["10.0.0.1"]), Some(0));
        assert_eq!(goes(&["10.0.0.1", "10.0.0.2", "10.0.0.2"]), Some(1));
        let mapped = ["10.0.0.1", "10.0.0.2", "::ffff:10.0.0.2"];
        assert_eq!(goes(&mapped), Some(1));
        let one_network = ["fd00:0:0:1::1", "fd00:0:0:2::1", "fd00:0:0:2:ffff::9"];
        assert_eq!(goes(&one_network), Some(1));
    }

    #[test]
    fn a_host_takes_no_place_from_one_with_as_few() {
        let ip = |text: &str| -> IpAddr { text.parse().expect("an address") };
        let from = ["10.0.0.1", "10.0.0.2", "10.0.0.2"];
        let goes = |newcomer| place_for(ip(newcomer), from.iter().map(|it| ip(it)));
        assert_eq!(goes("10.0.0.3"), Some(1));
        assert_eq!(goes("10.0.0.1"), Some(1));
        assert_eq!(goes("10.0.0.2"), None);
        assert_eq!(goes("::ffff:10.0.0.2"), None);
        assert_eq!(place_for(ip("10.0.0.1"), std::iter::empty()), None);
    }
}
