//! Garbage from Redis clients, mistakes of an operator, and faults of a disk. Either a process ends with the right exit
//! code and a message with advice, or it continues to run, and serves when the fault is gone.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Cluster, Medium, Role, StoreKind, Topology, free_port, settle};
use pmnet_lab::resp::{Client, Reply, write_command};

use crate::common;
use crate::support::{
    Answer, CALL_MAX, Caller, connect, eventually, front, launch, ok, refuses, seed,
};

/// A folder that is removed at the end. If the test fails, the folder is kept.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = common::folder().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

fn udp() -> String {
    format!("127.0.0.1:{}", free_port().unwrap())
}

fn tcp() -> String {
    format!("127.0.0.1:{}", free_port().unwrap())
}

/// Returns the resident memory of a process in KiB.
fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

fn front_pid(cluster: &Cluster) -> u32 {
    let (_, process) = cluster
        .processes()
        .find(|(role, _)| *role == Role::Front)
        .unwrap();
    process.id().unwrap()
}

/// Sends bytes. Then reads until the front closes the connection, or sends nothing for a while.
fn provoke(address: SocketAddr, bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(150)))
        .unwrap();
    // The front may close the connection while the test still writes.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return (answer, true),
            Ok(got) => answer.extend_from_slice(&buffer[..got]),
            Err(error) => {
                let quiet = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                return (answer, !quiet);
            }
        }
    }
}

#[test]
fn resp_that_is_none_gets_a_sentence_and_hurts_nobody_else() {
    let seed = seed();
    let topology = Topology::new(StoreKind::Redis, 1, Medium::Dram);
    let Some(mut cluster) = common::start("bad-resp", topology) else {
        return;
    };
    let address = cluster.endpoint().unwrap();
    let mut steady = front(&cluster);
    assert_eq!(steady.call(&["SET", "steady", "1"]).unwrap(), ok());
    let before = resident_kib(front_pid(&cluster));

    let long_inline = vec![b'a'; 70_000];
    let cases: &[(&[u8], &str)] = &[
        (b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n", "16 MiB"),
        (b"*2\r\n$536870913\r\n", "invalid bulk length"),
        (b"*1048577\r\n", "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*x\r\n", "invalid multibulk length"),
        (b"*2\r\n$3\r\nGET\r\n$-7\r\n", "invalid bulk length"),
        (b"*2\r\n$3\r\nGET\r\n:1\r\n", "expected '$'"),
        (b"*1\r\n$4\r\nPINGxx", "not terminated"),
        (b"GET 'unbalanced\r\n", "unbalanced quotes"),
        (&long_inline, "too big inline request"),
    ];
    for (bytes, sentence) in cases {
        let (answer, closed) = provoke(address, bytes);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        let text = String::from_utf8_lossy(&answer);
        assert!(
            text.starts_with("-ERR") && text.contains(sentence),
            "{shown:?}: {text:?}"
        );
        assert!(closed, "{shown:?}: the connection cannot go on");
    }
    // After random bytes, the front may answer with an error, close the connection, or wait for more bytes.
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..60 {
        let mut bytes = vec![0; random.usize(1..3_000)];
        random.fill(&mut bytes);
        if random.bool() {
            bytes[0] = b"*$+-:_#,(%~>!=|"[random.usize(..15)];
        }
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(&bytes);
    }
    // Complete commands with invalid contents must be answered, and the connection must stay usable.
    let mut odd = front(&cluster);
    for arguments in [
        vec![&b""[..]],
        vec![b"\0\xff", b"\r\n"],
        vec![b"SET"],
        vec![b"GET", b"a", b"b", b"c"],
        vec![b"SET", b"pmnet:{0}:records", b"mine"],
        vec![b"FLUSHALL", b"NOW"],
        vec![b"EVAL", b"return", b"notanumber"],
        vec![b"SELECT", b"99999999999"],
        vec![b"HELLO", b"9"],
    ] {
        let reply = odd.call(&arguments).unwrap();
        let shown = String::from_utf8_lossy(arguments[0]).into_owned();
        assert!(matches!(reply, Reply::Error(_)), "{shown:?}: {reply:?}");
    }
    assert_eq!(
        odd.call(&["PING"]).unwrap(),
        Reply::Status(b"PONG".to_vec())
    );

    // Many connections with an incomplete command that announces a large length and never ends.
    let half: Vec<TcpStream> = (0..200)
        .map(|number| {
            let mut stream = TcpStream::connect(address).unwrap();
            let bytes: &[u8] = match number % 4 {
                0 => b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$16777216\r\nabc",
                1 => b"*1048576\r\n$1\r\na\r\n",
                2 => b"*3\r\n$3\r\nSE",
                _ => b"SET half",
            };
            stream.write_all(bytes).unwrap();
            stream
        })
        .collect();
    for number in 0..100 {
        let value = number.to_string();
        assert_eq!(steady.call(&["SET", "steady", &value]).unwrap(), ok());
    }
    let grown = resident_kib(front_pid(&cluster)).saturating_sub(before);
    println!("the front grew by {grown} KiB");
    assert!(grown < 100_000, "memory is given on a promise: {grown} KiB");
    // Clients that disconnect in the middle of a pipeline.
    let mut pipeline = Vec::new();
    for number in 0..500 {
        write_command(&mut pipeline, &["SET", &format!("gone:{number}"), "1"]);
        write_command(&mut pipeline, &["INCR", "gone:count"]);
    }
    for _ in 0..20 {
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(&pipeline);
    }
    drop(half);
    assert_eq!(
        steady.call(&["GET", "steady"]).unwrap(),
        Reply::Bulk(b"99".to_vec())
    );
    assert_eq!(
        steady.call(&["EXISTS", "k", "half"]).unwrap(),
        Reply::Integer(0)
    );
    settle(&cluster).unwrap();
    let front = cluster.process(Role::Front).unwrap();
    assert!(front.exited().unwrap().is_none(), "{}", front.stderr());
}

#[test]
fn a_port_in_use_is_named() {
    let folder = Folder::new("bad-ports");
    let taken_udp = std::net::UdpSocket::bind(udp()).unwrap();
    let taken_udp = taken_udp.local_addr().unwrap().to_string();
    let taken_tcp = std::net::TcpListener::bind(tcp()).unwrap();
    let taken_tcp = taken_tcp.local_addr().unwrap().to_string();
    let log = folder.path("log");
    let runs: [Vec<&str>; 3] = [
        vec!["server", "--listen", &taken_udp, "--store", "null:"],
        vec![
            "device",
            "--listen",
            &taken_udp,
            "--next",
            "127.0.0.1:51999",
            "--media",
            "dram",
            "--log",
            &log,
            "--log-size",
            "1M",
        ],
        vec!["redis", "--listen", &taken_tcp, "--via", "127.0.0.1:51999"],
    ];
    // The test itself holds the sockets of all these addresses.
    for args in &runs {
        let (code, text) = refuses(args[0], &folder.0, args);
        assert_eq!(code, 1, "{text}");
        let owner = format!("process {} (", std::process::id());
        assert!(text.contains(args[2]) && text.contains(&owner), "{text}");
    }
    assert!(!Path::new(&log).exists(), "a log that nobody serves");
    // A command line that cannot be parsed has an exit code of its own. A number out of range has the same exit code.
    let device = [
        "device",
        "--listen",
        "127.0.0.1:51001",
        "--next",
        "127.0.0.1:51999",
        "--media",
        "dram",
        "--log",
        &log,
    ];
    let redis = ["redis", "--listen", "127.0.0.1:1", "--via", "127.0.0.1:2"];
    for args in [
        vec!["server", "--listen", "nonsense", "--store", "null:"],
        vec!["device", "--listen", "127.0.0.1:51001"],
        [&redis[..], &["--copies", "0"]].concat(),
        [&redis[..], &["--copies", "9"]].concat(),
        [&redis[..], &["--deadline-ms", "0"]].concat(),
        [&redis[..], &["--connections-max", "0"]].concat(),
        [&redis[..], &["--spin-us", "99999999999"]].concat(),
        vec!["redis", "--listen", "127.0.0.1:1", "--via", "127.0.0.1:0"],
        vec!["nonsense"],
        [&device[..], &["--log-size", "18446744073709551615"]].concat(),
        [&device[..], &["--log-size", "1"]].concat(),
        [&device[..], &["--shrink-chain", "--declare-data-loss"]].concat(),
        vec![
            "device",
            "--listen",
            "127.0.0.1:51001",
            "--next",
            "127.0.0.1:0",
            "--media",
            "dram",
            "--log",
            &log,
        ],
        [&device[..], &["--shard", "4294967295", "--shards", "2"]].concat(),
    ] {
        let (code, text) = refuses("usage", &folder.0, &args);
        assert_eq!(code, 2, "{args:?}: {text}");
        assert!(!text.trim().is_empty());
    }
}

/// Two fronts must say what to check: one whose devices do not answer, and one that requires more copies than the chain
/// has.
#[test]
fn a_front_that_is_wired_wrongly_says_so() {
    let folder = Folder::new("wired-wrongly");
    let said = |name: &str, via: &str, options: &[&str], text: &str| {
        let listen = tcp();
        let address: SocketAddr = listen.parse().unwrap();
        let fixed = [
            "redis",
            "--anyone-may-connect",
            "--listen",
            &listen,
            "--via",
            via,
        ];
        let args = [&fixed[..], options].concat();
        let front = launch(name, &folder.0, &args);
        // The front logs its message even without a client. If options are given, a client must make a call that fails.
        if !options.is_empty() {
            eventually("the front serves", CALL_MAX, || {
                TcpStream::connect(address).is_ok()
            });
            let reply = connect(address).call(&["SET", "k", "1"]).unwrap();
            assert!(matches!(reply, Reply::Error(_)), "{name}: {reply:?}");
        }
        eventually(name, CALL_MAX, || front.stderr().contains(text));
    };
    said(
        "nobody",
        &udp(),
        &[],
        "no answer for 5 s by way of the device at",
    );
    let topology = Topology::new(StoreKind::Redis, 1, Medium::Dram).unkeyed();
    let Some(cluster) = common::start("wired", topology) else {
        return;
    };
    let head = cluster.head().unwrap().to_string();
    said(
        "shard",
        &head,
        &["--shard", "7"],
        "(shard 7). Check that --via",
    );
    said(
        "short",
        &head,
        &["--copies", "2"],
        "serves with copies=1, and --copies asks for more",
    );
}

#[test]
fn logs_of_another_version_or_damaged_are_refused_and_not_touched() {
    let folder = Folder::new("bad-logs");
    let log = folder.path("log");
    let (listen, server) = (udp(), udp());
    let args = |media: &'static str| {
        vec![
            "device".to_owned(),
            "--listen".into(),
            listen.clone(),
            "--next".into(),
            server.clone(),
            "--log".into(),
            log.clone(),
            "--media".into(),
            media.into(),
        ]
    };
    let small = ["--entries", "256", "--frame-bytes", "65536"].map(String::from);
    let strings = |list: &[String]| list.to_vec();
    // Makes a log with entries: a device serves for a short time.
    let mut store = launch(
        "server",
        &folder.0,
        &["server", "--listen", &server, "--store", "null:"],
    );
    store.wait_ready(CALL_MAX).unwrap();
    let made = [args("file"), strings(&small)].concat();
    let made: Vec<&str> = made.iter().map(String::as_str).collect();
    let mut device = launch("device", &folder.0, &made);
    device.wait_ready(CALL_MAX).unwrap();
    assert!(device.stop().unwrap(), "{}", device.stderr());
    let whole = std::fs::read(&log).unwrap();

    let mut other_version = whole.clone();
    for copy in 0..2 {
        // Changes both superblocks, so that they seem to come from another version of the program.
        let block = &mut other_version[copy * 4096..(copy + 1) * 4096];
        block[8..12].copy_from_slice(&7_u32.to_le_bytes());
        block[12..16].fill(0);
        let crc = pmnet_wire::crc(block);
        block[12..16].copy_from_slice(&crc.to_le_bytes());
    }
    let mut rotten = whole.clone();
    for copy in 0..2 {
        rotten[copy * 4096 + 20] ^= 0x10;
    }
    let cases = [
        ("another version", other_version, "version 7"),
        ("both superblocks damaged", rotten, ""),
        ("blank", vec![0; whole.len()], "blank"),
        ("empty", Vec::new(), "truncated"),
        ("text", b"not a log\n".repeat(4096 * 4), "not a pmnet log"),
        (
            "half",
            whole[..whole.len() / 8192 * 4096].to_vec(),
            "truncated",
        ),
        ("odd size", whole[..whole.len() - 1].to_vec(), "truncated"),
    ];
    for media in ["file", "dram"] {
        let args = args(media);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        for (name, bytes, sentence) in &cases {
            std::fs::write(&log, bytes).unwrap();
            let (code, text) = refuses("device", &folder.0, &args);
            assert_eq!(code, 1, "{name}: {text}");
            assert!(
                text.contains(sentence) && text.contains(&log),
                "{name}: {text}"
            );
            assert!(
                std::fs::read(&log).unwrap() == *bytes,
                "{name}: the file was touched"
            );
            let verify = Command::new(common::pmnet())
                .args(["log", "verify", &log])
                .output()
                .unwrap();
            assert_eq!(verify.status.code(), Some(1), "{name}: {verify:?}");
        }
    }
    std::fs::remove_file(&log).unwrap();
    std::fs::create_dir(&log).unwrap();
    let args = args("file");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (code, text) = refuses("device", &folder.0, &args);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("directory"), "{text}");
    // Two devices are started with one log.
    std::fs::remove_dir(&log).unwrap();
    std::fs::write(&log, &whole).unwrap();
    let mut device = launch("device", &folder.0, &args);
    device.wait_ready(CALL_MAX).unwrap();
    let other = udp();
    let mut args = args.clone();
    args[2] = &other;
    let id = listen.rsplit(':').next().unwrap();
    args.extend(["--id", id]);
    let (code, text) = refuses("second", &folder.0, &args);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("in use by another process"), "{text}");
}

/// The processes are started in the wrong order: front, device, server, store. Each process waits and logs the reason,
/// and in the end all processes serve. Until then, commands end at their deadline with an error text.
#[test]
fn started_in_the_wrong_order_everybody_waits() {
    let Some(program) = pmnet_lab::harness::find_program("redis-server") else {
        return common::skip("redis-server is not installed");
    };
    let folder = Folder::new("bad-order");
    let (listen, via, server, store) = (tcp(), udp(), udp(), tcp());
    let mut front = launch(
        "front",
        &folder.0,
        &[
            "redis",
            "--anyone-may-connect",
            "--listen",
            &listen,
            "--via",
            &via,
            "--deadline-ms",
            "700",
        ],
    );
    front.wait_ready(CALL_MAX).unwrap();
    let mut client = Caller::new(listen.parse().unwrap());
    let mut ends = |what: &str| {
        for command in [&["SET", "k", "1"][..], &["GET", "k"], &["INCR", "n"]] {
            let begin = Instant::now();
            let answer = client.call(command);
            println!("{what}: {command:?}: {answer:?}");
            assert!(
                matches!(answer, Answer::Refused(_) | Answer::Unknown),
                "{what}: {command:?}: {answer:?}"
            );
            assert!(
                begin.elapsed() < Duration::from_secs(3),
                "{what}: {command:?} hangs"
            );
        }
    };
    ends("no device");
    let log = folder.path("log");
    let mut device = launch(
        "device",
        &folder.0,
        &[
            "device",
            "--listen",
            &via,
            "--next",
            &server,
            "--log",
            &log,
            "--media",
            "file",
            "--log-size",
            "4M",
        ],
    );
    ends("no server");
    assert!(device.exited().unwrap().is_none(), "{}", device.stderr());
    let url = format!("redis://{store}");
    let mut adaptor = launch(
        "server",
        &folder.0,
        &["server", "--listen", &server, "--store", &url],
    );
    ends("no store");
    eventually("the server says what it waits for", CALL_MAX, || {
        adaptor.stderr().contains(&store)
    });
    assert!(adaptor.exited().unwrap().is_none(), "{}", adaptor.stderr());
    let port = store.rsplit(':').next().unwrap();
    let spec = pmnet_lab::harness::Spec {
        name: "redis".into(),
        binaries: common::binaries().clone(),
        program: Some(program),
        args: [
            "--bind",
            "127.0.0.1",
            "--port",
            port,
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--save",
            "",
            "--dir",
            folder.0.to_str().unwrap(),
        ]
        .iter()
        .map(Into::into)
        .collect(),
        ready: pmnet_lab::harness::Ready::Redis(store.parse().unwrap()),
    };
    let _redis = pmnet_lab::harness::Process::start(spec, &folder.0, CALL_MAX).unwrap();
    device.wait_ready(CALL_MAX).unwrap();
    eventually("it serves", CALL_MAX, || {
        client.call(&["SET", "k", "2"]) == Answer::Reply(ok())
    });
    assert_eq!(client.read(&["GET", "k"]), Reply::Bulk(b"2".to_vec()));
    // The outcome of this command was unknown, so it took effect once or not at all.
    let n = client
        .read(&["GET", "n"])
        .text()
        .map_or(0, |n| n.parse::<u64>().unwrap());
    assert!(n <= 3, "INCR, asked three times, gave {n}");
}

/// A file system of a few megabytes. The file system is unmounted when this value is dropped.
struct TinyDisk(PathBuf);

impl TinyDisk {
    fn mount(path: &Path, size: &str) -> Option<TinyDisk> {
        std::fs::create_dir_all(path).unwrap();
        let options = format!("size={size}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(path)
            .output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            common::skip("a small file system cannot be mounted (not root)");
            return None;
        }
        Some(TinyDisk(path.to_owned()))
    }

    fn grow(&self, size: &str) {
        let options = format!("remount,size={size}");
        let status = Command::new("mount")
            .args(["-o", &options])
            .arg(&self.0)
            .status();
        assert!(status.unwrap().success());
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        // The unmount is lazy, because a process that was just killed may still hold a file.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_under_a_new_log_is_a_sentence() {
    let folder = Folder::new("bad-full-log");
    let Some(disk) = TinyDisk::mount(&folder.0.join("disk"), "2m") else {
        return;
    };
    let log = disk.0.join("log");
    for media in ["dram", "file"] {
        let (code, text) = refuses(
            "device",
            &folder.0,
            &[
                "device",
                "--listen",
                &udp(),
                "--next",
                &udp(),
                "--media",
                media,
                "--log",
                log.to_str().unwrap(),
                "--log-size",
                "64M",
            ],
        );
        assert_eq!(code, 1, "{text}");
        assert!(
            text.contains("no room") || text.contains("O_DIRECT"),
            "{media}: {text}"
        );
        assert!(!log.exists(), "{media}: half a log was left behind");
    }
}

/// Redis ends when its append-only file cannot grow (`appendfsync always`). The log keeps the acknowledged updates
/// until the operator has made space.
#[test]
fn a_full_disk_under_redis_loses_nothing() {
    let folder = Folder::new("bad-full-redis");
    let Some(disk) = TinyDisk::mount(&folder.0.join("disk"), "3m") else {
        return;
    };
    let mut topology = Topology::new(StoreKind::Redis, 1, Medium::Dram);
    topology.redis_args = vec!["--dir".into(), disk.0.to_str().unwrap().into()];
    topology.front_args = ["--deadline-ms", "1500"].map(String::from).to_vec();
    let Some(mut cluster) = common::start("bad-full", topology) else {
        return;
    };
    let mut client = Caller::new(cluster.endpoint().unwrap());
    let value = "v".repeat(4_000);
    let mut acknowledged = 0;
    for number in 0..2_000 {
        let key = format!("full:{number}");
        match client.call(&["SET", &key, &value]) {
            Answer::Reply(reply) => assert_eq!(reply, ok()),
            other => panic!("the log has room for it: {other:?}"),
        }
        acknowledged = number + 1;
    }
    eventually("the disk is full and Redis has ended", CALL_MAX, || {
        let redis = cluster.process(Role::Redis).unwrap();
        redis.exited().unwrap().is_some()
    });
    // A read needs the store, so it must fail with an error text.
    let answer = client.call(&["GET", "full:0"]);
    assert!(!matches!(answer, Answer::Reply(_)), "{answer:?}");
    disk.grow("200m");
    cluster.restart(Role::Redis).unwrap();
    settle(&cluster).unwrap();
    let mut direct: Client = connect(cluster.redis().unwrap());
    for number in 0..acknowledged {
        let reply = direct.call(&["STRLEN", &format!("full:{number}")]).unwrap();
        assert_eq!(reply, Reply::Integer(4_000), "full:{number}");
    }
    eventually("service goes on", CALL_MAX, || {
        client.call(&["INCR", "n"]) != Answer::Unknown
    });
}
