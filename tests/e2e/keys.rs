//! Keys: a client or a device without the right key must not be served. All keys must be
//! replaceable while all processes run.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pmnet_lab::harness::{
    Cluster, Medium, Process, Ready, Role, Spec, StoreKind, Topology, free_port,
};
use pmnet_lab::resp::Reply;
use rustix::process::Signal;

use crate::common::{binaries, pmnet, start};
use crate::support::{Answer, Caller, bulk, eventually, ok};

/// Time within which a process must have read its file again, or must have reported an error.
const RELOAD_MAX: Duration = Duration::from_secs(10);
/// Duration of the load before and after each step.
const PAUSE: Duration = Duration::from_millis(400);
/// Number of clients of the load.
const CLIENTS: usize = 4;

fn run(words: &[&str]) -> Output {
    Command::new(pmnet()).args(words).output().unwrap()
}

/// Makes a key file with `pmnet key`.
fn key(words: &[&str]) {
    let done = run(&[&["key"], words].concat());
    assert!(done.status.success(), "{}", text(&done));
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn of(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Replaces a file, and makes the processes read it again.
fn replace(cluster: &mut Cluster, roles: &[Role], file: &Path, by: &Path) {
    let beside = file.with_extension("next");
    std::fs::copy(by, &beside).unwrap();
    std::fs::rename(&beside, file).unwrap();
    reload(cluster, roles, "PM6031 ");
}

fn reload(cluster: &mut Cluster, roles: &[Role], says: &str) {
    for role in roles {
        let process = cluster.process(*role).unwrap();
        let before = process.stderr().matches(says).count();
        process.signal(Signal::HUP).unwrap();
        let deadline = Instant::now() + RELOAD_MAX;
        while process.stderr().matches(says).count() == before {
            let said = process.stderr();
            assert!(
                Instant::now() < deadline,
                "{role} does not say {says}: {said}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Runs a client that counts until it is told to end. Each call must succeed. Returns the number of
/// calls.
fn count(address: SocketAddr, client: usize, done: &AtomicBool) -> u64 {
    let mut caller = Caller::new(address);
    let (key, counter) = (format!("key:{client}"), format!("counter:{client}"));
    let mut calls = 0;
    while !done.load(Ordering::Relaxed) {
        calls += 1;
        let value = calls.to_string();
        let answers = caller.exchange(&[
            &["SET", &key, &value][..],
            &["GET", &key],
            &["INCR", &counter],
        ]);
        let wanted = [
            ok(),
            bulk(&value),
            Reply::Integer(i64::try_from(calls).unwrap()),
        ];
        assert_eq!(answers, wanted.map(Answer::Reply), "call {calls}");
    }
    calls
}

/// When this value is dropped, even by a failed test, the clients end.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn all_keys_are_changed_under_load_and_no_call_fails() {
    let topology = Topology::new(StoreKind::Packet, 2, Medium::Dram);
    let Some(mut cluster) = start("keys-change", topology) else {
        return;
    };
    let keys = cluster.keys().unwrap().clone();
    let folder = cluster.folder().to_owned();
    let file = |name: &str| folder.join(name);
    let (old, next) = (file("old.key"), file("next.key"));
    std::fs::copy(&keys.cluster, &old).unwrap();
    let old_front = file("old-front.key");
    std::fs::copy(&keys.front, &old_front).unwrap();
    key(&["new", of(&next)]);
    let (first, second) = (file("first.key"), file("second.key"));
    key(&[
        "both",
        "--send",
        of(&old),
        "--accept",
        of(&next),
        of(&first),
    ]);
    key(&[
        "both",
        "--send",
        of(&next),
        "--accept",
        of(&old),
        of(&second),
    ]);
    let front = file("next-front.key");
    key(&["front", "front", "--of", of(&next), of(&front)]);
    let inner = [Role::Server, Role::Device(0), Role::Device(1)];
    let endpoint = cluster.endpoint().unwrap();

    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let done = &done;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| scope.spawn(move || count(endpoint, client, done)))
            .collect();
        let ends = Ends(done);
        std::thread::sleep(PAUSE);
        for step in [&first, &second] {
            replace(&mut cluster, &inner, &keys.cluster, step);
            std::thread::sleep(PAUSE);
        }
        replace(&mut cluster, &[Role::Front], &keys.front, &front);
        std::thread::sleep(PAUSE);
        // An invalid file must change nothing.
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&keys.front, open).unwrap();
        reload(&mut cluster, &[Role::Front], "PM6033 key file");
        std::thread::sleep(PAUSE);
        std::fs::set_permissions(&keys.front, std::fs::Permissions::from_mode(0o600)).unwrap();
        replace(&mut cluster, &inner, &keys.cluster, &next);
        std::thread::sleep(PAUSE);
        // A process that is started now knows only the new key.
        for role in inner {
            cluster.kill(role).unwrap();
            cluster.restart(role).unwrap();
            std::thread::sleep(PAUSE);
        }
        drop(ends);
        for (client, calls) in clients.into_iter().enumerate() {
            let calls = calls.join().unwrap();
            assert!(calls > 50, "client {client} has called {calls} times only");
        }
    });

    // The old key now counts as the key of another cluster.
    std::fs::copy(&old_front, file("late.key")).unwrap();
    refused_by_the_devices(&cluster, &file("late.key"));
    assert_eq!(cluster.stop().unwrap(), Vec::<String>::new());
}

/// Starts a front with this key. The front must start, and its calls must fail.
fn refused_by_the_devices(cluster: &Cluster, key: &Path) {
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    let (at, via) = (listen.to_string(), cluster.head().unwrap().to_string());
    let words = [
        "redis",
        "--listen",
        &at,
        "--via",
        &via,
        "--deadline-ms",
        "700",
        "--anyone-may-connect",
        "--key",
        of(key),
    ];
    let spec = Spec {
        name: "late-front".into(),
        binaries: binaries().clone(),
        program: None,
        args: words.map(Into::into).to_vec(),
        ready: Ready::Line,
    };
    let mut front = Process::start(spec, cluster.folder(), RELOAD_MAX).unwrap();
    let answer = Caller::new(listen).call(&["SET", "late", "1"]);
    assert!(!matches!(answer, Answer::Reply(_)), "{answer:?}");
    // The front gets no answers, and the device does not know the front's key. Front and device
    // must both report the cause.
    eventually("the front says what to look at", RELOAD_MAX, || {
        front.stderr().contains("PM3213 no device has answered")
    });
    let (_, head) = cluster
        .processes()
        .find(|(role, _)| *role == Role::Device(0))
        .unwrap();
    let said = head.stderr();
    assert!(said.contains("PM1118 a front is not served"), "{said}");
    front.stop().unwrap();
}

#[test]
fn a_front_is_refused_under_load_and_another_one_goes_on() {
    let topology = Topology::new(StoreKind::Packet, 1, Medium::Dram);
    let Some(mut cluster) = start("keys-refused", topology) else {
        return;
    };
    let keys = cluster.keys().unwrap().clone();
    let endpoint = cluster.endpoint().unwrap();
    let mut caller = Caller::new(endpoint);
    assert_eq!(caller.call(&["SET", "a", "1"]), Answer::Reply(ok()));
    // First the front gets another id. Then the first id is refused.
    let other = cluster.folder().join("front-2.key");
    key(&["front", "front-2", "--of", of(&keys.cluster), of(&other)]);
    replace(&mut cluster, &[Role::Front], &keys.front, &other);
    assert_eq!(caller.call(&["SET", "a", "2"]), Answer::Reply(ok()));
    let mut refusing = std::fs::read_to_string(&keys.cluster).unwrap();
    refusing += "refused = [\"front\"]\n";
    let new: PathBuf = cluster.folder().join("refusing.key");
    std::fs::write(&new, refusing).unwrap();
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).unwrap();
    let inner = [Role::Server, Role::Device(0)];
    replace(&mut cluster, &inner, &keys.cluster, &new);
    assert_eq!(caller.call(&["SET", "a", "3"]), Answer::Reply(ok()));
    assert_eq!(caller.call(&["GET", "a"]), Answer::Reply(bulk("3")));
    assert_eq!(cluster.stop().unwrap(), Vec::<String>::new());
}

/// With an unusable key, a process must end with exit code 2 and a message.
#[test]
fn keys_that_cannot_be_used_are_refused_at_the_start() {
    let folder = crate::common::folder().join(format!("keys-bad-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str| folder.join(name);
    let (cluster, front, open, short) = (
        file("c.key"),
        file("f.key"),
        file("open.key"),
        file("short.key"),
    );
    for path in [&cluster, &front] {
        let _ = std::fs::remove_file(path);
    }
    key(&["new", of(&cluster)]);
    key(&["front", "web", "--of", of(&cluster), of(&front)]);
    std::fs::copy(&cluster, &open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::fs::write(&short, "kind = \"cluster\"\nkey = \"00\"\n").unwrap();
    std::fs::set_permissions(&short, std::fs::Permissions::from_mode(0o600)).unwrap();
    let missing = file("missing.key");
    let server = ["server", "--listen", "127.0.0.1:51990", "--store", "null:"];
    let redis = [
        "redis",
        "--listen",
        "127.0.0.1:51991",
        "--via",
        "127.0.0.1:51992",
        "--anyone-may-connect",
    ];
    let cases: [(&[&str], &Path, &str); 6] = [
        (&server, &missing, "No such file"),
        (&server, &open, "others can read or change it (mode 0640)"),
        (
            &server,
            &short,
            "32 hexadecimal digits are needed, and it has 2",
        ),
        (&server, &front, "it is the key of the front web"),
        (
            &redis,
            &cluster,
            "the key of the cluster, which no front may have",
        ),
        (&redis, &open, "others can read"),
    ];
    for (words, path, says) in cases {
        let done = run(&[words, &["--key", of(path)]].concat());
        assert_eq!(done.status.code(), Some(2), "{}", text(&done));
        assert!(text(&done).contains(says), "{}", text(&done));
    }
    // Without keys, a process may start only on an address that no other machine can reach.
    let everywhere = ["server", "--listen", "0.0.0.0:51990", "--store", "null:"];
    let elsewhere = [
        "redis",
        "--listen",
        "127.0.0.1:51991",
        "--via",
        "10.255.0.1:51000",
    ];
    for words in [&everywhere[..], &elsewhere] {
        let done = run(words);
        assert_eq!(done.status.code(), Some(2), "{}", text(&done));
        let said = text(&done);
        assert!(
            said.contains("--key is missing") && said.contains("--insecure"),
            "{said}"
        );
    }
    // The command must not overwrite a file. The command shows a key only if a flag demands it.
    let again = run(&["key", "new", of(&cluster)]);
    assert!(
        text(&again).contains("never overwritten"),
        "{}",
        text(&again)
    );
    let secret = std::fs::read_to_string(&cluster).unwrap();
    let secret = secret
        .lines()
        .find_map(|line| line.strip_prefix("key = "))
        .unwrap();
    for (words, shows) in [(&[][..], false), (&["--keys"], true)] {
        let shown = run(&[&["key", "show", of(&cluster), "--json"], words].concat());
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert_eq!(shown.contains(secret.trim_matches('"')), shows, "{shown}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
