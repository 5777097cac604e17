//! Devices in the kernel that answer under leases in a real etcd (`docs/spec/protocol.md` §14). If the
//! process of a head is dead or stopped, the kernel continues to answer, and answers nothing after the
//! lease's deadline.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use pmnet_lab::resp::Reply;
use rustix::process::Signal;

use super::CALL_MAX;
use super::world::{Place, Plan, READY_MAX, World};
use crate::support::{Answer, Caller, eventually};

/// Time within which packets in flight reach the clients.
const UNDER_WAY: Duration = Duration::from_millis(700);

/// Clients that write a key and then read it, again and again.
#[derive(Default)]
struct Clients {
    end: AtomicBool,
    /// Number of answered writes so far, and number of answered reads.
    written: AtomicUsize,
    read: AtomicUsize,
    /// Number of calls so far.
    asked: AtomicUsize,
}

impl Clients {
    /// Runs one client. Returns the keys whose write was acknowledged.
    fn work(&self, front: SocketAddr, name: &str) -> Vec<String> {
        let mut caller = Caller::new(front);
        let mut acknowledged = Vec::new();
        for number in 0.. {
            if self.end.load(Ordering::Relaxed) {
                break;
            }
            let key = format!("{name}:{number}");
            self.asked.fetch_add(1, Ordering::Relaxed);
            match caller.call(&["SET", &key, &key]) {
                Answer::Reply(Reply::Status(_)) => {
                    self.written.fetch_add(1, Ordering::Relaxed);
                    acknowledged.push(key.clone());
                }
                Answer::Reply(reply) => panic!("{key}: {reply:?}"),
                Answer::Refused(_) | Answer::Unknown => {}
            }
            self.asked.fetch_add(1, Ordering::Relaxed);
            match caller.call(&["GET", &key]) {
                Answer::Reply(Reply::Bulk(value)) => {
                    assert_eq!(value, key.as_bytes());
                    self.read.fetch_add(1, Ordering::Relaxed);
                }
                Answer::Reply(Reply::Nil) => {
                    self.read.fetch_add(1, Ordering::Relaxed);
                }
                Answer::Reply(reply) => panic!("{key}: {reply:?}"),
                Answer::Refused(_) | Answer::Unknown => {}
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        acknowledged
    }

    fn answers(&self) -> (usize, usize) {
        (
            self.written.load(Ordering::Relaxed),
            self.read.load(Ordering::Relaxed),
        )
    }
}

struct EndOnDrop<'a>(&'a Clients);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end.store(true, Ordering::Relaxed);
    }
}

fn counted(status: &serde_json::Value, names: &[&str]) -> u64 {
    let of = |name: &&str| status["counters"][name].as_u64().unwrap();
    names.iter().map(of).sum()
}

/// The kernel's counters of answered READs.
const READS: [&str; 2] = ["read_hits", "read_misses"];

/// Checks that the database has all acknowledged updates. A read through `front` waits for all these updates.
fn nothing_is_lost(world: &World, front: SocketAddr, acknowledged: &[String]) {
    let applied = world.inside("client1", || {
        let mut caller = Caller::new(front);
        caller.call(&["INCR", "barrier"])
    });
    assert!(
        matches!(applied, Answer::Reply(Reply::Integer(_))),
        "{applied:?}"
    );
    let mut redis = world.redis();
    for key in acknowledged {
        let found = redis.call(&["GET", key]).unwrap();
        assert_eq!(found, Reply::Bulk(key.clone().into_bytes()), "{key}");
    }
    println!("{} writes acknowledged, none lost", acknowledged.len());
}

#[test]
fn a_head_whose_process_is_dead_or_stopped_says_nothing_behind_its_lease_and_another_one_takes_over()
 {
    for signal in [Signal::KILL, Signal::STOP] {
        let mut plan = Plan::new(Place::Router);
        (plan.followers, plan.followers_in_kernel, plan.fleet) = (1, true, true);
        let Some(mut world) = World::start(plan) else {
            return;
        };
        world.start_controller();
        let stale = world.start_stale_front();
        let following = world.start_following_front();
        let (bound, follow) = (Clients::default(), Clients::default());
        let network = world.network();
        let mut acknowledged = std::thread::scope(|scope| {
            let _ends = [EndOnDrop(&bound), EndOnDrop(&follow)];
            let client = |clients, front, name| {
                let network = network.clone();
                scope.spawn(move || {
                    network.enter("client1").unwrap();
                    Clients::work(clients, front, name)
                })
            };
            let clients = [
                client(&bound, stale, "b"),
                client(&bound, stale, "c"),
                client(&follow, following, "f"),
            ];
            let both = |least: usize| {
                let (writes, reads) = bound.answers();
                writes >= least && reads >= least && follow.answers().0 >= least
            };
            eventually("clients are answered", READY_MAX, || both(20));
            world.process("device").signal(signal).unwrap();
            // The kernel continues without the process.
            let begun = bound.answers();
            let reads = counted(&world.status(), &READS);
            let silent = |world: &World| world.status()["silent_in_ms"] == 0;
            eventually("its lease ends", READY_MAX, || silent(&world));
            let status = world.status();
            assert_eq!(status["admits"], true, "it is not held: {status}");
            std::thread::sleep(UNDER_WAY);
            let (answers, asked) = (bound.answers(), bound.asked.load(Ordering::Relaxed));
            println!("{signal:?}: {begun:?} answers before, {answers:?} until the deadline");
            assert!(
                answers.0 > begun.0 && answers.1 > begun.1,
                "{begun:?} {answers:?}"
            );
            assert!(counted(&status, &READS) > reads, "{status}");
            world.until_done(r#""step":"left-out""#, 1);
            let healed = follow.answers().0;
            eventually("the new head answers", READY_MAX, || {
                follow.answers().0 > healed + 20
            });
            let later = world.status();
            assert_eq!(counted(&later, &READS), counted(&status, &READS), "{later}");
            assert!(
                counted(&later, &["silenced"]) > counted(&status, &["silenced"]),
                "{later}"
            );
            assert_eq!(later["silent_in_ms"], 0);
            // The new head acknowledges alone, in the kernel, with a lease of its own.
            let other = world.follower_status();
            assert_eq!(
                (&other["role"], &other["lease"]),
                (&"alone".into(), &true.into())
            );
            // The old head answers packets that were in its socket when it continued, and packets that arrive later.
            if signal == Signal::STOP {
                world.process("device").signal(Signal::CONT).unwrap();
            } else {
                world.process("device").relaunch().unwrap();
            }
            let old = world.process("device");
            eventually("it learns that it was left out", READY_MAX, || {
                old.exited().unwrap().is_some()
            });
            let said = old.stderr();
            assert!(said.contains("is not a member of the chain"), "{said}");
            assert!(!said.contains("panicked"), "{said}");
            std::thread::sleep(UNDER_WAY);
            assert!(
                bound.asked.load(Ordering::Relaxed) > asked + 3,
                "they asked"
            );
            assert_eq!(bound.answers(), answers, "not one behind the deadline");
            drop(_ends);
            let keys = clients.map(|client| client.join().unwrap());
            keys.concat()
        });
        acknowledged.sort();
        nothing_is_lost(&world, following, &acknowledged);
    }
}

#[test]
fn a_spare_joins_behind_a_device_in_the_kernel_which_goes_on_in_the_same_process() {
    let mut plan = Plan::new(Place::Nic);
    plan.fleet = true;
    let Some(mut world) = World::start(plan) else {
        return;
    };
    world.start_controller();
    let mut writer = world.session(CALL_MAX);
    writer.sets(50, 1);
    world.start_spare();
    // The chain was never longer than one device, so the test must set the controller's wanted length.
    world.process("controller").kill().unwrap();
    world.process("controller").set_flag("--copies", Some("2"));
    world.process("controller").relaunch().unwrap();
    world.wait_ready("spare");
    eventually("there are two", READY_MAX, || world.status()["copies"] == 2);
    writer.sets(50, 2);
    // A new process takes over the device, and the device continues.
    world.kill("device");
    world.restart("device");
    writer.sets(50, 2);
    world.kill("spare");
    world.until_done(r#""step":"left-out""#, 1);
    writer.sets(50, 1);
    world.check(&writer);
    let said = world.process("device").stderr();
    assert!(
        said.contains("this device has a lease, and answers"),
        "{said}"
    );
}

#[test]
fn in_a_switch_too_the_kernel_is_silent_behind_its_lease_and_answers_when_there_is_another() {
    let mut plan = Plan::new(Place::Switch);
    plan.fleet = true;
    let Some(mut world) = World::start(plan) else {
        return;
    };
    let mut writer = world.session(CALL_MAX);
    writer.sets(20, 1);
    let mut hasty = world.session(UNDER_WAY);
    hasty.sets(1, 1);
    world.kill("device");
    let silent = |world: &World| world.status()["silent_in_ms"] == 0;
    eventually("its lease ends", READY_MAX, || silent(&world));
    hasty.set().unwrap_err();
    let status = world.status();
    assert!(counted(&status, &["silenced"]) > 0, "{status}");
    assert_eq!(status["admits"], true, "{status}");
    world.restart("device");
    writer.sets(20, 1);
    assert!(!silent(&world));
    world.check(&writer);
    world.check(&hasty);
}

/// The head of a chain of two devices was left out. The old head comes back as a spare, in a new process or in its old
/// process. Later the old head is the only remaining device.
fn comes_back(mut plan: Plan) {
    (plan.followers, plan.fleet) = (1, true);
    let Some(mut world) = World::start(plan) else {
        return;
    };
    world.start_controller();
    let front = world.start_following_front();
    // The flag may stay, because the log of a member is never erased.
    world.process("device").set_flag("--join", None);
    world.kill("device");
    world.restart("device");
    let clients = Clients::default();
    let network = world.network();
    let acknowledged = std::thread::scope(|scope| {
        let _ends = EndOnDrop(&clients);
        let client = scope.spawn(|| {
            network.enter("client1").unwrap();
            clients.work(front, "k")
        });
        let goes_on = |more: usize| {
            let least = clients.answers().0 + more;
            eventually("clients are answered", READY_MAX, || {
                clients.answers().0 >= least
            });
        };
        for (signal, lost) in [(Signal::KILL, 1), (Signal::STOP, 2)] {
            goes_on(20);
            world.process("device").signal(signal).unwrap();
            world.until_done(r#""step":"left-out""#, lost);
            goes_on(20);
            if signal == Signal::STOP {
                world.process("device").signal(Signal::CONT).unwrap();
            } else {
                world.process("device").relaunch().unwrap();
            }
            eventually("there are two again", READY_MAX, || {
                let status = world.fleet_status();
                // Each device must have a place in the chain, and all devices must serve the same epoch.
                let epochs = status.split(r#""epoch":"#).skip(1);
                let epochs: Vec<&str> = epochs.filter_map(|rest| rest.split(',').next()).collect();
                status.matches(r#""places":2,"#).count() == 2
                    && epochs.iter().all(|one| *one == epochs[0] && *one != "0")
            });
            goes_on(20);
        }
        let said = world.process("device").stderr();
        assert!(said.contains("is ready to join"), "{said}");
        assert!(!said.contains("panicked"), "{said}");
        world.kill("follower");
        world.until_done(r#""step":"left-out""#, 3);
        goes_on(20);
        drop(_ends);
        client.join().unwrap()
    });
    nothing_is_lost(&world, front, &acknowledged);
}

#[test]
fn a_device_in_the_kernel_that_was_left_out_erases_its_log_there_and_joins_again() {
    let mut plan = Plan::new(Place::Router);
    plan.followers_in_kernel = true;
    comes_back(plan);
}

#[test]
fn a_device_past_the_kernels_stack_has_leases_too_and_joins_again_when_it_was_left_out() {
    for media in ["dram", "file"] {
        comes_back(Plan {
            direct: Some(media),
            ..Plan::new(Place::Router)
        });
    }
}
