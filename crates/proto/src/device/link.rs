//! The link to the next hop: which orders were sent, which are confirmed, and when to send again
//! (`docs/spec/protocol.md` §2 rules 3 and 4).

use super::{Device, DeviceConfig};
use crate::rto::Rto;
use crate::rules::Rule;
use crate::time::{Nanos, SECOND};
use crate::{Outbox, Time};
use pmnet_wire::packet::{Append, Ping, Retrans};
use pmnet_wire::{FragmentSize, HEADER_LEN, Header, Packet};
use std::ops::Range;

/// Number of timeouts of a large entry after which the entry counts as too large for the path to the next hop.
const LOST_AFTER: u32 = 8;
/// Window after a timeout, in entries.
const WINDOW_MIN: u64 = 16;
/// If this number of entries waits for more entries, they are sent at once.
const LINGER_ENTRIES: u64 = 512;
/// If the store has applied all entries, and no packet came from the next hop for this long, the device sends it a
/// PING.
const ASK_EVERY: Nanos = SECOND;
/// Interval of further PINGs while the next hop does not answer. It is shorter than [`ASK_EVERY`], so that one lost
/// packet does not look like a lost device.
const ASK_AGAIN: Nanos = ASK_EVERY / 4;

#[derive(Debug)]
pub(super) struct Link {
    /// Last confirmed order: a device holds all entries up to it durably, or the server has applied them.
    pub(super) acked: u64,
    /// Next order to send.
    cursor: u64,
    window: u64,
    window_max: u64,
    /// Number of entries that the next hop can take, as its last packet stated it.
    credit: u64,
    rto: Rto,
    /// Time at which the timer was last started: when an entry was sent or confirmed.
    since: Option<Time>,
    /// Time of the next hop's last packet in this epoch; before its first packet, time at which the epoch began.
    heard: Option<Time>,
    /// Time of the last event of these two: `heard`, or a PING to the next hop after all entries were applied.
    quiet_since: Option<Time>,
    timed: Option<(u64, Time)>,
    rewound: Option<(u64, Time)>,
    /// Time since which durable entries wait for more entries before they are sent to the server.
    held_since: Option<Time>,
    /// Highest order that was ever sent, or that the server was left to read from the log. An entry up to this order is
    /// a repetition, and is always sent as a packet.
    told: u64,
    /// A bypass on its way to the server waits for the held entries, so they are sent without delay.
    hurry: bool,
    /// Last order that was given out for sending.
    polled: u64,
    /// Bytes of the oldest unconfirmed entry, if it was sent (`oldest_bytes`), and timeouts since the last confirmation
    /// (`stalled`).
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
            heard: None,
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

    /// Begins to send again after order `acked`, and forgets what was measured before.
    pub(super) fn restart(&mut self, acked: u64) {
        self.acked = acked;
        self.cursor = acked + 1;
        self.told = acked;
        self.since = None;
        self.timed = None;
        self.rto.progress();
    }

    /// A packet of the next hop has come in this epoch, or the epoch begins.
    pub(super) const fn heard(&mut self, now: Time) {
        self.heard = Some(now);
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

    /// Notes that an entry of `bytes` is sent.
    const fn sends(&mut self, bytes: usize) {
        if self.polled == self.acked + 1 {
            self.oldest_bytes = bytes;
        }
    }

    const fn oldest_is_large(&self) -> bool {
        self.oldest_bytes > FragmentSize::MIN.datagram_bytes()
    }

    /// Returns the number of entries that the next hop can take.
    pub(super) const fn credit(&self) -> u64 {
        self.credit
    }

    /// The fast path has sent the entries after `from`, up to `upto`. If this device is sending earlier entries again,
    /// it still continues with the earlier entries.
    pub(super) fn followed(&mut self, now: Time, from: u64, upto: u64) {
        if upto > from && self.cursor > from && self.cursor <= upto {
            self.cursor = upto + 1;
            self.told = self.told.max(upto);
            self.since.get_or_insert(now);
        }
    }

    /// The server has applied all entries up to this order, so they also count as confirmed by the next hop.
    pub(super) fn pass(&mut self, applied: u64) {
        self.acked = self.acked.max(applied);
        self.cursor = self.cursor.max(self.acked + 1);
    }

    /// A bypass is on its way to the server, and will wait there for the entries that this device still holds back. So
    /// these are sent at once.
    pub(super) const fn hurry(&mut self) {
        self.hurry = true;
        self.held_since = None;
    }

    /// Whether the unsent entries up to `persisted` should wait for further entries.
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

    /// Returns the time when waiting entries are sent at the latest.
    pub(super) fn lingers_until(&self, linger: Nanos) -> Option<Time> {
        self.held_since.map(|since| since + linger)
    }

    /// Returns the time to send again, if the store has not applied all entries (`outstanding`), or else the time of
    /// the next PING.
    pub(super) fn due(&self, outstanding: bool) -> Option<Time> {
        if outstanding {
            Some(self.since? + self.rto.timeout())
        } else {
            let unanswered = self.heard < self.quiet_since;
            let every = if unanswered { ASK_AGAIN } else { ASK_EVERY };
            Some(self.quiet_since? + every)
        }
    }
}

impl Device {
    /// Returns the time of the next hop's last packet in this epoch; before its first packet, the time at which the
    /// device began to serve in the epoch. `None`: the device has not served. A running next hop sends a packet about
    /// once a second.
    #[must_use]
    pub const fn next_hop_heard(&self) -> Option<Time> {
        self.link.heard
    }

    /// Returns the next order to send to the next hop, if an entry is durable in this device and the next hop has room
    /// for it. The node passes the entry's frame to [`Device::forward`].
    pub fn poll_forward(&mut self, now: Time) -> Option<u64> {
        if !self.is_serving() {
            return None;
        }
        // The clients have been acknowledged already, so the server is woken for many entries at once, unless a bypass
        // waits for them.
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

    /// Sends one frame of the log to the next hop. A frame of an earlier epoch is sent with the present epoch.
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

    /// Whether an entry is forwarded with its stored bytes: it is of the present epoch and, with keys, has this
    /// device's present seal.
    #[must_use]
    pub fn sends_as_stored(&self, order: u64, frame_epoch: u32) -> bool {
        let unsealed = !self.config.rules.hold(Rule::SealAnew);
        frame_epoch == self.epoch && (order > self.chain.stored_before || unsealed)
    }

    /// Sends an entry of the present epoch for a port that takes entries from the log itself. `frame`: the entry's
    /// place in the frame space.
    ///
    /// # Panics
    /// If the entry is of another epoch, so that its header would have to change.
    pub fn forward_logged(&mut self, frame: Range<usize>, frame_epoch: u32, out: &mut Outbox) {
        assert_eq!(frame_epoch, self.epoch, "the header stays as it is");
        self.counters.forwarded += 1;
        self.link.sends(frame.len());
        out.send_logged(self.config.next, frame);
    }

    /// Notes whether the path to the next hop seems to lose large packets without an error. `upto`, `room`: the next
    /// hop has all entries up to `upto`, and can take `room` more. If the path loses large packets, this device from
    /// now on reports the smallest fragment size for its paths, and the server learns it with the next measurement.
    pub(super) fn hear(&mut self, upto: u64, room: u64) {
        let link = &self.link;
        let lost = upto == link.acked && link.stalled >= LOST_AFTER && link.oldest_is_large();
        self.loses_large |= lost && room > 0;
    }

    /// Whether the device has found that the network delivers only small packets to the next hop.
    #[must_use]
    pub const fn loses_large(&self) -> bool {
        self.loses_large
    }

    pub(super) fn on_retrans(&mut self, now: Time, header: &Header, out: &mut Outbox) {
        let first = Retrans::read(header).first;
        if first <= self.cursors.applied {
            // The next hop asks for an order that it had applied: the packet is old, or the store has lost data.
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
            // The next hop's answer to this PING tells the device of an idle chain whether there is a later epoch.
            self.link.quiet_since = Some(now);
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
        // Three cases need a PING instead of an entry. All entries have arrived, and only APPLIED is missing. Or large
        // entries are lost, and a small packet may arrive. Or, with keys, the next hop knows another chain, and can
        // verify only a PING, because a PING names its sender.
        let keyed = self.config.keys.is_some();
        if arrived || keyed || link.oldest_is_large() {
            self.ping_next(out);
        }
    }

    fn ping_next(&self, out: &mut Outbox) {
        let ping = Ping {
            session: 0,
            // A server that has lost its chain record needs this token to verify the PING.
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

    /// Returns the present retransmission timeout towards the next hop.
    #[must_use]
    pub fn link_timeout(&self) -> Nanos {
        self.link.rto.timeout()
    }
}

/// Returns whether an entry has a tag. A fast path leaves the tag 0 in entries that it does not forward itself. The
/// device seals such an entry when it sends the entry.
fn has_tag(frame: &[u8]) -> bool {
    frame[HEADER_LEN - 8..HEADER_LEN] != [0; 8]
}
