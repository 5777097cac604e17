//! A non-blocking UDP socket that sends and receives bursts.

use crate::known_as::KnownAs;
use crate::owner::owner_of_port;
use crate::wait::Stop;
use nix::sys::socket::{setsockopt, sockopt::Ipv6DontFrag};
use pmnet_proto::{FragmentSize, Outbox, PORT_FIRST, PORT_LAST, Peer, Place};
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use socket2::{Domain, Protocol, Type};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Size in bytes that is requested from the kernel for the receive buffer and for the send buffer; the kernel may grant
/// less.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// Size of one receive slot in bytes: the largest burst into which the kernel merges datagrams.
const SLOT_BYTES: usize = 65_536;
/// Largest burst that is sent with one call, in bytes (before segmentation it is one UDP datagram, whose length is
/// limited).
const BURST_BYTES_MAX: usize = 60_000;

/// The value that stands for the usual number of hops in the kernel's interface: -1.
const HOPS_USUAL: u32 = u32::MAX;

/// Longest wait for a port that is in use. (The socket of another program may have it only for a moment.)
const PORT_WAIT: Duration = Duration::from_secs(10);
/// Time between two tries of [`Socket::bind_patiently`].
const PORT_LOOK: Duration = Duration::from_millis(200);
/// Maximum number of tries to get another port if the kernel has chosen a port that devices use.
const DRAWS: usize = 16;

/// Numbers of datagrams that a socket could not send or receive normally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketCounters {
    /// Datagrams for which the kernel had no space. The protocol sends them again.
    pub send_dropped: u64,
    /// Errors that were reported for earlier datagrams (mostly because the next hop was unreachable).
    pub send_errors: u64,
    /// Datagrams from port 0, which cannot be answered.
    pub from_nowhere: u64,
    /// Datagrams that were too long for their path, and were sent as IP fragments.
    pub fragmented: u64,
}

impl SocketCounters {
    /// Returns the sums of these counters and those of another socket.
    #[must_use]
    pub const fn with(self, other: SocketCounters) -> SocketCounters {
        SocketCounters {
            send_dropped: self.send_dropped + other.send_dropped,
            send_errors: self.send_errors + other.send_errors,
            from_nowhere: self.from_nowhere + other.from_nowhere,
            fragmented: self.fragmented + other.fragmented,
        }
    }
}

/// A non-blocking UDP socket.
#[derive(Debug)]
pub struct Socket {
    io: UdpSocket,
    state: UdpSocketState,
    slots: Vec<u8>,
    metas: Vec<RecvMeta>,
    counters: SocketCounters,
    speaks_for: Option<SpeaksFor>,
    /// For each of these peers, the longest datagram that its path carries, if that is less than the maximum. The next
    /// field is the smallest of these lengths.
    limits: Vec<(Peer, usize)>,
    limit: usize,
    /// Addresses for answers, if the socket is bound to all addresses of this machine.
    known_as: Option<KnownAs>,
    /// Whether the last receive took all waiting datagrams.
    drained: bool,
}

/// The source addresses of answers: which receivers see the real address, and the address that all others see.
#[derive(Clone, Copy, Debug)]
struct SpeaksFor {
    address: IpAddr,
    except: Peer,
    before: Option<Peer>,
    is_own: fn(&[u8]) -> bool,
}

impl Socket {
    /// Binds a socket to `address`. Port 0 stands for a free port that is not a port of devices. With `shared`, several
    /// sockets may bind to the same port, and the kernel distributes the flows among them.
    ///
    /// # Errors
    /// The error of the system, with the address in the text.
    pub fn bind(address: Peer, shared: bool) -> io::Result<Socket> {
        let explain = |error: io::Error| explained(address, &error);
        let mut socket = bound(address, shared).map_err(explain)?;
        for _ in 0..DRAWS {
            let drawn = socket.local_addr()?.as_socket().map_or(0, |own| own.port());
            if address.port() != 0 || !(PORT_FIRST..=PORT_LAST).contains(&drawn) {
                break;
            }
            // This socket stays open until the next one is bound, so that the kernel chooses another port.
            socket = bound(address, shared).map_err(explain)?;
        }
        socket.set_nonblocking(true).map_err(explain)?;
        let io: UdpSocket = socket.into();
        let state = UdpSocketState::new(UdpSockRef::from(&io)).map_err(explain)?;
        Ok(Socket {
            io,
            state,
            slots: vec![0; SLOT_BYTES * BATCH_SIZE],
            metas: vec![RecvMeta::default(); BATCH_SIZE],
            counters: SocketCounters::default(),
            speaks_for: None,
            limits: Vec::new(),
            limit: usize::MAX,
            known_as: address.ip().is_unspecified().then(KnownAs::default),
            drained: false,
        })
    }

    /// Binds the socket of a device or a server. If another process has the port, this function logs that and waits for
    /// some seconds, because the kernel may have given a device's port to a program for a short time.
    ///
    /// # Errors
    /// The system's error, with the address in the text; [`io::ErrorKind::Interrupted`] if `stop` was triggered during
    /// the wait.
    pub fn bind_patiently(address: Peer, stop: &Stop) -> io::Result<Socket> {
        let deadline = Instant::now() + PORT_WAIT;
        let mut said = false;
        loop {
            match Socket::bind(address, false) {
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline =>
                {
                    if !std::mem::replace(&mut said, true) {
                        tracing::warn!("{error}. It is waited for {} s", PORT_WAIT.as_secs());
                    }
                    if stop.within(PORT_LOOK)? {
                        return Err(io::Error::new(
                            io::ErrorKind::Interrupted,
                            format!("asked to stop while UDP {address} was not free"),
                        ));
                    }
                }
                bound => return bound,
            }
        }
    }

    /// Notes that a packet from this peer came to this address of this machine. If the socket is bound to all
    /// addresses, answers to the peer have this address as their source. The call is needed only for packets that did
    /// not come through [`Socket::receive`].
    pub fn heard(&mut self, from: Peer, at: IpAddr) {
        if let Some(known_as) = &mut self.known_as {
            known_as.heard(from, at);
        }
    }

    /// Returns whether [`Socket::heard`] has an effect.
    #[must_use]
    pub const fn is_everywhere(&self) -> bool {
        self.known_as.is_some()
    }

    /// Sends packets with `address` as their source, except packets to `except`, and packets for which `is_own` returns
    /// true. So a device in a switch sends to clients from the server's address. IPv4 only.
    ///
    /// # Errors
    /// The system refuses, because the process has no privilege to administer the network.
    pub fn speak_for(
        &mut self,
        address: IpAddr,
        except: Peer,
        is_own: fn(&[u8]) -> bool,
    ) -> io::Result<()> {
        socket2::SockRef::from(&self.io)
            .set_ip_transparent_v4(true)
            .map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!(
                        "PM6013 cannot speak for {address}: {error} (it needs root, or CAP_NET_ADMIN)"
                    ),
                )
            })?;
        self.speaks_for = Some(SpeaksFor {
            address,
            except,
            before: None,
            is_own,
        });
        Ok(())
    }

    /// Sends to this peer from the socket's own address, even after [`speak_for`](Socket::speak_for).
    pub const fn speak_as_itself_to(&mut self, peer: Option<Peer>) {
        if let Some(other) = &mut self.speaks_for {
            other.before = peer;
        }
    }

    /// Sets how much payload of ours a packet can carry on the paths to these peers. Longer packets to these peers are
    /// sent as IP fragments.
    pub fn set_limits(&mut self, paths: impl IntoIterator<Item = (Peer, FragmentSize)>) {
        self.limits.clear();
        let small = paths
            .into_iter()
            .filter(|(_, size)| *size < FragmentSize::MAX);
        self.limits
            .extend(small.map(|(peer, size)| (peer, size.datagram_bytes())));
        let least = self.limits.iter().map(|(_, bytes)| *bytes).min();
        self.limit = least.unwrap_or(usize::MAX);
    }

    /// Returns whether a datagram is too long for its path.
    fn is_too_long(&self, to: Peer, bytes: usize) -> bool {
        bytes > self.limit
            && self
                .limits
                .iter()
                .any(|(peer, limit)| *peer == to && bytes > *limit)
    }

    /// Returns the address that the socket is bound to.
    ///
    /// # Errors
    /// The error of the system.
    pub fn local_address(&self) -> io::Result<Peer> {
        self.io.local_addr()
    }

    /// Returns the socket itself, for registering it with a poll.
    #[must_use]
    pub const fn io(&self) -> &UdpSocket {
        &self.io
    }

    /// Returns the size of the receive buffer that the kernel granted, in bytes.
    #[must_use]
    pub fn receive_buffer_bytes(&self) -> usize {
        socket2::SockRef::from(&self.io)
            .recv_buffer_size()
            .unwrap_or(0)
    }

    /// Returns the socket's counters since its start.
    #[must_use]
    pub const fn counters(&self) -> SocketCounters {
        self.counters
    }

    /// Returns whether the last [`Socket::receive`] took all waiting datagrams: it had free slots left. If so, later
    /// datagrams cause a new event.
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        self.drained
    }

    /// Receives up to one burst of waiting datagrams, and calls `deliver` with each. Returns their number, which may be
    /// 0.
    ///
    /// # Errors
    /// Errors of the socket itself. Errors of earlier datagrams are only counted.
    pub fn receive(&mut self, mut deliver: impl FnMut(Peer, &[u8])) -> io::Result<usize> {
        let mut slices: Vec<IoSliceMut<'_>> = self
            .slots
            .chunks_mut(SLOT_BYTES)
            .map(IoSliceMut::new)
            .collect();
        self.drained = true;
        let filled = match self
            .state
            .recv(UdpSockRef::from(&self.io), &mut slices, &mut self.metas)
        {
            Ok(filled) => filled,
            Err(error) => return self.tolerate(error),
        };
        self.drained = filled < self.metas.len();
        let mut datagrams = 0;
        for (slot, meta) in self.slots.chunks(SLOT_BYTES).zip(&self.metas[..filled]) {
            if let (Some(known_as), Some(at)) = (&mut self.known_as, meta.dst_ip) {
                known_as.heard(meta.addr, at);
            }
            for datagram in slot[..meta.len].chunks(meta.stride.max(1)) {
                datagrams += 1;
                // An answer to port 0 is impossible, and only a forger sends from port 0.
                if meta.addr.port() == 0 {
                    self.counters.from_nowhere += 1;
                } else {
                    deliver(meta.addr, datagram);
                }
            }
        }
        Ok(datagrams)
    }

    /// Handles a failed receive: no datagram was waiting, or an earlier datagram had an error, which is counted.
    ///
    /// # Errors
    /// Errors of the socket itself.
    pub fn tolerate(&mut self, error: io::Error) -> io::Result<usize> {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable => {
                self.counters.send_errors += 1;
                Ok(0)
            }
            _ => Err(error),
        }
    }

    /// Sends every packet of the outbox. Adjacent packets of one size to one address need one call. If the kernel has
    /// no space for a datagram, or refuses it, the datagram is dropped and counted, because no received packet may end
    /// the process that answers it. The protocol sends the datagram again.
    pub fn send(&mut self, out: &Outbox) {
        let segments_max = self.state.max_gso_segments();
        let mut packets = out.places().peekable();
        while let Some(Place {
            to,
            range: first,
            hops,
            logged,
        }) = packets.next()
        {
            debug_assert_eq!(logged, None, "who sends from the log has no use for this");
            let size = first.len();
            let source = self.source(to, out.bytes(first.clone()));
            let (start, mut end) = (first.start, first.end);
            let mut segments = 1;
            while let Some(next) = packets.peek() {
                let fits = segments < segments_max && next.range.end - start <= BURST_BYTES_MAX;
                // Only the last segment may be shorter.
                if next.to != to
                    || next.hops != hops
                    || hops.is_some()
                    || next.range.len() > size
                    || !fits
                    || self.source(to, out.bytes(next.range.clone())) != source
                {
                    break;
                }
                let last = next.range.len() < size;
                end = next.range.end;
                segments += 1;
                packets.next();
                if last {
                    break;
                }
            }
            let contents = out.bytes(start..end);
            self.transmit((to, source), contents, size, segments, hops);
        }
    }

    /// Returns the source address of a datagram, if it differs from the socket's own.
    fn source(&self, to: Peer, datagram: &[u8]) -> Option<IpAddr> {
        let Some(other) = self.speaks_for else {
            return self.known_as.as_ref()?.to(to);
        };
        let itself = other.except == to || other.before == Some(to) || (other.is_own)(datagram);
        (!itself).then_some(other.address)
    }

    /// Sends a burst of our own datagrams, or, if `hops` is given, one foreign datagram with this number of remaining
    /// hops.
    fn transmit(
        &mut self,
        (to, source): (Peer, Option<IpAddr>),
        contents: &[u8],
        size: usize,
        segments: usize,
        hops: Option<u8>,
    ) {
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents,
            segment_size: (segments > 1).then_some(size),
            src_ip: source,
        };
        if self.is_too_long(to, size) {
            self.transmit_fragments(&transmit, size, hops);
            return;
        }
        let sent = match hops {
            None => self.state.try_send(UdpSockRef::from(&self.io), &transmit),
            Some(hops) => self.set_hops(to, hops.into()).and_then(|()| {
                let sent = self.state.try_send(UdpSockRef::from(&self.io), &transmit);
                self.set_hops(to, HOPS_USUAL).and(sent)
            }),
        };
        if let Err(error) = sent {
            match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => {
                    self.counters.send_dropped += u64::try_from(segments).unwrap_or(u64::MAX);
                }
                _ if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) => {
                    self.transmit_fragments(&transmit, size, hops);
                }
                kind => {
                    self.counters.send_errors += 1;
                    if kind == io::ErrorKind::InvalidInput
                        && let (Some(_), Some(known_as)) = (source, &mut self.known_as)
                    {
                        known_as.forget(to);
                    }
                }
            }
        }
    }

    /// Sends a burst whose datagrams IP may cut into fragments, which the receiver's system reassembles. This is slow,
    /// and only for messages that were cut into packets before the size of the path was known.
    fn transmit_fragments(&mut self, transmit: &Transmit<'_>, size: usize, hops: Option<u8>) {
        let to = transmit.destination;
        let prepared = self
            .let_fragment(to, true)
            .and_then(|()| hops.map_or(Ok(()), |hops| self.set_hops(to, hops.into())));
        for datagram in transmit.contents.chunks(size.max(1)) {
            let one = Transmit {
                contents: datagram,
                segment_size: None,
                ..transmit.clone()
            };
            let sent = match &prepared {
                Ok(()) => self.state.try_send(UdpSockRef::from(&self.io), &one),
                Err(error) => Err(error.kind().into()),
            };
            match sent {
                Ok(()) => self.counters.fragmented += 1,
                Err(_) => self.counters.send_errors += 1,
            }
        }
        // If this fails, later packets that are too long are also sent as fragments, so no packet is lost.
        let _ = self.let_fragment(to, false);
        if hops.is_some() {
            let _ = self.set_hops(to, HOPS_USUAL);
        }
    }

    /// Allows or forbids IP fragments for packets to `to`. If they are forbidden, the system refuses packets that are
    /// longer than the interface carries.
    fn let_fragment(&self, to: Peer, allowed: bool) -> io::Result<()> {
        if to.ip().to_canonical().is_ipv4() {
            let how = if allowed {
                Ipv4PathMtuDiscovery::DONT
            } else {
                Ipv4PathMtuDiscovery::PROBE
            };
            return Ok(set_ip_mtu_discover(&self.io, how)?);
        }
        let how = if allowed {
            Ipv6PathMtuDiscovery::WANT
        } else {
            Ipv6PathMtuDiscovery::PROBE
        };
        set_ipv6_mtu_discover(&self.io, how)?;
        Ok(setsockopt(&self.io, Ipv6DontFrag, &!allowed)?)
    }

    /// Sets the hop limit of later packets to `to`.
    fn set_hops(&self, to: Peer, hops: u32) -> io::Result<()> {
        let socket = socket2::SockRef::from(&self.io);
        match to.ip().to_canonical() {
            IpAddr::V4(_) => socket.set_ttl_v4(hops),
            IpAddr::V6(_) => socket.set_unicast_hops_v6(hops),
        }
    }
}

/// Returns a socket that is bound to this address, before the other options are set.
fn bound(address: Peer, shared: bool) -> io::Result<socket2::Socket> {
    let domain = Domain::for_address(address);
    let socket = socket2::Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    if shared {
        socket.set_reuse_port(true)?;
    }
    // A size above the kernel's limit is no error: the kernel then takes its limit.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Returns an error whose text states why the address cannot be used, and what to do.
fn explained(address: Peer, error: &io::Error) -> io::Error {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            let port = address.port();
            let drawn = if (PORT_FIRST..=PORT_LAST).contains(&port) {
                format!(
                    "; if it got the port by chance, keep those of devices from such: sysctl -w \
                     net.ipv4.ip_local_reserved_ports={PORT_FIRST}-{PORT_LAST}"
                )
            } else {
                String::new()
            };
            match owner_of_port("udp", port) {
                Some(owner) => {
                    format!(" ({owner} listens there: choose another port, or stop it{drawn})")
                }
                None => " (the process that had it has ended: start this process again)".into(),
            }
        }
        io::ErrorKind::AddrNotAvailable => " (this machine does not have that address)".into(),
        io::ErrorKind::PermissionDenied => " (ports below 1024 need privileges)".into(),
        _ => String::new(),
    };
    io::Error::new(
        error.kind(),
        format!("PM6001 cannot listen on UDP {address}: {error}{hint}"),
    )
}
