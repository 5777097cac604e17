//! Reads properties of an interface in the calling thread's network namespace.
//!
//! This module must not change an interface.

#![allow(unsafe_code)]

use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// `ETHTOOL_GCHANNELS` of the kernel's `ethtool.h`.
const GET_CHANNELS: u32 = 0x3c;
/// `ETHTOOL_GSSET_INFO`, `ETHTOOL_GSTRINGS`, `ETHTOOL_GSTATS`: commands that read the number of a driver's counters,
/// their names, and their values.
const GET_SET_INFO: u32 = 0x37;
const GET_STRINGS: u32 = 0x1b;
const GET_STATS: u32 = 0x1d;
/// `ETH_SS_STATS`: the set of counters.
const STATS: u32 = 1;
/// Maximum number of counters that are read from one driver.
const COUNTERS_MAX: usize = 4096;
/// Length of a counter's name, in words of eight bytes.
const NAME_WORDS: usize = 4;

/// `struct ethtool_channels`: the command, the highest possible numbers of queues, and the current numbers.
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

/// The interface that has a given address.
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

    /// Returns the MTU of the interface. `None`: the address stands for all interfaces, or belongs to no known
    /// interface.
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
            // The interface may have another name now, or another interface may have the address.
            self.name = None;
        }
        usize::try_from(found.ok()?).ok()
    }
}

/// Returns the length of the longest packet after its Ethernet header, in bytes.
pub(crate) fn mtu(interface: &str) -> io::Result<u64> {
    let request = ask(interface, libc::SIOCGIFMTU, |_| {})?;
    // SAFETY: this request fills in this member.
    let bytes = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Returns the index of an interface. An interface that is removed and made again gets another index. `None`: there is
/// no such interface.
#[must_use]
pub fn number(interface: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(interface).ok()
}

/// Returns the present name of the interface with this index. `None`: there is no such interface.
#[must_use]
pub fn name(number: u32) -> Option<String> {
    let name = nix::net::if_::if_indextoname(number).ok()?;
    // For a missing interface, nix returns an empty name and no error.
    name.into_string().ok().filter(|name| !name.is_empty())
}

/// Returns the number of receive queues. If the driver does not report it, the result is 1.
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

/// Returns the number of packets that XDP programs have sent and the interface's driver has refused: the sum of the
/// driver's counters of such packets. `None`: the driver has no such counter.
#[must_use]
pub fn refused_by_driver(interface: &str) -> Option<u64> {
    // The buffer has space for many counters, because a driver that gets more queues meanwhile also has more counters.
    let mut words = vec![0_u64; 2 + 2 * COUNTERS_MAX * NAME_WORDS];
    let mut call = |first: [u32; 4]| -> Option<Vec<u64>> {
        words.fill(0);
        let pair = |low: u32, high: u32| {
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&low.to_ne_bytes());
            bytes[4..].copy_from_slice(&high.to_ne_bytes());
            u64::from_ne_bytes(bytes)
        };
        words[0] = pair(first[0], first[1]);
        words[1] = pair(first[2], first[3]);
        ask(interface, libc::SIOCETHTOOL, |request| {
            request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        })
        .ok()?;
        Some(words.clone())
    };
    // The words are: command, reserved, mask of sets (64 bits), and one number for each set.
    let info = call([GET_SET_INFO, 0, 1 << STATS, 0])?;
    let count = u32::from_ne_bytes(info[2].to_ne_bytes()[..4].try_into().ok()?);
    let count = usize::try_from(count)
        .ok()
        .filter(|count| (1..=COUNTERS_MAX).contains(count))?;
    // The words are: command, set, number of names, and then the names of 32 bytes each.
    let names: Vec<u8> = call([GET_STRINGS, STATS, u32::try_from(count).ok()?, 0])?
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .skip(12)
        .collect();
    // The words are: command, number of values, and then the values.
    let values = call([GET_STATS, u32::try_from(count).ok()?, 0, 0])?;
    let named = names.chunks(8 * NAME_WORDS).zip(&values[1..]).take(count);
    let refused = named
        .filter(|(name, _)| counts_refused(name))
        .map(|(_, value)| *value);
    refused.reduce(u64::saturating_add)
}

/// Returns whether a counter with this name counts packets that a program has sent and the driver has refused. Each
/// driver has its own names for such counters.
fn counts_refused(name: &[u8]) -> bool {
    let name = String::from_utf8_lossy(name);
    let name = name.trim_end_matches('\0');
    let sends = name.contains("tx") || name.contains("xmit");
    let refused = ["err", "drop", "full"]
        .iter()
        .any(|word| name.contains(word));
    name.contains("xdp") && sends && refused
}

fn ask(
    interface: &str,
    what: libc::Ioctl,
    fill: impl FnOnce(&mut libc::ifreq),
) -> io::Result<libc::ifreq> {
    // SAFETY: the structure consists of numbers and addresses, for which zeros are valid.
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
    // SAFETY: the request is a whole structure. The structure to which the request points is at least as long as the
    // data that this command writes. Request and structure live until the call has ended.
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
    fn counters_of_what_a_driver_did_not_take_are_known_by_their_names() {
        for name in [
            &b"rx_queue_0_xdp_tx_errors\0\0"[..],
            b"tx_queue_3_xdp_xmit_errors",
            b"rx_queue_0_xdp_tx_drops",
            b"rx_xdp_tx_full",
            b"tx_xdp_err",
        ] {
            assert!(counts_refused(name));
        }
        for name in [
            &b"rx_queue_0_xdp_drops"[..],
            b"rx_queue_0_xdp_tx",
            b"tx_errors",
            b"",
        ] {
            assert!(!counts_refused(name));
        }
        assert_eq!(number("lo").and_then(name).as_deref(), Some("lo"));
        assert_eq!(name(u32::MAX), None);
        assert_eq!(refused_by_driver("lo"), None);
        assert_eq!(refused_by_driver("nothing0"), None);
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
