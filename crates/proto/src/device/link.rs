//! The link to the next hop: the sent orders, the confirmed orders, and the time to send again (`docs/spec/protocol.md`
//! §2 rules 3 and 4).

use super::{Device, DeviceConfig};
use crate::rto::Rto;
use crate::rules::Rule;
use crate::time::{Nanos, SECOND};
use crate::{Outbox, Time};
use pmnet_wire::packet::{Append, Ping, Retrans};
use pmnet_wire::{FragmentSize, HEADER_LEN, Header, Packet};
use std::ops::Range;

/// Timeouts after which an undelivered large entry counts as too large for the path to the next hop.
const LOST_AFTER: u32 = 8;
/// Window after a timeout, in entries.
const WINDOW_MIN: u64 = 16;
/// Number of waiting entries that are sent without further delay.
const LINGER_ENTRIES: u64 = 512;
/// If nothing is under way to the next hop and no packet came from it for this long, the device asks it how far it is.
const ASK_EVERY: Nanos = SECOND;
/// The same after a question without an answer: a lost packet must not look like a lost device.
const ASK_AGAIN: Nanos = ASK_EVERY / 4;

#[derive(Debug)]
pub(super) struct Link {
    /// The next hop holds all entries up to this order durably (a device), or has applied them (the server).
    pub(super) acked: u64,
    /// Next order to send.
    cursor: u64,
    window: u64,
    window_max: u64,
    /// Number of entries that the next hop can take, as it said.
    credit: u64,
    rto: Rto,
    /// Time at which the timer was last started: when an entry was sent or confirmed.
    since: Option<Time>,
    /// When the next hop last said something in this epoch; at first, when the epoch began.
    heard: Option<Time>,
    /// As `heard`, or when the next hop was asked while nothing was under way, whichever was last.
    quiet_since: Option<Time>,
    timed: Option<(u64, Time)>,
    rewound: Option<(u64, Time)>,
    /// Time since which durable entries wait for more entries before they are sent to the server.
    held_since: Option<Time>,
    /// Highest order that was ever sent, or left for the server to read from the log. Entries up to this order are sent
    /// again one by one.
    told: u64,
    /// A bypass has passed that waits for these entries, so they are sent without delay.
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

    /// Starts again from `acked`, without knowledge of the next hop.
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
    /// the device continues with those entries.
    pub(super) fn followed(&mut self, now: Time, from: u64, upto: u64) {
        if upto > from && self.cursor > from && self.cursor <= upto {
            self.cursor = upto + 1;
            self.told = self.told.max(upto);
            self.since.get_or_insert(now);
        }
    }

    /// The server has applied all entries up to this order, so the next hop holds them, too.
    pub(super) fn pass(&mut self, applied: u64) {
        self.acked = self.acked.max(applied);
        self.cursor = self.cursor.max(self.acked + 1);
    }

    /// A bypass is on its way to the server, which will wait for the entries that this device still holds back.
    pub(super) const fn hurry(&mut self) {
        self.hurry = true;
        self.held_since = None;
    }

    /// Whether the entries up to `persisted` should wait for further entries now.
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

    /// The time to send again, if something is under way; otherwise the time to ask the next hop.
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
    /// Returns when the next hop last said something in this epoch; at first, when the device began to serve in it.
    /// `None`: the device has not served. A next hop that runs says something about once a second.
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
        // The clients are already acknowledged, so the server is woken for many entries at once, unless a bypass waits
        // for them.
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

    /// Takes note that the next hop has all entries up to `upto`, and can take `room` more. If the path seems to lose
    /// large packets without an error, this device's paths count as the narrowest from now on. The server learns this
    /// with the next measurement of the paths.
    pub(super) fn hear(&mut self, upto: u64, room: u64) {
        let link = &self.link;
        let lost = upto == link.acked && link.stalled >= LOST_AFTER && link.oldest_is_large();
        self.loses_large |= lost && room > 0;
    }

    /// Whether the device has found out that the network delivers only small packets to the next hop.
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
            // A device of an idle chain learns of a later epoch by this PING.
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
        // A PING asks the next hop in three cases: all entries have arrived and only APPLIED is missing; large entries
        // may be lost, while a PING is small; or, with keys, the next hop knows another chain and can verify only a
        // PING, which names its sender.
        let keyed = self.config.keys.is_some();
        if arrived || keyed || link.oldest_is_large() {
            self.ping_next(out);
        }
    }

    fn ping_next(&self, out: &mut Outbox) {
        let ping = Ping {
            session: 0,
            // A server that has lost its record of the chain verifies the PING with this token.
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

/// Returns whether an entry has a tag. A fast path leaves the tag 0 in entries that it does not forward itself; the
/// device seals these when it sends them.
fn has_tag(frame: &[u8]) -> bool {
    frame[HEADER_LEN - 8..HEADER_LEN] != [0; 8]
}
