//! Tests of a server that reads the entries of its tail device from the device's log.

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use pmnet_proto::keys::{ClusterKey, ClusterKeys, MacKey};
use pmnet_proto::server::{Chain, Counters};
use pmnet_server::serve::{ServeConfig, serve};
use pmnet_server::{Feed, ServerConfig};
use pmnet_store::NullStore;
use pmnet_udp::Stop;
use pmnet_wire::packet::Identity;
use pmnet_wire::record::{Member, write_path};
use pmnet_wire::{FragmentSize, Header, Kind, Life, raw};

const SHARD: u32 = 3;
const DEVICE: u32 = 1;
const TOKEN: u64 = 0x77;
const CLUSTER: ClusterKey = ClusterKey::new(*b"a key of cluster");
const PATIENCE: Duration = Duration::from_secs(10);

fn member() -> Member {
    Member {
        device: DEVICE,
        incarnation: 1,
        log_uuid: 9,
        tail: 0,
        applied: 0,
        flags: 0,
        word_epoch: 0,
        served: 1,
        size: FragmentSize::MAX,
    }
}

fn of_device(kind: Kind) -> Header {
    Header {
        shard: SHARD,
        device: DEVICE,
        incarnation: 1,
        ..Header::new(kind)
    }
}

/// Returns the entry at this order, which is the OPEN of a new session.
fn entry(chain: &Chain, order: u64) -> (Header, Vec<u8>) {
    let front = Some(CLUSTER.front_id(b"web"));
    let said = Identity {
        token: TOKEN ^ order,
        front,
    };
    let header = Header {
        epoch: chain.epoch,
        session: order,
        order,
        copies: raw(Kind::Open.number()),
        ..of_device(Kind::Append)
    };
    (header, said.write().to_vec())
}

fn sealed(key: MacKey, (header, payload): &(Header, Vec<u8>)) -> Vec<u8> {
    let header = key.seal(&header.for_payload(payload), payload);
    let mut bytes = Vec::new();
    header.write(payload, &mut bytes);
    bytes
}

/// A device's log, beginning with order 1. The log exists from the moment at which the device knows its keys.
struct DeviceLog {
    comes: Receiver<Vec<Vec<u8>>>,
    frames: Vec<Vec<u8>>,
}

impl Feed for DeviceLog {
    fn frame(&mut self, order: u64) -> Option<&[u8]> {
        if let Ok(frames) = self.comes.try_recv() {
            self.frames = frames;
        }
        let at = usize::try_from(order.checked_sub(1)?).ok()?;
        self.frames.get(at).map(Vec::as_slice)
    }
}

/// The state of the server after a turn.
#[derive(Clone)]
struct Seen {
    chain: Option<Chain>,
    received: u64,
    tail: Option<SocketAddr>,
    counters: Counters,
}

/// An announcement without the tail's seal must not count. Otherwise such an announcement would stop the reading for
/// ever, and make the server send to the sender of the announcement.
#[test]
fn an_announcement_counts_only_if_the_tail_has_sealed_it() {
    let (stop, trigger) = Stop::new().unwrap();
    let (tell, seen) = channel();
    let (bound, address) = channel();
    let (give, comes) = channel();
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = thread::spawn(move || {
        let settings = ServerConfig {
            keys: Some(ClusterKeys::new(CLUSTER)),
            ..ServerConfig::new(SHARD)
        };
        let log = DeviceLog {
            comes,
            frames: Vec::new(),
        };
        serve(
            ServeConfig::new(loopback, settings),
            Box::new(NullStore::new()),
            Some(Box::new(log)),
            &stop,
            |node, _| {
                let machine = node.machine();
                let _ended = tell.send(Seen {
                    chain: machine.chain().cloned(),
                    received: machine.received(),
                    tail: machine.tail(),
                    counters: *machine.counters(),
                });
            },
            |at, _| bound.send(at).unwrap(),
        )
    });
    let server_address = address.recv_timeout(PATIENCE).unwrap();
    let device = UdpSocket::bind(loopback).unwrap();
    let attacker = UdpSocket::bind(loopback).unwrap();
    let until = |what: &str, holds: &dyn Fn(&Seen) -> bool| {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let seen = seen.recv_timeout(left).unwrap_or_else(|_| panic!("{what}"));
            if holds(&seen) {
                return seen;
            }
        }
    };
    let path = write_path(&[member()]);
    let recover = Header {
        request: raw(5),
        // A RECOVER with seq 1 asks the server.
        seq: 1,
        ..of_device(Kind::Recover)
    };
    let recover = sealed(CLUSTER.asking(SHARD, DEVICE), &(recover, path));
    device.send_to(&recover, server_address).unwrap();
    let chain = until("a chain", &|seen| seen.chain.is_some())
        .chain
        .unwrap();
    let life = Life {
        shard: SHARD,
        token: chain.shard_token,
    };
    let own = CLUSTER.hop(life, chain.epoch, DEVICE);
    let frame = |order| sealed(own, &entry(&chain, order));
    give.send((1..=9).map(frame).collect::<Vec<_>>()).unwrap();
    device.send_to(&frame(1), server_address).unwrap();
    until("the first entry", &|seen| seen.received == 1);

    let nobodys = CLUSTER.hop(life, chain.epoch, 99);
    let forged = sealed(nobodys, &entry(&chain, u64::MAX));
    attacker.send_to(&forged, server_address).unwrap();
    let seen = until("the forged one", &|seen| seen.counters.forged == 1);
    assert_eq!(seen.received, 1, "it announces nothing");

    device.send_to(&frame(5), server_address).unwrap();
    let seen = until("what the tail announces", &|seen| seen.received == 5);
    assert_eq!(seen.tail, Some(device.local_addr().unwrap()));
    device.send_to(&frame(9), server_address).unwrap();
    let seen = until("what it announces next", &|seen| seen.received == 9);
    assert_eq!(seen.tail, Some(device.local_addr().unwrap()));
    assert_eq!(seen.counters.retransmissions, 0);
    trigger.stop();
    server.join().unwrap().unwrap();
}
