//! A device with a loaded pipeline, which gets its packets from this module instead of from an interface. The state
//! machine is that of the product. This module plays the clients and the server.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, ensure};
use pmnet_client::Clock;
use pmnet_dataplane::xdp::{Dispatcher, KernelConfig, MapMedia, OpenConfig, Opened, Pins, open};
use pmnet_device::{DeviceConfig, DeviceNode};
use pmnet_log::Identity;
use pmnet_proto::keys::{ClusterKeys, DeviceKeys};
use pmnet_proto::time::{Nanos, SECOND};
use pmnet_proto::{Peer, Random, Time};
use pmnet_wire::packet::{self, Fragment, Stamp};
use pmnet_wire::record::{RecoverReply, read_path};
use pmnet_wire::{ClusterKey, FrontKey, Header, Kind, Life, MacKey, Packet as Wire};

use super::frame;
use super::packet::Packet;
use super::plan::{Plan, Tags};
use crate::bench::micro::pinned::Pinned;
use crate::xdp::{Feeder, Target};

/// Maximum number of sessions in a measurement.
pub const SESSIONS_MAX: usize = 4096;
/// Number of rows of the session table, as in `pmnet device`.
const ROWS: u32 = 65_536;
/// Number of buckets of the read index, as in `pmnet device`.
const BUCKETS: u32 = 65_536;
const SHARD: u32 = 0;
const DEVICE: u32 = 1;
const EPOCH: u32 = 1;
const SHARD_TOKEN: u64 = 0x1122_3344_5566_7788;
const LIFE: Life = Life {
    shard: SHARD,
    token: SHARD_TOKEN,
};
const PORT: u16 = 51_000;
/// Port of the first client; each client has its own.
const CLIENT_PORT: u16 = 40_001;
/// Maximum number of turns within which the device must have no more packets to send.
const TURNS_MAX: u32 = 64;
/// Length of the device's lease. The lease is longer than any measurement.
const LEASE: Nanos = 24 * 3600 * SECOND;
/// Time by which each turn advances the clock, in nanoseconds. This time is longer than all timers of a start.
const TURN: u64 = 300_000_000;

/// The shard's keys, as the other parties hold them.
struct Keys {
    cluster: ClusterKey,
    front: FrontKey,
}

impl Keys {
    fn new() -> Keys {
        let cluster = ClusterKey::new(fastrand::u128(..).to_be_bytes());
        let front = cluster.front(cluster.front_id(b"bench"));
        let front = front.expect("it is derived from the same key");
        Keys { cluster, front }
    }
}

/// Returns the datagram, with a MAC if there is a key.
fn written(key: Option<MacKey>, header: Header, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let header = match key {
        Some(key) => key.seal(&header.for_payload(payload), payload),
        None => header,
    };
    header.write(payload, &mut out);
    out
}

struct Client {
    address: SocketAddr,
    token: u64,
    /// The key of the sender of the packet.
    key: Option<MacKey>,
    session: u64,
    seq: u64,
}

/// Returns the stamp of a client's packets in its session.
fn stamp(token: u64) -> Stamp {
    Stamp {
        shard: SHARD,
        epoch: EPOCH,
        tag: token,
        ..Stamp::default()
    }
}

/// A device, with the prepared packets.
pub struct Stand {
    pipeline: DeviceNode<MapMedia>,
    feeder: Feeder,
    // While the dispatcher is open, its programs can be tail-called.
    _dispatcher: Option<Dispatcher>,
    clients: Vec<Client>,
    keys: Option<Keys>,
    address: SocketAddr,
    server: Peer,
    now: Time,
    /// Number of packets made so far. The number makes each packet different.
    made: usize,
    /// Hash of the key whose update is the answer to READs.
    shown: u64,
    _lock: File,
    // Dropped last, because the pinned objects are removed when no other field uses them.
    _pinned: Pinned,
}

impl Stand {
    /// Returns a new device with the log of the plan. The device serves this many sessions, and the feeder has space
    /// for one batch of prepared packets.
    pub fn new(
        plan: &Plan,
        tags: Tags,
        ipv6: bool,
        sessions: usize,
        number: usize,
    ) -> anyhow::Result<Stand> {
        let keys = (tags == Tags::Mac).then(Keys::new);
        let of_device = keys.as_ref().map(|keys| DeviceKeys {
            cluster: ClusterKeys::new(keys.cluster),
            next: 0,
        });
        let batch = plan.batch;
        let host = |last: u8| -> IpAddr {
            if ipv6 {
                Ipv6Addr::new(0xfd51, 0, 0, 0, 0, 0, 0, last.into()).into()
            } else {
                Ipv4Addr::new(10, 0, 0, last).into()
            }
        };
        let (address, server) = (
            SocketAddr::new(host(1), PORT),
            SocketAddr::new(host(200), PORT),
        );
        let pinned = Pinned::new(number, 0);
        let config = OpenConfig {
            kernel: KernelConfig {
                address,
                own: None,
                parameters: plan.log,
                sessions_max: ROWS,
                read_buckets: BUCKETS,
                keys: of_device.as_ref().map(|keys| keys.cluster.print()),
            },
            identity: Identity {
                log_uuid: u128::from(fastrand::u64(..)),
                device: DEVICE,
                shard: SHARD,
            },
            exactly: true,
            spill: None,
            anew: false,
        };
        let Opened {
            mut kernel,
            log,
            lock,
            ..
        } = open(&config, &Pins::open(&pinned.0)?)?;
        let pipeline = kernel.pipeline()?;
        let mut dispatcher = match plan.beside {
            0 => None,
            beside => {
                // No packet is addressed to the ports of these devices. The port of the measured device is compared
                // last.
                let mut devices: Vec<_> = (2..2 + beside)
                    .map(|more| (PORT + more, pipeline))
                    .collect();
                devices.push((PORT, pipeline));
                Some(Dispatcher::load(&devices)?)
            }
        };
        let fed = match &mut dispatcher {
            Some(dispatcher) => dispatcher.fd()?,
            None => pipeline,
        };
        let feeder = Feeder::new(fed, &pinned.0, batch)?;
        let mut device = DeviceConfig::new(DEVICE, SHARD, server);
        device.leased = plan.leased;
        device.keys = of_device;
        let now = Time(1);
        let pipeline = DeviceNode::new(device, log, Random::new(fastrand::u64(..)), now)
            .with_fast_path(Box::new(kernel));
        let mut stand = Stand {
            pipeline,
            feeder,
            _dispatcher: dispatcher,
            clients: Vec::new(),
            keys,
            address,
            server,
            now,
            made: 0,
            shown: fastrand::u64(1..),
            _lock: lock,
            _pinned: pinned,
        };
        stand.recover()?;
        if plan.leased {
            let now = Clock::boottime().now();
            stand.pipeline.renewed(EPOCH, now, LEASE);
        }
        for index in 0..sessions {
            let port = CLIENT_PORT + u16::try_from(index)?;
            stand.open(SocketAddr::new(host(7), port))?;
            // A small log has no space for all updates at once, so the earlier ones are applied first.
            stand.apply()?;
        }
        // Every session appends an update, which can then be repeated.
        for _ in 0..u32::try_from(sessions)?.div_ceil(batch) {
            stand.prepare(Packet::Update, 0, batch)?;
            stand.run_pipeline(Packet::Update, batch)?;
        }
        Ok(stand)
    }

    /// Plays the server until the device has recovered and serves.
    fn recover(&mut self) -> anyhow::Result<()> {
        for _turn in 0..TURNS_MAX {
            let mut replies = Vec::new();
            for (_, bytes) in self.turn()? {
                let asked = Wire::parse(&bytes).map_err(|reason| anyhow::anyhow!("{reason}"))?;
                if asked.header.kind != Kind::Recover {
                    continue;
                }
                let payload = RecoverReply {
                    shard_token: SHARD_TOKEN,
                    members: read_path(asked.payload).context("a RECOVER names its path")?,
                    sessions: Vec::new(),
                }
                .write();
                let header = packet::RecoverReply {
                    applied: 0,
                    nonce: packet::Recover::read(&asked.header).nonce,
                    payloads: 0,
                    part: Fragment::WHOLE,
                    refused: false,
                    held: false,
                    erase: false,
                    reads: true,
                };
                let stamp = Stamp {
                    epoch: EPOCH,
                    ..Stamp::of(&asked.header)
                };
                let keys = self.keys.as_ref();
                let key = keys.map(|keys| keys.cluster.asking(SHARD, 0));
                replies.push(written(key, header.header(&stamp), &payload));
            }
            for reply in &replies {
                self.pipeline.receive(self.now, self.server, reply)?;
            }
            if replies.is_empty() && self.pipeline.machine().is_head() {
                return Ok(());
            }
            self.now = Time(self.now.0 + TURN);
        }
        anyhow::bail!("the device does not begin to serve")
    }

    /// Lets the device run one turn. Returns the packets that it sends.
    fn turn(&mut self) -> anyhow::Result<Vec<(Peer, Vec<u8>)>> {
        self.pipeline.finish(self.now)?;
        let sent = self.pipeline.out().iter();
        let sent = sent.map(|(to, bytes)| (to, bytes.to_vec())).collect();
        self.pipeline.sent();
        Ok(sent)
    }

    fn open(&mut self, client: SocketAddr) -> anyhow::Result<()> {
        // The token is even. An odd token would make the session a mark.
        let token = fastrand::u64(1..1 << 60) << 1;
        let keys = self.keys.as_ref();
        let key = keys.map(|keys| keys.front.session(SHARD, token).to_head);
        let identity = packet::Identity {
            token,
            front: keys.map(|keys| keys.front.id()),
        };
        let stamp = Stamp {
            shard: SHARD,
            tag: token,
            ..Stamp::default()
        };
        let open = packet::Open {
            copies: 1,
            payloads: 0,
            client: 0,
            start: 0,
            searches: false,
        };
        let open = written(key, open.header(&stamp), &identity.write());
        self.pipeline.receive(self.now, client, &open)?;
        let said = self.turn()?;
        let session = said.iter().find_map(|(to, bytes)| {
            let header = Wire::parse(bytes).ok()?.header;
            (*to == client && header.kind == Kind::OpenReply).then_some(header.session)
        });
        self.clients.push(Client {
            address: client,
            token,
            key,
            session: session.context("the device opens no session")?,
            seq: 0,
        });
        Ok(())
    }

    /// Lets the state machine take the pipeline's appends, and lets the server apply all of them.
    pub fn apply(&mut self) -> anyhow::Result<()> {
        self.turn()?;
        let word = packet::Applied {
            received: 0,
            applied: self.pipeline.log().last(),
            room: u64::MAX,
            short: false,
            full: false,
        };
        let stamp = Stamp {
            shard: SHARD,
            epoch: EPOCH,
            tag: SHARD_TOKEN,
            ..Stamp::default()
        };
        let keys = self.keys.as_ref();
        let key = keys.map(|keys| keys.cluster.hop(LIFE, EPOCH, 0));
        let applied = written(key, word.header(&stamp), b"");
        self.pipeline.receive(self.now, self.server, &applied)?;
        self.turn()?;
        let (_, _, _, applied) = self.pipeline.machine().cursors();
        ensure!(
            applied == self.pipeline.log().last(),
            "the device does not take note of what was applied"
        );
        Ok(())
    }

    /// Makes the packets of a run. Packets that are appended can be used only once, so the next run needs new ones.
    pub fn prepare(
        &mut self,
        packet: Packet,
        payload_bytes: usize,
        count: u32,
    ) -> anyhow::Result<()> {
        let mut payload = vec![0; payload_bytes];
        if packet == Packet::ReadHit {
            // The store does not apply this update, so the pipeline answers all READs with it.
            fastrand::fill(&mut payload);
            self.shown = fastrand::u64(1..);
            let update = self.update(Packet::Update, self.shown, &payload)?;
            self.feeder.prepare(0, &update)?;
            self.feeder.run(Target::Pipeline, 1)?;
        }
        for index in 0..count {
            fastrand::fill(&mut payload);
            let frame = self.frame(packet, &payload)?;
            self.feeder.prepare(index, &frame)?;
        }
        Ok(())
    }

    fn frame(&mut self, packet: Packet, payload: &[u8]) -> anyhow::Result<Vec<u8>> {
        let client = &self.clients[self.made % self.clients.len()];
        let (from, to) = (client.address, self.address);
        let key_hash = match packet {
            Packet::ReadHit => self.shown,
            _ => fastrand::u64(1..),
        };
        match packet {
            Packet::Tcp => frame::tcp(from, to, payload.len()),
            Packet::Arp => Ok(frame::arp(from.ip(), to.ip())),
            _ if packet.is_read() => {
                self.made += 1;
                let read = packet::ReadKeys {
                    size: 0,
                    session: client.session,
                    request: fastrand::u64(1..),
                    kept: false,
                    replicas: false,
                };
                let header = read.header(&stamp(client.token));
                let datagram = written(client.key, header, &packet::write_hashes(&[key_hash]));
                frame::udp(from, to, &datagram)
            }
            _ => self.update(packet, key_hash, payload),
        }
    }

    fn update(&mut self, packet: Packet, key_hash: u64, payload: &[u8]) -> anyhow::Result<Vec<u8>> {
        let number = self.made % self.clients.len();
        self.made += 1;
        let client = &mut self.clients[number];
        if packet.appends() {
            client.seq += 1;
        }
        let (from, to) = (client.address, self.address);
        let update = packet::Update {
            session: client.session,
            seq: client.seq,
            key_hash,
            fragment: Fragment::WHOLE,
        };
        let header = update.header(&stamp(client.token));
        let header = match packet {
            Packet::Duplicate => Header {
                seq: fastrand::u64(1..=client.seq),
                ..header
            },
            // The number of a session is the order of its OPEN, counted from 1.
            Packet::Unknown => Header {
                session: fastrand::u64(1 << 40..),
                ..header
            },
            _ => header,
        };
        let mut datagram = written(client.key, header, payload);
        if packet == Packet::Damaged {
            let last = datagram.last_mut().context("a datagram has bytes")?;
            *last ^= 1;
        }
        let to = match packet {
            Packet::OtherPort => SocketAddr::new(to.ip(), PORT + 1),
            _ => to,
        };
        frame::udp(from, to, &datagram)
    }

    /// Feeds the prepared packets to the pipeline. Returns the time per packet. Fails if a packet has an unexpected
    /// result.
    pub fn run_pipeline(&mut self, packet: Packet, count: u32) -> anyhow::Result<Duration> {
        let before = self.feeder.counted()?;
        let (verdict, time) = self.feeder.run(Target::Pipeline, count)?;
        let after = self.feeder.counted()?;
        let expected = packet.counted(count.into());
        for (name, before, after, expected) in [
            (
                "appended",
                before.appended,
                after.appended,
                expected.appended,
            ),
            (
                "answered again",
                before.duplicates,
                after.duplicates,
                expected.duplicates,
            ),
            (
                "answered with an update",
                before.read_hits,
                after.read_hits,
                expected.read_hits,
            ),
            (
                "answered without one",
                before.read_misses,
                after.read_misses,
                expected.read_misses,
            ),
            (
                "handed up",
                before.handed_up,
                after.handed_up,
                expected.handed_up,
            ),
            (
                "of unknown sessions",
                before.sessions_unknown,
                after.sessions_unknown,
                expected.sessions_unknown,
            ),
            ("odd", before.odd, after.odd, expected.odd),
        ] {
            ensure!(
                after - before == expected,
                "{count} packets of the kind {}: {} were {name}, not {expected}",
                packet.name(),
                after - before
            );
        }
        ensure!(
            verdict == packet.verdict(),
            "{}: verdict {verdict}, not {}",
            packet.name(),
            packet.verdict()
        );
        if packet.appends() {
            let before = self.pipeline.log().last();
            self.apply()?;
            let appended = self.pipeline.log().last() - before;
            ensure!(
                appended == u64::from(count),
                "{count} updates were acknowledged, and {appended} are in the log"
            );
        }
        Ok(time)
    }

    /// Feeds the prepared packets to a program that does nothing. Returns the time per packet.
    pub fn run_nothing(&mut self, count: u32) -> anyhow::Result<Duration> {
        Ok(self.feeder.run(Target::Nothing, count)?.1)
    }
}
