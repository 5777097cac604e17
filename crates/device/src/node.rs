//! One device: the protocol machine and its log.

use crate::fast_path::FastPath;
use crate::port::{Buffers, Taken};
use pmnet_log::{FrameSpace, Full, Held, Log, LogError, Media, NewEntry};
use pmnet_proto::device::{Device, DeviceConfig, HopWork, LogState, Recovery, Room, Verdict};
use pmnet_proto::keys::{ClusterKeys, Seal};
use pmnet_proto::time::{MILLISECOND, Nanos, earliest};
use pmnet_proto::{FragmentSize, Outbox, Peer, Random, Time};
use pmnet_wire::packet::{Append, Identity};
use pmnet_wire::{HEADER_LEN, Header, Kind, Packet, Reject};
use std::ops::Range;

/// Reason why a device ended.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The log failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The port failed.
    #[error("the network port failed")]
    Port(#[from] std::io::Error),
    /// The cluster's keys changed, but the fast path could not be held, so it does not know the new keys.
    #[error(
        "PM1025 the kernel's part could not be held to be told of other keys, and goes on with those that it had, also without this process: whom the new \
         ones refuse is still served. Start this device again; what is acknowledged is in the log. {0}"
    )]
    Keys(std::io::Error),
    /// The shard must stop. The text says why, and what the operator must do.
    #[error("{0}")]
    Stopped(String),
}

/// Numbers of datagrams that were not acceptable packets, one for each reason, in the order of [`Reject::ALL`].
pub type Rejects = [u64; Reject::ALL.len()];

/// The fast path, and the state of its admission.
struct Fast {
    path: Box<dyn FastPath>,
    /// The fast path is held, so that only the machine admits.
    held: bool,
    /// The fast path was already admitting when this node was made, and the server has not answered this node yet.
    adopted: bool,
    /// The machine has followed entries of the fast path since the last [`DeviceNode::rest`].
    followed: bool,
    /// The fast path's progress with the neighbour hops, as the machine last took it in.
    seen: HopWork,
    /// Address of the previous hop, as the fast path was told.
    before: Option<Peer>,
    /// The fast path itself exchanges packets with the neighbour hops.
    in_chain: bool,
    /// The fast path passes all READs to the node, until it is told the state for READs again.
    reads_up: bool,
}

/// Longest time until the machine follows an entry of the fast path. The machine is not woken for each update, because
/// a wake-up would take longer than the update, and because the server gets entries in bursts anyway.
const FOLLOW_EVERY: Nanos = MILLISECOND;

/// Number of attempts to hold the fast path when the keys change. One attempt lasts as long as the fast path's own
/// timeout. After a failed attempt the process does not end at once, because the fast path would then continue with the
/// old keys.
const REKEY_TRIES: u32 = 3;

/// Hop limit assumed for a datagram from a network that does not count hops.
const HOPS_USUAL: u8 = 64;

/// One device over one log.
pub struct DeviceNode<M> {
    machine: Device,
    log: Held<Log<M>>,
    fast: Option<Fast>,
    next: Peer,
    /// A genuine packet from the next hop's address was received since the last [`DeviceNode::heard_next`].
    heard_next: bool,
    out: Outbox,
    rejects: Rejects,
    /// Sender of the last foreign datagram that did not come from the next hop. Foreign datagrams from the next hop are
    /// passed on to this address.
    foreign: Option<Peer>,
    stopped: Option<String>,
    /// The port can send logged packets directly from the log's buffers.
    sends_logged: bool,
    /// Number of entries that one [`DeviceNode::finish`] may forward, in addition to the number of entries that were
    /// appended since the last [`DeviceNode::finish`].
    forwards_max: usize,
    /// Last order in the log when entries were last forwarded.
    forwarded_at: u64,
    /// A persist has completed while another part of the process owned the log.
    persisted_away: bool,
    durable_before: u64,
}

impl<M: Media> DeviceNode<M> {
    /// Returns a device over a repaired log. The repair has already raised the log's incarnation durably.
    pub fn new(config: DeviceConfig, log: Log<M>, random: Random, now: Time) -> DeviceNode<M> {
        let state = LogState {
            log_uuid: log.identity().log_uuid,
            incarnation: log.incarnation(),
            served: log.served(),
            epoch: log.epoch(),
            last: log.last(),
            applied: log.applied(),
        };
        let next = config.next;
        DeviceNode {
            machine: Device::new(config, state, random, now),
            log: Held::new(log),
            fast: None,
            next,
            heard_next: false,
            out: Outbox::new(),
            rejects: [0; Reject::ALL.len()],
            foreign: None,
            stopped: None,
            sends_logged: false,
            forwards_max: usize::MAX,
            forwarded_at: 0,
            persisted_away: false,
            durable_before: 0,
        }
    }

    /// Adds a fast path, which appends to the image of this node's log. If the fast path already admits in the log's
    /// epoch and incarnation, it continues even before the server has answered this device. If the device needs leases,
    /// the fast path then answers only until the deadline that it knows.
    pub fn with_fast_path(mut self, mut path: Box<dyn FastPath>) -> DeviceNode<M> {
        if self.machine.is_leased() {
            path.answers_until(None);
        }
        self.machine.note_changes();
        let adopted = path.admits();
        if self.log.served() == self.log.incarnation() {
            // The log has already served in this incarnation, under an earlier process. A RECOVER of that process may
            // still be in the network.
            self.machine.log_goes_on();
        }
        self.fast = Some(Fast {
            path,
            held: !adopted,
            adopted,
            followed: false,
            seen: HopWork::default(),
            before: None,
            in_chain: false,
            reads_up: false,
        });
        self
    }

    /// Prepares the node for a port that receives and sends packets in the log's own buffers. The port gives received
    /// packets to [`DeviceNode::receive_in_place`], and sends entries directly from the log
    /// ([`pmnet_proto::Place::logged`]).
    pub fn with_packet_buffers(mut self) -> DeviceNode<M> {
        self.sends_logged = true;
        self
    }

    /// Limits the number of entries that one [`DeviceNode::finish`] forwards to the number of entries that were
    /// appended since the last `finish`, plus `entries` (at least 1). So a backlog shrinks. If entries are left,
    /// `finish` returns `true`, and the caller calls it again at once.
    pub(crate) fn forward_at_most(&mut self, entries: usize) {
        self.forwards_max = entries.max(1);
    }

    /// Returns whether the port may call [`DeviceNode::receive_in_place`].
    pub fn has_packet_buffers(&self) -> bool {
        self.log.parameters().space != FrameSpace::Ring
    }

    /// Returns the protocol machine, for its state and counters.
    pub const fn machine(&self) -> &Device {
        &self.machine
    }
    /// Tells the device that its lease was given or renewed ([`Device::renewed`]), and tells the fast path its new
    /// deadline at once.
    pub fn renewed(&mut self, epoch: u32, sent_at: Time, length: Nanos) {
        self.machine.renewed(epoch, sent_at, length);
        if let (Some(fast), Some(deadline)) = (&mut self.fast, self.machine.deadline()) {
            fast.path.answers_until(Some(deadline));
        }
    }
    /// Tells the device that its log does not survive the end of the process ([`Device::endanger`]).
    pub fn endanger(&mut self) {
        self.machine.endanger();
    }
    /// Sets other keys of the cluster ([`Device::rekey`]). The node first holds the fast path, and tells it the keys
    /// before it admits again.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn rekey(&mut self, now: Time, keys: ClusterKeys) -> Result<(), DeviceError> {
        let mut held = self.hold(now);
        for _again in 1..REKEY_TRIES {
            if !matches!(held, Err(DeviceError::Port(_))) {
                break;
            }
            held = self.hold(now);
        }
        held.map_err(|error| match error {
            DeviceError::Port(error) => DeviceError::Keys(error),
            error => error,
        })?;
        self.machine.rekey(keys);
        Ok(())
    }
    /// Returns the log.
    pub fn log(&self) -> &Log<M> {
        &self.log
    }
    /// Returns the numbers of datagrams that were not acceptable packets.
    pub const fn rejects(&self) -> &Rejects {
        &self.rejects
    }
    /// Returns the datagrams to send.
    pub const fn out(&self) -> &Outbox {
        &self.out
    }
    /// Clears the outbox: the caller has sent the datagrams of [`DeviceNode::out`].
    pub fn sent(&mut self) {
        self.out.clear();
    }
    /// Moves the datagrams for `to` into another outbox.
    pub fn divert(&mut self, to: Peer, other: &mut Outbox) {
        self.out.divert(to, other);
    }
    /// Returns the medium as the death of the process would leave it.
    pub fn into_media(self) -> M {
        self.log.into_inner().into_media()
    }

    /// Hands the log over to a store in the same region. Before [`DeviceNode::take_back`], no other method that needs
    /// the log may be called.
    ///
    /// # Panics
    /// If the log is already handed over.
    pub fn hand_over(&mut self) -> Log<M> {
        self.durable_before = self.log.durable();
        self.log.hand_over()
    }

    /// Takes the log back. The other owner must not have appended to it.
    ///
    /// # Panics
    /// If the log is not handed over.
    pub fn take_back(&mut self, log: Log<M>) {
        self.persisted_away |= log.durable() > self.durable_before;
        self.log.take_back(log);
    }

    fn room(&self) -> Room {
        self.room_of(self.log.room())
    }

    fn room_of(&self, room: pmnet_log::Room) -> Room {
        Room {
            entries: room.entries,
            entries_max: self.log.entries_max(),
            frame_bytes: room.frame_bytes,
            bytes_max: self.log.frame_bytes_max(),
        }
    }

    /// Processes one datagram of a burst, from a network that does not count hops.
    ///
    /// # Errors
    /// [`DeviceError`]: the device ends.
    pub fn receive(&mut self, now: Time, from: Peer, datagram: &[u8]) -> Result<(), DeviceError> {
        self.receive_with_hops(now, from, HOPS_USUAL, datagram)
    }

    /// Processes one datagram of a burst. `hops`: its remaining hop limit.
    ///
    /// # Errors
    /// [`DeviceError`]: the device ends.
    pub fn receive_with_hops(
        &mut self,
        now: Time,
        from: Peer,
        hops: u8,
        datagram: &[u8],
    ) -> Result<(), DeviceError> {
        let packet = match Packet::parse(datagram) {
            Ok(packet) => packet,
            Err(reason) => {
                self.reject(from, hops, datagram, reason);
                return Ok(());
            }
        };
        let Some(genuine) = self.machine.check(&packet) else {
            return Ok(());
        };
        self.heard_next |= from == self.next;
        if let Some(fast) = &mut self.fast
            && self.machine.may_close(&packet.header)
            && !std::mem::replace(&mut fast.reads_up, true)
        {
            // The fast path must stop answering READs before the machine follows the admitted entries. Otherwise it
            // could still answer a READ after the head has stamped the bypass with a barrier.
            fast.path.hand_reads_up();
        }
        self.follow(now)?;
        if self.machine.may_admit(&packet.header) && self.machine.is_serving() {
            self.hold(now)?;
        }
        let room = self.room();
        match self
            .machine
            .receive_genuine(now, from, &genuine, room, &mut self.out)
        {
            Verdict::Done => Ok(()),
            Verdict::Append(header) => {
                self.append(&header, packet.payload);
                Ok(())
            }
            Verdict::Hit(to, header, most, seal) => {
                self.show(to, &header, most, seal);
                Ok(())
            }
            Verdict::Resume(recovery) => self.resume(now, recovery),
            Verdict::Erase => self.erase(now),
            Verdict::Stop(text) => Err(self.stop(text)),
        }
    }

    /// Processes one packet of a burst. The packet lies in a lent buffer of the log. `frame`: the packet's range in the
    /// frame space.
    ///
    /// # Errors
    /// [`DeviceError`]: the device ends.
    pub fn receive_in_place(
        &mut self,
        now: Time,
        from: Peer,
        hops: u8,
        frame: &Range<usize>,
    ) -> Result<Taken, DeviceError> {
        let room = self.room_of(self.log.room_in_place());
        let packet = match Packet::parse(self.log.lent(frame)) {
            Ok(packet) => packet,
            Err(reason) => {
                let datagram = self.log.lent(frame).to_vec();
                self.reject(from, hops, &datagram, reason);
                return Ok(Taken::Refused);
            }
        };
        let bytes = HEADER_LEN + packet.payload.len();
        let (refused, cursors) = (self.machine.counters().refused(), self.machine.cursors());
        let verdict = self
            .machine
            .receive(now, from, &packet, room, &mut self.out);
        let is_refused = self.machine.counters().refused() != refused;
        self.heard_next |= from == self.next && !is_refused;
        match verdict {
            Verdict::Done if is_refused => Ok(Taken::Refused),
            Verdict::Done if self.machine.cursors() == cursors => Ok(Taken::NothingNew),
            Verdict::Done => Ok(Taken::Heard),
            Verdict::Append(header) => {
                let frame = frame.start..frame.start + bytes;
                let order = self.log.append_in_place(
                    &new_entry(&header),
                    &header.emit(),
                    &frame,
                    header.payload_crc,
                );
                appended(order, &header);
                Ok(Taken::Kept)
            }
            Verdict::Hit(to, header, most, seal) => {
                self.show(to, &header, most, seal);
                Ok(Taken::NothingNew)
            }
            Verdict::Resume(recovery) => self.resume(now, recovery).map(|()| Taken::Heard),
            Verdict::Erase => self.erase(now).map(|()| Taken::Heard),
            Verdict::Stop(text) => Err(self.stop(text)),
        }
    }

    fn reject(&mut self, from: Peer, hops: u8, datagram: &[u8], reason: Reject) {
        if let Some(at) = Reject::ALL.iter().position(|&known| known == reason) {
            self.rejects[at] += 1;
        }
        if reason != Reject::Foreign {
            return;
        }
        let to = if from == self.next {
            self.foreign
        } else {
            self.foreign = Some(from);
            Some(self.next)
        };
        // A device passes on foreign datagrams unchanged, with a hop limit reduced by one, as a router does. So a
        // datagram cannot circle for ever among devices that are wired in a circle.
        let hops = hops.saturating_sub(1);
        if let Some(to) = to.filter(|_| hops > 0) {
            self.out.pass(to, datagram, hops);
        }
    }

    fn append(&mut self, header: &Header, payload: &[u8]) {
        let new = new_entry(header);
        let order = self
            .log
            .append(&new, &header.emit(), payload, header.payload_crc);
        appended(order, header);
    }

    /// Answers a READ by a HIT with the update of the order that `header` names. Length and checksum of the payload are
    /// those that the client of the update has stated. The checksum is verified again.
    fn show(&mut self, to: Peer, header: &Header, most: FragmentSize, seal: Seal) {
        let kept = || {
            let alone = self.fast.is_none();
            self.log.kept_frame(header.order).filter(|_| alone)
        };
        // The update may be larger than the path to the reader allows: its fragment size was chosen for another path,
        // or the reader's path now carries less.
        let fits = |frame: &&[u8]| frame.len() <= most.datagram_bytes();
        let frame = self.log.frame(header.order).or_else(kept).filter(fits);
        let Some(frame) = frame else {
            let miss = self.machine.miss_instead(header);
            self.out.seal(seal, to, &miss, &[]);
            return;
        };
        // A damaged entry is not sent. The reader gets no answer, and asks the server after its timeout.
        if let Ok(entry) = Packet::parse(frame) {
            let shown = Header {
                payload_len: entry.header.payload_len,
                payload_crc: entry.header.payload_crc,
                ..*header
            };
            self.out.seal_checked(seal, to, &shown, entry.payload);
        }
    }

    /// Tells the device the size of fragments that its paths carry ([`Device::set_path`]).
    pub fn set_path(&mut self, now: Time, size: FragmentSize) {
        self.machine.set_path(now, size, &mut self.out);
    }

    /// Notes that a NIC takes messages of a session on one more connection ([`Device::bind`]).
    pub fn bind_session(&mut self, session: u64, whose: Identity) -> bool {
        self.machine.bind(session, whose)
    }

    /// Notes that such a connection is broken and its messages are processed ([`Device::unbind`]).
    pub fn unbind_session(&mut self, now: Time, session: u64) {
        self.machine.unbind(now, session);
    }

    /// Removes NOT_LOGGED packets from the outbox. The refused messages are offered to the machine again, so their
    /// clients need not know.
    pub(crate) fn tell_nobody_of_room(&mut self) {
        self.out.withdraw(&[Kind::NotLogged]);
    }

    /// Returns whether a packet has come from the next hop's address since the last call. With keys, only packets that
    /// a hop has sealed count.
    pub fn heard_next(&mut self) -> bool {
        std::mem::take(&mut self.heard_next)
    }

    /// Ends a burst: begins to persist appended entries, forwards and acknowledges durable entries, and runs timers.
    /// Returns true if something was done. Must also be called when a persist has completed.
    ///
    /// # Errors
    /// [`DeviceError`]: the device ends.
    pub fn finish(&mut self, now: Time) -> Result<bool, DeviceError> {
        if let Some(text) = &self.stopped {
            return Err(DeviceError::Stopped(text.clone()));
        }
        let before = self.out.len();
        self.follow(now)?;
        if let Some(fast) = &mut self.fast {
            self.machine.refresh(now, |id| fast.path.heard(id));
        }
        self.machine.tick(now, &mut self.out);
        if self.machine.own_entries() > 0 {
            self.hold(now)?;
        }
        while let Some(header) = self.machine.poll_own_entry(now, self.room()) {
            self.append(&header, &[]);
        }
        self.log.reclaim(self.machine.cursors().3);
        if self.log.gives_back() {
            self.hold(now)?;
        }
        let mut worked = self.persist()?;
        // On a synchronous medium the first persist is already complete; the second call starts a persist for entries
        // that arrived meanwhile.
        worked |= self.persist()?;
        self.forward(now);
        self.machine.weigh(now, self.room());
        self.publish(now)?;
        self.machine.finish(now, self.room(), &mut self.out);
        Ok(worked || self.out.len() != before)
    }

    /// Forwards durable entries, but at most the number that one turn may forward.
    fn forward(&mut self, now: Time) {
        let last = self.log.last();
        let appended = last.saturating_sub(std::mem::replace(&mut self.forwarded_at, last));
        let appended = usize::try_from(appended).unwrap_or(usize::MAX);
        for _ in 0..self.forwards_max.saturating_add(appended) {
            let Some(order) = self.machine.poll_forward(now) else {
                break;
            };
            let entry = self
                .log
                .entry(order)
                .expect("forwarded orders are in the log");
            if self.sends_logged && self.machine.sends_as_stored(order, entry.epoch) {
                let frame = self.log.frame_place(&entry);
                self.machine
                    .forward_logged(frame, entry.epoch, &mut self.out);
                continue;
            }
            let frame = self
                .log
                .frame(order)
                .expect("forwarded orders are in the log");
            self.machine.forward(frame, entry.epoch, &mut self.out);
        }
    }

    /// Lets log and machine follow the entries that the fast path has appended.
    fn follow(&mut self, now: Time) -> Result<(), DeviceError> {
        let Some(fast) = self.fast.as_mut().filter(|fast| !fast.held) else {
            return Ok(());
        };
        let work = fast.path.look();
        let first = self.log.last() + 1;
        let last = fast.path.last();
        if last < first && work == fast.seen {
            return Ok(());
        }
        if last >= first
            && let Err(error) = self.log.follow(last)
        {
            return Err(self.stop(error.to_string()));
        }
        if !self.machine.is_serving() {
            // The machine does not serve yet. It folds the whole log when the server has answered.
            return Ok(());
        }
        for order in first..=last {
            let frame = self.log.frame(order).expect("followed just now");
            if let Err(text) = self.machine.follow(now, frame) {
                return Err(self.stop(text));
            }
        }
        let durable = self.log.durable();
        if let Some(fast) = &mut self.fast {
            if self.machine.copies() == 1 {
                self.machine.followed_alone(durable);
            } else {
                self.machine.followed(now, durable, &fast.seen, &work);
            }
            fast.seen = work;
            fast.followed = true;
        }
        Ok(())
    }

    /// Stops the fast path. Until [`DeviceNode::publish`], only the machine admits.
    fn hold(&mut self, now: Time) -> Result<(), DeviceError> {
        if let Some(fast) = self.fast.as_mut().filter(|fast| !fast.held) {
            fast.path.hold()?;
            self.follow(now)?;
            if let Some(fast) = &mut self.fast {
                fast.held = true;
            }
        }
        Ok(())
    }

    /// Tells the fast path all changes, and lets it admit again. The node does this before it sends any packet about
    /// the changes.
    fn publish(&mut self, now: Time) -> Result<(), DeviceError> {
        let lags =
            |fast: &Fast| fast.in_chain && self.machine.fast_path_lags(&fast.seen, fast.before);
        let untold = self.fast.as_ref().is_some_and(lags) || self.machine.shares_untold();
        if self.machine.admits() && untold {
            self.hold(now)?;
            self.forward(now);
        }
        let recovering = !self.machine.is_serving();
        let goes_on = |fast: &Fast| fast.adopted && recovering;
        if !self.machine.admits() && !self.fast.as_ref().is_some_and(goes_on) {
            self.hold(now)?;
        }
        let Some(fast) = self.fast.as_mut().filter(|_| self.machine.admits()) else {
            return Ok(());
        };
        fast.adopted = false;
        // The fast path must know the new applied order before it is told that buckets are open again, because a mark
        // keeps all buckets closed until its END is applied.
        fast.path.applied(self.log.applied());
        let mut told = Ok(());
        let mut changed = Vec::new();
        if fast.held {
            let chain = self.machine.chain_state();
            let mut hold = fast.path.hold()?;
            fast.in_chain = hold.describe(&self.machine.stamp(), &chain);
            fast.before = chain.before;
            if !self.machine.is_leased() {
                hold.answers_for_ever();
            }
            self.machine.changed_sessions(|id, state| {
                if told.is_ok() {
                    told = hold.set_session(id, state);
                }
            });
            let state = self
                .machine
                .tell_reads(|at, bucket| changed.push((at, bucket)));
            hold.tell_reads(&state, &changed);
            fast.reads_up = false;
        } else {
            self.machine.changed_sessions(|id, state| {
                if told.is_ok() {
                    told = fast.path.refresh_session(id, state);
                }
            });
            if std::mem::take(&mut fast.reads_up) || self.machine.reads_untold() {
                let state = self
                    .machine
                    .tell_reads(|at, bucket| changed.push((at, bucket)));
                fast.path.tell_reads(&state, &changed);
            }
        }
        told?;
        if fast.held {
            fast.seen = fast.path.look();
            fast.path.hold()?.release(&self.log.tail())?;
            fast.held = false;
        }
        Ok(())
    }

    fn persist(&mut self) -> Result<bool, DeviceError> {
        let mut moved = std::mem::take(&mut self.persisted_away);
        moved |= self.log.persist_poll(false)?;
        if self.log.persist_start()? {
            moved |= self.log.persist_poll(false)?;
        }
        if moved && self.machine.is_serving() {
            self.machine.persisted(self.log.durable());
        }
        Ok(moved)
    }

    /// Returns when [`DeviceNode::finish`] must be called at the latest.
    pub fn next_timeout(&self) -> Option<Time> {
        self.machine.next_timeout()
    }

    /// Prepares a wait: returns [`DeviceNode::next_timeout`], and asks the fast path for a wake-up. If the fast path is
    /// busy, the node asks for no wake-up, and returns an earlier time at which it looks at the fast path again.
    ///
    /// # Errors
    /// [`DeviceError::Port`]: the fast path cannot be asked.
    pub fn rest(&mut self, now: Time) -> Result<Option<Time>, DeviceError> {
        let due = self.next_timeout();
        let Some(fast) = &mut self.fast else {
            return Ok(due);
        };
        if std::mem::take(&mut fast.followed) {
            return Ok(earliest(due, Some(now + FOLLOW_EVERY)));
        }
        fast.path.sleep()?;
        if fast.held {
            return Ok(due);
        }
        // The fast path may have worked since the last look, before the request for a wake-up. `last` is read after
        // `look`, because `look` forgets the wake-ups until now.
        let news = fast.path.look() != fast.seen && self.machine.is_serving();
        let more = news || fast.path.last() != self.log.last();
        Ok(if more { Some(now) } else { due })
    }

    /// Brings the log to the state in the server's answer, and then serves (`docs/spec/protocol.md` §5).
    fn resume(&mut self, now: Time, recovery: Recovery) -> Result<(), DeviceError> {
        self.hold(now)?;
        if let Some(fast) = &mut self.fast {
            fast.path.hold()?.forget_sessions()?;
        }
        while self.log.durable() < self.log.last() {
            self.log.persist_start()?;
            self.log.persist_poll(true)?;
        }
        self.log.set_epoch(recovery.epoch())?;
        let applied = recovery.applied();
        if applied > self.log.last() {
            if self.log.last() > 0 {
                return Err(self.stop(format!(
                    "PM1019 the server has applied orders up to {}, but this log ends at {}: it is an old copy of a log. \
                     Put the newest log back, or treat the device as lost.",
                    applied,
                    self.log.last()
                )));
            }
            self.log.reset_to(applied)?;
        }
        self.log.reclaim(applied);
        self.log.mark_served()?;
        let log = &self.log;
        let frames = (applied + 1..=log.last())
            .map(|order| log.frame(order).expect("recovery keeps a contiguous run"));
        if let Err(text) = self.machine.serve(now, recovery, log.last(), frames) {
            return Err(self.stop(text));
        }
        Ok(())
    }

    /// Discards the whole log durably. Its entries belong to a chain that continues without this device
    /// (`docs/spec/protocol.md` §5, "Joining").
    fn erase(&mut self, now: Time) -> Result<(), DeviceError> {
        // The hold also follows all entries that the fast path has appended, so that the log is complete.
        self.hold(now)?;
        let went_on = self.fast.as_ref().is_some_and(|fast| fast.adopted);
        if went_on && self.log.last() > 0 {
            return Err(self.stop(
                "PM1020 the log in the kernel is one that was used, and it went on while this device asked the server. Take it out \
                 with --detach --discard, then start this device with --join again."
                    .to_owned(),
            ));
        }
        // The serving mark is raised first, so every earlier copy of the log has a lower mark.
        self.log.mark_served()?;
        if let Some(fast) = &mut self.fast {
            fast.path.hold()?.forget_log()?;
        }
        if self.log.last() > 0 {
            self.log.reset_to(0)?;
        }
        self.machine.erased(now);
        Ok(())
    }

    fn stop(&mut self, text: String) -> DeviceError {
        if let Some(fast) = &mut self.fast {
            // The shard stops, so the fast path must not admit. If the hold fails, the reason of the stop is reported
            // nevertheless.
            fast.held = fast.path.hold().is_ok();
        }
        self.stopped = Some(text.clone());
        DeviceError::Stopped(text)
    }

    /// Returns the packet buffers of the log, for the port that moves packets in them.
    pub fn buffers(&mut self) -> &mut impl Buffers {
        &mut *self.log
    }

    /// Shuts down cleanly: all appended entries become durable.
    ///
    /// # Errors
    /// [`DeviceError::Log`].
    pub fn close(self) -> Result<(), DeviceError> {
        Ok(self.log.into_inner().close()?)
    }
}

fn new_entry(header: &Header) -> NewEntry {
    let entry = Append::read(header);
    NewEntry {
        session: entry.session,
        seq: entry.seq,
        kind: entry.entry.number(),
        fragment_index: entry.fragment.index,
        fragment_count: entry.fragment.count,
    }
}

fn appended(order: Result<u64, Full>, header: &Header) {
    let order = order.expect("the machine was told how much room there is");
    assert_eq!(order, header.order, "machine and log count the same orders");
}
