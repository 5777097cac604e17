//! One message from a client to the server and its reply: a bypass, or an update falling back
//! (`docs/spec/protocol.md` §3). Long ones move in windows of fragments; the reply is pulled.

use crate::keys::Seal;
use crate::time::Nanos;
use crate::{Outbox, Peer, Time};
use bytes::Bytes;
use pmnet_wire::packet::{Progress, Response};
use pmnet_wire::{Flags, FragmentSize, Header, Packet};

/// Fragments sent ahead of what the other side has confirmed.
pub(crate) const TRANSFER_WINDOW: u16 = 32;

/// Timeouts without progress after which a half-received reply is asked for from its start.
const RESTART_AFTER: u32 = 6;
/// Timeouts without any answer after which a message is sent in small packets.
const NARROW_AFTER: u32 = 6;

/// A message in flight and its reply so far.
#[derive(Debug)]
pub(super) struct Transfer {
    payload: Bytes,
    /// Bytes of each fragment. As long as it is under way: the server puts together what it gets.
    part: usize,
    /// Timeouts since the last answer of any kind.
    unanswered: u32,
    /// Nothing came back for long: large packets may be lost on the way there, or back.
    narrow: bool,
    count: u16,
    confirmed: u16,
    sent: u16,
    reply: Option<Assembly>,
    want_more: bool,
    stalled: u32,
    /// It was asked again after silence and has not answered since: the server may have restarted.
    doubtful: bool,
    pub(super) last_sent: Option<Time>,
    pub(super) resent: bool,
}

#[derive(Debug)]
struct Assembly {
    crc: u64,
    parts: Vec<Option<Bytes>>,
    /// Of each but the last one, once it is known.
    part_bytes: Option<usize>,
    contiguous: usize,
}

impl Assembly {
    /// Whether this is a part of the same reply, cut in the same way: the server may be asked for smaller parts meanwhile.
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

    /// The next send starts again from what the server has confirmed.
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
            // The last fragment again: it makes a server that has them all answer, and one that
            // has fewer say how far it got.
            self.sent = self.confirmed.min(self.count - 1);
        }
    }

    /// From now on in small packets, and so is the answer to be. Into another number of them: so the server never takes old and new ones
    /// for parts of one message.
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

    /// Which fragments of a reply it can receive, if the paths carry these.
    pub(super) fn reply_size(&self, paths: FragmentSize) -> FragmentSize {
        if self.narrow {
            FragmentSize::MIN
        } else {
            paths
        }
    }

    /// Sends what may be sent.
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

    /// Takes in a response; gives the whole reply once it is complete.
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
                // The server restarted and lost what it had. Without such a doubt, a packet with a
                // lower number was only overtaken on its way. Going back for each of those would
                // send everything again and again, and each repetition would cause more of them.
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
            // Parts of two sizes, as many of each: it is asked for anew.
            self.reply = None;
            return None;
        }
        Some(Bytes::from(whole))
    }

    /// When to try again, given this timeout.
    pub(super) fn due(&self, timeout: Nanos) -> Option<Time> {
        self.last_sent.map(|sent| sent + timeout)
    }
}
