//! One message from a client to the server, and its reply: a bypass, or an update that falls back
//! (`docs/spec/protocol.md` §3). Long messages are sent in windows of fragments; the client requests the fragments of a
//! long reply.

use crate::keys::Seal;
use crate::time::Nanos;
use crate::{Outbox, Peer, Time};
use bytes::Bytes;
use pmnet_wire::packet::{Progress, Response};
use pmnet_wire::{Flags, FragmentSize, Header, Packet};

/// Largest number of fragments that are sent beyond those that the receiver has confirmed.
pub(crate) const TRANSFER_WINDOW: u16 = 32;

/// Number of timeouts without progress after which an incomplete reply is requested again from its start.
const RESTART_AFTER: u32 = 6;
/// Number of timeouts without any answer after which a message is sent in small packets.
const NARROW_AFTER: u32 = 6;

/// A message in flight and its reply so far.
#[derive(Debug)]
pub(super) struct Transfer {
    payload: Bytes,
    /// Bytes of each fragment. The size stays the same while the message is under way, because the server joins the
    /// fragments.
    part: usize,
    /// Number of timeouts since the last answer of any kind.
    unanswered: u32,
    /// The message is sent in small packets, because [`NARROW_AFTER`] timeouts brought no answer: the network may lose
    /// large packets in either direction.
    narrow: bool,
    count: u16,
    confirmed: u16,
    sent: u16,
    reply: Option<Assembly>,
    want_more: bool,
    stalled: u32,
    /// The message was sent again after a timeout, and no answer has come since then: the server may have restarted.
    doubtful: bool,
    pub(super) last_sent: Option<Time>,
    pub(super) resent: bool,
}

#[derive(Debug)]
struct Assembly {
    crc: u64,
    parts: Vec<Option<Bytes>>,
    /// Bytes of each part except the last part; `None`: no part but the last has arrived.
    part_bytes: Option<usize>,
    contiguous: usize,
}

impl Assembly {
    /// Whether this part belongs to the reply that is being joined: same checksum, same number of parts, same size of
    /// parts. Parts of another size come if the client has meanwhile asked for smaller parts.
    fn takes(&self, response: &Response, bytes: usize) -> bool {
        let last = usize::from(response.fragment.index) + 1 == self.parts.len();
        let fits = |part| bytes == part || (last && bytes < part);
        self.crc == response.reply_crc
            && self.parts.len() == usize::from(response.fragment.count)
            && self.part_bytes.is_none_or(fits)
    }
}

impl Transfer {
    pub(super) fn new(payload: Bytes, size: FragmentSize) -> Transfer {
        let count = u16::try_from(size.count(payload.len())).expect("checked at submit");
        Transfer {
            payload,
            part: size.bytes(),
            unanswered: 0,
            narrow: false,
            count,
            confirmed: 0,
            sent: 0,
            reply: None,
            want_more: false,
            stalled: 0,
            doubtful: false,
            last_sent: None,
            resent: false,
        }
    }

    /// Makes the next send continue from the last confirmed fragment.
    pub(super) fn retry(&mut self) {
        self.resent = true;
        self.stalled += 1;
        self.unanswered += 1;
        if self.unanswered >= NARROW_AFTER {
            self.become_narrow();
        }
        if self.reply.is_some() && self.stalled < RESTART_AFTER {
            self.want_more = true;
        } else {
            self.reply = None;
            self.stalled = 0;
            self.doubtful = true;
            // The last fragment is sent again. A server that has all fragments then answers, and a server that has
            // fewer states how many it has.
            self.sent = self.confirmed.min(self.count - 1);
        }
    }

    /// From now on the message is sent in small packets, and a reply in small packets is requested. The number of
    /// fragments changes, so the server never joins old and new fragments.
    fn become_narrow(&mut self) {
        self.narrow = true;
        let (bytes, least) = (self.payload.len(), FragmentSize::MIN);
        if self.confirmed > 0 || bytes.min(self.part) <= least.bytes() {
            return;
        }
        let count = least.count(bytes).max(usize::from(self.count) + 1);
        if let Ok(count) = u16::try_from(count) {
            (self.count, self.part, self.sent) = (count, bytes.div_ceil(count.into()), 0);
        }
    }

    /// Returns the size of the largest fragments of a reply that the client can receive. `paths`: size that the
    /// client's paths carry.
    pub(super) fn reply_size(&self, paths: FragmentSize) -> FragmentSize {
        if self.narrow {
            FragmentSize::MIN
        } else {
            paths
        }
    }

    /// Sends all fragments and requests that may be sent now.
    pub(super) fn send(
        &mut self,
        now: Time,
        seal: Seal,
        to: Peer,
        header: &Header,
        out: &mut Outbox,
    ) {
        if self.want_more
            && let Some(reply) = &self.reply
        {
            self.want_more = false;
            let index = u16::try_from(reply.contiguous).expect("bounded by the fragment count");
            let mut more = *header;
            more.flags = more.flags.with(Flags::CONTINUE);
            more.fragment_index = index;
            more.fragment_count =
                u16::try_from(reply.parts.len()).expect("bounded by the fragment count");
            out.seal(seal, to, &more, &[]);
            self.last_sent = Some(now);
        }
        let limit = self
            .confirmed
            .saturating_add(TRANSFER_WINDOW)
            .min(self.count);
        while self.sent < limit {
            let start = usize::from(self.sent) * self.part;
            let end = (start + self.part).min(self.payload.len());
            let fragment = Header {
                fragment_index: self.sent,
                fragment_count: self.count,
                ..*header
            };
            out.seal(seal, to, &fragment, &self.payload[start..end]);
            self.sent += 1;
            self.last_sent = Some(now);
        }
    }

    /// Processes a response. Returns the whole reply once it is complete.
    pub(super) fn on_response(&mut self, packet: &Packet<'_>) -> Option<Bytes> {
        let header = &packet.header;
        self.unanswered = 0;
        if header.flags.has(Flags::PROGRESS) {
            let Ok(confirmed) = u16::try_from(Progress::read(header).received) else {
                return None;
            };
            if confirmed > self.count {
                return None;
            }
            if confirmed >= self.confirmed {
                self.sent = self.sent.max(confirmed);
            } else if self.doubtful {
                // The server restarted and lost its fragments, so the client sends from this fragment on. Without a
                // restart, a lower number only means that newer packets have overtaken this packet. The client must not
                // go back then: it would send everything again, and the repetitions would overtake each other again.
                self.sent = confirmed;
            } else {
                return None;
            }
            self.confirmed = confirmed;
            self.doubtful = false;
            self.stalled = 0;
            return None;
        }
        let response = Response::read(header);
        if response.fragment.count == 1 {
            return Some(Bytes::copy_from_slice(packet.payload));
        }
        let count = usize::from(response.fragment.count);
        if self
            .reply
            .as_ref()
            .is_none_or(|reply| !reply.takes(&response, packet.payload.len()))
        {
            self.reply = Some(Assembly {
                crc: response.reply_crc,
                parts: vec![None; count],
                part_bytes: None,
                contiguous: 0,
            });
        }
        let reply = self.reply.as_mut()?;
        if usize::from(response.fragment.index) + 1 < count {
            reply.part_bytes = Some(packet.payload.len());
        }
        let slot = &mut reply.parts[usize::from(response.fragment.index)];
        if slot.is_some() {
            return None;
        }
        *slot = Some(Bytes::copy_from_slice(packet.payload));
        self.stalled = 0;
        while reply
            .parts
            .get(reply.contiguous)
            .is_some_and(Option::is_some)
        {
            reply.contiguous += 1;
            if reply
                .contiguous
                .is_multiple_of(usize::from(TRANSFER_WINDOW))
            {
                self.want_more = true;
            }
        }
        if reply.contiguous < count {
            return None;
        }
        let whole: Vec<u8> = reply
            .parts
            .iter()
            .flatten()
            .flat_map(|part| part.iter().copied())
            .collect();
        if u64::from(pmnet_wire::crc(&whole)) != reply.crc {
            // The reply was joined from parts of two sizes with equal counts, so it is requested again.
            self.reply = None;
            return None;
        }
        Some(Bytes::from(whole))
    }

    /// Returns the time at which the message is sent again, if the retransmission timeout is `timeout`.
    pub(super) fn due(&self, timeout: Nanos) -> Option<Time> {
        self.last_sent.map(|sent| sent + timeout)
    }
}
