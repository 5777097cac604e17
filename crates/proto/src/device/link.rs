//! The link to the next hop: what was sent, what it confirmed, when to send again
//! (`docs/spec/protocol.md` §2 rules 3 and 4).

use super::{Device, DeviceConfig};
use crate::rto::Rto;
use crate::rules::Rule;
use crate::time::{Nanos, SECOND};
use crate::{Outbox, Time};
use pmnet_wire::packet::{Append, Ping, Retrans};
use pmnet_wire::{FragmentSize, HEADER_LEN, Header, Packet};
use std::ops::Range;

/// Timeouts after which a large entry that the next hop has not got counts as one that the way there does not carry.
const LOST_AFTER: u32 = 8;
/// Window after a timeout, in entries.
const WINDOW_MIN: u64 = 16;
/// So many entries are sent without waiting for more.
const LINGER_ENTRIES: u64 = 512;
/// While nothing is under way to the next hop, it is asked how far it is after this long without a word from it.
const ASK_EVERY: Nanos = SECOND;

#[derive(Debug)]
pub(super) struct Link {
    /// The next hop holds everything up to here durably (a device), or has applied it (the server).
    pub(super) acked: u64,
    /// The next order to send.
    cursor: u64,
    window: u64,
    window_max: u64,
    /// What the next hop said that it can take.
    credit: u64,
    rto: Rto,
    /// When the timer was last started: something was sent, or something was confirmed.
    since: Option<Time>,
    /// When the next hop said something in this epoch, or was asked while nothing was under way, whichever was last.
    quiet_since: Option<Time>,
    timed: Option<(u64, Time)>,
    rewound: Option<(u64, Time)>,
    /// Since when durable entries wait for more before they go to the server.
    held_since: Option<Time>,
    /// Highest order that was ever sent, or left for the server to read from the log. Below it, entries
    /// are sent again one by one.
    told: u64,
    /// A bypass that passed waits for these entries: no lingering until they are sent.
    hurry: bool,
    /// The order that was given out last for sending.
    polled: u64,
    /// Bytes of the oldest entry that is not confirmed, if it was sent, and timeouts since something was confirmed.
    oldest_bytes: usize,
    stalled: u32,
}

impl Link {
    pub(super) fn new(config: &DeviceConfig, acked: u64) -> Link {
        Link {
            acked,
            cursor: acked + 1,
            window: config.link_window_max,
            window_max: config.link_window_max,
            credit: WINDOW_MIN,
            rto: Rto::new(config.link_timeout_floor, config.link_timeout_ceiling),
            since: None,
            quiet_since: None,
            timed: None,
            rewound: None,
            held_since: None,
            told: acked,
            hurry: false,
            polled: 0,
            oldest_bytes: 0,
            stalled: 0,
        }
    }

    /// Starts again from `acked`, knowing nothing of the next hop.
    pub(super) fn restart(&mut self, acked: u64) {
        self.acked = acked;
        self.cursor = acked + 1;
        self.told = acked;
        self.since = None;
        self.timed = None;
        self.rto.progress();
    }

    /// The next hop has said something in this epoch; or the epoch begins.
    pub(super) const fn heard(&mut self, now: Time) {
        self.quiet_since = Some(now);
    }

    /// Highest order that was sent.
    pub(super) const fn sent(&self) -> u64 {
        self.cursor - 1
    }

    pub(super) fn confirm(&mut self, now: Time, upto: u64, credit: u64) {
        self.credit = credit.max(1);
        if upto <= self.acked {
            return;
        }
        if let Some((order, at)) = self.timed
            && order <= upto
        {
            self.rto.sample(now.since(at));
            self.timed = None;
        }
        self.rto.progress();
        self.window = (self.window + (upto - self.acked)).min(self.window_max);
        self.acked = upto;
        self.cursor = self.cursor.max(upto + 1);
        self.since = Some(now);
        (self.oldest_bytes, self.stalled) = (0, 0);
    }

    /// An entry of `bytes` is sent.
    const fn sends(&mut self, bytes: usize) {
        if self.polled == self.acked + 1 {
            self.oldest_bytes = bytes;
        }
    }

    const fn oldest_is_large(&self) -> bool {
        self.oldest_bytes > FragmentSize::MIN.datagram_bytes()
    }

    /// What the next hop can take.
    pub(super) const fn credit(&self) -> u64 {
        self.credit
    }

    /// The fast path has sent what comes after `from`, up to here. If entries are being sent again from
    /// further back, that goes on.
    pub(super) fn followed(&mut self, now: Time, from: u64, upto: u64) {
        if upto > from && self.cursor > from && self.cursor <= upto {
            self.cursor = upto + 1;
            self.told = self.told.max(upto);
            self.since.get_or_insert(now);
        }
    }

    /// The server has everything up to here, so the next hop has it too.
    pub(super) fn pass(&mut self, applied: u64) {
        self.acked = self.acked.max(applied);
        self.cursor = self.cursor.max(self.acked + 1);
    }

    /// A bypass is on its way to the server, which will wait for what this device still holds.
    pub(super) const fn hurry(&mut self) {
        self.hurry = true;
        self.held_since = None;
    }

    /// Whether the entries up to `persisted` should wait for more now.
    fn lingers(&mut self, now: Time, persisted: u64, linger: Nanos) -> bool {
        let waiting = (persisted + 1).saturating_sub(self.cursor);
        if waiting == 0 {
            self.held_since = None;
            self.hurry = false;
            return false;
        }
        if self.hurry {
            return false;
        }
        let since = *self.held_since.get_or_insert(now);
        if waiting >= LINGER_ENTRIES || now.since(since) >= linger {
            self.hurry();
        }
        !self.hurry
    }

    /// When entries that wait for more are sent in any case.
    pub(super) fn lingers_until(&self, linger: Nanos) -> Option<Time> {
        self.held_since.map(|since| since + linger)
    }

    /// When to send again, if something is under way; otherwise, when to ask.
    pub(super) fn due(&self, outstanding: bool) -> Option<Time> {
        if outstanding {
            Some(self.since? + self.rto.timeout())
        } else {
            Some(self.quiet_since? + ASK_EVERY)
        }
    }
}

impl Device {
    /// The next order to send to the next hop, if there is one that is durable here and that the
    /// next hop has room for. The node hands its frame to [`Device::forward`].
    pub fn poll_forward(&mut self, now: Time) -> Option<u64> {
        if !self.is_serving() {
            return None;
        }
        // The clients have their acknowledgements: the server is woken for many entries at once,
        // unless somebody waits for it.
        let to_server = self.chain.position + 1 == self.chain.members.len();
        let ready = if self.config.rules.hold(Rule::WriteAhead) {
            self.cursors.persisted
        } else {
            self.cursors.last
        };
        let linger = self.config.server_linger;
        if to_server && self.link.lingers(now, ready, linger) {
            return None;
        }
        let link = &mut self.link;
        let limit = ready.min(link.acked.saturating_add(link.window.min(link.credit)));
        if link.cursor > limit {
            if self.cursors.applied < self.cursors.last && link.since.is_none() {
                link.since = Some(now);
            }
            return None;
        }
        if to_server && self.config.server_reads_log && link.cursor > link.told {
            link.cursor = limit;
        }
        let order = link.cursor;
        link.polled = order;
        link.told = link.told.max(order);
        link.cursor += 1;
        if link.since.is_none() {
            link.since = Some(now);
        }
        if link.timed.is_none() {
            link.timed = Some((order, now));
        }
        Some(order)
    }

    /// Sends one frame of the log to the next hop. Frames of an earlier epoch are sent in this one.
    pub fn forward(&mut self, frame: &[u8], frame_epoch: u32, out: &mut Outbox) {
        self.counters.forwarded += 1;
        self.link.sends(frame.len());
        let sealed = !self.has_keys() || has_tag(frame);
        if sealed && self.sends_as_stored(self.link.polled, frame_epoch) {
            out.send_raw(self.config.next, frame);
            return;
        }
        let packet = Packet::parse(frame)
            .expect("the log verified this frame when it was appended or scanned");
        let header = Append::in_epoch(&packet.header, self.epoch, self.chain.shard_token);
        let (seal, next) = (self.hop_seal(), self.config.next);
        out.seal_checked(seal, next, &header, packet.payload);
    }

    /// Whether an entry is sent on with the bytes that the log has: it is of this epoch, and with keys this device has sealed it.
    #[must_use]
    pub fn sends_as_stored(&self, order: u64, frame_epoch: u32) -> bool {
        let unsealed = !self.config.rules.hold(Rule::SealAnew);
        frame_epoch == self.epoch && (order > self.chain.stored_before || unsealed)
    }

    /// The same for an entry of this epoch that whoever sends takes out of the log: `frame` is its place there.
    ///
    /// # Panics
    /// It is of another epoch, so its header has to change.
    pub fn forward_logged(&mut self, frame: Range<usize>, frame_epoch: u32, out: &mut Outbox) {
        assert_eq!(frame_epoch, self.epoch, "the header stays as it is");
        self.counters.forwarded += 1;
        self.link.sends(frame.len());
        out.send_logged(self.config.next, frame);
    }

    /// The next hop has all entries up to here, and can take so many more. Large packets may be lost on the way there, and nobody says why: then
    /// this device's paths count as the narrowest from now on, which the server hears with the next look at them.
    pub(super) fn hear(&mut self, upto: u64, room: u64) {
        let link = &self.link;
        let lost = upto == link.acked && link.stalled >= LOST_AFTER && link.oldest_is_large();
        self.loses_large |= lost && room > 0;
    }

    /// Whether it has turned out that large packets do not arrive at the next hop, and small ones do.
    #[must_use]
    pub const fn loses_large(&self) -> bool {
        self.loses_large
    }

    pub(super) fn on_retrans(&mut self, now: Time, header: &Header, out: &mut Outbox) {
        let first = Retrans::read(header).first;
        if first <= self.cursors.applied {
            // It asks for what it had applied: an old packet, or a store that lost data.
            self.probe(now, out);
        }
        let link = &mut self.link;
        let order = first.max(link.acked + 1);
        let recently = link
            .rewound
            .is_some_and(|(o, at)| o == order && now.since(at) < super::RETRANS_GUARD / 2);
        if order < link.cursor && !recently {
            self.counters.retransmissions += 1;
            link.rewound = Some((order, now));
            link.cursor = order;
            link.timed = None;
        }
    }

    pub(super) fn tick_link(&mut self, now: Time, out: &mut Outbox) {
        let outstanding = self.cursors.applied < self.cursors.last;
        if !outstanding {
            self.link.since = None;
        }
        if self.link.due(outstanding).is_none_or(|due| now < due) {
            return;
        }
        if !outstanding {
            // In a chain that nobody uses, this is how a device hears of a later epoch.
            self.link.heard(now);
            self.ping_next(out);
            return;
        }
        let link = &mut self.link;
        link.rto.back_off();
        link.since = Some(now);
        link.timed = None;
        let arrived = link.acked + 1 >= link.cursor;
        if !arrived {
            link.window = (link.window / 2).max(WINDOW_MIN);
            link.cursor = link.acked + 1;
            link.stalled += 1;
        }
        // Everything has arrived, and only APPLIED is missing; or large entries may be lost on the way, and a PING is not.
        // With keys, a hop that knows another chain may be able to verify a PING only, which names its sender.
        let keyed = self.config.keys.is_some();
        if arrived || keyed || link.oldest_is_large() {
            self.ping_next(out);
        }
    }

    fn ping_next(&self, out: &mut Outbox) {
        let ping = Ping {
            session: 0,
            // A server that has lost its record of the chain verifies it under this token.
            client: if self.config.keys.is_some() {
                self.chain.shard_token
            } else {
                0
            },
            start: 0,
        };
        let ping = ping.header(&self.stamp());
        out.seal(self.hop_seal(), self.config.next, &ping, &[]);
    }

    /// Longest silence of the next hop before this device sends again, now.
    #[must_use]
    pub fn link_timeout(&self) -> Nanos {
        self.link.rto.timeout()
    }
}

/// Returns whether an entry has a tag. A fast path leaves it at 0 in the entries that it does not send on itself: who sends them seals them.
fn has_tag(frame: &[u8]) -> bool {
    frame[HEADER_LEN - 8..HEADER_LEN] != [0; 8]
}
