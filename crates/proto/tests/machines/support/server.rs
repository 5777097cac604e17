//! A server, and a store that does exactly what [`Work`] demands: it keeps effects in a list and records in a map, and
//! changes both in one step.

use super::{EPOCH, SESSION, SHARD, Sent, TOKEN, datagram, ms, peer, take};
use bytes::Bytes;
use pmnet_proto::server::{Server, ServerConfig, Stop, Work};
use pmnet_proto::{Outbox, Peer, Random, Time};
use pmnet_wire::record::{Member, write_path};
use pmnet_wire::{Header, Kind, Packet, raw};
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Store {
    /// Effects of applied updates, in order.
    pub effects: Vec<Vec<u8>>,
    /// Payloads of executed bypasses, in order.
    pub executed: Vec<Vec<u8>>,
    pub records: BTreeMap<Vec<u8>, Bytes>,
    /// The reply to the next executions. `None`: the reply is the number of earlier effects and executions.
    pub reply: Option<Bytes>,
    /// The name of the store; `None`: the store takes no writes.
    pub name: Option<&'static str>,
}

pub struct Bench {
    pub server: Server,
    pub store: Store,
    pub token: u64,
    pub now: Time,
    out: Outbox,
}

/// The address of the tail of the chain.
pub fn tail() -> Peer {
    peer(1)
}

pub fn config() -> ServerConfig {
    ServerConfig::new(SHARD)
}

impl Store {
    pub fn apply(&mut self, effects: &pmnet_proto::server::Effects) {
        self.effects
            .extend(effects.payloads.iter().map(|payload| payload.to_vec()));
        let keys: std::collections::BTreeSet<_> = effects.records.iter().map(|r| &r.0).collect();
        assert_eq!(
            keys.len(),
            effects.records.len(),
            "a record changes once in a step"
        );
        for (key, value) in &effects.records {
            match value {
                Some(value) => self.records.insert(key.clone(), value.clone()),
                None => self.records.remove(key),
            };
        }
    }

    fn execute(&mut self, work: &[pmnet_proto::server::Execution]) -> Vec<Bytes> {
        work.iter()
            .map(|execution| {
                let count = self.effects.len() + self.executed.len();
                self.executed.push(execution.payload.to_vec());
                let reply = self
                    .reply
                    .clone()
                    .unwrap_or_else(|| Bytes::from(format!(":{count}\r\n")));
                if let Some((key, prefix)) = &execution.record {
                    let value = [&prefix[..], &reply[..]].concat();
                    self.records.insert(key.clone(), value.into());
                }
                reply
            })
            .collect()
    }

    pub fn list(&self) -> Vec<(Vec<u8>, Bytes)> {
        self.records
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// The watermark in the store's records.
    pub fn watermark(&self) -> u64 {
        let value = self.records.get(&b"watermark"[..]);
        value.map_or(0, |value| {
            u64::from_be_bytes(value[..].try_into().expect("8 bytes"))
        })
    }

    /// The number of records whose key begins with `prefix`.
    pub fn count(&self, prefix: &str) -> usize {
        self.records
            .keys()
            .filter(|key| key.starts_with(prefix.as_bytes()))
            .count()
    }
}

impl Bench {
    /// A server over an empty store, with its records loaded.
    pub fn blank(config: ServerConfig) -> Bench {
        let mut bench = Bench {
            server: Server::new(config, Random::new(11)),
            store: Store::default(),
            token: 0,
            now: ms(1),
            out: Outbox::new(),
        };
        bench.work();
        bench
    }

    /// A server with a chain of one device in epoch [`EPOCH`], and the bench's session open.
    pub fn with(config: ServerConfig) -> Bench {
        let mut bench = Bench::blank(config);
        let path = [member(1)];
        bench.recover(1, &path);
        // To reach the epoch, the log is declared lost repeatedly. Each time a new epoch begins.
        for nonce in 2..=u64::from(EPOCH) {
            let again = Member {
                flags: Member::DECLARE_LOSS,
                log_uuid: nonce.into(),
                word_epoch: u32::try_from(nonce - 1).expect("small"),
                ..member(1)
            };
            bench.recover(nonce, &[again]);
        }
        let chain = bench.server.chain().expect("the chain is made").clone();
        assert_eq!(chain.epoch, EPOCH);
        bench.token = chain.shard_token;
        bench.append(1, Kind::Open, SESSION, 0, &TOKEN.to_be_bytes());
        bench.work();
        assert_eq!(bench.server.watermark(), 1);
        bench
    }

    pub fn new() -> Bench {
        Bench::with(config())
    }

    /// A new server process over the same store.
    pub fn restarted(self) -> Bench {
        let mut bench = Bench {
            server: Server::new(config(), Random::new(12)),
            out: Outbox::new(),
            ..self
        };
        bench.work();
        bench
    }

    /// The header of a packet of this kind, as the tail sends it.
    pub fn header(&self, kind: Kind) -> Header {
        Header {
            shard: SHARD,
            epoch: EPOCH,
            device: 1,
            incarnation: 1,
            session: SESSION,
            tag: self.token,
            ..Header::new(kind)
        }
    }

    pub fn try_give(&mut self, header: &Header, payload: &[u8]) -> Result<Vec<Sent>, Stop> {
        let bytes = datagram(header, payload);
        let packet = Packet::parse(&bytes).expect("a whole packet");
        self.server
            .receive(self.now, tail(), &packet, &mut self.out)?;
        Ok(take(&mut self.out))
    }

    #[track_caller]
    pub fn give(&mut self, header: &Header, payload: &[u8]) -> Vec<Sent> {
        self.try_give(header, payload).expect("the shard goes on")
    }

    /// Gives the server an entry of the log.
    pub fn append(
        &mut self,
        order: u64,
        kind: Kind,
        session: u64,
        seq: u64,
        payload: &[u8],
    ) -> Vec<Sent> {
        let copies = kind.number();
        let header = Header {
            order,
            session,
            seq,
            copies: raw(copies),
            ..self.header(Kind::Append)
        };
        self.give(&header, payload)
    }

    /// Gives the server update `seq` of the bench's session at this order.
    pub fn update(&mut self, order: u64, seq: u64) -> Vec<Sent> {
        self.append(
            order,
            Kind::Update,
            SESSION,
            seq,
            format!("u{seq}").as_bytes(),
        )
    }

    /// Gives the server a RECOVER along this path; returns its immediate answers.
    #[track_caller]
    pub fn ask(&mut self, nonce: u64, path: &[Member]) -> Vec<Sent> {
        let header = Header {
            shard: SHARD,
            device: path[0].device,
            incarnation: path[0].incarnation,
            request: raw(nonce),
            ..Header::new(Kind::Recover)
        };
        self.give(&header, &write_path(path))
    }

    /// Gives the server a RECOVER along this path twice. Because of the first the server reads its records. Returns the
    /// answers to the second.
    #[track_caller]
    pub fn told(&mut self, nonce: u64, path: &[Member]) -> Vec<Sent> {
        assert_eq!(self.ask(nonce, path), [], "it looks first");
        self.work();
        self.ask(nonce, path)
    }

    /// Gives the server a RECOVER along this path; returns all answers after all work is done.
    pub fn recover(&mut self, nonce: u64, path: &[Member]) -> Vec<Sent> {
        let mut sent = self.ask(nonce, path);
        sent.extend(self.work());
        if !sent.iter().any(|one| one.header.kind == Kind::RecoverReply) {
            // The server first had to read its records. The device asks again.
            sent = self.ask(nonce, path);
            sent.extend(self.work());
        }
        sent
    }

    /// Lets the store do all work, and returns the packets that are sent meanwhile.
    #[track_caller]
    pub fn work(&mut self) -> Vec<Sent> {
        self.try_work().expect("the shard goes on")
    }

    pub fn try_work(&mut self) -> Result<Vec<Sent>, Stop> {
        loop {
            self.server.answer_waiting(self.now, &mut self.out);
            match self.server.next_work(self.now)? {
                None => break,
                Some(work) => self.perform(&work)?,
            }
        }
        self.server.finish(&mut self.out);
        Ok(take(&mut self.out))
    }

    fn perform(&mut self, work: &Work) -> Result<(), Stop> {
        match work {
            Work::Load => self
                .server
                .loaded(self.store.list(), self.store.name.map(Bytes::from))?,
            Work::Apply(effects) => {
                self.store.apply(effects);
                self.server.applied(0, &mut self.out);
            }
            Work::Execute(work) => {
                let replies = self.store.execute(work);
                self.server.executed(replies, &mut self.out);
            }
        }
        Ok(())
    }

    /// Lets the store do this work, which [`Bench::pending`] returned, and returns the packets that the server then
    /// sends.
    #[track_caller]
    pub fn done(&mut self, work: &Work) -> Vec<Sent> {
        self.perform(work).expect("the shard goes on");
        take(&mut self.out)
    }

    /// Ends a burst of packets, while the store may be at work.
    pub fn finish(&mut self) -> Vec<Sent> {
        self.server.finish(&mut self.out);
        take(&mut self.out)
    }

    /// The store has executed the first of the work's requests, with these replies.
    pub fn executed(&mut self, replies: Vec<bytes::Bytes>) -> Vec<Sent> {
        self.server.executed(replies, &mut self.out);
        take(&mut self.out)
    }

    /// The server's own answers, while the store may be working.
    pub fn answers(&mut self) -> Vec<Sent> {
        self.server.answer_waiting(self.now, &mut self.out);
        take(&mut self.out)
    }

    /// The next work, which the bench does not do, as after a crash or with a failing store.
    #[track_caller]
    pub fn pending(&mut self) -> Work {
        self.server
            .next_work(self.now)
            .expect("the shard goes on")
            .expect("there is work")
    }
}

/// Device `id`, with an empty log.
pub fn member(id: u32) -> Member {
    Member {
        device: id,
        incarnation: 1,
        log_uuid: id.into(),
        tail: 0,
        applied: 0,
        flags: 0,
        word_epoch: 0,
        served: 1,
        size: pmnet_wire::FragmentSize::MAX,
    }
}
