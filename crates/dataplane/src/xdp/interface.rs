//! The hardware address of an interface.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

/// Hardware address of the interface that has this address, in the calling thread's network namespace.
///
/// # Errors
/// No interface has it, or that one has no Ethernet address.
pub fn hardware_address(address: Ipv4Addr) -> io::Result<[u8; 6]> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the pointer may be written; on success it is a list that is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = None;
    let mut next = first;
    while !next.is_null() && found.is_none() {
        // SAFETY: an element of the list, which is not freed yet.
        let element = unsafe { &*next };
        next = element.ifa_next;
        let at = element.ifa_addr;
        // SAFETY: null, or an address whose first field is its family.
        if at.is_null() || i32::from(unsafe { (*at).sa_family }) != libc::AF_INET {
            continue;
        }
        // SAFETY: the family tells the type; the system aligns it.
        let here = unsafe { (*at.cast::<libc::sockaddr_in>()).sin_addr.s_addr };
        if here.to_ne_bytes() == address.octets() {
            // SAFETY: every element has a name that ends with a NUL.
            found = Some(unsafe { CStr::from_ptr(element.ifa_name) }.to_owned());
        }
    }
    // SAFETY: the list of the call above, freed once.
    unsafe { libc::freeifaddrs(first) };
    let Some(name) = found else {
        return Err(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            format!("no interface has the address {address}: give it to the bridge"),
        ));
    };
    of_interface(&name)
}

fn of_interface(interface: &CStr) -> io::Result<[u8; 6]> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: all zeros are a valid request: an empty name, and a union of plain numbers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.to_bytes()) {
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
