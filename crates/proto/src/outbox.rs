//! Packets to send: one growing buffer for each burst, and no allocation for each packet.

use crate::Peer;
use crate::keys::Seal;
use pmnet_wire::{Header, Kind};
use std::ops::Range;

/// Datagrams that wait to be sent, in order. Between bursts the outbox is cleared, and keeps its memory.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    packets: Vec<Place>,
}

/// One datagram of an [`Outbox`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Receiver of the datagram.
    pub to: Peer,
    /// Range of the datagram in the burst's buffer.
    pub range: Range<usize>,
    /// Hop limit of a foreign datagram ([`Outbox::pass`]); `None`: a packet of this process.
    pub hops: Option<u8>,
    /// Range of the datagram in the log's frame space, if the datagram is sent from there ([`Outbox::send_logged`]).
    pub logged: Option<Range<usize>>,
}

impl Outbox {
    /// Returns an empty outbox.
    #[must_use]
    pub fn new() -> Outbox {
        Outbox::default()
    }

    /// Adds a packet; length and checksums of `payload` are computed.
    pub fn send(&mut self, to: Peer, header: &Header, payload: &[u8]) {
        self.send_checked(to, &header.for_payload(payload), payload);
    }

    /// Adds a packet like [`Outbox::send`], with this seal.
    pub fn seal(&mut self, seal: Seal, to: Peer, header: &Header, payload: &[u8]) {
        self.seal_checked(seal, to, &header.for_payload(payload), payload);
    }

    /// Adds a packet like [`Outbox::send_checked`], with this seal.
    pub fn seal_checked(&mut self, seal: Seal, to: Peer, header: &Header, payload: &[u8]) {
        match seal {
            Seal::Token => self.send_checked(to, header, payload),
            Seal::Key(key) => self.send_checked(to, &key.seal(header, payload), payload),
        }
    }

    /// Adds a packet whose header already has length and CRC of this payload: the author's CRC is reused (protocol.md
    /// §7).
    pub fn send_checked(&mut self, to: Peer, header: &Header, payload: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&header.emit());
        self.bytes.extend_from_slice(payload);
        self.add(to, start, None);
    }

    /// Adds a packet whose bytes are complete, for example an entry of the log.
    pub fn send_raw(&mut self, to: Peer, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.add(to, start, None);
    }

    /// Adds a foreign datagram unchanged, with this hop limit (time to live of IPv4, hop limit of IPv6).
    pub fn pass(&mut self, to: Peer, bytes: &[u8], hops: u8) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.add(to, start, Some(hops));
    }

    /// Adds a packet that lies in a packet buffer of the log and is sent from there. Only a port that can send from the
    /// log may send this packet, because the outbox does not have its bytes.
    pub fn send_logged(&mut self, to: Peer, frame: Range<usize>) {
        let start = self.bytes.len();
        self.add(to, start, None);
        if let Some(place) = self.packets.last_mut() {
            place.logged = Some(frame);
        }
    }

    fn add(&mut self, to: Peer, start: usize, hops: Option<u8>) {
        self.packets.push(Place {
            to,
            range: start..self.bytes.len(),
            hops,
            logged: None,
        });
    }

    /// Returns the packets in the order in which they were added.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Peer, &[u8])> {
        self.packets
            .iter()
            .map(|place| (place.to, &self.bytes[place.range.clone()]))
    }

    /// Returns the receiver of each packet, and its range in the burst's buffer, in order.
    pub fn places(&self) -> impl ExactSizeIterator<Item = Place> {
        self.packets.iter().cloned()
    }

    /// Returns the burst's buffer, in which consecutive packets are adjacent.
    #[must_use]
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Moves the packets for `to` to another outbox, in order. Packets that lie in the log are moved, too.
    pub fn divert(&mut self, to: Peer, other: &mut Outbox) {
        if self.packets.iter().all(|place| place.to != to) {
            return;
        }
        let mut before = std::mem::take(self);
        for mut place in before.packets.drain(..) {
            let into = if place.to == to {
                &mut *other
            } else {
                &mut *self
            };
            // Packets that follow each other must be adjacent in the buffer.
            let start = into.bytes.len();
            into.bytes
                .extend_from_slice(&before.bytes[place.range.clone()]);
            place.range = start..into.bytes.len();
            into.packets.push(place);
        }
    }

    /// Removes this process's own packets of these kinds. Returns the number of removed packets.
    pub fn withdraw(&mut self, kinds: &[Kind]) -> u64 {
        let before = std::mem::take(self);
        let mut withdrawn = 0;
        for mut place in before.packets {
            let bytes = &before.bytes[place.range.clone()];
            let ours = place.hops.is_none() && place.logged.is_none();
            if ours && Header::kind_of(bytes).is_some_and(|kind| kinds.contains(&kind)) {
                withdrawn += 1;
                continue;
            }
            // Packets that follow each other must be adjacent in the buffer.
            let start = self.bytes.len();
            self.bytes.extend_from_slice(bytes);
            place.range = start..self.bytes.len();
            self.packets.push(place);
        }
        withdrawn
    }

    /// Returns the number of packets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Removes all packets, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.packets.clear();
    }
}
