//! Receives bursts from a UDP socket, with the remaining hops (time to live, or hop limit) of each datagram. A device
//! needs the remaining hops of datagrams that it passes on (`docs/spec/protocol.md` §4).
//!
//! This module must not send, or interpret a datagram.

#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;

use libc::{c_int, c_void};
use pmnet_proto::Peer;

/// Maximum number of messages in one system call. A message may have several datagrams that the kernel has merged
/// (GRO).
const MESSAGES: usize = 32;
/// Bytes of the buffer for one message. The kernel does not merge more bytes.
const SLOT_BYTES: usize = 65_536;
/// Words of the buffer for the control messages of one message. The requested control messages need less.
const CONTROL_WORDS: usize = 64;

/// Buffers into which the kernel writes the sender and the control messages of one message.
struct Place {
    name: libc::sockaddr_storage,
    control: [u64; CONTROL_WORDS],
}

/// Receives bursts from one socket.
pub(crate) struct Bursts {
    slots: Vec<u8>,
    places: Vec<Place>,
    /// Senders of the last burst, each with the address of this computer to which it sent. Equal pairs that follow each
    /// other are listed once.
    heard: Vec<(Peer, IpAddr)>,
}

/// The contents of a message's control messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    /// The address of this computer to which the message was sent, if the socket reports this address.
    to: Option<IpAddr>,
    /// Remaining hops; 0: not reported.
    hops: u8,
    /// Length of each merged datagram. The last datagram may be shorter.
    stride: usize,
}

impl Bursts {
    /// Asks the kernel to report the remaining hops of every datagram on this socket.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn new(socket: &UdpSocket) -> io::Result<Bursts> {
        let ipv4 = set(socket, libc::IPPROTO_IP, libc::IP_RECVTTL);
        if socket.local_addr()?.is_ipv6() {
            // A socket for both families also reports the hops of IPv4 datagrams, unless the system refuses this
            // option.
            set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT)?;
        } else {
            ipv4?;
        }
        // SAFETY: a `Place` consists of integers and arrays of integers, for which zeros are valid.
        let place = || unsafe { zeroed::<Place>() };
        Ok(Bursts {
            slots: vec![0; SLOT_BYTES * MESSAGES],
            places: (0..MESSAGES).map(|_| place()).collect(),
            heard: Vec::with_capacity(MESSAGES),
        })
    }

    /// Returns the senders of the last burst, each with the address of this computer to which it sent, as far as the
    /// socket reports this address.
    pub(crate) fn heard(&self) -> &[(Peer, IpAddr)] {
        &self.heard
    }

    /// Receives one burst without waiting, passes each datagram to `each`, and returns their number.
    ///
    /// # Errors
    /// The system's error; `WouldBlock` if there is nothing.
    pub(crate) fn receive(
        &mut self,
        socket: &UdpSocket,
        mut deliver: impl FnMut(Peer, u8, &[u8]),
    ) -> io::Result<usize> {
        self.heard.clear();
        let mut vectors = [MaybeUninit::<libc::iovec>::uninit(); MESSAGES];
        // SAFETY: the structure consists of pointers and numbers, for which zeros are valid.
        let mut messages = unsafe { zeroed::<[libc::mmsghdr; MESSAGES]>() };
        let slots = self.slots.chunks_exact_mut(SLOT_BYTES);
        for (((slot, place), vector), message) in slots
            .zip(&mut self.places)
            .zip(&mut vectors)
            .zip(&mut messages)
        {
            let header = &mut message.msg_hdr;
            header.msg_name = (&raw mut place.name).cast::<c_void>();
            header.msg_namelen = length(size_of::<libc::sockaddr_storage>());
            header.msg_iov = vector.write(libc::iovec {
                iov_base: slot.as_mut_ptr().cast::<c_void>(),
                iov_len: slot.len(),
            });
            header.msg_iovlen = 1;
            header.msg_control = place.control.as_mut_ptr().cast::<c_void>();
            header.msg_controllen = size_of_val(&place.control);
        }
        // SAFETY: every header points to a name, a vector, a slot and a control buffer that live until the end of this
        // function, with their true lengths. Nothing else uses the buffers during the call.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                messages.as_mut_ptr(),
                u32::try_from(MESSAGES).expect("a small number"),
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        let mut datagrams = 0;
        let slots = self.slots.chunks_exact(SLOT_BYTES);
        for ((slot, place), message) in slots.zip(&self.places).zip(&messages[..received]) {
            let bytes = &slot[..usize::try_from(message.msg_len)
                .unwrap_or(0)
                .min(slot.len())];
            let Some(from) = peer(&place.name) else {
                continue;
            };
            let told = told(&message.msg_hdr, bytes.len());
            if let Some(to) = told.to
                && self.heard.last() != Some(&(from, to))
            {
                self.heard.push((from, to));
            }
            for datagram in pieces(bytes, told.stride) {
                datagrams += 1;
                deliver(from, told.hops, datagram);
            }
        }
        Ok(datagrams)
    }
}

/// Returns the datagrams of a message. A message without bytes is one empty datagram.
fn pieces(bytes: &[u8], stride: usize) -> impl Iterator<Item = &[u8]> {
    let empty = bytes.is_empty().then_some(bytes);
    empty.into_iter().chain(bytes.chunks(stride.max(1)))
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a structure of some hundred bytes")
}

fn set(socket: &UdpSocket, level: c_int, option: c_int) -> io::Result<()> {
    let on: c_int = 1;
    // SAFETY: the value is an integer of the stated length, and is only read.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const on).cast::<c_void>(),
            length(size_of::<c_int>()),
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Returns the sender; `None`: an address of another family, which a UDP socket never gives.
fn peer(name: &libc::sockaddr_storage) -> Option<Peer> {
    match c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family determines the type; the storage is large enough and aligned for every type.
            let name = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in>() };
            let address = Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::from((address, u16::from_be(name.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: the same conditions hold as for the previous pointer.
            let name = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in6>() };
            let address = Ipv6Addr::from(name.sin6_addr.s6_addr);
            let port = u16::from_be(name.sin6_port);
            let (flow, scope) = (name.sin6_flowinfo, name.sin6_scope_id);
            Some(SocketAddrV6::new(address, port, flow, scope).into())
        }
        _ => None,
    }
}

fn told(header: &libc::msghdr, len: usize) -> Told {
    let mut told = Told {
        to: None,
        hops: 0,
        stride: len,
    };
    // SAFETY: the kernel has filled in the control buffer of this header and its length, and both still live. The macro
    // stays inside that length, and returns null at the end.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !at.is_null() {
        // SAFETY: the pointer is not null, so it points into the buffer, which is aligned for this type.
        let (level, kind) = unsafe { ((*at).cmsg_level, (*at).cmsg_type) };
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TTL)
            | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)
            | (libc::SOL_UDP, libc::UDP_GRO) => {
                // SAFETY: each of these three control messages carries an integer, which may be unaligned.
                let value = unsafe { libc::CMSG_DATA(at).cast::<c_int>().read_unaligned() };
                if level == libc::SOL_UDP {
                    told.stride = usize::try_from(value).unwrap_or(len);
                } else {
                    told.hops = u8::try_from(value).unwrap_or(0);
                }
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // SAFETY: this control message carries such a structure, which may be unaligned.
                let to = unsafe {
                    libc::CMSG_DATA(at)
                        .cast::<libc::in_pktinfo>()
                        .read_unaligned()
                };
                told.to = Some(Ipv4Addr::from(to.ipi_addr.s_addr.to_ne_bytes()).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                // SAFETY: this control message carries such a structure, which may be unaligned.
                let to = unsafe {
                    libc::CMSG_DATA(at)
                        .cast::<libc::in6_pktinfo>()
                        .read_unaligned()
                };
                told.to = Some(Ipv6Addr::from(to.ipi6_addr.s6_addr).into());
            }
            _ => {}
        }
        // SAFETY: the conditions of `CMSG_FIRSTHDR` still hold, and `at` points to a control message of this buffer.
        at = unsafe { libc::CMSG_NXTHDR(header, at) };
    }
    told
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use pmnet_proto::Outbox;
    use pmnet_udp::Socket;

    use super::*;

    /// Receives until there are `count` datagrams.
    fn received(bursts: &mut Bursts, socket: &UdpSocket, count: usize) -> Vec<(Peer, u8, Vec<u8>)> {
        let mut all = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(5);
        while all.len() < count {
            assert!(Instant::now() < deadline, "{} of {count}", all.len());
            let more = bursts.receive(socket, |from, hops, bytes| {
                all.push((from, hops, bytes.to_vec()));
            });
            if let Err(error) = more {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            }
        }
        all
    }

    #[test]
    fn every_datagram_comes_whole_with_its_sender_and_its_hops() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let address: SocketAddr = address.parse().unwrap();
            let receiver = Socket::bind(address, false).unwrap();
            let to = receiver.local_address().unwrap();
            let mut bursts = Bursts::new(receiver.io()).unwrap();
            let mut sender = Socket::bind(address, false).unwrap();
            let from = sender.local_address().unwrap();
            let mut out = Outbox::new();
            let mut expected = Vec::new();
            // The datagrams include sequences of one size, which the kernel may merge. Between the sequences are
            // datagrams of other sizes, and empty datagrams. Some datagrams have another hop limit.
            for number in 0..120_u8 {
                let size = [300, 300, 300, 200, 0, 1_400][usize::from(number) % 6];
                let bytes = vec![number; size];
                let passed = size == 0 || number % 7 == 3;
                let hops = if passed { number + 1 } else { 64 };
                if passed {
                    out.pass(to, &bytes, hops);
                } else {
                    out.send_raw(to, &bytes);
                }
                expected.push((from, hops, bytes));
            }
            sender.send(&out);
            assert_eq!(sender.counters(), pmnet_udp::SocketCounters::default());
            let all = received(&mut bursts, receiver.io(), expected.len());
            assert_eq!(all, expected);
        }
    }

    #[test]
    fn a_socket_of_both_families_knows_the_hops_of_both() {
        let receiver = Socket::bind("[::]:0".parse().unwrap(), false).unwrap();
        let port = receiver.local_address().unwrap().port();
        let mut bursts = Bursts::new(receiver.io()).unwrap();
        for (address, bind) in [("127.0.0.1", "127.0.0.1:0"), ("::1", "[::1]:0")] {
            let mut sender = Socket::bind(bind.parse().unwrap(), false).unwrap();
            let mut out = Outbox::new();
            out.pass(SocketAddr::new(address.parse().unwrap(), port), b"x", 9);
            sender.send(&out);
            let all = received(&mut bursts, receiver.io(), 1);
            assert_eq!((all[0].1, all[0].2.as_slice()), (9, b"x".as_slice()));
        }
    }
}
