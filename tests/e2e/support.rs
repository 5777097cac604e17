//! A client that distinguishes known and unknown outcomes, and functions that kill processes while
//! clients work.

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Cluster, Process, Ready, Role, Spec};
use pmnet_lab::resp::{Client, Reply, write_command};

/// Longest time of one call: the longest deadline of a front in these tests (60 s), with a reserve.
pub const CALL_MAX: Duration = Duration::from_secs(75);
/// Interval at which a condition is checked.
const LOOK: Duration = Duration::from_millis(20);
/// Time from a kill to the restart.
const DOWN: Duration = Duration::from_millis(20);

/// What a caller knows after a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The call took effect (or a read was executed), and this is the reply.
    Reply(Reply),
    /// The call takes effect once or not at all, perhaps later.
    Unknown,
    /// The call has not taken effect, and will not.
    Refused(String),
}

/// A connection that is made again after a break. A call that was in flight is not repeated.
pub struct Caller {
    address: SocketAddr,
    client: Option<Client>,
    /// Number of calls with unknown outcome.
    pub unknown: u64,
}

impl Caller {
    pub fn new(address: SocketAddr) -> Caller {
        Caller {
            address,
            client: None,
            unknown: 0,
        }
    }

    /// Makes one call.
    pub fn call<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Answer {
        self.exchange(&[arguments])
            .pop()
            .expect("one answer to each command")
    }

    /// Sends several commands with one write. If the connection breaks, the outcomes of the last
    /// commands are unknown.
    pub fn exchange<A: AsRef<[u8]>>(&mut self, commands: &[&[A]]) -> Vec<Answer> {
        let mut bytes = Vec::new();
        for command in commands {
            write_command(&mut bytes, command);
        }
        let client = match &mut self.client {
            Some(client) => client,
            None => self.client.insert(connect(self.address)),
        };
        let answers = match client.exchange(&bytes, commands.len()) {
            Ok(replies) => replies.into_iter().map(judge).collect(),
            Err(_) => vec![Answer::Unknown; commands.len()],
        };
        let unknown = answers.iter().filter(|answer| **answer == Answer::Unknown);
        let unknown = u64::try_from(unknown.count()).unwrap();
        if unknown > 0 {
            self.unknown += unknown;
            self.client = None;
        }
        answers
    }

    /// Makes a read, and repeats it until it is answered.
    pub fn read<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Reply {
        let deadline = Instant::now() + CALL_MAX * 2;
        loop {
            if let Answer::Reply(reply) = self.call(arguments) {
                return reply;
            }
            assert!(Instant::now() < deadline, "a read is not answered");
        }
    }
}

fn judge(reply: Reply) -> Answer {
    match reply {
        Reply::Error(text) if text.contains("may or may not") => Answer::Unknown,
        Reply::Error(text) if text.starts_with("ERR pmnet") => Answer::Refused(text),
        reply => Answer::Reply(reply),
    }
}

/// Connects. Tries again if the front was just killed.
pub fn connect(address: SocketAddr) -> Client {
    let deadline = Instant::now() + CALL_MAX;
    loop {
        match Client::connect(address, CALL_MAX) {
            Ok(client) => return client,
            Err(error) => assert!(Instant::now() < deadline, "no connection: {error}"),
        }
        std::thread::sleep(LOOK);
    }
}

/// Connects to the front.
pub fn front(cluster: &Cluster) -> Client {
    connect(cluster.endpoint().unwrap())
}

pub fn ok() -> Reply {
    Reply::Status(b"OK".to_vec())
}

pub fn bulk(bytes: impl AsRef<[u8]>) -> Reply {
    Reply::Bulk(bytes.as_ref().to_vec())
}

/// Waits until `condition` is true.
pub fn eventually(what: &str, wait: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + wait;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {wait:?}: {what}");
        std::thread::sleep(LOOK);
    }
}

/// For the given time, kills and restarts `victims` in an order that depends on `seed`. Then sets
/// `ended`. Must be called from the thread that started the cluster. Returns the number of kills.
pub fn kill_for(
    cluster: &mut Cluster,
    victims: &[Role],
    duration: Duration,
    interval: Duration,
    seed: u64,
    ended: &AtomicBool,
) -> u32 {
    // The flag must be set even if a restart fails, so that the workers end.
    let _end = SetOnDrop(ended);
    let mut random = fastrand::Rng::with_seed(seed);
    let end = Instant::now() + duration;
    let mut kills = 0;
    while Instant::now() < end {
        let next = Instant::now() + interval;
        let role = victims[random.usize(..victims.len())];
        cluster.kill(role).unwrap();
        std::thread::sleep(DOWN);
        cluster.restart(role).unwrap();
        kills += 1;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    kills
}

/// When this value is dropped, even by a failed test, the flag is set, so that all threads end.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The writes that were acknowledged to a client, with their times.
pub type Acknowledged = Vec<(String, Instant)>;

/// Runs one client that writes new keys, one at a time, until `end` is set.
pub fn write_until(end: &AtomicBool, address: SocketAddr, name: &str) -> Acknowledged {
    let mut client = connect(address);
    let mut acknowledged = Vec::new();
    while !end.load(Ordering::Relaxed) {
        let key = format!("{name}:{}", acknowledged.len());
        assert_eq!(client.call(&["SET", &key, &key]).unwrap(), ok(), "{key}");
        acknowledged.push((key, Instant::now()));
        std::thread::sleep(Duration::from_millis(2));
    }
    acknowledged
}

/// Number of writing clients.
const WRITERS: usize = 3;

/// Runs an action while clients write. The clients also write for a given time before and after it.
/// Returns all acknowledged writes in the order of their times.
pub fn write_around<T>(
    endpoint: SocketAddr,
    name: &str,
    around: Duration,
    act: impl FnOnce() -> T,
) -> (Acknowledged, T) {
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&end);
        let end = &end;
        let writers: Vec<_> = (0..WRITERS)
            .map(|at| scope.spawn(move || write_until(end, endpoint, &format!("{name}{at}"))))
            .collect();
        std::thread::sleep(around);
        let result = act();
        std::thread::sleep(around);
        end.store(true, Ordering::Relaxed);
        let mut all: Acknowledged = Vec::new();
        for writer in writers {
            all.extend(writer.join().unwrap());
        }
        all.sort_by_key(|(_, at)| *at);
        (all, result)
    })
}

/// The result of `pmnet ctl`: its exit code, stdout and stderr.
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Runs `pmnet ctl` with these arguments.
pub fn ctl(args: &[&str]) -> Said {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(crate::common::pmnet())
        .arg("ctl")
        .args(args)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let said = Said {
        code: status.code(),
        out: text(stdout),
        err: text(stderr),
    };
    println!("ctl {}:\n{}{}", args.join(" "), said.out, said.err);
    assert!(!said.err.contains("panicked"));
    said
}

/// Returns a seed for this run, and prints it. `PMNET_TEST_SEED` sets the seed of another run.
pub fn seed() -> u64 {
    let seed = std::env::var("PMNET_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| fastrand::u64(1..1_000_000_000));
    println!("PMNET_TEST_SEED={seed}");
    seed
}

/// Starts `pmnet` with these arguments. Does not wait until the process serves.
pub fn launch(name: &str, folder: &std::path::Path, args: &[&str]) -> Process {
    let spec = Spec {
        name: name.to_owned(),
        binaries: crate::common::binaries().clone(),
        program: None,
        args: with_key(folder, args),
        ready: Ready::Line,
    };
    Process::launch(spec, folder).unwrap()
}

/// Returns these arguments. If the cluster in this folder has a key, adds the flag for it.
pub fn with_key(folder: &std::path::Path, args: &[&str]) -> Vec<std::ffi::OsString> {
    let key = match args.first() {
        Some(&("device" | "server")) => "cluster.key",
        _ => "front.key",
    };
    let key = folder.join(key);
    let mut all: Vec<std::ffi::OsString> = args.iter().map(Into::into).collect();
    if key.exists() && !args.contains(&"--key") && args.first() != Some(&"controller") {
        all.extend(["--key".into(), key.into()]);
    }
    all
}

/// Runs a process that must soon end by itself. Returns the exit code and the stderr of the
/// process. A process waits 10 seconds for a port that is in use.
pub fn refuses(name: &str, folder: &std::path::Path, args: &[&str]) -> (i32, String) {
    let mut process = launch(name, folder, args);
    let status = process.wait_exit(Duration::from_secs(20)).unwrap();
    let text = process.stderr();
    assert!(!text.contains("panicked"), "{text}");
    (status.code().unwrap_or(-1), text)
}
