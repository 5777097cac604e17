//! Reads from replicas of the database (`--read-from any`, docs/spec/reads.md §11). Replicas lag, are stopped, are cut
//! off and are promoted, and a head is killed. Every reader must see all writes that were answered before, and never an
//! older value than any client saw before.
//!
//! Every register has one writer, which only increases its value. So a history is linearizable exactly if each read
//! returns at least the largest value that any client got before the read began.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Cluster, Medium, Role, StoreKind, Topology};
use pmnet_lab::resp::Reply;
use rustix::process::Signal;

use crate::common;
use crate::failover::{call, replica};
use crate::promote::{promote, said};
use crate::support::{Answer, CALL_MAX, Caller, SetOnDrop, connect, eventually, seed};

/// Half of the registers are written with SET. The other registers are incremented, and increments may take effect in
/// any order.
const REGISTERS: usize = 8;
const READERS: usize = 3;

/// For each register, the largest value that was answered.
type Answered = [AtomicU64; REGISTERS];

/// Passes a master's data to its replica, except while it is held.
struct Relay {
    address: SocketAddr,
    held: Arc<AtomicBool>,
}

impl Relay {
    fn start(master: SocketAddr) -> Relay {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let held = Arc::new(AtomicBool::new(false));
        let hold = held.clone();
        std::thread::spawn(move || {
            for replica in listener.incoming().flatten() {
                let Ok(master) = TcpStream::connect(master) else {
                    continue;
                };
                let pairs = [
                    (
                        replica.try_clone().unwrap(),
                        master.try_clone().unwrap(),
                        None,
                    ),
                    (master, replica, Some(hold.clone())),
                ];
                for (from, to, hold) in pairs {
                    std::thread::spawn(move || pass_on(from, to, hold));
                }
            }
        });
        Relay { address, held }
    }

    fn hold(&self, held: bool) {
        self.held.store(held, Ordering::SeqCst);
    }
}

/// Passes data until one of the two ends is closed.
fn pass_on(mut from: TcpStream, mut to: TcpStream, hold: Option<Arc<AtomicBool>>) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while hold
            .as_ref()
            .is_some_and(|hold| hold.load(Ordering::SeqCst))
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = (
        from.shutdown(std::net::Shutdown::Both),
        to.shutdown(std::net::Shutdown::Both),
    );
}

fn write(endpoint: SocketAddr, answered: &Answered, over: &AtomicBool, mut random: fastrand::Rng) {
    let mut caller = Caller::new(endpoint);
    let mut sent = [0; REGISTERS];
    while !over.load(Ordering::SeqCst) {
        // Some registers are written often, and others seldom. A replica is more likely to have the value of a register
        // that is seldom written.
        let at = random.usize(..REGISTERS).min(random.usize(..REGISTERS));
        let key = format!("r{at}");
        sent[at] += 1;
        let (command, reply) = match at % 2 {
            0 => (vec!["SET".into(), key, sent[at].to_string()], None),
            _ => (vec!["INCR".into(), key], Some(sent[at])),
        };
        match (caller.call(&command), reply) {
            (Answer::Reply(Reply::Status(_)), None) => {}
            (Answer::Reply(Reply::Integer(now)), Some(sent)) => {
                assert_eq!(u64::try_from(now), Ok(sent), "{command:?}: once");
            }
            other => panic!("{command:?}: {other:?}"),
        }
        answered[at].fetch_max(sent[at], Ordering::SeqCst);
        std::thread::sleep(Duration::from_micros(random.u64(..4000)));
    }
}

/// Runs a client that reads. Returns the number of its reads.
fn read(
    endpoint: SocketAddr,
    answered: &Answered,
    over: &AtomicBool,
    mut random: fastrand::Rng,
) -> u64 {
    let mut caller = Caller::new(endpoint);
    let mut reads = 0;
    while !over.load(Ordering::SeqCst) {
        let ats = [random.usize(..REGISTERS), random.usize(..REGISTERS)];
        let before = ats.map(|at| answered[at].load(Ordering::SeqCst));
        let values = match random.bool() {
            true => vec![caller.read(&["GET", &format!("r{}", ats[0])])],
            false => {
                let keys = ats.map(|at| format!("r{at}"));
                let Reply::Array(both) = caller.read(&["MGET", &keys[0], &keys[1]]) else {
                    panic!("MGET gives an array")
                };
                both
            }
        };
        for ((at, before), value) in ats.into_iter().zip(before).zip(values) {
            let value = value.text().map_or(0, |text| text.parse().unwrap());
            assert!(
                value >= before,
                "r{at}: {value} was read, and {before} answered before"
            );
            answered[at].fetch_max(value, Ordering::SeqCst);
        }
        reads += 1;
    }
    reads
}

/// Returns the number of reads that a database has executed.
fn gets(address: SocketAddr) -> u64 {
    let stats = call(&mut connect(address), "INFO commandstats");
    let text = stats.text().unwrap();
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split(',').next()?.parse::<u64>().ok()
    };
    of("cmdstat_get:calls=").unwrap_or(0) + of("cmdstat_mget:calls=").unwrap_or(0)
}

#[test]
fn replicas_that_lag_stand_still_are_cut_off_and_are_promoted() {
    let mut topology = Topology::new(StoreKind::Redis, 1, Medium::Dram);
    // The deadline is longer than every fault, so that no call has an unknown outcome.
    topology.front_args = ["--deadline-ms", "60000", "--read-from", "any"]
        .map(Into::into)
        .into();
    let Some(mut cluster) = common::start("replicas", topology) else {
        return;
    };
    let seed = seed();
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let first = cluster.redis().unwrap();
    let folder = common::folder().join(format!("replicas-{}", first.port()));
    let (near, second) = replica(first, &folder.join("near"));
    let (_far, third) = replica(first, &folder.join("far"));
    let relay = Relay::start(first);
    let behind = format!("REPLICAOF 127.0.0.1 {}", relay.address.port());
    call(&mut connect(third), &behind);
    let follows = || {
        let info = call(&mut connect(third), "INFO replication");
        info.text().unwrap().contains("master_link_status:up")
    };
    eventually("it follows through the relay", CALL_MAX, follows);
    let endpoint = cluster.endpoint().unwrap();
    let answered: Answered = Default::default();
    let over = AtomicBool::new(false);
    let (mut reads, mut marks) = (0, Vec::new());
    std::thread::scope(|scope| {
        let writer = random.fork();
        scope.spawn(|| {
            let _end = SetOnDrop(&over);
            write(endpoint, &answered, &over, writer);
        });
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let (random, answered, over) = (random.fork(), &answered, &over);
                scope.spawn(move || {
                    let _end = SetOnDrop(over);
                    read(endpoint, answered, over, random)
                })
            })
            .collect();
        let _end = SetOnDrop(&over);
        eventually("replicas are read from", CALL_MAX, || {
            gets(second) > 100 && gets(third) > 100
        });
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(8) && !over.load(Ordering::SeqCst) {
            match random.u8(..5) {
                0 => {
                    near.signal(Signal::STOP).unwrap();
                    std::thread::sleep(Duration::from_millis(random.u64(1..400)));
                    near.signal(Signal::CONT).unwrap();
                }
                1 | 2 => {
                    relay.hold(true);
                    std::thread::sleep(Duration::from_millis(random.u64(1..400)));
                    relay.hold(false);
                }
                3 => {
                    // The replica is cut off, and still shows its old data.
                    call(&mut connect(third), "REPLICAOF 127.0.0.1 1");
                    std::thread::sleep(Duration::from_millis(random.u64(1..400)));
                    call(&mut connect(third), &behind);
                }
                _ => {
                    cluster.kill(Role::Device(0)).unwrap();
                    cluster.restart(Role::Device(0)).unwrap();
                }
            }
            std::thread::sleep(Duration::from_millis(random.u64(..200)));
        }
        marks.extend([gets(second), gets(third)]);
        // The near replica is promoted. The old master becomes a replica, from which the front reads.
        let from_first = gets(first);
        let urls = [first, second].map(|address| format!("redis://{address}"));
        let words = [
            "--store",
            &urls[0],
            "--to",
            &second.to_string(),
            "--wait",
            "60",
        ];
        let asked = promote(&words).spawn().unwrap();
        let server = cluster.process(Role::Server).unwrap();
        server.set_flag("--store", Some(&urls[1]));
        cluster.kill(Role::Server).unwrap();
        cluster.restart(Role::Server).unwrap();
        said(&asked.wait_with_output().unwrap(), 0);
        eventually(
            "the old master is read from, as a replica",
            CALL_MAX,
            || gets(first) > from_first + 100 || over.load(Ordering::SeqCst),
        );
        over.store(true, Ordering::SeqCst);
        reads = readers
            .into_iter()
            .map(|reader| reader.join().unwrap())
            .sum();
    });
    let sums: Vec<u64> = answered
        .iter()
        .map(|of| of.load(Ordering::SeqCst))
        .collect();
    println!(
        "{reads} reads, {marks:?} of them by the replicas before the failover; registers {sums:?}"
    );
    assert!(marks.iter().all(|mark| *mark > 100), "{marks:?}");
    Cluster::stop(cluster).unwrap();
}
