//! The device, its medium, and its neighbours' knowledge.

use std::collections::{BTreeMap, VecDeque};

use pmnet_device::{DeviceConfig, DeviceError, DeviceNode};
use pmnet_log::{FrameSpace, Log};
use pmnet_proto::time::{MILLISECOND, SECOND};
use pmnet_proto::{Peer, Place, Random, Time};
use pmnet_wire::record::{Member, RecoverReply, SessionRow, read_path};
use pmnet_wire::{Header, Kind, Packet, raw};

use super::buffers::{self, Port};
use crate::input::Input;
use crate::log::{formatted, recover};
use crate::medium::Forgetful;
use crate::peers::{SHARD, client, datagram, parsed, peer, server};

/// Maximum number of packets that may arrive again.
const RECENT_MAX: usize = 16;
/// Maximum number of packets that one turn may send beyond one per received packet: a window of
/// entries, with a margin.
const TURN_MAX: usize = 256;
/// Maximum number of sessions of the device.
const SESSIONS_MAX: usize = 6;

/// The world of one input.
pub(super) struct World {
    pipeline: Option<DeviceNode<Forgetful>>,
    /// The port that receives packets, if the log is packet buffers.
    port: Option<Port>,
    config: DeviceConfig,
    pub(super) now: Time,
    /// Whether neighbours are honest.
    pub(super) honest: bool,
    pub(super) chain: u8,
    pub(super) position: u8,
    pub(super) epoch: u32,
    pub(super) token: u64,
    /// The device's own last RECOVER.
    pub(super) recover: Option<Header>,
    /// The last incarnation that has reported to serve, or is about to.
    served: u32,
    /// Packets that were sent to the next hop, by order.
    pub(super) forwarded: BTreeMap<u64, (Header, Vec<u8>)>,
    /// The durable orders of the later hops, as they reported them.
    pub(super) durable: Vec<u64>,
    /// The server's A and its session table.
    pub(super) applied: u64,
    pub(super) rows: BTreeMap<u64, (u64, u64)>,
    /// Sessions that clients know: id, token, highest acknowledged seq.
    pub(super) sessions: Vec<(u64, u64, u64)>,
    acknowledged: u64,
    recent: VecDeque<(Peer, Vec<u8>)>,
    /// Number of packets of this turn so far.
    delivered: usize,
    stopped: bool,
}

impl World {
    pub(super) fn new(input: &mut Input<'_>, in_place: bool) -> World {
        let honest = !input.rarely(3);
        let chain = 1 + input.byte() % 3;
        let position = input.byte() % chain;
        let next = if position + 1 == chain {
            server()
        } else {
            peer(position + 2)
        };
        let config = DeviceConfig {
            sessions_max: SESSIONS_MAX,
            session_entries_max: input.pick(&[u64::MAX, 20]),
            session_idle: input.pick(&[600 * SECOND, SECOND]),
            link_window_max: 64,
            receive_window: 32,
            server_linger: input.pick(&[0, 8 * MILLISECOND]),
            flags: input.pick(&[0, 0, 0, Member::SHRINK, Member::DECLARE_LOSS]),
            ..DeviceConfig::new(u32::from(position) + 1, SHARD, next)
        };
        let ring = pmnet_log::Parameters::ring(64, input.pick(&[8192, 65_536]));
        let parameters = if in_place { buffers::PARAMETERS } else { ring };
        let log = recover(formatted(&parameters));
        let now = Time(MILLISECOND);
        let (pipeline, port) = started(&config, log, Random::new(5), now);
        let mut world = World {
            pipeline: Some(pipeline),
            port,
            config,
            now,
            honest,
            chain,
            position,
            epoch: 1,
            token: 0x5a4d_0001,
            recover: None,
            served: 0,
            forwarded: BTreeMap::new(),
            durable: vec![0; usize::from(chain - position - 1)],
            applied: 0,
            rows: BTreeMap::new(),
            sessions: Vec::new(),
            acknowledged: 0,
            recent: VecDeque::new(),
            delivered: 0,
            stopped: false,
        };
        if !input.rarely(8) {
            world.finish(input);
            world.right_replies();
        }
        world
    }

    pub(super) fn pipeline(&self) -> &DeviceNode<Forgetful> {
        self.pipeline.as_ref().expect("there is one between lives")
    }

    pub(super) fn next(&self) -> Peer {
        self.config.next
    }

    /// Returns the address of the previous hop, if the device is not the head.
    pub(super) fn before(&self) -> Peer {
        if self.position == 0 {
            client(9)
        } else {
            peer(self.position)
        }
    }

    /// Delivers bytes to the device.
    pub(super) fn deliver(&mut self, from: Peer, bytes: Vec<u8>) {
        if self.stopped {
            return;
        }
        self.delivered += 1;
        let now = self.now;
        let pipeline = self.pipeline.as_mut().expect("there is one between lives");
        let answered = pipeline.out().len();
        let result = match &mut self.port {
            Some(port) => port.receive(pipeline, now, from, &bytes),
            None => pipeline.receive(now, from, &bytes),
        };
        let back: usize = pipeline
            .out()
            .iter()
            .skip(answered)
            .filter(|(to, _)| *to == from)
            .map(|(_, bytes)| bytes.len())
            .sum();
        // The next hop is the configured one, which may be asked about a doubt.
        assert!(
            back <= bytes.len() || from == self.config.next,
            "{back} bytes back for {}",
            bytes.len()
        );
        self.ended(result);
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((from, bytes));
        self.check_cursors();
    }

    /// Delivers a packet to the device.
    pub(super) fn give(&mut self, from: Peer, header: &Header, payload: &[u8]) {
        self.deliver(from, datagram(header, payload));
    }

    /// Delivers an earlier packet again.
    pub(super) fn again(&mut self, input: &mut Input<'_>) {
        if !self.recent.is_empty() {
            let at = input.index(self.recent.len());
            let (from, bytes) = self.recent[at].clone();
            self.deliver(from, bytes);
        }
    }

    /// Delivers an earlier packet again, changed and from any sender.
    pub(super) fn forged(&mut self, input: &mut Input<'_>) {
        if self.honest || self.recent.is_empty() {
            return;
        }
        let at = input.index(self.recent.len());
        let Ok(packet) = Packet::parse(&self.recent[at].1) else {
            return;
        };
        let (mut header, payload) = (packet.header, packet.payload.to_vec());
        header.kind = input.pick(Kind::ALL);
        super::packets::disturb(&mut header, input);
        let from = input.pick(&[self.next(), self.before(), client(0), client(1)]);
        self.give(from, &header, &payload);
    }

    /// Lets time pass and ends the burst. `false`: the device has stopped.
    pub(super) fn finish(&mut self, input: &mut Input<'_>) -> bool {
        let nanos = input.pick(&[
            0,
            1000,
            MILLISECOND,
            12 * MILLISECOND,
            SECOND / 3,
            700 * SECOND,
        ]);
        self.now = self.now + nanos;
        let now = self.now;
        if !self.stopped {
            let pipeline = self.pipeline.as_mut().expect("there is one between lives");
            let result = pipeline.finish(now);
            let _ = pipeline.next_timeout();
            self.ended(result.map(|_| ()));
        }
        self.look_at_what_was_sent();
        self.check_cursors();
        !self.stopped
    }

    fn ended(&mut self, result: Result<(), DeviceError>) {
        match result {
            Ok(()) => {}
            Err(error) => {
                assert!(!error.to_string().is_empty());
                let stop = matches!(error, DeviceError::Stopped(_));
                assert!(stop || !self.honest, "the medium does not fail: {error}");
                self.stopped = true;
            }
        }
    }

    fn check_cursors(&self) {
        let machine = self.pipeline().machine();
        let (last, persisted, committed, applied) = machine.cursors();
        assert!(applied <= committed && committed <= last && persisted <= last);
        if self.position == 0 && self.honest {
            let most = SESSIONS_MAX + self.rows.len();
            assert!(machine.sessions() <= most, "sessions are bounded");
        }
        if machine.is_serving() && !self.stopped && self.honest {
            assert_eq!(last, self.pipeline().log().last(), "machine and log agree");
            assert!(persisted <= self.pipeline().log().durable());
        }
    }

    fn look_at_what_was_sent(&mut self) {
        let pipeline = self.pipeline.as_mut().expect("there is one between lives");
        assert!(
            pipeline.out().len() <= self.delivered + TURN_MAX,
            "{:?}",
            pipeline.out()
        );
        let sent = sent(pipeline);
        let durable = pipeline.log().durable();
        let least = self.durable.iter().copied().min().unwrap_or(u64::MAX);
        for (to, packet) in parsed(sent.iter().map(|(to, bytes)| (*to, &bytes[..]))) {
            let header = packet.header;
            assert_eq!(header.shard, SHARD);
            match header.kind {
                Kind::Recover if header.device == self.config.id => {
                    let path = read_path(packet.payload).expect("a path");
                    self.served = path[0].served;
                    self.recover = Some(header);
                }
                Kind::Append => {
                    assert_eq!(to, self.config.next);
                    if self.honest {
                        assert!(header.order <= durable, "forwarded before it was durable");
                    }
                    let payload = packet.payload.to_vec();
                    self.forwarded.insert(header.order, (header, payload));
                }
                Kind::OpenReply
                    if self.sessions.len() < 16
                        && self.sessions.iter().all(|(id, ..)| *id != header.session) =>
                {
                    self.sessions.push((header.session, header.tag, 0));
                }
                Kind::Ack if self.honest => {
                    assert!(
                        header.order <= durable,
                        "acknowledged before it was durable"
                    );
                    assert!(
                        header.order <= least.max(self.applied),
                        "not durable behind"
                    );
                    assert_eq!(header.copies, raw(self.chain));
                    self.acknowledged = self.acknowledged.max(header.order);
                    for known in &mut self.sessions {
                        if known.0 == header.session {
                            known.2 = known.2.max(header.seq);
                        }
                    }
                }
                _ => {}
            }
        }
        pipeline.sent();
        if let Some(port) = &mut self.port {
            port.exchange(pipeline);
        }
        self.delivered = 0;
    }

    /// Delivers an honest server's replies to the device's RECOVERs. The device asks once more when
    /// its log is marked as serving.
    pub(super) fn right_replies(&mut self) {
        for _ in 0..2 {
            if let Some((header, reply)) = self.reply() {
                self.give(self.next(), &header, &reply.write());
            }
            if self.stopped || self.pipeline().machine().is_serving() {
                return;
            }
            self.finish(&mut Input::new(&[]));
        }
    }

    pub(super) fn reply(&self) -> Option<(Header, RecoverReply)> {
        let recover = self.recover?;
        let header = Header {
            kind: Kind::RecoverReply,
            epoch: self.epoch,
            order: self.applied,
            tag: 0,
            fragment_index: 0,
            fragment_count: 1,
            ..recover
        };
        let members = (1..=self.chain).map(|id| Member {
            device: u32::from(id),
            incarnation: 1,
            log_uuid: u128::from(id),
            tail: 0,
            applied: 0,
            flags: 0,
            word_epoch: 0,
            served: if id == self.position + 1 {
                self.served
            } else {
                1
            },
            size: pmnet_wire::FragmentSize::MAX,
        });
        let sessions = self
            .rows
            .iter()
            .map(|(&session, &(token, last_seq))| SessionRow {
                session,
                last_seq,
                token,
                front: None,
            });
        let reply = RecoverReply {
            shard_token: self.token,
            members: members.collect(),
            sessions: sessions.take(30).collect(),
        };
        Some((header, reply))
    }

    /// Lets the device die and start again.
    pub(super) fn restart(&mut self, input: &mut Input<'_>) -> bool {
        self.look_at_what_was_sent();
        let pipeline = self.pipeline.take().expect("there is one between lives");
        let medium = pipeline.into_media();
        let medium = match input.byte() % 3 {
            0 => medium.kill(),
            1 => medium.crash(0, 0),
            _ => medium.crash(input.long(), 4),
        };
        let log = recover(medium);
        if self.honest {
            assert!(log.last() >= self.acknowledged, "acknowledged and lost");
        }
        let random = Random::new(u64::from(log.incarnation()));
        self.recover = None;
        self.stopped = false;
        self.recent.clear();
        let (pipeline, port) = started(&self.config, log, random, self.now);
        (self.pipeline, self.port) = (Some(pipeline), port);
        if self.finish(input) && !input.rarely(4) {
            self.right_replies();
            self.check_sessions();
        }
        !self.stopped
    }

    /// Checks that after a recovery each session knows its acknowledged updates, or is over.
    fn check_sessions(&self) {
        let machine = self.pipeline().machine();
        if !self.honest || !machine.is_serving() {
            return;
        }
        for (id, _, acknowledged) in &self.sessions {
            if let Some(admitted) = machine.admitted(*id) {
                assert!(
                    admitted >= *acknowledged,
                    "session {id} forgot what was acknowledged"
                );
            }
        }
    }
}

/// Starts a device over this log, with a port if the log is packet buffers.
fn started(
    config: &DeviceConfig,
    log: Log<Forgetful>,
    random: Random,
    now: Time,
) -> (DeviceNode<Forgetful>, Option<Port>) {
    let buffers = log.parameters().space != FrameSpace::Ring;
    let make = |log| DeviceNode::new(config.clone(), log, random, now);
    if buffers {
        let (device, port) = buffers::started(log, make);
        (device, Some(port))
    } else {
        (make(log), None)
    }
}

/// Returns all packets that a device wants to send.
fn sent(device: &DeviceNode<Forgetful>) -> Vec<(Peer, Vec<u8>)> {
    let out = device.out();
    let bytes = |place: Place| match &place.logged {
        Some(frame) => (place.to, device.log().lent(frame).to_vec()),
        None => (place.to, out.bytes(place.range).to_vec()),
    };
    out.places().map(bytes).collect()
}
