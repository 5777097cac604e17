//! One device of a chain, and the node around it: the bench keeps the frames that the device appends.

use super::{EPOCH, SESSION, SHARD, SHARD_TOKEN, Sent, TOKEN, datagram, ms, peer, take};
use pmnet_proto::device::{Device, DeviceConfig, LogState, Room, Served, Verdict};
use pmnet_proto::time::Nanos;
use pmnet_proto::{Outbox, Peer, Random, Time};
use pmnet_wire::packet::{ReadKeys, Stamp};
use pmnet_wire::record::{DurableRow, Member, RecoverReply, SessionRow, write_durable};
use pmnet_wire::{Flags, Header, Kind, Packet, Payloads, raw};

pub struct Bench {
    pub device: Device,
    pub id: u32,
    pub now: Time,
    pub room: Room,
    /// The frames as the log would keep them, in order; the first has order 1.
    pub frames: Vec<Vec<u8>>,
    out: Outbox,
}

pub const ROOM: Room = Room {
    entries: 1_000,
    entries_max: 1_024,
    frame_bytes: 1 << 20,
    bytes_max: u64::MAX,
};

pub fn client() -> Peer {
    peer(200)
}

pub fn server() -> Peer {
    peer(100)
}

/// Device `id` as the chain record lists it.
pub fn member(id: u32) -> Member {
    Member {
        device: id,
        incarnation: 1,
        log_uuid: u128::from(id),
        tail: 0,
        applied: 0,
        flags: 0,
        word_epoch: 0,
        served: 99,
        size: pmnet_wire::FragmentSize::MAX,
    }
}

/// The address of hop `id`: of device `id`, or of the server for the id after the last device's.
pub fn hop(chain: u32, id: u32) -> Peer {
    if id > chain {
        server()
    } else {
        peer(u8::try_from(id).expect("small"))
    }
}

/// Settings of device `id`. Entries for the server are sent at once, without waiting for more entries.
pub fn config(id: u32, next: Peer) -> DeviceConfig {
    DeviceConfig {
        server_linger: 0,
        ..DeviceConfig::new(id, SHARD, next)
    }
}

/// The header of a packet of this kind, as the client of the bench's session sends it.
pub fn from_client(kind: Kind, seq: u64) -> Header {
    Header {
        shard: SHARD,
        epoch: EPOCH,
        session: SESSION,
        seq,
        tag: TOKEN,
        ..Header::new(kind)
    }
}

/// READ 5 of the bench's session.
pub fn ask() -> Header {
    let stamp = Stamp {
        epoch: EPOCH,
        tag: TOKEN,
        ..Stamp::of(&from_client(Kind::Read, 0))
    };
    let read = ReadKeys {
        size: 0,
        session: SESSION,
        request: 5,
        kept: false,
        replicas: false,
    };
    read.header(&stamp)
}

/// The header of update `seq` of the bench's session.
pub fn update(seq: u64) -> Header {
    from_client(Kind::Update, seq)
}

/// The head's answer to a packet that it does not admit.
#[track_caller]
pub fn refused(bench: &mut Bench, header: &Header) -> Sent {
    let sent = super::only(bench.answer(client(), header, b"payload"));
    assert_eq!((sent.to, sent.header.tag), (client(), header.tag));
    let most = b"payload".len();
    assert!(
        sent.payload.len() <= most,
        "no answer is larger than its question"
    );
    sent
}

/// The header of a packet of this kind, as a neighbour hop sends it.
pub fn from_hop(kind: Kind, device: u32) -> Header {
    Header {
        shard: SHARD,
        epoch: EPOCH,
        device,
        incarnation: 1,
        tag: SHARD_TOKEN,
        ..Header::new(kind)
    }
}

/// The entry with this order. The session's OPEN has order 1, so an update has seq `order − 1`.
pub fn entry(order: u64) -> (Header, Vec<u8>) {
    let kind = if order == 1 { Kind::Open } else { Kind::Update };
    let header = Header {
        copies: raw(kind.number()),
        session: SESSION,
        seq: order - 1,
        order,
        ..from_hop(Kind::Append, 1)
    };
    let payload = if order == 1 {
        TOKEN.to_be_bytes().to_vec()
    } else {
        b"payload".to_vec()
    };
    (header.for_payload(&payload), payload)
}

impl Bench {
    /// Device `id`, just started. The device's log holds `frames` after the applied entries.
    pub fn starting(config: DeviceConfig, state: LogState, frames: Vec<Vec<u8>>) -> Bench {
        let id = config.id;
        let device = Device::new(config, state, Random::new(5), ms(1));
        Bench {
            device,
            id,
            now: ms(1),
            room: ROOM,
            frames,
            out: Outbox::new(),
        }
    }

    /// Device `id` of the chain 1 … `chain`, serving, with an empty log.
    pub fn serving(chain: u32, id: u32) -> Bench {
        Bench::serving_with(chain, config(id, hop(chain, id + 1)))
    }

    pub fn serving_with(chain: u32, config: DeviceConfig) -> Bench {
        Bench::serving_for(Payloads::NOT_SAID, chain, config)
    }

    /// Returns a serving device whose server takes these payloads.
    pub fn serving_for(takes: Payloads, chain: u32, config: DeviceConfig) -> Bench {
        let state = LogState {
            log_uuid: config.id.into(),
            incarnation: 1,
            served: 1,
            epoch: 0,
            last: 0,
            applied: 0,
        };
        let next = config.next;
        let mut bench = Bench::starting(config, state, Vec::new());
        let recover = super::only(bench.tick());
        let reply = Header {
            kind: Kind::RecoverReply,
            flags: Flags::READS,
            epoch: EPOCH,
            order: 0,
            key_hash: raw(takes.on_wire()),
            tag: 0,
            ..recover.header
        };
        let verdict = bench.give(next, &reply, &table(chain, &[]));
        bench.resume(&verdict);
        assert!(bench.device.is_serving());
        bench
    }

    /// The head of a chain; the bench's session is open and committed.
    pub fn head(chain: u32) -> Bench {
        Bench::head_with(chain, config(1, hop(chain, 2)))
    }

    pub fn head_with(chain: u32, config: DeviceConfig) -> Bench {
        let mut bench = Bench::serving_with(chain, config);
        bench.open(chain);
        bench
    }

    /// Opens the bench's session, and commits the OPEN in every device.
    pub fn open(&mut self, chain: u32) {
        let open = Header {
            session: 0,
            ..from_client(Kind::Open, 0)
        };
        self.admit(&open, &TOKEN.to_be_bytes());
        self.device.persisted(1);
        if chain > 1 {
            self.durable(chain, 1);
        }
        let reply = super::only(self.finish());
        assert_eq!(
            (reply.header.kind, reply.header.session),
            (Kind::OpenReply, SESSION)
        );
    }

    pub fn give(&mut self, from: Peer, header: &Header, payload: &[u8]) -> Verdict {
        let bytes = datagram(header, payload);
        let packet = Packet::parse(&bytes).expect("a whole packet");
        let verdict = self
            .device
            .receive(self.now, from, &packet, self.room, &mut self.out);
        if let Verdict::Append(header) = &verdict {
            let mut frame = header.emit().to_vec();
            frame.extend_from_slice(payload);
            self.frames.push(frame);
        }
        verdict
    }

    /// Gives the device a packet, which must be appended. Returns the entry's header.
    #[track_caller]
    pub fn admit(&mut self, header: &Header, payload: &[u8]) -> Header {
        let from = if header.kind == Kind::Append {
            peer(1)
        } else {
            client()
        };
        match self.give(from, header, payload) {
            Verdict::Append(entry) => entry,
            other => panic!("not appended: {other:?}"),
        }
    }

    /// Gives the device a packet, which must not be appended. Returns the device's answers.
    #[track_caller]
    pub fn answer(&mut self, from: Peer, header: &Header, payload: &[u8]) -> Vec<Sent> {
        assert_eq!(self.give(from, header, payload), Verdict::Done);
        take(&mut self.out)
    }

    /// Gives the device a DURABLE of all devices after it, up to `order`.
    pub fn durable(&mut self, chain: u32, order: u64) {
        let rows: Vec<DurableRow> = (self.id + 1..=chain)
            .map(|device| DurableRow {
                device,
                incarnation: 1,
                order,
            })
            .collect();
        let header = Header {
            order,
            request: raw(1_000),
            ..from_hop(Kind::Durable, self.id + 1)
        };
        let next = hop(chain, self.id + 1);
        assert_eq!(
            self.give(next, &header, &write_durable(&rows)),
            Verdict::Done
        );
    }

    /// The packets that the device wants sent.
    pub fn take(&mut self) -> Vec<Sent> {
        take(&mut self.out)
    }

    pub fn finish(&mut self) -> Vec<Sent> {
        self.device.finish(self.now, self.room, &mut self.out);
        take(&mut self.out)
    }

    pub fn tick(&mut self) -> Vec<Sent> {
        self.device.tick(self.now, &mut self.out);
        take(&mut self.out)
    }

    pub fn tick_after(&mut self, nanos: Nanos) -> Vec<Sent> {
        self.now = self.now + nanos;
        self.tick()
    }

    /// The entries that the device forwards now, in their order.
    pub fn forwards(&mut self) -> Vec<Sent> {
        while let Some(order) = self.device.poll_forward(self.now) {
            let frame = &self.frames[usize::try_from(order - 1).expect("small")];
            let epoch = Packet::parse(frame).expect("a frame").header.epoch;
            self.device.forward(frame, epoch, &mut self.out);
        }
        take(&mut self.out)
    }

    /// Takes the steps of the node for [`Verdict::Resume`].
    #[track_caller]
    pub fn resume(&mut self, verdict: &Verdict) -> Served {
        let Verdict::Resume(recovery) = verdict else {
            panic!("not resumed: {verdict:?}")
        };
        let applied = recovery.applied();
        let last = u64::try_from(self.frames.len())
            .expect("small")
            .max(applied);
        let frames = self.frames.iter().map(Vec::as_slice);
        let above = frames.skip(usize::try_from(applied).expect("small"));
        self.device
            .serve(self.now, recovery.clone(), last, above)
            .expect("its own frames")
    }
}

/// Payload of a recover-reply for the chain 1 … `chain`.
pub fn table(chain: u32, sessions: &[SessionRow]) -> Vec<u8> {
    RecoverReply {
        shard_token: SHARD_TOKEN,
        members: (1..=chain).map(member).collect(),
        sessions: sessions.to_vec(),
    }
    .write()
}
