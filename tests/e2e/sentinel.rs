//! The store fails over without an operator. There are three real Sentinels, a master and two replicas. The master is
//! killed under load.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Cluster, Medium, Process, Ready, Role, Spec, StoreKind, Topology};
use pmnet_lab::harness::{find_program, free_port, settle};
use pmnet_lab::resp::{Client, Reply};

use crate::common;
use crate::failover::{call, replica};
use crate::promote::{promote, said};
use crate::support::{
    Answer, CALL_MAX, Caller, SetOnDrop, bulk, connect, eventually, launch, ok, refuses,
};

/// The name that the Sentinels use for the master.
pub const NAME: &str = "m";
/// Time of silence after which the Sentinels consider a master lost.
const DOWN: Duration = Duration::from_secs(1);
/// Longest wait until the Sentinels have failed over and the service works again.
const HEALED_MAX: Duration = Duration::from_secs(60);

/// A shard with a store that Sentinels watch.
struct World {
    cluster: Cluster,
    /// Replicas of the cluster's own Redis, and its Sentinels.
    replicas: Vec<(Process, SocketAddr)>,
    sentinels: Vec<(Process, SocketAddr)>,
}

impl World {
    /// Starts a world. Returns `None` if Redis is not installed.
    fn start(name: &str) -> Option<World> {
        let mut topology = Topology::new(StoreKind::Redis, 1, Medium::Dram);
        // The deadline is longer than every fault, so that no call has an unknown outcome.
        topology.front_args = vec!["--deadline-ms".into(), "60000".into()];
        let mut cluster = common::start(name, topology)?;
        let master = cluster.redis().unwrap();
        let folder = |at: u16| cluster.folder().join(format!("{at}"));
        let replicas: Vec<_> = (1..=2).map(|at| replica(master, &folder(at))).collect();
        let sentinels: Vec<_> = (3..=5).map(|at| sentinel(master, &folder(at))).collect();
        for (_, at) in &sentinels {
            let mut asks = connect(*at);
            eventually("the Sentinels know each other", HEALED_MAX, || {
                let says = call(&mut asks, &format!("SENTINEL MASTER {NAME}"));
                field(&says, "num-slaves") == "2" && field(&says, "num-other-sentinels") == "2"
            });
        }
        let url = url(&sentinels, 2);
        let server = cluster.process(Role::Server).unwrap();
        server.set_flag("--store", Some(&url));
        cluster.restart(Role::Server).unwrap();
        Some(World {
            cluster,
            replicas,
            sentinels,
        })
    }

    /// Returns the master that the Sentinels name.
    fn master(&self) -> SocketAddr {
        let (_, at) = &self.sentinels[0];
        let says = call(&mut connect(*at), &format!("SENTINEL MASTER {NAME}"));
        let port = field(&says, "port").parse().unwrap();
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn process(&mut self, at: SocketAddr) -> &mut Process {
        match self.replicas.iter_mut().find(|(_, place)| *place == at) {
            Some((process, _)) => process,
            None => self.cluster.process(Role::Redis).unwrap(),
        }
    }

    /// Kills the master, waits until the Sentinels name another master, and starts the old master again with its old
    /// configuration. Returns the old and the new address.
    fn fail_over(&mut self) -> (SocketAddr, SocketAddr) {
        let old = self.master();
        self.process(old).kill().unwrap();
        eventually("another master is named", HEALED_MAX, || {
            self.master() != old
        });
        self.process(old).relaunch().unwrap();
        self.process(old).wait_ready(CALL_MAX).unwrap();
        (old, self.master())
    }
}

pub fn url(sentinels: &[(Process, SocketAddr)], replicas: u32) -> String {
    let all: Vec<String> = sentinels.iter().map(|(_, at)| at.to_string()).collect();
    format!(
        "redis+sentinel://{}/{NAME}?wait_replicas={replicas}",
        all.join(",")
    )
}

/// Returns the value that follows this name in a reply of names and values.
pub fn field(reply: &Reply, name: &str) -> String {
    let Reply::Array(fields) = reply else {
        panic!("{reply:?}")
    };
    let at = fields.iter().position(|one| *one == bulk(name));
    at.map_or_else(String::new, |at| fields[at + 1].text().unwrap())
}

pub fn sentinel(master: SocketAddr, folder: &std::path::Path) -> (Process, SocketAddr) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    std::fs::create_dir_all(folder).unwrap();
    let (port, of, dir) = (address.port(), master.port(), folder.display());
    let down = DOWN.as_millis();
    let config = format!(
        "port {port}\nbind 127.0.0.1\ndir {dir}\nsentinel monitor {NAME} 127.0.0.1 {of} 2\n\
         sentinel down-after-milliseconds {NAME} {down}\nsentinel failover-timeout {NAME} 2000\n\
         sentinel parallel-syncs {NAME} 2\n"
    );
    let path = folder.join("sentinel.conf");
    std::fs::write(&path, config).unwrap();
    let spec = Spec {
        name: "sentinel".into(),
        binaries: common::binaries().clone(),
        program: find_program("redis-server"),
        args: vec![path.into(), "--sentinel".into()],
        ready: Ready::Line,
    };
    let process = Process::launch(spec, folder).unwrap();
    assert_eq!(
        call(&mut connect(address), "PING"),
        Reply::Status(b"PONG".to_vec())
    );
    (process, address)
}

/// The results of one kind of client.
#[derive(Default)]
struct Done {
    sets: Vec<String>,
    pushed: Vec<String>,
    counted: i64,
    unknown: u64,
    /// Number of EXECs that succeeded, and number of EXECs with unknown outcome.
    transactions: (i64, i64),
    popped: usize,
}

/// Runs commands whose order pmnet keeps, one after the other.
fn ordered(end: &AtomicBool, address: SocketAddr, name: &str) -> Done {
    let mut caller = Caller::new(address);
    let mut done = Done::default();
    let mut number = 0;
    while !end.load(Ordering::Relaxed) {
        number += 1;
        let key = format!("{name}:{number}");
        if let Answer::Reply(reply) = caller.call(&["SET", &key, &key]) {
            assert_eq!(reply, ok());
            done.sets.push(key.clone());
        }
        if let Answer::Reply(reply) = caller.call(&["RPUSH", "list", &key]) {
            assert!(matches!(reply, Reply::Integer(_)), "{reply:?}");
            done.pushed.push(key);
        }
        if let Answer::Reply(reply) = caller.call(&["INCR", "count"]) {
            assert!(matches!(reply, Reply::Integer(_)), "{reply:?}");
            done.counted += 1;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    done.unknown = caller.unknown;
    done
}

/// Runs commands that pass through to Redis: WATCH with EXEC, and BLPOP.
fn passing(end: &AtomicBool, address: SocketAddr) -> Done {
    let mut caller = Caller::new(address);
    let mut done = Done::default();
    while !end.load(Ordering::Relaxed) {
        let commands: [&[&str]; 4] = [&["WATCH", "w"], &["MULTI"], &["INCR", "w"], &["EXEC"]];
        match caller.exchange(&commands).pop().unwrap() {
            Answer::Reply(Reply::Array(_)) => done.transactions.0 += 1,
            Answer::Unknown => done.transactions.1 += 1,
            // A watched key was changed, or the command was refused.
            Answer::Reply(_) | Answer::Refused(_) => {
                caller.call(&["DISCARD"]);
                caller.call(&["UNWATCH"]);
            }
        }
        caller.call(&["RPUSH", "queue", "x"]);
        if let Answer::Reply(Reply::Array(_)) = caller.call(&["BLPOP", "queue", "1"]) {
            done.popped += 1;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    done
}

fn items(client: &mut Client, line: &str) -> Vec<String> {
    let Reply::Array(found) = call(client, line) else {
        panic!("no list")
    };
    found.iter().map(|one| one.text().unwrap()).collect()
}

/// In each round the old master comes back as a master, because nobody has told it about the new master. The answers of
/// the old master belong to a past epoch. `PMNET_RUNS` is the number of rounds.
#[test]
fn the_master_is_killed_under_load_and_the_server_goes_on_at_the_next_one() {
    let runs = std::env::var("PMNET_RUNS").ok();
    let runs: usize = runs.and_then(|text| text.parse().ok()).unwrap_or(1);
    let Some(mut world) = World::start("sentinel") else {
        return;
    };
    let endpoint = world.cluster.endpoint().unwrap();
    let end = AtomicBool::new(false);
    let (ordered, passed) = std::thread::scope(|scope| {
        // If a step fails, this value ends the other threads.
        let _ends = SetOnDrop(&end);
        let end = &end;
        let writers: Vec<_> = (0..2)
            .map(|at| scope.spawn(move || ordered(end, endpoint, &format!("w{at}"))))
            .collect();
        let passes = scope.spawn(move || passing(end, endpoint));
        for run in 1..=runs {
            std::thread::sleep(Duration::from_secs(2));
            let fence = format!("fence:{run}");
            let mut reader = Caller::new(endpoint);
            assert_eq!(
                reader.call(&["INCR", &fence]),
                Answer::Reply(Reply::Integer(1))
            );
            let killed = Instant::now();
            let (old, new) = world.fail_over();
            let named = killed.elapsed();
            // Another client still writes to the old master.
            let stale = call(&mut connect(old), &format!("SET {fence} stale"));
            let until = Instant::now() + HEALED_MAX;
            loop {
                assert_eq!(reader.read(&["GET", &fence]), bulk("1"));
                let role = call(&mut connect(old), "ROLE");
                let Reply::Array(role) = role else {
                    panic!("{role:?}")
                };
                if role[0] == bulk("slave") {
                    break;
                }
                assert!(Instant::now() < until, "the old master is made a replica");
            }
            let counts = reader.call(&["INCR", &fence]);
            assert_eq!(counts, Answer::Reply(Reply::Integer(2)));
            println!(
                "run {run}: {old} killed, {new} named after {named:?}, the old one said {stale:?}; INCR goes on {:?} after the kill",
                killed.elapsed()
            );
            if run == runs {
                break;
            }
            // The Sentinels permit the next failover only some time after the last failover.
            eventually("both replicas are there", HEALED_MAX, || {
                let info = call(&mut connect(new), "INFO replication").text().unwrap();
                info.matches("state=online").count() == 2
            });
        }
        std::thread::sleep(Duration::from_secs(2));
        end.store(true, Ordering::Relaxed);
        let ordered: Vec<Done> = writers.into_iter().map(|one| one.join().unwrap()).collect();
        (ordered, passes.join().unwrap())
    });
    settle(&world.cluster).unwrap();
    let mut direct = connect(world.master());
    let mut sets = 0;
    for key in ordered.iter().flat_map(|done| &done.sets) {
        assert_eq!(direct.call(&["GET", key]).unwrap(), bulk(key), "{key}");
        sets += 1;
    }
    let unknown: u64 = ordered.iter().map(|done| done.unknown).sum();
    let list = items(&mut direct, "LRANGE list 0 -1");
    let there: HashSet<&String> = list.iter().collect();
    assert_eq!(there.len(), list.len(), "something was pushed twice");
    for item in ordered.iter().flat_map(|done| &done.pushed) {
        assert!(there.contains(item), "{item} is lost");
    }
    let counted: i64 = ordered.iter().map(|done| done.counted).sum();
    let count: i64 = call(&mut direct, "GET count")
        .text()
        .unwrap()
        .parse()
        .unwrap();
    let most = counted + i64::try_from(unknown).unwrap();
    assert!(
        (counted..=most).contains(&count),
        "{counted} {count} {most}"
    );
    // The front answers bypassed commands only after the replicas have the effects of the commands. So no effect of an
    // answered command may be lost or happen twice.
    let (done, unsure) = passed.transactions;
    let through: i64 = call(&mut direct, "GET w").text().unwrap().parse().unwrap();
    assert!(
        (done..=done + unsure).contains(&through),
        "{through} {done} {unsure}"
    );
    assert!(done > 0 && passed.popped > 0);
    println!(
        "{sets} SET, {} RPUSH, {counted} INCR acknowledged, {unknown} unknown, none lost, none twice; {done} EXEC ({unsure} unknown, \
         {through} there), {} BLPOP",
        list.len(),
        passed.popped
    );
    // Each failover must have begun an epoch.
    let server = world.cluster.process(Role::Server).unwrap().stderr();
    assert!(
        server.matches("the store is another process").count() >= runs,
        "{server}"
    );
}

/// While the old master still runs, an operator or a Sentinel (on request) makes a replica the master. The Sentinels
/// report this to the server, even if the server has no work.
#[test]
fn a_failover_that_is_asked_for_is_followed_also_by_a_server_that_is_idle() {
    let Some(mut world) = World::start("asked") else {
        return;
    };
    let mut caller = Caller::new(world.cluster.endpoint().unwrap());
    assert_eq!(
        caller.call(&["INCR", "n"]),
        Answer::Reply(Reply::Integer(1))
    );
    let old = world.master();
    let store = url(&world.sentinels, 2);
    let refused = promote(&["--store", &store, "--is-stopped"]).output();
    let (_, text) = said(&refused.unwrap(), 1);
    assert!(text.contains("the Sentinels choose"), "{text}");
    let (out, _) = said(&promote(&["--store", &store]).output().unwrap(), 0);
    // One Sentinel may learn of the failover later than the other Sentinels.
    eventually("another master is named", HEALED_MAX, || {
        world.master() != old
    });
    assert!(
        out.contains(&format!("done: {} is the master", world.master())),
        "{out}"
    );
    let server = world.cluster.process(Role::Server).unwrap();
    eventually(
        "the server is there, with nothing to do",
        HEALED_MAX,
        || server.stderr().contains("the store is another process"),
    );
    assert!(
        server
            .stderr()
            .contains("the Sentinels name another master")
    );
    assert_eq!(
        caller.call(&["INCR", "n"]),
        Answer::Reply(Reply::Integer(2))
    );
    let master = world.master();
    assert_eq!(call(&mut connect(master), "GET n"), bulk("2"));
}

/// The effects were confirmed as the store's address demands (wait_replicas=0), but the promoted replica lacks them.
#[test]
fn a_replica_that_lacks_what_was_confirmed_stops_the_server_which_says_what() {
    let Some(mut world) = World::start("lags") else {
        return;
    };
    let url = url(&world.sentinels, 0);
    let server = world.cluster.process(Role::Server).unwrap();
    server.set_flag("--store", Some(&url));
    world.cluster.restart(Role::Server).unwrap();
    let mut caller = Caller::new(world.cluster.endpoint().unwrap());
    assert_eq!(
        caller.call(&["INCR", "n"]),
        Answer::Reply(Reply::Integer(1))
    );
    settle(&world.cluster).unwrap();
    // From here on, the replicas receive no data.
    for (process, _) in &mut world.replicas {
        process.kill().unwrap();
    }
    for number in 0..5 {
        let key = format!("lost:{number}");
        assert_eq!(caller.call(&["SET", &key, "x"]), Answer::Reply(ok()));
    }
    // The update is applied and confirmed, because wait_replicas=0 demands no more.
    settle(&world.cluster).unwrap();
    world.cluster.kill(Role::Redis).unwrap();
    for (process, _) in &mut world.replicas {
        process.relaunch().unwrap();
    }
    let server = world.cluster.process(Role::Server).unwrap();
    let status = server.wait_exit(HEALED_MAX).unwrap();
    let said = server.stderr();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("what is between is missing"), "{said}");
}

#[test]
fn sentinels_that_are_not_there_are_waited_for_and_what_is_no_address_says_so() {
    let folder = common::folder().join(format!("no-sentinel-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    let base = ["server", "--listen", &listen, "--store"];
    for (url, says) in [
        (
            "redis+sentinel://127.0.0.1:1",
            "the master's name is missing",
        ),
        ("redis+sentinel://127.0.0.1:x/m", "no TCP port"),
    ] {
        let (code, text) = refuses("refused", &folder, &[&base[..], &[url]].concat());
        assert_ne!(code, 0, "{text}");
        assert!(text.contains(says), "{says}: {text}");
    }
    let url = "redis+sentinel://127.0.0.1:9,127.0.0.1:10,127.0.0.1:11/m";
    let process = launch("waits", &folder, &[&base[..], &[url]].concat());
    eventually("it says why", Duration::from_secs(10), || {
        process.stderr().contains("only 0 of 3 Sentinels say")
    });
    drop(process);
    std::fs::remove_dir_all(&folder).unwrap();
}
