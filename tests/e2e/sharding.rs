//! One front for three shards. Each shard has a chain, a server and a real Redis. Clients see one database, as with
//! Redis Cluster. The death of a shard must not affect the other shards (`docs/spec/sharding.md`).

mod words;

use std::collections::BTreeSet;
use std::fs::DirEntry;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pmnet_lab::check::{Ledger, verify};
use pmnet_lab::harness::{
    ACKNOWLEDGED_MIN, Medium, Process, Ready, Role, Shards, Spec, StoreKind, Topology, drained,
    find_program, free_port,
};
use pmnet_lab::load::{CheckedOptions, Hooks, Options, Progress, Workload, run};
use pmnet_lab::resp::{Client, Reply, write_command};
use pmnet_resp::{ReplyLimits, Scanner};

use crate::clients::{repository, run as run_program, set_up};
use crate::common::{binaries, folder, skip};
use crate::promote::said;
use crate::status::{Metrics, place};
use crate::support::{Answer, Caller, SetOnDrop, bulk, connect, eventually, ok, refuses, seed};

/// Longest wait for a condition.
const WAIT: Duration = Duration::from_secs(30);
/// Keys of the first, second and third shard. Their slots are 5061, 7365 and 12182.
const KEYS: [&str; 3] = ["bar", "c", "foo"];

/// Starts three shards. The second shard has two devices; each other shard has one device.
fn three(name: &str, deadline_ms: u64) -> Option<Shards> {
    three_with(name, deadline_ms, &[])
}

/// Starts three shards, as [`three`] does, with further flags for the front.
fn three_with(name: &str, deadline_ms: u64, more: &[&str]) -> Option<Shards> {
    if find_program("redis-server").is_none() {
        skip("redis-server is not installed");
        return None;
    }
    let mut topology = Topology::new(StoreKind::Redis, 2, Medium::Dram);
    topology.front_args = vec!["--deadline-ms".into(), deadline_ms.to_string()];
    topology
        .front_args
        .extend(more.iter().map(|word| (*word).to_owned()));
    Some(Shards::start(binaries(), folder(), name, 3, &topology).expect("the shards start"))
}

/// A Redis in cluster mode that has all slots. The replies of this Redis are those of a Redis Cluster.
pub struct Oracle {
    pub address: SocketAddr,
    _process: Process,
    _folder: tempfile::TempDir,
}

pub fn oracle() -> Oracle {
    let port = free_port().expect("a port");
    let bus = free_port().expect("a port");
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let folder = tempfile::tempdir().expect("a folder");
    let text = |word: &str| word.to_owned().into();
    let args = vec![
        text("--port"),
        text(&port.to_string()),
        text("--bind"),
        text("127.0.0.1"),
        text("--cluster-enabled"),
        text("yes"),
        text("--cluster-port"),
        text(&bus.to_string()),
        text("--save"),
        text(""),
        text("--dir"),
        folder.path().into(),
    ];
    let spec = Spec {
        name: "oracle".into(),
        binaries: binaries().clone(),
        program: find_program("redis-server"),
        args,
        ready: Ready::Redis(address),
    };
    let process = Process::start(spec, folder.path(), WAIT).expect("a cluster of one node");
    let mut client = connect(address);
    assert_eq!(
        client
            .call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])
            .unwrap(),
        ok()
    );
    eventually("the cluster has its slots", WAIT, || {
        let info = client.call(&["CLUSTER", "INFO"]).unwrap();
        info.text().unwrap().contains("cluster_state:ok")
    });
    Oracle {
        address,
        _process: process,
        _folder: folder,
    }
}

/// Sends lines as commands, with one write. Returns their replies.
pub fn pipeline(client: &mut Client, lines: &[&str]) -> Vec<Reply> {
    let mut bytes = Vec::new();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        write_command(&mut bytes, &words);
    }
    client.exchange(&bytes, lines.len()).expect("replies")
}

fn ask(client: &mut Client, line: &str) -> Reply {
    pipeline(client, &[line]).remove(0)
}

/// A client that accepts any reply or message, including those of RESP3.
struct Raw {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Raw {
    fn connect(address: SocketAddr) -> Raw {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        Raw {
            stream,
            input: Vec::new(),
        }
    }

    fn send(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let mut bytes = Vec::new();
        write_command(&mut bytes, &words);
        self.stream.write_all(&bytes).unwrap();
    }

    fn text(&mut self) -> String {
        let limits = ReplyLimits {
            line_bytes: 1 << 20,
            bulk_bytes: 1 << 20,
            reply_bytes: 1 << 20,
        };
        loop {
            if let Some(length) = Scanner::new(limits).poll(&self.input).unwrap() {
                let reply: Vec<u8> = self.input.drain(..length).collect();
                return String::from_utf8(reply).unwrap();
            }
            let mut chunk = [0; 4096];
            let count = self.stream.read(&mut chunk).unwrap();
            assert!(count > 0, "closed");
            self.input.extend_from_slice(&chunk[..count]);
        }
    }
}

#[test]
fn commands_of_one_client_over_three_shards() {
    let Some(shards) = three("shards", 10_000) else {
        return;
    };
    let mut client = connect(shards.endpoint());
    // A pipeline has keys of different shards. Each key must be in the Redis of its shard, and the replies must be in
    // order.
    let mut lines = Vec::new();
    for round in 0..100 {
        for key in KEYS {
            lines.push(format!("SET {{{key}}}:{round} {round}"));
            lines.push(format!("INCR {{{key}}}:{round}"));
            lines.push(format!("RPUSH {key} {round}"));
        }
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    for (at, reply) in pipeline(&mut client, &lines).into_iter().enumerate() {
        let round = i64::try_from(at / 9).unwrap();
        let expected = match at % 3 {
            0 => ok(),
            _ => Reply::Integer(round + 1),
        };
        assert_eq!(reply, expected, "{}", lines[at]);
    }
    assert_eq!(ask(&mut client, "DBSIZE"), Reply::Integer(303));
    for (cluster, key) in shards.clusters.iter().zip(KEYS) {
        let mut direct = cluster.reader().unwrap();
        assert_eq!(
            ask(&mut direct, &format!("LLEN {key}")),
            Reply::Integer(100)
        );
        let list = ask(&mut direct, &format!("LRANGE {key} 0 -1"));
        let rounds = (0..100).map(|round: i32| bulk(round.to_string())).collect();
        assert_eq!(list, Reply::Array(rounds), "the order of the client");
    }
    // In each shard, a transaction follows writes that were acknowledged early.
    for key in KEYS {
        let lines = [
            format!("SET {{{key}}}t 1"),
            format!("WATCH {{{key}}}t"),
            "MULTI".into(),
            format!("INCR {{{key}}}t"),
            format!("GET {{{key}}}t"),
            "EXEC".into(),
        ];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let replies = pipeline(&mut client, &lines);
        let executed = Reply::Array(vec![Reply::Integer(2), bulk("2")]);
        assert_eq!(replies[5], executed, "{replies:?}");
    }
    // A blocking command must block only its own shard.
    for key in KEYS {
        let mut blocked = Raw::connect(shards.endpoint());
        blocked.send(&format!("BLPOP {{{key}}}queue 0"));
        eventually("somebody waits", WAIT, || {
            let mut redis = shards
                .clusters
                .iter()
                .map(|cluster| cluster.reader().unwrap());
            redis.any(|mut redis| {
                let info = ask(&mut redis, "INFO clients").text().unwrap();
                info.contains("blocked_clients:1")
            })
        });
        assert_eq!(
            ask(&mut client, &format!("RPUSH {{{key}}}queue v")),
            Reply::Integer(1)
        );
        assert!(blocked.text().ends_with("$1\r\nv\r\n"));
    }
    assert_eq!(shards.stop().unwrap(), Vec::<String>::new());
}

#[test]
fn messages_over_three_shards() {
    let Some(shards) = three("shards-messages", 10_000) else {
        return;
    };
    let mut publisher = connect(shards.endpoint());
    for (resp3, marker) in [(false, '*'), (true, '>')] {
        let mut subscriber = Raw::connect(shards.endpoint());
        if resp3 {
            subscriber.send("HELLO 3");
            assert!(subscriber.text().starts_with('%'));
        }
        subscriber.send("SUBSCRIBE bar c foo");
        for (at, channel) in KEYS.iter().enumerate() {
            let told = subscriber.text();
            assert!(told.starts_with(&format!("{marker}3\r\n$9\r\nsubscribe\r\n")));
            let end = format!("\r\n{channel}\r\n:{}\r\n", at + 1);
            assert!(told.ends_with(&end), "{told}");
        }
        subscriber.send("PSUBSCRIBE n?ws");
        assert!(subscriber.text().ends_with("n?ws\r\n:4\r\n"));
        for channel in KEYS.iter().copied().chain(["news", "nows"]) {
            let heard = ask(&mut publisher, &format!("PUBLISH {channel} hello"));
            assert_eq!(heard, Reply::Integer(1), "{channel}");
            let told = subscriber.text();
            let end = format!("\r\n{channel}\r\n$5\r\nhello\r\n");
            assert!(told.starts_with(marker) && told.ends_with(&end), "{told}");
        }
        if resp3 {
            // Replies and messages arrive on one connection.
            subscriber.send("GET foo");
            assert_eq!(subscriber.text(), "_\r\n");
        }
        subscriber.send("UNSUBSCRIBE");
        for left in (1..=3).rev() {
            assert!(subscriber.text().ends_with(&format!(":{left}\r\n")));
        }
    }
}

/// Each metric of the router must change when its event happens, and no other metric may change.
#[test]
fn the_routers_numbers_move() {
    let most = ["--connections-max", "12", "--status", "127.0.0.1:0"];
    let Some(mut shards) = three_with("shards-metrics", 10_000, &most) else {
        return;
    };
    let place = place(shards.front());
    let endpoint = shards.endpoint();
    let mut client = connect(endpoint);
    let count = |before: &Metrics, to: &str| {
        let label = format!("to=\"{to}\"");
        Metrics::of(place).since(before, "pmnet_router_commands_total", &[&label])
    };
    let all = [
        "one",
        "all",
        "state",
        "subscriptions",
        "router",
        "cross_slot",
        "cluster_down",
        "try_again",
    ];
    let mut does = |line: &str, to: &str| {
        let before = Metrics::of(place);
        let reply = ask(&mut client, line);
        for other in all {
            let expected = u64::from(other == to);
            assert_eq!(
                count(&before, other),
                expected,
                "{line}: {other}, {reply:?}"
            );
        }
    };
    for key in KEYS {
        does(&format!("SET {key} 1"), "one");
        does(&format!("GET {key}"), "one");
    }
    does("DBSIZE", "all");
    does("CLIENT SETNAME me", "state");
    does("READONLY", "router");
    does("MGET bar c", "cross_slot");
    does("INFO pmnet", "one");
    // The map has gaps: slot 5061 is moving, and 12182 has no shard.
    shards
        .change_map(
            "moving = \"5061\"\n",
            &["0-5461", "5462-10922", "10923-12181,12183-16383"],
        )
        .unwrap();
    eventually("the map is another one", WAIT, || {
        Metrics::of(place).sum("pmnet_router_map_changes_total", &[]) == 1.0
    });
    does("GET bar", "try_again");
    does("GET foo", "cluster_down");
    does("GET c", "one");
    let now = Metrics::of(place);
    assert_eq!(now.sum("pmnet_router_slots_unserved", &[]), 1.0);
    assert_eq!(now.sum("pmnet_router_slots_moving", &[]), 1.0);
    let times = |class: &str| now.sum("pmnet_router_command_seconds_count", &[class]);
    assert!(times("to=\"one\"") >= 8.0 && times("to=\"all\"") == 1.0);
    let info = ask(&mut client, "INFO pmnet").text().unwrap();
    for line in [
        "pmnet_router_shards:3\r\n",
        "pmnet_router_slots_unserved:1\r\n",
        "pmnet_router_commands_all:1\r\n",
        "pmnet_router_commands_refused:3\r\n",
        "# Pmnet\r\n",
    ] {
        assert!(info.contains(line), "{line}: {info}");
    }
    // A change of the connection's state must wait for the replies before it.
    let before = Metrics::of(place);
    for _ in 0..50 {
        pipeline(&mut client, &["GET c", "CLIENT SETNAME me", "GET c"]);
    }
    assert!(Metrics::of(place).since(&before, "pmnet_router_held_total", &[]) > 0);
    let mut subscriber = Raw::connect(endpoint);
    subscriber.send("SUBSCRIBE bar");
    subscriber.text();
    assert_eq!(count(&before, "subscriptions"), 1);
    // More clients connect than the limit permits.
    let held: Vec<Client> = (0..12).map(|_| connect(endpoint)).collect();
    eventually("somebody is turned away", WAIT, || {
        Metrics::of(place).sum("pmnet_router_clients_refused_total", &[]) > 0.0
    });
    let now = Metrics::of(place);
    assert_eq!(now.sum("pmnet_router_clients", &[]), 12.0);
    assert!(now.sum("pmnet_router_clients_accepted_total", &[]) >= 12.0);
    drop(held);
    // Two events do not occur in this test: a client that is late for a minute, and a command in flight while the map
    // changes.
    for rare in ["pmnet_router_clients_late_total", "pmnet_router_before_map"] {
        assert_eq!(now.sum(rare, &[]), 0.0);
    }
    let (ready, said) = crate::status::ask(&["--at", &place.to_string()]);
    assert!(ready && said.contains("loop router"), "{said}");
    assert_eq!(shards.stop().unwrap(), Vec::<String>::new());
}

/// An unmodified client of another project, redis-py: its ordinary client, and its client for clusters.
#[test]
fn redis_py() {
    let Some(shards) = three("shards-py", 10_000) else {
        return;
    };
    set_up("python");
    let python = repository().join("target/venv/bin/python");
    if !python.is_file() {
        return skip("redis-py is not installed (make setup)");
    }
    let port = shards.endpoint().port().to_string();
    let text = run_program(&python, &["tests/programs/redis_py_shards.py", &port]);
    assert!(text.contains("all good"), "{text}");
}

#[test]
fn a_shard_that_is_away_keeps_its_keys_waiting_and_no_others() {
    let Some(mut shards) = three("shards-away", 1_500) else {
        return;
    };
    let mut client = Caller::new(shards.endpoint());
    for key in KEYS {
        assert_eq!(client.call(&["SET", key, "1"]), Answer::Reply(ok()));
    }
    let file = shards.file().to_owned();
    let looked = |code: i32| {
        let mut command = std::process::Command::new(crate::common::pmnet());
        command.args(["ctl", "shards", file.to_str().unwrap()]);
        said(&command.output().unwrap(), code).0
    };
    let shown = looked(0);
    for cluster in &shards.clusters {
        assert!(
            shown.contains(&cluster.redis().unwrap().to_string()),
            "{shown}"
        );
    }
    for device in 0..2 {
        shards.clusters[1].kill(Role::Device(device)).unwrap();
    }
    let shown = looked(1);
    assert_eq!(shown.matches("no answer within 5 s").count(), 1, "{shown}");
    let others = |client: &mut Caller| {
        for key in ["bar", "foo"] {
            assert!(matches!(
                client.call(&["INCR", key]),
                Answer::Reply(Reply::Integer(_))
            ));
        }
    };
    others(&mut client);
    let answer = client.call(&["SET", "c", "2"]);
    assert!(!matches!(answer, Answer::Reply(_)), "{answer:?}");
    others(&mut client);
    let answer = client.call(&["FLUSHALL"]);
    assert!(!matches!(answer, Answer::Reply(_)), "{answer:?}");
    for device in (0..2).rev() {
        shards.clusters[1]
            .process(Role::Device(device))
            .unwrap()
            .relaunch()
            .unwrap();
    }
    for device in 0..2 {
        let process = shards.clusters[1].process(Role::Device(device)).unwrap();
        process.wait_ready(WAIT).unwrap();
    }
    eventually("the shard is back", WAIT, || {
        client.call(&["SET", "c", "3"]) == Answer::Reply(ok())
    });
    assert_eq!(client.read(&["GET", "c"]), bulk("3"));
}

/// All processes of each shard, and the front, are killed in turn under load. No acknowledged update may be lost,
/// applied twice or applied out of order, and each key must be in the Redis of its slot.
#[test]
fn shards_are_killed_under_load_and_nothing_is_lost() {
    let Some(mut shards) = three("shards-killed", 10_000) else {
        return;
    };
    let seed = seed();
    let mut options = Options::new(shards.endpoint());
    options.clients = 6;
    options.pipeline = 4;
    options.duration = Duration::from_secs(20);
    options.acknowledged_min = ACKNOWLEDGED_MIN;
    options.deadline = Duration::from_secs(10);
    options.seed = seed;
    options.workload = Workload::Checked(CheckedOptions {
        prefix: format!("chk{seed}:"),
        ring: 100_000,
        lists: true,
        value_bytes: 0,
    });
    let ended = AtomicBool::new(false);
    let acknowledged = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let (ledger, kills) = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let _end = SetOnDrop(&ended);
            let mut ledger = Ledger::new();
            let mut record = |record: &pmnet_lab::load::Record| Ok(ledger.add(record)?);
            let mut progress = |progress: &Progress| {
                acknowledged.store(progress.acknowledged, Ordering::Relaxed);
            };
            let hooks = Hooks {
                record: Some(&mut record),
                progress: Some(&mut progress),
            };
            run(&options, hooks, &stop).expect("the load runs");
            ledger
        });
        let mut random = fastrand::Rng::with_seed(seed);
        let mut kills = 0;
        let roles = [Role::Device(0), Role::Device(1), Role::Server, Role::Redis];
        while !ended.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(300));
            if random.u8(..8) == 0 {
                shards.front().kill().unwrap();
                shards.front().relaunch().unwrap();
                shards.front().wait_ready(WAIT).unwrap();
            } else {
                let cluster = &mut shards.clusters[random.usize(..3)];
                let role = roles[random.usize(..roles.len())];
                cluster.kill(role).unwrap();
                std::thread::sleep(Duration::from_millis(20));
                cluster.restart(role).unwrap();
            }
            kills += 1;
        }
        let ledger = load
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (ledger, kills)
    });
    drained(shards.endpoint()).expect("everything is applied");
    // A real Redis Cluster says to which shard each key belongs.
    let oracle = oracle();
    let mut cluster = connect(oracle.address);
    let keys: Vec<&String> = ledger.keys().collect();
    let mut home = std::collections::HashMap::new();
    for chunk in keys.chunks(500) {
        let mut bytes = Vec::new();
        for key in chunk {
            write_command(&mut bytes, &["CLUSTER", "KEYSLOT", key]);
        }
        for (key, slot) in chunk
            .iter()
            .zip(cluster.exchange(&bytes, chunk.len()).unwrap())
        {
            let Reply::Integer(slot) = slot else {
                panic!("{slot:?}")
            };
            home.insert(
                (*key).clone(),
                shards.shard_of(usize::try_from(slot).unwrap()),
            );
        }
    }
    let mut found = 0;
    for (shard, cluster) in shards.clusters.iter().enumerate() {
        let part = ledger.part(|key| home[key] == shard);
        let verdict = verify(&part, &mut cluster.reader().unwrap()).unwrap();
        println!("shard {}: {verdict}", shard + 1);
        assert!(verdict.is_clean(), "{verdict}");
        assert!(verdict.keys > 0);
        found += verdict.keys;
    }
    println!(
        "{kills} kills, {} acknowledged, {} unknown, {found} keys compared",
        ledger.acknowledged, ledger.unknown
    );
    assert_eq!(found, u64::try_from(keys.len()).unwrap());
    assert!(kills >= 20, "{kills}");
    assert!(ledger.acknowledged >= ACKNOWLEDGED_MIN);
}

/// The router has no file descriptor left for the link of a new client. The error about the link is not the reply to a
/// command. So each command must get one error, and the command after it must get its own reply.
#[test]
fn a_client_without_a_link_gets_one_error_for_each_command() {
    let Some(mut shards) = three("files", 5000) else {
        return;
    };
    let mut first = connect(shards.endpoint());
    assert_eq!(ask(&mut first, "PING"), Reply::Status(b"PONG".to_vec()));
    let router = shards.front().id().expect("it runs");
    let limit = |files: usize| {
        let changed = Command::new("prlimit")
            .args([&format!("--pid={router}"), &format!("--nofile={files}:")])
            .status();
        assert!(changed.expect("prlimit").success());
    };
    let open = || -> BTreeSet<usize> {
        let files = std::fs::read_dir(format!("/proc/{router}/fd")).unwrap();
        let name = |file: std::io::Result<DirEntry>| file.unwrap().file_name();
        files
            .filter_map(|file| name(file).to_str()?.parse().ok())
            .collect()
    };
    // The limit permits only the client's own connection.
    let before = open();
    let next = (0..).find(|file| !before.contains(file)).expect("a number");
    limit(next + 1);
    let mut second = Raw::connect(shards.endpoint());
    eventually("it was accepted", WAIT, || open().contains(&next));
    for _ in 0..2 {
        second.send("PING");
        let reply = second.text();
        assert!(reply.starts_with("-ERR pmnet: the router cannot connect to shard 1"));
    }
    limit(4096);
    second.send("PING");
    assert_eq!(second.text(), "+PONG\r\n");
}

#[test]
fn a_map_that_cannot_be_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shards.toml");
    for (text, says) in [
        ("", "no shard is named"),
        (
            "[[shard]]\nslots = \"0-16384\"\nvia = \"127.0.0.1:51000\"\n",
            "from 0 to 16383",
        ),
        (
            "[[shard]]\nslots = \"0-9\"\nvia = \"127.0.0.1:51000\"\n[[shard]]\nslots = \"9\"\nvia = \"127.0.0.1:51001\"\n",
            "slot 9 belongs to shard 1 and to shard 2",
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        let args = [
            "redis",
            "--listen",
            "127.0.0.1:0",
            "--shards",
            path.to_str().unwrap(),
        ];
        let (code, said) = refuses("shards-refused", directory.path(), &args);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(says), "{said}");
    }
    let args = [
        "redis",
        "--listen",
        "127.0.0.1:0",
        "--via",
        "127.0.0.1:51000",
        "--shards",
        "x",
    ];
    let (code, said) = refuses("shards-and-via", directory.path(), &args);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("cannot be used with"), "{said}");
}
