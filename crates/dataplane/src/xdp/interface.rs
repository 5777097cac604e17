//! What an interface says of itself.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

/// Hardware address of an interface of the calling thread's network namespace.
///
/// # Errors
/// There is no such interface, or it has no Ethernet address.
pub fn hardware_address(interface: &str) -> io::Result<[u8; 6]> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    let name = interface.as_bytes();
    if name.is_empty() || name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{interface}: not the name of an interface"),
        ));
    }
    // SAFETY: a request of zeros is valid: an empty name, and a union of plain numbers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    // SAFETY: the descriptor is open, and the request outlives the call, which fills it in.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &mut request) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so this variant was filled in.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address.sa_data) {
        *to = from.to_ne_bytes()[0];
    }
    Ok(mac)
}
