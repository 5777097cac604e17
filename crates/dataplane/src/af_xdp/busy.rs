//! Busy polling: instead of an interrupt, the thread that waits for packets runs the driver's receive loop in its own
//! calls. Another module decides when to poll.

#![allow(unsafe_code)]

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};

use super::error::AfXdpError;

/// Settings of busy polling of a socket (`SO_PREFER_BUSY_POLL`, `SO_BUSY_POLL`, `SO_BUSY_POLL_BUDGET`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// Time in microseconds for which a blocking call polls. Any number except 0 switches polling on. A call that does
    /// not block polls once.
    pub micros: u32,
    /// Maximum number of packets that one poll receives.
    pub budget: u16,
}

/// Switches busy polling on for the socket.
pub(super) fn prefer(socket: &impl AsFd, how: &BusyPoll) -> Result<(), AfXdpError> {
    let options = [
        (libc::SO_PREFER_BUSY_POLL, 1),
        (libc::SO_BUSY_POLL, how.micros),
        (libc::SO_BUSY_POLL_BUDGET, u32::from(how.budget)),
    ];
    for (option, value) in options {
        set(socket, option, value).map_err(refused)?;
    }
    Ok(())
}

/// Returns whether this kernel supports busy polling.
#[must_use]
pub fn is_known() -> bool {
    UdpSocket::bind("127.0.0.1:0").is_ok_and(|any| get(&any, libc::SO_PREFER_BUSY_POLL).is_ok())
}

/// Turns the kernel's error into the reason why busy polling is not possible.
fn refused(error: io::Error) -> AfXdpError {
    if error.raw_os_error() == Some(libc::ENOPROTOOPT) {
        AfXdpError::NoBusyPoll
    } else {
        AfXdpError::SetUp {
            step: "asking for busy polling",
            source: error,
        }
    }
}

fn set(socket: &impl AsFd, option: libc::c_int, value: u32) -> io::Result<()> {
    let value = libc::c_int::try_from(value).map_err(|_| io::ErrorKind::InvalidInput)?;
    let bytes = libc::socklen_t::try_from(size_of_val(&value)).expect("an int is short");
    // SAFETY: the descriptor is open as long as `socket` is borrowed. The kernel reads an int, which lives until the
    // call has ended.
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            bytes,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn get(socket: &impl AsFd, option: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut bytes = libc::socklen_t::try_from(size_of_val(&value)).expect("an int is short");
    // SAFETY: the descriptor is open as long as `socket` is borrowed. The kernel writes at most `bytes` bytes, the
    // length of an int, into an int that lives until the call has ended; any bytes are a valid int.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut bytes,
        )
    };
    if done == 0 {
        Ok(value)
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_it_is_named() {
        let said = refused(io::Error::from_raw_os_error(libc::ENOPROTOOPT)).to_string();
        assert!(
            said.contains("this kernel has no SO_PREFER_BUSY_POLL"),
            "{said}"
        );
        let said = refused(io::Error::from_raw_os_error(libc::EPERM)).to_string();
        assert!(said.contains("asking for busy polling"), "{said}");
        assert!(said.contains("CAP_NET_ADMIN"), "{said}");
    }

    #[test]
    fn an_option_that_no_kernel_has_is_refused_and_a_known_one_is_read_back() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let unknown = get(&socket, 30_000).unwrap_err();
        assert_eq!(unknown.raw_os_error(), Some(libc::ENOPROTOOPT));
        let refused = set(&socket, 30_000, 1).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOPROTOOPT));
        set(&socket, libc::SO_REUSEADDR, 1).unwrap();
        assert_eq!(get(&socket, libc::SO_REUSEADDR).unwrap(), 1);
        assert!(set(&socket, libc::SO_REUSEADDR, u32::MAX).is_err());
    }
}
