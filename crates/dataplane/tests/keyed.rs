//! A shard with keys over sockets (`docs/spec/keys.md`): two relays, the server of a program, and clients with the
//! right key, without a key, and with the key of another cluster.

use bytes::Bytes;
use pmnet_client::{ClientConfig, Session};
use pmnet_dataplane::relay::{self, RelayConfig};
use pmnet_device::DeviceConfig;
use pmnet_log::{Identity, Log, Parameters, Scan};
use pmnet_media::{AnyMedia, Kind as Medium};
use pmnet_proto::keys::{ClusterKeys, DeviceKeys};
use pmnet_proto::{FragmentSize, Peer};
use pmnet_server::program::{Kind, Program};
use pmnet_server::{ServerConfig, serve::ServeConfig};
use pmnet_udp::{Stop, StopTrigger};
use pmnet_wire::program::{payload, reply_body};
use pmnet_wire::{ClusterKey, FrontKey};
use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SHARD: u32 = 5;
const CLUSTER: ClusterKey = ClusterKey::new(*b"a key of cluster");
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(400);

/// Returns addresses that no socket uses at this moment.
fn free<const N: usize>() -> [Peer; N] {
    let sockets: [UdpSocket; N] = std::array::from_fn(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    sockets.map(|socket| socket.local_addr().unwrap())
}

fn log(path: &Path, device: u32) -> Log<AnyMedia> {
    let parameters = Parameters::ring(256, 1 << 20);
    let mut media = pmnet_media::create(path, Medium::Dram, parameters.image_bytes()).unwrap();
    let identity = Identity {
        log_uuid: u128::from(device),
        device,
        shard: SHARD,
    };
    pmnet_log::format(&mut media, &identity, &parameters).unwrap();
    let scan = Scan::open(media, None).unwrap();
    let decision = scan.decide();
    scan.repair(decision).unwrap()
}

fn device(id: u32, listen: Peer, (next_id, next): (u32, Peer)) -> RelayConfig {
    RelayConfig {
        listen,
        known_as: None,
        device: DeviceConfig {
            keys: Some(DeviceKeys {
                cluster: ClusterKeys::new(CLUSTER),
                next: next_id,
            }),
            ..DeviceConfig::new(id, SHARD, next)
        },
        spin_micros: 0,
        lease: None,
        keys: None,
        log: None,
        pulse: Arc::default(),
    }
}

fn client(head: Peer, keys: Option<FrontKey>) -> ClientConfig {
    ClientConfig {
        shard: SHARD,
        keys,
        size_max: FragmentSize::MAX,
        ..ClientConfig::new(head)
    }
}

fn front(cluster: &ClusterKey) -> FrontKey {
    cluster.front(cluster.front_id(b"web")).unwrap()
}

/// Runs a program that counts updates, and answers each request with their number.
fn count(mut program: Program, done: &AtomicBool) -> u64 {
    let mut updates = 0;
    while !done.load(Ordering::Relaxed) {
        let Some(batch) = program.next(Duration::from_millis(20)).unwrap() else {
            continue;
        };
        for (at, item) in batch.items.iter().enumerate() {
            match item.kind {
                Kind::Update => updates += 1,
                _ => program.reply(at, updates.to_string().as_bytes()).unwrap(),
            }
        }
        program.rows().unwrap();
        program.done(batch.number).unwrap();
    }
    updates
}

/// Ends all loops when it is dropped, even if the test fails.
struct Ends<'a>(&'a AtomicBool, Vec<StopTrigger>);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        for trigger in &self.1 {
            trigger.stop();
        }
    }
}

#[test]
fn who_has_a_key_is_served_and_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let [head, tail, server] = free();
    let devices = [device(1, head, (2, tail)), device(2, tail, (0, server))];
    let done = AtomicBool::new(false);
    let settings = ServerConfig {
        keys: Some(ClusterKeys::new(CLUSTER)),
        ..ServerConfig::new(SHARD)
    };
    let program = Program::open(ServeConfig::new(server, settings), []).unwrap();
    std::thread::scope(|scope| {
        let (stops, triggers): (Vec<_>, Vec<_>) =
            [(); 2].map(|()| Stop::new().unwrap()).into_iter().unzip();
        let ends = Ends(&done, triggers);
        let counted = scope.spawn(|| count(program, &done));
        for (config, stop) in devices.into_iter().zip(stops) {
            let id = config.device.id;
            let log = log(&folder.path().join(format!("log-{id}")), id);
            scope
                .spawn(move || relay::run(config, log, None, &stop, |_, _| (), |_, _| ()).unwrap());
        }

        let mut session = Session::start(client(head, Some(front(&CLUSTER))), LONG).unwrap();
        // Updates that need one packet, updates that need several packets, and updates of one byte.
        for bytes in [100, 5_000, 1] {
            let update: Bytes = payload(&vec![b'u'; bytes]).into();
            assert_eq!(
                session.update(update, 0).unwrap(),
                2,
                "both devices hold it"
            );
        }
        let reply = session.bypass(payload(b"count").into(), 0, true).unwrap();
        assert_eq!(reply_body(&reply), Some(&b"3"[..]));

        let elsewhere = ClusterKey::new([7; 16]);
        for keys in [None, Some(front(&elsewhere))] {
            let mut stranger = Session::start(client(head, keys), SHORT).unwrap();
            assert!(stranger.update(payload(b"x").into(), 0).is_err());
        }
        let reply = session.bypass(payload(b"count").into(), 0, true).unwrap();
        assert_eq!(reply_body(&reply), Some(&b"3"[..]), "nothing of theirs");
        session.end().unwrap();
        drop(ends);
        assert_eq!(counted.join().unwrap(), 3);
    });
}
