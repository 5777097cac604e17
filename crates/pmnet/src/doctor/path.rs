//! Finds the MTU of the path to another process, and the packet size that follows from it.

use std::net::SocketAddr;

use pmnet_client::path_mtu;
use pmnet_wire::FragmentSize;

use super::{Finding, Level};

/// Returns the finding about the path to a peer.
pub(super) fn finding(peer: SocketAddr) -> Finding {
    match path_mtu(peer) {
        Ok(mtu) => judged(peer, mtu),
        Err(error) => Finding::bad(
            Level::Fail,
            "path",
            format!("to {peer}: {error}"),
            "there is no route: ip route get ADDRESS says what the system knows",
        ),
    }
}

fn judged(peer: SocketAddr, mtu: usize) -> Finding {
    let size = FragmentSize::of_mtu(mtu, peer.ip().to_canonical().is_ipv6());
    let found = format!("to {peer}: MTU {mtu}, {size} bytes of a message in a packet");
    if mtu < FragmentSize::MTU_MIN {
        return Finding::bad(
            Level::Fail,
            "path",
            found,
            format!(
                "pmnet needs an MTU of {}: larger packets are sent as IP fragments, which is slow, and lost where those are dropped",
                FragmentSize::MTU_MIN
            ),
        );
    }
    Finding::ok("path", found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_judged_by_what_it_carries() {
        let peer = |text: &str| text.parse::<SocketAddr>().unwrap();
        let ipv6 = judged(peer("[fd00::2]:51000"), 1420);
        assert_eq!(
            ipv6.found,
            "to [fd00::2]:51000: MTU 1420, 1280 bytes of a message in a packet"
        );
        let ipv4 = judged(peer("10.0.0.2:51000"), 9001);
        assert_eq!(
            ipv4.found,
            "to 10.0.0.2:51000: MTU 9001, 1344 bytes of a message in a packet"
        );
        assert_eq!([ipv6.level, ipv4.level], [Level::Ok; 2]);
        let small = judged(peer("10.0.0.2:51000"), 1279);
        assert_eq!(small.level, Level::Fail);
        assert_eq!(finding(peer("127.0.0.1:51000")).level, Level::Ok);
    }
}
