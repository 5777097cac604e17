//! A region as the network interface of a TCP in user space (smoltcp). The region keeps segments that continue a
//! connection's stream in their buffers, so that the server can use them there.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use pmnet_packets::{Error, Packet, Region};
use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium};
use smoltcp::time::Instant;
use smoltcp::wire::{Ipv4Packet, TcpPacket};

/// Length of the longest IP packet, in bytes.
const MTU: usize = 1500;

/// Maximum number of streams at a time. If there are more streams, those without a connection are forgotten.
const STREAMS_MAX: usize = 256;

/// The part of a connection's stream that has arrived.
#[derive(Default)]
struct Stream {
    /// Sequence number of the next byte.
    next: u32,
    /// Packets of the stream. Each packet has the range of its new bytes.
    held: VecDeque<(Packet, Range<usize>)>,
}

/// A region as the network interface of smoltcp.
pub struct Segments {
    pub region: Region,
    burst: Vec<Packet>,
    incoming: VecDeque<Packet>,
    /// The segment that the TCP is processing, if the segment will not be kept.
    seen: Option<Packet>,
    streams: HashMap<SocketAddr, Stream>,
    /// IP packets that the TCP has sent.
    out: Vec<Vec<u8>>,
}

/// The position of a segment in its stream.
enum Place {
    /// The segment has the next bytes of the stream.
    Next(Range<usize>),
    /// The segment has no bytes that are new.
    Nothing,
    /// An earlier segment is missing. The sender will send both segments again.
    TooEarly,
}

impl Segments {
    pub fn new(region: Region) -> Segments {
        Segments {
            region,
            burst: Vec::new(),
            incoming: VecDeque::new(),
            seen: None,
            streams: HashMap::new(),
            out: Vec::new(),
        }
    }

    /// Waits for segments.
    pub fn wait(&mut self, most: Duration) -> Result<(), Error> {
        self.region.receive(most, &mut self.burst)?;
        for packet in &self.burst {
            self.region.heard(packet);
        }
        self.incoming.extend(self.burst.drain(..));
        Ok(())
    }

    /// Passes the TCP's packets to the interface. A packet that cannot be sent is lost, and the TCP sends it again.
    pub fn flush(&mut self) -> Result<(), Error> {
        for packet in self.out.drain(..) {
            if let Some((to, _, _)) = read(&packet, false) {
                self.region.send(to, &packet)?;
            }
        }
        self.region.flush()
    }

    /// Returns the next bytes of this connection's stream: a packet, and the range of the bytes in this packet.
    pub fn next(&mut self, from: SocketAddr) -> Option<(Packet, Range<usize>)> {
        self.streams.get_mut(&from)?.held.pop_front()
    }

    /// Forgets the stream of a connection that has ended.
    pub fn end(&mut self, from: SocketAddr) {
        for (packet, _) in self.streams.remove(&from).unwrap_or_default().held {
            self.region.release(packet);
        }
    }

    /// Forgets streams without a connection. Otherwise a peer that begins connections without completing them could
    /// fill the memory.
    pub fn end_others(&mut self, is_known: impl Fn(&SocketAddr) -> bool) {
        if self.streams.len() > STREAMS_MAX {
            let all: Vec<SocketAddr> = self.streams.keys().copied().collect();
            for from in all.into_iter().filter(|from| !is_known(from)) {
                self.end(from);
            }
        }
    }

    fn place(&mut self, from: SocketAddr, tcp: &Tcp, payload: Range<usize>) -> Place {
        if tcp.syn {
            self.end(from);
            let stream = self.streams.entry(from).or_default();
            stream.next = tcp.number.wrapping_add(1);
            return Place::Nothing;
        }
        let Some(stream) = self.streams.get_mut(&from) else {
            return Place::Nothing;
        };
        // Number of the segment's bytes that had already arrived.
        let old = stream.next.wrapping_sub(tcp.number).cast_signed();
        match usize::try_from(old) {
            Err(_) => Place::TooEarly,
            Ok(old) if old >= payload.len() => Place::Nothing,
            Ok(old) => {
                let new = payload.start + old..payload.end;
                let bytes = u32::try_from(new.len()).expect("shorter than a packet");
                stream.next = stream.next.wrapping_add(bytes);
                Place::Next(new)
            }
        }
    }
}

struct Tcp {
    number: u32,
    syn: bool,
}

/// Returns the other end of a segment (its sender or its receiver), the numbers in its TCP header, and the range of its
/// payload.
fn read(packet: &[u8], received: bool) -> Option<(SocketAddr, Tcp, Range<usize>)> {
    let ip = Ipv4Packet::new_checked(packet).ok()?;
    let tcp = TcpPacket::new_checked(ip.payload()).ok()?;
    let (address, port) = if received {
        (ip.src_addr(), tcp.src_port())
    } else {
        (ip.dst_addr(), tcp.dst_port())
    };
    let start = usize::from(ip.header_len()) + usize::from(tcp.header_len());
    let numbers = Tcp {
        number: tcp.seq_number().0.cast_unsigned(),
        syn: tcp.syn(),
    };
    let payload = start..usize::from(ip.total_len());
    Some((SocketAddr::new(IpAddr::V4(address), port), numbers, payload))
}

/// A received segment that is given to the TCP.
pub struct Look<'a>(&'a [u8]);
/// The place into which the TCP writes a segment that it sends.
pub struct Put<'a>(&'a mut Vec<Vec<u8>>);

impl phy::RxToken for Look<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, look: F) -> R {
        look(self.0)
    }
}

impl phy::TxToken for Put<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut packet = vec![0; len];
        let result = write(&mut packet);
        self.0.push(packet);
        result
    }
}

impl phy::Device for Segments {
    type RxToken<'a> = Look<'a>;
    type TxToken<'a> = Put<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Look<'_>, Put<'_>)> {
        loop {
            if let Some(seen) = self.seen.take() {
                self.region.release(seen);
            }
            let packet = self.incoming.pop_front()?;
            let from = packet.from();
            let place = read(self.region.bytes(&packet), true)
                .map_or(Place::TooEarly, |(_, tcp, payload)| {
                    self.place(from, &tcp, payload)
                });
            let packet = match place {
                Place::TooEarly => {
                    self.region.release(packet);
                    continue;
                }
                Place::Nothing => self.seen.insert(packet),
                Place::Next(new) => {
                    let held = &mut self.streams.entry(from).or_default().held;
                    held.push_back((packet, new));
                    &held.back()?.0
                }
            };
            return Some((Look(self.region.bytes(packet)), Put(&mut self.out)));
        }
    }

    fn transmit(&mut self, _now: Instant) -> Option<Put<'_>> {
        Some(Put(&mut self.out))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut all = DeviceCapabilities::default();
        all.medium = Medium::Ip;
        all.max_transmission_unit = MTU;
        // A network card has verified the checksum. Between namespaces of one machine, no checksum is computed.
        all.checksum.tcp = Checksum::Tx;
        all
    }
}
