//! The hardware address of an interface.

use std::io;
use std::net::Ipv4Addr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::sys::socket::{LinkAddr, SockaddrStorage};

/// Bytes of an Ethernet address.
const ETHERNET: usize = 6;

/// Returns the hardware address of the interface that has this address, in the calling thread's network namespace.
///
/// # Errors
/// No interface has this address, or the interface has no Ethernet address.
pub fn hardware_address(address: Ipv4Addr) -> io::Result<[u8; ETHERNET]> {
    let all: Vec<InterfaceAddress> = getifaddrs()?.collect();
    let at = |one: &&InterfaceAddress| ip(one) == Some(address);
    let Some(found) = all.iter().find(at) else {
        return Err(unavailable(format!(
            "PM1447 no interface has the address {address}: give it to the bridge"
        )));
    };
    // If an address has a label, its reported name is the label: the interface, a colon, and any text of the operator.
    let label = &found.interface_name;
    let interface = label.split_once(':').map_or(&label[..], |(name, _)| name);
    all.iter()
        .filter(|one| one.interface_name == interface)
        .find_map(ethernet)
        .ok_or_else(|| {
            unavailable(format!(
                "PM1448 the interface {interface}, which has the address {address}, has no Ethernet address"
            ))
        })
}

fn ip(one: &InterfaceAddress) -> Option<Ipv4Addr> {
    let address = one
        .address
        .as_ref()
        .and_then(SockaddrStorage::as_sockaddr_in)?;
    Some(address.ip())
}

fn ethernet(one: &InterfaceAddress) -> Option<[u8; ETHERNET]> {
    let link = one
        .address
        .as_ref()
        .and_then(SockaddrStorage::as_link_addr)?;
    Some(link)
        .filter(|link| link.halen() == ETHERNET)
        .and_then(LinkAddr::addr)
}

fn unavailable(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::AddrNotAvailable, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_to_the_interface_that_has_it() {
        // The Ethernet address of the loopback interface consists of zeros.
        assert_eq!(hardware_address(Ipv4Addr::LOCALHOST).unwrap(), [0; 6]);
        let nobody = hardware_address(Ipv4Addr::new(192, 0, 2, 1)).unwrap_err();
        assert_eq!(nobody.kind(), io::ErrorKind::AddrNotAvailable);
        assert!(nobody.to_string().contains("192.0.2.1"), "{nobody}");
    }
}
