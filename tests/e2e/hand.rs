//! `pmnet ctl --via`: the chain of a shard without a fleet is changed under load. No process is restarted by hand.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Cluster, Medium, Process, Role, StoreKind, Topology, free_port, settle};
use pmnet_lab::resp::Reply;
use rustix::process::Signal;

use crate::common;
use crate::support::{
    Acknowledged, Answer, Caller, Said, ctl, eventually, launch, ok, write_around,
};

/// Longest wait for a condition.
const DONE_MAX: Duration = Duration::from_secs(30);
/// Longest permitted time without an acknowledgement, on a machine with other work.
const GAP_MAX: Duration = Duration::from_secs(6);

struct World {
    cluster: Cluster,
    spares: Vec<Process>,
    /// Addresses of the chain's devices and of spares, by device id.
    at: BTreeMap<u32, SocketAddr>,
    /// Ids of the devices that the cluster has started.
    ids: Vec<u32>,
}

impl World {
    /// Starts a chain of `devices` devices. Prepares `spares` spares, which are not started yet. The front knows the
    /// addresses of all.
    fn start(name: &str, devices: usize, spares: usize, medium: Medium) -> Option<World> {
        let mut topology = Topology::new(StoreKind::Redis, devices, medium);
        // The deadline is longer than every fault, so that no call has an unknown outcome.
        topology.front_args = vec!["--deadline-ms".into(), "60000".into()];
        let mut cluster = common::start(name, topology)?;
        let mut at = BTreeMap::new();
        let mut ids = Vec::new();
        for index in 0..devices {
            let listens = listens(cluster.process(Role::Device(index)).unwrap());
            at.insert(u32::from(listens.port()), listens);
            ids.push(u32::from(listens.port()));
        }
        // The head comes first in the list, because before the first write a front can only begin at the head.
        let mut via: Vec<String> = ids.iter().map(|id| at[id].to_string()).collect();
        for _ in 0..spares {
            let port = free_port().unwrap();
            let spare = SocketAddr::from(([127, 0, 0, 1], port));
            at.insert(port.into(), spare);
            via.push(spare.to_string());
        }
        let front = cluster.process(Role::Front).unwrap();
        front.set_flag("--via", Some(&via.join(",")));
        cluster.restart(Role::Front).unwrap();
        Some(World {
            cluster,
            spares: Vec::new(),
            at,
            ids,
        })
    }

    /// Returns the id of a device that the cluster has started.
    fn id(&self, index: usize) -> u32 {
        self.ids[index]
    }

    /// Returns the ids of the spares.
    fn spare_ids(&self) -> Vec<u32> {
        let all = self.at.keys().copied();
        all.filter(|id| !self.ids.contains(id)).collect()
    }

    /// Starts a spare, and waits until it is ready.
    fn spare(&mut self, id: u32) {
        let listen = self.at[&id].to_string();
        let log = self.cluster.folder().join(format!("spare{id}.log"));
        let next = self.cluster.server().unwrap().to_string();
        let medium = self.cluster.topology().medium.name();
        let args = [
            "device",
            "--join",
            "--listen",
            &listen,
            "--next",
            &next,
            "--media",
            medium,
            "--log",
            log.to_str().unwrap(),
        ];
        let name = format!("spare{id}");
        let process = launch(&name, self.cluster.folder(), &args);
        eventually("it is ready to join", DONE_MAX, || {
            process.stderr().contains("is ready to join")
        });
        self.spares.push(process);
    }

    /// Returns the path of the cluster's key file.
    fn key(&self) -> String {
        let keys = self.cluster.keys().expect("it has keys");
        keys.cluster.to_str().unwrap().to_owned()
    }

    /// Runs `pmnet ctl` with the addresses of all devices and of the server.
    fn ctl(&self, args: &[&str]) -> Said {
        let via: Vec<String> = self.at.values().map(SocketAddr::to_string).collect();
        let (via, server) = (via.join(","), self.cluster.server().unwrap().to_string());
        let place = ["--via", &via, "--server", &server, "--key", &self.key()];
        ctl(&[&place[..], args].concat())
    }

    fn does(&self, args: &[&str]) -> String {
        let said = self.ctl(args);
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
        said.out
    }

    /// Sends writes while the action runs, and for a while after it.
    fn under_load<T>(
        &mut self,
        name: &str,
        act: impl FnOnce(&mut World) -> T,
    ) -> (Acknowledged, T) {
        let endpoint = self.cluster.endpoint().unwrap();
        let mut begun = Instant::now();
        let (all, result) = write_around(endpoint, name, Duration::from_millis(500), || {
            begun = Instant::now();
            act(self)
        });
        let gaps = all.windows(2).map(|pair| pair[1].1 - pair[0].1);
        let gap = gaps.max().expect("writes went on");
        let last = all.last().expect("writes went on").1;
        println!("{name}: {} acknowledged, longest gap {gap:?}", all.len());
        assert!(last > begun && gap < GAP_MAX, "{name}: {gap:?}");
        (all, result)
    }

    /// Checks that Redis has all acknowledged updates.
    fn nothing_is_lost(&self, acknowledged: &Acknowledged) {
        settle(&self.cluster).unwrap();
        let mut direct = self.cluster.reader().unwrap();
        for (key, _) in acknowledged {
            let reply = direct.call(&["GET", key]).unwrap();
            assert_eq!(reply, Reply::Bulk(key.clone().into_bytes()), "{key}");
        }
        println!("{} writes acknowledged, none lost", acknowledged.len());
    }
}

/// Returns the address at which a device listens.
fn listens(process: &Process) -> SocketAddr {
    let said = process.stdout();
    let (_, rest) = said.split_once(" listen=").expect("a ready line");
    let text = rest.split_whitespace().next().unwrap_or_default();
    text.parse().unwrap()
}

#[test]
fn a_chain_grows_loses_a_device_and_shrinks_by_hand_while_clients_write() {
    let Some(mut world) = World::start("hand", 2, 2, Medium::File) else {
        return;
    };
    let (head, tail) = (world.id(0), world.id(1));
    let spares = world.spare_ids();
    let (first, second) = (spares[0], spares[1]);

    // Without confirmation, the command must change nothing.
    world.spare(first);
    let out = world.does(&["add", "--dry-run", "--json"]);
    assert!(out.contains(r#""copies":3"#), "{out}");
    let chain = |world: &World, ids: &[u32]| {
        let out = world.does(&["status"]);
        assert!(out.contains(&format!("the chain is {ids:?}")), "{out}");
    };
    chain(&world, &[head, tail]);

    let (mut all, out) = world.under_load("add", |world| world.does(&["add"]));
    assert!(out.contains("done; the chain is"), "{out}");
    assert!(
        out.contains(&format!("device {tail} was started with --next")),
        "{out}"
    );
    chain(&world, &[head, tail, first]);

    // The processes are restarted with their old flags. The processes must use the next hops that `pmnet ctl` gave them
    // last.
    let (more, ()) = world.under_load("again", |world| {
        for role in [Role::Device(1), Role::Server] {
            world.cluster.kill(role).unwrap();
            world.cluster.restart(role).unwrap();
        }
        let said = world.cluster.process(Role::Device(1)).unwrap().stderr();
        assert!(
            said.contains("this device was wired by `pmnet ctl`"),
            "{said}"
        );
    });
    all.extend(more);
    chain(&world, &[head, tail, first]);

    // The middle device is lost.
    let (more, ()) = world.under_load("replace", |world| {
        world.cluster.kill(Role::Device(1)).unwrap();
        let id = tail.to_string();
        let said = world.ctl(&["replace", &id]);
        assert!(said.code == Some(1) && said.err.contains("--is-stopped"));
        let said = world.ctl(&["replace", &id, "--is-stopped"]);
        assert!(said.code == Some(1) && said.err.contains("no spare is ready"));
        world.spare(second);
        world.does(&["replace", &id, "--is-stopped"]);
    });
    all.extend(more);
    chain(&world, &[head, first, second]);

    // The head is ordered to leave. The process of the head ends by itself with exit code 0.
    let (more, out) = world.under_load("remove", |world| {
        world.does(&["remove", &head.to_string(), "--json"])
    });
    all.extend(more);
    assert!(out.contains(r#""done":true"#), "{out}");
    let process = world.cluster.process(Role::Device(0)).unwrap();
    assert!(process.wait_exit(DONE_MAX).unwrap().success());
    chain(&world, &[first, second]);
    // The lost device is no longer a member, whether it is started with its last next hop or with the next hop in its
    // flags.
    let process = world.cluster.process(Role::Device(1)).unwrap();
    process.relaunch().unwrap();
    assert!(!process.wait_exit(DONE_MAX).unwrap().success());
    let said = process.stderr();
    assert!(said.contains("its flags count"), "{said}");
    assert!(said.contains("is not a member of the chain"), "{said}");
    // The first device comes back as a spare. This spare replaces another device, which leaves only after the spare has
    // everything.
    let process = world.cluster.process(Role::Device(0)).unwrap();
    process.set_flag("--join", None);
    let next = world.cluster.server().unwrap().to_string();
    let process = world.cluster.process(Role::Device(0)).unwrap();
    process.set_flag("--next", Some(&next));
    process.set_flag("--next-id", Some("0"));
    process.relaunch().unwrap();
    eventually("it is ready to join", DONE_MAX, || {
        process.stderr().contains("is ready to join")
    });
    let (more, out) = world.under_load("moved", |world| {
        world.does(&["replace", &second.to_string()])
    });
    all.extend(more);
    assert!(out.contains("An acknowledgement has 2 copies"), "{out}");
    chain(&world, &[first, head]);
    let drained = world.does(&["drain"]);
    assert!(drained.contains("is in the database"), "{drained}");
    world.nothing_is_lost(&all);
}

#[test]
fn a_chain_in_which_nobody_writes_changes_too() {
    let Some(mut world) = World::start("hand-idle", 2, 2, Medium::File) else {
        return;
    };
    let (head, tail) = (world.id(0), world.id(1));
    let spares = world.spare_ids();
    let (first, second) = (spares[0], spares[1]);
    let mut caller = Caller::new(world.cluster.endpoint().unwrap());
    assert_eq!(caller.call(&["SET", "k", "v"]), Answer::Reply(ok()));
    world.cluster.kill(Role::Front).unwrap();

    world.spare(first);
    let short = ["--wait", "20"];
    let does = |world: &World, args: &[&str], chain: &[u32]| {
        let out = world.does(&[&short[..], args].concat());
        let says = format!("done; the chain is {chain:?}");
        assert!(out.contains(&says), "{says}: {out}");
    };
    does(&world, &["add"], &[head, tail, first]);
    world.spare(second);
    let id = tail.to_string();
    does(&world, &["replace", &id], &[head, first, second]);
    let id = second.to_string();
    does(&world, &["remove", &id], &[head, first]);

    world.cluster.restart(Role::Front).unwrap();
    let mut caller = Caller::new(world.cluster.endpoint().unwrap());
    assert_eq!(
        caller.call(&["GET", "k"]),
        Answer::Reply(Reply::Bulk(b"v".to_vec()))
    );
}

#[test]
fn what_an_operator_gets_wrong_is_refused_and_changes_nothing() {
    let Some(mut world) = World::start("hand-wrong", 1, 1, Medium::Dram) else {
        return;
    };
    let only = world.id(0);
    let other = world.spare_ids()[0];
    let mut caller = Caller::new(world.cluster.endpoint().unwrap());
    assert_eq!(caller.call(&["SET", "k", "v"]), Answer::Reply(ok()));
    let refused = |world: &World, args: &[&str], says: &str| {
        let said = world.ctl(args);
        assert_eq!(said.code, Some(1), "{args:?}: {}{}", said.out, said.err);
        assert!(said.err.contains(says), "{args:?}: {says}: {}", said.err);
    };
    let id = only.to_string();
    refused(&world, &["remove", "7"], "is not in the chain");
    refused(&world, &["add"], "no spare is ready");
    refused(&world, &["add", "--device", "7"], "for a fleet");
    refused(&world, &["remove", &id, "--is-stopped"], "is not stopped");
    refused(&world, &["--shard", "3", "add"], "is of shard 0");
    for (args, says) in [
        (&["add"][..], "where is the shard?"),
        (
            &["--via", "127.0.0.1:1", "add"],
            "nothing answers at 127.0.0.1:1",
        ),
        (&["--via", "127.0.0.1:1", "status"], ""),
        (&["--via", "x", "add"], "--via"),
        (
            &[
                "--via",
                "127.0.0.1:1",
                "--fleet",
                "f",
                "--etcd",
                "http://127.0.0.1:1",
                "add",
            ],
            "leave one out",
        ),
        (
            &[
                "--fleet",
                "f",
                "--etcd",
                "http://127.0.0.1:1",
                "remove",
                "1",
                "--is-stopped",
            ],
            "without a fleet",
        ),
    ] {
        let said = ctl(args);
        assert!(matches!(said.code, Some(1 | 2)), "{args:?}");
        assert!(said.err.contains(says), "{args:?}: {}", said.err);
    }

    // The server is stopped, so the last device has entries that no other process has. pmnet must not give up these
    // entries.
    let server = world.cluster.process(Role::Server).unwrap();
    server.signal(Signal::STOP).unwrap();
    assert_eq!(caller.call(&["SET", "k", "w"]), Answer::Reply(ok()));
    refused(&world, &["remove", &id], "no server answers");
    let server = world.cluster.process(Role::Server).unwrap();
    server.signal(Signal::CONT).unwrap();
    refused(&world, &["remove", &id], "is the only one");
    refused(&world, &["remove", &id, "--to-one"], "is the only one");

    // The new spare has the same id as a member.
    let listen = world.at[&other].to_string();
    let (log, next) = (
        world.cluster.folder().join("twin.log"),
        world.cluster.server().unwrap().to_string(),
    );
    let log = log.to_str().unwrap();
    let args = [
        "device", "--join", "--listen", &listen, "--next", &next, "--media", "dram", "--log", log,
        "--id", &id, "--no-ctl",
    ];
    // A device that accepts no orders is not visible to the command.
    let mut twin = launch("twin", world.cluster.folder(), &args);
    assert!(
        !twin.wait_exit(DONE_MAX).unwrap().success(),
        "the server refuses it"
    );
    refused(&world, &["add"], "no spare is ready");
    std::fs::remove_file(log).unwrap();
    let waits = ["device", "--listen", &listen, "--next", "127.0.0.1:1"];
    let rest = ["--media", "dram", "--log", log, "--id", &id];
    let mut twin = launch(
        "twin2",
        world.cluster.folder(),
        &[&waits[..], &rest].concat(),
    );
    eventually("it is seen", DONE_MAX, || {
        world
            .ctl(&["add"])
            .err
            .contains("give one of them another --id")
    });
    twin.kill().unwrap();

    // A spare joins, and is lost before it learns that it has joined. Then no device may send to this spare any more.
    world.spare(other);
    let out = world.does(&["replace", &id, "--dry-run"]);
    assert!(out.contains("when it has everything"), "{out}");
    let out = world.does(&["add"]);
    assert!(out.contains("2 copies"), "{out}");
    refused(&world, &["remove", &id], "--to-one");
    world.does(&["remove", &id, "--to-one"]);
    assert_eq!(caller.call(&["SET", "k", "x"]), Answer::Reply(ok()));
    let last = other.to_string();
    world.spares[0].kill().unwrap();
    refused(
        &world,
        &["remove", &last, "--is-stopped"],
        "--declare-data-loss",
    );
    // The spare is started again, and becomes a member by itself.
    world.spares[0].relaunch().unwrap();
    world.spares[0].wait_ready(DONE_MAX).unwrap();
    settle(&world.cluster).unwrap();
    let value = world.cluster.reader().unwrap().call(&["GET", "k"]).unwrap();
    assert_eq!(value, Reply::Bulk(b"x".to_vec()));
}

/// The database is stopped, so the server cannot record that the spare joins. Then the spare is lost. After a short
/// time, no device may send to this spare any more.
#[test]
fn a_spare_that_is_lost_while_it_joins_is_let_go_again() {
    let Some(mut world) = World::start("hand-lost", 2, 1, Medium::Dram) else {
        return;
    };
    let spare = world.spare_ids()[0];
    world.spare(spare);
    let mut caller = Caller::new(world.cluster.endpoint().unwrap());
    assert_eq!(caller.call(&["SET", "k", "v"]), Answer::Reply(ok()));
    settle(&world.cluster).unwrap();
    let redis = world.cluster.process(Role::Redis).unwrap();
    redis.signal(Signal::STOP).unwrap();
    let said = std::thread::scope(|scope| {
        let asked = scope.spawn(|| world.ctl(&["add", "--wait", "30"]));
        eventually("it is sent to", DONE_MAX, || {
            let told = format!("next {}: ", world.at[&spare]);
            world.ctl(&["status"]).out.contains(&told)
        });
        world.spares[0].signal(Signal::KILL).unwrap();
        asked.join().unwrap()
    });
    assert_eq!(said.code, Some(1));
    assert!(said.out.contains("is lost"), "{}", said.out);
    assert!(
        said.out.contains("Nobody sends to the device"),
        "{}",
        said.out
    );
    let redis = world.cluster.process(Role::Redis).unwrap();
    redis.signal(Signal::CONT).unwrap();
    // The server may already have decided that the spare joins, and may record it now. Then the spare is left out like
    // any other lost device.
    eventually("the chain is served again", DONE_MAX, || {
        let out = world.ctl(&["status"]);
        if out.out.contains(&format!(", {spare}]")) {
            world.ctl(&["remove", &spare.to_string(), "--is-stopped"]);
        }
        out.code == Some(0)
    });
    assert_eq!(caller.call(&["SET", "k", "w"]), Answer::Reply(ok()));
    settle(&world.cluster).unwrap();
    let value = world.cluster.reader().unwrap().call(&["GET", "k"]).unwrap();
    assert_eq!(value, Reply::Bulk(b"w".to_vec()));
}

/// `pmnet ctl` is killed at a random moment of a replacement. Other commands must complete the change, and no update
/// may be lost.
#[test]
fn a_change_that_is_broken_off_anywhere_is_ended_by_another_command() {
    let Some(mut world) = World::start("hand-broken", 2, 1, Medium::Dram) else {
        return;
    };
    let mut random = fastrand::Rng::with_seed(crate::support::seed());
    let mut chain = vec![world.id(0), world.id(1)];
    let mut spare = world.spare_ids()[0];
    world.spare(spare);
    let server = world.cluster.server().unwrap().to_string();
    let via: Vec<String> = world.at.values().map(SocketAddr::to_string).collect();
    let via = via.join(",");
    let on_record = |world: &World| -> Vec<u32> {
        let out = world.ctl(&["status", "--json"]).out;
        let said: serde_json::Value = serde_json::from_str(&out).unwrap();
        let ids = said["server"]["chain"].as_array().unwrap();
        let id = |id: &serde_json::Value| u32::try_from(id.as_u64().unwrap()).unwrap();
        ids.iter().map(id).collect()
    };
    let (all, ()) = world.under_load("broken", |world| {
        for _ in 0..12 {
            let leaver = chain[random.usize(..2)].to_string();
            let mut ctl = Command::new(common::pmnet())
                .args([
                    "ctl", "--via", &via, "--server", &server, "replace", &leaver,
                ])
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(random.u64(..300)));
            ctl.kill().unwrap();
            ctl.wait().unwrap();
            // As an operator would, the test repeats the commands until the chain is [the staying device, the spare].
            let id: u32 = leaver.parse().unwrap();
            let mut wanted = chain.clone();
            wanted.retain(|one| *one != id);
            wanted.push(spare);
            eventually("it is done", DONE_MAX, || {
                let now = on_record(world);
                if now == wanted && world.ctl(&["status"]).code == Some(0) {
                    return true;
                }
                world.ctl(&["wire", "--wait", "2"]);
                let joined = now.contains(&spare);
                let word = if joined { "remove" } else { "replace" };
                for more in [&[][..], &["--is-stopped"]] {
                    world.ctl(&[&[word, &leaver, "--wait", "5"][..], more].concat());
                }
                false
            });
            chain = wanted;
            // The device that has left comes back as the next spare.
            spare = id;
            let index = (0..2).find(|index| world.id(*index) == id);
            match index {
                Some(index) => {
                    let process = world.cluster.process(Role::Device(index)).unwrap();
                    process.wait_exit(DONE_MAX).unwrap();
                    process.set_flag("--join", None);
                    process.set_flag("--next", Some(&server));
                    process.set_flag("--next-id", Some("0"));
                    process.relaunch().unwrap();
                }
                None => {
                    world.spares[0].wait_exit(DONE_MAX).unwrap();
                    world.spares[0].relaunch().unwrap();
                }
            }
            let at = world.at[&id];
            eventually("it is ready again", DONE_MAX, || {
                let out = world.ctl(&["status"]).out;
                out.lines().any(|line| {
                    line.contains(&format!(" at {at},")) && line.contains("is ready to join")
                })
            });
        }
    });
    world.nothing_is_lost(&all);
}

/// A host connects again and again to the TCP ports of a device and its server, and sends nothing.
#[test]
fn silent_connections_do_not_lock_ctl_out() {
    const SILENT: usize = 350;
    let Some(world) = World::start("hand-silent", 1, 0, Medium::Dram) else {
        return;
    };
    let device = world.at[&world.ids[0]];
    let server = world.cluster.server().unwrap();
    let mut silent = Vec::new();
    for at in [device, server] {
        for _ in 0..SILENT {
            // A client that cannot connect also counts as locked out.
            match std::net::TcpStream::connect_timeout(&at, Duration::from_secs(1)) {
                Ok(stream) => silent.push(stream),
                Err(_) => break,
            }
        }
    }
    let begun = Instant::now();
    let said = ctl(&[
        "--via",
        &device.to_string(),
        "--key",
        &world.key(),
        "status",
    ]);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    let took = begun.elapsed();
    println!(
        "status took {took:?} beside {} silent connections",
        silent.len()
    );
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// A client without a key, and a client with the key of another cluster, ask devices and a server with keys.
#[test]
fn who_has_no_key_learns_nothing_and_changes_nothing() {
    let Some(mut world) = World::start("hand-keys", 2, 1, Medium::Dram) else {
        return;
    };
    let spare = world.spare_ids()[0];
    world.spare(spare);
    let other = world.cluster.folder().join("other.key");
    let made = std::process::Command::new(common::pmnet())
        .args(["key", "new"])
        .arg(&other)
        .status();
    assert!(made.unwrap().success());
    let other = other.to_str().unwrap();
    let via: Vec<String> = world.at.values().map(SocketAddr::to_string).collect();
    let via = via.join(",");
    let before = world.does(&["status"]);
    let head = world.id(0).to_string();
    for (key, says) in [
        (&[][..], "PM5127 this process has keys"),
        (
            &["--key", other],
            "PM5129 the question was made with another key",
        ),
    ] {
        for words in [
            &["status"][..],
            &["add"],
            &["remove", &head, "--to-one"],
            &["remove", &head, "--is-stopped", "--to-one"],
        ] {
            let said = ctl(&[&["--via", &via][..], key, words].concat());
            assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
            let text = said.out + &said.err;
            assert!(text.contains(says), "{words:?}: {text}");
            assert!(!text.contains("next"), "{text}");
        }
    }
    assert_eq!(world.does(&["status"]), before);
    world.does(&["drain"]);
    world.does(&["add"]);
    assert_eq!(world.does(&["status"]).matches("with 3 copies").count(), 3);
}
