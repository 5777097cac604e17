//! A client with one session, and the head that it talks to.

use super::{EPOCH, SESSION, SHARD, Sent, datagram, ms, peer, take};
use bytes::Bytes;
use pmnet_proto::client::{
    CallId, Client, ClientConfig, Closed, Event, Outcome, Refused, SessionHandle,
};
use pmnet_proto::time::{MILLISECOND, Nanos, SECOND};
use pmnet_proto::{Outbox, Peer, Random, Time};
use pmnet_wire::{Flags, Header, Kind, raw};

pub struct Bench {
    pub client: Client,
    pub session: SessionHandle,
    pub token: u64,
    pub now: Time,
    out: Outbox,
}

pub fn head() -> Peer {
    peer(1)
}

pub fn config() -> ClientConfig {
    ClientConfig {
        shard: SHARD,
        ..ClientConfig::new(head())
    }
}

impl Bench {
    /// A client that has sent its OPEN, and has no answer yet.
    pub fn opening(config: ClientConfig) -> (Bench, Sent) {
        let mut client = Client::new(config, Random::new(7));
        let session = client.open(ms(1)).expect("the first session");
        let mut bench = Bench {
            client,
            session,
            token: 0,
            now: ms(1),
            out: Outbox::new(),
        };
        let open = super::only(bench.flush());
        bench.token = open.header.tag;
        (bench, open)
    }

    /// A client with an open session. The head's reply to its OPEN came after one millisecond.
    pub fn open_with(config: ClientConfig) -> Bench {
        let (mut bench, _) = Bench::opening(config);
        bench.now = bench.now + MILLISECOND;
        bench.receive(&bench.reply(Kind::OpenReply), &[]);
        bench
    }

    pub fn open() -> Bench {
        Bench::open_with(config())
    }

    /// The header of a packet of this kind, as the head sends it in this session.
    pub fn reply(&self, kind: Kind) -> Header {
        Header {
            shard: SHARD,
            epoch: EPOCH,
            device: 1,
            incarnation: 1,
            copies: raw(u8::from(!matches!(kind, Kind::Nack | Kind::NotLogged))),
            session: SESSION,
            request: raw(10_000),
            tag: self.token,
            ..Header::new(kind)
        }
    }

    pub fn receive(&mut self, header: &Header, payload: &[u8]) {
        self.client
            .receive(self.now, head(), &datagram(header, payload));
    }

    pub fn ack(&mut self, seq: u64) {
        self.receive(
            &Header {
                seq,
                ..self.reply(Kind::Ack)
            },
            &[],
        );
    }

    pub fn nack(&mut self, seq: u64) {
        self.receive(
            &Header {
                seq,
                request: raw(0),
                ..self.reply(Kind::Nack)
            },
            &[],
        );
    }

    pub fn not_logged(&mut self, seq: u64) {
        self.receive(
            &Header {
                seq,
                ..self.reply(Kind::NotLogged)
            },
            &[],
        );
    }

    pub fn response(&mut self, request: u64, flags: Flags, payload: &[u8]) {
        self.receive(
            &Header {
                request: raw(request),
                flags,
                ..self.reply(Kind::Response)
            },
            payload,
        );
    }

    /// Gives the client a confirmation that all seqs up to `seq` are applied. The confirmation has not passed the head.
    pub fn confirm_fallback(&mut self, seq: u64) {
        let header = Header {
            seq,
            flags: Flags::FALLBACK,
            ..self.reply(Kind::Response)
        };
        self.receive(&header, &[]);
    }

    /// The packets that the client sends now.
    pub fn flush(&mut self) -> Vec<Sent> {
        self.client.flush(self.now, &mut self.out);
        take(&mut self.out)
    }

    /// The packets that the client sends after this time.
    pub fn after(&mut self, nanos: Nanos) -> Vec<Sent> {
        self.now = self.now + nanos;
        self.flush()
    }

    pub fn try_update(&mut self, bytes: usize) -> Result<CallId, Refused> {
        let payload = Bytes::from(vec![b'u'; bytes]);
        self.client
            .update(self.session, payload, 9, self.now + SECOND)
    }

    pub fn update(&mut self) -> CallId {
        self.try_update(10).expect("accepted")
    }

    pub fn bypass(&mut self, read_only: bool) -> CallId {
        let payload = Bytes::from_static(b"bypass");
        let deadline = self.now + SECOND;
        self.client
            .bypass(self.session, payload, 9, read_only, deadline)
            .expect("accepted")
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.client.poll_event()).collect()
    }

    /// Calls that ended since the last look, with their outcomes.
    #[track_caller]
    pub fn outcomes(&mut self) -> Vec<(CallId, Outcome)> {
        self.events()
            .into_iter()
            .map(|event| match event {
                Event::Done { call, outcome, .. } => (call, outcome),
                closed => panic!("the session closed: {closed:?}"),
            })
            .collect()
    }

    /// Calls that ended, and the reason why their session closed afterwards.
    #[track_caller]
    pub fn closed(&mut self) -> (Vec<(CallId, Outcome)>, Closed) {
        let mut events = self.events();
        let Some(Event::SessionClosed { reason, .. }) = events.pop() else {
            panic!("the session did not close: {events:?}")
        };
        let outcomes = events.into_iter().map(|event| match event {
            Event::Done { call, outcome, .. } => (call, outcome),
            other => panic!("neither an outcome nor the end: {other:?}"),
        });
        (outcomes.collect(), reason)
    }
}
