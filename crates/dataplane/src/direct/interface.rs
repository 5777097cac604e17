//! What an interface says of itself, in the calling thread's network namespace.
//!
//! May not: change it.

#![allow(unsafe_code)]

use std::io;
use std::mem::zeroed;
use std::net::UdpSocket;
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

/// Longest packet behind its Ethernet header, in bytes.
pub(super) fn mtu(interface: &str) -> io::Result<u64> {
    let request = ask(interface, libc::SIOCGIFMTU, |_| {})?;
    // SAFETY: this request fills in this member.
    let bytes = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Receive queues. Drivers that cannot tell have one.
pub(super) fn receive_queues(interface: &str) -> u32 {
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
    fn the_loopback_interface_is_known_and_others_are_not() {
        assert_eq!(mtu("lo").unwrap(), 65_536);
        assert_eq!(receive_queues("lo"), 1);
        for name in ["", "nothing0", "a name that is far too long"] {
            assert!(mtu(name).is_err(), "{name}");
            assert_eq!(receive_queues(name), 1);
        }
    }
}
