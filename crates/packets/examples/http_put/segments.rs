//! A region as the network interface of a TCP in user space (smoltcp). Segments that continue a connection's stream are held
//! in their buffers, so that the server can keep them.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use pmnet_packets::{Error, Packet, Region};
use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium};
use smoltcp::time::Instant;
use smoltcp::wire::{Ipv4Packet, TcpPacket};

/// Bytes of an IP packet.
const MTU: usize = 1500;

/// Streams at the same time. Above that, those that no connection came of are forgotten.
const STREAMS_MAX: usize = 256;

/// The part of a connection's stream that has come.
#[derive(Default)]
struct Stream {
    /// Number of the next byte.
    next: u32,
    /// Packets, and where in them new bytes of the stream are.
    held: VecDeque<(Packet, Range<usize>)>,
}

/// A region as the network interface of smoltcp.
pub struct Segments {
    pub region: Region,
    burst: Vec<Packet>,
    incoming: VecDeque<Packet>,
    /// The segment that the TCP looks at, if it will not be kept.
    seen: Option<Packet>,
    streams: HashMap<SocketAddr, Stream>,
    /// What the TCP sends.
    out: Vec<Vec<u8>>,
}

/// What a segment is to its stream.
enum Place {
    /// Its next bytes.
    Next(Range<usize>),
    /// Nothing new.
    Nothing,
    /// Something before it is missing. The sender will send both again.
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

    /// Lets go what the TCP has sent. A packet that cannot be sent is lost; TCP sends it again.
    pub fn flush(&mut self) -> Result<(), Error> {
        for packet in self.out.drain(..) {
            if let Some((to, _, _)) = read(&packet, false) {
                self.region.send(to, &packet)?;
            }
        }
        self.region.flush()
    }

    /// The next bytes of this connection's stream, where they lie.
    pub fn next(&mut self, from: SocketAddr) -> Option<(Packet, Range<usize>)> {
        self.streams.get_mut(&from)?.held.pop_front()
    }

    /// The connection is gone.
    pub fn end(&mut self, from: SocketAddr) {
        for (packet, _) in self.streams.remove(&from).unwrap_or_default().held {
            self.region.release(packet);
        }
    }

    /// A peer that begins connections and completes none does not fill the memory.
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
        // So many of its bytes are here already.
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

/// The other end of a segment (its sender, or to whom it goes), its numbers, and where its payload is.
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

/// A segment for the TCP to look at.
pub struct Look<'a>(&'a [u8]);
/// Where the TCP puts a segment of its own.
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
        // A network card has checked it, and between namespaces of one machine nobody computes it.
        all.checksum.tcp = Checksum::Tx;
        all
    }
}
