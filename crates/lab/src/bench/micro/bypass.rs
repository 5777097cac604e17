//! Clients that bypass the kernel's network stack. All clients share one AF_XDP socket, and each client has a UDP port
//! of its own.
//!
//! This module writes the Ethernet, IP and UDP headers itself. From the network stack, the module takes only the
//! client's own address and the hardware address of the next hop.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pmnet_dataplane::af_xdp::{Anonymous, Config, Frame, Received, Redirect, Socket, Wake};
use pmnet_dataplane::xdp::hardware_address;

use super::carrier::{Arrived, Buffer, Carrier};
use super::frame::{self, Path};
use super::plan::PAYLOAD_BYTES_MAX;

/// Range from which a run draws the port of its first client. The range lies below pmnet's ports. Each run uses other
/// ports, so that late packets of an earlier run find no socket.
const PORTS: std::ops::Range<u16> = 20_000..40_000;
/// The queue of the interface. A veth has only one.
const QUEUE: u32 = 0;
const FRAME_BYTES: u32 = 2048;
/// Maximum number of frames of an update.
const PARTS: usize = PAYLOAD_BYTES_MAX.div_ceil(pmnet_wire::FRAGMENT_BYTES);
/// Minimum size of a ring. Few clients need few frames, which then stay in the CPU's caches.
const RING_MIN: usize = 16;
/// Maximum number of attempts to wake the kernel while its queue is full.
const WAKES_MAX: usize = 100;
/// Longest wait for the hardware address of the next hop.
const RESOLVE_MAX: Duration = Duration::from_secs(5);
const RESOLVE_LOOK: Duration = Duration::from_millis(1);
/// Port of the discard service (RFC 863). No program listens at this port, so the other side answers with an error.
const DISCARD: u16 = 9;
/// `ATF_COM` (linux/if_arp.h): the entry has a hardware address.
const COMPLETE: u32 = 2;

/// One AF_XDP socket for all clients.
pub struct Bypass {
    // The socket is declared, and so dropped, before the program. Packets that arrive after the socket is closed pass
    // to the network stack.
    socket: Socket<Anonymous>,
    _redirect: Redirect,
    paths: Vec<Path>,
    first_port: u16,
    /// For each client, the frames that are ready to be sent, with their lengths.
    ready: Vec<Vec<(Frame, usize)>>,
    /// The received packets in reverse order, so that the next packet is the last element.
    burst: Vec<Received>,
    /// Number of free frames that are reserved for sending.
    kept: usize,
}

impl Bypass {
    /// Opens a socket at this interface of the calling thread's network namespace. The interface
    /// must have no XDP program.
    pub fn open(interface: &str, target: SocketAddrV4, clients: usize) -> anyhow::Result<Bypass> {
        // The addresses are resolved before the program is attached.
        let (own, own_mac, far_mac) = resolve(target)?;
        // While an update is sent again, it needs two frames for each part.
        let kept = (2 * PARTS * clients).max(RING_MIN).next_power_of_two();
        let first_port = fastrand::u16(PORTS);
        let last = u16::try_from(clients - 1).ok();
        let last = last.and_then(|last| first_port.checked_add(last));
        let mut redirect =
            Redirect::attach(interface, first_port..=last.context("too many clients")?)?;
        let ring = u32::try_from(kept).context("too many clients")?;
        let bytes = usize::try_from(FRAME_BYTES)? * kept * 2;
        let memory = Anonymous::new(bytes).context("no memory for frames")?;
        let mut socket = Socket::bind(
            memory,
            &Config {
                frame_bytes: FRAME_BYTES,
                receive_ring: ring,
                send_ring: ring,
                ..Config::new(interface, QUEUE)
            },
        )?;
        socket.refill(ring, kept)?;
        redirect.serve(QUEUE, &socket)?;
        let paths = (0..clients).map(|client| {
            let port = u16::try_from(client).unwrap_or(u16::MAX);
            Path {
                own_mac,
                far_mac,
                own: SocketAddrV4::new(own, first_port.saturating_add(port)),
                far: target,
            }
        });
        Ok(Bypass {
            socket,
            _redirect: redirect,
            paths: paths.collect(),
            first_port,
            ready: (0..clients).map(|_| Vec::with_capacity(PARTS)).collect(),
            burst: Vec::with_capacity(RING_MIN),
            kept,
        })
    }

    fn take(&mut self, received: &Received, buffer: &mut Buffer) -> anyhow::Result<(usize, usize)> {
        let bytes = &self.socket.bytes(&received.frame)[received.bytes.clone()];
        let parsed = frame::parse(bytes).context("an answer is damaged")?;
        let client = parsed.to.port().checked_sub(self.first_port);
        let client = client.map(usize::from);
        let client = client.filter(|client| *client < self.paths.len());
        let client = client.context("an answer for nobody")?;
        let path = &self.paths[client];
        ensure!(
            parsed.from == path.far && parsed.to == path.own,
            "an answer from {} to {}",
            parsed.from,
            parsed.to
        );
        let place = buffer.get_mut(..parsed.datagram.len());
        let place = place.context("an answer is too long")?;
        place.copy_from_slice(parsed.datagram);
        Ok((client, parsed.datagram.len()))
    }
}

impl Carrier for Bypass {
    fn prepare(&mut self, client: usize, datagrams: &[Vec<u8>]) -> anyhow::Result<()> {
        self.socket.complete()?;
        for (old, _) in self.ready[client].drain(..) {
            self.socket.give_back(old);
        }
        for datagram in datagrams {
            // If no frame is free, the missing frame is counted when it should be sent.
            let Some(frame) = self.socket.take() else {
                break;
            };
            let written = self.paths[client].write(datagram, self.socket.bytes_mut(&frame))?;
            self.ready[client].push((frame, written));
        }
        Ok(())
    }

    fn send(&mut self, client: usize, datagrams: &[Vec<u8>]) -> anyhow::Result<u64> {
        let ready = &mut self.ready[client];
        let places = self.socket.reserve(u32::try_from(ready.len())?)?;
        let count = usize::try_from(places)?;
        for (frame, length) in ready.drain(..count) {
            self.socket.queue(frame, length);
        }
        self.socket.submit();
        let mut wakes = 0;
        while self.socket.wake()? == Wake::Again && wakes < WAKES_MAX {
            wakes += 1;
        }
        let failed = datagrams.len() - count + usize::from(wakes == WAKES_MAX);
        Ok(u64::try_from(failed)?)
    }

    fn receive(&mut self, buffer: &mut Buffer) -> anyhow::Result<Option<Arrived>> {
        if self.burst.is_empty() {
            if self.socket.receive(&mut self.burst)? == 0 {
                return Ok(None);
            }
            self.burst.reverse();
        }
        let Some(received) = self.burst.pop() else {
            return Ok(None);
        };
        let at = Instant::now();
        let taken = self.take(&received, buffer);
        self.socket.give_back(received.frame);
        self.socket.refill(u32::MAX, self.kept)?;
        let (client, length) = taken?;
        Ok(Some(Arrived { client, length, at }))
    }

    fn unfinished(&mut self, _client: usize) {}
}

/// Returns this machine's address on the path to a neighbour, and the hardware addresses of both ends.
pub(crate) fn resolve(target: SocketAddrV4) -> anyhow::Result<(Ipv4Addr, [u8; 6], [u8; 6])> {
    let socket = UdpSocket::bind("0.0.0.0:0").context("no socket")?;
    let discard = SocketAddrV4::new(*target.ip(), DISCARD);
    socket.connect(discard).context("no way to the system")?;
    let SocketAddr::V4(own) = socket.local_addr()? else {
        anyhow::bail!("an IPv4 socket has another address");
    };
    let own_mac = hardware_address(*own.ip())?;
    let begun = Instant::now();
    loop {
        let table = std::fs::read_to_string("/proc/thread-self/net/arp")
            .context("the kernel does not tell its neighbours")?;
        if let Some(far_mac) = neighbour(&table, *target.ip()) {
            return Ok((*own.ip(), own_mac, far_mac));
        }
        ensure!(
            begun.elapsed() < RESOLVE_MAX,
            "{} does not tell its hardware address",
            target.ip()
        );
        // Any datagram makes the kernel ask for the address.
        let _ = socket.send(&[]);
        std::thread::sleep(RESOLVE_LOOK);
    }
}

/// Returns the hardware address of a neighbour from `/proc/net/arp`.
fn neighbour(table: &str, address: Ipv4Addr) -> Option<[u8; 6]> {
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace();
        let of: Ipv4Addr = words.next()?.parse().ok()?;
        let flags = words.nth(1)?.strip_prefix("0x")?;
        let flags = u32::from_str_radix(flags, 16).ok()?;
        let text = words.next()?;
        let mut mac = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut mac {
            *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
        }
        (of == address && flags & COMPLETE != 0 && parts.next().is_none()).then_some(mac)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_those_that_answered() {
        let table = "\
IP address       HW type     Flags       HW address            Mask     Device
10.51.0.2        0x1         0x0         00:00:00:00:00:00     *        eth0
10.51.0.20       0x1         0x2         02:00:0a:33:00:65     *        eth0
10.51.0.200      0x1         0x6         02:ff:0a:33:00:c8     *        eth0
";
        let of = |last| neighbour(table, Ipv4Addr::new(10, 51, 0, last));
        assert_eq!(of(2), None);
        assert_eq!(of(20), Some([2, 0, 0x0a, 0x33, 0, 0x65]));
        assert_eq!(of(200), Some([2, 0xff, 0x0a, 0x33, 0, 0xc8]));
        assert_eq!(of(201), None);
        assert_eq!(neighbour("", Ipv4Addr::LOCALHOST), None);
    }
}
