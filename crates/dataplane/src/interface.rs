//! What an interface says of itself, in the calling thread's network namespace.
//!
//! May not: change it.

#![allow(unsafe_code)]

use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// `ETHTOOL_GCHANNELS` of the kernel's `ethtool.h`.
const GET_CHANNELS: u32 = 0x3c;

/// `struct ethtool_channels`: what was asked, what there may be, what there is.
#[derive(Default)]
#[repr(C)]
struct Channels {
    command: u32,
    max_receive: u32,
    max_send: u32,
    max_other: u32,
    max_combined: u32,
    receive: u32,
    send: u32,
    other: u32,
    combined: u32,
}

/// The interface that has an address.
#[derive(Debug)]
pub(crate) struct Interface {
    address: IpAddr,
    name: Option<String>,
}

impl Interface {
    pub(crate) const fn of(address: IpAddr) -> Interface {
        Interface {
            address,
            name: None,
        }
    }

    /// What it carries. `None`: the address is that of every interface, or of none that is known.
    pub(crate) fn mtu(&mut self) -> Option<usize> {
        if self.address.is_unspecified() {
            return None;
        }
        if self.name.is_none() {
            let all = nix::ifaddrs::getifaddrs().ok()?;
            let has = |one: &nix::ifaddrs::InterfaceAddress| {
                let address = one.address.as_ref();
                let ipv4 = address.and_then(|address| Some(address.as_sockaddr_in()?.ip().into()));
                let ipv6 = address.and_then(|address| Some(address.as_sockaddr_in6()?.ip().into()));
                ipv4.or(ipv6) == Some(self.address)
            };
            self.name = all.into_iter().find(has).map(|one| one.interface_name);
        }
        let found = mtu(self.name.as_ref()?);
        if found.is_err() {
            // It has another name now, or another interface has the address.
            self.name = None;
        }
        usize::try_from(found.ok()?).ok()
    }
}

/// Longest packet behind its Ethernet header, in bytes.
pub(crate) fn mtu(interface: &str) -> io::Result<u64> {
    let request = ask(interface, libc::SIOCGIFMTU, |_| {})?;
    // SAFETY: this request fills in this member.
    let bytes = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Receive queues. Drivers that cannot tell have one.
pub(crate) fn receive_queues(interface: &str) -> u32 {
    let mut channels = Channels {
        command: GET_CHANNELS,
        ..Channels::default()
    };
    let told = ask(interface, libc::SIOCETHTOOL, |request| {
        request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    });
    match told {
        Ok(_) => (channels.receive + channels.combined).max(1),
        Err(_) => 1,
    }
}

fn ask(
    interface: &str,
    what: libc::Ioctl,
    fill: impl FnOnce(&mut libc::ifreq),
) -> io::Result<libc::ifreq> {
    // SAFETY: of this structure of numbers and addresses all zeros are valid.
    let mut request = unsafe { zeroed::<libc::ifreq>() };
    let name = interface.as_bytes();
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name) {
        *place = libc::c_char::from_ne_bytes([*byte]);
    }
    fill(&mut request);
    let any = UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: the request is a whole structure that lives until the call has ended, and so does what it points to: a
    // structure of the length that this command fills in.
    let done = unsafe { libc::ioctl(any.as_raw_fd(), what, &raw mut request) };
    if done < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_to_its_interface() {
        for (address, mtu) in [
            ("127.0.0.1", Some(65_536)),
            ("0.0.0.0", None),
            ("192.0.2.7", None),
        ] {
            let mut interface = Interface::of(address.parse().unwrap());
            assert_eq!([interface.mtu(), interface.mtu()], [mtu; 2], "{address}");
        }
    }

    #[test]
    fn the_loopback_interface_is_known_and_others_are_not() {
        assert_eq!(mtu("lo").unwrap(), 65_536);
        assert_eq!(receive_queues("lo"), 1);
        for name in ["", "nothing0", "a name that is far too long"] {
            assert!(mtu(name).is_err(), "{name}");
            assert_eq!(receive_queues(name), 1);
        }
    }
}
