//! The device in the kernel, with real processes in namespaces. The device must acknowledge while its process is dead,
//! and no kill of a process may lose, repeat or reorder an update (`docs/spec/protocol.md` §10).

mod begin;
mod beside;
mod direct;
mod end;
mod hand;
mod lease;
mod linear;
mod load;
mod misuse;
mod mtu;
mod pinned;
mod reads;
mod ring;
mod traffic;
mod world;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pmnet_client::SessionError;
use pmnet_lab::testbed::Network;

use self::load::{Load, Writer};
use self::world::{Place, Plan, World};
use crate::support::seed;

/// Deadline of every call of a session.
const CALL_MAX: Duration = Duration::from_secs(10);

fn load(seconds: u64, value_bytes: usize) -> Load {
    Load {
        seconds,
        clients: 8,
        value_bytes,
        rate: None,
        every: Duration::from_secs(1),
    }
}

/// Checks that the new process reports that it took over the device in the kernel.
fn took_over(world: &mut World) {
    let said = world.process("device").stderr();
    assert!(said.contains("took over the log in the kernel"), "{said}");
}

#[test]
fn acknowledged_while_no_process_lives() {
    for place in [Place::Nic, Place::Router] {
        let Some(mut world) = World::start(Plan::new(place)) else {
            return;
        };
        let mut writer = world.session(CALL_MAX);
        writer.sets(10, 1);
        world.kill("device");
        assert!(world.has_program());
        writer.sets(200, 1);
        // The device also acknowledges without a server.
        world.kill("server");
        writer.sets(200, 1);
        // The kernel cannot open sessions, so updates of a new session are not acknowledged.
        let mut other = world.session(Duration::from_millis(300));
        other.set().unwrap_err();
        world.process("server").relaunch().unwrap();
        world.restart("device");
        took_over(&mut world);
        writer.sets(10, 1);
        world.check(&writer);
    }
}

#[test]
fn killed_every_second() {
    let Some(mut world) = World::start(Plan::new(Place::Nic)) else {
        return;
    };
    let mut kills = 0;
    world.checked(load(5, 0), |world, _| {
        world.kill("device");
        std::thread::sleep(Duration::from_millis(100));
        world.restart("device");
        took_over(world);
        kills += 1;
    });
    assert!(kills >= 2, "{kills} kills");
}

/// Sessions that open and end make the process hold the fast path again and again. The test kills the process at random
/// moments of this work, even before the process serves.
#[test]
fn killed_while_sessions_come_and_go() {
    let Some(mut world) = World::start(Plan::new(Place::Nic)) else {
        return;
    };
    let seed = seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let ended = AtomicBool::new(false);
    let head = world.head();
    let network = world.network();
    let (writers, unknown, kills) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| come_and_go(&network, head, &ended)))
            .collect();
        let end = Instant::now() + Duration::from_secs(6);
        let mut kills = 0;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(random.u64(5..400)));
            world.kill("device");
            world.process("device").relaunch().unwrap();
            kills += 1;
        }
        world.wait_ready("device");
        ended.store(true, Ordering::Release);
        let (mut writers, mut unknown) = (Vec::new(), 0);
        for thread in threads {
            let (more, open) = thread.join().unwrap();
            writers.extend(more);
            unknown += open;
        }
        (writers, unknown, kills)
    });
    let acknowledged: usize = writers.iter().map(|w| w.acknowledged.len()).sum();
    let sessions = writers.len();
    println!("{kills} kills; {sessions} sessions, {acknowledged} acknowledged, {unknown} not");
    assert!(kills > 5 && acknowledged > 20, "{kills}, {acknowledged}");
    world.settle();
    for writer in &writers {
        world.check_without_device(writer);
    }
}

/// Opens sessions, sets some keys in each, and ends some of the sessions. Returns the acknowledged keys, and the number
/// of other calls.
fn come_and_go(network: &Network, head: SocketAddr, ended: &AtomicBool) -> (Vec<Writer>, u32) {
    network.enter("client1").unwrap();
    let (mut writers, mut unknown) = (Vec::new(), 0);
    while !ended.load(Ordering::Acquire) {
        let mut writer = Writer::open(head, Duration::from_secs(3));
        for _ in 0..fastrand::u32(1..20) {
            match writer.set() {
                Ok(copies) => assert_eq!(copies, 1),
                // The call was too late to be sent, or its outcome is unknown.
                Err(SessionError::Failed(_) | SessionError::Unknown) => unknown += 1,
                Err(other) => panic!("{other}"),
            }
        }
        if fastrand::bool() {
            writer.end();
        }
        writers.push(writer);
    }
    (writers, unknown)
}

#[test]
fn server_and_database_killed_too() {
    let mut plan = Plan::new(Place::Nic);
    plan.ipv6 = true;
    let Some(mut world) = World::start(plan) else {
        return;
    };
    let mut kills = 0;
    world.checked(load(6, 3_000), |world, number| {
        let name = ["server", "device", "redis"][usize::try_from(number).unwrap() % 3];
        world.kill(name);
        world.restart(name);
        kills += 1;
    });
    assert!(kills >= 2, "{kills} kills");
}

/// Clients send to the address of the server, and do not know that a device on the path answers.
#[test]
fn a_switch_speaks_for_the_server_behind_it() {
    let Some(mut world) = World::start(Plan::new(Place::Switch)) else {
        return;
    };
    let mut writer = world.session(CALL_MAX);
    writer.sets(10, 1);
    world.kill("device");
    writer.sets(100, 1);
    world.restart("device");
    took_over(&mut world);
    world.check(&writer);
    world.checked(load(4, 0), |world, number| {
        let name = ["device", "server"][usize::try_from(number).unwrap() % 2];
        world.kill(name);
        world.restart(name);
    });
}

#[test]
fn the_server_reads_the_log_where_it_lies() {
    let mut plan = Plan::new(Place::Nic);
    plan.reads_log = true;
    let Some(mut world) = World::start(plan) else {
        return;
    };
    let mut writer = world.session(CALL_MAX);
    writer.sets(1_000, 1);
    world.check(&writer);
    let mut kills = 0;
    world.checked(load(6, 0), |world, number| {
        let name = ["server", "device", "redis"][usize::try_from(number).unwrap() % 3];
        world.kill(name);
        world.restart(name);
        kills += 1;
    });
    assert!(kills >= 3, "{kills} kills");
    // Entries that were acknowledged while the server was stopped must reach the server afterwards.
    world.stop("server");
    writer.sets(1_000, 1);
    world.restart("server");
    world.check(&writer);
}

#[test]
fn a_chain_of_two() {
    for place in [Place::Nic, Place::Router] {
        let mut plan = Plan::new(place);
        plan.followers = 1;
        let Some(mut world) = World::start(plan) else {
            return;
        };
        let mut writer = world.session(CALL_MAX);
        writer.sets(50, 2);
        let mut kills = 0;
        world.checked(load(4, 0), |world, number| {
            let name = ["device", "follower", "server"][usize::try_from(number).unwrap() % 3];
            world.kill(name);
            world.restart(name);
            kills += 1;
        });
        assert!(kills >= 2, "{kills} kills");
        // An acknowledgement needs both devices. Without the second device no update may be acknowledged.
        world.kill("follower");
        let mut hasty = world.session(Duration::from_millis(300));
        hasty.set().unwrap_err();
        world.restart("follower");
        writer.sets(50, 2);
        world.check(&writer);
    }
}

/// The kernels pass entries down the chain, and confirmations back, while processes die.
#[test]
fn a_chain_in_the_kernel() {
    for (place, followers, ipv6) in [
        (Place::Router, 1, false),
        (Place::Router, 2, false),
        (Place::Router, 2, true),
        (Place::Switch, 1, false),
        (Place::Switch, 2, false),
    ] {
        let mut plan = Plan::new(place);
        (plan.followers, plan.followers_in_kernel, plan.ipv6) = (followers, true, ipv6);
        let Some(mut world) = World::start(plan) else {
            return;
        };
        let copies = u8::try_from(followers).unwrap() + 1;
        let mut writer = world.session(CALL_MAX);
        writer.sets(200, copies);
        // The processes of all devices are dead, and the chain must continue.
        let names = &["device", "follower", "follower2"][..=followers];
        for name in names {
            world.kill(name);
        }
        writer.sets(200, copies);
        for name in names.iter().rev() {
            world.process(name).relaunch().unwrap();
        }
        for name in names {
            world.wait_ready(name);
        }
        world.check(&writer);
        let mut kills = 0;
        world.checked(load(6, 0), |world, number| {
            let turn = usize::try_from(number).unwrap() % (names.len() + 1);
            let name = names.get(turn).copied().unwrap_or("server");
            world.kill(name);
            world.restart(name);
            kills += 1;
        });
        assert!(kills >= 3, "{kills} kills");
        writer.sets(50, copies);
        world.check(&writer);
        let status = world.status();
        assert_eq!(status["role"], "head");
        assert_eq!(status["copies"], copies);
        let confirmed = status["counters"]["confirmed"].as_u64().unwrap();
        assert!(confirmed > 200, "acknowledged by the kernel: {status}");
    }
}

/// A process that is started again finds the other processes in any state. In the end all processes must serve.
#[test]
fn a_chain_of_two_killed_at_any_moment() {
    for in_kernel in [false, true] {
        killed_at_any_moment(in_kernel);
    }
}

fn killed_at_any_moment(followers_in_kernel: bool) {
    let mut plan = Plan::new(Place::Router);
    plan.followers = 1;
    plan.followers_in_kernel = followers_in_kernel;
    let Some(mut world) = World::start(plan) else {
        return;
    };
    let mut random = fastrand::Rng::with_seed(seed());
    let mut kills = 0;
    let load = Load {
        every: Duration::from_millis(600),
        ..load(6, 0)
    };
    world.checked(load, |world, _| {
        for name in ["device", "follower", "server"] {
            if random.bool() {
                world.kill(name);
                std::thread::sleep(Duration::from_millis(random.u64(..100)));
                world.process(name).relaunch().unwrap();
                kills += 1;
            }
        }
    });
    for name in ["server", "follower", "device"] {
        world.wait_ready(name);
    }
    assert!(kills > 3, "{kills} kills");
}

#[test]
fn a_full_log() {
    let mut plan = Plan::new(Place::Nic);
    plan.args = ["--entries", "256", "--frame-bytes", "65536"]
        .map(String::from)
        .to_vec();
    let Some(mut world) = World::start(plan) else {
        return;
    };
    let mut first = world.session(Duration::from_secs(1));
    first.sets(10, 1);
    world.check(&first);
    world.kill("server");
    // The device must acknowledge exactly as many updates as the log can hold.
    let full = (0..1_000).find(|_| first.set().is_err());
    assert!(full.is_some_and(|count| count > 100), "{full:?}");
    // A call that waits must end by itself when the server is back.
    let mut writer = world.session(CALL_MAX);
    let waiting = std::thread::spawn(move || {
        let copies: Vec<u8> = (0..600).map(|_| writer.set().unwrap()).collect();
        (writer, copies)
    });
    // A device that starts with a full log must keep all acknowledged updates.
    world.kill("device");
    world.process("device").relaunch().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(!waiting.is_finished(), "a full log took 600 updates");
    world.restart("server");
    world.wait_ready("device");
    let (writer, copies) = waiting.join().unwrap();
    let fallback = copies.iter().filter(|copies| **copies == 0).count();
    println!(
        "{} in the log, then {fallback} of 600 by the server itself",
        first.acknowledged.len()
    );
    assert!(copies.iter().all(|copies| *copies <= 1));
    world.check(&first);
    world.check(&writer);
}

/// The long form of this test, which `make kernel` runs.
#[test]
#[ignore = "a minute: make kernel"]
fn many_clients_for_a_minute() {
    let Some(mut world) = World::start(Plan::new(Place::Nic)) else {
        return;
    };
    let names = ["device", "server", "device", "redis", "device"];
    let mut kills = std::collections::BTreeMap::<_, u32>::new();
    let load = Load {
        clients: 64,
        ..load(60, 0)
    };
    let (_, summary) = world.checked(load, |world, number| {
        let name = names[usize::try_from(number).unwrap() % names.len()];
        world.kill(name);
        std::thread::sleep(Duration::from_millis(50));
        world.restart(name);
        *kills.entry(name).or_default() += 1;
    });
    println!("kills {kills:?}; {:?}", summary.latency);
    assert!(kills["device"] >= 15, "{kills:?}");
}
